"""What stands between a client's machine and the world, and is the same for every client.

The machine's events come from its connection, from its deadline, and from callers. Its effects are carried out in
order, and what they bring back goes in next. All of that happens in one thread (`client_loop.py`).

A caller asks: an `Ask` is posted to the thread, and the caller waits for its answer. An exception that ends the wait
(Ctrl-C, whatever a signal handler raises) gives the ask up. Another one may come before that is posted: so a thread's
next ask gives up its earlier one, too. (A signal handler that asks gets its answer, then, and the wait that it has
interrupted ends with an error.)

A client derives from `ClientShell` and names in `effects` what carries each effect out. What this file may not do: know
a message, or what is asked for. Used by `evidence/shell/session.py`, `gms/shell/region_shell.py`, `pool/client.py`.
"""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from sidecar.machine.client_loop import ClientLoop
from sidecar.machine.context import Heard, Tick
from sidecar.machine.turns import Machine
from sidecar.terminal.logs import complain
from sidecar.wire.client_connection import ClientConnection

LATE_S = 5.0
"""The thread answers at once what is given up, and a machine soon; a callback that hangs may keep it."""


class Ask:
    """What a caller waits for."""

    def __init__(self, about: Any, called_off: threading.Event | None = None) -> None:
        self.about = about
        self.called_off = called_off
        """What another thread hands to `call_off`."""
        self.thread = threading.get_ident()
        self.late = False
        """Its time is over, and its caller waits for the last word."""
        self.answer: Any = None


class TimeIsOver:
    """The answer to what can't be given up, or is given up without more ado."""


class _Superseded:
    """The answer to an ask whose thread has asked for something else since."""


class ClientShell:
    effects: ClassVar[Mapping[type, Callable[[Any, Any], object]]]
    """Effect -> the method that carries it out. What it returns, if anything, is the machine's next event."""

    def __init__(self, name: str, machine: Machine, error: type[Exception]) -> None:
        """`error` is raised where a caller can't wait."""
        self._name = name
        self._error = error
        self._rules = machine
        self._asked: dict[int, Ask] = {}
        """By thread: what it has asked for and not taken."""
        self.loop = ClientLoop(
            name,
            error,
            deadline=lambda: machine.deadline,
            due=lambda: self.feed(Tick()),
            unexpected=self.connect_anew,
            deaf=self.deaf,
            let_go=self._let_go,
        )
        self.connection = ClientConnection(
            self.loop,
            heard=lambda message: self.feed(Heard(message)),
            ended=lambda why: self.feed(self.disconnected(why)),
        )

    @property
    def closed(self) -> bool:
        return self.loop.closed

    # -- from any thread -------------------------------------------------------------------------------------------

    def tell(self, event: object) -> None:
        self.loop.post(partial(self.feed, event))

    def ask(self, ask: Ask, timeout_s: float | None) -> Any:
        """Waits for the answer. When the time is over, `on_late` sees to one."""

        def answered() -> bool:
            return ask.answer is not None

        self.loop.check_caller()
        try:
            self.loop.post(partial(self._begin, ask))
            if not self.loop.wait(answered, timeout_s):
                self.loop.post(partial(self._late, ask))
                if not self.loop.wait(answered, LATE_S):
                    raise self._error(f"{self._name}: a callback of the program hangs, and nothing is answered")
        except BaseException:
            self.loop.post(partial(self._give_up, ask))
            raise
        if isinstance(ask.answer, _Superseded):
            raise self._error("this thread waited, and a signal handler of it has asked for something else")
        self._asked.pop(ask.thread, None)
        return ask.answer

    def call_off(self, event: threading.Event) -> None:
        """Whatever is asked with this event, now or later, waits no longer: as if its time were over."""
        event.set()
        self.loop.post(self._end_called_off)

    def close(self) -> None:
        """Ends every wait, and lets go of what the client has. A forked child closes what it has itself, and takes
        nothing from its parent.
        """
        self.loop.close()

    # -- the client's: all of these are called in the thread -------------------------------------------------------

    def disconnected(self, why: str) -> object:
        """The machine's event for that; `why` if it was nonsense that came."""
        raise NotImplementedError

    def on_ask(self, ask: Ask) -> None:
        """A caller asks."""
        raise NotImplementedError

    def on_late(self, ask: Ask) -> None:
        """Its time is over: from here on it is answered soon."""
        raise NotImplementedError

    def on_given_up(self, ask: Ask) -> None:
        """Its caller waits no more, and has not taken the answer, if there is one."""

    def deaf(self) -> None:
        """Nothing can be heard any more: the program has closed the client's descriptors."""

    def let_go(self) -> None:
        """Closes what it has, but for the connection. In a forked child, too."""

    def connect_anew(self) -> None:
        """Something was left undone: what was said or heard on this connection may be half."""
        self.connection.hang_up()
        self.feed(self.disconnected(""))

    def feed(self, event: object) -> None:
        """One event, and everything that its effects bring back."""
        effects, guarded = self.effects, self.loop.guarded
        pending = deque([event])
        while pending:
            for effect in self._rules.handle(pending.popleft(), time.monotonic()):
                answer = guarded(effects[type(effect)], self, effect)
                if answer is not None:
                    pending.append(answer)

    def answer(self, ask: Ask, answer: object) -> None:
        ask.answer = answer
        self.loop.announce()

    def answer_all(self, answer: object, to: Callable[[Ask], bool]) -> None:
        for ask in self.unanswered():
            if to(ask):
                self.answer(ask, answer)

    def unanswered(self) -> list[Ask]:
        return [ask for ask in list(self._asked.values()) if ask.answer is None]

    def call(self, name: str, callback: Callable[[], object]) -> None:
        """A program's callback. What it raises is told, and ends nothing."""
        try:
            callback()
        except BaseException:
            complain(f"{self._name}: {name} raised; the client goes on:\n{traceback.format_exc()}")

    # -- asks ------------------------------------------------------------------------------------------------------

    def _begin(self, ask: Ask) -> None:
        before = self._asked.get(ask.thread)
        if before is not None:
            self._give_up(before)
            self.answer(before, _Superseded())
        self._asked[ask.thread] = ask
        self.on_ask(ask)
        self._end_called_off()

    def _end_called_off(self) -> None:
        for ask in list(self._asked.values()):
            if ask.called_off is not None and ask.called_off.is_set():
                self._late(ask)

    def _late(self, ask: Ask) -> None:
        if ask.answer is None and not ask.late:
            ask.late = True
            self.on_late(ask)

    def _give_up(self, ask: Ask) -> None:
        if self._asked.get(ask.thread) is ask:
            del self._asked[ask.thread]
            self.on_given_up(ask)

    # -- the connection's end --------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        self.connection.hang_up()
        self.let_go()
