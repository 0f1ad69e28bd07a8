"""An engine's own check, in a thread of its own: it may take its time, or hang, and the client goes on hearing.

A question that comes while a check is under way is answered by a further one: what was found before the question was
asked may be older than what the server wants to know. Of several only the newest is answered.
"""

import contextlib
import threading
from collections.abc import Callable


class Checking:
    def __init__(self, check: Callable[[], bool], checked: Callable[[int, bool, str], None]) -> None:
        """`checked` is told, in that thread: which question, whether the engine is well, what was raised."""
        self._check = check
        self._checked = checked
        self._round = 0
        self._asked = threading.Lock()
        """Free once a question is asked: an Event takes longer, and this is within a grant."""
        self._asked.acquire()
        self._thread = threading.Thread(target=self._run, name="lock-check", daemon=True)

    def start(self) -> None:
        """Before the first question, which is asked when an engine has died."""
        if self._thread.ident is None:
            self._thread.start()

    def ask(self, round: int) -> None:
        self._round = round
        with contextlib.suppress(RuntimeError):  # it has not come to the last one yet
            self._asked.release()

    def end(self) -> None:
        """A check that hangs ends with the process."""
        self.ask(-1)

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            round = self._round
            if round < 0:
                return
            try:
                well, why = bool(self._check()), ""
            except BaseException as error:  # whatever it is: an engine whose check fails isn't well
                well, why = False, said(error)
            self._checked(round, well, why)


def said(error: BaseException) -> str:
    """As the wire takes it: the name of a file, say, needn't be text."""
    return f"{type(error).__name__}: {error}"[:500].encode(errors="backslashreplace").decode()
