"""What happens to the door (events), and what it wants done (effects).

Requests are known by a number, the door's own and never used again. A request may speak with its engine on several
*legs* at a time: one for its answer as a rule, and one for each choice that is continued. Pure.
"""

import enum
import math
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
    HANDED_ON = "handed_on"
    """Its client has nothing of an answer, and another model of its ladder is to answer it."""


# -- events --------------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, gc=False):
    pass


class OfRequest(Event, frozen=True):
    """What happens to one request, or is wanted for it."""

    request: int


class Arrived(OfRequest, frozen=True):
    """A client wants something."""

    kind: Kind
    greeted: bool = False
    """It has the head of a stream already, and comments: another model was to answer it."""


class Left(OfRequest, frozen=True):
    """The client has gone."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """An engine's answer begins."""

    status: int
    headers: Headers
    length: int | None
    """The body's, if it was said."""


class Heard(OfRequest, frozen=True):
    """An engine has said some of its answer, and often all of it at once."""

    leg: int
    head: Head | None = None
    """Here the answer begins."""
    data: bytes = b""
    ended: bool = False
    """The answer is whole, as far as HTTP can tell."""


class Broke(OfRequest, frozen=True):
    """No more comes on this leg, and what came isn't whole."""

    leg: int
    why: str
    malformed: bool = False
    """It was no HTTP: nothing of it can be believed."""


class NotSent(OfRequest, frozen=True):
    """No engine listens where this one was said to be: it never saw the request."""

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


class Switchover(msgspec.Struct, frozen=True):
    """One that is under way."""

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
    switchover: Switchover | None = None
    ready: tuple[str, ...] = ()
    """Engines that could take over."""
    others: bool = True
    """Some engine waits for the lock, or starts."""
    resting: bool = False
    """The lock is at rest: its engine has given the memory back, and no engine is granted until it is waked."""


class Outlook(Event, frozen=True):
    """What the pool says of this door's model."""

    says: str
    """What a request that waits for it waits for: for its client, in a comment."""
    failed: str = ""
    """Why it can't be awake for now: no new request waits for it."""
    retry_after_s: int = 1
    """For those that are refused for that."""
    gone: bool = False
    """For good: nothing that was interrupted does either."""
    loaded: str = ""
    """By what its weights are told from others'; empty: as they were."""


class LockAway(Event, frozen=True):
    """No lock server answers. The holder serves on."""


class LeaseSeen(Event, frozen=True):
    """What the lease of this door's host means for requests (`lease.py`). Without one: what it is by default."""

    open: bool = True
    """Those without a token are admitted."""
    until: float = math.inf
    """So long the door's own lease covers what is with an engine; in the past: nothing does."""
    token: int = 0
    """Those that carry it are admitted: another has the host alone."""
    newest: int = 0
    """The newest that is known to have been given."""
    why: str = ""
    """Why the others aren't."""
    retry_after_s: int = 1
    refuse: bool = False
    """They are refused at once, and don't wait."""
    pause_at: float = math.inf
    """Those that are with an engine are taken away then, and go on when the door is open again."""
    looked_at: float = -math.inf
    """All of this was looked at then, or later."""


class Stop(Event, frozen=True):
    """The door is to end: new requests are refused, and those that are here may finish within this time."""

    within_s: float


# -- effects -------------------------------------------------------------------------------------------------------


class Ask(OfRequest, frozen=True):
    """Sends a request to the engine of this token."""

    leg: int
    token: int
    url: str
    method: str
    target: bytes
    headers: Headers
    body: bytes
    again: bool
    """It may be sent once more on another connection, if this one turns out to have been closed before."""


class LookAtLease(Event, frozen=True):
    """A request carries a token that isn't known yet."""


class Look(Event, frozen=True):
    """Does the engine listen? Connects to this token's, and asks nothing. `Connected` or `Unreachable` comes."""

    token: int
    url: str


class Drop(OfRequest, frozen=True):
    """This leg's answer isn't wanted any more."""

    leg: int
    ending: bool
    """All of it is here but its end; the connection can be used again after that."""


class Whole(OfRequest, frozen=True):
    """A whole answer for the client."""

    status: int
    headers: Headers
    body: bytes


class Open(OfRequest, frozen=True):
    """The client's answer begins; its length isn't known."""

    status: int
    headers: Headers


class Send(OfRequest, frozen=True):
    data: bytes


class End(OfRequest, frozen=True):
    """The client's answer is complete."""


class Cut(OfRequest, frozen=True):
    """The client's answer breaks off here, and must not look complete."""


class HandOn(OfRequest, frozen=True):
    """The next model of its ladder is to answer it; `Over` follows. `greeted` as with `Arrived`."""

    greeted: bool


class Over(OfRequest, frozen=True):
    """The request needs nothing any more."""

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


class Resumed(OfRequest, frozen=True):
    """A client whose engine was lost gets something of another one."""

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
    turn_s: float | None = None
    """Where a pool says whose turn it is: for so long an interrupted request waits for its model's."""
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
    """For how long the door remembers which bodies engines died of."""
    strikes_most: int = 1000
    """And how many bodies."""
    event_bytes: int = 32 << 20
    """One event of a stream may have so many."""
    answer_bytes: int = 64 << 20
    """An answer without streaming is kept until it is whole, up to so many bytes; then it is passed on as it comes."""


# -- between the two machines --------------------------------------------------------------------------------------


class Wait(OfRequest, frozen=True):
    """From a request: it wants an engine. `again`: one that had it was lost. `tokens`: so many it has to read."""

    again: bool
    tokens: int
    fingerprint: int = 0
    """Requests that ask the same have the same one. 0: this one asks nothing that could be told from others."""
    preflight: bool = False
    """It may be one, and needs no key then: it takes no place of others."""
    priority: int = 0
    """The lowest is the most urgent."""
    until: float = math.inf
    """If no engine has it by then its client doesn't want it any more."""
    lease: int = 0
    """The token that it carries."""


class Doubt(OfRequest, frozen=True):
    """From a request: its engine failed. Does it still hold the lock?"""


class Proved(OfRequest, frozen=True):
    """From a request: its engine has given some of its answer."""


class DoneWithEngine(OfRequest, frozen=True):
    """From a request: it needs no engine any more."""


class Admit(OfRequest, frozen=True):
    """From admission: this engine is to have it."""

    token: int
    url: str
    since: float
    """When it began to take requests."""


class Refuse(OfRequest, frozen=True):
    """From admission: no engine can have it."""

    status: int
    why: str
    retry_after_s: int = 0
    for_good: bool = False
    """The same request will be refused again."""


class TakeAway(OfRequest, frozen=True):
    """From admission: the engine that has it is to have it no more."""

    leased: bool = False
    """The host is leased to another; the engine is well."""
    died: bool = False
    """The engine has."""


class Verdict(OfRequest, frozen=True):
    """From admission: what the lock says of the engine that failed."""

    lost: bool
    """Another engine is to have it."""


Effect = Event | Note
