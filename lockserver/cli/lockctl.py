"""`lockctl`: the lock in the hands of a person or a script. It looks, asks for a switchover or a rest, runs a command
under it.

The commands are here; how the status reads is `status_text.py`, what `hold` and `doctor` do has files of its own.
Everything is said by the server or seen on this machine: lockctl decides nothing. Exit codes are relied on by scripts
and stand in each command's --help (`lockctl_help.py`).
"""

from sidecar.terminal import starting

if starting.is_command(__name__, "lockctl"):
    starting.die_of_ctrl_c()

import argparse
import contextlib
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from evidence.cli import held_options
from lockserver.cli import lockctl_help as words
from lockserver.cli import status_text
from lockserver.observer import Observer, watch_forever
from lockserver.rules import messages as m
from lockserver.shell.rundir import SOCKET
from sidecar.terminal import looking
from sidecar.terminal.commands import Commands, run, with_command
from sidecar.terminal.looking import fields
from sidecar.terminal.settings import Parser, count, name, seconds, seconds_or_zero, valued
from sidecar.terminal.terminal import say

HELD, FREE, NO_SERVER, NOT_YET, NOT_DONE = 0, 1, 2, 3, 4
"""Exit codes; usage errors are 64."""
_BY_STATE = {"HELD": HELD, "FREE": FREE}
RUN_DIR = "the lock server's run directory"


LOOKS = looking.Looks(
    Observer,
    watch_forever,
    m,
    status_text,
    "the holder serves on",
    code=lambda seen: _BY_STATE.get(seen.state, NOT_YET),
)


# -- switchover, sleep, wake ---------------------------------------------------------------------------------------


def switchover(options: argparse.Namespace) -> int:
    return _step_by_step(options, m.Switchover(to=options.to, drain_timeout_s=options.drain_timeout))


def sleep(options: argparse.Namespace) -> int:
    return _step_by_step(options, m.Sleep(drain_timeout_s=options.drain_timeout, why=options.why))


def wake(options: argparse.Namespace) -> int:
    return _step_by_step(options, m.Wake())


def _step_by_step(options: argparse.Namespace, wish: m.Switchover | m.Sleep | m.Wake) -> int:
    """Says each step until the last."""
    try:
        m.check(wish)
    except ValueError as error:
        options.parser.error(str(error))
    with Observer(options.run_dir, options.answer_timeout_s) as observer:
        calls = 0

        def call_off(*_: object) -> None:
            """Ctrl-C calls it off and waits for the server's word; a second one leaves."""
            nonlocal calls
            calls += 1
            if calls > 1:
                raise KeyboardInterrupt
            print("lockctl: calling it off (Ctrl-C again leaves at once)", file=sys.stderr, flush=True)
            observer.tell(m.AbortSwitchover())

        with _on_signals(call_off, signal.SIGINT, signal.SIGTERM):
            observer.tell(wish)
            began = False
            patience: float | None = options.answer_timeout_s
            while True:
                step = observer.hear(m.SwitchoverStep, patience)
                if step.phase == "refused" and began and step.done:
                    # Our own call to stop, which came too late: what was asked for goes on.
                    step = m.SwitchoverStep(phase="too late", detail=step.detail)
                began, patience = True, None
                if options.json:
                    say(json.dumps(fields(step) | {"done": step.done, "ok": step.ok}))
                else:
                    say(f"{step.phase:<9}  {step.detail}")
                if step.done:
                    return 0 if step.ok else NOT_DONE


@contextlib.contextmanager
def _on_signals(handler: Callable[..., None], *signals: signal.Signals) -> Any:
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


# -- ping ----------------------------------------------------------------------------------------------------------


def ping(options: argparse.Namespace) -> int:
    with Observer(options.run_dir, options.answer_timeout_s) as observer:
        if not options.json:
            say(f"PING {options.run_dir / SOCKET}")
        return 0 if _ping_times(observer, options) else NO_SERVER


def _ping_times(observer: Observer, options: argparse.Namespace) -> int:
    """`options.count` round trips, `options.interval` apart, or until Ctrl-C; returns how many came back."""
    times: list[float] = []
    sent = 0
    began = time.monotonic()
    try:
        while sent < options.count:
            if sent:
                observer.listen(options.interval)
            sent += 1
            at = time.perf_counter()
            pong = observer.ask(m.Ping(), m.Pong)
            times.append((time.perf_counter() - at) * 1000)
            incarnation = pong.server_incarnation
            if options.json:
                time_ms = round(times[-1], 3)
                say(json.dumps({"seq": sent, "time_ms": time_ms, "server_incarnation": incarnation}))
            else:
                say(f"answer from {incarnation}: seq={sent} time={times[-1]:.3f} ms")
    except KeyboardInterrupt:
        sent = len(times)
    finally:
        if sent and options.count > 1 and not options.json:
            _ping_summary(sent, times, time.monotonic() - began)
    return len(times)


def _ping_summary(sent: int, times: list[float], took_s: float) -> None:
    lost = 100 * (sent - len(times)) // sent
    say(f"\n{sent} sent, {len(times)} answered, {lost}% lost, {took_s * 1000:.0f} ms")
    if times:
        spread = statistics.pstdev(times)
        say(f"min/avg/max/mdev = {min(times):.3f}/{statistics.fmean(times):.3f}/{max(times):.3f}/{spread:.3f} ms")


# -- doctor, hold --------------------------------------------------------------------------------------------------


def doctor(options: argparse.Namespace) -> int:
    from lockserver.doctor import examine
    from sidecar.terminal.findings import report

    return report(examine(options.run_dir, options.answer_timeout_s), options.json, run_dir=str(options.run_dir))


def hold(options: argparse.Namespace) -> int:
    from lockserver.cli.held_command import hold

    return hold(options)


# -- settings ------------------------------------------------------------------------------------------------------


def parser() -> Parser:
    commands = Commands(
        "lockctl",
        "Looks at the lock, and works with it.",
        words.MAIN,
        run_dir=RUN_DIR,
        answers="the server",
    )
    add = commands.add
    LOOKS.add_to(commands, ("Who serves, who waits, and what for.", words.STATUS), words.WATCH, words.HISTORY)
    command = add("switchover", switchover, "Lets the next engine take over, on purpose.", words.SWITCHOVER)
    command.add_argument("--to", default="", metavar="ENGINE_ID", help="the successor; default: the first who is ready")
    for_rest = add(
        "sleep", sleep, "Puts the lock to rest: the engine sleeps in place, and none is granted.", words.SLEEP
    )
    for_rest.add_argument("--why", default="", metavar="TEXT", help="for those who look at the status")
    for one in (command, for_rest):
        one.add_argument(
            "--drain-timeout",
            type=valued(seconds_or_zero),
            default=30.0,
            metavar="S",
            help="how long the holder may take to finish what it has begun; 0: it finishes nothing; default 30",
        )
    add("wake", wake, "Ends the rest: the next engine that is ready is granted.", words.WAKE)
    command = add("ping", ping, "Is the lock server there, and how fast?", words.PING)
    command.add_argument("--count", type=valued(count), default=1, metavar="N", help="how often; default 1")
    command.add_argument(
        "--interval", type=valued(seconds), default=1.0, metavar="S", help="time between two; default 1"
    )
    add("doctor", doctor, "Checks what the lock stands on, and says what to do.", words.DOCTOR)
    what = "Runs a command while this engine holds the lock; it is released when both are gone."
    command = add("hold", hold, what, words.HOLD, prints=False)
    command.usage = "lockctl hold --engine-id ID [--needs DEVICE=BYTES]... [--serving URL] [...] -- COMMAND..."
    command.setting("--engine-id", parse=name, required=True, metavar="ID", help="what this is called in status")
    help = "where the command serves, for all that watch; said when it is started"
    command.add_argument("--serving", default="", metavar="URL", help=help)
    what = "memory that must be free for the grant"
    held_options.declare(command, needs=what, waits_for="the lock", grace="in a switchover")
    return commands.parser


# -- the command ---------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    return run("lockctl", lambda: with_command(parser, list(sys.argv[1:] if argv is None else argv)))


if __name__ == "__main__":
    sys.exit(main())
