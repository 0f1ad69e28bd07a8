"""`gmsctl put`, `get` and `verify`: what they say to people, and their exit codes. What they do is in `transfer.py`."""

import argparse
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gms.cli.status_text import printable
from gms.client import GmsClient, GmsError, NoCommonProtocol, NoPlace, NotInTime, Reader, Refused
from gms.layout import BadLayout
from gms.memory import DeviceError
from gms.observer import Observer
from gms.rules.messages import WEIGHTS
from gms.shell import transfer
from gms.shell.transfer import CannotTransfer, Checkpoint
from gms.snapshot import BadSnapshot, CannotSave
from sidecar.terminal.commands import Command
from sidecar.terminal.settings import Parser, name, seconds_or_zero, valued
from sidecar.terminal.terminal import NO_PERMISSION, NO_ROOM, OTHER_VERSION, say
from sidecar.wire.observer import ObserverError

DONE, WRONG, NO_SERVER, NOT_YET = 0, 1, 2, 3
ENGINE_ID = "gmsctl"
CONNECT_S = 5.0
UNSAID_S = 0.3
"""A command that waits for longer says whom it waits for."""

PUT = """\
Every file is checked before anything is cleared. Then, once no process reads or writes: the old weights go, the new
ones come, and are committed. With --replace the old ones stay until then, if both fit. Ctrl-C leaves nothing half done.
Afterwards it sums up what it wrote, for `gmsctl verify`.

exit codes: 0 committed; 1 a bad file, or refused; 2 no server; 3 not in time

examples:
  gmsctl put model-00001-of-00002.safetensors model-00002-of-00002.safetensors
  gmsctl put --device host:0 --replace --timeout-s 600 new.safetensors
"""

CLEAR = """\
For another model: end the engines that have the weights of the old one, clear, and start those of the new one; the
first of them loads its weights. A process that still reads keeps this waiting, and is named. With --json an object for
each device: device, cleared (the generation; 0: there was none).

exit codes: 0 there are no weights now; 2 no server; 3 not in time: a process reads or writes

examples:
  gmsctl clear
  gmsctl clear --device host:0 --timeout-s 5
"""

GET = """\
The tensors come out byte for byte, in the order in which they lie, with the metadata of the files that they came from.
A file has its name only once it is whole; one that is there is replaced. A pipe is written to.

exit codes: 0 written; 1 it can't be; 2 no server; 3 not in time: nothing is committed

examples:
  gmsctl get --device host:0 weights.safetensors
  gmsctl get --device host:0 /dev/stdout | sha256sum
"""

VERIFY = """\
Reads all weights, and compares them with the sums that were made after they were committed; and the layout with its
hash and with the slabs. With --json an object for each device: device, generation, hash, verdict (same, different, bad
layout, no sums), slabs (slab, recorded, found).

exit codes: 0 the same; 1 different; 2 no server; 3 not in time (nothing is committed), or no sums are recorded (yet)

example:
  gmsctl verify --device host:0
"""


def add_commands(add: Callable[[str, Command, str, str], Parser]) -> None:
    command = add("put", put, "Publishes a checkpoint: safetensors files become the weights.", PUT)
    command.add_argument("files", nargs="+", type=Path, metavar="FILE.safetensors")
    command.add_argument("--replace", action="store_true", help="keep the old weights until the new ones are there")
    command.add_argument("--no-checksums", action="store_true", help="don't sum up what was written")
    timeout(command, "wait for processes that read or write")
    command.set_defaults(region=None)
    command = add("clear", clear, "Takes the weights away, once no process reads them.", CLEAR)
    timeout(command, "wait for processes that read or write")
    command = add("get", get, "Writes the weights to a safetensors file.", GET)
    command.add_argument("file", type=Path, metavar="OUT.safetensors")
    timeout(command, "wait for weights")
    command = add("verify", verify, "Are the weights still what was committed?", VERIFY)
    timeout(command, "wait for weights")


def region(command: Parser) -> None:
    command.add_argument(
        "--region", type=valued(name), default=WEIGHTS, metavar="KEY", help=f"which model's; default {WEIGHTS}"
    )


def region_unsaid(options: argparse.Namespace, of: str = WEIGHTS) -> str:
    """Where models have names, what is written without one would be a region that none of them reads. `of`: what it is
    called where it comes from. Raises NoServer.
    """
    device = options.devices[0]
    with Observer(options.run_dir, device, options.answer_timeout_s) as observer:
        there = sorted(each.key for each in observer.status().regions if each.policy == "shared" and each.generation)
    if of != WEIGHTS or (there and WEIGHTS not in there):
        saved = [f"they were saved as those of {of}"] if of != WEIGHTS else []
        has = [f"{device} has those of {', '.join(there)}"] if there else []
        raise CannotTransfer(f"whose weights are they? {', and '.join([*saved, *has])}: say --region")
    return WEIGHTS


def timeout(command: Parser, what: str) -> None:
    command.add_argument(
        "--timeout-s", type=valued(seconds_or_zero), default=30.0, metavar="S", help=f"how long to {what}; default 30"
    )
    region(command)


# -- commands ------------------------------------------------------------------------------------------------------


def put(options: argparse.Namespace) -> int:
    with told() as outcome, Checkpoint(options.files) as checkpoint:
        for conflict in checkpoint.conflicts:
            complain(f"the first file's metadata is kept; another says something else: {printable(conflict)}")
        device = _one(options)
        options.region = options.region or region_unsaid(options)
        with connected(options, device, checksums=not options.no_checksums) as client:
            plan = checkpoint.plan(client.granularity)
            begin = client.replace if options.replace else client.write
            with says_whom(options, client.device):
                writer = begin(bytes=plan.bytes, timeout_s=options.timeout_s)
            with writer, Bar("put", checkpoint.bytes) as bar:
                reader = transfer.put(plan, writer, bar.add)
            _said(options, reader, f"{checkpoint.bytes} bytes committed")
            client.wait_for_background()
            reader.close()
    return outcome.code


def clear(options: argparse.Namespace) -> int:
    codes = []
    for device in options.devices:
        with told() as outcome, connected(options, device) as client:
            generation = client.generation
            with says_whom(options, device):
                writer = client.write(options.timeout_s)
            writer.abort()
            if options.json:
                say(json.dumps({"device": device, "cleared": generation}))
            else:
                say(f"{device}: {f'layout {generation} is cleared' if generation else 'there was no layout'}")
        codes.append(outcome.code)
    return worst(codes)


def get(options: argparse.Namespace) -> int:
    with told() as outcome, connected(options, _one(options)) as client, client.read(options.timeout_s) as reader:
        size = sum(transfer.tensor_bytes(tensor) for tensor in reader.layout.tensors)
        with Bar("get", size) as bar:
            transfer.get(reader, options.file, bar.add)
        _said(options, reader, f"{size} bytes in {options.file}")
    return outcome.code


def verify(options: argparse.Namespace) -> int:
    codes = []
    for device in options.devices:
        with told() as outcome, connected(options, device) as client, client.read(options.timeout_s) as reader:
            outcome.code = _verify(options, reader)
        codes.append(outcome.code)
    return worst(codes)


def worst(codes: list[int]) -> int:
    """The code for several devices."""
    order = (NO_PERMISSION, OTHER_VERSION, NO_ROOM, NO_SERVER, WRONG, NOT_YET, DONE)
    return next(code for code in order if code in codes)


def _verify(options: argparse.Namespace, reader: Reader) -> int:
    findings: list[transfer.Finding] = []
    try:
        transfer.check_layout(reader)
    except BadLayout as error:
        verdict, code, detail = "bad layout", WRONG, str(error)
    else:
        if len(reader.sums) != len(reader.sizes):
            verdict, code, detail = "no sums", NOT_YET, "no sums of the contents are recorded (yet)"
        else:
            with Bar("verify", sum(reader.sizes)) as bar:
                findings = list(transfer.verify(reader, bar.add))
            bad = [finding for finding in findings if not finding.same]
            verdict, code = ("different", WRONG) if bad else ("same", DONE)
            detail = "; ".join(f"slab {f.slab} is {f.found}, and was {f.recorded}" for f in bad) or "as committed"
    if options.json:
        slabs = [{"slab": f.slab, "recorded": f.recorded, "found": f.found} for f in findings]
        picture = {"device": reader.device, "generation": reader.generation, "hash": reader.hash}
        say(json.dumps(picture | {"verdict": verdict, "slabs": slabs}))
    else:
        say(f"{reader.device}: generation {reader.generation}: {verdict}: {detail}")
    return code


# -- what they share -----------------------------------------------------------------------------------------------


class _Outcome:
    code = DONE


@contextlib.contextmanager
def told() -> Iterator[_Outcome]:
    """Whatever a person can put right is a sentence and an exit code."""
    outcome = _Outcome()
    try:
        yield outcome
    except _NotServed as error:
        outcome.code = error.code
        complain(error)
    except (GmsError, CannotTransfer, CannotSave, BadSnapshot, DeviceError, BadLayout) as error:
        outcome.code = NOT_YET if isinstance(error, NotInTime) else WRONG
        complain(error)


class _NotServed(Exception):
    def __init__(self, error: GmsError) -> None:
        super().__init__(str(error))
        codes = {NotInTime: NO_SERVER, NoPlace: NO_ROOM, NoCommonProtocol: OTHER_VERSION}
        self.code = codes.get(type(error), NO_PERMISSION)


@contextlib.contextmanager
def says_whom(options: argparse.Namespace, device: str) -> Iterator[None]:
    """Around what may have to wait for other processes: says once, on stderr, which ones these are."""
    done = threading.Event()

    def look() -> None:
        why: list[str] = []
        while not why and not done.wait(UNSAID_S):
            with contextlib.suppress(ObserverError), Observer(options.run_dir, device) as observer:
                seen = observer.status()
                ours = [each.partition(": ")[2] for each in seen.waiting_for if each.startswith(f"{ENGINE_ID} (")]
                why = ours or seen.pending_drops
        if why and not done.is_set():
            complain(f"waits, for at most {options.timeout_s:g} s: {'; '.join(why)}")

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _one(options: argparse.Namespace) -> str:
    if len(options.devices) != 1:
        options.parser.error(f"which device? Give --device, one of: {', '.join(options.devices)}")
    return str(options.devices[0])


@contextlib.contextmanager
def connected(
    options: argparse.Namespace, device: str, *, checksums: bool = False, unparks: bool = False
) -> Iterator[GmsClient]:
    with GmsClient(
        options.run_dir,
        device,
        ENGINE_ID,
        region=options.region,
        checksums=checksums,
        huge_pages=checksums,
        unparks=unparks,
    ) as client:
        try:
            client.await_server(CONNECT_S)
        except (NotInTime, Refused) as error:
            raise _NotServed(error) from None
        yield client


def _said(options: argparse.Namespace, reader: Reader, what: str) -> None:
    tensors = len(reader.layout.tensors)
    if options.json:
        picture = {"device": reader.device, "generation": reader.generation, "hash": reader.hash}
        say(json.dumps(picture | {"tensors": tensors, "slabs": len(reader.sizes)}))
    else:
        say(f"{reader.device}: generation {reader.generation}: {tensors} tensors, {what}")


def complain(text: object) -> None:
    print(f"gmsctl: {text}", file=sys.stderr)


class Bar:
    """How far it is, on a terminal; nothing elsewhere."""

    _EVERY_S = 0.1
    _WIDTH = 30

    def __init__(self, what: str, size: int) -> None:
        self._what = what
        self._size = size
        self._done = 0
        self._began = self._shown = time.monotonic()
        self._is_terminal = sys.stderr.isatty()

    def add(self, done: int) -> None:
        self._done += done
        if self._is_terminal and time.monotonic() >= self._shown + self._EVERY_S:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        share = self._done / self._size if self._size else 1.0
        full = int(share * self._WIDTH)
        rate = self._done / max(self._shown - self._began, 1e-9)
        bar = "#" * full + "." * (self._WIDTH - full)
        line = f"{self._what} [{bar}] {share:4.0%} of {_gib(self._size)}, {_gib(rate)}/s"
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_terminal:
            self._show()
            print(file=sys.stderr)


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.2f} GiB"
