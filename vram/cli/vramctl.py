"""`vramctl`: the ledger in the hands of a person or a script. It looks, and runs a command under a lease.

The commands are here; how the status reads is `status_text.py`, what `hold` does `held_command.py`. Exit codes are
relied on by scripts and stand in each command's --help.
"""

from sidecar.terminal import starting

if starting.is_command(__name__, "vramctl"):
    starting.die_of_ctrl_c()

import argparse
import sys

from evidence.cli import held_options
from sidecar.terminal import looking
from sidecar.terminal.commands import Commands, run, with_command
from sidecar.terminal.settings import EXIT_CODES, RUN_DIR_WORDS, BadValue, Parser, name, valued
from vram.cli import status_text
from vram.observer import Observer, watch_forever
from vram.rules import messages as m

MAIN = f"""\
commands:
  status        what of each device is leased, by which tree, and what waits
  watch         a line for every change
  history       what has happened
  hold          runs a command under a lease

{RUN_DIR_WORDS}
examples:
  vramctl --run-dir DIR status
  vramctl hold --needs GPU-0=12GiB -- python comfyui/main.py

{EXIT_CODES}"""
STATUS = """\
exit codes: 0 there is a server, and no alarm; 1 there is an alarm; 2 no server (holders go on without it)

fields of --json: devices (device, total, leased, returning, foreign, keep_free, available, free: all in bytes; free is
null where it can't be read), leases (lease, name, holder, incarnation, pid, bytes, returning, priority, evictable,
granted_at, unused_s, state: held, asked, ending, kept), leases_total, waiters (name, holder, pid, needs, priority,
since, waits_for), waiters_total, settled, memory_why, alarms, evidence, server_incarnation, server_pid.
leases and waiters are the first, as many as fit into one answer (1 MiB); leases_total and waiters_total say how many
there are.

examples:
  vramctl status
  vramctl status --json | jq '.devices[] | {device, available}'
"""
WATCH = """\
Says when the server goes away and when it is back; ends with Ctrl-C. With --json each line is the object of
`status --json` and the time (`at`); without a server: state NO_SERVER.

examples:
  vramctl watch
"""
HISTORY = """\
The server keeps the last thousand events in memory; its log has them all. With --json each line is one event.

examples:
  vramctl history --last 20
"""
HOLD = """\
The command is killed (SIGKILL) when vramctl dies, however it dies, and when the lease is lost. Signals are passed on
to it. With --evictable it may be asked to make room: then it gets SIGTERM, and SIGKILL after --grace-s. In its
environment: FAILOVER_HOST_DIR and FAILOVER_LEDGER_TREE, with which its processes may join; CUDA_VISIBLE_DEVICES with
the GPUs that it has leased, unless that is set. The lease ends when nothing of it is left (`lockctl hold --help` says
how that is seen to, and where its limits are). GPU-0 is the first GPU of `vramctl status`; the beginning of a UUID will
do, too.

exit codes: the command's own (128+n when signal n ended it), or
  64   wrong usage
  69   refused         it can never fit, say; with --no-wait also: no server
  70   lost            the lease was lost, and the command was killed
  75   not in time     --timeout-s is over; with --no-wait: there is no room
  126  can't be run    the command is there, and can't be started
  127  not found       there is no such command

examples:
  vramctl hold --needs GPU-0=12GiB -- python comfyui/main.py
  vramctl hold --name train --needs GPU-0=20GiB --priority 5 --evictable -- ./train.sh
"""


LOOKS = looking.Looks(
    Observer, watch_forever, m, status_text, "holders go on", code=lambda seen: int(bool(seen.alarms))
)


def hold(options: argparse.Namespace) -> int:
    from vram.cli.held_command import hold

    return hold(options)


def _priority(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 9999
    if not -1000 <= value <= 1000:
        raise BadValue(f"{text!r} is no priority; allowed: a whole number from -1000 to 1000")
    return value


def parser() -> Parser:
    commands = Commands(
        "vramctl",
        "Looks at the ledger of device memory, and works with it.",
        MAIN,
        run_dir="the host directory: the ledger is in DIR/vram",
        answers="the server",
    )
    what = "What of each device is leased, by which tree, and what waits."
    LOOKS.add_to(commands, (what, STATUS), WATCH, HISTORY)
    command = commands.add(
        "hold", hold, "Runs a command under a lease; it ends when nothing is left of both.", HOLD, prints=False
    )
    command.usage = "vramctl hold --needs DEVICE=BYTES [--name NAME] [...] -- COMMAND..."
    help = "the lease's; of two with the same name, one waits for the other"
    command.setting("--name", parse=name, shown_default="one of its own", metavar="NAME", help=help)
    help = "-1000 to 1000; the lowest is the most urgent; default 0"
    command.add_argument("--priority", type=valued(_priority), default=0, metavar="N", help=help)
    command.add_argument("--evictable", action="store_true", help="it may be asked to end, for one as urgent")
    held_options.declare(command, needs="memory that is leased", waits_for="it", grace="when it is asked to make room")
    return commands.parser


def main(argv: list[str] | None = None) -> int:
    return run("vramctl", lambda: with_command(parser, list(sys.argv[1:] if argv is None else argv)))


if __name__ == "__main__":
    sys.exit(main())
