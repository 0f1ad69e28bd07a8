"""Flags, the device, exit codes. The experiment is in `stories.py`."""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gms.memory import DeviceError
from gms.memory.host_device import GRANULARITY, create_device
from sidecar.kernel import host_usage
from sidecar.terminal.settings import Parser, size_bytes
from tools.vmm_refcount.meters import Meter, host_meter, nvml_meter
from tools.vmm_refcount.processes import Process
from tools.vmm_refcount.report import Table, as_json, mib
from tools.vmm_refcount.stage import NVML_TOLERANCE, Stage
from tools.vmm_refcount.stories import STORIES

DIFFERS, CANT_RUN, INTERRUPTED = 1, 2, 130
HOST_DEVICE = "vmm-refcount"

DESCRIPTION = """\
The experiment of the specification's Decision 7: device memory, shared between processes as descriptors over Unix
sockets, and when it is free again. Each step is measured from outside. Beside it stands what the specification's
authors saw."""

EPILOG = """\
Every process of the experiment is its own and is killed at its end. On the host it makes a device of its own in
/dev/shm, twice as large as --size, and removes it. On a GPU it needs --size free, and no other process should be
allocating there meanwhile: NVML counts all processes.

exit codes:
  0    memory is kept and freed as GMS expects
  1    it isn't; the steps that differ are named
  2    the experiment can't be run here: no driver, no GPU, not enough memory
  64   wrong usage
  130  interrupted

examples:
  python -m tools.vmm_refcount --memory host --size 512MiB
  python -m tools.vmm_refcount --memory cuda --device GPU-8a7c... --size 512MiB --json > seen.json
  python -m tests.emulated_driver -- python -m tools.vmm_refcount --memory cuda --size 64MiB     (no GPU, no finding)
"""


class CantRun(Exception):
    """The experiment can't be run here; the text says what is missing."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m tools.vmm_refcount", description=DESCRIPTION, epilog=EPILOG)
    parser.setting(
        "--memory",
        env="VMM_REFCOUNT_MEMORY",
        choices=("host", "cuda"),
        required=True,
        help="which maker of device memory",
    )
    parser.setting(
        "--size",
        env="VMM_REFCOUNT_SIZE",
        parse=size_bytes,
        default="512MiB",
        metavar="SIZE",
        help="of the memory that is shared",
    )
    parser.setting(
        "--device",
        env="VMM_REFCOUNT_DEVICE",
        metavar="GPU-...",
        help="which GPU, by UUID; default: the first that CUDA shows",
    )
    parser.switch("--json", env="VMM_REFCOUNT_JSON", help="the figures as JSON, and nothing else, on standard output")
    options = parser.parse_args(arguments)
    if options.size < 2 * GRANULARITY or options.size % GRANULARITY:
        parser.error(f"--size {options.size} isn't allowed; allowed: multiples of 2 MiB, at least 4 MiB")
    if options.memory == "host" and options.device:
        parser.error("--device is for --memory cuda; on the host the experiment makes a device of its own")
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return _experiment(options.memory, options.device or "", options.size, json_only=options.json)
    except (CantRun, DeviceError) as error:
        print(f"vmm_refcount: {error}", file=sys.stderr)
        return CANT_RUN
    except KeyboardInterrupt:
        print("vmm_refcount: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The table's reader has gone; what Python would still flush has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CANT_RUN


def _experiment(kind: str, device: str, size: int, *, json_only: bool) -> int:
    with _host_device(size) if kind == "host" else contextlib.nullcontext(dict(os.environ)) as environment:
        about = _ask(kind, HOST_DEVICE if kind == "host" else device, environment)
        meter = _meter(kind, str(about["device"]), environment)
        if not meter.exact and size < 4 * NVML_TOLERANCE:
            raise CantRun(
                f"NVML also counts what the driver takes for itself: --size at least {mib(4 * NVML_TOLERANCE)}"
            )
        unit = int(about["granularity"])
        if size % unit or size < 2 * unit:
            raise CantRun(f"{about['device']} takes multiples of {unit} bytes, at least two; choose another --size")
        free = int(about["capacity"]) - meter.used()
        if free < size + unit:
            raise CantRun(f"{mib(size + unit)} of {about['device']} are needed, and {mib(free)} are free")
        name = HOST_DEVICE if kind == "host" else str(about["device"])
        stage = Stage(kind, name, size, size // 2 // unit * unit, meter, environment)
        table = Table()
        if not json_only:
            stage.on_step(table.step)
            table.head(
                [
                    f"{mib(size)} of {about['device']}, which has {mib(int(about['capacity']))}",
                    f"measured by {meter.how}",
                ]
            )
        try:
            for story in STORIES:
                story(stage)
        finally:
            stage.close()
        if json_only:
            figures = {
                "memory": kind,
                "emulated": meter.emulated,
                "measured_by": meter.how,
                "size_bytes": size,
                **about,
            }
            print(json.dumps(as_json(stage.steps, figures), indent=2))
        else:
            table.end(stage.steps)
        return 0 if all(step.fits for step in stage.steps) else DIFFERS


def _ask(kind: str, device: str, environment: dict[str, str]) -> dict[str, Any]:
    """What the maker says of the device; this process itself never opens it."""
    process = Process("first process", kind, device, environment)
    try:
        return process.about()
    finally:
        process.kill()


def _meter(kind: str, device: str, environment: dict[str, str]) -> Meter:
    if kind == "cuda":
        return nvml_meter(device)
    return host_meter(Path(environment[host_usage.ENVIRONMENT]) / HOST_DEVICE)


@contextlib.contextmanager
def _host_device(size: int) -> Iterator[dict[str, str]]:
    """A device that no other process uses; the environment in which it is found."""
    try:
        directory = Path(tempfile.mkdtemp(prefix="gpu-failover-vmm-refcount-", dir="/dev/shm"))
    except OSError as error:
        raise CantRun(f"the host's device lies in /dev/shm, and a directory can't be made there: {error}") from None
    try:
        create_device(HOST_DEVICE, 2 * size, directory)
        yield {**os.environ, host_usage.ENVIRONMENT: str(directory)}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _terminated(signum: int, frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    raise SystemExit(main())
