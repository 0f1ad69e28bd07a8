"""`failover up`: lock server, GMS, both engines and the door (`pair_parts.py`) as one process tree, with one Ctrl-C
(`tree.py`).

`hopeless_parts.py` says what becomes of a program that another start won't mend. The engines and the door are started
when lock server and GMS are ready. It is one failure domain, and where that isn't good enough there is the pod.

One thread does all of this. Another sees which engine serves, and only says so (`serving_watch.py`).
"""

import contextlib
import os
import signal
from urllib.parse import urlsplit

from engine_shim.cli import part_environment
from engine_shim.cli.pair_look import UpFacts
from engine_shim.cli.pair_parts import UNPROVEN, Options, children, gms_listens, welcome
from engine_shim.cli.serving_watch import REACHED, SERVES, ServingWatch, serves
from engine_shim.cli.tree import Tree, TreeLock
from engine_shim.rules.hopeless_parts import GMS, LOCK, HopelessParts
from engine_shim.shell import cleanup
from lockserver.observer import Observer, ObserverError
from sidecar.machine.loop import Inbox
from sidecar.machine.supervisor import NEVER, Child

POLL_S = 0.02
ASK_S = 1.0


class Up(Tree):
    def __init__(self, options: Options) -> None:
        """Raises CannotStart."""
        self.options = options
        self._served = False
        """An engine has, since this process began."""
        self._given_up: dict[str, str] = {}
        """Why, by engine."""
        self._lock = TreeLock(options.run_dir)
        super().__init__(children(options), (LOCK, GMS))
        self._keep_files()
        for child in self.above:
            child.start_at = NEVER
        self._hopeless = HopelessParts(options.engine_ids)
        at = urlsplit(options.address)
        door = (at.hostname or "", at.port or 0) if options.listen is not None else None
        self._watch = ServingWatch(options.run_dir, door, Inbox(self.supervisor.loop, self._on_news).give)

    def run(self) -> int:
        self.listen_to_signals()
        self._watch.start()
        self.say("up", f"run directory {self.options.run_dir}; Ctrl-C ends everything")
        for line in part_environment.unused(self.options.environment):
            self.say("up", line)
        if not self.options.devices:
            self.say("up", UNPROVEN)
        self.until(self._base_ready, poll_s=POLL_S)
        for child in self.above:
            child.start_at = 0.0
        self.until(lambda: False)
        return self.end()

    def mind(self) -> None:
        self._mind_the_hopeless()
        self._keep_files()

    def _keep_files(self) -> None:
        options = self.options
        door = options.address if options.listen is not None else ""
        facts = UpFacts(door, options.devices, not self._served, self._given_up, ending=self.ending)
        facts.write(options.run_dir)
        if said := self._lock.keep():
            self.say("up", said)

    def _base_ready(self) -> bool:
        """Whether their sockets exist. Sockets of an earlier run may be found too early; the engines wait, too."""
        run_dir, devices = self.options.run_dir, self.options.devices
        return (run_dir / "lock.sock").exists() and (not devices or gms_listens(run_dir, devices))

    # -- what another start won't mend -----------------------------------------------------------------------------

    def _mind_the_hopeless(self) -> None:
        for child in self.supervisor.children:
            if not child.hopeless or child.name in self._hopeless.given_up:
                continue
            given_up = self.judge(child, self._hopeless, served=self._look_whether_served())
            if self.because is not None:
                return
            if given_up is None:
                continue
            way_out = f"once that is put right, kill -USR1 {os.getpid()} has it started again, and nothing else ends"
            why = f"given up by failover up ({self.why(child)}); {way_out}"
            self._given_up[child.name] = why
            self._keep_files()
            alone = ", ".join(given_up.left)
            self.say("up", f"ALARM: {child.name} is {why}. Until then {alone} is alone: no engine can take over")

    def _try_again(self) -> None:
        """A person says that what was wrong is put right."""
        self._given_up.clear()
        again = self._hopeless.put_right()
        for child in self.supervisor.children:
            if child.name in again:
                self.say("up", f"SIGUSR1: {child.name} is started again")
                self.supervisor.again(child, 0.0)

    def _look_whether_served(self) -> bool:
        """The news of it may not have come yet."""
        if not self._served:
            with contextlib.suppress(ObserverError), Observer(self.options.run_dir, ASK_S) as observer:
                self._served = serves(next(observer.watch()))
        return self._served

    # -- the end ---------------------------------------------------------------------------------------------------

    def signalled(self, number: signal.Signals) -> bool:
        if number == signal.SIGUSR1:
            self._try_again()
        return number == signal.SIGUSR1

    def none_left(self, child: Child) -> str:
        return "no engine is left: " if child.name in self._hopeless.given_up else ""

    def cleaned(self) -> list[str]:
        stays = cleanup.remove(self.options.run_dir, self.options.devices)
        UpFacts.remove(self.options.run_dir)
        self._lock.close()
        return stays

    def _on_news(self, news: tuple[str, str]) -> None:
        kind, line = news
        self._served = self._served or kind == SERVES
        for said in welcome(self.options.address) if kind == REACHED else [line]:
            self.say("up", said)
