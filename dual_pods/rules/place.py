"""What is known of one node, and what can be asked about it. Questions only: `plan.py` decides. Pure."""

import enum
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dual_pods.rules import building, names
from dual_pods.rules.events import Key
from dual_pods.rules.facts import Instance, Memory, Node, Requester, Server, Told
from dual_pods.rules.standing import Target
from pool.entries import State


class Mode(enum.Enum):
    """The specification's three sections."""

    DIRECT = "direct"
    """Neither sleep nor wake: a server pod for each requester, deleted with it."""
    SLEEP = "sleep"
    """A server pod for each instance, which sleeps when its requester goes."""
    SWAP = "swap"
    """A pool on each node, which has many instances."""


@dataclass(frozen=True)
class Settings:
    mode: Mode = Mode.SWAP
    sleepers_bytes: int | None = None
    """What those that sleep may hold of each accelerator. None: so much as is there."""
    measured_after_s: float = 20.0
    """Without a ledger: a figure counts if nothing went to sleep for so long before it (Prometheus is late)."""
    bound_s: float = 600.0
    """A requester that isn't Ready after so long is an event: what it waits for."""
    pause_s: float = 1.0
    pause_most_s: float = 60.0
    tries: int = 3
    """A start that fails so often is begun anew: the instance is deleted, and launched again."""
    settle_s: float = 5.0
    """What was asked for, and was taken, is asked for again if nothing has been heard of it for so long."""
    node_gone_s: float = 60.0
    """A node that isn't there for so long has nothing in its memory."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """The pod of a node's pool."""
    taint: str = ""
    """Nodes with it are the controller's, and each gets its pool unasked. Empty: every node is, and none does."""
    resource: str = "nvidia.com/gpu"
    """Accelerators are counted as it."""


@dataclass(frozen=True)
class Try:
    """What became of an effect, by its key."""

    busy: bool = True
    failures: int = 0
    until: float = 0.0
    """Not again before."""
    why: str = ""


@dataclass(frozen=True)
class Seen:
    """An instance, and the server pod that runs it."""

    server: Server
    it: Instance
    bound: str = ""
    """The requester's uid."""


@dataclass
class Place:
    name: str
    """The node's; where none was found yet for a pod, it has one of its own: a slash and its uid."""
    node: Node | None = None
    gone_since: float | None = None
    requesters: dict[str, Requester] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    unread: dict[str, tuple[str, Exception]] = field(default_factory=dict)
    """By uid: itself, or server pods of it, that couldn't be read when they were seen last. What was done, and why."""
    told: dict[str, Told] = field(default_factory=dict)
    accelerators: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What a requester has, since it said so."""
    relayed: dict[str, tuple[Target | None, int]] = field(default_factory=dict)
    """What a requester was told last, and after how many restarts. Not there: not told by this controller."""
    unready_since: dict[str, float] = field(default_factory=dict)
    """Since when a requester isn't Ready: it was made then, or was Ready until then."""
    told_at: dict[str, float] = field(default_factory=dict)
    """When a requester was told last where its instance is."""
    used: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Where there is no ledger: bytes in use on an accelerator, and when that was so."""
    unmeasured: str = ""
    """Why the last answer had no figures."""
    slept: dict[str, float] = field(default_factory=dict)
    """When an instance on an accelerator last went to sleep, or went."""
    tries: dict[Key, Try] = field(default_factory=dict)
    look_at: float = math.inf
    """When its next plan is due, whatever happens."""


class View:
    """Questions about a place, as it is at one moment: nothing changes it while one of these is asked."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @cached_property
    def live(self) -> list[Requester]:
        """Those that are to stay, in the order of their coming."""
        staying = (r for r in self.place.requesters.values() if not r.leaving)
        return sorted(staying, key=lambda r: (r.created, r.uid))

    @cached_property
    def running(self) -> list[Server]:
        """Server pods that aren't proven to have ended."""
        return sorted((s for s in self.place.servers.values() if not s.ended), key=lambda s: s.name)

    def silent(self, accelerators: Iterable[str]) -> str:
        """A server pod that may run instances there and hasn't said which, in a sentence; else empty."""
        its = (s for s in self.running if s.pool or not s.accelerators.isdisjoint(accelerators))
        silent = (server for server in its if self.is_silent(server))
        return next((f"server pod {server.name} hasn't said yet what it runs" for server in silent), "")

    def is_silent(self, server: Server) -> bool:
        return server.running and server.uid not in self.place.told

    @cached_property
    def bound(self) -> dict[str, tuple[Server, str]]:
        """Requester -> where its instance is. A binding of one that has gone, or wants another one, is none."""
        found: dict[str, tuple[Server, str]] = {}
        for server in self.running:
            for instance, uid in sorted(server.bindings.items()):
                if uid not in found and not server.leaving and instance == self.wished(uid):
                    found[uid] = server, instance
        return found

    def accelerators(self, uid: str) -> Iterable[str]:
        """What a requester that is bound has. Until this controller has heard it: as its pod and its instance say."""
        if uid in self.place.accelerators:
            return self.place.accelerators[uid]
        marked = self.place.requesters[uid].marks.get(names.ACCELERATORS, "")
        seen = self.find(self.bound[uid][1])
        return {*filter(None, marked.split(",")), *(seen.it.accelerators if seen is not None else ())}

    def wished(self, uid: str) -> str:
        """The instance that a requester wants; empty while that isn't known, or if it wants none."""
        requester = self.place.requesters.get(uid)
        if requester is None or requester.ask is None or requester.leaving:
            return ""
        accelerators, marked = self.place.accelerators.get(uid), requester.marks.get(names.INSTANCE, "")
        promised = [i for s in self.running for i, each in s.bindings.items() if each == uid]
        if accelerators is None:  # a new controller hasn't asked yet: it has what it was bound to
            return marked if marked in promised else next(iter(promised), "")
        if marked in promised and requester.marks.get(names.ACCELERATORS) == ",".join(accelerators):
            return marked  # what was bound is frozen, but for some of its spec: that is no other wish
        return names.instance_id(requester.ask.wish, self.place.name, accelerators)

    @cached_property
    def instances(self) -> list[Seen]:
        """All that may hold memory: those of server pods that aren't proven to have ended."""
        bound = {(server.uid, instance): uid for uid, (server, instance) in self.bound.items()}
        return [Seen(s, it, bound.get((s.uid, it.id), "")) for s in self.running for it in self._of(s)]

    def _of(self, server: Server) -> Iterable[Instance]:
        told = self.place.told.get(server.uid)
        if server.pool:
            return told.instances.values() if told is not None else ()
        if server.leaving:
            return [Instance(server.instance, State.STOPPING, server.accelerators, "its server pod is being deleted")]
        if told is not None and server.running:
            return [replace(it, last_used=server.asleep_since) for it in told.instances.values()]
        why = server.why or ("it doesn't say what it does" if self.is_silent(server) else "")
        return [Instance(server.instance, State.LOADING, server.accelerators, why)]

    def hot(self, accelerators: Iterable[str], but: str) -> list[Seen]:
        """Those on any of these accelerators that aren't at rest, apart from one."""
        wanted = frozenset(accelerators)
        return [s for s in self.instances if s.it.id != but and not s.it.at_rest and s.it.accelerators & wanted]

    def find(self, instance: str) -> Seen | None:
        return next((seen for seen in self.instances if seen.it.id == instance), None)

    @cached_property
    def pool(self) -> Server | None:
        return next((server for server in self.running if server.pool and not server.leaving), None)

    @cached_property
    def memory(self) -> Mapping[str, Memory]:
        """What the node's ledger says; empty where there is none."""
        return {name: m for told in self.place.told.values() for name, m in told.memory.items()}

    def sleepers(self, but: str, needs: str = "") -> list[Instance]:
        """Those that may go: asleep, and promised to no requester. Without weights that stay: those of another one
        that may not, and `needs`."""
        may = {s.it.id for s in self.instances if s.it.state is State.ASLEEP and not s.bound and s.it.id != but}
        stay = {needs, *(s.it.weights_name for s in self.instances if s.it.id not in may)} - {""}
        found = sorted((s.it for s in self.instances if s.it.id in may), key=lambda it: (it.last_used, it.id))
        return [replace(it, weights={}) if it.weights_name in stay else it for it in found]

    def each_once(self, may_go: Container[str], needs: str) -> list[Instance]:
        """All, and weights that several share with one of these alone: with one that stays, if there is one."""
        found, counted = list[Instance](), {needs}
        for it in sorted((s.it for s in self.instances), key=lambda it: (it.id in may_go, it.last_used, it.id)):
            again = it.weights_name != "" and it.weights_name in counted
            counted.add(it.weights_name)
            found.append(replace(it, weights={}) if again else it)
        return found

    def needs(self, requester: Requester, seen: Seen | None) -> dict[str, int]:
        """What its instance takes while it is awake, beyond what is there at rest: as measured, else as was said."""
        assert requester.ask is not None
        said, found, accelerators = requester.ask.needs, {}, self.place.accelerators[requester.uid]
        named = building.weights_name(requester.ask, accelerators) if seen is None else ""
        shared = next((s.it.weights for s in self.instances if named and s.it.weights_name == named), {})
        for name in accelerators:
            takes = said if isinstance(said, int) else said.get(name, 0)
            if seen is not None:
                takes = (seen.it.takes(name) or takes) - seen.it.holds(name)
            found[name] = max(takes - shared.get(name, 0), 0)
        return found
