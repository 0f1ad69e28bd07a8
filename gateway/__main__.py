"""`gateway`: the door in front of a pair, or of several.

    gateway --run-dir DIR --listen 127.0.0.1:8000

It is small and is restarted in place when it dies: its connections end with it, and nothing else does.
"""

from sidecar.terminal import starting

if starting.is_command(__name__, "gateway"):
    starting.die_of_ctrl_c()

import argparse
import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fleet.shell.store import database, default_database
from gateway.rules.events import Bounds
from gateway.shell.keys import BadKeys, Keys
from sidecar.kernel import port_owner, process_setup
from sidecar.machine import keeper
from sidecar.terminal.extras import how_to_get
from sidecar.terminal.logs import FORMATS, Log
from sidecar.terminal.names import BadValue
from sidecar.terminal.settings import (
    Parser,
    count,
    directory,
    host_port,
    name,
    seconds,
    seconds_or_zero,
    size_bytes,
    valued,
)
from sidecar.wire import tcp

if TYPE_CHECKING:  # they need a package that may not be installed
    from gateway.shell import lease
    from gateway.shell.server import Settings
    from sidecar.http.http_server import Limits

EXAMPLES = """\
examples:
  gateway --run-dir DIR --listen :8000
  gateway --run-dir /run/a --run-dir /run/b --listen :8000     two pairs; the request's model chooses
  gateway --run-dir DIR --listen :8000 --lease-host gpu-box-1   programs may have the host alone (fleetctl)
  gateway --pool DIR --listen :8000                            all models of `failover models up`
  curl localhost:8000/failover                                 which engine serves, which would take over
  kill -HUP PID                                                reads --api-keys again
"""
BACKLOG = 4096
_NEW_OBJECTS = 10_000
"""Python looks for circles among objects after so many new ones; by itself after 700, often in a busy turn."""
_UNREAD_BYTES = 128 << 20
"""An answer in one piece (`Bounds.answer_bytes`), and as much again."""


def parser(environment: Mapping[str, str] | None = None) -> Parser:
    it = Parser(
        prog="gateway",
        description="An OpenAI-compatible endpoint whose clients see a pause, and no error, when an engine dies.",
        epilog=EXAMPLES,
        environment=environment,
    )
    it.add_argument(
        "--run-dir",
        action="append",
        type=valued(directory),
        metavar="DIR",
        help="the run directory of a pair's lock; may be repeated [FAILOVER_RUN_DIR, several with : between them]",
    )
    it.setting(
        "--pool", parse=directory, metavar="DIR",
        help="the host directory of `failover models up`: all of its models are served, instead of --run-dir",
    )  # fmt: skip
    it.setting(
        "--turn-s", default="600", parse=seconds, metavar="S",
        help="with --pool: how long a request waits for its model, and not --failover-timeout-s or --queue-timeout-s",
    )  # fmt: skip
    it.setting(
        "--admin-keys", parse=Path, metavar="FILE",
        help="with --pool: one a line; only with these may /failover/models be changed, and from anywhere. Without: "
        "from this machine only",
    )  # fmt: skip
    it.setting("--listen", default="127.0.0.1:8000", parse=host_port, metavar="HOST:PORT", help="where clients come")
    it.setting("--metrics", parse=host_port, metavar="HOST:PORT", help="another port for /metrics, beside --listen")
    it.setting(
        "--failover-timeout-s", default="60", parse=seconds, metavar="S",
        help="how long a client whose engine was lost waits for another",
    )  # fmt: skip
    it.setting(
        "--hold-s", default="1", parse=seconds, metavar="S",
        help="how long a failure is held back until the lock has said whether that engine still holds",
    )  # fmt: skip
    it.setting("--queue", default="1000", parse=count, metavar="N", help="requests that may wait for an engine")
    it.setting(
        "--queue-timeout-s", default="60", parse=seconds, metavar="S", help="how long they may; then they get 503"
    )
    it.setting(
        "--reread-tokens", default="8192", parse=count, metavar="N",
        help="tokens of interrupted answers that another engine reads again at a time",
    )  # fmt: skip
    it.setting(
        "--drain-timeout-s", parse=seconds_or_zero, metavar="S",
        help="the most that answers may take to finish in a switchover, where that allows more; 0: the successor "
        "goes on with all of them at once",
    )  # fmt: skip
    it.setting(
        "--stall-s", default="10", parse=seconds, metavar="S", help="a stream that is silent for so long is logged"
    )
    it.setting(
        "--comment-s", default="5", parse=seconds, metavar="S",
        help="a stream that waits gets a comment so often, so that no proxy in between cuts it",
    )  # fmt: skip
    it.setting(
        "--silence-s", default="600", parse=seconds, metavar="S",
        help="a stream whose engine has said nothing for so long ends with an error; longer than the shim's --stall-s",
    )  # fmt: skip
    it.setting("--max-body", default="64MiB", parse=size_bytes, metavar="SIZE", help="of a request")
    it.setting("--max-bodies", default="1GiB", parse=size_bytes, metavar="SIZE", help="of all requests at a time")
    it.setting(
        "--max-client-bodies", default="256MiB", parse=size_bytes, metavar="SIZE",
        help="of all requests of one client at a time: of a key, or of an address where there are no keys",
    )  # fmt: skip
    it.setting("--max-headers", default="32KiB", parse=size_bytes, metavar="SIZE", help="of a request's headers")
    it.setting("--max-connections", default="16384", parse=count, metavar="N", help="of clients")
    it.setting(
        "--idle-s", default="75", parse=seconds, metavar="S", help="a connection without a request ends after that"
    )
    it.setting(
        "--unread-s", default="60", parse=seconds, metavar="S", help="a client that reads nothing for so long is cut"
    )
    it.setting("--request-s", default="60", parse=seconds, metavar="S", help="how long a request may take to come in")
    it.setting("--api-keys", parse=Path, metavar="FILE", help="one a line; only these are let in. SIGHUP: again")
    it.setting(
        "--shutdown-delay-s", default="5", parse=seconds_or_zero, metavar="S",
        help="after SIGTERM: how long /ready says no while requests are still taken",
    )  # fmt: skip
    it.setting(
        "--shutdown-drain-s", default="30", parse=seconds_or_zero, metavar="S",
        help="and how long the requests that are there may take after that",
    )  # fmt: skip
    it.setting(
        "--lease-host", parse=name, metavar="HOST",
        help="this machine's name among leased hosts: requests are let in only under its lease (fleetctl)",
    )  # fmt: skip
    it.setting(
        "--database", parse=database, default=default_database(), metavar="URL", shown_default="a file of this user's",
        help="where the leases are: sqlite:///PATH or postgresql://USER@HOST/NAME",
    )  # fmt: skip
    it.setting(
        "--when-leased", default="wait", choices=("wait", "refuse"),
        help="what becomes of requests while another program has the host alone",
    )  # fmt: skip
    it.setting("--lease-ttl-s", default="60", parse=seconds, metavar="S", help="a term of the door's own lease")
    it.setting("--lease-name", metavar="NAME", help="what this door is called there; default: its machine and --listen")
    keeper.declare(it)
    it.setting("--log-format", default="text", choices=FORMATS, help="how log lines look")
    it.switch("--no-access-log", help="no line for each request")
    return it


def main(argv: Sequence[str] | None = None) -> NoReturn:
    it = parser()
    options = it.parse_args(argv)
    run_dirs = _run_dirs(it, options)
    if not options.max_body <= options.max_client_bodies <= options.max_bodies:
        it.error("--max-body may not be more than --max-client-bodies, nor that more than --max-bodies")
    try:
        keys = Keys(options.api_keys) if options.api_keys is not None else None
        admin_keys = Keys(options.admin_keys) if options.admin_keys is not None else None
    except BadKeys as error:
        it.error(str(error))
    log = Log("gateway", json=options.log_format == "json")
    if options.restart == keeper.IN_PLACE:
        grace_s = options.shutdown_delay_s + options.shutdown_drain_s + keeper.GRACE_S
        raise SystemExit(keeper.keep("gateway", argv, log, grace_s))
    try:
        import uvloop

        from gateway.shell.server import Settings
    except ImportError as error:
        print(f"gateway: it needs the package {error.name}: {how_to_get('gateway')}", file=sys.stderr)
        raise SystemExit(1) from None
    process_setup.raise_descriptor_limit()
    process_setup.give_large_memory_back()
    if options.lease_host is None and (options.when_leased != "wait" or options.lease_name):
        it.error("--when-leased and --lease-name are of a host's lease: name the host with --lease-host")
    try:
        leased = _lease(options) if options.lease_host is not None else None
    except BadValue as error:
        it.error(f"--lease-name, --lease-ttl-s: {error}")
    settings = Settings(
        tuple(run_dirs), _bounds(options), _limits(options), keys, not options.no_access_log,
        leased, options.pool, admin_keys, options.listen[0],
    )  # fmt: skip
    listener = _listener(options.listen, "--listen")
    others = [_listener(options.metrics, "--metrics")] if options.metrics is not None else []
    uvloop.run(_serve(options, settings, log, listener, others))
    raise SystemExit(0)


def _run_dirs(it: Parser, options: argparse.Namespace) -> list[Path]:
    if options.pool is not None:
        if options.run_dir:
            it.error("--pool has its models' run directories itself: leave --run-dir out")
        return []
    named = [directory(text) for text in os.environ.get("FAILOVER_RUN_DIR", "").split(":") if text]
    run_dirs: list[Path] = options.run_dir or named
    if not run_dirs:
        it.error("--run-dir is needed: the run directory of a pair's lock")
    places = [run_dir.resolve() for run_dir in run_dirs]
    again = [str(run_dir) for run_dir, place in zip(run_dirs, places, strict=True) if places.count(place) > 1]
    if again:
        it.error(f"--run-dir names one directory more than once ({', '.join(again)}); each pair has its own")
    return run_dirs


def _bounds(options: argparse.Namespace) -> Bounds:
    """Flags and bounds have the same names. A pool's models have limits of their own for what waits."""
    bounds = Bounds(**{name: value for name, value in vars(options).items() if name in Bounds.__dataclass_fields__})
    if options.pool is None:
        return replace(bounds, turn_s=None)
    return replace(bounds, queue=sys.maxsize, queue_timeout_s=options.turn_s)


def _lease(options: argparse.Namespace) -> "lease.Settings":
    from fleet.rules.leases import Mode, Wish, check
    from gateway.shell.lease import Settings

    host, port = options.listen
    where = socket.gethostname() if host in ("", "0.0.0.0", "::") else f"{socket.gethostname()} {host}"
    door = options.lease_name or f"door {where}:{port}"
    drain_s = 1e9 if options.drain_timeout_s is None else options.drain_timeout_s
    check(Wish(options.lease_host, Mode.SHARED, door, ttl_s=options.lease_ttl_s))
    return Settings(
        options.lease_host, options.database, door, options.when_leased == "refuse", options.lease_ttl_s, drain_s
    )


def _limits(options: argparse.Namespace) -> "Limits":
    from sidecar.http.http_server import Limits

    return Limits(
        connections=options.max_connections,
        header_bytes=options.max_headers,
        body_bytes=options.max_body,
        bodies_bytes=options.max_bodies,
        client_bodies_bytes=options.max_client_bodies,
        unread_bytes=_UNREAD_BYTES,
        unread_s=options.unread_s,
        request_s=options.request_s,
        idle_s=options.idle_s,
    )


async def _serve(
    options: argparse.Namespace,
    settings: "Settings",
    log: Log,
    listener: socket.socket,
    others: list[socket.socket],
) -> None:
    from gateway.shell.server import Gateway

    loop = asyncio.get_running_loop()
    gateway = Gateway(loop, settings, log)
    ended: asyncio.Queue[str] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.put_nowait, signal.Signals(number).name)
    reloads = [keys for keys in (settings.keys, settings.admin_keys) if keys is not None]
    loop.add_signal_handler(signal.SIGHUP, _reload, reloads, log)
    for each in (listener, *others):
        await gateway.http.listen(each)
    gateway.start()
    gc.freeze()  # what is here stays, and needn't be looked at again
    gc.set_threshold(_NEW_OBJECTS)
    at = listener.getsockname()
    log.info("serving", host=at[0], port=at[1], run_dir=[str(run_dir) for run_dir in settings.run_dirs])
    why = await ended.get()
    requests = sum(len(pair.clients) for pair in gateway.pairs)
    delay_s, drain_s = options.shutdown_delay_s, options.shutdown_drain_s
    log.info("stopping", why=why, requests=requests, waits=_waits(delay_s, drain_s))
    drained = loop.create_task(gateway.drain(delay_s=delay_s, within_s=drain_s))
    again = loop.create_task(ended.get())  # a second signal ends it at once
    await asyncio.wait({drained, again}, return_when=asyncio.FIRST_COMPLETED)
    gateway.close()


def _waits(delay_s: float, drain_s: float) -> str:
    """What a door that was told to end waits for, in words."""
    taken = f"requests are taken for {delay_s:g} s more (/ready says no); then " if delay_s else ""
    return f"{taken}those that are here may take {drain_s:g} s; a second signal ends it at once"


def _listener(address: tuple[str, int], flag: str) -> socket.socket:
    """Ends the program with a sentence where it can't listen."""
    try:
        return tcp.listen(*address, BACKLOG)
    except tcp.CannotListen as error:
        where = tcp.named(*address)
        print(f"gateway: can't listen on {where}: {port_owner.way_out(error, flag)}", file=sys.stderr)
        raise SystemExit(1) from None


def _reload(files: list[Keys], log: Log) -> None:
    for keys in files:
        try:
            log.info("api_keys", count=keys.reload(), file=str(keys.path))
        except BadKeys as error:
            log.alarm("api_keys", why=f"{error}; those from before stay")


if __name__ == "__main__":
    main()
