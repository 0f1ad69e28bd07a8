"""`failover`: the command that runs a whole pair on one machine or in one container. Settings, and a sentence for what
a person can put right; the work is in `up.py`, `pair_status.py` and `pair_commands.py`.
"""

from sidecar.terminal import starting

if starting.is_command(__name__, "failover"):
    starting.die_of_ctrl_c()

import contextlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine_shim import vllm_engine
from engine_shim.cli import (
    command_settings,
    k8s_files,
    models,
    models_parts,
    pair_commands,
    pair_status,
    part_environment,
    top,
)
from engine_shim.cli.door_address import choose_address, free_address, parts_are_these
from engine_shim.cli.pair_parts import Options
from engine_shim.cli.pair_process import PairError
from engine_shim.cli.up import Up
from engine_shim.rules.events import Restart
from engine_shim.shell import known_engines
from gms.memory import host_device
from sidecar.kernel import process_setup
from sidecar.terminal import completion
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.exit_codes import EX_INTERRUPTED, EX_USAGE
from sidecar.terminal.extras import how_to_get
from sidecar.terminal.settings import (
    RUN_DIR_WORDS,
    BadValue,
    Parser,
    default_run_dir,
    directory,
    host_port,
    name,
    seconds,
    valued,
)
from sidecar.terminal.terminal import OutputLost, say
from sidecar.wire import tcp

EXAMPLES = f"""\
{RUN_DIR_WORDS}
examples:
  failover up --engine vllm -- MODEL --max-model-len 8192     behind -- goes what you give to vllm serve
  failover up                                                 two small reference engines in host memory, to try it
  failover up --listen :8000                                  clients come from other machines, too
  failover up --capacity 2GiB -- --preset medium              the same with a larger model
  failover status                                             who serves, who is ready, where
  failover models up models.yaml                              many models behind one address: failover models --help
  failover top                                                the same as the door sees it, live
  failover doctor                                             what is wrong with the machine or the pair, and what to do
  failover kill active                                        SIGKILL, and what follows
  failover down

Everything is one process tree: if the machine or the container ends, both engines end with it. Two pods don't have
that limit.

exit codes of all commands (each has more: COMMAND --help):
  1    it can't be done; the message says why
  64   wrong usage
  74   what it prints can't be written
  130  interrupted
  141  its output is no longer read
"""
UP_ENVIRONMENT = """\

environment: a variable that is named above is a setting of failover up, and no part gets it as its own. What a part
takes beside that: FAILOVER_LOCK_X, FAILOVER_GMS_X, FAILOVER_DOOR_X and FAILOVER_ENGINES_X are FAILOVER_X of that part
alone (FAILOVER_DOOR_METRICS=:9402, say; see lockserver, gms, gateway and engine-shim --help). Other variables reach all
parts, but FAILOVER_METRICS and FAILOVER_RESTART reach none.
"""


STATUS_EXAMPLES = """\
examples:
  failover status                     for people
  failover status --json | jq .lock   for programs: run_dir, up (a process), lock (as lockctl status --json), gms (as
                                      gmsctl status --json), engines, door, starting, ending, last_served, lock_why,
                                      no_room, refused, of_many, serving, redundant, redundancy
"""
DOCTOR_EXAMPLES = """\
examples:
  failover doctor                     kernel, seccomp, limits, inotify, clock, disk, the run directory, the lock server,
                                      GMS of each device, the door, both engines, redundancy; of many models the
                                      ledger, the pool, and each model with its lock and engines
  failover doctor --json | jq '.checks[] | select(.level != "ok")'

What `lockctl doctor` looks at is the first part of it. It disturbs nothing. Run it where the engines run, as their
user; as root it sees more.
"""
TOP_EXAMPLES = """\
examples:
  failover top
  failover top --door 10.0.0.7:8000
  failover top --once | less
"""
KILL_EXAMPLES = """\
examples:
  failover kill active                shows what follows, with times
  failover kill a                     the same, and nothing is killed unless a is the engine that serves
  failover kill active --anyway       does so though failover status doesn't say redundancy yes

It works only where it can see the engine's main process: for a pair in a container, run it inside.
"""
DOWN_EXAMPLES = """\
examples:
  failover down                       the engine that serves drains first

What no process uses any more is removed: sockets, the engines' temporary files, the host devices with their memory. Of
what stays it says why; the run directory always does. Where a failover up was killed, it removes what that one has
left, and names it.
"""
K8S = "Write the chart, the manifests, the alerts and the dashboard that come with this software into DIR."
K8S_EXAMPLES = """\
examples:
  failover k8s manifests pair
  kubectl apply -f pair/dra/one-gpu.yaml
  helm template pair-1 pair/chart --values mine.yaml | kubectl apply -f -
"""
COMPLETION = "Print what makes a shell complete failover, lockctl, gmsctl and the other commands: names, flags, values."
COMPLETION_EXAMPLES = """\
examples:
  source <(failover completion bash)                    in ~/.bashrc
  source <(failover completion zsh)                     in ~/.zshrc, below compinit
  failover completion zsh > ~/.zsh/_failover            or so, a directory in fpath
  failover completion fish > ~/.config/fish/conf.d/gpu-failover.fish
"""
CHOOSE = "choose"
RUN_DIR = "where everything of this pair, or of these models, is"
GPUS = Path("/dev/nvidiactl")
"""Exists where NVIDIA's driver is, and not in a container that was given no GPU."""


def _devices(text: str) -> tuple[str, ...]:
    """`none` is for engines of one's own that need no GMS."""
    if text == "none":
        return ()
    found = tuple(text.split(","))
    for device in found:
        kind, _, rest = device.partition(":")
        if device != "cuda" and not device.startswith("GPU-") and (kind != "host" or not rest or "/" in rest):
            raise BadValue(f"{device!r} is no device; allowed: host:NAME such as host:0, cuda, or GPUs by UUID")
    if len(set(found)) < len(found):
        raise BadValue(f"{text!r} names a device twice")
    return found


def _capacity(text: str) -> str:
    host_device.device_size(text)
    return text


def parser() -> Parser:
    p = Parser(prog="failover", description="Two engines, one awake and one ready, on one machine.", epilog=EXAMPLES)
    p.run_dir(RUN_DIR)
    commands = p.add_subparsers(
        dest="command", required=True, metavar="up|models|status|doctor|down|kill|top|k8s|completion"
    )

    def command(word: str, what: str, **more: Any) -> Parser:
        it: Parser = commands.add_parser(word, help=what, description=what, **more)
        it.run_dir(RUN_DIR)
        it.set_defaults(parser=it)
        return it

    up = command("up", "Start a pair, and keep it running until Ctrl-C. Exit code 0: it was told to end, and has; 1, "
                 "or that of the part: it can't be started; 128 and the signal's number: it was told to end twice.",
                 epilog=EXAMPLES + UP_ENVIRONMENT)  # fmt: skip
    up.usage = "failover up [--engine ENGINE] [--devices ...] [--run-dir DIR] [...] -- ENGINE ARGUMENTS"
    command_settings.engine(up, default="reference")
    up.setting(
        "--devices",
        parse=_devices,
        metavar="DEVICE,...",
        shown_default="host:0, with another run directory host:HASH of it; cuda for vllm where there are NVIDIA GPUs",
        help="host:NAME (in /dev/shm), cuda, GPUs by UUID, or none; the engines are told them, one for each rank",
    )
    up.setting("--capacity", default="1GiB", parse=_capacity, metavar="SIZE", help="how large each host device is")
    up.setting("--engine-ids", default="a,b", parse=_two_names, metavar="A,B", help="what the two are called")
    up.setting(
        "--listen",
        default=CHOOSE,
        parse=_door,
        metavar="HOST:PORT",
        shown_default="127.0.0.1:8000, or a free port where that is taken",
        help="where clients come, whichever serves (docs/inside/door.md); none: the engines' own sockets only",
    )
    command_settings.kv(up)
    command_settings.snapshot(up)
    command_settings.times(up)
    up.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="the engine's own, behind --")

    models.declare(command, GPUS)
    status = command("status", "Show who serves, who is ready, and where. Exit code 0: clients reach an engine; 1: "
                     "they reach none, or no door answers; 2: they reach one, and another part of the pair doesn't "
                     "answer; 3: nothing runs here.", epilog=STATUS_EXAMPLES)  # fmt: skip
    doctor = command("doctor", "Look at all that the pair stands on, and at each part of it, and say what to do. Exit "
                     "code 0: nothing FAILs; 1: something does.", epilog=DOCTOR_EXAMPLES)  # fmt: skip
    for one in (status, doctor):
        one.add_argument("--json", action="store_true", help="for programs")
        one.setting(
            "--door",
            default=CHOOSE,
            parse=_door,
            metavar="HOST:PORT",
            shown_default="where failover up has it; else localhost:8000, unless the engines listen at ports of their "
            "own",
            help="where to ask for the door; none: there is none",
        )
    live = command("top", "Show what the door's page shows (http://DOOR/failover/), live, until q. Exit code 0: it "
                   "was shown; 1: the door doesn't answer.", epilog=TOP_EXAMPLES)  # fmt: skip
    live.setting(
        "--door",
        parse=host_port,
        metavar="HOST:PORT",
        shown_default="where failover up has it; else localhost:8000",
        help="where the door is",
    )
    live.add_argument("--once", action="store_true", help="print it once; so it is where the output is no terminal")
    down = command("down", "End the pair that failover up runs, and wait for it. Exit code 0: everything has ended, "
                   "or the failover up was killed and is cleaned up; 1: it hasn't in time, or no failover up runs "
                   "here.", epilog=DOWN_EXAMPLES)  # fmt: skip
    down.setting("--timeout-s", default=pair_commands.DOWN_S, parse=seconds, metavar="S", help="how long to wait")
    kill = command("kill", "SIGKILL the engine that serves, and show the handoff. Exit code 0: another engine serves; "
                   "1: nothing was killed, or no engine serves after it; the message says which.",
                   epilog=KILL_EXAMPLES)  # fmt: skip
    kill.add_argument("--anyway", action="store_true", help="though no engine may be able to take over")
    kill.add_argument(
        "whom",
        type=valued(name),
        metavar="active|ENGINE_ID",
        help="the main process of the engine that serves: active whichever that is, an engine's name only that one",
    )
    k8s = commands.add_parser("k8s", help="Write the files for Kubernetes that come with this software.",
                              description=K8S, epilog=K8S_EXAMPLES)  # fmt: skip
    k8s.add_argument("what", choices=["manifests"], metavar="manifests", help="all of them")
    k8s.add_argument("target", type=valued(directory), metavar="DIR", help="where to; it is made")
    k8s.set_defaults(parser=k8s)
    shells = commands.add_parser("completion", help="Print what makes a shell complete all commands.",
                                 description=COMPLETION, epilog=COMPLETION_EXAMPLES)  # fmt: skip
    shells.add_argument("shell", choices=completion.SHELLS, help="which one")
    shells.set_defaults(parser=shells)
    return p


def _door(text: str) -> object:
    return text if text == CHOOSE else None if text == "none" else host_port(text)


def _two_names(text: str) -> tuple[str, ...]:
    found = tuple(name(word) for word in text.split(","))
    if len(found) != 2 or found[0] == found[1] or {"up", "lock", "gms", "door"} & set(found):
        raise BadValue(f"{text!r} isn't two names such as a,b")
    return found


def main(argv: list[str] | None = None) -> int:
    try:
        starting.loaded()
        return _main(argv)
    except OutputLost as error:
        return error.exit_code("failover")
    except KeyboardInterrupt:
        return EX_INTERRUPTED


def _main(argv: list[str] | None) -> int:
    options = command_settings.parsed(parser(), argv)
    if options.command == "completion":
        say(completion.script(options.shell, completion.programs()).rstrip("\n"))
        return 0
    run_dir = options.run_dir
    if options.command == "up":
        if options.devices is None:
            options.devices = default_devices(options.engine, run_dir)
        if wrong := _devices_wrong(options) or _address_among(options.engine, options.arguments) or _lacking(options):
            options.parser.error(wrong)
    try:
        if options.command == "up":
            return _up(options, run_dir)
        if options.command in ("status", "doctor"):
            told = options.door != CHOOSE
            door = (tcp.url(*options.door) if options.door else "") if told else None
            if options.command == "status":
                return pair_status.show(run_dir, options.json, door)
            from engine_shim.cli import pair_doctor

            return pair_doctor.show(run_dir, options.json, door)
        if options.command == "models":
            return int(options.run(options))
        if options.command == "top":
            return top.show(run_dir, tcp.url(*options.door) if options.door else "", options.once)
        if options.command == "k8s":
            say(k8s_files.write(options.target))
        elif options.command == "down":
            pair_commands.down(run_dir, options.timeout_s)
        else:
            pair_commands.kill(run_dir, options.whom, options.anyway)
    except (CannotStart, PairError) as error:
        print(f"failover: {error}", file=sys.stderr)
        return 1
    return 0


def default_devices(engine: str, run_dir: Path) -> tuple[str, ...]:
    """A host device is named after the run directory: pairs in two directories don't want the same one."""
    gpus = engine == "vllm" and GPUS.exists()
    return ("host:0",) if run_dir == default_run_dir() and not gpus else models_parts.default_devices(run_dir, gpus)


def _devices_wrong(options: Any) -> str:
    """Why the engine can't have these devices; empty if it can."""
    on_host = [device.startswith("host:") for device in options.devices]
    if options.engine in known_engines.KNOWN and not options.devices:
        return (
            f"--devices none: the engine {options.engine} has its weights in GMS, on a device: --devices host:0, say; "
            "none is for engines of one's own that need no GMS"
        )
    if any(on_host) and not all(on_host):
        return f"--devices {','.join(options.devices)}: host devices and GPUs can't be mixed"
    if options.engine == "reference" and not all(on_host):
        return f"--devices {','.join(options.devices)}: the reference engine computes in host memory: --devices host:0"
    return ""


def _lacking(options: Any) -> str:
    """Which packages some part will need that this Python doesn't have, and how they are had; empty if it has all."""
    needs = {"reference": ["numpy"]} if options.engine == "reference" else {}
    if any(not device.startswith("host:") for device in options.devices):
        needs["cuda"] = ["cuda.bindings", "pynvml"]
    if options.listen is not None:
        needs["gateway"] = ["uvloop", "prometheus_client"]
    lacking = {extra: [name for name in names if not _is_there(name)] for extra, names in needs.items()}
    if extras := [extra for extra, names in lacking.items() if names]:
        names = ", ".join(name for names in lacking.values() for name in names)
        return f"this Python ({sys.executable}) lacks {names}: {how_to_get(','.join(extras))}"
    return vllm_engine.NOT_HERE if options.engine == "vllm" and not _is_there("vllm") else ""


def _is_there(package: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # of what it is a part of
        return importlib.util.find_spec(package) is not None
    return False


def _address_among(engine: str, arguments: list[str]) -> str:
    """vLLM takes an address, and has no use for it in a pair."""
    for word in arguments if engine == "vllm" else ():
        if word.partition("=")[0] in ("--host", "--port", "--uds"):
            return (
                f"{word.partition('=')[0]} behind --: clients come to the door, whose address is failover up --listen "
                "HOST:PORT (before the --); the engines serve at addresses of their own, which failover status shows"
            )
    return ""


def _refused(options: Any, run_dir: Path) -> bool:
    """Whether the engine refuses its arguments, which it then has said. Asked before anything is started; vLLM, which
    takes ten seconds to load, is asked only when it is started.
    """
    if options.engine == "vllm":
        return False
    command = [sys.executable, "-m", "engine_shim.shell.main_process", "--check", "--engine", options.engine]
    place = ["--engine-id", options.engine_ids[0], "--run-dir", str(run_dir)]
    words = [*command, *place, "--", *options.arguments]
    kept = part_environment.kept_from_parts(os.environ)
    environment = {variable: value for variable, value in os.environ.items() if variable not in kept}
    asked = subprocess.run(words, check=False, process_group=0, env=environment)  # Ctrl-C is for this process
    return asked.returncode == EX_USAGE


def _up(options: Any, run_dir: Path) -> int:
    process_setup.raise_descriptor_limit()
    parts_are_these()
    if _refused(options, run_dir):
        return EX_USAGE
    shim: list[str] = ["--restart", Restart.IN_PLACE.value]
    for field, most_s in command_settings.times_of(options).items():
        shim += [command_settings.flag(field), f"{most_s:g}"]
    listen, first = options.listen, ""
    if listen == CHOOSE:
        listen, first = choose_address()
    elif listen is not None:
        listen = free_address(*listen)
    door = ("--shutdown-delay-s", "0", "--shutdown-drain-s", f"{options.drain_s:g}")
    shim += ["--kv", options.kv] if options.kv else []
    shim += ["--snapshot", str(options.snapshot.absolute())] if options.snapshot is not None else []
    wanted = Options(
        run_dir,
        options.engine,
        options.devices,
        options.capacity,
        options.engine_ids,
        tuple(shim),
        tuple(options.arguments),
        listen,
        door,
        dict(os.environ),
    )
    up = Up(wanted)
    if first:
        up.say("up", first)
    return up.run()


if __name__ == "__main__":
    sys.exit(main())
