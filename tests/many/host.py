"""A real `failover models up` with reference engines, and clients that keep every byte of what they get."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lockserver.observer import Observer as Lock
from lockserver.observer import ObserverError as LockError
from lockserver.rules.messages import HolderState
from pool.entries import ModelShown, State
from pool.observer import Listing, Observer, ObserverError
from sidecar.kernel import process_tree
from tests.engine.shims import House, Program
from tests.gateway.door import Stream, ask
from tests.support.ports import free_port
from tests.support.processes import Process, cmdline
from tests.support.waiting import DEADLINE_S, until

DEVICE = "host:many"
AWAKE_MIB = 96
"""What a model takes while it is awake, at most; of the device two of them fit where a test doesn't say otherwise."""


class Counted(NamedTuple):
    descriptors: dict[str, int]
    """By process."""
    memory: int
    """Of all together."""

    def check(self, before: "Counted", memory: float) -> None:
        """Nothing has grown since. `memory`: nor all together by more than that."""
        grown = {one: (before.descriptors[one], now) for one, now in self.descriptors.items()
                 if now > before.descriptors.get(one, now) + 4}  # fmt: skip
        assert not grown, f"descriptors grew: {grown}"
        assert self.memory <= memory, f"memory grew from {before.memory} to {self.memory} bytes"


class Host:
    def __init__(self, house: House, models: Mapping[str, Mapping[str, Any]], **file: Any) -> None:
        """Each model is the reference engine's, with weights of its own, unless its entry says otherwise."""
        self.house = house
        self.path = house.directory / "models.yaml"
        self.port = free_port()
        self.file: dict[str, Any] = {"devices": [DEVICE], "capacity": "256MiB", **file}
        self.models = {name: dict(entry) for name, entry in models.items()}
        self.write()
        self.start()

    def start(self) -> None:
        """What an earlier one has said goes on in the same file."""
        place = (str(self.path), "--run-dir", str(self.house.run_dir), "--listen", f"127.0.0.1:{self.port}")
        self.up = Program(self.house, "up", "engine_shim.cli.failover", "models", "up", *place)
        self.house.add(self.up)

    def write(self) -> None:
        usual = {
            name: {"engine": "reference", "arguments": ["--seed", str(n)], "memory": f"{AWAKE_MIB}MiB", "preload": True}
            for n, name in enumerate(self.models)
        }
        models = {name: {**usual[name], **entry} for name, entry in self.models.items()}
        self.path.write_text(json.dumps({**self.file, "models": models}))

    # -- what is to be seen ----------------------------------------------------------------------------------------

    def listing(self) -> Listing | None:
        try:
            with Observer(self.house.run_dir) as observer:
                return observer.listing()
        except ObserverError:
            return None

    def model(self, name: str) -> ModelShown | None:
        listing = self.listing()
        return next((one for one in listing.models if one.name == name), None) if listing is not None else None

    def shown(self) -> list[ModelShown]:
        listing = self.listing()
        return listing.models if listing is not None else []

    def shown_of(self, name: str) -> ModelShown:
        found = until(lambda: self.model(name), f"the pool shows {name}")
        assert found is not None
        return found

    def failed(self, name: str) -> bool:
        model = self.model(name)
        return model is not None and model.failures > 0

    def well(self) -> bool:
        """Every model could be waked, or is awake, and the pool has all that it needs."""
        listing = self.listing()
        return (
            listing is not None
            and not listing.waiting_for
            and {one.state for one in listing.models} <= {State.ASLEEP, State.AWAKE}
        )

    def states(self) -> dict[str, State]:
        listing = self.listing()
        return {one.name: one.state for one in listing.models} if listing is not None else {}

    def until(self, done: Callable[[], object], what: str) -> None:
        try:
            until(done, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.states()}; it said:\n{self.up.said()[-6000:]}") from None

    def until_states(self, **wanted: State) -> None:
        self.until(lambda: all(self.states().get(name) is state for name, state in wanted.items()), str(wanted))

    def ready(self) -> "Host":
        """The door answers, and each model's engine could wake."""

        def there() -> bool:
            states = self.states()
            loaded = all(states.get(name) in (State.ASLEEP, State.AWAKE) for name in self.models)
            return loaded and f"127.0.0.1:{self.port}/v1" in self.up.said()

        self.until(there, "the door answers, and every model is loaded")
        return self

    def do(self, verb: Any, name: str) -> None:
        with Observer(self.house.run_dir) as observer:
            done = observer.command(verb, name)
            assert done.ok, done.detail

    def part(self, word: str) -> Process:
        """The program of that name among those that the launcher runs."""
        for pid in process_tree.children(self.up.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if word.encode() in words:
                return Process(pid)
        raise AssertionError(f"no {word} runs")

    def main(self, name: str) -> Process:
        """The main process of a model's engine."""
        run_dir = f"{self.house.run_dir}/lock/{name}".encode()
        for pid in process_tree.descendants(self.up.pid):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"engine_shim.shell.main_process" in line and run_dir + b"\0" in line:
                return Process(pid)
        raise AssertionError(f"{name} has no main process")

    def shim(self, name: str) -> Process:
        run_dir = f"{self.house.run_dir}/lock/{name}".encode()
        for pid in process_tree.children(self.up.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"engine_shim" in words and run_dir in words:
                return Process(pid)
        raise AssertionError(f"{name} has no shim")

    def holder(self, name: str) -> HolderState | None:
        """Of a model's lock."""
        with Lock(self.house.run_dir / "lock" / name) as lock:
            return next(lock.watch()).holder

    def kill_awake(self) -> None:
        """The main process of an engine that serves."""
        for name in self.models:
            with contextlib.suppress(LockError), Lock(self.house.run_dir / "lock" / name) as lock:
                holder = next(lock.watch()).holder
                if holder is not None and holder.endpoint:
                    Process(holder.pid).kill()
                    return

    def hold(self, size: str) -> Program:
        """Any program that takes part in the ledger."""
        code = "import time; print('held', flush=True); time.sleep(600)"
        words = ("hold", "--run-dir", str(self.house.run_dir), "--needs", f"{DEVICE}={size}", "--")
        held = Program(self.house, "held", "vram.cli.vramctl", *words, sys.executable, "-u", "-c", code)
        self.house.add(held)
        return held

    def counted(self) -> Counted:
        pids = [self.up.pid, *process_tree.descendants(self.up.pid)]
        names = {pid: f"{pid} {cmdline(pid)[:200].decode()}" for pid in pids}
        descriptors = {name: len(os.listdir(f"/proc/{pid}/fd")) for pid, name in names.items()}
        return Counted(descriptors, process_tree.memory_bytes(self.up.pid))

    # -- clients ---------------------------------------------------------------------------------------------------

    def stream(self, model: str, prompt: str = "Once", tokens: int = 32, **more: Any) -> Stream:
        return Stream({"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, **more})

    def run(self, streams: Iterable[Stream]) -> list[Stream]:
        async def all_of_them() -> list[Stream]:
            return list(await asyncio.gather(*(stream.run(self.port) for stream in streams)))

        return asyncio.run(all_of_them())

    def answered(self, streams: Sequence[Stream]) -> None:
        """Each is whole."""
        for stream in streams:
            assert stream.whole and stream.status == 200, (stream.error, stream.status, stream.raw[-400:])
            assert b"[DONE]" in stream.raw or not stream.streams, stream.raw[-400:]
            assert b'"error"' not in stream.raw, stream.raw[-400:]

    def get(self, path: str, body: Any = None) -> tuple[int, Any]:
        status, _, said = ask(self.port, path, body)
        return status, json.loads(said)


__all__ = ["DEADLINE_S", "DEVICE", "Host"]
