"""The rules of the pool: which models should be awake next.

Pure: an event and the time go in, effects come out (`events.py`); `pool/shell/server.py` has the sockets. This file
takes events in, carries out what `plan.py` says is due, and learns what it costs; `model.py` has what is known of one
model, `picture.py` how things stand with all, `room.py` how room is made, `turns.py` how long a turn is, `view.py` what
doors and people are told.

 1. It only wishes. A model's state is what the launcher and its lock say; a wish changes nothing by itself.
 2. While the launcher or the ledger doesn't answer, or a pool that has just begun hasn't seen all that runs and heard
    what a door has, nothing is wished; for a model whose lock doesn't answer, nothing is wished for that one.
 3. A model is to be awake for which requests wait or are paused, which is pinned, or which a person has asked for; the
    default model where no other wants its memory.
 4. The first in the queue is the most urgent; of these the one with the nearest deadline that can still be kept; then
    the one that has waited for longest. One that has waited for `ageing_s` is among the most urgent. Before all of
    them comes one that has just loaded for requests, until it is awake for them, and one that others make room for.
 5. What is free is kept for the first that can't be waked yet: those behind it wake only where they take none of it.
 6. Whatever fits is awake together. Where a model doesn't fit, others are put to sleep for it, no more than needed:
    first those without requests (the less urgent first, then least recently used), then those whose turn is over, or
    which are less urgent. Never a pinned one, nor one that was waked for requests and hasn't had one, nor before its
    `loaded_at_least_s`.
 7. A turn follows from what swaps cost, loads too, and the share of time that they may take (`turns.py`); a deadline
    that would be missed and `longest_wait_s` shorten it. Where a request can't go on where it was, and begins anew, its
    model's next turn is twice as long as the one that was in vain: else it would never end. An engine that takes over
    from another has what is left of its turn.
 8. The victims' sleep and the wake are wished at once: the ledger makes the one wait for the other.
 9. A model that waits in the ledger though nothing sleeps for it any more takes more than was thought (another
    program has some of it, say): others are put to sleep for it, too, by rule 6. So they are for one that loads and
    whose weights come back from host memory (its engine has died, say), for which there is no room. What is in use
    without a lease while a `command` is awake is its own, but for what was there without it: nothing measures it.
10. A model that had no request for its keep-alive is put to sleep; one that was asleep for `stop_after_s` is ended; and
    no more engines are asleep than the budget in bytes allows, by device and of the host's memory.
11. A model that couldn't be started or waked, or whose engines end again and again as they wake, is put to sleep and
    FAILED, and tried again after a pause that grows, if it is wanted; else for the next request. Its place in the queue
    is free meanwhile, so those that slept for it are back. One whose arguments are wrong, as its engine says, is tried
    again in an hour, once its entry has changed, or a person asks for it.
12. A person's `sleep` and `stop` hold until a request comes for the model, or a person's `wake`, whatever pool runs.
13. A model that was taken out of the file serves the requests that it has, and is ended; one whose entry has changed is
    put to sleep (its answers are paused), ended, and started with the new one, once its weights were dropped, unless a
    model that shares them says of them what was said before: they may be another model's. What is left of one that was
    taken out, also before this pool began, is ended, and its weights dropped (`leftovers.py`).
14. Where sleeps aren't enough because weights fill the device, those of models that don't need them there go to host
    memory first: least recently used first, no more than needed, and no more than may be there. A model is waked once
    that is done. What can't be parked counts as what can't be had (rule 5 keeps nothing free for it), and is tried
    again after a pause that grows, or when GMS is back.
15. Where neither makes room for a model for which requests wait, weights of models that are OFF are dropped: least
    recently used first, no more than needed. The next start loads them. Those of a model that was taken out go, too.
16. Last, where that isn't enough either, engines that sleep (or are put to sleep without a request) are ended, and
    their weights dropped: least recently used first, no more than needed; never a pinned one's, nor those of one that
    is before that model in the queue. So is the engine of one behind it, or that no request needs, while it loads and
    has no room for its weights.
"""

import math
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from pool.entries import MOST_MODELS, ModelDemand, State
from pool.rules import events as e
from pool.rules import messages as m
from pool.rules.leftovers import Leftover, Leftovers
from pool.rules.model import MOST_GRANTS, ON_DEVICE, READS, Model, Region, Tries, Wish, averaged, merged, runs_as
from pool.rules.picture import Picture
from pool.rules.plan import Down, Step, plan
from sidecar.machine.context import Context, Time
from sidecar.machine.plan import Circle, Plan, conclude
from sidecar.terminal.exit_codes import EX_OTHER_WEIGHTS, EX_USAGE
from sidecar.terminal.names import is_meant

HISTORY = 200
MOST_ROUNDS = 10 * MOST_MODELS
"""Plans that may follow from one event: more is a circle."""
SHARE_OF_S = 600.0
WRONG, MOST_WHY = "it is started again in an hour, once its entry has changed, or by: failover models wake", 1800
DIES = f"its engine has ended {MOST_GRANTS} times as it woke: "
LOG_SAYS = "the log of failover models up says why"
AGAIN_S = 1.0
"""After a sleep that the lock has refused, or called off."""
PARKS_S, PARKS_TIMES = 30.0, 10.0
"""How long a process that parks may take, and how many times as long as usual beside: what hangs holds up the models
that wait for the room.
"""
SETTLE_S = 5.0
"""How long a pool that begins waits for the locks of what runs, and for a door."""
CHANGED = "its entry in models.yaml has changed"
Effects = Any


class Machine:
    def __init__(self) -> None:
        self.context: Context[Effects] = Context(HISTORY)
        self.picture = Picture()
        self.doors: dict[int, tuple[float, dict[str, ModelDemand]]] = {}
        self.swapped: list[tuple[float, float, set[str]]] = []
        """When a model was waked in another's place, and for how long which devices served no model."""
        self._began_at: float | None = None
        self._learned: dict[str, e.Learned] = {}
        self._pins: dict[str, bool] = {}
        self._kept_asleep: Collection[str] = ()
        """By an earlier pool."""
        self._leftovers = Leftovers(self.picture, self.context)

    @property
    def deadline(self) -> float:
        return self.context.deadline

    @property
    def models(self) -> dict[str, Model]:
        return self.picture.models

    def handle(self, event: Any, time: Time) -> list[Effects]:
        self.context.begin(time)
        _HANDLERS[type(event)](self, event)
        self._forget()
        self.picture.weigh(self.context.now)
        self._settle()
        self._end_pauses()
        self._end_waits()
        self._leftovers.clear()
        self._conclude()
        if self.context.changed:
            self.context.changed = False
            self.context.out.append(e.Publish())
        return self.context.out

    def _conclude(self) -> None:
        said = len(self.context.out)
        try:
            self.context.wake(conclude(self._ask, MOST_ROUNDS).again)
        except Circle as circle:
            del self.context.out[said:]
            self.picture.broken = "a bug of the pool: nothing is wished any more, and engines that are awake serve on"
            self.context.alarm(
                "broken", f"{self.picture.broken}. Please report this with the log: {circle}. Restart the pool to go on"
            )

    def _ask(self) -> Plan:
        self._watch_states()
        it = Plan(self.context.now, self.context.alarms)
        step = plan(self.picture, it.now)
        if isinstance(step, float):
            it.again = step
        else:
            it.do(self._do, step)
        return it

    # -- what is said ----------------------------------------------------------------------------------------------

    def _on_began(self, event: e.Began) -> None:
        self._began_at = self.context.now
        self._learned, self._pins, self._kept_asleep = dict(event.learned), dict(event.pins), event.kept_asleep
        self._leftovers.of = {name: Leftover() for name in event.names}
        self.picture.others = dict(event.others)

    def _on_configured(self, event: e.Configured) -> None:
        self.picture.host = event.host
        self.picture.budget.share = event.host.swap_share
        names = {name for rules in event.models.values() for name in (rules.entry.name, rules.entry.region)}
        if names - {*self._names, *self._leftovers.of}:
            self.context.out.append(e.Save())
        for name, rules in event.models.items():
            model = self.models.get(name)
            if model is None:
                pinned = self._pins.get(name, rules.entry.pin)
                learned, region = self._learned.get(name, e.Learned()), self._region(rules.entry.region)
                child = e.Child(running=self._leftovers.runs(name))  # it was taken out, and runs yet
                model = Model(rules, region, child=child, pinned=pinned, learned=learned, since=self.context.now)
                model.kept_asleep = name in self._kept_asleep
                self.models[name] = model
                region.models.append(model)
                continue
            if (runs_as(model.rules.entry), model.rules.entry.memory) != (runs_as(rules.entry), rules.entry.memory):
                self._learn(model, bytes={}, weights={})  # what was measured was another one's
            if runs_as(model.rules.entry) != runs_as(rules.entry):
                runs = model.child.running or model.wish is Wish.START
                model.outdated = CHANGED if runs else ""
                model.works()
            if model.rules.entry.pin != rules.entry.pin:
                model.pinned = rules.entry.pin
                if self._pins.pop(name, None) is not None:
                    self.context.out.append(e.Save())
            model.rules, model.leaving = rules, False
        for name in self.models.keys() - event.models.keys():
            self.models[name].leaving = True
        self._kept_asleep = ()
        self._demands()
        self.context.changed = True

    def _on_demand(self, event: e.DemandSaid) -> None:
        self.doors[event.conn] = self.context.now, event.models
        self._demands()

    def _on_closed(self, event: e.Closed) -> None:
        if self.doors.pop(event.conn, None) is not None:
            self._demands()

    def _demands(self) -> None:
        """What the doors have, model by model."""
        now = self.context.now
        for name, model in self.models.items():
            said = [(at, models[name]) for at, models in self.doors.values() if name in models]
            before, model.demand = model.demand, merged(said, model.rules.entry.priority)
            demand = model.demand
            if before == demand:
                continue
            self.context.changed = True
            if demand.busy and not before.busy and model.used_at > -math.inf:
                model.gap_s = averaged(model.gap_s, now - model.used_at)
            if demand.busy or before.busy or demand.served > before.served:
                model.used_at = now
            model.pauses += max(demand.paused - before.paused, 0)
            if demand.keep_alive_s is not None:
                model.keep_alive_s = demand.keep_alive_s
            if model.state is State.AWAKE and (demand.streaming or demand.served > before.served):
                model.begun = True
            if demand.wants and model.kept_asleep:
                model.kept_asleep = False
                self.context.out.append(e.Save())

    def _on_lock(self, event: e.LockSeen) -> None:
        model = self.models.get(event.model)
        if model is None:
            return
        model.away = event.view is None
        if event.view is None:
            if model.wish in (Wish.WAKE, Wish.SLEEP):
                model.wish = Wish.NONE  # whether it was heard isn't known; what the lock says next decides
            return
        before, model.view = model.view, event.view
        view, now = event.view, self.context.now
        if before is not None and view.token != before.token and model.was is State.AWAKE:  # its engine is another one
            model.awake_s += now - model.since
            model.since, model.begun = now, False
        if before is not None and view.token > before.token and not view.serving:
            model.grants += 1
            if model.grants > MOST_GRANTS:
                self._dies(model)
        elif model.dies and model.wish is Wish.WAKE and model.grants and not (view.held or view.resting):
            self._dies(model)  # the next one may be ready in a minute only
        if model.wish is Wish.SLEEP and view.giving_back and not (before and before.giving_back):
            model.drained_at = now
        if model.wish is Wish.SLEEP and view.resting and not view.held:
            self._learn(model, sleep_s=averaged(model.learned.sleep_s, now - model.drained_at))
            model.wish = Wish.NONE
        elif model.wish is Wish.WAKE and model.taken and view.resting and not view.held:
            self._failed(model, view.why or "its lock is at rest again")
        elif view.serving and not view.draining and model.wish is not Wish.SLEEP:
            if model.wish is Wish.WAKE:
                kind = "wake_parked_s" if model.brings_back else "wake_s"
                self._learn(model, **{kind: averaged(getattr(model.learned, kind), now - model.room_at)})
                model.swaps += 1
                model.begun, model.used_at, model.wish = False, max(model.used_at, now), Wish.NONE
            model.works()
            model.asked_at, model.fresh = None, False
            self._measure(model)

    def _on_answered(self, event: e.LockAnswered) -> None:
        model = self.models.get(event.model)
        if model is not None and event.ok:
            model.taken = model.taken or model.wish is Wish.WAKE
        elif model is not None and model.wish is Wish.SLEEP:
            model.wish = Wish.NONE
            model.sleep_at = self.context.now + AGAIN_S
            self.context.note("sleep_refused", model=model.name, why=event.detail)

    def _on_ledger(self, event: e.LedgerSeen) -> None:
        self.picture.room, self.picture.foreign = event.room, event.foreign
        for name, model in self.models.items():
            model.leases, model.lacking = event.leases.get(name, {}), event.lacking.get(name, {})
            if model is next((one for one in model.region.models if one.child.running and one.state in READS), model):
                model.lacking = model.lacking or event.lacking.get(model.region.name, {})  # its weights wait for all
            model.lacks_since = model.lacks_since if model.lacking else math.inf
            if model.lacking and model.lacks_since == math.inf:
                model.lacks_since = self.context.now
            self._measure(model)
        self.context.changed = True

    def _on_weights(self, event: e.WeightsSeen) -> None:
        it, device = self.picture, event.device
        if event.here is None:
            it.gms_away.add(device)
            return
        self.context.changed = self.context.changed or it.gms.get(device) != event
        it.gms[device] = event
        for region in it.regions.values():
            region.seen(event)
            if device in it.gms_away and device in region.here:  # what it couldn't do while it was away
                region.parking, region.dropping = Tries(), Tries()
        for model in self.models.values():
            read = model.weights if model.state in (State.ASLEEP, State.AWAKE) else {}  # all of them, by its engine
            if read and read != model.learned.weights:
                self._learn(model, weights=dict(read))
        it.gms_away.discard(device)

    def _on_parked(self, event: e.ParkEnded) -> None:
        region = self.picture.regions.get(event.weights)
        if region is None or not (moved := self._end_move(region, Wish.PARK, region.parking, event.why)):
            return
        for model in moved:
            self._learn(model, park_s=averaged(model.learned.park_s, self.context.now - model.wished_at))
        region.parked, region.here = region.parked | region.here, {}
        self.context.note("parked", weights=region.name, bytes=sum(region.parked.values()))

    def _on_dropped(self, event: e.DropEnded) -> None:
        self._leftovers.dropped(event.weights, event.why)
        region = self.picture.regions.get(event.weights)
        if region is not None and self._end_move(region, Wish.DROP, region.dropping, event.why):
            region.parked, region.here = {}, {}
            self.context.note("dropped", weights=region.name)

    def _end_move(self, region: Region, wish: Wish, tries: Tries, why: str) -> list[Model]:
        """The wish to park or to drop is over. `why` it failed. Returns its models, if it was carried out."""
        wished = [model for model in region.models if model.wish is wish]
        for model in wished:
            model.wish, self.context.changed = Wish.NONE, True
        if not wished or not why:
            tries.failures = 0 if wished else tries.failures
            return wished
        tries.failed(self.context.now)
        again_s = round(tries.again_at - self.context.now, 1)
        self.context.note(f"{wish.value}_failed", weights=region.name, why=why, again_in_s=again_s)
        return []

    def _measure(self, model: Model) -> None:
        """What it has while it is awake is what it needs."""
        if model.state is State.AWAKE and model.leases and model.leases != model.learned.bytes:
            self._learn(model, bytes=dict(model.leases))

    def _on_launcher(self, event: e.LauncherSeen) -> None:
        self.picture.launched = event.children is not None
        for name, model in self.models.items():
            if event.children is None:
                model.wish = Wish.NONE if model.wish in (Wish.START, Wish.END) else model.wish
                continue
            before, child = model.child, event.children.get(name, e.Child(running=False))
            if child == before:
                continue
            model.child = child
            if child.host_bytes and model.state is State.ASLEEP:
                self._learn(model, asleep=model.learned.asleep | {e.HOST: child.host_bytes})
            if child.running and child.runs_as not in ("", runs_as(model.rules.entry)):  # it changed while no pool ran
                model.outdated = CHANGED
            if child.running and not before.running:
                model.view, model.away, model.retry_at = None, True, -math.inf
                model.wish = Wish.NONE if model.wish is Wish.START else model.wish
            if not child.running and (before.running or child.ends > before.ends):
                self._ended(model, child.why)
        self._leftovers.seen(event.children)
        self.context.changed = True

    def _ended(self, model: Model, why: str) -> None:
        """Its processes have ended; or can't be started, and this is why."""
        asked = model.wish is Wish.END
        model.ended_idle = asked and not model.outdated
        model.view, model.away, model.wish, model.fresh = None, True, Wish.NONE, False
        model.outdated, model.put_down = "", False
        says = model.child.exit_code if model.child.runs_as == runs_as(model.rules.entry) else 0
        model.found_others = says == EX_OTHER_WEIGHTS
        one_reads = any(one.has_its_own for one in model.region.models)
        if model.found_others and not (one_reads or model.failures):  # they go, and it is started again
            model.failures = 1
            self.context.note("other_weights", model=model.name, why=why)
        elif says == EX_USAGE:
            self._failed(model, f"{why[:MOST_WHY]}; {WRONG} {model.name}", wrong=True)
        elif why:
            self._failed(model, why)
        elif not asked:
            self.context.note("ended", model=model.name)

    def _dies(self, model: Model) -> None:
        model.grants, model.dies = MOST_GRANTS + 1, True
        self._failed(model, DIES + (model.child.why or LOG_SAYS))

    def _failed(self, model: Model, why: str, *, wrong: bool = False) -> None:
        model.failed(why, self.context.now, wrong=wrong)
        pause = model.retry_at - self.context.now
        self.context.note("failed", model=model.name, why=why, again_in_s=round(pause, 1))
        self.context.changed = True

    def _forget(self) -> None:
        """Models that are taken out, and weights that no model has any more."""
        for name, model in list(self.models.items()):
            if model.child.running or model.wish is not Wish.NONE:
                continue
            if model.leaving and not model.demand.busy:
                del self.models[name]
                self._leftovers.of[name] = Leftover()
                self._take_weights(model)
                self.context.changed = True
            elif model.region.name != model.rules.entry.region:
                self._take_weights(model)
                model.region = self._region(model.rules.entry.region)
                model.region.models.append(model)

    def _take_weights(self, model: Model) -> None:
        region = model.region
        region.models.remove(model)
        if not region.models:
            del self.picture.regions[region.name]
            self._leftovers.of.setdefault(region.name, Leftover())

    def _region(self, name: str) -> Region:
        """The one that models have already, or a new one."""
        if (region := self.picture.regions.get(name)) is None:
            region = self.picture.regions[name] = Region(name)
            for said in self.picture.gms.values():
                region.seen(said)
        return region

    def _settle(self) -> None:
        """Whether all that ran when this pool began has been seen, and what a door has for it been heard: what serves
        requests looks idle before.
        """
        it = self.picture
        if it.settled or not it.launched or it.room is None or self._began_at is None:
            return
        unseen = not self.doors or any(one.child.running and one.away for one in self.models.values())
        it.settled = not unseen or not self.context.wait_until(self._began_at + SETTLE_S)

    def _end_pauses(self) -> None:
        """Doors are told that a model which has failed may be asked for again; and what couldn't be parked may be."""
        for model in self.models.values():
            if model.retry_at > -math.inf and not self.context.wait_until(model.retry_at):
                model.retry_at = -math.inf
                self.context.changed = True
        for region in self.picture.regions.values():
            for tries in (region.parking, region.dropping):
                if tries.again_at > -math.inf and not self.context.wait_until(tries.again_at):
                    tries.again_at = -math.inf

    def _end_waits(self) -> None:
        """Nothing waits any more for what sleeps, or has ended, or won't now."""
        for model in self.models.values():
            model.room_first = model.room_first and model.wants
            goes = {name for name in model.awaits if name in self.models and self.models[name].gives_way}
            if goes != model.awaits:
                model.awaits, model.room_at, model.lacks_since = frozenset(goes), self.context.now, self.context.now

    # -- what a person wants ---------------------------------------------------------------------------------------

    def _on_asked(self, event: e.Asked) -> None:
        command = event.command
        model = self.named(command.name or "")
        if model is None:
            self._answer(event, 404, f"no model is called {command.name}{is_meant(command.name or '', self._called())}")
            return
        now, awake = self.context.now, model.state is State.AWAKE
        self.context.out.append(e.Save())
        if command.verb in ("pin", "unpin"):
            model.pinned = command.verb == "pin"
            model.kept_asleep = model.put_down = False
            self._pins[model.name] = model.pinned
            self._answer(event, 200, f"{model.name} is {'' if model.pinned else 'not '}pinned")
        elif command.verb == "wake":
            model.kept_asleep, model.put_down, model.retry_at = False, False, -math.inf
            if not awake:
                model.asked_at = now
            self._answer(event, 200 if awake else 202, f"{model.name} is {'awake' if awake else 'to be waked'}")
        else:
            self._put_down(event, model, end=command.verb == "stop")
        self.context.changed = True

    def _put_down(self, event: e.Asked, model: Model, *, end: bool) -> None:
        lacks = self.picture.lacks
        if lacks or (model.child.running and model.away):
            self._answer(event, 503, lacks or f"the lock of {model.name} doesn't answer")
            return
        model.kept_asleep, model.asked_at = True, None
        done = not model.child.running or (not end and model.state not in ON_DEVICE)
        model.put_down = not done
        if end and not done:  # rule 13: asleep first, then ended
            model.outdated = model.outdated or "a person has asked for it"
        again = "; the requests that it has will wake it again" if model.demand.busy else ""
        words = f"is {'' if done else 'being '}{'ended' if end else 'put to sleep'}"
        self._answer(event, 200 if done else 202, f"{model.name} {words}{again}")

    def swapping_share(self, now: float) -> float:
        """How much of the last minutes a device served no model because of a swap: the one with most of them."""
        newest = [(spent, devices) for at, spent, devices in self.swapped if at > now - SHARE_OF_S]
        each = {device for _, devices in newest for device in devices}
        spent_on = (sum(spent for spent, devices in newest if device in devices) for device in each)
        return max(spent_on, default=0.0) / SHARE_OF_S

    def named(self, called: str) -> Model | None:
        return self.models.get(called) or next(
            (model for model in self.models.values() if called in model.rules.entry.aliases), None
        )

    def _called(self) -> list[str]:
        return [name for model in self.models.values() for name in (model.name, *model.rules.entry.aliases)]

    def _answer(self, event: e.Asked, status: int, detail: str) -> None:
        done = m.CommandDone(number=event.command.number, ok=status < 300, status=status, detail=detail)
        self.context.out.append(e.Answer(event.conn, done))

    # -- what is done ----------------------------------------------------------------------------------------------

    def _do(self, step: Step) -> None:
        context, now = self.context, self.context.now
        if isinstance(step, Down):
            model = self.models[step.model]
            context.note("ends" if step.end else "sleeps", model=step.model, why=step.why)
            self._end(model) if step.end else self._sleep(model, step.why)
            return
        model = self.models[step.model]
        for name in step.end:
            self._end(self.models[name])
        for name in step.sleep:
            self._sleep(self.models[name], f"{model.name} is next")
        devices = {device for name in step.sleep for device in self.models[name].rules.devices}
        down = [self.models[name] for name in step.sleep]
        busy = any(one.demand.busy for one in down)
        long = [one.turn_at for one in down if one.demand.turn_s > step.cost_s / self.picture.budget.share]
        self.picture.budget.spend(devices, step.cost_s, now, borrows=busy, since=min(long, default=math.inf))
        if step.sleep:
            self.swapped = [*(one for one in self.swapped if one[0] > now - SHARE_OF_S), (now, step.cost_s, devices)]
        for names, wish in ((step.park, Wish.PARK), (step.drop, Wish.DROP)):
            for region in (self.models[name].region for name in names):
                for one in region.models:
                    one.wished(wish, now)
                most_s = round(PARKS_S + PARKS_TIMES * max(one.park_s for one in region.models))
                context.out.append(e.Park(region.name, most_s) if wish is Wish.PARK else e.Drop(region.name))
        if step.room_first:
            model.awaits, model.lacks_since = model.awaits | {*step.sleep, *step.end}, now
            model.room_first = True
            done = {"sleep": step.sleep, "end": step.end, "park": step.park, "drop": step.drop}
            said = {what: ",".join(names) for what, names in done.items() if names or what == "sleep"}
            context.note("makes_room", model=model.name, **said)
            return
        starts = not model.child.running
        for_it = {"for_it": ",".join((*step.sleep, *step.end))} if step.sleep or step.end else {}
        context.note("starts" if starts else "wakes", model=model.name, **for_it)
        model.wished(Wish.START if starts else Wish.WAKE, now)
        model.awaits = frozenset((*step.sleep, *step.end))
        model.started_at = now if starts else None
        model.why_failed = ""
        context.out.append(e.Start(model.name) if starts else e.Wake(model.name))

    def _sleep(self, model: Model, why: str) -> None:
        entry = model.rules.entry
        model.wished(Wish.SLEEP, self.context.now)
        model.put_down = False
        drain_s = self.picture.host.drain_s if entry.drain_s is None else entry.drain_s
        self.context.out.append(e.Sleep(model.name, drain_s if model.demand.busy else 0.0, why))

    def _end(self, model: Model) -> None:
        model.wished(Wish.END, self.context.now)
        self.context.out.append(e.End(model.name))

    def _learn(self, model: Model, **what: Any) -> None:
        model.learned = msgspec.structs.replace(model.learned, **what)
        self._learned[model.name] = model.learned
        self.context.out.append(e.Save())

    def learned(self) -> e.Began:
        """For the next pool."""
        kept_asleep = tuple(sorted(name for name, model in self.models.items() if model.kept_asleep))
        names = tuple(sorted({*self._names, *self._leftovers.of}))
        return e.Began(dict(self._learned), dict(self._pins), names, kept_asleep, dict(self.picture.others))

    @property
    def _names(self) -> set[str]:
        """Those of all models, and of their weights."""
        return {*self.models, *self.picture.regions}

    def _watch_states(self) -> None:
        now = self.context.now
        for model in self.models.values():
            state = model.state
            if state is model.was:
                continue
            if model.was is State.AWAKE:
                model.awake_s += now - model.since
            if state is State.ASLEEP and model.started_at is not None:
                self._learn(model, load_s=averaged(model.learned.load_s, now - model.started_at))
                model.started_at, model.fresh = None, True
            if state is State.AWAKE:
                model.turn_at = min(model.turn_at, now)
            elif model.wish is Wish.WAKE or state not in (State.WAKING, State.DRAINING):
                model.turn_at = math.inf
            model.was, model.since = state, now
            self.context.changed = True


_HANDLERS: dict[type, Callable[[Machine, Any], None]] = {
    e.Began: Machine._on_began,
    e.Configured: Machine._on_configured,
    e.DemandSaid: Machine._on_demand,
    e.Closed: Machine._on_closed,
    e.Asked: Machine._on_asked,
    e.LockSeen: Machine._on_lock,
    e.LockAnswered: Machine._on_answered,
    e.LedgerSeen: Machine._on_ledger,
    e.LauncherSeen: Machine._on_launcher,
    e.WeightsSeen: Machine._on_weights,
    e.ParkEnded: Machine._on_parked,
    e.DropEnded: Machine._on_dropped,
    e.Tick: lambda machine, event: None,  # time has passed; `handle` finds what follows
}
