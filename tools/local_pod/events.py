"""What happens to a pod, and what is to be done about it. `run` counts a container's starts: 1, 2, 3 ... Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .spec import Kind


@dataclass(frozen=True)
class OfRun:
    name: str
    run: int


# -- events ------------------------------------------------------------------------------------------------------------


class Begin:
    """The pod is to run."""


class Started(OfRun):
    """The container's first process runs."""


@dataclass(frozen=True)
class NotStarted(OfRun):
    """It could not be made; the text says why."""

    why: str


@dataclass(frozen=True)
class Ended(OfRun):
    """Its first process has ended: an exit code, or a signal."""

    code: int
    signal: int = 0
    reason: str = ""
    """Where the kill says more than the exit code: OOMKilled."""


@dataclass(frozen=True)
class Answered(OfRun):
    """What a probe found."""

    kind: Kind
    ok: bool
    why: str = ""


@dataclass(frozen=True)
class HookEnded(OfRun):
    """Its preStop hook."""

    ok: bool
    why: str = ""


@dataclass(frozen=True)
class Delete:
    """The pod is to end."""

    grace_s: int | None = None


class Tick:
    """The machine's deadline has come."""


Event = Begin | Started | NotStarted | Ended | Answered | HookEnded | Delete | Tick


# -- effects -----------------------------------------------------------------------------------------------------------


class Start(OfRun):
    """Make the container, and start its first process."""


@dataclass(frozen=True)
class Ask(OfRun):
    """Ask this probe once, and say what it found."""

    kind: Kind


class RunHook(OfRun):
    """Its preStop hook."""


class CancelHook(OfRun):
    """Its time is over: its end is not waited for any more."""


@dataclass(frozen=True)
class Signal(OfRun):
    """To the container's first process."""

    signal: str


@dataclass(frozen=True)
class Note:
    """Something that a person may want to know; a flip of readiness, a start, an end."""

    event: str
    detail: Mapping[str, object] = field(default_factory=dict)


class Finished:
    """Nothing of the pod runs any more, and nothing will."""


Effect = Start | Ask | RunHook | CancelHook | Signal | Note | Finished
