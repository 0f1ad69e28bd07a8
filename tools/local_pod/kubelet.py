"""The loop inside the pod's namespaces: the shell of `machine.py`. PID 1 of them, so nothing outlives it.

It starts containers, watches their ends, asks probes, runs hooks, and does what the control socket's clients say.
It decides nothing; the machine does. Started by `run.py` as `python -m PACKAGE.kubelet DIRECTORY`.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import enum
import json
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import IO, Any

from sidecar.terminal.logs import Log
from sidecar.wire.sockets import address_of

from . import asking, image, network, places, processes, status, wire
from . import events as e
from .machine import Machine
from .sandbox import CantMake, Order, Sandbox
from .spec import Container

OOM = "OOMKilled"
PROBES_AT_A_TIME = 32
_LAST_SIGNAL = 128 + 64
_LINE_MOST = 300
Request = dict[str, Any]
Answer = tuple[dict[str, Any], list[int]]
"""What a client gets, and descriptors for it."""


@dataclasses.dataclass
class Running:
    """A run of a container, as the loop knows it."""

    run: int
    pid: int = 0
    """Its first process, as seen from here."""
    reason: str = ""


class Kubelet:
    def __init__(self, order: Order, directory: Path) -> None:
        self.order = order
        self.pod = order.pod
        self.directory = directory
        self.machine = Machine(order.pod, order.settings)
        self.sandbox = Sandbox(order.pod, order.users, directory / places.MOUNTS)
        self.log = Log("local-pod", json=order.json_log)
        self.running: dict[str, Running] = {}
        self.hooks: dict[str, asyncio.Task[None]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.finished = asyncio.Event()
        self.changed = asyncio.Condition()
        self._pending: list[e.Event] = []
        self._timer: asyncio.TimerHandle | None = None
        self._events: IO[str] = (directory / places.EVENTS).open("a", encoding="utf-8")

    async def main(self) -> int:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(PROBES_AT_A_TIME))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: self.feed(e.Delete()))
        try:
            await asyncio.to_thread(self._make)
        except (CantMake, OSError) as error:
            print(f"local-pod: {error}", file=sys.stderr)
            return 2
        listener = self._listen()
        self.feed(e.Begin())
        await self.finished.wait()
        listener.close()
        return 0

    def _make(self) -> None:
        with contextlib.suppress(OSError):
            socket.sethostname(self.pod.hostname[:63])
        if not self.pod.host_network:
            network.up(self.pod.address)
        self.sandbox.prepare()

    # -- the machine -----------------------------------------------------------------------------------------------

    def feed(self, event: e.Event) -> None:
        """One event, and everything that its effects bring back at once."""
        self._pending.append(event)
        if len(self._pending) > 1:
            return
        while self._pending:
            for effect in self.machine.handle(self._pending[0], time.monotonic()):
                self._do(effect)
            self._pending.pop(0)
        self._set_timer()
        self._spawn(self._tell())

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.machine.deadline
        if deadline < float("inf"):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(deadline - time.monotonic(), 0), self.feed, e.Tick())

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _do(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Start):
            self._spawn(self._start(effect))
        elif isinstance(effect, e.Ask):
            self._spawn(self._ask(effect))
        elif isinstance(effect, e.RunHook):
            self.hooks[effect.name] = self._spawn(self._run_hook(effect))
        elif isinstance(effect, e.CancelHook):
            if effect.name in self.hooks:
                self.hooks.pop(effect.name).cancel()
        elif isinstance(effect, e.Signal):
            self._signal(effect.name, effect.run, signal.Signals[effect.signal])
        elif isinstance(effect, e.Note):
            self._note(effect)
        else:
            self._note(e.Note("finished"))
            self.finished.set()

    def _note(self, note: e.Note) -> None:
        at = round(time.monotonic() - self.machine.begin, 3) if self.machine.begun else 0.0
        line = {"at_s": at, "time": time.time(), "event": note.event, **note.detail}
        self._events.write(json.dumps(line, default=_plain) + "\n")
        self._events.flush()
        self.log.info(note.event, at_s=at, **note.detail, **self._what_it_wrote(note))

    def _what_it_wrote(self, note: e.Note) -> dict[str, str]:
        """For people: the last line of a container that has failed, and the file that has the others."""
        if note.event != "ended" or not note.detail["code"] or "why" in note.detail:
            return {}
        name, run = str(note.detail["container"]), int(str(note.detail["run"]))
        log = places.log(self.directory, name, run)
        return {"said": _last_line(log)[-_LINE_MOST:], "see": str(log)}

    # -- containers ------------------------------------------------------------------------------------------------

    async def _start(self, effect: e.Start) -> None:
        container = self.pod.container(effect.name)
        reading, writing = os.pipe()
        try:
            if effect.run > 1 and not container.read_only_root:
                await asyncio.to_thread(self.sandbox.make_root, container)
            with places.log(self.directory, effect.name, effect.run).open("wb") as output:
                outer = await asyncio.create_subprocess_exec(
                    *self.sandbox.start(container), env=_environment(container), stdin=writing, stdout=output,
                    stderr=output, start_new_session=True,
                )  # fmt: skip
        except (OSError, CantMake) as error:
            os.close(reading)
            os.close(writing)
            self.feed(e.NotStarted(effect.name, effect.run, str(error)))
            return
        os.close(writing)
        running = self.running[effect.name] = Running(effect.run)
        said = await asyncio.to_thread(_read_and_close, reading)
        if not said:
            await outer.wait()
            why = _last_line(places.log(self.directory, effect.name, effect.run))
            self.feed(
                e.NotStarted(effect.name, effect.run, why or f"it ended with {outer.returncode} before it was started")
            )
            return
        running.pid = processes.first_child(outer.pid)
        self.feed(e.Started(effect.name, effect.run))
        code = processes.exit_code(await outer.wait())
        running.pid = 0
        number = code - 128 if 128 < code <= _LAST_SIGNAL else 0
        self.feed(e.Ended(effect.name, effect.run, code, number, running.reason))

    def _signal(self, name: str, run: int, number: signal.Signals) -> None:
        running = self.running.get(name)
        if running is not None and running.run == run and running.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.pid, number)

    # -- probes and hooks ------------------------------------------------------------------------------------------

    async def _ask(self, effect: e.Ask) -> None:
        container = self.pod.container(effect.name)
        probe = container.probes[effect.kind]
        ok, why = await self._call(effect.name, probe.handler, probe.timeout_s)
        self.feed(e.Answered(effect.name, effect.run, effect.kind, ok, why))

    async def _run_hook(self, effect: e.RunHook) -> None:
        container = self.pod.container(effect.name)
        # The machine has the bound; this one is only so that nothing stays for ever.
        ok, why = await self._call(effect.name, container.pre_stop, 24 * 3600)
        self.hooks.pop(effect.name, None)
        self.feed(e.HookEnded(effect.name, effect.run, ok, why))

    async def _call(self, name: str, handler: Any, timeout_s: float) -> tuple[bool, str]:
        container, running = self.pod.container(name), self.running.get(name)
        if running is None or not running.pid:
            return False, "the container doesn't run"
        command = getattr(handler, "command", ())
        enter = self.sandbox.enter(container, running.pid, command) if command else []
        return await asking.ask(handler, self.pod.address, timeout_s, enter, _environment(container))

    # -- the control socket ----------------------------------------------------------------------------------------

    def _listen(self) -> socket.socket:
        path = self.directory / places.CONTROL
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with address_of(path) as address:
            listener.bind(address)
        listener.listen(64)
        listener.setblocking(False)
        self._spawn(self._accept(listener))
        return listener

    async def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed: the pod has ended
            while True:
                client, _ = await asyncio.get_running_loop().sock_accept(listener)
                self._spawn(self._serve(client))

    async def _serve(self, client: socket.socket) -> None:
        """One client. What it asks for is given up when it goes: nothing more is to come from it but its end."""
        loop = asyncio.get_running_loop()
        client.setblocking(True)
        with client, contextlib.suppress(EOFError, OSError, ValueError, asyncio.CancelledError):
            request, descriptors = await asyncio.to_thread(wire.receive, client)
            doing = asyncio.ensure_future(self._request(request, descriptors))
            loop.add_reader(client, doing.cancel)
            try:
                answer, given = await doing
            finally:
                loop.remove_reader(client)
                for descriptor in descriptors:
                    os.close(descriptor)
            wire.send(client, answer, given)
            for descriptor in given:
                os.close(descriptor)

    async def _request(self, request: Request, descriptors: list[int]) -> Answer:
        known = {
            "status": self._on_status, "wait": self._on_wait, "signal": self._on_signal, "exec": self._on_exec,
            "dial": self._on_dial, "down": self._on_down,
        }  # fmt: skip
        try:
            return await known[request["do"]](request, descriptors)
        except KeyError as error:
            return {"ok": False, "error": f"there is no {error}"}, []
        except (OSError, ValueError) as error:
            return {"ok": False, "error": str(error)}, []

    async def _on_status(self, request: Request, descriptors: list[int]) -> Answer:
        pids = {name: running.pid for name, running in self.running.items()}
        return {"ok": True, "pod": status.as_json(self.machine, time.monotonic(), pids, self.directory)}, []

    async def _on_wait(self, request: Request, descriptors: list[int]) -> Answer:
        """Until the pod is ready, isn't, or has ended."""
        wanted: str = request["for"]

        def reached() -> bool:
            return self.machine.finished or (wanted != "finished" and self.machine.ready is (wanted == "ready"))

        try:
            async with asyncio.timeout(request.get("timeout_s")), self.changed:
                await self.changed.wait_for(reached)
        except TimeoutError:
            why = "; ".join(self.machine.unready()) or "it is Ready"
            return {"ok": False, "error": f"not {wanted} in {request['timeout_s']} s: {why}"}, []
        if self.machine.finished and wanted != "finished":
            return {"ok": False, "error": "the pod has ended"}, []
        return await self._on_status(request, descriptors)

    async def _on_signal(self, request: Request, descriptors: list[int]) -> Answer:
        running = self._running(request["container"])
        number = signal.Signals[request["signal"]]
        if request.get("oom"):
            running.reason = OOM
        if request.get("every"):
            hit = processes.inside(running.pid)
        elif request.get("inside"):
            hit = processes.matching(processes.inside(running.pid), request["inside"], running.pid)
            if not hit:
                raise ValueError(f"no process in {request['container']} has {request['inside']!r} in its command line")
        else:
            hit = [running.pid]
        told = [{"pid": pid, "command": processes.command(pid)} for pid in hit]
        for pid in hit:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return {"ok": True, "processes": told, "at": time.monotonic()}, []

    async def _on_exec(self, request: Request, descriptors: list[int]) -> Answer:
        running = self._running(request["container"])
        container = self.pod.container(request["container"])
        stdin, stdout, stderr = descriptors
        environment = {**_environment(container), **request.get("environment", {})}
        process = await asyncio.create_subprocess_exec(
            *self.sandbox.enter(container, running.pid, request["command"]), env=environment,
            stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip
        try:
            code = processes.exit_code(await process.wait())
        except asyncio.CancelledError:  # the client has gone
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        return {"ok": True, "code": code}, []

    async def _on_dial(self, request: Request, descriptors: list[int]) -> Answer:
        """A connection to the pod's own address, for a client outside its network."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(10):
                await asyncio.get_running_loop().sock_connect(sock, (self.pod.address, request["port"]))
            sock.setblocking(True)
            return {"ok": True}, [sock.detach()]
        finally:
            sock.close()

    async def _on_down(self, request: Request, descriptors: list[int]) -> Answer:
        self.feed(e.Delete(request.get("grace_s")))
        return {"ok": True}, []

    def _running(self, name: str) -> Running:
        known = [container.name for container in self.pod.containers]
        if name not in known:
            raise ValueError(f"there is no container {name}; there are: {', '.join(known)}")
        running = self.running.get(name)
        if running is None or not running.pid:
            raise ValueError(f"{name} doesn't run")
        return running


def _environment(container: Container) -> dict[str, str]:
    return {**image.environment(), **container.environment}


def _read_and_close(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 64)
    finally:
        os.close(descriptor)


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _plain(value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else str(value)


def main() -> int:
    """Process 1 of the pod does nothing but wait for the orphans that become its children: the loop is one child.

    An exec probe that takes too long is killed with its nsenter, so what ran in the container becomes a child of
    process 1 here. Unless that waits for it, the container's own process 1 can't end: the kernel lets it go only when
    its namespace is empty.
    """
    child = os.fork()
    if not child:
        return _loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(child, number))
    while True:
        pid, status = os.wait()
        if pid == child:
            return processes.exit_code(os.waitstatus_to_exitcode(status))


def _loop() -> int:
    directory = Path(sys.argv[1])
    order: Order = pickle.loads((directory / places.POD).read_bytes())
    return asyncio.run(Kubelet(order, directory).main())


if __name__ == "__main__":
    sys.exit(main())
