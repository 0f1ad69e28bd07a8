"""`dual-pods-requester`: the program in a pod that asks for a model. It takes the words of the specification's stub
(`--relay-port-1=8000`) and the variables of FMA's requester (`PROBES_PORT`, `SPI_PORT`) as well.
"""

from sidecar.terminal import starting

if starting.is_command(__name__, "dual-pods-requester"):
    starting.die_of_ctrl_c()

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from dual_pods.rules import names
from dual_pods.shell import devices
from dual_pods.shell.requester import Requester
from sidecar.kernel import process_setup
from sidecar.terminal import commands
from sidecar.terminal.logs import FORMATS, Log
from sidecar.terminal.names import BadValue
from sidecar.terminal.settings import Parser, seconds_or_zero, valued
from sidecar.wire.tcp import CannotListen

EXAMPLES = """\
examples:
  dual-pods-requester --relay-port 8000                    what comes to port 8000 goes to the instance's
  dual-pods-requester --admin-port 8001 --probes-port 8002 --relay-port 8000,8080
  curl localhost:8080/ready                                200 once an instance of its model is awake
"""


def _port(text: str) -> int:
    if port := names.port(text):
        return port
    raise BadValue(f"{text!r} is no port; allowed: 1 to 65535")


def _ports(text: str) -> list[int]:
    return [_port(part) for part in text.split(",") if part]


def parser(environment: Mapping[str, str] | None = None) -> Parser:
    it = Parser(
        prog="dual-pods-requester",
        description="Stands for a model in a pod: says which accelerators the pod got, is ready when an instance of "
        "the model is awake elsewhere, and relays its ports to it.",
        epilog=EXAMPLES,
        environment=environment,
    )
    it.setting("--host", default="", metavar="HOST", shown_default="every address", help="where it listens")
    it.setting("--admin-port", default="8081", parse=_port, metavar="PORT", env="SPI_PORT", help="for the controller")
    it.setting("--probes-port", default="8080", parse=_port, metavar="PORT", env="PROBES_PORT", help="for kubelet")
    it.setting("--metrics-port", parse=_port, metavar="PORT", help="another one, with the same pages")
    it.setting("--debug-port", parse=_port, metavar="PORT", help="another one, with the same pages")
    it.setting("--relay-port", default="", parse=_ports, metavar="PORT,...", help="those that lead to the instance")
    for number in range(1, 17):  # the specification's stub calls its ports one by one
        it.add_argument(f"--relay-port-{number}", action="append", default=[], dest="ports", type=valued(_port),
                        help=argparse.SUPPRESS)  # fmt: skip
    it.setting("--grace-s", default="25", parse=seconds_or_zero, metavar="S", help="how long what is open goes on "
               "after SIGTERM; less than the pod's terminationGracePeriodSeconds (30 unless said)")  # fmt: skip
    it.setting("--accelerators", default="", metavar="ID,...", help="what this pod got; empty: as its variables or the "
               "driver say")  # fmt: skip
    it.setting("--pod-uid", default="", metavar="UID", env="POD_UID", help="its pod's: what is meant for another pod, "
               "which had its address before, is refused then")  # fmt: skip
    it.setting("--log-format", default="text", choices=FORMATS, help="how log lines look")
    return it


def main(argv: Sequence[str] | None = None) -> int:
    it = parser()
    options = it.parse_args(argv)
    own = {options.admin_port, options.probes_port, options.metrics_port, options.debug_port} - {None}
    relays = {*options.relay_port, *options.ports}
    if both := own & relays:
        it.error(f"port {min(both)} can't lead to the instance and be its own: see --admin-port and --probes-port")
    process_setup.raise_descriptor_limit()  # each connection takes two
    log = Log("dual-pods-requester", json=options.log_format == "json")
    accelerators = partial(devices.names, options.accelerators, os.environ)
    requester = Requester(accelerators, devices.memory_in_use, options.pod_uid, log)

    async def serve() -> int:
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        try:
            for port in own:
                await requester.serve((options.host, port), is_admin=port == options.admin_port)
            for port in relays:
                await requester.relay((options.host, port))
        except CannotListen as error:
            print(f"dual-pods-requester: {error}", file=sys.stderr)
            return 1
        log.info("serving", ports=sorted(own), relays=sorted(relays))
        await told.wait()
        await requester.end(options.grace_s)
        return 0

    return commands.run("dual-pods-requester", lambda: asyncio.run(serve()))


if __name__ == "__main__":
    raise SystemExit(main())
