"""What happens to a pod, and what is to be done about it. `run` counts a container's starts: 1, 2, 3 ... Pure."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from .spec import Kind


class Hook(enum.Enum):
    POST_START = "postStart"
    PRE_STOP = "preStop"


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """The pod is to run."""


@dataclass(frozen=True)
class Started:
    """The container's first process runs."""

    name: str
    run: int


@dataclass(frozen=True)
class NotStarted:
    """It could not be made; the text says why."""

    name: str
    run: int
    why: str


@dataclass(frozen=True)
class Ended:
    """Its first process has ended: an exit code, or a signal."""

    name: str
    run: int
    code: int
    signal: int = 0
    reason: str = ""
    """Where somebody knows better than the exit code: OOMKilled."""


@dataclass(frozen=True)
class Answered:
    """What a probe found."""

    name: str
    run: int
    kind: Kind
    ok: bool
    why: str = ""


@dataclass(frozen=True)
class HookEnded:
    name: str
    run: int
    hook: Hook
    ok: bool
    why: str = ""


@dataclass(frozen=True)
class Delete:
    """Somebody wants the pod's end."""

    grace_s: int | None = None


@dataclass(frozen=True)
class Tick:
    """The machine's deadline has come."""


Event = Begin | Started | NotStarted | Ended | Answered | HookEnded | Delete | Tick


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    name: str
    run: int


@dataclass(frozen=True)
class Ask:
    """Ask this probe once, and say what it found."""

    name: str
    run: int
    kind: Kind


@dataclass(frozen=True)
class RunHook:
    name: str
    run: int
    hook: Hook


@dataclass(frozen=True)
class CancelHook:
    """Its time is over: nobody waits for its end any more."""

    name: str
    run: int
    hook: Hook


@dataclass(frozen=True)
class Signal:
    """To the container's first process."""

    name: str
    run: int
    signal: str


@dataclass(frozen=True)
class Note:
    """Something that a person may want to know; a flip of readiness, a start, an end."""

    event: str
    detail: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """Nothing of the pod runs any more, and nothing will."""

    phase: str


Effect = Start | Ask | RunHook | CancelHook | Signal | Note | Finished
