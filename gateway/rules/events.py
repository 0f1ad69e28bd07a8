"""What happens to the door (events), and what it wants done (effects).

Requests are known by a number, the door's own and never used again. A request may speak with its engine on several
*legs* at a time: one for its answer as a rule, and one for each choice that is continued. Pure.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.rules.kinds import Kind
from sidecar.machine.context import Note as Note
from sidecar.machine.context import Tick as Tick

Headers = Sequence[tuple[bytes, bytes]]


class Outcome(enum.Enum):
    """How a request ended, for metrics and the access log."""

    ANSWERED = "answered"
    """The client has a whole answer; it may be an engine's refusal."""
    ENDED = "ended"
    """It has an error that says that the answer is not whole, or that there is none."""
    REFUSED = "refused"
    """No engine was asked, and the client was told so."""
    LEFT = "left"
    """The client went before the end."""


# -- events --------------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, gc=False):
    pass


class Arrived(Event, frozen=True):
    """A client wants something."""

    request: int
    kind: Kind


class Left(Event, frozen=True):
    """The client has gone."""

    request: int


class Head(msgspec.Struct, frozen=True, gc=False):
    """An engine's answer begins."""

    status: int
    headers: Headers
    length: int | None
    """The body's, if it was said."""


class Heard(Event, frozen=True):
    """An engine has said some of its answer, and often all of it at once."""

    request: int
    leg: int
    head: Head | None = None
    """Here the answer begins."""
    data: bytes = b""
    ended: bool = False
    """The answer is whole, as far as HTTP can tell."""


class Broke(Event, frozen=True):
    """No more comes on this leg, and what came isn't whole."""

    request: int
    leg: int
    why: str
    malformed: bool = False
    """It was no HTTP: nothing of it can be believed."""


class NotSent(Event, frozen=True):
    """No engine listens where this one was said to be: it never saw the request."""

    request: int
    leg: int
    why: str


class Connected(Event, frozen=True):
    """The engine listens where it was said to be: a connection was made, or one that was kept is used again."""

    token: int
    request: int
    """It is sent there now; 0: the connection wasn't wanted any more."""


class Unreachable(Event, frozen=True):
    """The engine doesn't listen where it was said to be: this was looked at."""

    token: int


class Models(Event, frozen=True):
    """What an engine says of its models."""

    token: int
    names: tuple[str, ...]
    max_len: int | None
    """Prompt and answer together."""


class Plan(msgspec.Struct, frozen=True):
    """A switchover that is under way."""

    old_token: int
    drain_timeout_s: float
    exiting: bool = False


class LockSeen(Event, frozen=True):
    """What the lock says."""

    state: str
    newest: int
    """The newest token that it has ever given."""
    token: int = 0
    """The holder's; 0 when there is none."""
    engine_id: str = ""
    url: str = ""
    """Where it serves; nothing while it doesn't."""
    kept_tokens: int = 0
    """It goes on with the whole KV cache of the engine before it, which had room for so many tokens."""
    kept_block: int = 0
    """How many make up a block. A context's last one, which isn't full, has to be computed again."""
    plan: Plan | None = None
    ready: tuple[str, ...] = ()
    """Engines that could take over."""
    others: bool = True
    """Some engine waits for the lock, or starts."""


class LockAway(Event, frozen=True):
    """No lock server answers. The holder serves on."""


class Stop(Event, frozen=True):
    """The door is to end: new requests are refused, and those that are here may finish within this time."""

    within_s: float


# -- effects -------------------------------------------------------------------------------------------------------


class Ask(Event, frozen=True):
    """Sends a request to the engine of this token."""

    request: int
    leg: int
    token: int
    url: str
    method: str
    target: bytes
    headers: Headers
    body: bytes
    again: bool
    """It may be sent once more on another connection, if this one turns out to have been closed before."""


class Look(Event, frozen=True):
    """Does the engine listen? Connects to this token's, and asks nothing. `Connected` or `Unreachable` comes."""

    token: int
    url: str


class Drop(Event, frozen=True):
    """This leg's answer isn't wanted any more."""

    request: int
    leg: int
    ending: bool
    """All of it is here but its end; the connection can be used again after that."""


class Whole(Event, frozen=True):
    """A whole answer for the client."""

    request: int
    status: int
    headers: Headers
    body: bytes


class Open(Event, frozen=True):
    """The client's answer begins; its length isn't known."""

    request: int
    status: int
    headers: Headers


class Send(Event, frozen=True):
    request: int
    data: bytes


class End(Event, frozen=True):
    """The client's answer is complete."""

    request: int


class Cut(Event, frozen=True):
    """The client's answer breaks off here, and must not look complete."""

    request: int


class Over(Event, frozen=True):
    """The request needs nothing any more."""

    request: int
    outcome: Outcome
    how: str
    """`passed`, `continued`, `compared`, `restarted`: what the engines' deaths made of it."""
    tokens: int
    why: str = ""
    proved: bool = False
    """An engine has just given some of the answer: what `Proved` says otherwise."""


class Gap(msgspec.Struct, frozen=True):
    """How long a client got nothing because its engine was lost, and where that time went. The parts come one after the
    other and add up.
    """

    total_s: float
    """From the last that it got (or from its coming, if it had nothing) to the first of another engine."""
    noticed_s: float
    """Until the door knew of the loss."""
    engine_s: float
    """Until another engine served."""
    turn_s: float
    """Until it was this request's turn."""
    reading_s: float
    """Until that engine gave a token: it has to read prompt and answer again."""
    repeating_s: float
    """Until it gave something that the client didn't have, and its text was known."""


class Resumed(Event, frozen=True):
    """A client whose engine was lost gets something of another one."""

    request: int
    gap: Gap


class Forget(Event, frozen=True):
    """Nothing of the engine with this token is wanted any more."""

    token: int


@dataclass(frozen=True)
class Bounds:
    """The door's settings, as far as the machines need them."""

    failover_timeout_s: float = 60.0
    """For so long a request whose engine was lost waits for another."""
    hold_s: float = 1.0
    """For so long a failure is held back, until the lock has said whether that engine still holds. And longer while
    no engine listens where it was: it is dead, and the lock hasn't heard of it."""
    queue: int = 1000
    queue_timeout_s: float = 60.0
    reread_tokens: int = 8192
    """How many tokens of interrupted answers the new engine computes again at a time; one answer may have more."""
    drain_timeout_s: float | None = None
    """At most so long requests that are with an engine may finish in a switchover; None: as the switchover says."""
    stall_s: float = 10.0
    comment_s: float = 5.0
    silence_s: float = 600.0
    """A stream whose engine has said nothing for so long ends with an error: comments keep its client's own time-out
    from ever passing, and no shim may judge that engine."""
    acquit_s: float = 10.0
    """A request that shows no tokens and has been with an engine for so long isn't blamed for its death."""
    strikes: int = 2
    strikes_s: float = 600.0
    """For so long the door remembers which bodies engines died of; and so many bodies."""
    strikes_most: int = 1000
    event_bytes: int = 32 << 20
    """One event of a stream may have so many."""
    answer_bytes: int = 64 << 20
    """An answer without streaming is kept until it is whole, up to so many bytes; then it is passed on as it comes."""


# -- between the two machines --------------------------------------------------------------------------------------


class Wait(Event, frozen=True):
    """From a request: it wants an engine. `again`: one that had it was lost. `tokens`: so many it has to read."""

    request: int
    again: bool
    tokens: int
    fingerprint: int = 0
    """Requests that ask the same have the same one. 0: this one asks nothing that could be told from others."""
    preflight: bool = False
    """It may be one, and needs no key then: it takes no place of others."""


class Doubt(Event, frozen=True):
    """From a request: its engine failed. Does it still hold the lock?"""

    request: int


class Proved(Event, frozen=True):
    """From a request: its engine has given some of its answer."""

    request: int


class Free(Event, frozen=True):
    """From a request: it needs no engine any more."""

    request: int


class Admit(Event, frozen=True):
    """From admission: this engine is to have it."""

    request: int
    token: int
    url: str
    since: float
    """When it began to take requests."""


class Refuse(Event, frozen=True):
    """From admission: no engine can have it."""

    request: int
    status: int
    why: str
    retry_after_s: int = 0
    for_good: bool = False
    """The same request will be refused again."""


class TakeAway(Event, frozen=True):
    """From admission: the engine that has it is to have it no more."""

    request: int


class Verdict(Event, frozen=True):
    """From admission: what the lock says of the engine that failed."""

    request: int
    lost: bool
    """Another engine is to have it."""


Effect = Event | Note
