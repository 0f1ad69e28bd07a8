"""Which version of a protocol two programs speak with each other, and what is said where there is none.

Programs are upgraded one after the other. A hello says the oldest (`protocol`) and the newest (`newest`) version that
its sender speaks; a sender that names no `newest` speaks only the one. Both sides go by the newest that both speak,
and the server's welcome says which that is. Within a version fields may be added, and whatever reads a message ignores
those that it doesn't know; `tests/golden` has the frames of each version. Pure.
"""

from typing import NamedTuple, Protocol


class Hello(Protocol):
    @property
    def protocol(self) -> int: ...
    @property
    def newest(self) -> int: ...


class Spoken(NamedTuple):
    """What this program speaks."""

    oldest: int
    newest: int

    def agreed(self, hello: Hello) -> int:
        """The newest version that both sides speak; 0 if there is none."""
        newest = min(max(hello.protocol, hello.newest), self.newest)
        return newest if newest >= max(hello.protocol, self.oldest) else 0

    def why_none(self, hello: Hello) -> str:
        theirs, ours = _in_words(hello.protocol, hello.newest), _in_words(self.oldest, self.newest)
        older = "its program" if max(hello.protocol, hello.newest) < self.oldest else "this server"
        return f"the caller speaks {theirs} of the protocol, and this server {ours}; {older} has to be upgraded"


def _in_words(oldest: int, newest: int) -> str:
    return f"versions {oldest} to {newest}" if newest > oldest else f"version {oldest}"
