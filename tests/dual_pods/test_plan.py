"""What is to be done on a node, and what is said of it: one plan at a time."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dual_pods.rules import names
from dual_pods.rules.events import Create, Key, Mark, Order, Query, Relay, Say
from dual_pods.rules.facts import Ask, Instance, Memory, Node, Requester, Server, Told
from dual_pods.rules.place import Mode, Place, Settings, Try
from dual_pods.rules.plan import Phase, Plan
from dual_pods.rules.standing import Target
from pool.entries import State

NODE = Node("uid-n", "n", True, True)
CONTAINERS = [{"name": names.CONTAINER, "image": "x"}]
ASK = Ask("qwen", {"metadata": {"labels": {}, "annotations": {}}, "spec": {"containers": CONTAINERS}}, {}, needs=10)
QWEN = names.instance_id("qwen", "n", ("0",))
REQUESTER = Requester("r", "a", "ns", "n", "10.0.0.1", running=True, ask=ASK)
POOL = Server("p", "n-dual", "ns", "n", "10.0.0.2", running=True, port=80)
BOUND = replace(POOL, bindings={QWEN: "r"})
SINGLE = replace(POOL, uid="s", name="single", pool=False, instance=QWEN, accelerators=frozenset("0"))
MEMORY = Memory(100, 50)
RESTS = Target(host=POOL.ip, stays=True)


def _it(id: str = QWEN, state: State = State.ASLEEP, **more: Any) -> Instance:
    return Instance(id, state, frozenset("0"), **more)


def _plan(
    *pods: Requester | Server,
    told: list[Instance] | None = None,
    memory: Memory | None = MEMORY,
    tries: dict[Key, Try] | None = None,
    node: Node | None = NODE,
    has: tuple[str, ...] = ("0",),
    now: float = 0.0,
    used: dict[str, tuple[int, float]] | None = None,
    relayed: dict[str, tuple[Target | None, int]] | None = None,
    slept: dict[str, float] | None = None,
    unmeasured: str = "",
    **settings: Any,
) -> Plan:
    place = Place("n", node, tries=tries or {}, used=used or {}, relayed=relayed or {}, slept=slept or {})
    place.unmeasured = unmeasured
    for pod in pods:
        if isinstance(pod, Requester):
            place.requesters[pod.uid] = pod
            place.accelerators |= {pod.uid: has} if has else {}
        else:
            place.servers[pod.uid] = pod
            if told is not None:
                place.told[pod.uid] = Told({it.id: it for it in told}, {"0": memory} if memory is not None else {})
    plan = Plan(place, Settings(template={"spec": {"containers": []}}, **settings), now)
    plan.make()
    return plan


def _says(plan: Plan, but: str = "Bound") -> list[tuple[str, str, bool]]:
    return [(e.reason, e.sentence, e.warning) for e in plan.effects if isinstance(e, Say) and e.reason != but]


def _orders(plan: Plan) -> list[tuple[str, str]]:
    return [(e.what, e.instance) for e in plan.effects if isinstance(e, Order)]


def _of(plan: Plan, kind: type[Any]) -> list[Any]:
    return [e for e in plan.effects if isinstance(e, kind)]


def _waits(plan: Plan, phase: Phase, says: str) -> bool:
    return plan.waits["r"][0] is phase and says in plan.waits["r"][1]


# -- how far a requester is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requester", "says"),
    [
        (replace(REQUESTER, running=False), "its container inference-server doesn't run yet"),
        (replace(REQUESTER, running=False, why="no image"), "its container inference-server doesn't run yet: no image"),
        (replace(REQUESTER, ip=""), "doesn't run yet"),
    ],
)
def test_one_that_doesn_t_run_starts(requester: Requester, says: str) -> None:
    assert _waits(_plan(requester, POOL, told=[]), Phase.STARTING, says)


def test_one_that_can_t_be_served_is_refused_with_a_warning() -> None:
    plan = _plan(replace(REQUESTER, ask=None, wrong="it is no YAML"), POOL, told=[])
    assert plan.waits["r"] == (Phase.REFUSED, "it is no YAML") and _says(plan) == [("Refused", "it is no YAML", True)]


@pytest.mark.parametrize(("failures", "said"), [(0, False), (8, False), (9, True)])
def test_one_that_doesn_t_say_what_it_has_is_an_event_once_that_has_lasted(failures: int, said: bool) -> None:
    why = "it refuses" if failures else ""
    plan = _plan(REQUESTER, POOL, told=[], has=(), tries={("query", "r"): Try(False, failures, 9.0, why)})
    assert _waits(plan, Phase.ASKING, why or "it hasn't said yet which accelerators it has")
    assert _says(plan) == ([("Failed", "it refuses", True)] if said else []) and plan.look_at == 9.0


@pytest.mark.parametrize(("times", "said"), [(19, True), (20, False)])
def test_what_fails_in_other_words_each_time_is_no_event_without_end(times: int, said: bool) -> None:
    tries: dict[Key, Try] = {("query", "r"): Try(False, 99, 9.0, "request 99 failed")}
    tries |= {("say", "r", "Failed", f"request {n} failed"): Try(False) for n in range(times)}
    plan = _plan(REQUESTER, POOL, told=[], has=(), tries=tries)
    assert _says(plan) == ([("Failed", "request 99 failed", True)] if said else [])
    assert _waits(plan, Phase.ASKING, "request 99 failed")


def test_one_that_is_late_is_a_warning_and_one_that_is_ready_never_is() -> None:
    plan = _plan(REQUESTER, now=600.0, node=None)
    assert _says(plan) == [("Late", "it isn't Ready after 600 s: node n isn't there", True)]
    assert _plan(REQUESTER, now=599.0, node=None).look_at == 600.0
    assert not _says(_plan(replace(REQUESTER, ready=True), now=600.0, node=None)), "it serves; this controller is new"
    ready = _plan(REQUESTER, BOUND, told=[_it(state=State.AWAKE, port=9)])
    [relay] = _of(ready, Relay)
    ready = _plan(REQUESTER, BOUND, told=[_it(state=State.AWAKE, port=9)], relayed={"r": (relay.target, 0)}, now=600.0)
    assert _waits(ready, Phase.READY, "is awake") and not _says(ready) and not _orders(ready)


# -- where nothing may be promised -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (None, "node n isn't there"),
        (replace(NODE, ready=False), "node n isn't ready"),
        (replace(NODE, usable=False), "lacks the taint"),
    ],
)
def test_nothing_is_promised_where_the_node_can_t_be_used(node: Node | None, says: str) -> None:
    plan = _plan(REQUESTER, node=node, taint="t")
    assert _waits(plan, Phase.WAITING, says) and bool(_of(plan, Create)) == (node is not None and node.usable)


@pytest.mark.parametrize(("has", "waits"), [("0", True), ("1", False)])
def test_an_engine_that_hangs_keeps_no_other_accelerators_from_anything(has: str, waits: bool) -> None:
    plan = _plan(REQUESTER, replace(SINGLE, instance="i"), has=(has,), mode=Mode.SLEEP)
    assert _waits(plan, Phase.WAITING, "server pod single hasn't said yet what it runs") is waits
    assert bool(_of(plan, Create)) is not waits


@pytest.mark.parametrize(("why", "shown"), [("", "loading, on"), ("out of memory", "loading (out of memory), on")])
def test_who_holds_an_accelerator_is_named_with_the_reason(why: str, shown: str) -> None:
    plan = _plan(REQUESTER, replace(POOL, bindings={}), told=[_it("i", State.LOADING, why=why)])
    assert _waits(plan, Phase.WAITING, f"instance i in server pod n-dual is {shown}")


@pytest.mark.parametrize(("state", "waits"), [(State.AWAKE, True), (State.ASLEEP, False)])
def test_one_that_is_called_otherwise_is_waited_for_as_it_may_be_the_same(state: State, waits: bool) -> None:
    other = replace(SINGLE, uid="o", name="other", instance="i", accelerators=frozenset({"GPU-1"}))
    told = [Instance("i", state, other.accelerators)]
    plan = _plan(REQUESTER, other, told=told, memory=None, mode=Mode.SLEEP)
    assert _waits(plan, Phase.WAITING, "so 0 and GPU-1 may be the same") is waits
    assert bool(_of(plan, Create)) is not waits


@pytest.mark.parametrize("state", [State.STOPPING, State.DRAINING])
def test_an_instance_that_is_about_to_go_is_waited_for(state: State) -> None:
    plan = _plan(REQUESTER, POOL, told=[_it(state=state)])
    assert _waits(plan, Phase.WAITING, f"is {state.value}") and plan.bindings == {"p": {}}
    leaving = _plan(REQUESTER, replace(POOL, leaving=True), told=[_it()])
    assert _waits(leaving, Phase.WAITING, "is leaving") and leaving.bindings == {"p": {}}


# -- a promise ---------------------------------------------------------------------------------------------------------


def test_a_promise_is_written_before_anything_is_asked_for() -> None:
    plan = _plan(REQUESTER, POOL, told=[_it()])
    assert plan.bindings == {"p": {QWEN: "r"}} and not _orders(plan)
    assert not _says(plan, but=""), "it may be refused"
    bound = ("Bound", f"it is bound to instance {QWEN} in server pod n-dual", False)
    assert bound in _says(_plan(REQUESTER, BOUND, told=[_it()]), but="")
    labelled = replace(REQUESTER, marks={names.INSTANCE: QWEN})
    assert bound not in _says(_plan(labelled, BOUND, told=[_it()]), but=""), "an earlier controller has said it"
    assert [m.annotations[names.BINDINGS] for m in _of(plan, Mark) if m.pod == POOL] == [json.dumps({QWEN: "r"})]
    assert _waits(plan, Phase.WAITING, f"it is being bound to instance {QWEN} in server pod n-dual")


@pytest.mark.parametrize(("failures", "said"), [(8, False), (9, True)])
def test_a_promise_that_can_t_be_written_is_said_once_that_has_lasted(failures: int, said: bool) -> None:
    plan = _plan(REQUESTER, POOL, told=[_it()], tries={("mark", "p"): Try(False, failures, 9.0, "forbidden")})
    assert ("forbidden" in plan.waits["r"][1]) == said


def test_an_instance_that_is_awake_already_needs_no_room() -> None:
    plan = _plan(REQUESTER, POOL, told=[_it(state=State.AWAKE)], memory=Memory(100, 0))
    assert plan.bindings == {"p": {QWEN: "r"}} and not _orders(plan)
    assert _waits(_plan(REQUESTER, POOL, told=[_it()], memory=Memory(100, 0)), Phase.WAITING, "0 bytes of 100")


@pytest.mark.parametrize("mode", [Mode.SLEEP, Mode.DIRECT])
def test_where_each_instance_has_a_pod_it_comes_with_its_promise(mode: Mode) -> None:
    plan = _plan(REQUESTER, mode=mode)
    [create] = _of(plan, Create)
    meta = create.body["metadata"]
    name = "n-1-dual" if mode is Mode.DIRECT else f"n-1-dual-{QWEN[1:]}"
    assert (create.namespace, meta["name"]) == ("ns", name)
    assert json.loads(meta["annotations"][names.BINDINGS]) == {QWEN: "r"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "r", "controller": True}
    assert meta.get("ownerReferences") == ([owner] if mode is Mode.DIRECT else None)
    assert _says(plan) == [("Launching", f"server pod {name} is made for it, with instance {QWEN}", False)]
    assert _waits(plan, Phase.LAUNCHING, f"server pod {name} is being made")
    key = "create", "n", name
    busy = _plan(REQUESTER, mode=mode, tries={key: Try()})
    assert not _of(busy, Create) and not _says(busy), "once at a time"
    failed = _plan(REQUESTER, mode=mode, tries={key: Try(False, 1, 9.0, "quota")})
    assert _waits(failed, Phase.LAUNCHING, "quota") and _says(failed) == [("Failed", "quota", True)]


def test_a_pool_that_is_missing_is_made_in_the_controller_s_namespace_and_nothing_is_said_of_an_instance() -> None:
    plan = _plan(REQUESTER)
    [create] = _of(plan, Create)
    assert (create.namespace, create.body["metadata"]["name"]) == ("", "n-dual") and not _says(plan)
    assert not _of(_plan(replace(REQUESTER, running=False)), Create), "no node gets one unasked, where none has a taint"


# -- room --------------------------------------------------------------------------------------------------------------


def _held(id: str, count: int, used: float = 0.0, state: State = State.ASLEEP) -> Instance:
    return _it(id, state, asleep_bytes={"0": count}, last_used=used)


def test_what_is_missing_is_said_with_who_may_hold_it() -> None:
    for leased, says in (
        (0, "none is leased, so a process outside the ledger"),
        (7, "7 bytes are leased, so a process outside the ledger"),
        (96, "96 bytes are leased, to what can't go for it"),
    ):
        plan = _plan(REQUESTER, POOL, told=[], memory=Memory(100, 4, leased))
        assert _waits(plan, Phase.WAITING, f"0 has 4 bytes of 100 bytes free and 10 bytes are needed; {says}"), (
            plan.waits
        )


@pytest.mark.parametrize(
    ("most", "free", "gone"),
    [(None, 50, []), (None, 8, ["a"]), (None, 4, ["a", "b"]), (4, 50, ["a"]), (4, 4, ["a", "b"]), (6, 50, [])],
)
def test_sleepers_go_for_what_a_launch_needs_and_for_what_they_may_hold(
    most: int | None, free: int, gone: list[str]
) -> None:
    its = [_held("a", 3, 1.0), _held("b", 3, 2.0), _held("off", 90, state=State.OFF)]
    plan = _plan(REQUESTER, POOL, told=its, memory=Memory(100, free), sleepers_bytes=most)
    deleted = [instance for what, instance in _orders(plan) if what == "delete" and instance != "off"]
    assert deleted == gone
    evicted = [sentence for reason, sentence, _ in _says(plan) if reason == "Evicted"]
    assert evicted == [f"instance {id}, which sleeps, goes: its memory is needed" for id in gone]
    if gone:
        assert _waits(plan, Phase.WAITING, f"sleeping instances go first: {', '.join(gone)}")


def test_a_wake_makes_room_for_what_it_takes_and_for_no_more() -> None:
    plan = _plan(REQUESTER, BOUND, told=[_it(), _held("a", 90)], sleepers_bytes=0)
    assert _orders(plan) == [("wake", QWEN)]


def test_without_a_ledger_it_is_waited_for_a_figure_that_is_newer_than_the_last_sleep() -> None:
    rule: dict[str, Any] = {"mode": Mode.SLEEP, "memory": None, "sleepers_bytes": 5, "measured_after_s": 20.0}
    plan = _plan(REQUESTER, now=1.0, **rule)
    assert _waits(plan, Phase.WAITING, "on 0 hasn't been measured yet") and _of(plan, Query)
    old = {"used": {"0": (9, 12.0)}, "slept": {"0": 10.0}, **rule}
    plan = _plan(REQUESTER, now=13.0, **old)
    assert _waits(plan, Phase.WAITING, "hasn't been measured since an instance there went to sleep")
    assert not _of(plan, Query) and plan.look_at == 30.0, "it would be too early"
    assert _of(_plan(REQUESTER, now=30.0, **old), Query)
    plan = _plan(REQUESTER, now=30.5, tries={("query", "r"): Try(False, 0, 31.0)}, **old)
    assert not _of(plan, Query) and plan.look_at == 31.0, "it has just said it"


def test_without_a_ledger_sleepers_go_while_more_is_in_use_than_they_may_hold() -> None:
    rule: dict[str, Any] = {"mode": Mode.SLEEP, "memory": None, "now": 50.0, "slept": {"0": 10.0}}
    sleeps = replace(SINGLE, instance="a")
    for used, most, made, gone in ((9, 5, 0, 1), (5, 5, 1, 0), (9, None, 1, 0)):
        plan = _plan(REQUESTER, sleeps, told=[_it("a")], used={"0": (used, 30.0)}, sleepers_bytes=most, **rule)
        assert (len(_of(plan, Create)), len(_orders(plan))) == (made, gone), (used, most)
    plan = _plan(REQUESTER, used={"0": (9, 30.0)}, sleepers_bytes=5, **rule)
    assert _waits(plan, Phase.WAITING, "9 bytes are in use on 0, and no sleeper can go")
    direct = _plan(REQUESTER, used={"0": (9, 30.0)}, sleepers_bytes=5, **{**rule, "mode": Mode.DIRECT})
    assert _of(direct, Create), "there nothing sleeps"


def _wakes(bound: bool, used: int, *others: Server, at: float = 30.0, **more: Any) -> Plan:
    """One that sleeps in a pod of its own; the memory in use, and how much of it sleepers may hold: 5."""
    its = replace(SINGLE, bindings={QWEN: "r"} if bound else {})
    told = {QWEN: its, **{other.instance: other for other in others}}
    place = Place("n", NODE, requesters={"r": REQUESTER}, servers={s.uid: s for s in told.values()})
    place.told = {server.uid: Told({id: _it(id)}) for id, server in told.items()}
    place.accelerators, place.slept, place.used = {"r": ("0",)}, {"0": 10.0}, {"0": (used, at)}
    place.tries = more.pop("tries", {})
    place.unmeasured = more.pop("unmeasured", "")
    plan = Plan(place, Settings(mode=Mode.SLEEP, sleepers_bytes=5, **more), 50.0)
    plan.make()
    return plan


OTHER = replace(SINGLE, uid="o", name="other", instance="o")


@pytest.mark.parametrize("bound", [False, True])
def test_without_a_ledger_a_wake_is_asked_for_only_while_little_is_in_use(bound: bool) -> None:
    fits, full = _wakes(bound, 5, OTHER), _wakes(bound, 6, OTHER)
    assert _orders(fits) == ([("wake", QWEN)] if bound else []) and fits.bindings["s"] == {QWEN: "r"}
    assert [e.server.uid for e in _of(full, Order)] == ["o"], "another one goes first"
    assert _waits(full, Phase.WAITING, "sleeping instances go first: o")
    assert full.bindings["s"] == ({QWEN: "r"} if bound else {})
    old = _wakes(bound, 5, OTHER, at=29.0)
    assert _waits(old, Phase.WAITING, "on 0 hasn't been measured since") and not _orders(old)


def test_without_a_ledger_its_own_instance_goes_last_and_not_once_it_is_promised() -> None:
    """By then it may be waking: the figure may be its own."""
    alone = _wakes(False, 6)
    assert _orders(alone) == [("delete-pod", "")] and alone.bindings == {"s": {}}
    bound = _wakes(True, 6)
    assert not _orders(bound) and _waits(bound, Phase.WAITING, "6 bytes are in use on 0, and no sleeper can go")
    assert _of(bound, Query), "it is measured again"


@pytest.mark.parametrize(
    ("tried", "wakes"), [(Try(), True), (Try(False, 0, 60.0), True), (Try(False, 1, 60.0, "500"), False)]
)
def test_without_a_ledger_what_a_wake_takes_is_no_reason_against_it(tried: Try, wakes: bool) -> None:
    plan = _wakes(True, 90, OTHER, tries={("wake", "s", QWEN): tried})
    assert (plan.waits["r"][0] is Phase.WAKING) is wakes and bool(_orders(plan)) is not wakes


@pytest.mark.parametrize("bound", [False, True])
def test_a_figure_that_never_comes_is_said_with_the_reason_and_nothing_wakes(bound: bool) -> None:
    why = "no driver is visible in this container"
    for more in ({"unmeasured": why}, {"tries": {("query", "r"): Try(False, 1, 60.0, why)}}):
        plan = _wakes(bound, 0, OTHER, at=0.0, bound_s=50.0, **more)
        says = f"the memory in use on 0 hasn't been measured since an instance there went to sleep: {why}"
        assert plan.waits["r"] == (Phase.WAITING, says) and not _orders(plan)
        assert ("Late", f"it isn't Ready after 50 s: {says}", True) in _says(plan)


# -- what its instance needs next --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "phase", "reason"), [(State.ASLEEP, Phase.WAKING, "Waking"), (State.OFF, Phase.LAUNCHING, "")]
)
def test_an_instance_at_rest_is_waked_where_there_is_room(state: State, phase: Phase, reason: str) -> None:
    plan = _plan(REQUESTER, BOUND, told=[_it(state=state)])
    where = f"instance {QWEN} in server pod n-dual"
    assert _orders(plan) == [("wake", QWEN)] and _waits(plan, phase, f"{where} is being waked")
    assert _says(plan) == ([(reason, f"{where} is waked for it", False)] if reason else [])
    none = _plan(REQUESTER, BOUND, told=[_it(state=state)], memory=Memory(100, 0))
    assert not _orders(none) and _waits(none, Phase.WAITING, "are needed")
    beside = _plan(REQUESTER, BOUND, told=[_it(state=state), _it("i", State.DRAINING)])
    assert ("wake", QWEN) not in _orders(beside) and _waits(beside, Phase.WAITING, "instance i")
    failed = _plan(REQUESTER, BOUND, told=[_it(state=state)], tries={("wake", "p", QWEN): Try(False, 1, 9.0, "409")})
    assert _waits(failed, phase, "409") and _says(failed) == [("Failed", "409", True)]


@pytest.mark.parametrize(
    ("state", "phase"),
    [(State.LOADING, Phase.LAUNCHING), (State.WAKING, Phase.WAKING), (State.DRAINING, Phase.WAKING)],
)
@pytest.mark.parametrize(("why", "tried", "shown"), [("", "", ""), ("slowly", "x", ": slowly"), ("", "409", ": 409")])
def test_what_it_does_is_said_with_the_reason(state: State, phase: Phase, why: str, tried: str, shown: str) -> None:
    plan = _plan(
        REQUESTER, BOUND, told=[_it(state=state, why=why)], tries={("wake", "p", QWEN): Try(False, 1, 9.0, tried)}
    )
    assert plan.waits["r"] == (phase, f"instance {QWEN} in server pod n-dual is {state.value}{shown}")


def test_an_instance_that_isn_t_there_is_launched_where_there_is_room() -> None:
    plan = _plan(REQUESTER, BOUND, told=[])
    assert _orders(plan) == [("launch", QWEN)] and _waits(plan, Phase.LAUNCHING, f"instance {QWEN} is being launched")
    assert _says(plan) == [("Launching", f"instance {QWEN} is launched for it in server pod n-dual", False)]
    for told, memory, says in (
        ([_it("i", State.DRAINING)], MEMORY, "instance i in"),
        ([], Memory(100, 0), "are needed"),
    ):
        waits = _plan(REQUESTER, BOUND, told=told, memory=memory)
        assert not _orders(waits) and _waits(waits, Phase.WAITING, says)
    tries: dict[Key, Try] = {("launch", "p", QWEN): Try(False, 1, 9.0, "409")}
    assert _waits(_plan(REQUESTER, BOUND, told=[], tries=tries), Phase.LAUNCHING, "409")
    partly = replace(REQUESTER, ask=replace(ASK, unused=("image", "volumes")))
    [warning] = [says for _, says, is_warning in _says(_plan(partly, BOUND, told=[])) if is_warning]
    assert warning.endswith("mean nothing: image, volumes")
    bad = replace(REQUESTER, ask=replace(ASK, references=("A",)))
    assert _waits(_plan(bad, BOUND, told=[]), Phase.REFUSED, "can't look up A")


@pytest.mark.parametrize(
    ("server", "told", "says"),
    [
        (replace(BOUND, running=False, why="ImagePull"), [], "doesn't run yet: ImagePull"),
        (BOUND, None, "hasn't said yet what it runs"),
    ],
)
def test_a_server_pod_that_says_nothing_yet_is_waited_for(
    server: Server, told: list[Instance] | None, says: str
) -> None:
    plan = _plan(REQUESTER, server, told=told)
    assert not _orders(plan) and _waits(plan, Phase.LAUNCHING, f"server pod n-dual {says}")


def test_one_that_failed_as_often_as_it_may_is_launched_again_after_its_pause() -> None:
    tries: dict[Key, Try] = {("wake", "p", QWEN): Try(False, 3, 9.0, "out of memory")}
    plan = _plan(REQUESTER, BOUND, told=[], tries=tries)
    assert not _orders(plan) and plan.look_at == 9.0
    assert _waits(plan, Phase.LAUNCHING, "it has failed 3 times, and waits a while: out of memory")
    assert _orders(_plan(REQUESTER, BOUND, told=[], tries=tries, now=9.0)) == [("launch", QWEN)]
    taken: dict[Key, Try] = {("wake", "p", QWEN): Try(False, 0, 9.0)}
    assert _orders(_plan(REQUESTER, BOUND, told=[], tries=taken)) == [("launch", QWEN)], "it didn't fail"


@pytest.mark.parametrize("server", [POOL, BOUND])
@pytest.mark.parametrize("tried", [Try(), Try(False, 0, 9.0)])
@pytest.mark.parametrize(
    ("what", "its", "waits"),
    [
        ("wake", [_it("i")], True),
        ("wake", [Instance("i", State.ASLEEP, frozenset("1"))], False),
        ("launch", [], True),
        ("launch", [_it("i")], False),
    ],
)
def test_one_that_was_asked_to_begin_for_a_requester_that_has_gone_is_waited_for_where_it_may_be_in_the_way(
    server: Server, tried: Try, what: str, its: list[Instance], waits: bool
) -> None:
    told = [*its, _it()]
    plan = _plan(REQUESTER, server, told=told, tries={(what, "p", "i"): tried})
    says = f"instance i was asked to {what}, and hasn't done so yet"
    assert _waits(plan, Phase.WAITING, says) is waits and (plan.look_at == 9.0 or tried.busy or not waits)
    assert not (waits and _orders(plan)) and not (waits and plan.bindings["p"] and server is POOL)
    for over in (Try(False, 1, 9.0, "409"), Try(False, 0, 0.0)):
        assert not _waits(_plan(REQUESTER, server, told=told, tries={(what, "p", "i"): over}), Phase.WAITING, says)


def test_one_that_is_asked_to_begin_for_another_requester_is_in_no_way() -> None:
    other = replace(REQUESTER, uid="o", name="o")
    server = replace(POOL, bindings={QWEN: "o"})
    mine = replace(REQUESTER, ask=replace(ASK, wish="llama"))
    place = Place("n", NODE, tries={("launch", "p", QWEN): Try()})
    place.requesters, place.servers = {"o": other, "r": mine}, {"p": server}
    place.accelerators, place.told = {"o": ("0",), "r": ("1",)}, {"p": Told({}, {"0": MEMORY, "1": MEMORY})}
    plan = Plan(place, Settings(template={"spec": {"containers": []}}), 0.0)
    plan.make()
    assert set(plan.bindings["p"].values()) == {"o", "r"}


@pytest.mark.parametrize(("why", "says"), [("", "its server pod says no more"), ("oom", "oom")])
def test_what_failed_is_tried_again_and_made_anew_at_last(why: str, says: str) -> None:
    for failures, what in ((0, "wake"), (2, "wake"), (3, "delete")):
        tries: dict[Key, Try] = {("wake", "p", QWEN): Try(False, failures, 0.0, "x")}
        plan = _plan(REQUESTER, BOUND, told=[_it(state=State.FAILED, why=why)], tries=tries)
        assert _orders(plan) == [(what, QWEN)] and _waits(plan, Phase.LAUNCHING, f"instance {QWEN} failed: {says}")
        assert _says(plan) == [("Failed", f"instance {QWEN} failed: {says}", True)]
    plan = _plan(REQUESTER, BOUND, told=[_it(state=State.FAILED, why=why)], memory=Memory(100, 0))
    assert not _orders(plan) and _waits(plan, Phase.WAITING, f"instance {QWEN} failed: {says}; 0 has 0 bytes")
    single = replace(SINGLE, bindings={QWEN: "r"})
    plan = _plan(REQUESTER, single, told=[_it(state=State.FAILED)], memory=None, mode=Mode.SLEEP)
    assert _orders(plan) == [("delete-pod", "")], "it has no other way to begin again"


STARTED, WAKED = ("create", "n", "single"), ("wake", "s", QWEN)


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize(
    ("key", "failures", "why", "restarts", "state", "anew"),
    [
        (STARTED, 3, "oom", 1, State.LOADING, True),
        (STARTED, 2, "oom", 1, State.LOADING, False),
        (STARTED, 3, "oom", 0, State.LOADING, False),
        (WAKED, 3, "oom", 0, State.ASLEEP, True),
        (WAKED, 2, "oom", 0, State.ASLEEP, False),
        (WAKED, 3, "", 0, State.ASLEEP, False),
    ],
)
def test_one_in_a_pod_of_its_own_is_made_anew_when_it_failed_as_often_as_it_may(
    key: Key, failures: int, why: str, restarts: int, state: State, anew: bool, bound: bool
) -> None:
    """A start by kubelet, or a wake; and a pod that was made since hasn't failed yet."""
    server = replace(SINGLE, bindings={QWEN: "r"} if bound else {}, restarts=restarts)
    told, tries = [_it(state=state, why="it doesn't listen yet")], {key: Try(False, failures, 0.0, why)}
    pods = (REQUESTER, server) if bound else (server,)
    plan = _plan(*pods, told=told, memory=None, mode=Mode.SLEEP, tries=tries)
    assert (("delete-pod", "") in _orders(plan)) == anew
    if bound and anew:
        assert _waits(plan, Phase.LAUNCHING, f"instance {QWEN} failed: oom")
        assert ("Failed", f"instance {QWEN} failed: oom", True) in _says(plan)
    pool = _plan(REQUESTER, replace(BOUND, restarts=1), told=told, tries={("wake", "p", QWEN): Try(False, 3, 0.0, "x")})
    assert ("delete-pod", "") not in _orders(pool), "it starts its instances itself"


def test_of_a_start_and_a_wake_the_one_that_failed_more_often_says_why_it_is_made_anew() -> None:
    server = replace(SINGLE, bindings={QWEN: "r"}, restarts=1)
    for started, waked, why in ((1, 3, "woke"), (3, 1, "started")):
        tries: dict[Key, Try] = {STARTED: Try(False, started, 0.0, "started"), WAKED: Try(False, waked, 0.0, "woke")}
        plan = _plan(REQUESTER, server, told=[_it()], memory=None, mode=Mode.SLEEP, tries=tries)
        assert ("delete-pod", "") in _orders(plan) and _waits(plan, Phase.LAUNCHING, f"failed: {why}")


GATED = replace(SINGLE, running=False, ip="", gated=True)


def test_one_that_has_a_gate_may_begin_once_nothing_else_begins_there() -> None:
    bound = replace(GATED, bindings={QWEN: "r"})
    plan = _plan(REQUESTER, bound, mode=Mode.SLEEP)
    assert _orders(plan) == [("admit", "")] and _waits(plan, Phase.LAUNCHING, "may begin")
    plan = _plan(REQUESTER, bound, mode=Mode.SLEEP, tries={("admit", "s", ""): Try(False, 1, 1.0, "refused")})
    assert _waits(plan, Phase.LAUNCHING, "refused")
    other = replace(SINGLE, uid="t", name="other", instance="i", running=False)
    plan = _plan(REQUESTER, bound, other, mode=Mode.SLEEP)
    assert ("admit", "") not in _orders(plan) and _waits(plan, Phase.WAITING, "in server pod other is loading")
    plan = _plan(REQUESTER, replace(bound, gated=False), mode=Mode.SLEEP)
    assert not _orders(plan) and _waits(plan, Phase.LAUNCHING, "is loading"), "it has begun"


@pytest.mark.parametrize("why", ["", "ErrImagePull no such image"])
def test_one_that_doesn_t_run_and_is_promised_to_none_goes(why: str) -> None:
    """It may never run, and none would wait for it: no node has what its patch asks for, or no registry its image."""
    for pod in (GATED, replace(GATED, gated=False, why=why)):
        assert _orders(_plan(pod, mode=Mode.SLEEP)) == [("delete-pod", "")]
        bound = replace(pod, bindings={QWEN: "r"})
        assert ("delete-pod", "") not in _orders(_plan(REQUESTER, bound, mode=Mode.SLEEP))
    assert not _orders(_plan(SINGLE, mode=Mode.SLEEP)), "it loads, and may be waked"


# -- ready, and unready ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ip", "host"), [("10.0.0.2", "10.0.0.2"), ("fd00::2", "[fd00::2]")])
def test_a_requester_is_told_where_its_instance_is(ip: str, host: str) -> None:
    plan = _plan(REQUESTER, replace(BOUND, ip=ip), told=[_it(state=State.AWAKE, port=9)])
    models = f"http://{host}:9/failover/models"
    assert _of(plan, Relay) == [Relay(REQUESTER, Target(f"{models}/{QWEN}/ready", f"{models}?watch=1", ip, 9))]
    assert _waits(plan, Phase.WAKING, f"it is being told that instance {QWEN} is awake")
    single = replace(SINGLE, ip=ip, probe=(7, "/up"), bindings={QWEN: "r"})
    plan = _plan(REQUESTER, single, told=[_it(state=State.AWAKE)], memory=None, mode=Mode.SLEEP)
    assert _of(plan, Relay) == [Relay(REQUESTER, Target(f"http://{host}:7/up", "", ip))]


def test_a_requester_is_told_again_after_a_restart_and_why_it_can_t_be() -> None:
    [relay] = _of(_plan(REQUESTER, BOUND, told=[_it(state=State.AWAKE, port=9)]), Relay)
    told: dict[str, tuple[Target | None, int]] = {"r": (relay.target, 0)}
    again = replace(REQUESTER, restarts=1)
    assert _of(_plan(again, BOUND, told=[_it(state=State.AWAKE, port=9)], relayed=told), Relay)
    tries: dict[Key, Try] = {("relay", "r"): Try(False, 1, 9.0, "refused")}
    plan = _plan(REQUESTER, BOUND, told=[_it(state=State.AWAKE, port=9)], tries=tries)
    assert _waits(plan, Phase.WAKING, "refused") and ("Failed", "refused", True) in _says(plan)
    plan = _plan(REQUESTER, BOUND, told=[_it(state=State.AWAKE)])
    assert _waits(plan, Phase.WAKING, "gives it no port yet") and not _of(plan, Relay)


@pytest.mark.parametrize(
    ("requester", "relayed", "told"),
    [
        (REQUESTER, None, False),
        (replace(REQUESTER, ready=True), None, True),
        (replace(REQUESTER, ready=True, running=False), None, False),
        (REQUESTER, (Target("u"), 0), True),
        (replace(REQUESTER, ready=True), (None, 0), False),
    ],
)
def test_a_requester_whose_binding_has_ended_is_told_so_unless_it_knows(
    requester: Requester, relayed: tuple[Target | None, int] | None, told: bool
) -> None:
    plan = _plan(requester, POOL, told=[], relayed={"r": relayed} if relayed is not None else {})
    assert (Relay(requester, None) in plan.effects) == told


@pytest.mark.parametrize(
    ("ready", "relayed", "told"),
    [
        (True, None, True),
        (False, None, False),
        (False, (Target("u"), 0), True),
        (True, (RESTS, 0), False),
        (False, (replace(RESTS, host="10.0.0.9"), 0), True),
        (True, (None, 0), False),
    ],
)
def test_one_that_asks_no_instance_is_told_when_its_own_isn_t_awake(
    ready: bool, relayed: tuple[Target | None, int] | None, told: bool
) -> None:
    requester, said = replace(REQUESTER, ready=ready), {"r": relayed} if relayed is not None else {}
    for its in ([_it(state=State.FAILED)], []):
        assert _of(_plan(requester, BOUND, told=its, relayed=said), Relay) == [Relay(requester, RESTS)] * told
    silent = _of(_plan(requester, BOUND, relayed=said), Relay)
    assert bool(silent) == (told and relayed is not None), "what this controller has heard of, and hears no more"
    [again] = _of(_plan(requester, BOUND, told=[_it(state=State.AWAKE, port=9)], relayed={"r": (RESTS, 0)}), Relay)
    assert again.target is not None and again.target.url


@pytest.mark.parametrize(("failures", "sleeps"), [(0, False), (1, True)])
def test_an_instance_stays_awake_until_its_requester_was_told_once(failures: int, sleeps: bool) -> None:
    gone = replace(REQUESTER, ready=True, leaving=True, marks={names.INSTANCE: QWEN})
    tries: dict[Key, Try] = {("relay", "r"): Try(False, failures, 9.0, "refused")} if failures else {}
    plan = _plan(gone, POOL, told=[_it(state=State.AWAKE)], tries=tries)
    assert (("sleep", QWEN) in _orders(plan)) == sleeps


@pytest.mark.parametrize(
    ("mode", "running", "orders"),
    [
        (Mode.SLEEP, True, []),
        (Mode.SLEEP, False, [("sleep", QWEN)]),
        (Mode.DIRECT, True, []),
        (Mode.DIRECT, False, [("delete-pod", "")]),
        (Mode.SWAP, True, [("sleep", QWEN)]),
    ],
)
def test_an_engine_without_a_pool_stays_awake_while_its_last_requester_may_pass_on_answers(
    mode: Mode, running: bool, orders: list[tuple[str, str]]
) -> None:
    """A pool waits for them by itself. An engine may break if it is put to sleep while it answers."""
    gone = replace(REQUESTER, leaving=True, running=running, marks={names.INSTANCE: QWEN})
    server = POOL if mode is Mode.SWAP else SINGLE
    plan = _plan(gone, server, told=[_it(state=State.AWAKE)], relayed={"r": (None, 0)}, mode=mode)
    assert _orders(plan) == orders


# -- what is promised to none ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "state", "orders"),
    [
        (POOL, State.AWAKE, [("sleep", "i")]),
        (POOL, State.ASLEEP, []),
        (POOL, State.OFF, [("delete", "i")]),
        (POOL, State.FAILED, [("delete", "i")]),
        (POOL, State.LOADING, []),
        (POOL, State.DRAINING, []),
        (replace(POOL, bindings={"i": "x"}), State.AWAKE, [("sleep", "i")]),
        (replace(POOL, leaving=True), State.AWAKE, []),
        (replace(SINGLE, instance="i"), State.AWAKE, [("sleep", "i")]),
        (replace(SINGLE, instance="i"), State.FAILED, [("delete-pod", "")]),
        (replace(SINGLE, instance="i"), State.OFF, []),
        (replace(SINGLE, instance="i", running=False), State.OFF, [("delete-pod", "")]),
    ],
)
def test_what_is_promised_to_none_comes_to_rest(server: Server, state: State, orders: list[tuple[str, str]]) -> None:
    mode = Mode.SWAP if server.pool else Mode.SLEEP
    plan = _plan(server, told=[_it("i", state)], mode=mode)
    assert _orders(plan) == orders
    says = ("Sleeping", "instance i goes to sleep: no requester has it", False)
    assert _says(plan) == ([says] if orders == [("sleep", "i")] else [])
    busy = _plan(server, told=[_it("i", state)], tries={("sleep", server.uid, "i"): Try()}, mode=mode)
    assert not _says(busy), "it was said when it was asked for"
    for known in (Try(False, until=1.0), Try(False, 1, 1.0, "refused")):
        again = _plan(server, told=[_it("i", state)], tries={("sleep", server.uid, "i"): known}, now=2.0, mode=mode)
        assert _orders(again) == orders and not _says(again), "it is only asked for again"


def test_what_one_that_is_off_has_in_gms_is_no_sleeper_s() -> None:
    off = replace(_it("i", State.OFF), weights={"0": 1})
    plan = _plan(REQUESTER, POOL, told=[off], sleepers_bytes=0)
    assert plan.bindings["p"], "it is bound, and waits for no sleeper to go"


def test_one_that_is_to_wake_by_itself_is_put_to_sleep_and_nothing_is_promised_beside_it_before() -> None:
    plan = _plan(REQUESTER, POOL, told=[_it("i", wanted=True)])
    assert _waits(plan, Phase.WAITING, "is to be waked, on an accelerator of this one")
    assert _orders(plan) == [("sleep", "i")] and not plan.bindings["p"]


@pytest.mark.parametrize("state", [State.LOADING, State.WAKING])
def test_what_begins_for_none_where_another_one_is_promised_goes(state: State) -> None:
    plan = _plan(REQUESTER, BOUND, told=[_it(), _it("i", state)])
    assert ("delete", "i") in _orders(plan)
    elsewhere = Instance("i", state, frozenset("1"))
    assert ("delete", "i") not in _orders(_plan(REQUESTER, BOUND, told=[_it(), elsewhere]))
    bound, unheard = replace(SINGLE, bindings={QWEN: "r"}), replace(SINGLE, uid="u", name="unheard", instance="i")
    plan = _plan(REQUESTER, bound, unheard, mode=Mode.SLEEP)
    assert ("delete-pod", "") not in _orders(plan), "it may be asleep"


def test_in_direct_mode_nothing_stays_that_no_requester_has() -> None:
    plan = _plan(SINGLE, told=[_it(state=State.AWAKE)], mode=Mode.DIRECT)
    assert _orders(plan) == [("delete-pod", "")]


# -- server pods -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "orders"),
    [
        (POOL, []),
        (replace(POOL, leaving=True, held=True), []),
        (replace(POOL, ended=True, held=True), ["delete-pod"]),
        (replace(POOL, ended=True, leaving=True, held=True), ["release"]),
        (replace(POOL, ended=True, leaving=True), []),
    ],
)
def test_a_server_pod_that_has_ended_goes_and_nothing_of_it_before(server: Server, orders: list[str]) -> None:
    plan = _plan(server, told=[], taint="t")
    assert [what for what, _ in _orders(plan)] == orders
    ended = ("Ended", "its containers have ended", True)
    assert _says(plan) == ([ended] if orders == ["delete-pod"] else [])
    if orders == ["delete-pod"]:
        assert _says(_plan(replace(server, why="Evicted"), told=[])) == [("Ended", "Evicted", True)]


@pytest.mark.parametrize(
    ("pods", "told", "goes"),
    [
        ((POOL,), [_it("i")], True),
        ((POOL,), [_it("i", State.LOADING)], True),
        ((POOL,), [_it("i", State.DRAINING)], False),
        ((POOL, REQUESTER), [_it()], True),
        ((BOUND, REQUESTER), [_it()], False),
        ((POOL,), None, True),
        ((SINGLE,), [_it()], True),
        ((replace(SINGLE, bindings={QWEN: "r"}), REQUESTER), [_it()], False),
        ((replace(POOL, leaving=True),), [], False),
    ],
)
def test_what_is_promised_to_none_goes_with_the_taint_of_its_node(
    pods: tuple[Requester | Server, ...], told: list[Instance] | None, goes: bool
) -> None:
    mode = Mode.SLEEP if SINGLE.name == pods[0].name else Mode.SWAP
    plan = _plan(*pods, told=told, node=replace(NODE, usable=False), taint="t", mode=mode)
    assert (("delete-pod", "") in _orders(plan)) == goes
    says = f"server pod {pods[0].name} goes: node n isn't the controller's any more"
    assert (("Needless", says, False) in _says(plan)) == goes
    assert ("delete-pod", "") not in _orders(_plan(*pods, told=told, taint="t", mode=mode)), "it is the controller's"


def test_one_that_still_answers_keeps_no_other_server_pod_there() -> None:
    answers = replace(SINGLE, uid="a", name="answers", instance="j")
    place = Place("n", replace(NODE, usable=False), servers={"a": answers, "s": replace(SINGLE, instance="i")})
    place.told = {"a": Told({"j": _it("j", State.AWAKE)}), "s": Told({"i": _it("i")})}
    plan = Plan(place, Settings(Mode.SLEEP, taint="t"), 0.0)
    plan.make()
    assert [e.server.name for e in plan.effects if isinstance(e, Order) and e.what == "delete-pod"] == ["single"]


def test_a_pool_goes_that_nobody_asks_for_once_it_is_empty_and_has_said_so() -> None:
    says = "server pod n-dual goes: it runs nothing, and no requester is there"
    plan = _plan(POOL, told=[])
    assert _orders(plan) == [("delete-pod", "")] and _says(plan) == [("Needless", says, False)]
    unready = replace(REQUESTER, leaving=True, ready=True)
    for pods, told in (((POOL,), None), ((POOL,), [_it("i")]), ((POOL, REQUESTER), []), ((POOL, unready), [])):
        assert ("delete-pod", "") not in _orders(_plan(*pods, told=told))
    pulls = replace(POOL, running=False, why="ErrImagePull no such image")
    assert _orders(_plan(pulls)) == [("delete-pod", "")], "it may never say anything"
    assert ("delete-pod", "") not in _orders(_plan(pulls, REQUESTER))


def test_what_was_on_a_node_that_has_gone_goes_after_a_minute() -> None:
    gone = Place("n", None, 10.0, servers={"p": replace(POOL, leaving=True, held=True)})
    for now, orders in ((69.0, 0), (70.0, 1)):
        plan = Plan(gone, Settings(), now)
        plan.make()
        assert len(_orders(plan)) == orders and (plan.look_at == 70.0) == (not orders)


# -- marks -------------------------------------------------------------------------------------------------------------


def _marks(plan: Plan, pod: Requester | Server) -> dict[str, str | None]:
    return {k: v for mark in _of(plan, Mark) if mark.pod == pod for k, v in {**mark.labels, **mark.annotations}.items()}


@pytest.mark.parametrize(("failures", "says"), [(8, []), (9, [("Failed", "its status can't be written: no", True)])])
def test_that_its_status_can_t_be_written_is_an_event(failures: int, says: list[tuple[str, str, bool]]) -> None:
    tries: dict[Key, Try] = {("mark", "r"): Try(False, failures, 9.0, "no")}
    plan = _plan(REQUESTER, BOUND, tries=tries, told=[_it(state=State.AWAKE)])
    assert _says(plan) == says


def test_a_requester_says_who_runs_it_on_what_and_how_far_it_is() -> None:
    plan = _plan(REQUESTER, BOUND, told=[])
    marks = _marks(plan, REQUESTER)
    assert (marks[names.DUAL], marks[names.INSTANCE], marks[names.ACCELERATORS]) == ("n-dual", QWEN, "0")
    status = json.loads(marks[names.STATUS] or "")
    assert status == {"Errors": [], "Phase": "launching", "Says": f"instance {QWEN} is being launched"}
    assert names.OLD_ADDRESS not in marks
    wrong = replace(REQUESTER, ask=None, wrong="no")
    assert json.loads(_marks(_plan(wrong, has=()), wrong)[names.STATUS] or "")["Errors"] == ["no"]
    assert names.ACCELERATORS not in _marks(_plan(wrong, has=()), wrong)
    assert names.INSTANCE not in _marks(_plan(wrong, has=()), wrong)
    known = {key: value for key, value in marks.items() if value is not None}
    same = replace(REQUESTER, marks=known)
    assert not _marks(_plan(same, BOUND, told=[]), same), "nothing is written twice"
    leaving = replace(REQUESTER, leaving=True)
    assert not _marks(_plan(leaving, BOUND, told=[]), leaving)


def test_one_of_the_older_words_is_told_the_address_while_its_instance_is_awake() -> None:
    old = replace(REQUESTER, old=True, marks={names.OLD_ADDRESS: "x"})
    awake = [_it(state=State.AWAKE, port=9)]
    [relay] = _of(_plan(old, BOUND, told=awake), Relay)
    assert _marks(_plan(old, BOUND, told=awake), old)[names.OLD_ADDRESS] == POOL.ip, "it may hear nothing else"
    asleep = [replace(it, state=State.ASLEEP) for it in awake]
    assert _marks(_plan(old, BOUND, told=asleep), old)[names.OLD_ADDRESS] is None
    told: dict[str, tuple[Target | None, int]] = {"r": (relay.target, 0)}
    assert _marks(_plan(old, BOUND, told=awake, relayed=told), old)[names.OLD_ADDRESS] == POOL.ip
    assert names.OLD_ADDRESS not in _marks(_plan(REQUESTER, BOUND, told=awake, relayed=told), REQUESTER)


def test_a_server_pod_says_whom_it_runs_for_what_it_has_and_whether_none_of_it_is_awake() -> None:
    sleeping: list[tuple[list[Instance], str]] = [
        ([], "true"),
        ([_it("i"), _it("j", State.LOADING)], "true"),
        ([_it("i"), _it("j", State.AWAKE)], "false"),
    ]
    for told, sleeps in sleeping:
        assert _marks(_plan(POOL, told=told), POOL)[names.SLEEPING] == sleeps
    marks = _marks(_plan(REQUESTER, BOUND, told=[]), BOUND)
    assert marks[names.DUAL] == "a" and marks[names.ACCELERATORS] == "0"
    assert names.ACCELERATORS not in _marks(_plan(POOL, told=[], memory=None), POOL)
    assert names.SLEEPING not in _marks(_plan(POOL), POOL), "it hasn't said"
    assert _marks(_plan(SINGLE, told=[_it(state=State.LOADING)]), SINGLE)[names.SLEEPING] == "false"
    asleep = _plan(SINGLE, told=[_it()], now=5.0)
    assert _marks(asleep, SINGLE)[names.ASLEEP_SINCE] == "5.0" and names.ACCELERATORS not in _marks(asleep, SINGLE)
    since = replace(SINGLE, marks={names.ASLEEP_SINCE: "3.0"})
    assert names.ASLEEP_SINCE not in _marks(_plan(since, told=[_it()], now=5.0), since), "it has slept since 3"
    assert _marks(_plan(since, told=[_it(state=State.AWAKE)]), since)[names.ASLEEP_SINCE] is None
    ended = replace(BOUND, bindings={QWEN: "r"}, marks={names.BINDINGS: "x"})
    assert _marks(_plan(ended, told=[]), ended)[names.BINDINGS] is None


def test_a_server_pod_names_its_requester_if_it_has_one_and_its_promises_in_one_order() -> None:
    llama = names.instance_id("llama", "n", ("0",))
    other = replace(REQUESTER, uid="q", name="b", ask=replace(ASK, wish="llama"))
    waits = _plan(REQUESTER, other, BOUND, told=[])
    assert _marks(waits, BOUND)[names.DUAL] == "a", "the other one has no instance"
    for bindings in ({QWEN: "r", llama: "q"}, {llama: "q", QWEN: "r"}):
        server = replace(BOUND, bindings=bindings, marks={names.BINDINGS: json.dumps(bindings, sort_keys=True)})
        marks = _marks(_plan(other, REQUESTER, server, told=[]), server)
        assert names.BINDINGS not in marks and names.DUAL not in marks


@pytest.mark.parametrize("newer", ["qwen", "llama"])
def test_a_promise_is_written_in_the_order_in_which_it_is_read(newer: str) -> None:
    """Else it would be written once more."""
    ids = {"qwen": QWEN, "llama": names.instance_id("llama", "n", ("1",))}
    asks = {wish: replace(REQUESTER, uid=wish, name=wish, ask=replace(ASK, wish=wish)) for wish in ids}
    before = {ids[wish]: wish for wish in ids if wish != newer}
    place = Place("n", NODE, requesters=dict(asks), servers={"p": replace(POOL, bindings=before)})
    place.accelerators = {"qwen": ("0",), "llama": ("1",)}
    place.told = {"p": Told({}, {"0": MEMORY, "1": MEMORY})}
    plan = Plan(place, Settings(), 0.0)
    plan.make()
    [written] = [m.annotations[names.BINDINGS] for m in _of(plan, Mark) if names.BINDINGS in m.annotations]
    assert written == json.dumps({ids[wish]: wish for wish in ids}, sort_keys=True)


def test_a_label_that_has_changed_alone_is_written() -> None:
    marks = _marks(_plan(REQUESTER, BOUND, told=[]), REQUESTER)
    known = {key: value for key, value in marks.items() if value is not None and key != names.DUAL}
    relabelled = replace(REQUESTER, marks=known)
    assert _marks(_plan(relabelled, BOUND, told=[]), relabelled) == {names.DUAL: "n-dual"}


@pytest.mark.parametrize("mode", [Mode.SWAP, Mode.SLEEP])
@pytest.mark.parametrize("asked", [True, False])
def test_of_two_that_need_room_the_second_takes_what_goes_for_the_first(mode: Mode, asked: bool) -> None:
    """In one plan, and while the order for the first is under way."""
    first, second = (replace(REQUESTER, uid=uid, name=uid, created=at) for at, uid in enumerate(("r", "r2")))
    place = Place("n", NODE, used={"0": (60, 9.0), "1": (60, 9.0)})
    place.requesters = {"r": first, "r2": second}
    place.accelerators = {"r": ("0",), "r2": ("1",)}
    wide, one = (frozenset(name) for name in ("01", "1"))
    its = [Instance(str(n), State.ASLEEP, on, asleep_bytes=dict.fromkeys(on, 9)) for n, on in enumerate((wide, one))]
    pods = [POOL] if mode is Mode.SWAP else [
        replace(SINGLE, uid=it.id, instance=it.id, accelerators=it.accelerators) for it in its
    ]  # fmt: skip
    for pod in pods:
        place.servers[pod.uid] = pod
        said = {it.id: it for it in its if pod.pool or pod.uid == it.id}
        place.told[pod.uid] = Told(said, dict.fromkeys("01", Memory(100, 1)) if pod.pool else {})
    key = ("delete", "p", "0") if mode is Mode.SWAP else ("delete-pod", "0", "")
    place.tries = {key: Try()} if asked else {}
    plan = Plan(place, Settings(mode=mode, sleepers_bytes=50, template={"spec": {"containers": []}}), 10.0)
    plan.make()
    assert [(o.server.uid, o.instance) for o in _of(plan, Order)] == ([] if asked else [(key[1], key[2])])
    assert {sentence for _, sentence in plan.waits.values()} == {"sleeping instances go first: 0"}


class _Tries(dict[Key, Try]):
    walks = 0

    def __iter__(self) -> Iterator[Key]:
        self.walks += 1
        return super().__iter__()


def test_how_much_was_said_is_counted_once_in_a_plan_however_many_are_refused() -> None:
    walks = set()
    for number in (2, 20):
        tries = _Tries({("say", "x", "Refused", "no"): Try()})
        _plan(*(replace(REQUESTER, uid=f"r{i}", ask=None, wrong="no") for i in range(number)), tries=tries)
        walks.add(tries.walks)
    assert walks == {1}
