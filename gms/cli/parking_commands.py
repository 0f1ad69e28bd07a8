"""`gmsctl park` and `unpark`: a model's weights from its devices to host memory, and back. How it is done stands in
`parking.py`.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gms.cli.transfer_commands import DONE, NOT_YET, complain, connected, says_whom, told, worst
from gms.client import Parked
from gms.observer import Observer
from gms.rules import messages as m
from gms.shell.transfer import CannotTransfer
from sidecar.terminal.commands import Command
from sidecar.terminal.formatting import size
from sidecar.terminal.settings import Parser, name, seconds_or_zero, valued
from sidecar.terminal.terminal import say

PARK = """\
On all devices that have the model. Nothing may read or write its weights: engines that are asleep keep the memory in
the host in place of that of the device, and an engine that wakes, or starts, brings the weights back. They have their
digests with them, for gmsctl verify. How much of the host's memory they may take says gms --host-memory. Answers when
no process has the device's memory any more: on host memory the device itself says so; of a GPU, which can't be asked,
the processes do. With --json an object for each device: device, key, bytes, seconds, seen, still.

exit codes: 0 parked, or it was; 1 it can't be: too little host memory, say; 2 no server; 3 not in time: a process reads
            or writes; or it is parked, and a process that is named has still to let go of the device's memory

examples:
  gmsctl park llama-3
  gmsctl park weights --device host:0 --timeout-s 10
"""

UNPARK = """\
On all devices that have the model. An engine that wakes does so by itself. Until one has, only the server has the
weights: a crash of it would lose them. With --json an object for each device: device, key, bytes (0: they were there),
seconds.

exit codes: 0 in the device; 1 they can't be: the device is full, say; 2 no server; 3 not in time: a process writes

example:
  gmsctl unpark llama-3
"""


def add_commands(add: Callable[[str, Command, str, str], Parser]) -> None:
    for what, run, says, words, default in (
        ("park", park, "Moves a model's weights to host memory.", PARK, 0.0),
        ("unpark", unpark, "Brings parked weights back to the device.", UNPARK, 30.0),
    ):
        command = add(what, run, says, words)
        command.add_argument("key", type=valued(name), metavar="KEY", help="as gmsctl status shows it")
        command.add_argument(
            "--timeout-s",
            type=valued(seconds_or_zero),
            default=default,
            metavar="S",
            help=f"how long to wait for those who read or write; default {default:g}",
        )


def park(options: argparse.Namespace) -> int:
    return _everywhere(options, _park)


def unpark(options: argparse.Namespace) -> int:
    return _everywhere(options, _unpark)


Move = Callable[[argparse.Namespace, str, int], int]
"""On a device, where so many bytes are parked at the moment. Returns an exit code."""


def _everywhere(options: argparse.Namespace, move: Move) -> int:
    """On all devices that have the weights, at the same time."""
    options.region, there = options.key, {}
    with told() as outcome:
        for device in options.devices:
            with Observer(options.run_dir, device, options.answer_timeout_s) as observer:
                status = observer.status()
            if any(each.key == options.key and each.policy == "shared" and each.generation for each in status.regions):
                there[device] = status.parked.get(options.key, 0)
        if not there:
            raise CannotTransfer(f"there are no weights of {options.key}: gmsctl status shows what there is")
        with ThreadPoolExecutor(len(there)) as ranks:
            outcome.code = worst(list(ranks.map(partial(_told, options, move), there, there.values())))
    return outcome.code


def _told(options: argparse.Namespace, move: Move, device: str, parked: int) -> int:
    with told() as outcome:
        outcome.code = move(options, device, parked)
    return outcome.code


def _park(options: argparse.Namespace, device: str, parked: int) -> int:
    began, gone = time.monotonic(), m.RegionDropped(key=options.key, bytes=0, seen=True)
    with connected(options, device) as client, says_whom(options, device), contextlib.suppress(Parked):
        answer, unsaid = client.park(options.timeout_s), f"{device}: the server went away before it could say more"
        still = m.RegionDropped(key=options.key, bytes=0, still=[unsaid])
        gone = answer if isinstance(answer, m.RegionDropped) else still
    if options.json:
        _say_json(options, device, gone.bytes, began, seen=gone.seen, still=gone.still)
    else:
        how = "as the device says" if gone.seen else "as its processes say"
        free = f", and no process has its memory of the device any more, {how}" if not gone.still else ""
        say(f"{device}: {options.key} is parked{_took(gone.bytes, began)}{free}")
    for sentence in gone.still:
        complain(sentence)
    return NOT_YET if gone.still else DONE


def _unpark(options: argparse.Namespace, device: str, parked: int) -> int:
    began = time.monotonic()
    with connected(options, device, unparks=True) as client, says_whom(options, device):
        client.read(options.timeout_s).close()
    if options.json:
        _say_json(options, device, parked, began)
    else:
        say(f"{device}: {options.key} is in the device{_took(parked, began)}")
    return DONE


def _say_json(options: argparse.Namespace, device: str, moved: int, began: float, **more: object) -> None:
    said = {"device": device, "key": options.key, "bytes": moved, "seconds": round(time.monotonic() - began, 3)}
    say(json.dumps(said | more))


def _took(moved: int, began: float) -> str:
    return f": {size(moved)}, {time.monotonic() - began:.1f} s" if moved else " already"
