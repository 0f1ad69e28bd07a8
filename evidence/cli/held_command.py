"""A command under what a server grants, and the main process of it: `lockctl hold`, `vramctl hold`.

Three processes: this one registers and asks, its child is the guard, and the command is the guard's
(`sidecar/machine/guarded.py`). The life lock of this start belongs to all three: so what was granted is another's only
when nothing is left, or nothing that could be killed.

All of it is there before anything is asked for: the command waits for its go, as a member of this start, and with the
grant it has only to be executed.

What this file may not do: give back what was granted in any other way than by ending, or start the command before the
grant. What is asked for, and of which server, is a derived class's business; the command line is `held_options.py`'s.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, NoReturn

from evidence.cli import held_options
from evidence.shell.lifefiles import LIFE
from sidecar.kernel import peers
from sidecar.kernel.guard import Command
from sidecar.machine.guarded import BELL, PASSED_ON, CantRun, GuardedCommand, find, let_signals_end_it
from sidecar.terminal import logs
from sidecar.terminal.exit_codes import EX_CANT_RUN, EX_LOST
from sidecar.wire.observer import ObserverError

REFUSED, NOT_IN_TIME = 69, 75


def hold(
    prog: str,
    options: argparse.Namespace,
    check: Callable[[dict[str, int]], object],
    held: Callable[[argparse.Namespace, str, dict[str, int]], "HeldCommand"],
) -> int:
    """What can be known to be wrong is said before anything is asked for: `check` raises ValueError."""
    needs = held_options.needs(options)
    try:
        check(needs)
    except ValueError as error:
        options.parser.error(str(error))
    try:
        program = find(options.words[0])
    except CantRun as error:
        print(f"{prog} hold: {error}", file=sys.stderr)
        return error.code
    return held(options, program, needs).run()


class Granted(NamedTuple):
    number: int
    """What the command finds in its environment."""
    how: str = ""
    beside: str = ""
    """Both belong to the sentence that says so."""


class HeldCommand:
    prog: ClassVar[str]
    what: ClassVar[str]
    """That is held, in sentences."""
    lost: ClassVar[str]
    """What is said when it is not held any more."""
    variable: ClassVar[str]

    def __init__(self, options: argparse.Namespace, program: str, needs: dict[str, int]) -> None:
        self.options = options
        self.needs = needs
        self.command = GuardedCommand(self.complain)
        self._program = program
        self.session: Any = self.client()
        self._why = ""
        """What it waits for, as last said."""
        self._decision = threading.Lock()
        """Between having what was granted and giving it up."""
        self._granted = False
        self._lost = False

    # -- the derived class's ---------------------------------------------------------------------------------------

    def client(self) -> Any:
        """It calls `on_lost` and, where the command has to end, `tell_to_end`."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """The command's, beside this process's own."""
        environment: dict[str, str] = self.session.environment()
        return environment

    def ask(self, timeout_s: float | None) -> Granted:
        """Blocks until it is granted."""
        raise NotImplementedError

    def waiting(self) -> Iterator[tuple[str, bool]]:
        """What it waits for, in words, until it is granted; and whether there is a server at all."""
        raise NotImplementedError

    def meet_server(self, timeout_s: float | None) -> None:
        """There is a server, and no command yet: what is still to be known of it. Raises what `ask` does."""

    def started(self) -> None:
        """The command runs."""

    # -- until it is granted ---------------------------------------------------------------------------------------

    def run(self) -> int:
        let_signals_end_it()
        # Threads inherit the mask: so signals come to this thread alone.
        minded = (*PASSED_ON, BELL)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, minded)
        self.session.begin()
        threading.Thread(target=self._watch, name="hold-watch", daemon=True).start()
        began = time.monotonic()
        try:
            # Signals may end this process wherever it may wait for long, and nothing has begun.
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self.session.await_welcome(self._left(began))
            self.meet_server(self._left(began))
            signal.pthread_sigmask(signal.SIG_BLOCK, minded)
            self._fork(before)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self.session.vouch_for(self.command.pid, self._left(began))
            granted = self.ask(self._left(began))
            with self._decision:
                self._granted = True
            self._say(f"granted, {granted.how}, after {time.monotonic() - began:.1f} s{granted.beside}")
            signal.pthread_sigmask(signal.SIG_BLOCK, minded)
            self.command.go(granted.number)
            self.started()
        except CantRun as error:
            self.complain(str(error))
            return error.code
        except self.session.errors.not_in_time:
            self.complain(f"not acquired within {self.options.timeout_s:g} s" + (f": {self._why}" if self._why else ""))
            return NOT_IN_TIME
        except self.session.errors.refused as error:
            self.complain(f"refused: {error}")
            return REFUSED
        code = self.command.wait()
        while self._lost:
            signal.pause()  # the thread that has killed the command says why, and ends this process
        return code

    def _left(self, began: float) -> float | None:
        timeout_s = self.options.timeout_s
        return None if timeout_s is None else max(0.0, began + timeout_s - time.monotonic())

    def _watch(self) -> None:
        """In a thread of its own: says what it waits for, until it doesn't any more."""
        try:
            for why, served in self.waiting():
                with self._decision:
                    if self._granted:
                        return
                    if why and self.options.no_wait:
                        self._give_up(NOT_IN_TIME if served else REFUSED, why)
                    if why and why != self._why:
                        self._why = why
                        self._say(f"waiting: {why}")
        except ObserverError as error:
            with self._decision:
                if not self._granted:
                    self._give_up(REFUSED, str(error))

    def _give_up(self, code: int, why: str) -> NoReturn:
        """The client's connection ends with the process, and its place in the queue with that."""
        self.complain(why)
        os._exit(code)

    # -- the command -----------------------------------------------------------------------------------------------

    def _fork(self, mask: Iterable[int]) -> None:
        """The guard, and by it the command, which waits for its go."""
        session = self.session
        command = Command(
            self._program,
            self.options.words,
            self.environment(),
            self.variable,
            mask,
            f"{self.prog}-guard",
            session.run_dir / LIFE / session.name,
        )
        self.command.fork(command, session.life_descriptors())
        threading.Thread(target=self._mind_the_command, name="hold-mind", daemon=True).start()

    def _mind_the_command(self) -> None:
        """In a thread of its own, while it waits: if the command is killed, there is nothing to wait for."""
        peers.await_end(self.command.pidfd)
        with self._decision:
            if not self._granted:
                self._give_up(EX_CANT_RUN, f"the command was killed while it waited for {self.what}")

    # -- from the client's threads ---------------------------------------------------------------------------------

    def tell_to_end(self, why: str) -> None:
        grace_s: float = self.options.grace_s
        self._say(f"{why}: the command is told to end, and killed after {grace_s:g} s")
        self.command.end(grace_s)

    def on_lost(self, why: str) -> NoReturn:
        self._lost = True
        if self.command.pidfd >= 0:
            self.command.send(signal.SIGKILL)
        self.complain(f"{self.lost}: {why}" + ("; the command is killed" if self.command.pid else ""))
        os._exit(EX_LOST)

    def _say(self, text: str) -> None:
        if not self.options.quiet:
            self.complain(text)

    def complain(self, text: str) -> None:
        logs.complain(f"{self.prog} hold: {text}")  # an unread or closed stderr mustn't cost the command its life
