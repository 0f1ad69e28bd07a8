"""What is said over `lock.sock`: every message, and the public status of the lock.

Three kinds of caller introduce themselves first: an engine's main process (`Register`), another process of its
incarnation (`Join`), or an observer (`Observe`: `lockctl`, the gateway). The rules for when a message is allowed stand
in `machine.py` (server) and `client_machine.py` (client); this file holds only shapes.

How two versions agree: `sidecar/wire/versions.py`. The three hellos and `Incompatible` keep their shapes for ever, so
that both sides can say that they can't talk.

`fds` (in the base class) says how many descriptors travel with a message: a process's own pidfd with `Register` and
`Join`; a child's with `Vouch`; copies of the pidfds of the holder's processes, or of the receiver's own start, with
`Keep` and `HandBack`; names with `Granted` and `Welcome`, life files with `OldLives`.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from evidence.rules.messages import Busy as Busy
from evidence.rules.messages import HandBack as HandBack
from evidence.rules.messages import Incompatible as Incompatible
from evidence.rules.messages import Introduction, Number
from evidence.rules.messages import Join as Join
from evidence.rules.messages import Keep as Keep
from evidence.rules.messages import Kept as Kept
from evidence.rules.messages import Observe as Observe
from evidence.rules.messages import OldLives as OldLives
from evidence.rules.messages import Problem as Problem
from evidence.rules.messages import Refused as Refused
from evidence.rules.messages import Vouch as Vouch
from evidence.rules.messages import Vouched as Vouched
from sidecar.machine.context import HistoryEvent as HistoryEvent
from sidecar.wire.frames import Message

OLDEST, PROTOCOL = 1, 1
"""The oldest and the newest version that is spoken here."""

ACTIVE: Final = "active"
"""The lock of the one claim: who is awake."""
INIT: Final = "init"
"""A permit: who may initialise device memory."""

LockName = Literal["active", "init"]
Bytes = Annotated[int, Meta(ge=0, lt=1 << 62)]
Needs = Annotated[dict[Annotated[str, Meta(max_length=128)], Bytes], Meta(max_length=64)]
Token = Annotated[int, Meta(ge=0, lt=1 << 62)]
Secret = Annotated[str, Meta(max_length=64)]
Sentence = Annotated[str, Meta(max_length=2000)]


# -- from a client -------------------------------------------------------------------------------------------------


class Register(Introduction, frozen=True):
    """The main process of an engine: the one that will hold the lock."""

    claims: dict[LockName, Token] = {}
    """Locks that it believes it holds, with their tokens: it is back after the server was away."""
    secret: Secret = ""
    """From an earlier `Welcome`: proves identity on kernels whose pidfds have no inode of their own."""
    newest: int = 0
    mapped: bool = False
    """While it lives it can't let go of its life lock."""
    gave_back: Token = 0
    """It gave back the grant with this token, and the server may not have heard of it."""


class Acquire(Message, frozen=True):
    lock: LockName = "active"
    needs: Needs = {}
    """Device -> bytes that must be free before the grant."""
    again: bool = False
    """Said again after a lost connection, so it tells nothing new about the engine."""


class Ready(Message, frozen=True):
    """A waiter's word about itself: may it be granted (now), and what it needs."""

    ready: bool = True
    needs: Needs | None = None


class Prepared(Message, frozen=True):
    """The answer to `Prepare`: the waiter has looked at its engine."""

    round: int
    ok: bool
    why: Sentence = ""


class KeptRoom(msgspec.Struct, frozen=True):
    """A holder goes on with all of its predecessor's KV cache, which has room for so many tokens."""

    tokens: Bytes
    block: Bytes
    """How many make up a block. Of a context its last one, which isn't full, is computed again."""


class Serving(Message, frozen=True):
    """The holder is Active, here."""

    url: Sentence
    kept: KeptRoom | None = None


class Release(Message, frozen=True):
    """Gives a permit back, or the lock: the engine is asleep, and nothing of it is on a device any more."""

    lock: LockName = "init"
    token: Token = 0
    """The lock's: which grant ends."""
    why: Sentence = ""
    """Where the server hasn't asked for it."""


class Withdraw(Message, frozen=True):
    """The sender no longer waits for this lock. Answered by `Withdrawn`, or the grant of `active` came first."""

    lock: LockName = "active"
    number: Number = 0
    """The withdrawal's: the answer says it again."""


class Drained(Message, frozen=True):
    round: int
    ok: bool = True
    why: Sentence = ""


class Watch(Message, frozen=True):
    """From now on, every change of state."""


class AskStatus(Message, frozen=True):
    pass


class AskHistory(Message, frozen=True):
    """What happened lately; as much of it as goes into one frame."""


class Switchover(Message, frozen=True):
    to: Annotated[str, Meta(max_length=64)] = ""
    drain_timeout_s: Annotated[float, Meta(ge=0, le=86400)] = 30.0


class AbortSwitchover(Message, frozen=True):
    pass


class Sleep(Message, frozen=True):
    """The lock is to be at rest: a holder drains, puts its engine to sleep and gives it back; no waiter is granted
    until `Wake`. Answered by `SwitchoverStep`s; called off by `AbortSwitchover` or `Wake`.
    """

    drain_timeout_s: Annotated[float, Meta(ge=0, le=86400)] = 30.0
    why: Sentence = ""


class Wake(Message, frozen=True):
    """The lock is not to be at rest (any more). Answered by one `SwitchoverStep`."""


class Ping(Message, frozen=True):
    pass


ClientMessage = (
    Register
    | Join
    | Observe
    | Vouch
    | Acquire
    | Ready
    | Prepared
    | Serving
    | Release
    | Withdraw
    | Drained
    | HandBack
    | Kept
    | OldLives
    | Watch
    | AskStatus
    | AskHistory
    | Switchover
    | AbortSwitchover
    | Sleep
    | Wake
    | Ping
)


# -- from the server -----------------------------------------------------------------------------------------------


class Policy(msgspec.Struct, frozen=True):
    """What a holder may do while its server is away."""

    presume_dead: bool
    """True: after the window another engine is granted, whatever this process does. It must have stopped before."""
    window_s: float
    settle_s: float


class Welcome(Message, frozen=True):
    """Registered, or joined: from here on the process counts."""

    server_incarnation: str
    number: int
    policy: Policy
    secret: str = ""
    holds: dict[str, int] = {}
    """Locks that it holds, with their tokens. With `active` may come descriptors: see `Granted`."""
    protocol: int = 0
    """The version that both speak from here on."""


class Granted(Message, frozen=True):
    """Descriptors: the names in the network namespace that go with the lock `active`
    (`sidecar/kernel/exclusive_names.py`), to be kept open for as long as the process lives.
    """

    lock: str
    token: int
    proven: bool = False
    """Each single process of the holder before was seen to have ended, and what this one needs was seen to be free:
    no process writes to what the other one left.
    """


class Withdrawn(Message, frozen=True):
    """The answer to `Withdraw`: what was granted before means nothing, and the sender isn't granted until it asks."""

    lock: str
    number: int = 0


class Prepare(Message, frozen=True):
    """Your turn may come: look at your engine, and say whether it could wake."""

    round: int


class Drain(Message, frozen=True):
    round: int
    timeout_s: float


class Resume(Message, frozen=True):
    """The switchover is off: serve on."""

    why: str


class Exit(Message, frozen=True):
    """The successor is ready, and you are drained: end."""

    round: int


class GiveBack(Message, frozen=True):
    """You are drained: put your engine to sleep, and say `Release`."""

    round: int


class SwitchoverStep(Message, frozen=True):
    """To the caller that asked: how far it is. `done` says that no more will come."""

    phase: str
    detail: str
    done: bool = False
    ok: bool = False


class Pong(Message, frozen=True):
    server_incarnation: str


class MemberState(msgspec.Struct, frozen=True):
    pid: int
    alive: bool


class HolderState(msgspec.Struct, frozen=True, omit_defaults=True):
    engine_id: str
    incarnation: str
    token: int
    granted_at: str
    """Empty: by an earlier server whose file is lost. The holder came back by its claim, which has no time."""
    pid: int
    members: list[MemberState]
    endpoint: str | None
    kept: KeptRoom | None = None
    """Left out where there is nothing."""


class WaiterState(msgspec.Struct, frozen=True):
    engine_id: str
    incarnation: str
    pid: int
    ready: bool
    needs: dict[str, int]
    since: str


class FencingState(msgspec.Struct, frozen=True, omit_defaults=True):
    since: str
    waiting_for: list[str]
    life_lock: str = ""
    """That of the holder that is to be proven gone: `held`, `free`, `missing` (its file), or `unknown`: it hasn't been
    looked at, or which one it is isn't known. Left out where no holder has to be proven gone any more.
    """


class PermitState(msgspec.Struct, frozen=True):
    holder: str | None
    waiters: list[str]
    waiting_for: list[str]


class PlanState(msgspec.Struct, frozen=True):
    """A switchover, or a sleep, that is under way."""

    step: Literal["draining", "checking", "exiting", "giving back"]
    old: str
    old_token: int
    to: str
    """Empty: the lock goes to rest."""
    drain_timeout_s: float


class Status(Message, frozen=True):
    """The public status of the lock. Every field is always there, so that scripts can rely on them."""

    state: str
    holder: HolderState | None
    waiters: list[WaiterState]
    fencing: FencingState | None
    memory: str
    evidence: str
    """How a process's end is known: `peer pidfd`, `sent pidfd`, or `end-of-file only`."""
    permits: dict[str, PermitState]
    switchover: str | None
    alarms: list[str]
    token: int
    server_incarnation: str
    server_pid: int
    plan: PlanState | None = None
    """What `switchover` says in words."""
    waiters_total: int = 0
    """All of them; `waiters` has the first."""
    memory_why: str = ""
    """Why memory can't be verified: what engines need is not checked then. Empty where it can."""
    resting: bool = False
    """No waiter is granted until the lock is waked."""
    resting_why: str = ""


class History(Message, frozen=True):
    events: list[HistoryEvent]
    left_out: int = 0
    """How many older ones did not go into the frame."""


ServerMessage = (
    Welcome
    | Refused
    | Incompatible
    | Busy
    | Vouched
    | Granted
    | Withdrawn
    | Prepare
    | Keep
    | Drain
    | Resume
    | Exit
    | GiveBack
    | SwitchoverStep
    | Pong
    | Problem
    | Status
    | History
)

from_client: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
from_server: msgspec.msgpack.Decoder[ServerMessage] = msgspec.msgpack.Decoder(ServerMessage)


def check(message: ClientMessage) -> None:
    """Raises ValueError for what no server takes: said to one, it would cost the connection, and every one after it."""
    try:
        from_client.decode(msgspec.msgpack.encode(message))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the lock server would not take this: {error}") from None
