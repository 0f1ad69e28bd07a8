"""`gmsctl park` and `unpark`: a model's weights from its devices to host memory, and back (`parking.py`)."""

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gms.cli.snapshot_commands import devices_with
from gms.cli.transfer_commands import DONE, NOT_YET, complain, connected, says_whom, told, worst
from gms.client import Parked
from gms.observer import Observer
from gms.rules import messages as m
from sidecar.terminal.commands import Command
from sidecar.terminal.formatting import size
from sidecar.terminal.settings import Parser, name, seconds_or_zero, valued
from sidecar.terminal.terminal import say

PARK = """\
On all devices that have the model. Not while a process reads or writes its weights: an engine has to be asleep. It
keeps the memory in the host in place of the device's, and brings the weights back when it wakes; so does an engine that
starts. The weights keep their digests, for gmsctl verify once they are back. How much of the host's memory they may
take is set by gms --host-memory. Answers when no process has the device's memory any more: on host memory the device
itself says so; of a GPU, which can't be asked, the processes do. With --json an object for each device: device, key,
bytes, seconds, seen (the device has said so), still (processes that have its memory still).

exit codes: 0 parked, or it was; 1 it can't be: too little host memory, say; 2 no server; 3 not in time: a process reads
            or writes; or it is parked, and a process that is named has still to let go of the device's memory

examples:
  gmsctl park llama-3
  gmsctl park weights --device host:0 --timeout-s 10
"""

UNPARK = """\
On all devices that have the model. An engine that wakes does this by itself. Afterwards the server alone has the
weights until an engine wakes: a crash of it would lose them. With --json an object for each device: device, key, bytes,
seconds.

exit codes: 0 in the device; 1 they can't be: the device is full, say; 2 no server; 3 not in time: a process writes

example:
  gmsctl unpark llama-3
"""


def add_commands(add: Callable[[str, Command, str, str], Parser]) -> None:
    for what, run, says, words, default in (
        ("park", _park, "Moves a model's weights to host memory.", PARK, 0.0),
        ("unpark", _unpark, "Brings parked weights back to the device.", UNPARK, 30.0),
    ):
        command = add(what, partial(_on_all_devices, run), says, words)
        command.add_argument("key", type=valued(name), metavar="KEY", help="as gmsctl status shows it")
        command.add_argument(
            "--timeout-s",
            type=valued(seconds_or_zero),
            default=default,
            metavar="S",
            help=f"how long to wait for processes that read or write; default {default:g}",
        )


def _on_all_devices(move: Callable[[argparse.Namespace, str], int], options: argparse.Namespace) -> int:
    """At the same time: all that have the weights."""
    options.region = options.key
    with told() as outcome:
        devices = devices_with(options)
        with ThreadPoolExecutor(len(devices)) as ranks:
            outcome.code = worst(list(ranks.map(partial(_told, options, move), devices)))
    return outcome.code


def _told(options: argparse.Namespace, move: Callable[[argparse.Namespace, str], int], device: str) -> int:
    with told() as outcome, says_whom(options, device):
        outcome.code = move(options, device)
    return outcome.code


def _park(options: argparse.Namespace, device: str) -> int:
    began, still = time.monotonic(), [f"{device}: the server went away before it could say more"]
    with connected(options, device) as client:
        try:
            answer = client.park(options.timeout_s)
        except Parked:
            still, answer = _who_has_more(options, device, client.generation), None
    gone = answer if isinstance(answer, m.RegionDropped) else m.RegionDropped(key=options.key, bytes=0, still=still)
    free = f"; no process has its memory of the device, as {'that' if gone.seen else 'each'} says"
    more = {"seen": gone.seen, "still": gone.still}
    _say(options, device, "is parked", gone.bytes, began, "" if gone.still or not gone.bytes else free, **more)
    for sentence in gone.still:
        complain(sentence)
    return NOT_YET if gone.still else DONE


def _who_has_more(options: argparse.Namespace, device: str, parked: int) -> list[str]:
    """Processes that have not let go yet, as they were asked to when it was parked before."""
    with Observer(options.run_dir, device, options.answer_timeout_s) as observer:
        clients = observer.status().clients
    late = [each for each in clients if each.region == options.key and {*each.holds} - {parked}]
    return [f"{each.engine_id} (pid {each.pid}) has memory of it in the device still" for each in late]


def _unpark(options: argparse.Namespace, device: str) -> int:
    began = time.monotonic()
    with connected(options, device, unparks=True) as client, client.read(options.timeout_s) as reader:
        moved = sum(reader.sizes)
    _say(options, device, "is in the device", moved, began)
    return DONE


def _say(
    options: argparse.Namespace, device: str, what: str, moved: int, began: float, free: str = "", **more: object
) -> None:
    took_s = time.monotonic() - began
    if options.json:
        said = {"device": device, "key": options.key, "bytes": moved, "seconds": round(took_s, 3)}
        say(json.dumps(said | more))
    else:
        say(f"{device}: {options.key} {what}{f': {size(moved)}, {took_s:.1f} s' if moved else ' already'}{free}")
