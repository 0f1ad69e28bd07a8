"""`gmsctl`: the weights in the hands of a person or a script. It looks; and it puts, gets and verifies.

The commands that look are here; how the picture reads is `status_text.py`. Those that take part (put, get, verify) are
clients like any other, and stand in `transfer_commands.py`. Exit codes are relied on by scripts and
stand in each command's --help (`gmsctl_help.py`).
"""

from sidecar.terminal import starting

if starting.is_command(__name__, "gmsctl"):
    starting.die_of_ctrl_c()

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gms import layout as lay
from gms.cli import gmsctl_help as words
from gms.cli import parking_commands, snapshot_commands, status_text
from gms.cli.transfer_commands import add_commands, complain, region, says_whom
from gms.observer import Observer, watch_forever
from gms.rules import messages as m
from gms.shell import rundir
from sidecar.terminal.commands import Command, Commands, run
from sidecar.terminal.formatting import Tone, key_values, size
from sidecar.terminal.names import device_name
from sidecar.terminal.settings import Parser, count, name, seconds, seconds_or_zero, valued
from sidecar.terminal.terminal import end_with_the_reader, say, terminal_paint
from sidecar.wire.observer import Busy, Incompatible, NoServer, ObserverError, Refused, ServerSilent

COMMITTED, EMPTY, NO_SERVER, NOT_YET = 0, 1, 2, 3
"""Exit codes; usage errors are 64."""
_BY_STATE = {"COMMITTED": COMMITTED, "RO": COMMITTED, "EMPTY": EMPTY}
_WORST_FIRST = (NO_SERVER, NOT_YET, EMPTY, COMMITTED)
_LINES_AT_ONCE = 1000
RUN_DIR = "the run directory that gms was started with"


# -- commands ------------------------------------------------------------------------------------------------------


def status(options: argparse.Namespace) -> int:
    codes: list[int] = []
    for device in options.devices:
        try:
            with Observer(options.run_dir, device, options.answer_timeout_s) as observer:
                seen = observer.ask(m.AskStatus(), m.Status)
        except (NoServer, ServerSilent) as error:
            if options.json:
                say(json.dumps({"device": device, "state": "NO_SERVER", "error": str(error)}))
            complain(error)
            codes.append(NO_SERVER)
            continue
        if options.json:
            say(json.dumps(fields(seen)))
        else:
            if codes:
                say("")
            for line in status_text.status_lines(seen, datetime.now(UTC), terminal_paint()):
                say(line)
        codes.append(_BY_STATE.get(seen.state, NOT_YET))
    return worst(codes)


def layout(options: argparse.Namespace) -> int:
    codes: list[int] = []
    for device in options.devices:
        with Observer(options.run_dir, device, options.answer_timeout_s) as observer:
            answer = observer.ask(m.AskLayout(key=options.region), m.LayoutIs)
        if not answer.generation:
            of = "" if options.region == m.WEIGHTS else f" of {options.region}"
            complain(f"{device} has no layout{of} at the moment; see: gmsctl status")
            codes.append(EMPTY)
            continue
        document = lay.decode(answer.layout)
        if options.json:
            lines = [json.dumps({"device": device} | status_text.tensor_fields(tensor)) for tensor in document.tensors]
        else:
            lines = status_text.tensor_lines(document)
            if len(options.devices) > 1:
                lines.insert(0, f"{device}, generation {answer.generation}")
        for first in range(0, len(lines), _LINES_AT_ONCE):
            say("\n".join(lines[first : first + _LINES_AT_ONCE]))
        codes.append(COMMITTED)
    return worst(codes)


def ping(options: argparse.Namespace) -> int:
    lost = 0
    for turn in range(options.count):
        if turn:
            time.sleep(options.interval)
        for device, answer in _ping_all(options).items():
            if isinstance(answer, NoServer | ServerSilent):
                complain(answer)
                lost += 1
            elif isinstance(answer, ObserverError):
                raise answer
            elif options.json:
                incarnation, time_ms = answer
                said = {"device": device, "time_ms": round(time_ms, 3), "server_incarnation": incarnation}
                say(json.dumps(said))
            else:
                incarnation, time_ms = answer
                say(f"{device}: answer from {incarnation}, connection and all in {time_ms:.3f} ms")
    return NO_SERVER if lost else 0


def _ping_all(options: argparse.Namespace) -> dict[str, tuple[str, float] | ObserverError]:
    """All devices at the same time, so that silent ones take no longer than one: incarnation and milliseconds."""

    def one(device: str) -> tuple[str, float] | ObserverError:
        began = time.perf_counter()
        try:
            with Observer(options.run_dir, device, options.timeout_s) as observer:
                pong = observer.ask(m.Ping(), m.Pong)
        except ObserverError as error:
            return error
        return pong.server_incarnation, (time.perf_counter() - began) * 1000

    with ThreadPoolExecutor(len(options.devices)) as pool:
        return dict(zip(options.devices, pool.map(one, options.devices), strict=True))


def history(options: argparse.Namespace) -> int:
    events: list[tuple[str, m.HistoryEvent]] = []
    for device in options.devices:
        with Observer(options.run_dir, device, options.answer_timeout_s) as observer:
            events += [(device, event) for event in observer.ask(m.AskHistory(), m.History).events]
    events.sort(key=lambda each: each[1].at)
    for device, event in events[-options.last :] if options.last else events:
        if options.json:
            say(json.dumps({"device": device} | msgspec.to_builtins(event)))
        else:
            say(f"{event.at}  {device}  {event.event:<12}  {key_values(event.detail)}".rstrip())
    return 0


def watch(options: argparse.Namespace) -> int:
    paint = terminal_paint()
    last: dict[str, dict[str, Any] | str] = {}
    end_with_the_reader()
    for device, seen in _changes(options):
        now = datetime.now().astimezone()
        if options.json:
            picture: dict[str, Any] | str = {"device": device, "state": "NO_SERVER"} if seen is None else fields(seen)
            at = now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            line = json.dumps({"at": at} | picture) if isinstance(picture, dict) else ""
        else:
            away = paint("NO SERVER ", Tone.BAD) + f" {device} no server answers; its readers go on"
            picture = away if seen is None else status_text.change_line(seen, paint)
            line = f"{now:%H:%M:%S}.{now.microsecond // 1000:03d}  {picture}"
        if last.get(device) != picture:
            say(line)
        last[device] = picture
    return 0


def _changes(options: argparse.Namespace) -> Iterator[tuple[str, m.Status | None]]:
    """All devices' changes, as they come. Raises what any of them raises."""
    seen: queue.SimpleQueue[tuple[str, m.Status | None] | ObserverError] = queue.SimpleQueue()

    def follow(device: str) -> None:
        try:
            for status in watch_forever(options.run_dir, device, options.answer_timeout_s):
                seen.put((device, status))
        except ObserverError as error:
            seen.put(error)

    for device in options.devices:
        threading.Thread(target=follow, args=(device,), daemon=True).start()
    while True:
        change = seen.get()
        if isinstance(change, ObserverError):
            raise change
        yield change


def drop(options: argparse.Namespace) -> int:
    """On all devices that have it."""
    devices = [device for device in options.devices if options.device or _has(options, device)]
    return worst([_drop(options, device) for device in devices or options.devices[:1]])


def _has(options: argparse.Namespace, device: str) -> bool:
    with Observer(options.run_dir, device, options.answer_timeout_s) as observer:
        return any(region.key == options.key for region in observer.status().regions)


def _drop(options: argparse.Namespace, device: str) -> int:
    with Observer(options.run_dir, device, options.answer_timeout_s + options.timeout_s) as observer:
        try:
            with says_whom(options, device):
                dropped = observer.ask(m.DropRegion(key=options.key, timeout_s=options.timeout_s), m.RegionDropped)
        except Refused as error:
            if isinstance(error, Incompatible | Busy):
                raise
            complain(error)
            return 1
    if options.json:
        picture = {"bytes": dropped.bytes, "seen": dropped.seen, "still": dropped.still}
        say(json.dumps({"device": device, "key": dropped.key} | picture))
    elif not dropped.bytes and not dropped.still:
        say(f"{device}: {dropped.key} had no memory: there was nothing to give up")
    else:
        how = "no process has its memory any more, as the device says" if dropped.seen else "its processes say so"
        say(f"{device}: {dropped.key} is given up, {size(dropped.bytes)}{'' if dropped.still else f': {how}'}")
    for sentence in dropped.still:
        complain(sentence)
    return NOT_YET if dropped.still else 0


# -- settings ------------------------------------------------------------------------------------------------------


def parser() -> Parser:
    commands = Commands(
        "gmsctl",
        "Looks at the weights, and works with them.",
        words.MAIN,
        run_dir=RUN_DIR,
        answers="a server",
    )

    def device(to: Parser, default: str | None) -> None:
        """As the run directory, it may stand before the command or behind it."""
        what = "only this one, such as host:0; default: all"
        to.add_argument("--device", type=valued(device_name), default=default, metavar="D", help=what)

    def add(name: str, run: Command, what: str, epilog: str) -> Parser:
        command = commands.add(name, run, what, epilog)
        device(command, argparse.SUPPRESS)  # where it isn't given here, the program's stands
        return command

    device(commands.parser, None)

    add("status", status, "Which weights there are, and who has to do with them.", words.STATUS)
    command = add("layout", layout, "The tensors, and where each lies.", words.LAYOUT)
    region(command)
    command = add("ping", ping, "Are the servers there?", words.PING)
    command.add_argument("--count", type=valued(count), default=1, metavar="N", help="how often; default 1")
    command.add_argument(
        "--interval", type=valued(seconds), default=1.0, metavar="S", help="time between two; default 1"
    )
    command.add_argument(
        "--timeout-s", type=valued(seconds), default=2.0, metavar="S", help="how long an answer may take; default 2"
    )
    command = add("history", history, "What has happened, oldest first.", words.HISTORY)
    command.add_argument("--last", type=valued(count), default=0, metavar="N", help="only the last N events")
    add("watch", watch, "A line for every change.", words.WATCH)
    command = add("drop", drop, "Takes a region's memory away: a model's weights, or a pool.", words.DROP)
    command.add_argument("key", type=valued(name), metavar="KEY", help="as gmsctl status shows it")
    command.add_argument(
        "--timeout-s",
        type=valued(seconds_or_zero),
        default=3.0,
        metavar="S",
        help="how long to wait for a new server's window, and until all have let go of it; default 3",
    )
    add_commands(add)
    snapshot_commands.add_commands(add)
    parking_commands.add_commands(add)
    return commands.parser


# -- the command ---------------------------------------------------------------------------------------------------


def fields(status: m.Status) -> dict[str, Any]:
    """A status as scripts get it: without what only the wire needs, and with everything that is zero or empty."""
    return {name: msgspec.to_builtins(getattr(status, name)) for name in status.__struct_fields__ if name != "fds"}


def worst(codes: list[int]) -> int:
    return next(code for code in _WORST_FIRST if code in codes)


def main(argv: list[str] | None = None) -> int:
    return run("gmsctl", lambda: _run(parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    try:
        options.devices = _devices(options)
    except NoServer as error:
        if options.run is status and options.json:
            device = {"device": options.device} if options.device else {}
            say(json.dumps(device | {"state": "NO_SERVER", "error": str(error)}))
        raise
    return int(options.run(options))


def _devices(options: argparse.Namespace) -> list[str]:
    there = rundir.devices(options.run_dir)
    if not there and not options.device:
        raise _nothing_there(options.run_dir)
    if there and options.device and options.device not in there:
        raise NoServer(f"no GMS for {options.device} at {options.run_dir}; there are: {', '.join(there)}")
    return [options.device] if options.device else there


def _nothing_there(run_dir: Path) -> ObserverError:
    try:
        os.listdir(rundir.directory(run_dir))
    except PermissionError:  # a GMS may well be there
        return Refused(f"user {os.getuid()} may not look into {run_dir}: be the user that GMS runs as")
    except OSError:
        pass
    if not os.path.isdir(run_dir):  # `Path.is_dir` raises where a name is too long
        return NoServer(f"no GMS: there is no directory {run_dir}. Is this the --run-dir of gms?")
    return NoServer(f"no GMS was ever started at {run_dir}: gms --run-dir {run_dir} --devices ...")


if __name__ == "__main__":
    sys.exit(main())
