"""The phases of a request, and which may follow which. Pure."""

import enum


class BrokenRule(Exception):
    """The machine itself is wrong."""


class Phase(enum.Enum):
    __hash__ = object.__hash__  # an Enum's own is made of Python, and asked for very often

    WAITING = "waiting"
    """No engine has it; it stands in the door's queue."""
    ASKED = "asked"
    """An engine has it; the client has nothing of an answer."""
    STREAMING = "streaming"
    """The answer is passed on as it comes."""
    CONTINUING = "continuing"
    """Another engine goes on from the client's last token."""
    REPEATING = "repeating"
    """Another engine says it all again, and what is new is passed on."""
    DOUBTFUL = "doubtful"
    """The answer broke, or the engine said that it failed; the lock is asked."""
    OVER = "over"


FOLLOWS: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.ASKED, Phase.CONTINUING, Phase.REPEATING, Phase.OVER}),
    Phase.ASKED: frozenset({Phase.STREAMING, Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.STREAMING: frozenset({Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.CONTINUING: frozenset({Phase.REPEATING, Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.REPEATING: frozenset({Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.DOUBTFUL: frozenset({Phase.WAITING, Phase.OVER}),
    Phase.OVER: frozenset(),
}
WITH_AN_ENGINE = frozenset({Phase.ASKED, Phase.STREAMING, Phase.CONTINUING, Phase.REPEATING, Phase.DOUBTFUL})
