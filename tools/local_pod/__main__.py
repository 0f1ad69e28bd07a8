"""`local-pod`: the command line. What it does is in `run.py` and `commands.py`."""

import importlib
import signal
import sys
from pathlib import Path

from sidecar.terminal.exit_codes import EX_INTERRUPTED
from sidecar.terminal.extras import how_to_get
from sidecar.terminal.settings import BadValue, Parser, count, seconds, valued
from sidecar.terminal.terminal import OutputLost

from . import commands, places

EXAMPLES = """\
examples:
  local-pod run k8s/dra/reference.yaml                 the pod of a manifest, in the foreground; Ctrl-C deletes it
  local-pod run k8s/dra/reference.yaml --back-off-s 1 --forward 8000
  kubectl kustomize DIR | local-pod run -              with an overlay
  local-pod status                                     is it Ready, and if not, why
  local-pod status --wait ready --timeout-s 60         waits for it, and before that for a pod to run
  local-pod exec engine-a -- failover status
  local-pod kill engine-a                              SIGKILL to the container's first process
  local-pod kill engine-a --inside engine_shim.shell.main_process     and to another process in it
  local-pod kill engine-a --oom                        as cgroup v2 does: all of the container at once
  local-pod kill engine-a --signal STOP                and --signal CONT
  local-pod down

What containers write is in DIR/logs/CONTAINER.RUN.log. Containers are processes of this machine, each with its own PID,
mount and IPC namespace; there are no images and no limits. Without root it needs user namespaces. What it does is what
kubelet would do: docs/inside/kubernetes.md.

exit codes: 0 done (status: Ready), 1 no (status: not Ready), 2 it can't run here, or no pod runs, 64 wrong usage
"""


def seconds_or_zero(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else seconds(text)


def pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise BadValue(f"{text!r} is nothing of the form NAME=VALUE")
    return name, value


def ports(text: str) -> tuple[str, int, int]:
    """8000, 18000:8000, 0.0.0.0:18000:8000."""
    rest, _, inside = text.rpartition(":")
    host, _, outside = rest.rpartition(":")
    outside = outside or inside
    if not (outside.isdigit() and inside.isdigit() and int(outside) < 65536 and 0 < int(inside) < 65536):
        raise BadValue(f"{text!r} is no port; allowed: 8000, 18000:8000 or HOST:18000:8000")
    return host.strip("[]") or "127.0.0.1", int(outside), int(inside)


def signal_name(text: str) -> str:
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    if name not in signal.Signals.__members__:
        raise BadValue(f"{text!r} is no signal; allowed: KILL, TERM, STOP ...")
    return name


def parser() -> Parser:
    p = Parser(
        prog="local-pod",
        description="Runs the pod of a manifest on this machine as kubelet would: order, probes, restarts, readiness.",
        epilog=EXAMPLES,
    )
    subs = p.add_subparsers(dest="command_name", metavar="COMMAND", parser_class=Parser, required=True)

    def sub(name: str, help: str, do: str) -> Parser:
        made: Parser = subs.add_parser(name, help=help, description=help)
        made.setting(
            "--dir", default=str(places.default_directory()), parse=Path, env="LOCAL_POD_DIR", metavar="DIR",
            help="where the running pod is found: one directory, one pod",
        )  # fmt: skip
        made.add_argument("--json", action="store_true", help="for programs")
        made.set_defaults(do=do)
        return made

    _run(sub("run", "run the pod of a manifest, until it is deleted", "run:run"))
    it = sub("status", "what runs, what is ready, and if not, why", "commands:show_status")
    it.add_argument("--wait", choices=("ready", "not-ready"), help="wait until it is so")
    it.add_argument("--timeout-s", type=valued(seconds), metavar="S", help="and how long")
    it = sub("kill", "a signal to a container's first process, or to another one in it", "commands:send_signal")
    it.add_argument("container")
    it.add_argument("--inside", metavar="PATTERN", help="processes of it whose command line has this in it")
    it.add_argument("--signal", type=valued(signal_name), default="SIGKILL", metavar="NAME", help="another signal")
    it.add_argument("--all", dest="every", action="store_true", help="to every process in the container at once")
    it.add_argument("--oom", action="store_true", help="to every process, as out-of-memory on cgroup v2 does")
    it = sub("exec", "a command in a container, as its user", "commands:execute")
    it.add_argument(
        "--env", action="append", default=[], type=valued(pair), metavar="NAME=VALUE", help="a variable more"
    )
    it.add_argument("container")
    it.add_argument("command", nargs="+", metavar="-- COMMAND")
    it = sub("down", "delete the pod, and wait for its end", "commands:down")
    it.add_argument("--grace-s", type=int, metavar="S", help="instead of the manifest's grace period")
    return p


def _run(it: Parser) -> None:
    it.add_argument("file", type=Path, metavar="FILE", help="a manifest; - for standard input")
    it.add_argument("--object", default="", metavar="KIND/NAME", help="which, where several make pods")
    it.add_argument(
        "--volume", action="append", default=[], type=valued(pair), metavar="NAME=DIRECTORY",
        help="a directory for a volume",
    )  # fmt: skip
    it.add_argument(
        "--forward", action="append", default=[], type=valued(ports), metavar="[[HOST:]PORT:]PORT",
        help="reach a port of the pod from here",
    )  # fmt: skip
    times = (
        ("--back-off-s", 10, "BACK_OFF", "kubelet's first back-off; it doubles"),
        ("--relist-s", 1, "RELIST", "how often kubelet looks for containers that have ended"),
    )
    for flag, default, name, help in times:
        it.setting(flag, default=default, parse=seconds_or_zero, env=f"LOCAL_POD_{name}_S", metavar="S", help=help)
    it.setting(
        "--seed", parse=count, env="LOCAL_POD_SEED", metavar="N", shown_default="drawn, and in the first event",
        help="of what kubelet draws at random: how much longer than its back-off it waits",
    )  # fmt: skip
    it.setting(
        "--startup-period-s", parse=seconds, env="LOCAL_POD_STARTUP_PERIOD_S", metavar="S",
        help="ask startup probes at least so often (kubelet: once a second)",
    )  # fmt: skip
    it.add_argument("--no-lint", action="store_true", help="run it although no cluster would")


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        module, _, function = options.do.partition(":")  # only what is asked for is loaded
        code: int = getattr(importlib.import_module(f".{module}", __package__), function)(options)
        return code
    except commands.Mistake as error:
        print(f"local-pod: {error}", file=sys.stderr)
        return error.code
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        print(f"local-pod: it needs the package yaml: {how_to_get('k8s')}", file=sys.stderr)
        return commands.CANT_RUN
    except OutputLost as error:
        return error.exit_code("local-pod")
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return EX_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
