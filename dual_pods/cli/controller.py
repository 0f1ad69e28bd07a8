"""`dual-pods-controller`: binds pods that ask for models to instances of them that run."""

from sidecar.terminal import starting

if starting.is_command(__name__, "dual-pods-controller"):
    starting.die_of_ctrl_c()

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dual_pods.rules import building
from dual_pods.rules.place import Mode, Settings
from dual_pods.rules.strategic import BadPatch, mapping
from dual_pods.shell import answering
from dual_pods.shell.controller import Controller, Options
from dual_pods.shell.kube import ACCOUNT, Kube
from dual_pods.shell.lease import Lease
from dual_pods.shell.pages import Pages
from dual_pods.shell.prometheus import Prometheus
from sidecar.kernel import process_setup
from sidecar.terminal import commands
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.extras import how_to_get
from sidecar.terminal.logs import FORMATS, Log
from sidecar.terminal.names import VERSION
from sidecar.terminal.settings import Parser, count, host_port, seconds, seconds_or_zero, size_bytes, url
from sidecar.wire.tcp import CannotListen

EXAMPLES = """\
examples:
  dual-pods-controller --server-pod /etc/dual-pods/server-pod.yaml     as k8s/dual_pods runs it
  dual-pods-controller --mode sleep                                    a server pod for each instance of vLLM
"""


def parser(environment: Mapping[str, str] | None = None) -> Parser:
    it = Parser(
        prog="dual-pods-controller",
        description="Binds pods that ask for models (requesters) to instances of them in server pods: wakes one that "
        "sleeps, launches one where there is none, and puts it to sleep when its requester goes.",
        epilog=EXAMPLES,
        environment=environment,
    )
    it.setting("--mode", default="swap", choices=[mode.value for mode in Mode], help="direct: a server pod for each "
               "requester; sleep: one for each instance; swap: a pool on each node")  # fmt: skip
    it.setting("--namespace", default="", metavar="NAME", shown_default="its own", help="the one that is looked at")
    it.setting("--server-pod", parse=Path, metavar="FILE", help="the pod of a node's pool, as YAML; needed for swap")
    it.setting("--admin-keys", parse=Path, metavar="FILE", help="of the pools: its first key is what they are told by")
    it.setting("--sleepers", parse=size_bytes, metavar="SIZE", shown_default="what is there",
               help="what instances that sleep may hold of each accelerator when another is launched")  # fmt: skip
    it.setting("--prometheus", default="", parse=url, metavar="URL",
               help="where accelerators' memory is read without a ledger")  # fmt: skip
    it.setting("--measured-after-s", default="20", parse=seconds_or_zero, metavar="S",
               help="and how late that may be: a figure counts from so long after the last sleep")  # fmt: skip
    it.setting("--ready-within-s", default="600", parse=seconds, metavar="S", help="a requester that isn't Ready by "
               "then gets a warning that says why")  # fmt: skip
    it.setting("--tries", default="3", parse=count, metavar="N", help="an instance that fails so often is made anew")
    it.setting("--node-taint", default="", metavar="KEY", help="only nodes with this taint, and each gets its pool")
    it.setting("--resource", default="nvidia.com/gpu", metavar="NAME", help="as what accelerators are counted")
    it.setting("--owner", default="", metavar="DEPLOYMENT", help="the Deployment that owns the server pods")
    it.setting("--lease", default="dual-pods", metavar="NAME", help="by which one of several controllers leads")
    it.setting("--lease-s", default="15", parse=seconds, metavar="S", help="how long it lasts without a renewal")
    it.setting("--listen", default=":8080", parse=host_port, metavar="HOST:PORT", help="/live, /metrics, /dual-pods")
    it.setting("--api-server", default="", parse=url, metavar="URL", shown_default="this pod's cluster",
               help="another one")  # fmt: skip
    it.setting("--token-file", parse=Path, metavar="FILE", help="the token for it")
    it.setting("--log-format", default="text", choices=FORMATS, help="how log lines look")
    return it


def _pod(file: Path) -> dict[str, Any]:
    try:
        found = mapping(file.read_text(encoding="utf-8"))
        if not all(isinstance(c.get("name"), str) for c in found["spec"]["containers"]):
            raise BadPatch("each container needs a name")
        building.pool(found, "", "", "")
        return found
    except OSError as error:
        raise CannotStart(f"--server-pod {file}: {error.strerror}") from None
    except (BadPatch, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise CannotStart(f"--server-pod {file} holds no pod: {error}") from None


def _first_key(file: Path) -> str:
    try:
        lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
        return next(line for line in lines if line and not line.startswith("#"))
    except (OSError, UnicodeDecodeError, StopIteration) as error:
        why = getattr(error, "strerror", None) or "there is no key in it"
        raise CannotStart(f"--admin-keys {file}: {why}") from None


def main(argv: Sequence[str] | None = None) -> int:
    it = parser()
    options = it.parse_args(argv)
    if find_spec("yaml") is None:
        it.error(f"it needs the package PyYAML: {how_to_get('dual-pods')}")
    mode, own = Mode(options.mode), ACCOUNT / "namespace"
    if mode is Mode.SWAP and options.server_pod is None:
        it.error("--server-pod is needed: the pod in which a node's pool runs")
    process_setup.raise_descriptor_limit()  # one for each server pod and each requester
    log = Log("dual-pods-controller", json=options.log_format == "json")
    try:
        template = _pod(options.server_pod) if mode is Mode.SWAP else {}
        key = _first_key(options.admin_keys) if options.admin_keys is not None else ""
        namespace = options.namespace or (own.read_text().strip() if own.is_file() else "default")
        kube = Kube.here(options.api_server, options.token_file, f"dual-pods/{VERSION}")
    except (CannotStart, OSError) as error:
        it.error(str(error))
    settings = Settings(
        mode=mode,
        sleepers_bytes=options.sleepers,
        measured_after_s=options.measured_after_s if options.prometheus else 0.0,
        bound_s=options.ready_within_s,
        tries=options.tries,
        template=template,
        taint=options.node_taint,
        resource=options.resource,
    )
    lease = Lease(kube, namespace, options.lease, f"{socket.gethostname()}_{os.getpid()}", options.lease_s, log)
    every_s = max(options.measured_after_s / 2, 1.0)
    prometheus = Prometheus(options.prometheus, every_s) if options.prometheus else None
    controller = Controller(kube, lease, Options(namespace, settings, key, options.owner, prometheus), log)

    async def serve() -> int:
        try:
            server = await answering.serve(options.listen, Pages(controller).pages, {})
        except CannotListen as error:
            print(f"dual-pods-controller: {error}", file=sys.stderr)
            return 1
        log.info("started", mode=options.mode, namespace=namespace, api_server=kube.url)
        running = asyncio.create_task(controller.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await controller.end()
        server.close()
        return 0

    return commands.run("dual-pods-controller", lambda: asyncio.run(serve()))


if __name__ == "__main__":
    raise SystemExit(main())
