"""`failover models`: a host with many models, and what a person does with it. Settings and sentences; the launcher is
`models_up.py`, what can be wrong with models.yaml is in `pool/models_file.py`.
"""

import argparse
import contextlib
import errno
import importlib.util
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from engine_shim import vllm_engine
from engine_shim.cli.door_address import free_address, parts_are_these
from engine_shim.cli.models_parts import Options, default_devices
from engine_shim.cli.models_up import ModelsUp
from engine_shim.cli.pair_look import UpFacts, who_starts_it, why_none
from engine_shim.cli.pair_process import PairError, up_pid
from engine_shim.cli.tree import TreeLock
from pool import models_file
from pool.entries import DeviceShown, ModelShown, State
from pool.models_file import BadFile, ModelsFile
from pool.observer import Listing, NoServer, Observer, ObserverError
from sidecar.kernel import host_usage, port_owner, process_setup
from sidecar.terminal import formatting, table
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.exit_codes import EX_USAGE
from sidecar.terminal.formatting import PLAIN, Paint, Tone
from sidecar.terminal.settings import BadValue, Parser, host_port, seconds
from sidecar.terminal.terminal import observer_exit_code, say, terminal_paint
from sidecar.wire import tcp
from vram.device_totals import device_totals

DOES = {
    "wake": "Wake a model as if a request waited for it.",
    "sleep": "Put a model to sleep; a request, or wake, wakes it again.",
    "stop": "End a model's processes; a request, or wake, starts it again.",
    "pin": "Keep a model awake: it is never put to sleep for another.",
    "unpin": "Let a model be put to sleep for others again.",
}
EXAMPLES = """\
examples:
  failover models up models.yaml         one address, all models
  failover models                        who is awake, asleep, loading; whose turn is next, and why
  failover models --watch                the same, at every change
  failover models --json | jq '.models[] | select(.state == "awake").name'
  failover models check models.yaml      what is wrong with the file, before anything is started
  failover models schema > models.schema.json
  failover models wake chat

A models.yaml:
  models:
    chat:  {engine: vllm, arguments: [Qwen/Qwen3-8B, --max-model-len, "8192"], memory: 20GiB}
    small: {engine: command, command: [llama-server, -m, small.gguf, --port, "{port}"], memory: 4GiB}
"""
_SHOWN = [field for field in Listing.__struct_fields__ if field != "fds"]
FIELDS = textwrap.fill(
    f"fields of --json: {', '.join(_SHOWN)}. Of each model: {', '.join(ModelShown.__struct_fields__)}. Of each device: "
    f"{', '.join(DeviceShown.__struct_fields__)} (in bytes; null where it can't be read).",
    120,
)
TONES = {
    State.AWAKE: Tone.GOOD,
    State.FAILED: Tone.BAD,
    State.OFF: Tone.QUIET,
    State.ASLEEP: Tone.QUIET,
}
SPEC = "models.yaml"
_ADDRESS = "HOST:PORT"


def declare(command: Callable[..., Parser], gpus: Path) -> None:
    """Declares the command and its own commands. `gpus` exists where there are some."""
    models = command(
        "models", "Show all models of failover models up; or do something with them. Exit code 0: done, or on its way; "
        "1: it can't be done; 2: no pool answers.", epilog=f"{FIELDS}\n\n{EXAMPLES}",
    )  # fmt: skip
    _shows(models)
    models.set_defaults(run=_list, gpus=gpus)
    below = models.add_subparsers(dest="verb", metavar="up|check|status|schema|" + "|".join(DOES))

    def one(word: str, what: str, run: Callable[[Any], int]) -> Parser:
        it: Parser = below.add_parser(word, help=what, description=what, epilog=EXAMPLES)
        it.run_dir("the host directory")
        it.set_defaults(parser=it, run=run)
        return it

    up = one(
        "up",
        "Run all programs of a host with many models until Ctrl-C. SIGHUP: read the file again. "
        "Exit code 0: it was told to end, and has; 1, or that of the part: it can't be started; 64: the file is "
        "wrong; 128 and the signal's number: it was told to end twice.",
        _up,
    )
    check = one("check", "Say everything that is wrong with a models.yaml. Exit code 0: nothing; 1: something.", _check)
    for it in (up, check):
        it.add_argument("file", nargs="?", default=SPEC, type=Path, metavar="FILE", help=f"default {SPEC}")
    up.setting("--listen", parse=host_port, metavar="HOST:PORT", shown_default="as in the file", help="for clients")
    up.setting("--drain-s", default=30, parse=seconds, metavar="S", help="how long engines may drain at the end")
    _shows(one("status", "The same as failover models.", _list), default=argparse.SUPPRESS)
    one("schema", "Print the JSON schema of models.yaml, for editors.", lambda options: say(models_file.schema()) or 0)  # type: ignore[func-returns-value]
    for verb, what in DOES.items():
        one(verb, what, _do).add_argument("model", metavar="MODEL", help="its name, or an alias")


def _shows(parser: argparse.ArgumentParser, **more: Any) -> None:
    parser.add_argument("--json", action="store_true", help="for programs", **more)
    parser.add_argument("--watch", action="store_true", help="again at every change, until Ctrl-C", **more)


# -- looking -------------------------------------------------------------------------------------------------------


def _list(options: Any) -> int:
    try:
        with Observer(options.run_dir) as observer:
            if not options.watch:
                _show(observer.listing(), options.json, PLAIN if options.json else terminal_paint())
                return 0
            clear = "\x1b[H\x1b[J" if sys.stdout.isatty() and not options.json else ""
            for listing in observer.watch():
                if clear:
                    sys.stdout.write(clear)
                _show(listing, options.json, terminal_paint())
    except ObserverError as error:
        print(f"failover: {_no_answer(error, options.run_dir)}", file=sys.stderr)
        return observer_exit_code(error)
    return 0


def _no_answer(error: ObserverError, run_dir: Path) -> str:
    """A pool that is being started is not to be started by hand."""
    with contextlib.suppress(PairError):
        facts = UpFacts.read(run_dir)
        starts = who_starts_it(facts, up_pid(run_dir))
        if starts and isinstance(error, NoServer) and not facts.models:
            return f"{run_dir} has a pair and no pool: failover status shows it"
        return why_none("pool", error, starts)
    return str(error)


def _show(listing: Listing, as_json: bool, paint: Paint) -> None:
    if as_json:
        shown = {field: getattr(listing, field) for field in _SHOWN}
        say(msgspec.json.encode(shown).decode())
        return
    for line in lines(listing, paint, datetime.now(UTC)):
        say(line)


def lines(listing: Listing, paint: Paint, now: datetime) -> list[str]:
    rows: list[tuple[str, ...]] = [("MODEL", "STATE", "TURN", "IN", "REQUESTS", "MEMORY", "WEIGHTS", "LAST USED", "")]
    for model in sorted(listing.models, key=_order):
        in_s = "" if model.estimate_ms is None or model.state is State.AWAKE else f"{model.estimate_ms / 1000:.1f} s"
        rows.append(
            (
                model.name + (" (pinned)" if model.pinned else ""),
                paint(model.state.value, TONES.get(model.state, Tone.CARE)),
                str(model.turn or ""),
                in_s,
                _requests(model),
                ", ".join(f"{formatting.size(most)} of {device}" for device, most in model.bytes.items()),
                _weights(model),
                formatting.ago(model.last_used, now) if model.last_used else "",
                model.why,
            )
        )
    found = table.lines(rows)
    for device in listing.devices:
        free = "" if device.free is None else f", {formatting.size(device.free)} free"
        total = "unknown" if device.total is None else formatting.size(device.total)
        found.append(f"{device.uuid}: {total}, {formatting.size(device.leased)} leased{free}")
    if listing.quantum_s:
        found.append(
            f"turns: an answer is paused for no longer than {listing.quantum_s:.1f} s and two swaps; swaps take "
            f"{listing.swapping_share:.1%} of the time"
        )
    found += [paint(f"the pool waits: {listing.waiting_for}", Tone.CARE)] if listing.waiting_for else []
    return found + [paint(f"ALARM: {alarm}", Tone.BAD) for alarm in listing.alarms]


def _order(model: ModelShown) -> tuple[int, int, str]:
    ranks = [State.AWAKE, State.DRAINING, State.WAKING, State.LOADING, State.FAILED]
    rank = ranks.index(model.state) if model.state in ranks else len(ranks)
    return rank, model.turn or 1000, model.name


def _weights(model: ModelShown) -> str:
    parts = {"": sum(model.weights.values()), " parked": sum(model.parked.values())}
    return ", ".join(f"{formatting.size(most)}{word}" for word, most in parts.items() if most)


def _requests(model: ModelShown) -> str:
    parts = {"served": model.streaming, "waiting": model.waiting, "paused": model.paused}
    return ", ".join(f"{count} {word}" for word, count in parts.items() if count)


# -- doing ---------------------------------------------------------------------------------------------------------


def _do(options: Any) -> int:
    try:
        with Observer(options.run_dir) as observer:
            done = observer.command(options.verb, options.model)
    except ObserverError as error:
        print(f"failover: {_no_answer(error, options.run_dir)}", file=sys.stderr)
        return observer_exit_code(error)
    print(f"failover: {done.detail}", file=sys.stdout if done.ok else sys.stderr)
    return 0 if done.ok else 1


def _read(options: Any) -> tuple[ModelsFile, tuple[str, ...]]:
    """The file, and the host's devices. Raises BadFile."""
    spec = models_file.read(options.file)
    devices = tuple(spec.devices) or default_devices(options.run_dir, options.gpus.exists())
    totals: dict[str, int] = {}
    with contextlib.suppress(BadValue):  # which is said with all the rest
        totals = _totals(devices, spec)
    named = msgspec.structs.replace(spec, devices=list(totals if "cuda" in devices else devices))
    if problems := models_file.wrong(named, totals):
        raise BadFile(*problems)
    return spec, devices


def _totals(devices: tuple[str, ...], spec: ModelsFile) -> dict[str, int]:
    """How much each device has, as far as it can be known before anything runs. `cuda`: all GPUs that there are."""
    there = host_usage.read_devices(host_usage.devices_directory())
    capacity = models_file.size(spec.capacity)
    found = {device: there.get(device, (0, capacity))[1] for device in devices if device.startswith("host:")}
    if len(found) < len(devices):
        gpus = device_totals()
        found |= {device: total for device, total in gpus.items() if device in devices or "cuda" in devices}
    return found


def _check(options: Any) -> int:
    try:
        spec, _ = _read(options)
        runs = UpFacts.read(options.run_dir).models  # then it is this host's parts that have the ports
        problems = [*_taken("listen", "door", spec.listen), *_taken("metrics", "pool", spec.metrics)]
        if problems and not runs:
            raise BadFile(*problems)
    except BadFile as error:
        for sentence in error.args:
            print(f"{options.file}: {sentence}", file=sys.stderr)
        return 1
    count = len(spec.models)
    none = ": a request has nothing to ask for" if not count else ""
    say(f"{options.file}: {count} model{'s' * (count != 1)}{none}, nothing is wrong")
    of_vllm = [name for name, entry in spec.models.items() if entry.runs and entry.engine == "vllm"]
    if of_vllm and importlib.util.find_spec("vllm") is None:  # no mistake of the file, which may be another machine's
        print(f"{options.file}: {', '.join(of_vllm)}: {vllm_engine.NOT_HERE}", file=sys.stderr)
    return 0


def _taken(key: str, part: str, address: str) -> Iterator[str]:
    """Why that part couldn't listen where the file says."""
    host, port = host_port(address) if address else ("", 0)
    if taken := tcp.taken(host, port):
        by = port_owner.owner(port) if os.strerror(errno.EADDRINUSE) in taken else ""
        yield f"{key}: the {part} {taken}{by and f' by {by}'}; give another {_ADDRESS}"


def _up(options: Any) -> int:
    process_setup.raise_descriptor_limit()
    parts_are_these()
    try:
        spec, devices = _read(options)
    except BadFile as error:
        for sentence in error.args:
            print(f"failover: {options.file}: {sentence}", file=sys.stderr)
        return EX_USAGE
    TreeLock(options.run_dir).close()  # where it runs already its parts have the addresses
    for sentence in _taken("metrics", "pool", spec.metrics):
        raise CannotStart(f"{options.file}: {sentence}")
    listen = free_address(*(options.listen or host_port(spec.listen)), other=_ADDRESS)
    wanted = Options(options.run_dir, options.file.absolute(), spec, devices, listen, options.drain_s, dict(os.environ))
    return ModelsUp(wanted).run()
