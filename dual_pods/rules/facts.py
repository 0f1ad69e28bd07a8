"""What the controller has seen: nodes, requesters, server pods, and what each of those says that it runs. Pure.

An instance's states are the pool's (`pool.entries.State`); a server pod with one engine is told of in the same words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pool.entries import State

REST = frozenset({State.OFF, State.ASLEEP})
"""No memory of an awake engine is held in these."""


@dataclass(frozen=True)
class Node:
    uid: str
    name: str
    ready: bool
    usable: bool
    """It has the taint that keeps others off, where one is asked for."""


@dataclass(frozen=True)
class Ask:
    """What a requester wants to have run."""

    wish: str
    """The digest of all that makes one instance differ from another, but for its place."""
    pod: Mapping[str, Any]
    """The pod that runs it, where each instance has one: without a name, a node or accelerators."""
    entry: Mapping[str, Any]
    """As models.yaml says it, without devices."""
    references: tuple[str, ...] = ()
    """Variables whose values Kubernetes looks up, or puts where `$(NAME)` stands."""
    unused: tuple[str, ...] = ()
    """Fields of its server patch that mean nothing to a pool."""
    needs: Mapping[str, int] | int = 0
    """Bytes on each accelerator while it is awake, or on every one the same; 0: not said."""


@dataclass(frozen=True)
class Pod:
    uid: str
    name: str
    namespace: str
    node: str = ""
    ip: str = ""
    running: bool = False
    """Its container runs, ready or not."""
    leaving: bool = False
    """It is marked for deletion; a requester as well when it has ended."""
    why: str = ""
    """Why it doesn't run: the scheduler's words, or kubelet's."""
    version: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Labels and annotations of ours that it has."""
    restarts: int = 0


@dataclass(frozen=True)
class Requester(Pod):
    ready: bool = False
    unready_since: float = 0.0
    """By kubelet's clock; 0: it doesn't say."""
    ask: Ask | None = None
    wrong: str = ""
    """Why it can't be served, whatever happens: what is wrong with its annotations."""
    admin_port: int = 0
    old: bool = False
    """It uses the specification's older words."""
    created: float = 0.0


@dataclass(frozen=True)
class Server(Pod):
    pool: bool = True
    instance: str = ""
    """The one that it runs, if it isn't a pool."""
    accelerators: frozenset[str] = frozenset()
    ended: bool = False
    """Its phase and its containers say so, as kubelet writes once every one has ended for good. That is proof."""
    gated: bool = False
    held: bool = False
    """It has our finalizer."""
    port: int = 0
    """Where its engine, or its pool, is asked."""
    probe: tuple[int, str] = (0, "/")
    """Where its only engine says that it is ready: port and path."""
    bindings: Mapping[str, str] = field(default_factory=dict)
    """Instance -> the uid of the requester that it is promised to."""
    asleep_since: float = 0.0


@dataclass(frozen=True)
class Instance:
    id: str
    state: State
    accelerators: frozenset[str]
    why: str = ""
    bytes: Mapping[str, int] = field(default_factory=dict)
    """What it takes on each accelerator while it is awake, as measured last, beside its weights in GMS."""
    asleep_bytes: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    """What GMS has of it on each accelerator, in whichever state it is."""
    parked: Mapping[str, int] = field(default_factory=dict)
    """What of it is in host memory, and comes back when it wakes."""
    last_used: float = 0.0
    port: int = 0
    """Its own, of its pool's door; 0: it has none yet."""
    weights_name: str = ""
    """Those of a server pod that say the same have one copy of them."""
    wanted: bool = False
    """Its pool wakes it by itself once it can."""

    @property
    def at_rest(self) -> bool:
        """It isn't awake, and nothing makes it so before it is asked to."""
        return self.state in REST and not self.wanted

    def holds(self, accelerator: str) -> int:
        """At rest."""
        asleep = self.asleep_bytes if self.state is State.ASLEEP else {}
        return self.weights.get(accelerator, 0) + asleep.get(accelerator, 0)

    def takes(self, accelerator: str) -> int:
        """All of it, awake; 0: not known."""
        known = self.bytes.get(accelerator, 0)
        return known and known + max(self.weights.get(accelerator, 0), self.parked.get(accelerator, 0))


@dataclass(frozen=True)
class Memory:
    total: int
    free: int
    leased: int = 0


@dataclass(frozen=True)
class Told:
    """What a server pod says it runs."""

    instances: Mapping[str, Instance]
    memory: Mapping[str, Memory] = field(default_factory=dict)
    """Accelerator -> what its ledger says. Empty: there is no ledger."""
