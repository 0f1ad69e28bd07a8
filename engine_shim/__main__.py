"""`engine-shim`: the command. Settings, and a sentence for what a person can put right; the work is in `shim.py`."""

from sidecar.terminal import starting

if starting.is_command(__name__, "engine-shim"):
    starting.die_of_ctrl_c()

import sys

from engine_shim.cli import command_settings
from engine_shim.rules.events import Config, Restart
from engine_shim.shell import known_engines
from engine_shim.shell.shim import CannotStart, Options, Shim, command
from sidecar.kernel import io_uring, process_setup
from sidecar.kernel.durable import AlreadyLocked
from sidecar.terminal.exit_codes import EX_INTERRUPTED
from sidecar.terminal.logs import FORMATS, Log
from sidecar.terminal.settings import Parser, host_port, name

EXAMPLES = """\
examples:
  engine-shim --engine vllm --engine-id a --role primary --run-dir /run/failover --probe :9000 -- MODEL
  engine-shim --engine vllm --engine-id b --role shadow --run-dir /run/failover --probe :9001 -- MODEL
  engine-shim --engine reference --engine-id a --run-dir /run/failover --probe :9000 -- --preset small

The arguments behind -- are the engine's own: for vllm, what you give to vllm serve.
A lock server and GMS have to run in the same directory; failover up starts all of it on one machine.

It runs until SIGTERM or SIGINT, which drain an engine that serves. Told twice, it ends at once.
Probes: /live /startup /ready /state /metrics.
"""


def parser() -> Parser:
    p = Parser(
        prog="engine-shim",
        description="Runs one engine: starts it, answers its probes, ends all of it when a part of it dies, and starts "
        "it again.",
        epilog=EXAMPLES,
        usage="engine-shim --engine ENGINE --engine-id ID --run-dir DIR --probe HOST:PORT [...] -- ENGINE ARGUMENTS",
    )
    p.setting(
        "--engine",
        required=True,
        parse=known_engines.kind,
        metavar="ENGINE",
        help="vllm, reference (a small model whose text means nothing), or MODULE:FACTORY for one of your own",
    )
    p.setting("--engine-id", required=True, parse=name, env="ENGINE_ID", metavar="ID", help="the name of this engine")
    p.setting(
        "--role",
        default="primary",
        choices=known_engines.ROLES,
        env="ENGINE_ROLE",
        help="primary: loads the weights if nobody has; shadow: only ever reads them",
    )
    p.setting(
        "--run-dir",
        required=True,
        parse=command_settings.directory,
        metavar="DIR",
        help="the lock server's and GMS's directory; the engine serves in DIR/engine unless --listen says otherwise",
    )
    p.setting(
        "--probe",
        required=True,
        parse=host_port,
        metavar="HOST:PORT",
        help="where the probes are answered; without a host on every address, and with port 0 on any free port",
    )
    p.setting(
        "--listen",
        parse=command_settings.listen,
        metavar="unix:PATH|HOST:PORT",
        shown_default="unix:DIR/engine/ID.TOKEN.sock",
        help="where the engine serves once it is awake",
    )
    p.setting(
        "--restart",
        default=Restart.IN_PLACE.value,
        choices=[mode.value for mode in Restart],
        help="what follows the engine's death: its next start in this process, or the end of this process",
    )
    command_settings.kv(p)
    command_settings.times(p)
    p.setting("--log-format", default="text", choices=FORMATS, help="how log lines look")
    p.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="the engine's own, behind --")
    return p


def main(argv: list[str] | None = None) -> int:
    try:
        starting.loaded()
        return _main(argv)
    except KeyboardInterrupt:  # it came before signals are handled: nothing was started yet
        return EX_INTERRUPTED


def _main(argv: list[str] | None) -> int:
    options = command_settings.parsed(parser(), argv)
    process_setup.raise_descriptor_limit()
    log = Log("shim", json=options.log_format == "json")
    _forbid_io_uring(log)
    config = Config(
        engine_id=options.engine_id,
        role=options.role,
        restart=Restart(options.restart),
        init_timeout_s=options.init_timeout_s,
        waking_timeout_s=options.waking_timeout_s,
        stall_s=options.stall_s,
        busy_stall_s=options.busy_stall_s,
        drain_s=options.drain_s,
    )
    # An engine may change its working directory; the path means the same to everybody.
    options.run_dir = options.run_dir.absolute()
    try:
        shim = Shim(
            Options(config, options.run_dir, options.probe, command(options)),
            log,
        )
    except AlreadyLocked as error:
        print(f"engine-shim: another engine-shim runs engine {options.engine_id} here: {error}", file=sys.stderr)
        return 1
    except CannotStart as error:
        print(f"engine-shim: {error}", file=sys.stderr)
        return 1
    return shim.serve()


def _forbid_io_uring(log: Log) -> None:
    """To the engine's whole tree, which inherits it. Where it can't be, the engine runs all the same: GMS hands nobody
    the cache that such an engine leaves.
    """
    try:
        io_uring.forbid()
    except OSError as error:
        if not io_uring.why_impossible():
            log.warning("io_uring_not_forbidden", why=error, follows="no engine adopts this one's KV cache")


if __name__ == "__main__":
    sys.exit(main())
