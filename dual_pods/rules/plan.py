"""What is to be done on a node: one pure function of what is known of it. The rules stand in `machine.py`. Pure.

`Plan(place, settings, now).make()` changes nothing but itself: what is to be done, in its order, what each requester
waits for, and when to look again.
"""

import enum
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

from dual_pods.rules import building, names, victims
from dual_pods.rules.events import Create, Effect, Fault, Key, Mark, Order, Query, Relay, Say, key
from dual_pods.rules.facts import REST, Instance, Pod, Requester, Server
from dual_pods.rules.place import Mode, Place, Seen, Settings, Try, View
from dual_pods.rules.standing import Target
from dual_pods.rules.strategic import BadPatch
from pool.entries import State
from sidecar.terminal.formatting import size

_NONE = Try(busy=False)
_UNSAID = 8
"""So often may fail what works a moment later: its requester isn't told before."""
_SAID_MOST = 20
"""So many sentences about a pod are said under one reason. Its status goes on."""


class Phase(enum.Enum):
    """How far a requester is."""

    REFUSED = "refused"
    STARTING = "starting"
    ASKING = "asking"
    WAITING = "waiting"
    LAUNCHING = "launching"
    WAKING = "waking"
    READY = "ready"
    LEAVING = "leaving"


class Plan:
    def __init__(self, place: Place, settings: Settings, now: float) -> None:
        self.place, self.view, self.settings, self.now = place, View(place), settings, now
        self.effects: list[Effect] = []
        self.waits: dict[str, tuple[Phase, str]] = {}
        """Requester -> how far it is, and what it waits for, in a sentence."""
        self.look_at = min((it.until for it in place.tries.values() if it.until > now), default=math.inf)
        """Once the first pause is over, or sooner."""
        self.evictions = 0
        self.bindings = {s.uid: dict[str, str]() for s in self.view.running}
        """As they are to be."""
        self.ending: set[str] = set()
        """Instances whose requesters are being told that they aren't ready any more, or may still pass on answers where
        there is no pool, which waits for those by itself."""
        self.promised: dict[str, str] = {}
        """Accelerator -> the requester that is served on it."""

    def make(self) -> None:
        place = self.place
        for unread in place.unread.values():  # what it has isn't known
            self.hold(*unread)
            return
        for uid, (server, instance) in self.view.bound.items():
            self.bindings[server.uid][instance] = uid
            for accelerator in self.view.accelerators(uid):
                self.promised.setdefault(accelerator, uid)
        for requester in place.requesters.values():
            self._unready(requester)
        for requester in self.view.live:
            self.waits[requester.uid] = self._serve(requester)
        every_node = self.settings.taint and self.settings.mode is Mode.SWAP
        has_pool = any(server.pool for server in place.servers.values())
        if every_node and place.node is not None and place.node.usable and not has_pool:
            self._do(self._pool_pod())
        for seen in self.view.instances:
            self._rest(seen)
        for server in place.servers.values():
            self._keep(server)
        for requester in self.view.live:
            self._mark_requester(requester)
        for server in self.view.running:
            self._mark_server(server)

    def hold(self, what: str, fault: Exception) -> None:
        """A fault of ours: all there stays as it is, and each requester is told so."""
        known = Fault(self.place.name, what, fault)
        self._do(known)
        for requester in self.view.live:
            phase, why = self._meets(requester, known)
            self.waits[requester.uid] = phase, f"node {self.place.name} is left as it is: {why}"
            self._mark_pod(requester, {}, {names.STATUS: self._status(requester)})

    def _meets(self, requester: Requester, fault: Fault) -> tuple[Phase, str]:
        why = self._do_for(requester, fault) or "a fault of the controller"
        return Phase.READY if requester.ready else Phase.WAITING, why

    # -- doing -----------------------------------------------------------------------------------------------------

    def _do(self, effect: Effect) -> bool:
        """Once at a time, and not before its pause is over. False: it has to wait."""
        known = self._tried(effect)
        if known.busy or known.until > self.now or effect in self.effects:
            return False
        self.effects.append(effect)
        return True

    def _tried(self, effect: Effect) -> Try:
        return self.place.tries.get(key(effect), _NONE)

    def _look_at(self, when: float) -> None:
        if when > self.now:
            self.look_at = min(self.look_at, when)

    def _say(self, pod: Pod, reason: str, sentence: str, *, warning: bool = False) -> None:
        """Once: what was said is held back for ever. What others say may be new each time, as with a request's id."""
        if self._said["say", pod.uid, reason] < _SAID_MOST:
            self._do(Say(pod, reason, sentence, warning))

    @cached_property
    def _said(self) -> Counter[Key]:
        return Counter(key[:3] for key in self.place.tries)

    def _do_anew(self, order: Order, reason: str, says: str) -> bool:
        """And says so. False as well where it is only tried again: it failed, or nothing was heard of it."""
        known, say = self._tried(order), Say(order.server, reason, says, again=True)
        is_new = self._do(order) and not known.until
        if is_new or self._tried(say).why:
            self._do(say)
        return is_new

    def _do_for(self, requester: Requester, effect: Effect, reason: str = "", says: str = "") -> str:
        """Why it failed when it was tried last, which its requester is told; empty if it didn't."""
        if self._do(effect) and says:
            self._say(requester, reason, says)
        known = self._tried(effect)
        if known.why and (not isinstance(effect, Query) or known.failures > _UNSAID):  # it listens a moment later
            self._say(requester, "Failed", known.why, warning=True)
        return known.why

    # -- one requester ---------------------------------------------------------------------------------------------

    def _unready(self, requester: Requester) -> None:
        """Rule 8: before anything else, one whose binding has ended is told so."""
        last = self.place.relayed.get(requester.uid)
        if requester.uid not in self.view.bound and requester.running and (last[0] if last else requester.ready):
            relay = Relay(requester, None)
            self._do(relay)
            if not self._tried(relay).failures:
                self.ending.add(requester.marks.get(names.INSTANCE, ""))
        if self.settings.mode is not Mode.SWAP and requester.leaving and requester.running:  # its answers go on
            self.ending.add(requester.marks.get(names.INSTANCE, ""))

    def _serve(self, requester: Requester) -> tuple[Phase, str]:
        try:
            phase, sentence = self._advance(requester)
        except BadPatch as error:
            phase, sentence = Phase.REFUSED, str(error)
            self._say(requester, "Refused", sentence, warning=True)
        except Exception as fault:  # one of ours is its alone: what was done for it may be done by itself
            phase, sentence = self._meets(requester, Fault(requester.uid, f"plan {requester.name}", fault))
        since = self.place.unready_since.get(requester.uid, requester.created)
        if phase is Phase.READY:  # kubelet says so a moment later
            since = max(since, self.place.told_at.get(requester.uid, self.now))
        late = since + self.settings.bound_s
        if phase is not Phase.REFUSED and not requester.ready:  # a new one knows nothing yet
            self._look_at(late)
            if late <= self.now and phase is Phase.READY:
                phase, sentence = Phase.WAKING, f"{sentence}, and its own pod isn't Ready: its log says why"
            if late <= self.now:
                about = f"it isn't Ready after {self.settings.bound_s:g} s: {sentence}"
                self._do(Say(requester, "Late", about, warning=True, since=requester.unready_since))
        return phase, sentence

    def _advance(self, requester: Requester) -> tuple[Phase, str]:
        """Raises BadPatch where it can never be served, with the reason."""
        if requester.ask is None:
            raise BadPatch(requester.wrong)
        if not requester.running or not requester.ip:
            says = f"its container {names.CONTAINER} doesn't run yet: {requester.why}"
            return Phase.STARTING, says.removesuffix(": ")
        if requester.uid not in self.place.accelerators:
            why = self._do_for(requester, Query(requester))
            return Phase.ASKING, why or "it hasn't said yet which accelerators it has"
        found = self.view.bound.get(requester.uid)
        return self._drive(requester, *found) if found else self._bind(requester)

    def _bind(self, requester: Requester) -> tuple[Phase, str]:
        """Rules 1 to 7: finds an instance, or room for one, and promises it."""
        place, swaps = self.place, self.settings.mode is Mode.SWAP
        accelerators = place.accelerators[requester.uid]
        if blocked := self._blocked(accelerators):
            return Phase.WAITING, blocked
        other = next((uid for a in accelerators if (uid := self.promised.get(a, requester.uid)) != requester.uid), "")
        if other:
            name = place.requesters[other].name
            return Phase.WAITING, f"{name} is served on {', '.join(accelerators)}, which were given to both"
        taken = {name for seen in self.view.instances if not seen.it.at_rest for name in seen.it.accelerators}
        taken |= set() if swaps else self.promised.keys()  # a pool knows one name of each
        if len({name[0].isdigit() for name in (*taken, *accelerators)}) > 1:
            some = "some accelerators are called by number here and some aren't, so"
            return Phase.WAITING, f"{some} {', '.join(accelerators)} and {', '.join(sorted(taken))} may be the same"
        instance = self.view.wished(requester.uid)
        self.promised |= dict.fromkeys(accelerators, requester.uid)
        if waits := self._what_is_hot(accelerators, instance):
            return Phase.WAITING, waits
        seen = self.view.find(instance)
        if seen is not None and (seen.server.leaving or seen.it.state in (State.STOPPING, State.DRAINING)):
            state = "leaving" if seen.server.leaving else seen.it.state.value
            return Phase.WAITING, f"instance {instance} in server pod {seen.server.name} is {state}"
        server = seen.server if seen is not None else self.view.pool if swaps else None
        if swaps and server is None:
            return self._create(requester, self._pool_pod())
        has_begun = seen is not None and seen.it.state in (State.LOADING, State.WAKING, State.AWAKE)
        if not has_begun and (missing := self._make_room(requester, seen)):  # else some of what is in use is its own
            return Phase.WAITING, missing
        if server is None:
            create = self._single_pod(requester, instance)
            says = f"server pod {create.body['metadata']['name']} is made for it, with instance {instance}"
            return self._create(requester, create, says)
        self.bindings[server.uid][instance] = requester.uid
        binding = self._tried(Mark(server, {}, {}))
        why = f": {binding.why}" if binding.failures > _UNSAID else ""  # others write on it, too
        return Phase.WAITING, f"it is being bound to instance {instance} in server pod {server.name}{why}"

    def _blocked(self, accelerators: Iterable[str]) -> str:
        """Rule 1: why nothing may be promised on these of this node at the moment."""
        node = self.place.node
        if node is None:
            return f"node {self.place.name} isn't there"
        if not node.usable:
            return f"node {node.name} isn't the controller's: it lacks the taint of those that are"
        return self.view.silent(accelerators) if node.ready else f"node {node.name} isn't ready"

    def _what_is_hot(self, accelerators: Iterable[str], instance: str) -> str:
        """Rule 3: which instance still holds one of these accelerators, or may soon; empty when none does."""
        hot = self.view.hot(accelerators, instance)
        if not hot:
            return self._what_was_asked(frozenset(accelerators), instance)
        it, server = hot[0].it, hot[0].server
        why = it.why or self._tried(Order("sleep", server, it.id)).why
        why = f" ({why})" if why else ""
        state = "to be waked" if it.wanted else it.state.value
        return f"instance {it.id} in server pod {server.name} is {state}{why}, on an accelerator of this one"

    def _what_was_asked(self, accelerators: frozenset[str], instance: str) -> str:
        """One that is promised to none any more may begin yet. Where it isn't there, it is on any accelerator."""
        asked = [key for key in self.place.tries if key[0] in ("launch", "wake")]
        for what, uid, it in asked:
            seen, its = self.view.find(it), self.bindings.get(uid, {})
            elsewhere = seen is not None and seen.it.accelerators.isdisjoint(accelerators)
            if it == instance or it in its or elsewhere or (what == "launch" and seen is not None):
                continue
            if self._is_awaited(self.place.tries[what, uid, it]):
                return f"instance {it} was asked to {what}, and hasn't done so yet"
        return ""

    def _is_awaited(self, known: Try) -> bool:
        """It was asked for, or is being, and what becomes of it hasn't shown."""
        return known.busy or (known.until > self.now and not known.why)

    def _make_room(self, requester: Requester, seen: Seen | None) -> str:
        """Rules 6 and 7: sends sleepers away where they hold too much. A sentence while there is too little room.
        Raises BadPatch where there can never be enough.
        """
        memory, most = self.view.memory, self.settings.sleepers_bytes
        if not memory:
            return self._make_room_as_measured(requester, seen)
        needs, short = self.view.needs(requester, seen), dict[str, int]()
        assert requester.ask is not None
        needed = building.weights_name(requester.ask, needs)
        for name, count in needs.items():
            if name not in memory:
                has = ", ".join(sorted(memory))
                raise BadPatch(f"the ledger of {self.place.name} knows no accelerator {name}; it has {has}")
            if count > memory[name].total:
                raise BadPatch(f"it needs {size(count)} and can never fit: {name} has {size(memory[name].total)}")
            short[name] = count - memory[name].free
            if seen is None and most is not None:
                at_rest = {s.it.id for s in self.view.instances if s.it.state is State.ASLEEP}
                asleep = (it.holds(name) for it in self.view.each_once(at_rest, needed) if it.id in at_rest)
                short[name] = max(short[name], sum(asleep) - most)
        sleepers = self.view.sleepers(self.view.wished(requester.uid), needed)
        going = victims.enough(sleepers, short, self._leaving())
        if going is None:
            name = max(short, key=lambda each: short[each])
            m = memory[name]
            lack = f"{name} has {size(m.free)} of {size(m.total)} free and {size(needs[name])} are needed"
            held = f"{size(m.leased)} are leased" if m.leased else "none is leased"
            who = "to what can't go for it (`vramctl status` there says to what)"
            if m.free + m.leased < m.total:
                who = "so a process outside the ledger holds the rest, or a previous engine isn't gone yet"
            return f"{lack}; {held}, {who}"
        return self._evict(going)

    def _make_room_as_measured(self, requester: Requester, seen: Seen | None) -> str:
        """Rules 6 and 7 where there is no ledger: the specification's. One cover at a time, and only by figures that
        are newer than the last sleep. Its own instance goes last, and never while it may be waking."""
        place, settings, query = self.place, self.settings, Query(requester)
        if settings.sleepers_bytes is None or settings.mode is Mode.DIRECT:
            return ""
        over = []
        for name in place.accelerators[requester.uid]:
            used, at = place.used.get(name, (0, -math.inf))
            due = place.slept.get(name, -math.inf) + settings.measured_after_s
            if name not in place.used or at < due:
                self._look_at(due)
                if due <= self.now:  # where there is no Prometheus, a requester says it with its accelerators
                    self._do(query)
                since = " since an instance there went to sleep" if name in place.used else " yet"
                why = self._tried(query).why or place.unmeasured
                return f"the memory in use on {name} hasn't been measured{since}: {why}".removesuffix(": ")
            if used > settings.sleepers_bytes:
                over.append(name)
        others, goes = self.view.sleepers(self.view.wished(requester.uid)), self._leaving()
        leaving = [it for it in others if it.id in goes and not it.accelerators.isdisjoint(over)]
        going = victims.cover(others, frozenset(over).difference(*(it.accelerators for it in leaving)))
        if going is None and seen is not None and not self._may_be_waking(requester, seen):
            going = victims.cover([*others, seen.it], frozenset(over))
        if going is None:
            self._do(query)
            return f"{size(place.used[over[0]][0])} are in use on {over[0]}, and no sleeper can go"
        return self._evict([*leaving, *going])

    def _may_be_waking(self, requester: Requester, seen: Seen) -> bool:
        """Because this controller asked, or one before it; what is in use may be its own then. One that was waked in
        vain may hold it for ever."""
        has_failed = self._tried(Order("wake", seen.server, seen.it.id)).why
        return bool(seen.bound) and not has_failed and self.now < requester.created + self.settings.bound_s

    def _leaving(self) -> set[str]:
        """Those that go already, for another requester: what they give back isn't asked of others as well."""
        going = ((s.it.id, _deletion(s)) for s in self.view.instances)
        return {it for it, order in going if order in self.effects or self._is_awaited(self._tried(order))}

    def _evict(self, going: Iterable[Instance]) -> str:
        ids, whys = {sleeper.id for sleeper in going}, set[str]()
        for seen in (seen for seen in self.view.instances if seen.it.id in ids):
            says = f"instance {seen.it.id}, which sleeps, goes: its memory is needed"
            self.evictions += self._do_anew(_deletion(seen), "Evicted", says)
            whys.add(self._tried(_deletion(seen)).why)
        says = f"sleeping instances go first: {', '.join(sorted(ids))}"
        return ": ".join([says, *sorted(whys - {""})]) if ids else ""

    def _create(self, requester: Requester, create: Create, says: str = "") -> tuple[Phase, str]:
        name = create.body["metadata"]["name"]
        if name in {server.name for server in self.place.servers.values()}:  # it would be tried in vain, and then late
            return Phase.WAITING, f"server pod {name} of before is leaving"
        why = self._do_for(requester, create, "Launching", says)
        return Phase.LAUNCHING, why or f"server pod {name} is being made"

    def _pool_pod(self) -> Create:
        node, it = self.place.name, self.settings
        name = names.server_name(node, ())
        return Create(node, "", building.pool(it.template, node, name, it.resource, it.taint))

    def _single_pod(self, requester: Requester, instance: str) -> Create:
        """Rules 4 and 5: the pod comes with its binding."""
        assert requester.ask is not None
        node, accelerators = self.place.name, self.place.accelerators[requester.uid]
        direct = self.settings.mode is Mode.DIRECT
        name = names.server_name(node, accelerators, "" if direct else instance[1:])
        body = building.single(requester.ask, instance, node, accelerators, name, self.settings.resource)
        body["metadata"]["annotations"][names.BINDINGS] = json.dumps({instance: requester.uid})
        body["metadata"]["labels"][names.DUAL] = names.label(requester.name)
        if direct:  # it goes with its requester, even when no controller is there
            owner = {"apiVersion": "v1", "kind": "Pod", "name": requester.name, "uid": requester.uid}
            body["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        return Create(node, requester.namespace, body)

    def _drive(self, requester: Requester, server: Server, instance: str) -> tuple[Phase, str]:
        """Rules 5, 7, 8 and 10: what its instance needs next."""
        if requester.marks.get(names.INSTANCE) != instance:
            self._say(requester, "Bound", f"it is bound to instance {instance} in server pod {server.name}")
        seen = self.view.find(instance)
        if seen is None or seen.it.state is not State.AWAKE:  # FMA's asks no instance
            last, rests = self.place.relayed.get(requester.uid), Target(host=server.ip, stays=True)
            was_heard = last is not None or not self.view.is_silent(server)
            if was_heard and (last[0] not in (None, rests) if last else requester.ready):
                self._do(Relay(requester, rests))
        if seen is None:
            return self._launch(requester, server, instance)
        it, where = seen.it, f"instance {instance} in server pod {server.name}"
        wake = Order("wake", server, instance)
        if it.state is State.AWAKE:
            return self._relay(requester, seen)
        if it.state is State.FAILED or self._failed_often(seen):
            return self._again(requester, seen)
        if it.state in REST:
            if missing := self._make_room_to_wake(requester, seen):
                return Phase.WAITING, missing
            phase, says = Phase.LAUNCHING, ""
            if it.state is State.ASLEEP:
                phase, says = Phase.WAKING, f"{where} is waked for it"
            return phase, self._do_for(requester, wake, "Waking", says) or f"{where} is being waked"
        if server.gated:
            if missing := self._what_is_hot(it.accelerators, instance):
                return Phase.WAITING, missing
            return Phase.LAUNCHING, self._do_for(requester, Order("admit", server)) or f"{where} may begin"
        phase = Phase.LAUNCHING if it.state is State.LOADING else Phase.WAKING
        return phase, f"{where} is {it.state.value}: {it.why or self._tried(wake).why}".removesuffix(": ")

    def _make_room_to_wake(self, requester: Requester, seen: Seen) -> str:
        """Rules 3, 6 and 7. What is missing; once it has been asked it may hold more already, and isn't looked at."""
        if self._is_awaited(self._tried(Order("wake", seen.server, seen.it.id))):
            return ""
        return self._what_is_hot(seen.it.accelerators, seen.it.id) or self._make_room(requester, seen)

    def _launch(self, requester: Requester, server: Server, instance: str) -> tuple[Phase, str]:
        assert requester.ask is not None
        accelerators = self.place.accelerators[requester.uid]
        if silent := self.view.silent(accelerators):
            return Phase.LAUNCHING, silent
        if not server.running:
            return Phase.LAUNCHING, f"server pod {server.name} doesn't run yet: {server.why}".removesuffix(": ")
        failed = self._tried(Order("wake", server, instance))
        if failed.failures and failed.until > self.now:  # made anew, it would fail as soon again
            return Phase.LAUNCHING, f"it has failed {failed.failures} times, and waits a while: {failed.why}"
        if missing := self._what_is_hot(accelerators, instance) or self._make_room(requester, None):
            return Phase.WAITING, missing
        launch = Order("launch", server, instance, building.launch(requester.ask, instance, accelerators))
        if unused := ", ".join(requester.ask.unused):
            says = f"a pool runs it, so these fields of its server patch mean nothing: {unused}"
            self._say(requester, "Unused", says, warning=True)
        says = f"instance {instance} is launched for it in server pod {server.name}"
        why = self._do_for(requester, launch, "Launching", says)
        return Phase.LAUNCHING, why or f"instance {instance} is being launched"

    def _again(self, requester: Requester, seen: Seen) -> tuple[Phase, str]:
        """Rule 10: what failed is said, and tried again: waked at first, then made anew."""
        why = self._failed_often(seen) or seen.it.why or "its server pod says no more"
        sentence = f"instance {seen.it.id} failed: {why}"
        self._say(requester, "Failed", sentence, warning=True)
        wake = Order("wake", seen.server, seen.it.id)
        if not seen.server.pool or self._tried(wake).failures >= self.settings.tries:
            self._do(_deletion(seen))
        elif missing := self._make_room_to_wake(requester, seen):
            return Phase.WAITING, f"{sentence}; {missing}"
        else:
            self._do(wake)
        return Phase.LAUNCHING, sentence

    def _failed_often(self, seen: Seen) -> str:
        """Why one in a pod of its own is made anew, rather than tried again; else empty."""
        started = self.place.tries.get(("create", self.place.name, seen.server.name), _NONE)
        waked = self._tried(Order("wake", seen.server, seen.it.id))
        known = started if seen.server.restarts and started.failures > waked.failures else waked
        return known.why if not seen.server.pool and known.failures >= self.settings.tries else ""

    def _relay(self, requester: Requester, seen: Seen) -> tuple[Phase, str]:
        server, it = seen.server, seen.it
        host = f"[{server.ip}]" if ":" in server.ip else server.ip
        if server.pool:
            if not it.port:
                return Phase.WAKING, f"instance {it.id} is awake, and server pod {server.name} gives it no port yet"
            models = f"http://{host}:{it.port}/failover/models"  # where its ports lead: else it is ready in vain
            target = Target(f"{models}/{it.id}/ready", f"{models}?watch=1", server.ip, it.port)
        else:
            target = Target(f"http://{host}:{server.probe[0]}{server.probe[1]}", "", server.ip)
        if self.place.relayed.get(requester.uid) != (target, requester.restarts):
            why = self._do_for(requester, Relay(requester, target))
            return Phase.WAKING, why or f"it is being told that instance {it.id} is awake"
        return Phase.READY, f"instance {it.id} in server pod {server.name} is awake"

    # -- instances and server pods ---------------------------------------------------------------------------------

    def _rest(self, seen: Seen) -> None:
        """Rules 3 and 9: what is promised to none doesn't stay awake, nor begins where another one is promised."""
        it, server = seen.it, seen.server
        if it.id in self.bindings[server.uid] or server.leaving or it.id in self.ending:
            return
        begins = it.state in (State.LOADING, State.WAKING) and not self.view.is_silent(server)
        in_the_way = begins and not it.accelerators.isdisjoint(self.promised)
        failed = it.state is State.FAILED or self._failed_often(seen)
        goes = Mode.DIRECT, Mode.SLEEP if server.pool else Mode.SWAP  # what another mode has left
        if self.settings.mode in goes or failed or in_the_way or not server.running:
            self._do(_deletion(seen))
        elif it.state is State.AWAKE or it.wanted:
            order = Order("sleep", server, it.id)
            if self._tried(order).failures < self.settings.tries:
                self._do_anew(order, "Sleeping", f"instance {it.id} goes to sleep: no requester has it")
            else:
                says = f"instance {it.id} goes, as it can't sleep: {self._tried(order).why}"
                self._do_anew(_deletion(seen), "Failed", says)
        elif it.state is State.OFF and server.pool:
            self._do(Order("delete", server, it.id))  # it was launched for a requester that has gone

    def _keep(self, server: Server) -> None:
        """Rule 11: a server pod that has ended goes, and nothing of it before it has."""
        gone_at = math.inf if self.place.gone_since is None else self.place.gone_since + self.settings.node_gone_s
        if not server.ended and self.now < gone_at:
            self._look_at(gone_at)
            if not server.leaving and (why := self._needless(server)):
                self._do_anew(Order("delete-pod", server), "Needless", f"server pod {server.name} goes: {why}")
        elif not server.leaving:
            self._say(server, "Ended", server.why or "its containers have ended", warning=True)
            self._do(Order("delete-pod", server))
        elif server.held:
            self._do(Order("release", server))

    def _needless(self, server: Server) -> str:
        """Why it needn't stay; empty while it has to, be it for what still answers there."""
        node, told = self.place.node, self.place.told.get(server.uid)
        states = {seen.it.state for seen in self.view.instances if seen.server.uid == server.uid}
        if node is None or self.bindings[server.uid] or self.ending or states & {State.AWAKE, State.DRAINING}:
            return ""
        if not node.usable:
            return f"node {node.name} isn't the controller's any more"
        is_empty = not told.instances if told is not None else not server.running
        asked_for = self.settings.mode is Mode.SWAP and (self.settings.taint or self.view.live)
        return "it runs nothing, and no requester is there" if is_empty and not asked_for else ""

    # -- marks -----------------------------------------------------------------------------------------------------

    def _mark_requester(self, requester: Requester) -> None:
        server, instance = self.view.bound.get(requester.uid, (None, ""))
        annotations: dict[str, str | None] = {names.STATUS: self._status(requester)}
        if requester.uid in self.place.accelerators:
            annotations[names.ACCELERATORS] = ",".join(self.place.accelerators[requester.uid])
        if requester.old:
            seen = self.view.find(instance)
            annotations[names.OLD_ADDRESS] = seen.server.ip if seen and seen.it.state is State.AWAKE else None
        labels = {names.DUAL: server.name if server else None, names.INSTANCE: instance or None}
        self._mark_pod(requester, labels, annotations)
        marking = self._tried(Mark(requester, {}, {}))
        if marking.failures > _UNSAID:
            self._say(requester, "Failed", f"its status can't be written: {marking.why}", warning=True)

    def _status(self, requester: Requester) -> str:
        phase, sentence = self.waits[requester.uid]
        errors = [sentence] if phase is Phase.REFUSED else []
        return json.dumps({"Errors": errors, "Phase": phase.value, "Says": sentence})

    def _mark_server(self, server: Server) -> None:
        wanted, told = self.bindings[server.uid], self.place.told.get(server.uid)
        duals = sorted({r.name for uid, r in self.place.requesters.items() if uid in wanted.values()})
        labels: dict[str, str | None] = {names.DUAL: names.label(duals[0]) if len(duals) == 1 else None}
        annotations: dict[str, str | None] = {names.BINDINGS: json.dumps(wanted, sort_keys=True) if wanted else None}
        if told is not None:
            states = {it.state for it in told.instances.values()}
            sleeps = State.AWAKE not in states if server.pool else states == {State.ASLEEP}  # as FMA's launchers
            labels[names.SLEEPING] = "true" if sleeps else "false"
            if not server.pool:
                since = server.marks.get(names.ASLEEP_SINCE, repr(self.now))
                annotations[names.ASLEEP_SINCE] = since if sleeps else None
            elif told.memory:
                annotations[names.ACCELERATORS] = ",".join(sorted(told.memory))
        self._mark_pod(server, labels, annotations)

    def _mark_pod(self, pod: Pod, labels: Mapping[str, str | None], annotations: Mapping[str, str | None]) -> None:
        """Rules 4 and 12."""
        new = [{key: v for key, v in said.items() if pod.marks.get(key) != v} for said in (labels, annotations)]
        if any(new):
            self._do(Mark(pod, *new))


def _deletion(seen: Seen) -> Order:
    return Order("delete", seen.server, seen.it.id) if seen.server.pool else Order("delete-pod", seen.server)
