"""`engine-shim`: the command. Settings, and a sentence for what a person can put right; the work is in `shim.py`."""

from sidecar.terminal import starting

if starting.is_command(__name__, "engine-shim"):
    starting.die_of_ctrl_c()

import sys

from engine_shim.cli import command_settings
from engine_shim.rules.events import Config, Restart
from engine_shim.shell.shim import Options, Shim, command
from sidecar.kernel import io_uring, process_setup
from sidecar.kernel.durable import AlreadyLocked
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.exit_codes import EX_INTERRUPTED
from sidecar.terminal.logs import FORMATS, Log
from sidecar.terminal.settings import Parser, host_port

EXAMPLES = """\
examples:
  engine-shim --engine vllm --engine-id a --role primary --run-dir DIR --probe :9000 -- MODEL
  engine-shim --engine vllm --engine-id b --role shadow --run-dir DIR --probe :9001 -- MODEL
  engine-shim --engine reference --engine-id a --run-dir DIR --probe :9000 -- --preset small

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
    command_settings.one_engine(p)
    p.setting(
        "--probe",
        required=True,
        parse=host_port,
        metavar="HOST:PORT",
        help="where the probes are answered; without a host on every address, and with port 0 on any free port",
    )
    p.setting(
        "--restart",
        default=Restart.IN_PLACE.value,
        choices=[mode.value for mode in Restart],
        help="what follows the engine's death: its next start in this process, or the end of this process",
    )
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
        **command_settings.times_of(options),
    )
    try:
        shim = Shim(Options(config, options.run_dir, options.probe, command(options)), log)
    except AlreadyLocked as error:
        print(f"engine-shim: another engine-shim runs engine {options.engine_id} here: {error}", file=sys.stderr)
        return 1
    except CannotStart as error:
        print(f"engine-shim: {error}", file=sys.stderr)
        return 1
    return shim.serve()


def _forbid_io_uring(log: Log) -> None:
    """To the engine's whole tree, which inherits it. Where it can't be, the engine runs all the same: GMS hands no
    engine the cache that such an engine leaves.
    """
    try:
        io_uring.forbid()
    except OSError as error:
        if not io_uring.why_impossible():
            log.warning("io_uring_not_forbidden", why=error, follows="no engine adopts this one's KV cache")


if __name__ == "__main__":
    sys.exit(main())
