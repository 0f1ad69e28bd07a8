"""The controller's machine: an event and the time go in, effects come out. Pure.

It decides on each node by itself (`place.py` knows, `plan.py` decides), so what one node waits for delays no other.
Nothing here has to outlive the process: a new machine is told the same pods and asks the same questions. The rules:

 1. Nothing is promised on an accelerator before each server pod that may use it has said what it runs, or has ended
    (plan.py, place.py).
 2. A requester is asked for its accelerators until it says them (plan.py).
 3. An accelerator is promised to one instance at a time: another one that uses it must be at rest first, with no order
    to begin under way, or gone with proof. (plan.py)
 4. A promise is written on the server pod before anything is asked of it, under the version that was read: of two
    controllers one is refused. A pod with one instance comes with its promise, and a gate: a late creation runs
    nowhere until a leader has seen it beside all others. (plan.py)
 5. An instance that is there, of the same wish on the same accelerators, is waked; else one is launched (plan.py).
 6. Before a launch, sleepers go until those that stay hold no more of each accelerator than they may: those that cover
    what is short, with the least collateral, used longest ago. (plan.py, victims.py)
 7. Nothing is waked or launched where its accelerators have less free than it takes: sleepers go first; what then is
    still missing is waited for, and named. Without a ledger: where more is in use than sleepers may hold. (plan.py)
 8. A requester becomes ready when its instance is awake, and unready first of all when its binding ends. Until then it
    asks the instance whether it still is; FMA's asks none, and is told (plan.py).
 9. An instance that is promised to none goes to sleep, and is to wake no more by itself; in `direct`, where its pod
    doesn't run, or where another mode has left it, that is deleted. Without a pool, not before its requester has ended
    (plan.py).
10. What fails is said, and tried again after a pause that grows; what failed `tries` times is deleted and made anew,
    so it keeps no place. Where each instance has a pod, kubelet tries again, and says how often. (plan.py, here)
11. A server pod counts until each of its containers has ended, however it was deleted; then its finalizer goes. One
    without a promise goes once its node isn't the controller's any more; a pool that nothing asks for, once it is
    empty or doesn't run. (plan.py, reading.py)
12. What people and other programs see of it (labels, annotations, Events) follows from what is known (plan.py).
13. What can't be understood is refused with a sentence on the pod, and makes nothing (reading.py, building.py).
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from dual_pods.rules import events as e
from dual_pods.rules.facts import REST, Node, Requester, Server, Told
from dual_pods.rules.place import Place, Settings, Try
from dual_pods.rules.plan import Phase, Plan
from pool.entries import State

GONE_MOST = 1000
QUICK_S, QUERY_S = 0.05, 1.0
_OVER_WHEN_ANSWERED = ("query", "relay", "mark")


class Machine:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.places: dict[str, Place] = {}
        self.waits: dict[str, tuple[Phase, str]] = {}
        """Requester -> how far it is, and what it waits for."""
        self.counts: Counter[str] = Counter()
        """Wakes, launches, sleeps, deletions, evictions and failures; what else was done, under no name."""
        self.listed = False
        self._where: dict[str, str] = {}
        """The uid of a pod or a node -> its place."""
        self._gone: deque[str] = deque(maxlen=GONE_MOST)
        """Pods that have gone. The answer to a write may come after the word of that, and tell of one that was."""

    @property
    def look_at(self) -> float:
        return min((place.look_at for place in self.places.values()), default=math.inf)

    def feed(self, event: e.Event, now: float) -> list[e.Effect]:
        """Raises nothing: whatever comes is a fact, or the outcome of an effect."""
        touched = _HANDLERS[type(event)](self, event, now)
        if not self.listed:
            return []
        due = {name for name, place in self.places.items() if place.look_at <= now}
        return [effect for name in sorted({*touched, *due}) for effect in self._plan(name, now)]

    def _plan(self, name: str, now: float) -> Iterator[e.Effect]:
        place = self.places[name]
        plan = Plan(place, self.settings, now)
        try:
            plan.make()
        except Exception as fault:  # a plan changes nothing but itself: nothing of it is half done
            plan = Plan(place, self.settings, now)
            plan.hold(f"plan {name}", fault)
        place.look_at = plan.look_at
        self.counts["evictions"] += plan.evictions
        for uid in place.requesters:
            self.waits[uid] = plan.waits.get(uid, (Phase.LEAVING, ""))
        for effect in plan.effects:
            key = e.key(effect)
            # The first start of an instance is a launch already.
            starts = key[0] == "wake" and place.told[key[1]].instances[key[2]].state is State.OFF
            self.counts["" if starts else _COUNTED.get(key[0], "")] += 1
            place.tries[key] = replace(place.tries.get(key, Try()), busy=True)
            yield effect
        if place.node is None and not (place.requesters or place.servers or place.unread):
            del self.places[name]

    def place(self, name: str) -> Place:
        return self.places.setdefault(name, Place(name))

    def _of(self, uid: str) -> Place | None:
        return self.places.get(self._where[uid]) if uid in self._where else None

    def server(self, uid: str) -> Server | None:
        place = self._of(uid)
        return place.servers.get(uid) if place is not None else None

    # -- what is seen ----------------------------------------------------------------------------------------------

    def _node(self, node: Node, now: float) -> list[str]:
        place = self.place(node.name)
        self._where[node.uid] = node.name
        place.unread.pop(node.uid, None)
        place.node, place.gone_since = node, None
        return [node.name]

    def _pod(self, pod: Requester | Server, now: float) -> list[str]:
        there = self._of(pod.uid)
        before = (there.requesters.get(pod.uid) or there.servers.get(pod.uid)) if there is not None else None
        if pod.uid in self._gone or (before is not None and not newer(pod.version, before.version)):
            return []
        at = pod.node or f"/{pod.uid}"  # by itself: a thousand may wait for a node, and what touches one is no other's
        was_at = self._where.get(pod.uid, at)
        if was_at != at:  # the scheduler has placed it
            self._forget(self.places[was_at], pod.uid)
        self._where[pod.uid] = at
        place, touched = self.place(at), [was_at, at]
        place.unread.pop(pod.uid, None)
        if pod.node and place.node is None and place.gone_since is None:  # made late, for a node that had gone
            place.gone_since = now
        if isinstance(pod, Requester):  # one that is new was made now, whatever the API server's clock says since
            made = before.created if isinstance(before, Requester) else now if self.listed else min(pod.created, now)
            place.requesters[pod.uid] = replace(pod, created=made)
            if before is not None and before.ip != pod.ip:  # its last answer may have been another pod's
                place.accelerators.pop(pod.uid, None)
            if pod.ready:
                place.unready_since.pop(pod.uid, None)
                place.tries.pop(("say", pod.uid, "Late", ""), None)  # it is once each time
            else:
                was_ready = isinstance(before, Requester) and before.ready
                since = now if was_ready else max(made, min(pod.unready_since, now))
                place.unready_since.setdefault(pod.uid, since)
            return touched
        place.servers[pod.uid] = pod
        if pod.asleep_since:  # a controller of before has seen it
            self._sleeps(place, pod.accelerators, min(pod.asleep_since, now))
        if not pod.running:
            place.told.pop(pod.uid, None)
        was = before if isinstance(before, Server) else replace(pod, ended=False)
        ends = pod.ended and not was.ended
        if ends:
            self._sleeps(place, pod.accelerators, now)
        if (ends and not pod.leaving) or (not pod.pool and pod.restarts > was.restarts):
            why = f"server pod {pod.name} has ended: {pod.why or was.why or 'it says no more'}"
            self._failed(place, ("create", place.name, pod.name), why, now)
            self.counts["failures"] += not pod.pool
        return touched

    def _goes(self, event: e.Gone, now: float) -> list[str]:
        if not event.stays:
            self._gone.append(event.uid)
        place = self._of(event.uid)
        self._where.pop(event.uid, None)
        if place is None:
            return []
        if place.node.uid == event.uid if place.node is not None else event.uid in place.unread:
            place.node, place.gone_since = None, now
        elif event.uid in place.servers:
            self._sleeps(place, place.servers[event.uid].accelerators, now)
        self._forget(place, event.uid)
        return [place.name]

    def _forget(self, place: Place, uid: str) -> None:
        known: dict[str, Any]
        its = place.accelerators, place.relayed, place.told_at, place.unready_since, self.waits
        for known in (place.requesters, place.servers, place.unread, place.told, *its):
            known.pop(uid, None)
        for key in [key for key in place.tries if uid in key]:
            del place.tries[key]

    def _unread(self, event: e.Unread, now: float) -> list[str]:
        place = self.place(self._where.setdefault(event.uid, event.node))
        place.unread[event.uid] = event.what, event.fault
        return [place.name]

    def _listed(self, event: e.Listed, now: float) -> list[str]:
        self.listed = True
        for place in self.places.values():
            if not place.name.startswith("/") and place.node is None:
                place.gone_since = now
        return list(self.places)

    def _tells(self, event: e.Tells, now: float) -> list[str]:
        server = self.server(event.uid)
        if server is None or not server.running:
            return []
        place = self.places[self._where[event.uid]]
        before = place.told.pop(event.uid, Told({}))
        if event.told is None:
            return [place.name]
        place.told[event.uid] = event.told
        for name in {*before.instances, *event.told.instances}:
            was, it = before.instances.get(name), event.told.instances.get(name)
            for what, state in (("wake", State.AWAKE), ("sleep", State.ASLEEP)):
                if it is not None and it.state is state and not it.wanted:
                    place.tries.pop((what, event.uid, name), None)
            if it is not None and it.state is State.AWAKE:
                place.tries.pop(("create", place.name, server.name), None)
            if was is not None and it is not None and (was.state, was.wanted) == (it.state, it.wanted):
                continue
            for what in ("wake", "sleep", "delete", "launch"):  # it may be asked for again at once, unless it failed
                known = place.tries.get((what, event.uid, name))
                if known is not None and it is None and not known.failures and (what == "delete" or not known.busy):
                    del place.tries[what, event.uid, name]
                elif known is not None and not known.why:
                    place.tries[what, event.uid, name] = replace(known, until=0.0)
            if was is not None and (it is None or (it.state is State.ASLEEP and was.state not in REST)):
                self._sleeps(place, was.accelerators, now)
            if it is not None and it.state is State.FAILED:
                self._failed(place, ("wake", event.uid, name), it.why, now)
                self.counts["failures"] += 1
        return [place.name]

    def _sleeps(self, place: Place, accelerators: Iterable[str], at: float) -> None:
        place.slept |= {name: max(at, place.slept.get(name, at)) for name in accelerators}

    def _measured(self, event: e.Measured, now: float) -> list[str]:
        place = self.place(event.node)
        place.used |= {name: (count, event.at) for name, count in event.used.items()}
        place.unmeasured = event.why
        return [event.node]

    # -- what became of effects ------------------------------------------------------------------------------------

    def _done(self, event: e.Done, now: float) -> list[str]:
        """Rule 10. What was taken is waited for; what wasn't is tried again after a pause."""
        key, effect = e.key(event.effect), event.effect
        place = self._of(key[1]) or self.places.get(key[1])
        if place is None or key not in place.tries or not place.tries[key].busy:
            return []  # it is about a pod that has gone, or what became of it has been seen already
        if event.error:
            self._failed(place, key, event.error, now)
        elif key[0] in _OVER_WHEN_ANSWERED or (isinstance(effect, e.Say) and effect.again):
            del place.tries[key]
            if isinstance(effect, e.Query) and effect.requester.ip == place.requesters[key[1]].ip:
                # It may be asked again in a moment, for what it says of memory with them.
                place.accelerators[key[1]], place.tries[key] = event.accelerators, Try(False, until=now + QUERY_S)
            elif isinstance(effect, e.Relay):
                place.relayed[effect.requester.uid] = effect.target, effect.requester.restarts
                place.told_at[effect.requester.uid] = now
        else:
            settled = math.inf if key[0] == "say" else now + self.settings.settle_s
            place.tries[key] = replace(place.tries[key], busy=False, until=settled, why="")
        return [place.name]

    def _failed(self, place: Place, key: e.Key, why: str, now: float) -> None:
        failures = place.tries.get(key, Try()).failures + 1
        first_s, most_s = self.settings.pause_s, self.settings.pause_most_s
        if key[0] in _OVER_WHEN_ANSWERED:  # a requester waits; not for what stands on it
            first_s, most_s = QUICK_S, most_s if key[0] == "mark" and key[1] in place.requesters else first_s
        pause_s = min(first_s * 2 ** min(failures - 1, 20), most_s)
        place.tries[key] = Try(False, failures, now + pause_s, why)


def newer(version: str, than: str) -> bool:
    """Versions are numbers that grow: an answer may be older than what the watch has told."""
    return int(version) > int(than) if version.isdigit() and than.isdigit() else version != than


_COUNTED = {"wake": "wakes", "launch": "launches", "create": "launches", "delete": "deletions", "sleep": "sleeps"}
_HANDLERS: dict[type[Any], Callable[[Machine, Any, float], list[str]]] = {
    Node: Machine._node,
    Requester: Machine._pod,
    Server: Machine._pod,
    e.Gone: Machine._goes,
    e.Unread: Machine._unread,
    e.Listed: Machine._listed,
    e.Tells: Machine._tells,
    e.Measured: Machine._measured,
    e.Look: lambda machine, event, now: [],
    e.Done: Machine._done,
}
