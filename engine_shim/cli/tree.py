"""Programs as one process tree, with one Ctrl-C: what `failover up` (`up.py`) and `failover models up` (`models_up.py`)
have in common.

Each program is started again in place when it ends. When this process is told to end, those above end first (engines
that serve drain), then those that they stand on; told again, everything ends at once, and the exit code says so (128
and the signal's number). The children die with this process however it ends.

One thread does all of this. What this file may not do: know any of the programs.
"""

import contextlib
import io
import json
import os
import signal
import stat
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from engine_shim.cli.pair_look import UpFacts
from engine_shim.cli.pair_process import UP_LOCK
from engine_shim.rules.hopeless_parts import GiveUp, HopelessParts, TryAgain
from sidecar.kernel import process_setup
from sidecar.kernel.durable import AlreadyLocked, DirectoryLock
from sidecar.kernel.path_watch import make_private_directory
from sidecar.machine.restarts import STEADY_S
from sidecar.machine.supervisor import NEVER, Child, Supervisor, how_it_ended
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.formatting import unquoted
from sidecar.terminal.logs import Log, Output

REST_END_S = 5.0
"""How long those that the others stand on may take to end; they have nothing to finish."""
LOOK_S = 1.0


class TreeLock:
    """That such a tree runs in a directory. A file that is removed is made again: `failover down` couldn't find it."""

    def __init__(self, run_dir: Path) -> None:
        """Raises CannotStart."""
        self._run_dir = run_dir
        try:
            make_private_directory(run_dir)
            whose = run_dir.stat()
            if whose.st_uid != os.getuid():
                raise CannotStart(f"{run_dir} belongs to another user; give a --run-dir of your own")
            if whose.st_mode & stat.S_IWOTH:
                own = f"give --run-dir {run_dir}/failover, or chmod 700 it if nothing else uses it"
                raise CannotStart(f"any user may replace the lock's files in {run_dir}: {own}")
            self._lock = DirectoryLock(run_dir, UP_LOCK).acquire()
        except AlreadyLocked as error:
            many = UpFacts.read(run_dir).models
            what, other = ("failover models up", _OTHER_MODELS) if many else ("failover up", _OTHER)
            raise CannotStart(f"{what} runs already in {run_dir} (process {error.pid}); {other}") from None
        except OSError as error:
            why = "it is no directory" if isinstance(error, FileExistsError) else error.strerror
            raise CannotStart(f"{error.filename or run_dir} can't be used: {why}; give another --run-dir") from None

    def keep(self) -> str:
        """It is there. Returns what a person should know of it."""
        if self._lock.holds():
            return ""
        try:
            make_private_directory(self._run_dir)
            new = DirectoryLock(self._run_dir, UP_LOCK).acquire()
        except (OSError, AlreadyLocked):
            return ""  # it is tried again
        self._lock.close()
        self._lock = new
        return f"{new.path} was removed: made again"

    def close(self) -> None:
        self._lock.close()


_OTHER = "failover status shows it, failover down ends it, another --run-dir is another pair"
_OTHER_MODELS = "failover models shows it, kill -HUP has its models.yaml read again, failover down ends it"


class Tree:
    def __init__(self, children: list[Child], base: Collection[str], least_width: int = 2) -> None:
        """`base`: the names of those that the others stand on, which end last."""
        self.width = max(least_width, *(len(child.name) for child in children))
        self.supervisor = Supervisor(children, ended=self._on_ended, relay=self._relay)
        self.base_names = frozenset(base)
        self.told: list[signal.Signals] = []
        """Signals to end."""
        self.because: Child | None = None
        """Everything ends because of this one."""
        self._outlives_its_terminal = process_setup.outlives_its_terminal()
        self.last_words: dict[str, str] = {}
        self._code = 0
        self._output = Output("stdout")
        self._unread = 0
        """Lines that were dropped because there was no room for them."""
        self._json = os.environ.get("FAILOVER_LOG_FORMAT") == "json"
        self._said_why: set[tuple[str, str]] = set()
        """With what a program ended whose start failed. The next try says it again, which a person needn't read."""

    @property
    def ending(self) -> bool:
        """What ends is started no more."""
        return bool(self.told) or self.because is not None

    @property
    def base(self) -> list[Child]:
        return [child for child in self.supervisor.children if child.name in self.base_names]

    @property
    def above(self) -> list[Child]:
        return [child for child in self.supervisor.children if child.name not in self.base_names]

    def say(self, name: str, line: str) -> None:
        """To a person; to a collector each line is an object: a program's own, or one with what it printed. An output
        that isn't read (a pager, Ctrl-S) stops nothing.
        """
        missing = [("up", f"{self._unread} lines are missing: this output was not read")] if self._unread else []
        said = "".join(self._line(*one) for one in (*missing, (name, line)))
        self._unread = 0 if self._output.write(said) else self._unread + 1

    def _line(self, name: str, line: str) -> str:
        if not self._json:
            return f"{name:<{self.width}} | {line}\n"
        if _said_as_object(line):
            return f"{line}\n"
        Log(name, json=True, stream=(printed := io.StringIO())).info("printed", text=line)
        return printed.getvalue()

    def listen_to_signals(self) -> None:
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
        self.supervisor.loop.deliver(numbers, self._on_signal)

    def until(self, done: Callable[[], bool], poll_s: float = LOOK_S) -> None:
        while not self.ending and not done():
            self.supervisor.turn(time.monotonic() + poll_s)
            self.mind()

    def why(self, child: Child) -> str:
        """How it ended, and its last words."""
        line = self.last_words.get(child.name, "")
        said = why_in(line) or line
        return how_it_ended(child.code or 0) + (f": {said}" if said else "")

    def judge(self, child: Child, hopeless: HopelessParts, *, served: bool) -> GiveUp | None:
        """What becomes of one that another start won't mend is done, unless it is an engine, and is to be given up."""
        steady = time.monotonic() - child.restarts.started_at >= STEADY_S
        verdict = hopeless.met(child.name, served=served, steady=steady)
        if isinstance(verdict, GiveUp):
            return verdict
        if isinstance(verdict, TryAgain):
            self.supervisor.again(child, verdict.pause_s)
            again = f"it is tried again in {verdict.pause_s:g} s, and {verdict.meanwhile}"
            self.say("up", f"ALARM: {child.name} can't be started ({self.why(child)}); {again}")
        else:
            self.because = child
        return None

    # -- the command's own -----------------------------------------------------------------------------------------

    def mind(self) -> None:
        """After each turn."""

    def signalled(self, number: signal.Signals) -> bool:
        """Whether this one means something else than the end, which is done then."""
        return False

    def cleaned(self) -> list[str]:
        """Everything has ended: removes what is left, and says what stays."""
        return []

    def none_left(self, child: Child) -> str:
        """What more the last line says of the one because of which everything ends."""
        return ""

    # -- the end ---------------------------------------------------------------------------------------------------

    def end(self) -> int:
        """Returns the exit code."""
        supervisor = self.supervisor
        supervisor.stop_restarting()
        if self.because is not None:
            child = self.because
            self.say("up", f"{self.none_left(child)}{child.name} can't be started ({self.why(child)})")
            self._code = child.code or 1
        else:
            self.say("up", f"{self.told[0].name}: the engine that serves drains; told again, everything ends at once")
        told = min(len(self.told), 1)  # two may have come at once
        supervisor.tell(self.above, signal.SIGTERM)
        self._await_end(self.above, NEVER, told)
        if any(child.pid for child in self.above):  # told again: a shim that is told twice ends its engine at once
            self._code = self._code or 128 + self.told[-1]
            told = len(self.told)
            supervisor.tell(self.above, signal.SIGTERM)
            self._await_end(self.above, REST_END_S, told)
            supervisor.tell(self.above, signal.SIGKILL)
        supervisor.tell(self.base, signal.SIGTERM)
        self._await_end(supervisor.children, REST_END_S, told)
        supervisor.tell(supervisor.living, signal.SIGKILL)
        while supervisor.living:
            supervisor.turn(NEVER)
        for what in self.cleaned():
            self.say("up", f"stays: {what}")
        self.say("up", "everything has ended")
        return self._code

    def _await_end(self, children: list[Child], most_s: float, told: int) -> None:
        """Until they have ended, or a further signal comes."""
        until = time.monotonic() + most_s
        while any(child.pid for child in children) and len(self.told) <= told and time.monotonic() < until:
            self.supervisor.turn(until)

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            self.supervisor.collect()
        elif not self.signalled(number) and not (number == signal.SIGHUP and self._outlives_its_terminal):
            self.told.append(number)

    def _relay(self, name: str, line: str) -> None:
        if not line.startswith("see: "):  # where help is says nothing of what is wrong
            self.last_words[name] = line
        if (name, line) not in self._said_why:
            self.say(name, line)

    def _on_ended(self, child: Child, how: str, pause_s: float) -> None:
        if not child.restarts.worked:
            self._said_why.add((child.name, self.last_words.get(child.name, "")))
        when = f" in {pause_s:g} s" if pause_s else ""
        self.say("up", f"{child.name} ended ({how}); it is started again{when}")


def why_in(line: str) -> str:
    """What a line of a log gives as the reason."""
    return str(_said_as_object(line).get("why", "")) or unquoted(line.partition(" why=")[2])


def event_in(line: str, program: str) -> str:
    """What a line of that program's log tells of; empty: it is none."""
    said = _said_as_object(line)
    words = [said.get(word) for word in ("program", "event")] if said else line.split(" ", 4)[2:4]
    return str(words[1]) if len(words) == 2 and words[0] == program else ""


def _said_as_object(line: str) -> dict[str, Any]:
    """A line of a log for a collector. Empty if it is none: an engine prints what it likes, and long lines are cut."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(line)
        if isinstance(found, dict):
            return found
    return {}
