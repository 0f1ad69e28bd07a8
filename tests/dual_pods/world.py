"""A cluster in memory for the controller's machine: nodes, requesters, server pods, pools with a ledger, and time.

The world plays scheduler, kubelet, pools, requesters and the controller's shell; the machine alone is real. What must
hold whatever happens is checked where the world changes:

  A  an accelerator is never used by two instances that aren't at rest, in whichever server pods;
  B  where there is a ledger, no instance begins to wake or to load without room for it: what all hold and it will take
     is never more than an accelerator has, where weights that several share are counted once;
  C  two requesters are never promised one instance, and none is told of another one's;
  D  when nothing happens any more, each requester is ready or there is a sentence about what it waits for, none is that
     waits, nothing stays awake for none, and no pod is left that has ended (`quiet`).

Kubelet starts a container again that has ended, unasked: what begins so is beyond A and B until it is heard of.
An address goes to another pod as soon as its pod has ended, whatever the controller has heard of that.
"""

import heapq
import itertools
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dual_pods.rules import events as e
from dual_pods.rules import names
from dual_pods.rules.facts import REST, Ask, Instance, Memory, Node, Requester, Server, Told
from dual_pods.rules.machine import Machine
from dual_pods.rules.place import Mode, Settings
from dual_pods.rules.plan import Phase
from dual_pods.rules.standing import Target
from pool.entries import State

GIB = 1 << 30
HOT = (State.LOADING, State.WAKING, State.AWAKE, State.DRAINING, State.STOPPING)


class Violation(AssertionError):
    pass


class Unreadable(Exception):
    pass


@dataclass
class Engine:
    id: str
    accelerators: frozenset[str]
    needs: int
    """On each of its accelerators, awake."""
    state: State = State.OFF
    why: str = ""
    held: int = 0
    """What it holds now, on each."""
    asleep: int = 0
    weights: int = 0
    """In GMS, in whichever state: part of what it needs, and of what it holds."""
    weights_name: str = ""
    """In its pool, those that say the same have one copy of them."""
    brings: int = 0
    """What its load leaves in GMS."""
    parked: int = 0
    measured: bool = False
    last_used: float = 0.0
    wanted: bool = False
    """It is asleep, and its pool wakes it by itself once it can."""


@dataclass
class Pod:
    fact: Requester | Server
    engines: dict[str, Engine] = field(default_factory=dict)


@dataclass
class Chances:
    """How often something goes wrong, of a thousand."""

    effect_fails: int = 0
    conflict: int = 0
    lost_answer: int = 0
    wake_fails: int = 0
    launch_fails: int = 0
    frees_half: int = 0
    leaks: int = 0
    wakes_later: int = 0
    """One that has loaded isn't awake at once: there was no room, say."""


class World:
    def __init__(
        self,
        settings: Settings,
        nodes: Mapping[str, int],
        seed: int = 0,
        chances: Chances | None = None,
        total: int = 80 * GIB,
    ) -> None:
        self.random = random.Random(seed)
        self.settings, self.chances, self.total = settings, chances or Chances(), total
        self.now = 0.0
        self.happens: list[tuple[float, int, Callable[[], None]]] = []
        self.events = 0
        self._numbers = itertools.count(1)
        self.nodes = {name: [f"{name}-{number}" for number in range(count)] for name, count in nodes.items()}
        self.pods: dict[str, Pod] = {}
        self.here: dict[str, dict[str, Pod]] = {name: {} for name in nodes}
        """Server pods by their node."""
        self.accelerators: dict[str, tuple[str, ...]] = {}
        self.sizes: dict[str, int] = {}
        self.of_weights: dict[str, int] = {}
        """By instance: what of its size is weights."""
        self.wishes: dict[str, str] = {}
        self.told_ready: dict[str, Target | None] = {}
        """What requesters were told."""
        self.said: list[tuple[str, str]] = []
        self.done: list[tuple[str, ...]] = []
        """The keys of what was carried out."""
        self.prometheus = True
        """Else a requester says with its accelerators how much of them is in use."""
        self.unseen: list[e.Event] | None = None
        """What the API server would tell, while its watches are cut."""
        self.addresses: list[str] = []
        """Those that are free: the one that was free last is given first."""
        self.at: dict[str, Pod] = {}
        self.mistaken = 0
        """Orders that another server pod got, at an address that was given to it."""
        self.away = set[str]()
        """Nodes that aren't there."""
        self.unreadable = set[str]()
        """Uids of nodes and server pods that the controller can't read: a fault of its own."""
        self.hushed = False
        """No server pod says anything."""
        self.foreign: dict[str, int] = {}
        """Bytes on an accelerator that no lease covers."""
        self.machine = self._machine()

    def _machine(self) -> Machine:
        return Machine(replace(self.settings, template={"spec": {"containers": []}}))

    # -- time ------------------------------------------------------------------------------------------------------

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.happens, (self.now + seconds, next(self._numbers), what))

    def run(self, until: float) -> None:
        while True:
            look = self.machine.look_at
            upcoming = self.happens[0][0] if self.happens else float("inf")
            if min(look, upcoming) > until:
                break
            if upcoming <= look:
                self.now, _, what = heapq.heappop(self.happens)
                what()
            else:
                self.now = max(self.now, look)
                self.feed(e.Look())
        self.now = max(self.now, until)

    def feed(self, event: e.Event) -> None:
        self.events += 1
        for effect in self.machine.feed(event, self.now):
            self._carry_out(effect)

    def chance(self, of_a_thousand: int) -> bool:
        return of_a_thousand > 0 and self.random.randrange(1000) < of_a_thousand

    # -- what users and Kubernetes do ------------------------------------------------------------------------------

    def start(self) -> None:
        for name in self.nodes:
            self.feed(Node(f"uid-{name}", name, True, True))
        self.feed(e.Listed())
        if self.settings.mode is Mode.SLEEP:
            self._measure()

    def _measure(self) -> None:
        """As Prometheus: late, and every ten seconds."""
        for node, accelerators in self.nodes.items() if self.prometheus else ():
            self.feed(e.Measured(node, {name: self.total - self.free(name) for name in accelerators}, self.now))
        self.later(10, self._measure)

    def node_goes(self, name: str, seconds: float) -> None:
        """For less than what takes its pods to have ended."""
        if name in self.away:
            return
        self.away.add(name)
        self._watched(e.Gone(f"uid-{name}"))
        self.later(seconds, lambda: self._node_is_back(name))

    def _node_is_back(self, name: str) -> None:
        self.away.remove(name)
        self._watched(Node(f"uid-{name}", name, True, True))

    def restart(self) -> None:
        """The controller is killed, and another one begins: it is told the cluster, and no more."""
        self.machine, self.unseen = self._machine(), None
        for name in set(self.nodes) - self.away:
            self._watched(Node(f"uid-{name}", name, True, True))
        for pod in list(self.pods.values()):
            self._show(pod)
        self.feed(e.Listed())
        self.tell_all()

    def request(
        self,
        name: str,
        node: str,
        accelerators: tuple[str, ...],
        wish: str,
        needs: int = 0,
        runs_after_s: float = 1.0,
        weights: int = 0,
    ) -> str:
        """A requester that the scheduler has placed. `weights`: what GMS keeps of it; those of m1 are those of m1+."""
        uid = f"r{next(self._numbers)}"
        pod_spec = {"metadata": {"labels": {}, "annotations": {}}, "spec": {"containers": _CONTAINERS}}
        entry = {"engine": "vllm", "arguments": [wish.rstrip("+"), f"--max-num-seqs={len(wish)}"]} if weights else {}
        ask = Ask(wish, pod_spec, entry, needs=needs)
        fact = Requester(uid, name, "default", node, self._address(), ask=ask, admin_port=8081, created=self.now)
        pod = self.pods[uid] = self.at[fact.ip] = Pod(fact)
        instance = names.instance_id(wish, node, accelerators)
        self.sizes[instance], self.wishes[instance], self.of_weights[instance] = needs, wish, weights
        self.accelerators[uid] = accelerators
        self._changed(pod)
        self.later(runs_after_s, lambda: self._changed(pod, running=True) if uid in self.pods else None)
        return uid

    def leave(self, uid: str, after_s: float = 2.0) -> None:
        """Deleted: marked, and gone when its container has ended."""
        pod = self.pods[uid]
        self._changed(pod, leaving=True)
        self.later(after_s, lambda: self.vanish(uid))

    def vanish(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        for engine in pod.engines.values():
            self._let_go(pod, engine)
        self.here[pod.fact.node].pop(uid, None)
        self.told_ready.pop(uid, None)
        self._leaves_its_address(pod)
        self._watched(e.Gone(uid))

    def _address(self) -> str:
        return self.addresses.pop() if self.addresses else f"10.0.0.{len(self.at)}"

    def _leaves_its_address(self, pod: Pod) -> None:
        if self.at.get(pod.fact.ip) is pod:
            del self.at[pod.fact.ip]
            self.addresses.append(pod.fact.ip)

    def cut_watches(self, seconds: float) -> None:
        if self.unseen is None:
            self.unseen = []
            self.later(seconds, self._watches_go_on)

    def _watches_go_on(self) -> None:
        told, self.unseen = self.unseen or [], None
        for event in told:
            self.feed(event)
        self.tell_all()

    def unread(self, uid: str, seconds: float) -> None:
        self.unreadable.add(uid)
        self._see_again(uid)
        self.later(seconds, lambda: self._readable(uid))

    def _readable(self, uid: str) -> None:
        self.unreadable.discard(uid)
        self._see_again(uid)
        self.tell_all()

    def _see_again(self, uid: str) -> None:
        if uid in self.pods:
            self._changed(self.pods[uid])
        elif uid.startswith("uid-") and (name := uid[4:]) not in self.away:
            self._watched(Node(uid, name, True, True))

    def _watched(self, event: e.Event) -> None:
        if isinstance(event, Node | Server) and event.uid in self.unreadable:
            node = event.name if isinstance(event, Node) else event.node
            event = e.Unread(event.uid, node, f"read {event.name}", Unreadable())
        if self.unseen is None:
            self.feed(event)
        else:
            self.unseen.append(event)

    def restart_server(self, uid: str, after_s: float = 1.0) -> None:
        """Its container ends, and kubelet starts it again."""
        pod = self.pods.get(uid)
        if pod is None or not pod.fact.running or pod.fact.leaving:
            return
        for engine in pod.engines.values():
            self._let_go(pod, engine)
        self.feed(e.Tells(uid, None))
        self._changed(pod, running=False)
        self.later(after_s, lambda: self._starts_again(pod))

    def _starts_again(self, pod: Pod) -> None:
        fact = pod.fact
        if not isinstance(fact, Server) or fact.leaving or fact.ended or fact.running:
            return
        self._changed(pod, running=True, restarts=fact.restarts + 1)
        if fact.pool:
            pod.engines = {}
            self._tell(pod)
        for engine in pod.engines.values():
            self._begin(pod, engine, State.LOADING, 8.0, unasked=True)

    def delete_server(self, uid: str, after_s: float = 3.0) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.fact.leaving:
            return
        self._changed(pod, leaving=True)
        self.later(after_s, lambda: self._server_ends(uid))

    def _server_ends(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None or not isinstance(pod.fact, Server):
            return
        for engine in pod.engines.values():
            if self.chance(self.chances.leaks):
                self._leak(engine)
            self._let_go(pod, engine)
        pod.engines = {}
        self._leaves_its_address(pod)
        self.feed(e.Tells(uid, None))
        self._changed(pod, ended=True, running=False)
        if pod.fact.leaving and not pod.fact.held:
            self.vanish(uid)

    def _leak(self, engine: Engine) -> None:
        """Memory that stays held although its processes have ended: given back after half a minute."""
        for name in engine.accelerators:
            held = engine.held - engine.weights
            self.foreign[name] = self.foreign.get(name, 0) + held
            self.later(30, lambda name=name, held=held: self.give_back(name, held))  # type: ignore[misc]

    def give_back(self, accelerator: str, count: int) -> None:
        self.foreign[accelerator] = max(self.foreign.get(accelerator, 0) - count, 0)
        self.tell_all()

    def _changed(self, pod: Pod, **changes: Any) -> None:
        pod.fact = replace(pod.fact, **changes, version=str(next(self._numbers)))
        self._show(pod)

    def _show(self, pod: Pod) -> None:
        self._watched(pod.fact)

    def find(self, uid: str) -> Requester | None:
        pod = self.pods.get(uid)
        return pod.fact if pod is not None and isinstance(pod.fact, Requester) else None

    # -- what the shell does ---------------------------------------------------------------------------------------

    def _carry_out(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Say):
            self.said.append((effect.reason, effect.sentence))
        delay, machine = self.random.uniform(0.001, 0.02), self.machine
        self.later(delay, lambda: self._carried_out(effect, machine))

    def _carried_out(self, effect: e.Effect, machine: Machine) -> None:
        self.done.append(e.key(effect))
        error = ""
        if self.chance(self.chances.effect_fails):
            error = "it can't be reached"
        else:
            error = getattr(self, "_" + type(effect).__name__.lower())(effect)
        if self.chance(self.chances.lost_answer):
            error = error or "the answer was lost"
        self._answer(effect, machine, error)

    def _answer(self, effect: e.Effect, machine: Machine, error: str) -> None:
        """An engine in a pod of its own answers when it is awake, or asleep."""
        if isinstance(effect, e.Order) and effect.what in ("wake", "sleep") and not effect.server.pool and not error:
            pod = self.at.get(effect.server.ip)
            if pod is not None and any(en.state in (State.WAKING, State.DRAINING) for en in pod.engines.values()):
                self.later(0.1, lambda: self._answer(effect, machine, error))
                return
        if self.machine is machine:
            asked = self.at.get(effect.requester.ip) if isinstance(effect, e.Query) and not error else None
            self.feed(e.Done(effect, error, self.accelerators[asked.fact.uid] if asked is not None else ()))

    def _fault(self, effect: e.Fault) -> str:
        if not isinstance(effect.fault, Unreadable):
            raise effect.fault
        return "it can't be read"

    def _say(self, effect: e.Say) -> str:
        return ""

    def _query(self, effect: e.Query) -> str:
        pod = self.at.get(effect.requester.ip)
        if pod is None or pod.fact.uid not in self.accelerators:
            return "connection refused"
        accelerators = self.accelerators[pod.fact.uid]
        if not self.prometheus:
            used = {name: self.total - self.free(name) for name in accelerators}
            self.feed(e.Measured(effect.requester.node, used, self.now))
        return ""

    def _create(self, effect: e.Create) -> str:
        meta = effect.body["metadata"]
        if any(p.fact.name == meta["name"] for p in self.here[effect.node].values()):
            return "it exists"
        uid = f"s{next(self._numbers)}"
        labels, annotations = meta["labels"], meta["annotations"]
        pool = labels.get(names.SERVER, "pool") == "pool"
        fact = Server(
            uid, meta["name"], "default", effect.node, self._address(), pool=pool,
            instance=labels.get(names.INSTANCE, ""),
            accelerators=frozenset(filter(None, annotations.get(names.ACCELERATORS, "").split(","))), held=True,
            bindings=json.loads(annotations.get(names.BINDINGS, "{}")), marks={**labels, **annotations},
            gated=bool(effect.body["spec"].get("schedulingGates")),
        )  # fmt: skip
        pod = self.pods[uid] = self.here[effect.node][uid] = self.at[fact.ip] = Pod(fact)
        self._changed(pod)
        self.feed(pod.fact)  # the answer says it, too
        if not fact.gated:
            self._placed(pod)
        return ""

    def _placed(self, pod: Pod) -> None:
        fact = pod.fact
        assert isinstance(fact, Server)
        if not fact.pool:
            engine = pod.engines[fact.instance] = Engine(fact.instance, fact.accelerators, self.needs(fact.instance))
            self._begin(pod, engine, State.LOADING, 8.0)
        self.later(self.random.uniform(0.5, 2), lambda: self._runs(fact.uid))

    def _admit(self, effect: e.Order) -> str:
        pod = self.pods.get(effect.server.uid)
        if pod is None or pod.fact.version != effect.server.version:
            return "409"
        self._changed(pod, gated=False)
        self._placed(pod)
        return ""

    def _runs(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is not None and isinstance(pod.fact, Server) and not pod.fact.ended:
            self._changed(pod, running=True)
            self._tell(pod)

    def _delete_pod(self, effect: e.Order) -> str:
        pod = self.pods.get(effect.server.uid)
        if pod is not None and isinstance(pod.fact, Server):
            if pod.fact.version != effect.server.version:
                return "409"
            if pod.fact.ended and not pod.fact.leaving:
                self._changed(pod, leaving=True)
            else:
                self.delete_server(effect.server.uid)
        return ""

    def _release(self, effect: e.Order) -> str:
        pod = self.pods.get(effect.server.uid)
        if pod is not None and isinstance(pod.fact, Server):
            if not pod.fact.ended:
                raise Violation("a finalizer goes before the containers have ended")
            self.vanish(effect.server.uid)
        return ""

    def _mark(self, effect: e.Mark) -> str:
        pod = self.pods.get(effect.pod.uid)
        if pod is None:
            return "not found"
        if pod.fact.version != effect.pod.version or self.chance(self.chances.conflict):
            self._show(pod)
            return "409"
        changes = {**effect.labels, **effect.annotations}
        marks = {k: v for k, v in {**pod.fact.marks, **changes}.items() if v is not None}
        if isinstance(pod.fact, Server):
            bindings = json.loads(marks.get(names.BINDINGS, "{}"))
            since = float(marks.get(names.ASLEEP_SINCE, 0))
            self._changed(pod, marks=marks, bindings=bindings, asleep_since=since)
            here = [p.fact for p in self.here[pod.fact.node].values()]
            uids = [uid for fact in here if isinstance(fact, Server) for uid in fact.bindings.values()]
            if len(set(uids)) < len(uids):
                raise Violation(f"a requester is promised two instances: {uids}")
        else:
            self._changed(pod, marks=marks)
        seen = pod.fact  # the answer tells of it as well, and may come late
        machine = self.machine

        def answers() -> None:
            if self.machine is machine and seen.uid not in self.unreadable:  # else who asked is no more
                self.feed(seen)

        self.later(self.random.uniform(0, 3), answers)
        return ""

    def _relay(self, effect: e.Relay) -> str:
        pod = self.at.get(effect.requester.ip)
        if pod is None or not isinstance(pod.fact, Requester):
            return "connection refused"
        if pod.fact.uid != effect.requester.uid:
            return "it is another pod"
        stays = effect.target is not None and effect.target.stays
        if not stays:
            self.told_ready[effect.requester.uid] = effect.target
        self._changed(pod, ready=effect.target is not None and not stays)  # FMA's: it asks no instance
        return ""

    def needs(self, instance: str) -> int:
        return self.sizes.get(instance, 0)

    def _launch(self, effect: e.Order) -> str:
        pod = self.at.get(effect.server.ip)
        if pod is None or not isinstance(pod.fact, Server) or not pod.fact.running:
            return "connection refused"
        if pod.fact.uid != effect.server.uid:
            self.mistaken += 1
        if effect.instance not in pod.engines:
            devices = frozenset(effect.entry["devices"])
            engine = Engine(effect.instance, devices, self.needs(effect.instance))
            if brings := self.of_weights.get(engine.id, 0):
                engine.weights_name, engine.brings = effect.entry["weights"], brings
            there = [en.weights for en in pod.engines.values() if brings and en.weights_name == engine.weights_name]
            engine.weights = engine.held = max(there, default=0)
            pod.engines[engine.id] = engine
            self._tell(pod)
        return ""

    def _order(self, effect: e.Order) -> str:
        others = {
            "launch": self._launch, "admit": self._admit, "delete-pod": self._delete_pod, "release": self._release,
        }  # fmt: skip
        if effect.what in others:
            return others[effect.what](effect)
        pod = self.at.get(effect.server.ip)
        engine = pod.engines.get(effect.instance) if pod is not None else None
        if pod is not None and pod.fact.uid != effect.server.uid:
            self.mistaken += 1
            if not effect.server.pool:  # an engine in its own pod is told by no name
                engine = next(iter(pod.engines.values()), None)
        if pod is None or engine is None:
            return "" if effect.what == "delete" else "not found"
        if effect.what == "wake":
            if engine.state not in (*REST, State.FAILED):
                return f"it is {engine.state.value}"
            if not effect.server.pool and self.chance(self.chances.wake_fails):
                engine.held = engine.needs // 2  # and it says on that it sleeps
                return "/wake_up says 500"
            takes_s = self.random.choice([0.5, 5])
            self._begin(pod, engine, State.WAKING if engine.measured else State.LOADING, takes_s)
        elif effect.what == "sleep" and engine.state is State.ASLEEP:
            self._move(pod, engine, State.ASLEEP)
        elif effect.what == "sleep":
            if engine.state is not State.AWAKE:
                return f"it is {engine.state.value}"
            self._move(pod, engine, State.DRAINING)
            self.later(self.random.uniform(0.1, 1), lambda: self._sleeps(pod, engine))
        elif engine.state is not State.STOPPING:
            self._move(pod, engine, State.STOPPING)
            self.later(self.random.uniform(0.1, 1), lambda: self._ends(pod, engine))
        return ""

    # -- engines ---------------------------------------------------------------------------------------------------

    def _begin(self, pod: Pod, engine: Engine, state: State, seconds: float, *, unasked: bool = False) -> None:
        for other in (each for p in self.here[pod.fact.node].values() for each in p.engines.values()):
            beside = other is not engine and other.state in HOT and other.accelerators & engine.accelerators
            if beside and not unasked:
                raise Violation(f"{engine.id} begins beside {other.id}, which is {other.state.value}")
        fits = all(self.free(name) >= engine.needs - engine.held for name in engine.accelerators)
        if not fits and isinstance(pod.fact, Server) and pod.fact.pool:
            raise Violation(f"{engine.id} begins, and doesn't fit")
        single = isinstance(pod.fact, Server) and not pod.fact.pool
        chance = self.chances.launch_fails if state is State.LOADING else self.chances.wake_fails
        fails = self.chance(0 if single and state is State.WAKING else chance)
        engine.held = engine.weights if fails or not fits else engine.needs
        self._move(pod, engine, state)
        self.later(seconds * self.random.uniform(0.5, 1.5), lambda: self._up(pod, engine, state, fails or not fits))

    def _up(self, pod: Pod, engine: Engine, state: State, fails: bool) -> None:
        if engine.state is not state or engine.id not in pod.engines:
            return
        engine.measured = engine.measured or not fails
        for each in pod.engines.values() if engine.brings and not fails else ():
            if each.weights_name == engine.weights_name:
                each.held += 0 if each is engine else engine.brings - each.weights
                each.weights = engine.brings
        engine.last_used = self.now
        engine.why = "out of memory" if fails else ""
        single = isinstance(pod.fact, Server) and not pod.fact.pool
        if fails and single:
            self.restart_server(pod.fact.uid)
        elif state is State.LOADING and not single and not fails and self.chance(self.chances.wakes_later):
            engine.asleep = (engine.needs - engine.brings) // 40
            engine.held = engine.asleep + engine.weights
            self._move(pod, engine, State.ASLEEP, wanted=True)
            self._wakes_later(pod, engine)
        else:
            self._move(pod, engine, State.FAILED if fails else State.AWAKE)

    def _wakes_later(self, pod: Pod, engine: Engine) -> None:
        def wakes() -> None:
            if not engine.wanted or engine.id not in pod.engines:
                return
            if all(self.free(name) >= engine.needs - engine.held for name in engine.accelerators):
                self._begin(pod, engine, State.WAKING, 0.5)
            else:
                self._wakes_later(pod, engine)

        self.later(self.random.uniform(0.1, 20), wakes)

    def _sleeps(self, pod: Pod, engine: Engine) -> None:
        if engine.state is State.DRAINING:
            half = self.chance(self.chances.frees_half)
            engine.asleep = (engine.needs - engine.brings) // (2 if half else 40)
            engine.held = engine.asleep + engine.weights
            self._move(pod, engine, State.ASLEEP)

    def _ends(self, pod: Pod, engine: Engine) -> None:
        if pod.engines.pop(engine.id, None) is not None:
            self._let_go(pod, engine)
            self._tell(pod)

    def dies(self, pod: Pod, engine: Engine) -> None:
        """kill -9 of its process."""
        if self.chance(self.chances.leaks):
            self._leak(engine)
        if isinstance(pod.fact, Server) and not pod.fact.pool:
            self.restart_server(pod.fact.uid)
            return
        engine.held, engine.why = engine.weights, "its process has ended"
        self._move(pod, engine, State.FAILED)

    def _let_go(self, pod: Pod, engine: Engine) -> None:
        engine.held, engine.weights, engine.state = 0, 0, State.OFF

    def _move(self, pod: Pod, engine: Engine, state: State, *, wanted: bool = False) -> None:
        engine.state, engine.wanted = state, wanted
        self._tell(pod)

    def _engines(self) -> list[Engine]:
        return [engine for pod in self.pods.values() for engine in pod.engines.values()]

    def free(self, accelerator: str) -> int:
        node = accelerator.rpartition("-")[0]
        held = sum(self._held(pod, accelerator) for pod in self.here[node].values())
        return self.total - held - self.foreign.get(accelerator, 0)

    def _held(self, pod: Pod, accelerator: str) -> int:
        here = [engine for engine in pod.engines.values() if accelerator in engine.accelerators]
        once = {engine.weights_name or engine.id: engine.weights for engine in here}
        return sum(engine.held - engine.weights for engine in here) + sum(once.values())

    def tell_all(self) -> None:
        for pod in list(self.pods.values()):
            self._tell(pod)

    def awake_or_asleep(self, wish: str) -> bool:
        return any(self.wishes.get(engine.id) == wish for engine in self._engines())

    def only(self) -> str:
        [engine] = self._engines()
        return engine.id

    def _tell(self, pod: Pod) -> None:
        fact = pod.fact
        if self.hushed:
            return
        if not isinstance(fact, Server) or not fact.running:
            return
        if not fact.pool and any(en.state in (State.WAKING, State.DRAINING) for en in pod.engines.values()):
            return  # it answers no question meanwhile
        seen = {}
        for engine in pod.engines.values():
            beside = engine.needs - max(engine.weights, engine.parked, engine.brings)
            sizes = beside if engine.measured else 0, engine.asleep, engine.weights, engine.parked
            each, asleep, weights, parked = (dict.fromkeys(engine.accelerators, count) for count in sizes)
            it = Instance(engine.id, engine.state, engine.accelerators, engine.why, each, asleep, weights, parked)
            name, wanted = engine.weights_name, engine.wanted
            seen[engine.id] = replace(it, last_used=engine.last_used, port=9, weights_name=name, wanted=wanted)
        memory = {}
        if fact.pool:
            for name in self.nodes[fact.node]:
                memory[name] = Memory(self.total, self.free(name), self._held(pod, name))
        self._heard(fact, Told(seen, memory))

    def _heard(self, fact: Server, told: Told) -> None:
        """By each that the controller believes to be at this address."""
        for place in list(self.machine.places.values()):
            for server in list(place.servers.values()):
                if server.ip != fact.ip or not server.running:
                    continue
                its = told
                if not server.pool and told.instances:  # which engine answers there isn't asked
                    engine = next(iter(told.instances.values()))
                    it = replace(engine, id=server.instance, accelerators=server.accelerators)
                    its = Told({it.id: it})
                self.feed(e.Tells(server.uid, its))

    # -- claims ----------------------------------------------------------------------------------------------------

    def ready(self, uid: str) -> bool:
        return bool(self.told_ready.get(uid)) and self.machine.waits[uid][0] is Phase.READY

    def servers(self) -> list[Server]:
        return [pod.fact for pod in self.pods.values() if isinstance(pod.fact, Server)]

    def quiet(self) -> None:
        """Claim D."""
        for uid, pod in self.pods.items():
            if isinstance(pod.fact, Requester) and not self.ready(uid):
                phase, sentence = self.machine.waits[uid]
                if not sentence:
                    raise Violation(f"{pod.fact.name} is {phase.value}, and there is no word why")
                if pod.fact.ready:
                    raise Violation(f"{pod.fact.name} is Ready, and {phase.value}")
        promised = {i for server in self.servers() for i in server.bindings}
        for engine in self._engines():
            if engine.state is State.AWAKE and engine.id not in promised:
                raise Violation(f"{engine.id} is awake for none")
        for one, other in itertools.combinations((en for en in self._engines() if en.state in HOT), 2):
            if one.accelerators & other.accelerators:
                raise Violation(f"{one.id} and {other.id} are {one.state.value} and {other.state.value} side by side")
        if any(server.ended for server in self.servers()):
            raise Violation("a server pod is left that has ended")


_CONTAINERS = [{"name": names.CONTAINER, "image": "engine:1"}]


def world(mode: Mode = Mode.SWAP, gpus: int = 2, **more: Any) -> World:
    settings = {name: more.pop(name) for name in list(more) if name in Settings.__dataclass_fields__}
    it = World(Settings(mode=mode, **settings), {"n": gpus}, **more)
    it.start()
    return it
