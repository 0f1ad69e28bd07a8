"""`failover up`: lock server, GMS, both engines and the door (`pair_parts.py`) as one process tree, with one Ctrl-C.

Each is started again in place when it ends, as its container would be; `hopeless_parts.py` says what becomes of one
that another start won't mend. The engines and the door are started when lock server and GMS are ready. When this
process is told to end, these end first (the engine that serves drains), then the rest; told again, everything ends at
once, and the exit code says so (128 and the signal's number). The children die with this process however it ends: it is
one failure domain, and where that isn't good enough there is the pod.

One thread does all of this. Another sees who serves, and only says so (`serving_watch.py`).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from engine_shim.cli import part_environment
from engine_shim.cli.pair_look import UpFacts
from engine_shim.cli.pair_parts import UNPROVEN, Options, children, welcome
from engine_shim.cli.pair_process import UP_LOCK
from engine_shim.cli.serving_watch import REACHED, SERVES, ServingWatch, serves
from engine_shim.rules.hopeless_parts import GMS, LOCK, EndAll, HopelessParts, TryAgain
from engine_shim.shell import cleanup
from lockserver.observer import Observer, ObserverError
from sidecar.kernel.durable import AlreadyLocked, DirectoryLock
from sidecar.kernel.path_watch import make_private_directory
from sidecar.machine.loop import Inbox
from sidecar.machine.restarts import STEADY_S
from sidecar.machine.supervisor import NEVER, Child, Supervisor, how_it_ended

REST_END_S = 5.0
"""How long the lock server and GMS may take to end; they have nothing to finish."""
POLL_S = 0.02
LOOK_S = 1.0
"""How often it looks whether its own files are still there."""
ASK_S = 1.0


class CannotStart(Exception):
    """Something that a person can put right."""


class PairFiles:
    """What `failover up` has in the run directory: its lock, and what it says of the pair. A file that is removed under
    it is made again: `failover status` and `failover down` couldn't find it any more.
    """

    def __init__(self, run_dir: Path) -> None:
        """Raises CannotStart."""
        self._run_dir = run_dir
        try:
            make_private_directory(run_dir)
            if run_dir.stat().st_uid != os.getuid():
                raise CannotStart(f"{run_dir} belongs to another user; give a --run-dir of your own")
            self._lock = DirectoryLock(run_dir, UP_LOCK).acquire()
        except AlreadyLocked as error:
            raise CannotStart(
                f"failover up runs already in {run_dir} (process {error.pid}); failover status shows it, "
                "failover down ends it, another --run-dir is another pair"
            ) from None
        except OSError as error:
            what = "it is no directory" if isinstance(error, FileExistsError) else error.strerror
            raise CannotStart(f"{error.filename or run_dir} can't be used: {what}; give another --run-dir") from None

    def keep(self, facts: UpFacts) -> str:
        """They are there, and say this. Returns what a person should know of it."""
        if UpFacts.read(self._run_dir) != facts:
            facts.write(self._run_dir)
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
        UpFacts.remove(self._run_dir)
        self._lock.close()


class Up:
    def __init__(self, options: Options) -> None:
        """Raises CannotStart."""
        self.options = options
        self._served = False
        """An engine has, since this process began."""
        self._given_up: dict[str, str] = {}
        """Why, by engine."""
        self._files = PairFiles(options.run_dir)
        self._keep_files()
        named = children(options)
        self._width = max(len(child.name) for child in [*named, Child("up", ())])
        self._supervisor = Supervisor(named, ended=self._on_ended, relay=self._relay)
        self._base = [child for child in named if child.name in (LOCK, GMS)]
        self._shims = [child for child in named if child.name not in (LOCK, GMS)]
        for child in self._shims:
            child.start_at = NEVER
        self._told: list[signal.Signals] = []
        self._code = 0
        self._because: Child | None = None
        """Everything ends because of this one."""
        self._hopeless = HopelessParts(options.engine_ids)
        self._last_words: dict[str, str] = {}
        self._said_why: set[tuple[str, str]] = set()
        """With what a program ended whose start failed. The next try says it again, which a person needn't read."""
        at = urlsplit(options.address)
        door = (at.hostname or "", at.port or 0) if options.listen is not None else None
        self._watch = ServingWatch(options.run_dir, door, Inbox(self._supervisor.loop, self._on_news).give)

    def say(self, name: str, line: str) -> None:
        try:
            print(f"{name:<{self._width}} | {line}", flush=True)
        except (OSError, ValueError):
            return  # it is read no more; the engines serve on

    def _relay(self, name: str, line: str) -> None:
        self._last_words[name] = line
        if (name, line) not in self._said_why:
            self.say(name, line)

    def _on_ended(self, child: Child, how: str, pause_s: float) -> None:
        if not child.restarts.worked:
            self._said_why.add((child.name, self._last_words.get(child.name, "")))
        when = f" in {pause_s:g} s" if pause_s else ""
        self.say("up", f"{child.name} ended ({how}); it is started again{when}")

    def run(self) -> int:
        loop = self._supervisor.loop
        loop.deliver((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD), self._on_signal)
        self._watch.start()
        self.say("up", f"run directory {self.options.run_dir}; Ctrl-C ends everything")
        for line in part_environment.unused(self.options.environment):
            self.say("up", line)
        if not self.options.devices:
            self.say("up", UNPROVEN)
        self._until(self._base_ready, poll_s=POLL_S)
        for child in self._shims:
            child.start_at = 0.0
        self._until(lambda: False)
        return self._end()

    def _until(self, done: Callable[[], bool], poll_s: float = LOOK_S) -> None:
        while not self._told and self._because is None and not done():
            self._supervisor.turn(time.monotonic() + poll_s)
            self._mind_the_hopeless()
            self._keep_files()

    def _keep_files(self) -> None:
        options = self.options
        door = options.address if options.listen is not None else ""
        if said := self._files.keep(UpFacts(door, options.devices, not self._served, self._given_up)):
            self.say("up", said)

    def _base_ready(self) -> bool:
        """Whether their sockets exist. Sockets of an earlier run may be found too early; the engines wait, too."""
        run_dir = self.options.run_dir
        if not (run_dir / "lock.sock").exists():
            return False
        gms = run_dir / "gms"
        named = [device for device in self.options.devices if device.startswith("host:")]
        if not named and self.options.devices:
            return any(gms.glob("*.sock"))
        return all((gms / f"{device}.sock").exists() for device in named)

    # -- what another start won't mend -----------------------------------------------------------------------------

    def _mind_the_hopeless(self) -> None:
        for child in self._supervisor.children:
            if not child.hopeless or child.name in self._hopeless.given_up:
                continue
            steady = time.monotonic() - child.restarts.started_at >= STEADY_S
            verdict = self._hopeless.met(child.name, served=self._look_whether_served(), steady=steady)
            if isinstance(verdict, EndAll):
                self._because = child
                return
            if isinstance(verdict, TryAgain):
                self._supervisor.again(child, verdict.pause_s)
                again = f"it is tried again in {verdict.pause_s:g} s, and {verdict.meanwhile}"
                self.say("up", f"ALARM: {child.name} can't be started ({self._why(child)}); {again}")
                continue
            way_out = f"once that is put right, kill -USR1 {os.getpid()} has it started again, and nothing else ends"
            why = f"given up by failover up ({self._why(child)}); {way_out}"
            self._given_up[child.name] = why
            self._keep_files()
            alone = ", ".join(verdict.left)
            self.say("up", f"ALARM: {child.name} is {why}. Until then {alone} is alone: no engine can take over")

    def _try_again(self) -> None:
        """A person says that what was wrong is put right."""
        self._given_up.clear()
        again = self._hopeless.put_right()
        for child in self._supervisor.children:
            if child.name in again:
                self.say("up", f"SIGUSR1: {child.name} is started again")
                self._supervisor.again(child, 0.0)

    def _why(self, child: Child) -> str:
        """How it ended, and its last words."""
        line = self._last_words.get(child.name, "")
        said = line.partition(" why=")[2].strip("\"'") or line
        return how_it_ended(child.code or 0) + (f": {said}" if said else "")

    def _look_whether_served(self) -> bool:
        """The news of it may not have come yet."""
        if not self._served:
            with contextlib.suppress(ObserverError), Observer(self.options.run_dir, ASK_S) as observer:
                self._served = serves(next(observer.watch()))
        return self._served

    # -- the end ---------------------------------------------------------------------------------------------------

    def _end(self) -> int:
        supervisor = self._supervisor
        supervisor.stop_restarting()
        if self._because is not None:
            child = self._because
            none_left = "no engine is left: " if child.name in self._hopeless.given_up else ""
            self.say("up", f"{none_left}{child.name} can't be started ({self._why(child)})")
            self._code = child.code or 1
        else:
            self.say("up", f"{self._told[0].name}: the engine that serves drains; told again, everything ends at once")
        told = min(len(self._told), 1)  # two may have come at once
        supervisor.tell(self._shims, signal.SIGTERM)
        self._await_end(self._shims, NEVER, told)
        if any(child.pid for child in self._shims):  # told again: a shim that is told twice ends its engine at once
            self._code = self._code or 128 + self._told[-1]
            told = len(self._told)
            supervisor.tell(self._shims, signal.SIGTERM)
            self._await_end(self._shims, REST_END_S, told)
            supervisor.tell(self._shims, signal.SIGKILL)
        supervisor.tell(self._base, signal.SIGTERM)
        self._await_end(supervisor.children, REST_END_S, told)
        supervisor.tell(supervisor.living, signal.SIGKILL)
        while supervisor.living:
            supervisor.turn(NEVER)
        for what in cleanup.remove(self.options.run_dir, self.options.devices):
            self.say("up", f"stays: {what}")
        self.say("up", "everything has ended")
        self._files.close()
        return self._code

    def _await_end(self, children: list[Child], most_s: float, told: int) -> None:
        """Until they have ended, or a further signal comes."""
        until = time.monotonic() + most_s
        while any(child.pid for child in children) and len(self._told) <= told and time.monotonic() < until:
            self._supervisor.turn(until)

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            self._supervisor.collect()
        elif number == signal.SIGUSR1:
            self._try_again()
        else:
            self._told.append(number)

    def _on_news(self, news: tuple[str, str]) -> None:
        kind, line = news
        self._served = self._served or kind == SERVES
        for said in welcome(self.options.address) if kind == REACHED else [line]:
            self.say("up", said)
