"""`gms`: the command. Settings, and a sentence for what a person can put right; the work is in `supervisor.py`."""

from sidecar.terminal import starting

if starting.is_command(__name__, "gms"):
    starting.die_of_ctrl_c()

import argparse
import contextlib
import sys
from pathlib import Path

from gms.memory.host_device import device_size
from sidecar.kernel import host_usage, process_setup
from sidecar.terminal import server_command
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.logs import Log
from sidecar.terminal.names import device_name
from sidecar.terminal.settings import BadValue, Parser, directory, seconds, size_bytes

ALL_GPUS = "cuda"

EXAMPLES = """\
examples:
  gms --run-dir DIR --devices cuda                                  in the pod: every GPU that it has
  gms --run-dir DIR --devices GPU-8932f937-d72c-4106-c12f-20bd9faed9f6
  gms --run-dir /tmp/try --devices host:0,host:1 --capacity 4GiB    on a laptop, in host memory
  gms --run-dir DIR --devices cuda --metrics :9401                  with Prometheus metrics

One server for each device, at DIR/gms/DEVICE.sock; each says `ready` in the log once it listens, and for probes there
is /startup beside the metrics, or `gmsctl ping`. It runs until SIGTERM or SIGINT, or until one of the servers dies:
then all end, with exit code 1, and with --restart in-place all are started again.
The weights outlive it: their readers go on, and hand them back to the next one.
"""


def devices(text: str) -> list[str]:
    """`cuda`, or names: "host:0,host:1"."""
    if text == ALL_GPUS:
        return [ALL_GPUS]
    named = [name for name in text.split(",") if name]
    try:
        for name in named:
            device_name(name)
    except BadValue as error:
        raise BadValue(f"{error}; or {ALL_GPUS}, for all GPUs") from None
    if not named:
        raise BadValue(f"no device is named; allowed: {ALL_GPUS}, or names such as host:0,host:1")
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise BadValue(f"{', '.join(twice)} is named twice")
    return named


def parser() -> Parser:
    p = Parser(
        prog="gms",
        description="Keeps the weights of each device: loaded once, mapped by many, there for the next engine.",
        epilog=EXAMPLES,
    )
    p.setting(
        "--run-dir",
        required=True,
        parse=directory,
        metavar="DIR",
        help="where the sockets and the state files are, in DIR/gms; on tmpfs if possible",
    )
    p.setting(
        "--devices",
        required=True,
        parse=devices,
        metavar="DEVICE,...",
        help="cuda (all GPUs), GPUs by UUID, or host devices such as host:0,host:1",
    )
    p.setting(
        "--capacity",
        parse=device_size,
        metavar="SIZE",
        help="how large each host device is, such as 4GiB; not needed for one that is there already",
    )
    p.setting(
        "--host-devices",
        parse=Path,
        shown_default="/dev/shm/gpu-failover-UID",
        metavar="DIR",
        env=host_usage.ENVIRONMENT,
        help="where host devices are; they outlive gms",
    )
    p.switch(
        "--share-devices",
        help="another GMS may have these devices too, if it was started with this as well",
    )
    p.setting(
        "--window-s",
        default=10,
        parse=seconds,
        metavar="S",
        help="how long a new server keeps writers out, so that processes that have the weights can hand them back",
    )
    p.setting(
        "--memory-wait-s",
        default=30,
        parse=seconds,
        metavar="S",
        help="how long a writer waits for memory on a full device",
    )
    p.setting(
        "--silent-s",
        default=20,
        parse=seconds,
        metavar="S",
        help="a device's server that has not answered for so long, and used no processor, is killed and started again",
    )
    p.setting(
        "--host-memory",
        parse=size_bytes,
        shown_default="half of what the machine has left at the start",
        metavar="SIZE",
        help="how much of the host's memory parked weights may take, of all devices together: each has an equal share",
    )
    p.switch(
        "--ledger",
        help="the host has a ledger of device memory (vram --run-dir DIR): what weights take is leased there first, as "
        "gms/DEVICE/KEY",
    )
    p.switch("--pools-on-gpu", help="GPUs may have pools, too: not before python -m tests.gpu has passed on such a GPU")
    metrics = (
        "serve Prometheus metrics of all devices there (/metrics), and for probes /live, and /startup, which says "
        "whether each device is served"
    )
    server_command.declare(p, metrics)
    return p


def main(argv: list[str] | None = None) -> int:
    return server_command.run("gms", parser(), _serve, argv)


def _serve(options: argparse.Namespace, log: Log) -> int:
    from gms.shell.settings import Settings
    from gms.shell.supervisor import Supervisor, gpus, make_host_device
    from sidecar.http.metrics import MetricsUnavailable
    from sidecar.kernel.durable import AlreadyLocked

    process_setup.raise_descriptor_limit()
    host_devices: Path = options.host_devices or host_usage.devices_directory()
    host_memory = options.host_memory
    if host_memory is None:
        host_memory = (host_usage.memory_left("MemAvailable") or 0) // 2
    settings = Settings(
        run_dir=str(options.run_dir),
        window_s=options.window_s,
        memory_wait_s=options.memory_wait_s,
        host_memory=host_memory,
        pools_on_gpu=options.pools_on_gpu,
        ledger=options.ledger,
        socket_mode=options.socket_mode,
        allow_uids=tuple(sorted(options.allow_uid)),
        pidfds=options.pidfds,
        parent_pid=0,
        host_devices=str(host_devices.absolute()),
        log_json=options.log_format == "json",
    )
    try:
        named = gpus() if options.devices == [ALL_GPUS] else options.devices
        supervisor = Supervisor(settings, named, log, options.silent_s)
        on_host = {device: device.startswith("host:") for device in named}
        keys = {
            device: make_host_device(device, options.capacity, host_devices) if host else device
            for device, host in on_host.items()
        }
        supervisor.take_devices(keys, shared=options.share_devices)
        if options.metrics is not None:
            from gms.shell import metrics

            metrics.serve(options.metrics, options.run_dir, named, supervisor)
    except (CannotStart, AlreadyLocked, MetricsUnavailable) as error:
        print(f"gms: {error}", file=sys.stderr)
        return 1
    return supervisor.run()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
