"""What is to be done on a node: one pure function of what is known of it. The rules stand in `machine.py`. Pure.

`plan(place, settings, now)` changes nothing. It returns the effects, in their order, what each requester waits for,
and when to look again.
"""

import enum
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dual_pods.rules import building, names, victims
from dual_pods.rules.events import Create, Effect, Launch, MarkPod, Order, PodOrder, Query, Relay, Say, key
from dual_pods.rules.facts import REST, Requester, Server
from dual_pods.rules.place import Mode, Place, Seen, Settings, Try, View
from dual_pods.rules.strategic import BadPatch
from pool.entries import State
from sidecar.terminal.formatting import size


class Phase(enum.Enum):
    """How far a requester is."""

    REFUSED = "refused"
    STARTING = "starting"
    ASKING = "asking"
    WAITING = "waiting"
    LAUNCHING = "launching"
    WAKING = "waking"
    READY = "ready"


@dataclass
class Plan:
    effects: list[Effect] = field(default_factory=list)
    waits: dict[str, tuple[Phase, str]] = field(default_factory=dict)
    """Requester -> how far it is, and what it waits for, in a sentence."""
    look_at: float = math.inf


_NONE = Try(busy=False)
_QUERIES = 8
_QUERY_S = 1.0
MakePool = Callable[[str], Mapping[str, Any]]
"""A node's name -> the pod of its pool."""


class Planner:
    """One plan in the making."""

    def __init__(self, place: Place, settings: Settings, make_pool: MakePool, kind: str, now: float) -> None:
        self.place, self.view, self.settings, self.now = place, View(place), settings, now
        self.make_pool, self.kind = make_pool, kind
        self.plan = Plan()
        self.bindings = {s.uid: dict[str, str]() for s in self.view.running}
        """As they are to be."""
        self.ending: set[str] = set()
        """Instances whose requesters are being told that they aren't ready any more."""
        self.promised: dict[str, str] = {}
        """Accelerator -> the requester that is served on it."""

    def make(self) -> Plan:
        place = self.place
        for uid, (server, instance) in self.view.bound.items():
            self.bindings[server.uid][instance] = uid
            for accelerator in place.accelerators.get(uid, ()):
                self.promised.setdefault(accelerator, uid)
        for requester in place.requesters.values():
            self._unready(requester)
        for requester in self.view.live:
            phase, sentence = self._serve(requester)
            self.plan.waits[requester.uid] = phase, sentence
        for requester in place.requesters.values():
            if requester.wrong:
                self.plan.waits[requester.uid] = Phase.REFUSED, requester.wrong
                self._say(requester, "Refused", requester.wrong, warning=True)
        if self.settings.every_node and place.node is not None and place.node.usable and self.view.pool is None:
            self._do(Create(place.name, "", dict(self.make_pool(place.name))))
        for seen in self.view.instances:
            self._rest(seen)
        for server in place.servers.values():
            self._keep(server)
        self._mark()
        return self.plan

    # -- doing -----------------------------------------------------------------------------------------------------

    def _do(self, effect: Effect) -> bool:
        """Once at a time, and not before its pause is over. False: it has to wait."""
        known = self.place.tries.get(key(effect))
        if known is not None and (known.busy or known.until > self.now):
            self._look_at(known.until if not known.busy else math.inf)
            return False
        self.plan.effects.append(effect)
        return True

    def _look_at(self, when: float) -> None:
        self.plan.look_at = min(self.plan.look_at, when)

    def _say(self, pod: Requester | Server, reason: str, sentence: str, *, warning: bool = False) -> None:
        effect = Say(pod, reason, sentence, warning)
        if key(effect) not in self.place.tries:
            self.plan.effects.append(effect)

    def _said(self, requester: Requester, effect: Effect) -> str:
        """Why it failed when it was tried last, which its requester is told; empty if it didn't."""
        known = self.place.tries.get(key(effect), _NONE)
        why = known.why
        if why and (not isinstance(effect, Query) or known.failures > _QUERIES):  # it listens a moment later
            self._say(requester, "Failed", why, warning=True)
        return why

    # -- one requester ---------------------------------------------------------------------------------------------

    def _unready(self, requester: Requester) -> None:
        """Rule 8: before anything else, one whose binding has ended is told so."""
        last = self.place.relayed.get(requester.uid)
        bound = requester.uid in self.view.bound
        if not bound and requester.running and last != () and (last is not None or requester.ready):
            relay = Relay(requester, ())
            self._do(relay)
            if not self.place.tries.get(key(relay), _NONE).failures:
                self.ending.add(requester.marks.get(names.INSTANCE, ""))

    def _serve(self, requester: Requester) -> tuple[Phase, str]:
        place = self.place
        if not requester.running or not requester.ip:
            return Phase.STARTING, requester.why or f"its container {names.CONTAINER} doesn't run yet"
        if requester.uid not in place.accelerators:
            query = Query(requester)
            self._do(query)
            why = self._said(requester, query)
            return Phase.ASKING, why or "it hasn't said yet which accelerators it has"
        late = place.since[requester.uid] + self.settings.bound_s
        found = self.view.bound.get(requester.uid)
        phase, sentence = self._drive(requester, *found) if found else self._bind(requester)
        if phase is not Phase.READY:
            self._look_at(late if late > self.now else math.inf)
            if late <= self.now:
                about = f"it isn't Ready after {self.settings.bound_s:g} s: {sentence}"
                self._say(requester, "Late", about, warning=True)
        return phase, sentence

    def _bind(self, requester: Requester) -> tuple[Phase, str]:
        """Rules 1 to 7: finds an instance, or room for one, and promises it."""
        place, settings = self.place, self.settings
        accelerators = place.accelerators[requester.uid]
        blocked = self._blocked()
        if blocked:
            return Phase.WAITING, blocked
        other = next((uid for a in accelerators if (uid := self.promised.get(a, requester.uid)) != requester.uid), "")
        if other:
            name = place.requesters[other].name
            return Phase.WAITING, f"{name} is served on {', '.join(accelerators)}, which were given to both"
        instance = self.view.wished(requester.uid)
        for accelerator in accelerators:
            self.promised[accelerator] = requester.uid
        waits = self._quiet(accelerators, instance)
        if waits:
            return Phase.WAITING, waits
        seen = self.view.find(instance)
        if seen is not None and (seen.server.leaving or seen.it.state in (State.STOPPING, State.DRAINING)):
            return Phase.WAITING, f"instance {instance} in server pod {seen.server.name} is {seen.it.state.value}"
        server = seen.server if seen is not None else self.view.pool if settings.mode is Mode.SWAP else None
        if settings.mode is Mode.SWAP and server is None:
            return self._make_pool(requester)
        if seen is None or seen.it.state is not State.AWAKE:
            missing = self._room(requester, seen)
            if missing:
                return Phase.WAITING, missing
        if server is None:
            return self._make_single(requester, instance)
        self.bindings[server.uid][instance] = requester.uid
        self._say(requester, "Bound", f"it is bound to instance {instance} in server pod {server.name}")
        return Phase.WAITING, f"it is being bound to instance {instance} in server pod {server.name}"

    def _blocked(self) -> str:
        """Rule 1: why nothing may be promised on this node at the moment."""
        node = self.place.node
        if node is None:
            return f"node {self.place.name} isn't there"
        if not node.usable:
            return f"node {node.name} isn't the controller's: it lacks the taint of those that are"
        if not node.ready:
            return f"node {node.name} isn't ready"
        return self.view.silent

    def _quiet(self, accelerators: Iterable[str], instance: str) -> str:
        """Rule 3: a sentence about who still holds one of these accelerators; empty when none does."""
        hot = self.view.hot(accelerators, instance)
        for seen in hot:
            if seen.it.state in (State.LOADING, State.FAILED, State.WAKING) and not seen.bound:
                self._end(seen)  # it would keep the accelerator for as long as it takes to load
        if not hot:
            return ""
        it, server = hot[0].it, hot[0].server
        why = f" ({it.why})" if it.why else ""
        return f"instance {it.id} in server pod {server.name} is {it.state.value}{why}, on an accelerator of this one"

    def _end(self, seen: Seen) -> None:
        if seen.server.pool:
            self._do(Order("delete", seen.server, seen.it.id))
        elif not seen.server.leaving:
            self._do(PodOrder("delete-pod", seen.server))

    def _room(self, requester: Requester, seen: Seen | None) -> str:
        """Rules 6 and 7: sends sleepers away where they hold too much. A sentence while there is too little room."""
        place, settings = self.place, self.settings
        memory, needs = self.view.memory, self.view.needs(requester, seen)
        if not memory:
            return self._measured_room(requester, seen)
        instance = seen.it.id if seen is not None else self.view.wished(requester.uid)
        sleepers = self.view.sleepers(instance)
        short: dict[str, int] = {}
        for name in place.accelerators[requester.uid]:
            if name not in memory:
                return f"the ledger of {place.name} knows no accelerator {name}; it has {', '.join(sorted(memory))}"
            if needs[name] > memory[name].total:
                has = f"{name} has {size(memory[name].total)}"
                return f"it needs {size(needs[name])} and can never fit: {has}"
            short[name] = max(needs[name] - memory[name].free, 0)
            if seen is None and settings.sleepers_bytes is not None:
                short[name] = max(short[name], self.view.asleep_bytes(name) - settings.sleepers_bytes)
        going = victims.enough(sleepers, short)
        if going is None:
            name = max(short, key=lambda each: short[each])
            m = memory[name]
            held = f"{size(m.leased)} are leased" if m.leased else "none is leased"
            return (
                f"{name} has {size(m.free)} of {size(m.total)} free and {size(needs[name])} are needed; {held}, so a "
                "process outside the ledger holds the rest, or a previous engine isn't gone yet"
            )
        return self._evict(going)

    def _measured_room(self, requester: Requester, seen: Seen | None) -> str:
        """Rule 6 where there is no ledger: the specification's. One cover at a time, and only by figures that are newer
        than the last sleep."""
        place, settings = self.place, self.settings
        if seen is not None or settings.sleepers_bytes is None or settings.mode is Mode.DIRECT:
            return ""
        accelerators = place.accelerators[requester.uid]
        over = []
        for name in accelerators:
            used, at = place.used.get(name, (0, -math.inf))
            due = place.slept.get(name, -math.inf) + settings.measured_after_s
            if name not in place.used or at < due:
                self._query_again(requester, due)
            if name not in place.used:
                return f"the memory in use on {name} hasn't been measured yet"
            if at < due:
                return f"the memory in use on {name} hasn't been measured since an instance there went to sleep"
            if used > settings.sleepers_bytes:
                over.append(name)
        going = victims.cover(self.view.sleepers(self.view.wished(requester.uid)), frozenset(over))
        if going is None:
            return f"{size(place.used[over[0]][0])} are in use on {over[0]}, and no sleeper can go"
        return self._evict(going)

    def _query_again(self, requester: Requester, due: float) -> None:
        """Where there is no Prometheus, the memory in use is what a requester says with its accelerators."""
        again = max(due, self.place.queried.get(requester.uid, -math.inf) + _QUERY_S)
        if again > self.now:
            self._look_at(again)
        else:
            self._do(Query(requester))

    def _evict(self, going: list[victims.Sleeper]) -> str:
        for sleeper in going:
            seen = self.view.find(sleeper.name)
            assert seen is not None
            self._end(seen)
            self._say(seen.server, "Evicted", f"instance {sleeper.name}, which sleeps, goes: its memory is needed")
        return f"sleeping instances go first: {', '.join(s.name for s in going)}" if going else ""

    def _make_pool(self, requester: Requester) -> tuple[Phase, str]:
        body = dict(self.make_pool(self.place.name))
        create = Create(self.place.name, "", body)
        self._do(create)
        why = self._said(requester, create)
        return Phase.LAUNCHING, why or f"server pod {body['metadata']['name']} is being made"

    def _make_single(self, requester: Requester, instance: str) -> tuple[Phase, str]:
        """Rules 4 and 5: the pod comes with its binding."""
        assert requester.ask is not None
        accelerators = self.place.accelerators[requester.uid]
        direct = self.settings.mode is Mode.DIRECT
        more = "" if direct else instance[1:]
        name = names.server_name(self.place.name, accelerators, more)
        body = building.single(requester.ask, instance, self.place.name, accelerators, name, self.kind)
        annotations = {**body["metadata"]["annotations"], names.BINDINGS: json.dumps({instance: requester.uid})}
        meta = {**body["metadata"], "annotations": annotations}
        if direct:  # it goes with its requester, even when no controller is there
            meta["ownerReferences"] = [_owner(requester)]
        body = {**body, "metadata": meta}
        create = Create(self.place.name, requester.namespace, body)
        if self._do(create):
            self._say(requester, "Launching", f"server pod {name} is made for it, with instance {instance}")
        return Phase.LAUNCHING, self._said(requester, create) or f"server pod {name} is being made"

    def _drive(self, requester: Requester, server: Server, instance: str) -> tuple[Phase, str]:
        """Rules 5, 7, 8 and 10: what its instance needs next."""
        seen = self.view.find(instance)
        if seen is None:
            return self._launch(requester, server, instance)
        it = seen.it
        where = f"instance {instance} in server pod {server.name}"
        if it.state is State.AWAKE:
            return self._relay(requester, seen)
        if it.state in REST:
            quiet = self._quiet(it.accelerators, instance)
            missing = quiet or self._room(requester, seen)
            if missing:
                return Phase.WAITING, missing
            wake = Order("wake", server, instance)
            if self._do(wake) and it.state is not State.OFF:
                self._say(requester, "Waking", f"{where} is waked for it")
            phase = Phase.LAUNCHING if it.state is State.OFF else Phase.WAKING
            return phase, self._said(requester, wake) or f"{where} is being waked"
        if it.state is State.FAILED:
            return self._again(requester, seen)
        phase = Phase.LAUNCHING if it.state is State.LOADING else Phase.WAKING
        before = self.place.tries.get(("wake", server.uid, instance), _NONE).why
        return phase, f"{where} is {it.state.value}: {it.why or before}".removesuffix(": ")

    def _launch(self, requester: Requester, server: Server, instance: str) -> tuple[Phase, str]:
        assert requester.ask is not None
        if not server.running or server.uid not in self.place.told:
            return Phase.LAUNCHING, f"server pod {server.name} doesn't run yet" + (f": {server.why}" * bool(server.why))
        failed = self.place.tries.get(("wake", server.uid, instance), _NONE)
        if failed.failures and failed.until > self.now:  # made anew, it would fail as soon again
            self._look_at(failed.until)
            return Phase.LAUNCHING, f"it has failed {failed.failures} times, and waits a while: {failed.why}"
        accelerators = self.place.accelerators[requester.uid]
        missing = self._quiet(accelerators, instance) or self._room(requester, None)
        if missing:
            return Phase.WAITING, missing
        try:
            entry = building.launch(requester.ask, instance, accelerators)
        except BadPatch as error:
            self._say(requester, "Refused", str(error), warning=True)
            return Phase.REFUSED, str(error)
        launch = Launch(server, instance, entry)
        if self._do(launch):
            self._say(requester, "Launching", f"instance {instance} is launched for it in server pod {server.name}")
        return Phase.LAUNCHING, self._said(requester, launch) or f"instance {instance} is being launched"

    def _again(self, requester: Requester, seen: Seen) -> tuple[Phase, str]:
        """Rule 10: what failed is said, and tried again: waked at first, then made anew."""
        it, server = seen.it, seen.server
        sentence = f"instance {it.id} failed: {it.why or 'its server pod says no more'}"
        self._say(requester, "Failed", sentence, warning=True)
        wake = Order("wake", server, it.id)
        if server.pool and self.place.tries.get(key(wake), _NONE).failures < self.settings.tries:
            self._do(wake)
        else:
            self._end(seen)
        return Phase.LAUNCHING, sentence

    def _relay(self, requester: Requester, seen: Seen) -> tuple[Phase, str]:
        server, it = seen.server, seen.it
        if server.pool:
            if not it.port:
                return Phase.WAKING, f"instance {it.id} is awake, and server pod {server.name} gives it no port yet"
            base = f"http://{_host(server.ip)}:{server.port}/failover/models"
            target = (f"{base}/{it.id}/ready", f"{base}?watch=1", server.ip, str(it.port), str(requester.restarts))
        else:
            probe, path = server.probe
            target = (f"http://{_host(server.ip)}:{probe}{path}", "", server.ip, "0", str(requester.restarts))
        if self.place.relayed.get(requester.uid) != target:
            relay = Relay(requester, target)
            self._do(relay)
            why = self._said(requester, relay)
            return Phase.WAKING, why or f"it is being told that instance {it.id} is awake"
        return Phase.READY, f"instance {it.id} in server pod {server.name} is awake"

    # -- instances and server pods ---------------------------------------------------------------------------------

    def _rest(self, seen: Seen) -> None:
        """Rule 9: what is promised to none doesn't stay awake."""
        it, server = seen.it, seen.server
        if it.id in self.bindings.get(server.uid, {}) or server.leaving or it.id in self.ending:
            return
        if self.settings.mode is Mode.DIRECT or it.state is State.FAILED:
            self._end(seen)
        elif it.state is State.AWAKE:
            if self._do(Order("sleep", server, it.id)):
                self._say(server, "Sleeping", f"instance {it.id} goes to sleep: no requester has it")
        elif it.state is State.OFF and server.pool:
            self._do(Order("delete", server, it.id))  # it was launched for a requester that has gone

    def _keep(self, server: Server) -> None:
        """Rule 11: a server pod that has ended goes, and nothing of it before it has."""
        gone = self.place.gone_since
        node_gone = gone is not None and self.now >= gone + self.settings.node_gone_s
        if gone is not None and not node_gone:
            self._look_at(gone + self.settings.node_gone_s)
        if server.ended or node_gone:
            if not server.leaving:
                self._say(server, "Ended", server.why or "its containers have ended", warning=True)
                self._do(PodOrder("delete-pod", server))
            elif server.held:
                self._do(PodOrder("release", server))

    # -- marks -----------------------------------------------------------------------------------------------------

    def _mark(self) -> None:
        """Rules 4 and 12."""
        bound = self.view.bound
        for requester in self.place.requesters.values():
            if requester.leaving:
                continue
            where = bound.get(requester.uid)
            phase, sentence = self.plan.waits.get(requester.uid, (Phase.STARTING, ""))
            status = {"Errors": [sentence] if phase is Phase.REFUSED else [], "Phase": phase.value, "Says": sentence}
            accelerators = self.place.accelerators.get(requester.uid)
            annotations: dict[str, str | None] = {names.STATUS: json.dumps(status)}
            if accelerators is not None:
                annotations[names.ACCELERATORS] = ",".join(accelerators)
            if requester.old:
                annotations[names.OLD_ADDRESS] = where[0].ip if where and phase is Phase.READY else None
            labels = {names.DUAL: where[0].name if where else None, names.INSTANCE: where[1] if where else None}
            self._mark_pod(requester, labels, annotations)
        for server in self.view.running:
            self._mark_server(server)

    def _mark_server(self, server: Server) -> None:
        wanted = self.bindings[server.uid]
        known = {uid: r.name for uid, r in self.place.requesters.items()}
        duals = sorted({known[uid] for uid in wanted.values() if uid in known})
        told = self.place.told.get(server.uid)
        labels: dict[str, str | None] = {names.DUAL: duals[0] if len(duals) == 1 else None}
        annotations: dict[str, str | None] = {names.BINDINGS: json.dumps(wanted, sort_keys=True) if wanted else None}
        if told is not None and not server.pool:
            sleeps = all(it.state is State.ASLEEP for it in told.instances.values())
            annotations[names.ASLEEP_SINCE] = server.marks.get(names.ASLEEP_SINCE, repr(self.now)) if sleeps else None
        if told is not None:
            states = [it.state for it in told.instances.values()]
            labels[names.SLEEPING] = "true" if states and all(state is State.ASLEEP for state in states) else "false"
            if told.memory and server.pool:
                annotations[names.ACCELERATORS] = ",".join(sorted(told.memory))
        self._mark_pod(server, labels, annotations)

    def _mark_pod(
        self, pod: Requester | Server, labels: Mapping[str, str | None], annotations: Mapping[str, str | None]
    ) -> None:
        new_labels = {key: value for key, value in labels.items() if pod.marks.get(key) != value}
        new = {key: value for key, value in annotations.items() if pod.marks.get(key) != value}
        if new_labels or new:
            self._do(MarkPod(pod, new_labels, new))


def _owner(requester: Requester) -> dict[str, Any]:
    kind = {"apiVersion": "v1", "kind": "Pod", "controller": True}
    return {**kind, "name": requester.name, "uid": requester.uid}


def _host(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
