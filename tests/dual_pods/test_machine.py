"""What the machine remembers of what it is told, and for how long."""

from dataclasses import replace
from typing import Any

import pytest

from dual_pods.rules import events as e
from dual_pods.rules import machine as machines
from dual_pods.rules import names
from dual_pods.rules.facts import Ask, Instance, Node, Requester, Server, Told
from dual_pods.rules.machine import Machine
from dual_pods.rules.place import Mode, Settings, Try
from dual_pods.rules.plan import Phase, Plan
from dual_pods.rules.standing import Target
from pool.entries import State

NODE = Node("uid-n", "n", True, True)
ASK = Ask("qwen", {"metadata": {"labels": {}, "annotations": {}}, "spec": {"containers": []}}, {})
REQUESTER = Requester("r", "a", "ns", "n", "10.0.0.1", running=True, version="5", ask=ASK)
POOL = Server("p", "n-dual", "ns", "n", "10.0.0.2", running=True, version="5")
SINGLE = replace(POOL, uid="s", name="single", pool=False, instance="i", accelerators=frozenset("0"))


def _machine(*events: e.Event, **settings: Any) -> Machine:
    it = Machine(Settings(template={"spec": {"containers": []}}, **settings))
    for event in (NODE, *events, e.Listed()):
        it.feed(event, 0.0)
    return it


def _told(state: State, uid: str = "p") -> e.Tells:
    return e.Tells(uid, Told({"i": Instance("i", state, frozenset("0"), "why it failed")}))


def _late(effects: list[e.Effect]) -> list[str]:
    return [effect.sentence for effect in effects if isinstance(effect, e.Say) and effect.reason == "Late"]


def _done(it: Machine, effect: e.Effect, error: str = "", now: float = 0.0, has: tuple[str, ...] = ()) -> None:
    it.feed(e.Done(effect, error, has), now)


def test_nothing_is_done_before_everything_that_is_there_has_been_told() -> None:
    """Else a second server pod would be made for one that is told a moment later."""
    it = Machine(Settings())
    assert it.feed(NODE, 0.0) == it.feed(REQUESTER, 0.0) == []
    assert [e.key(effect)[0] for effect in it.feed(e.Listed(), 0.0)] == ["query", "mark"]


def _keys(effects: list[e.Effect]) -> list[e.Key]:
    return [e.key(effect)[:3] for effect in effects]


@pytest.mark.parametrize(
    ("faulty", "about", "says"), [("_advance", "r", "ours"), ("_keep", "n", "node n is left as it is: ours")]
)
def test_a_fault_in_a_plan_is_a_requester_s_or_a_node_s_alone_and_they_say_so_until_it_is_over(
    faulty: str, about: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended each controller that led, and so all of the cluster's. Nor is it told with each event of a node."""
    makes, faults = getattr(Plan, faulty), [True]

    def fault(it: Plan, pod: Any) -> Any:
        if it.place.name == "n" and pod.uid in ("r", "p") and faults[0]:
            raise ZeroDivisionError("ours")
        return makes(it, pod)

    monkeypatch.setattr(Plan, faulty, fault)
    it = Machine(Settings())
    more = replace(REQUESTER, uid="q", created=1.0), replace(NODE, uid="n2", name="n2")
    for event in (NODE, REQUESTER, POOL, *more, replace(REQUESTER, uid="r2", node="n2")):
        it.feed(event, 0.0)
    effects = it.feed(e.Listed(), 0.0)
    assert ("plan", about) in _keys(effects) and (("query", "q") in _keys(effects)) == (about == "r")
    assert _keys(effects)[-2:] == [("query", "r2"), ("mark", "r2")] and "a fault of the controller" in it.waits["r"][1]
    [met] = [effect for effect in effects if isinstance(effect, e.Fault)]
    assert ("mark", "r") in _keys(effects)
    told = it.feed(e.Done(met, "ours"), 0.0)
    assert ("say", "r", "Failed") in _keys(told)
    assert it.waits["r"] == (Phase.WAITING, says) and 0.0 < it.places["n"].look_at <= 1.0
    assert ("plan", about) not in _keys(it.feed(replace(POOL, version="8"), 0.5))
    assert ("plan", about) in _keys(it.feed(e.Look(), 1.0))
    it.feed(replace(REQUESTER, version="8", ready=True), 1.0)
    assert it.waits["r"][0] is Phase.READY
    faults[0] = False
    assert ("query", "r") in _keys(it.feed(replace(POOL, version="9"), 1.1)), "at once, and after no pause"


@pytest.mark.parametrize(("uid", "seen"), [("uid-n", NODE), ("p", replace(POOL, version="6"))])
def test_a_node_that_is_read_in_part_is_left_as_it_is_until_it_is_read_again(uid: str, seen: Any) -> None:
    """One without its Node would be let go in a minute, and what a server pod has would be promised once more."""
    it = _machine(REQUESTER, POOL, _told(State.AWAKE))
    assert ("sleep", "p", "i") in it.places["n"].tries
    it.feed(e.Done(e.Query(REQUESTER), accelerators=("0",)), 0.0)
    it.places["n"].tries.clear()
    unread = e.Unread(uid, "n", f"read {uid}", ZeroDivisionError("ours"))
    keys = _keys(it.feed(unread, 1.0)) + _keys(it.feed(replace(REQUESTER, version="6", leaving=True), 2.0))
    assert {key[0] for key in keys} == {"plan", "mark"}
    assert not {key[0] for key in _keys(it.feed(e.Look(), 1000.0))} - {"plan"}
    assert ("sleep", "p", "i") in _keys(it.feed(seen, 1001.0))


def test_a_node_that_was_never_read_is_gone_since_it_went_and_is_forgotten_with_its_pods() -> None:
    it = Machine(Settings())
    for event in (e.Unread("uid-n", "n", "read n", ZeroDivisionError("ours")), POOL, e.Listed()):
        it.feed(event, 0.0)
    assert _keys(it.feed(e.Look(), 1000.0)) == [], "it was told, and is under way"
    it.feed(e.Gone("uid-n"), 1000.0)
    assert it.places["n"].gone_since == 1000.0
    it.feed(e.Unread("p", "n", "read p", ZeroDivisionError("ours")), 1001.0)
    assert it.feed(e.Look(), 2000.0) == [] and it.places
    it.feed(e.Gone("p"), 2001.0)
    assert not it.places
    assert _keys(it.feed(e.Unread("q", "n", "read q", ZeroDivisionError("ours")), 2002.0)) == [("plan", "n")]
    assert it.places, "what it has isn't known"


def test_nothing_is_kept_of_what_has_gone() -> None:
    it = _machine(REQUESTER, POOL, _told(State.ASLEEP))
    for uid in ("r", "p", "uid-n"):
        it.feed(e.Gone(uid), 1.0)
    assert not it.places and not it.waits and not it._where
    assert it.feed(e.Gone("r"), 2.0) == [] and it.server("p") is None


def test_a_place_is_kept_for_as_long_as_a_requester_or_a_server_pod_is_there() -> None:
    waits = replace(REQUESTER, node="", running=False, why="no node was found for it")
    it = _machine(waits, POOL)
    it.feed(e.Gone("uid-n"), 1.0)
    assert set(it.places) == {"/r", "n"} and it.waits["r"][1].endswith("no node was found for it")
    it.feed(replace(waits, node="n", version="6"), 2.0)
    assert set(it.places) == {"n"} and set(it.places["n"].requesters) == {"r"}, "it was placed"


def test_each_that_no_node_was_found_for_is_looked_at_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand took half a minute of a processor, as each was looked at with each change of any."""
    looked_at = list[list[str]]()

    class Looks(Plan):
        def make(self) -> None:
            looked_at.append([*self.place.requesters])
            super().make()

    waits = [replace(REQUESTER, uid=uid, node="", running=False) for uid in ("a", "b", "c")]
    it = _machine(*waits)
    monkeypatch.setattr(machines, "Plan", Looks)
    it.feed(replace(waits[1], version="6"), 1.0)
    assert looked_at == [["b"]]


def test_one_that_is_deleted_or_has_ended_is_none_that_starts() -> None:
    it = _machine(REQUESTER)
    assert it.waits["r"][0] is Phase.ASKING
    it.feed(replace(REQUESTER, leaving=True, running=False, version="6"), 1.0)
    assert it.waits["r"] == (Phase.LEAVING, "")


def test_what_has_gone_isn_t_brought_back_by_a_late_answer_and_what_stays_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "GONE_MOST", 3)
    it = _machine(REQUESTER)
    it.feed(e.Gone("r", stays=True), 1.0)
    it.feed(replace(REQUESTER, version="7"), 2.0)
    assert "r" in it.places["n"].requesters, "its annotation was taken off, and put on again"
    it.feed(e.Gone("r"), 3.0)
    it.feed(replace(REQUESTER, version="8"), 4.0)
    assert "r" not in it.places["n"].requesters
    for number in range(10):
        it.feed(e.Gone(f"x{number}"), 5.0)
    assert len(it._gone) <= 4, "not for ever"


def test_a_node_is_there_until_it_has_gone_and_again_when_it_comes_back() -> None:
    it = _machine(POOL)
    it.feed(e.Gone("p"), 1.0)
    assert it.places["n"].node == NODE, "a pod of it has gone"
    it.feed(replace(POOL, uid="q"), 1.0)
    it.feed(e.Gone("uid-n"), 2.0)
    place = it.places["n"]
    assert place.node is None and place.gone_since == 2.0
    it.feed(e.Gone("q"), 3.0)
    assert "n" not in it.places
    it.feed(replace(NODE, uid="again"), 4.0)
    assert it.places["n"].gone_since is None


def test_a_server_pod_that_is_made_late_for_a_node_that_has_gone_goes_as_any_other() -> None:
    it = _machine()
    it.feed(e.Gone("uid-n"), 1.0)
    assert "n" not in it.places
    it.feed(replace(POOL, running=False, held=True), 2.0)  # the answer to its creation
    assert it.look_at == 62.0
    orders = [effect for effect in it.feed(e.Look(), 62.0) if isinstance(effect, e.Order)]
    assert [order.what for order in orders] == ["delete-pod"]


def test_a_server_pod_that_no_node_has_is_on_no_node_that_has_gone() -> None:
    it = _machine(replace(POOL, node="", running=False))
    assert it.feed(e.Look(), 1000.0) == [] and it.places["/p"].gone_since is None


@pytest.mark.parametrize(
    ("version", "than", "newer"),
    [("10", "9", True), ("9", "10", False), ("9", "9", False), ("a", "b", True), ("a", "a", False),
     ("a", "9", True), ("9", "a", True)],
)  # fmt: skip
def test_of_two_versions_the_higher_number_is_newer_else_any_other_one(version: str, than: str, newer: bool) -> None:
    it = _machine(replace(REQUESTER, version=than))
    it.feed(replace(REQUESTER, version=version, name="changed"), 1.0)
    assert (it.places["n"].requesters["r"].name == "changed") == newer


@pytest.mark.parametrize("running", [True, False])
def test_what_a_server_pod_said_counts_while_it_runs(running: bool) -> None:
    it = _machine(replace(POOL, running=running), _told(State.ASLEEP))
    assert bool(it.places["n"].told) == running
    it.feed(replace(POOL, running=False, version="6"), 1.0)
    it.feed(replace(POOL, version="7"), 2.0)
    assert not it.places["n"].told, "it was started again, and may run anything"
    assert it.feed(_told(State.ASLEEP, "nobody"), 3.0) == []


@pytest.mark.parametrize(
    ("before", "after", "slept"),
    [
        (State.AWAKE, State.ASLEEP, True),
        (State.DRAINING, State.ASLEEP, True),
        (State.ASLEEP, State.ASLEEP, False),
        (State.OFF, State.ASLEEP, False),
        (State.AWAKE, State.DRAINING, False),
        (State.ASLEEP, None, True),
        (None, State.ASLEEP, False),
    ],
)
def test_memory_has_changed_when_an_instance_went_to_sleep_or_went(
    before: State | None, after: State | None, slept: bool
) -> None:
    """A figure of before counts for nothing."""
    it = _machine(POOL, *([_told(before)] if before is not None else []))
    it.feed(_told(after) if after is not None else e.Tells("p", Told({})), 3.0)
    assert it.places["n"].slept == ({"0": 3.0} if slept else {})


def test_memory_has_changed_when_a_server_pod_has_ended_or_gone() -> None:
    it = _machine(SINGLE)
    it.feed(replace(SINGLE, running=False, version="6"), 1.0)
    assert not it.places["n"].slept
    for version, at in (("7", 2.0), ("8", 3.0)):
        it.feed(replace(SINGLE, running=False, ended=True, leaving=True, version=version), at)
        assert it.places["n"].slept == {"0": 2.0}
    it.feed(e.Gone("s"), 4.0)
    assert it.places["n"].slept == {"0": 4.0}
    assert _machine(replace(SINGLE, running=False, ended=True)).places["n"].slept == {"0": 0.0}


@pytest.mark.parametrize(("written", "slept"), [(5.0, 5.0), (9.0, 7.0)])
def test_since_when_one_sleeps_is_what_another_controller_wrote_and_never_later_than_now(
    written: float, slept: float
) -> None:
    it = _machine()
    for version, since in (("6", written), ("7", 1.0)):
        it.feed(replace(SINGLE, asleep_since=since, version=version), 7.0)
        assert it.places["n"].slept == {"0": slept}


@pytest.mark.parametrize(("why", "says"), [("", "it says no more"), ("OOMKilled", "OOMKilled")])
def test_one_that_ended_by_itself_is_made_again_after_a_pause_and_one_that_was_deleted_at_once(
    why: str, says: str
) -> None:
    key = ("create", "n", "single")
    for leaving in (False, True):
        it = _machine(SINGLE)
        it.feed(replace(SINGLE, running=False, ended=True, leaving=leaving, why=why, version="6"), 1.0)
        tried = it.places["n"].tries.get(key)
        assert (tried is None) == leaving
        if tried is not None:
            assert tried.until == 2.0 and tried.why == f"server pod single has ended: {says}"
            it.feed(replace(SINGLE, running=False, ended=True, why=why, version="7"), 1.5)
            assert it.places["n"].tries[key] == tried, "it has ended once"


def test_a_start_that_kubelet_tries_again_has_failed_until_one_is_awake() -> None:
    key = ("create", "n", "single")
    it = _machine(SINGLE, replace(POOL, name="single"))
    it.feed(replace(POOL, name="single", restarts=1, version="6"), 1.0)
    assert key not in it.places["n"].tries, "a pool says itself what of it failed"
    it.feed(replace(SINGLE, running=False, why="CrashLoopBackOff", version="6"), 1.0)
    said, silent = "CrashLoopBackOff", "it says no more"
    for version, restarts, failures, why in (("7", 1, 1, said), ("8", 1, 1, said), ("9", 3, 2, silent)):
        it.feed(replace(SINGLE, restarts=restarts, version=version), 2.0)
        assert it.places["n"].tries[key].failures == it.counts["failures"] == failures
        assert it.places["n"].tries[key].why == f"server pod single has ended: {why}"
    it.feed(_told(State.LOADING, "s"), 3.0)
    assert key in it.places["n"].tries
    it.feed(_told(State.AWAKE, "s"), 3.0)
    assert key not in it.places["n"].tries


def test_a_failure_is_counted_once_however_often_it_is_told_and_forgotten_once_it_is_awake() -> None:
    it = _machine(POOL, _told(State.LOADING))
    for _ in range(3):
        it.feed(_told(State.FAILED), 1.0)
    tried = it.places["n"].tries["wake", "p", "i"]
    assert it.counts["failures"] == tried.failures == 1 and tried.why == "why it failed"
    it.feed(_told(State.AWAKE), 2.0)
    assert ("wake", "p", "i") not in it.places["n"].tries


def test_an_answer_counts_for_what_is_under_way() -> None:
    it = _machine(REQUESTER)
    query = e.Query(REQUESTER)
    _done(it, e.Query(replace(REQUESTER, uid="x")), has=("9",))
    _done(it, query, has=("0",))
    assert it.places["n"].accelerators == {"r": ("0",)}
    _done(it, query, has=("1",))
    assert it.places["n"].accelerators == {"r": ("0",)}, "it wasn't asked again"
    it.feed(e.Gone("r"), 1.0)
    _done(it, query, has=("1",))
    assert not it.places["n"].accelerators


def test_what_is_tried_for_one_pod_is_forgotten_with_it_and_with_no_other() -> None:
    other = replace(REQUESTER, uid="other")
    it = _machine(REQUESTER, other)
    _done(it, e.Query(REQUESTER), "refused")
    it.feed(e.Gone("other"), 0.01)
    queries = {key: tried.failures for key, tried in it.places["n"].tries.items() if key[0] == "query"}
    assert queries == {("query", "r"): 1}


@pytest.mark.parametrize("late", [False, True])
def test_what_was_said_at_an_address_that_a_requester_has_no_more_may_be_another_pod_s(late: bool) -> None:
    """Its sandbox was made anew while the watch was cut, and its first address is given on."""
    it = _machine(REQUESTER, POOL, e.Tells("p", Told({})))
    moved = replace(REQUESTER, ip="10.0.0.9", version="8")
    effects = it.feed(moved, 1.0) if late else []
    effects += it.feed(e.Done(e.Query(REQUESTER), "", ("1",)), 1.0)
    effects += [] if late else it.feed(moved, 2.5)
    assert e.Query(moved) in effects and "r" not in it.places["n"].accelerators
    _done(it, e.Query(moved), now=3.0, has=("0",))
    assert it.places["n"].accelerators == {"r": ("0",)}


def test_a_pause_grows_to_its_bound_and_is_short_where_a_requester_waits_for_an_answer() -> None:
    """Where no pod may be changed, 200 requesters' status made 187 requests a second to the API server, for ever."""
    it = _machine(REQUESTER, POOL, pause_s=1.0, pause_most_s=60.0)
    place = it.places["n"]
    quick = {("query", "r"): 1.0, ("mark", "p"): 1.0, ("mark", "r"): 60.0}
    pauses = [(("launch", "p", "i"), 1.0, 60.0), *((key, 0.05, most) for key, most in quick.items())]
    for key, first, most in pauses:
        place.tries.pop(key, None)
        it._failed(place, key, "no", 0.0)
        assert place.tries[key].until == first
        for _ in range(1100):
            it._failed(place, key, "no", 0.0)
        assert place.tries[key].until == most


def test_what_has_shown_may_be_asked_for_again_at_once_and_what_failed_may_not() -> None:
    it = _machine(POOL, _told(State.ASLEEP), settle_s=5.0)
    place = it.places["n"]
    for key, why, until in ((("wake", "p", "i"), "", 0.0), (("sleep", "p", "i"), "it is loading", 9.0)):
        place.tries[key] = Try(False, 1, 9.0, why)
        it.feed(_told(State.WAKING if not why else State.AWAKE), 1.0)
        known = place.tries.get(key)
        assert known is None or known.until == until


def test_an_order_to_sleep_to_one_that_is_to_wake_by_itself_is_carried_out_once_that_is_over() -> None:
    def told(wanted: bool) -> e.Tells:
        return e.Tells("p", Told({"i": Instance("i", State.ASLEEP, frozenset("0"), wanted=wanted)}))

    it = _machine(POOL, told(True))
    key = ("sleep", "p", "i")
    it.places["n"].tries[key] = Try(True, 0, 9.0)
    assert key not in map(e.key, it.feed(told(True), 1.0)), "it isn't asked twice at once"
    it.places["n"].tries["launch", "p", "i"] = Try(False, 0, 9.0)
    it.feed(told(False), 2.0)
    assert key not in it.places["n"].tries and it.places["n"].tries["launch", "p", "i"].until == 0.0


@pytest.mark.parametrize("mode", [Mode.SLEEP, Mode.DIRECT])
def test_only_where_pools_run_has_a_node_one_unasked(mode: Mode) -> None:
    def made(node: Node, **settings: Any) -> list[str]:
        it = Machine(Settings(template={"spec": {"containers": []}}, **settings))
        it.feed(node, 0.0)
        return [e.key(effect)[0] for effect in it.feed(e.Listed(), 0.0)]

    assert made(NODE, taint="t") == ["create"]
    assert not made(NODE) and not made(replace(NODE, usable=False), taint="t") and not made(NODE, taint="t", mode=mode)
    it = _machine(POOL, taint="t")
    assert not it.places["n"].tries, "it has one"
    assert not Machine(Settings(taint="t")).feed(e.Listed(), 0.0)


def test_one_that_was_told_that_its_instance_is_awake_and_isn_t_ready_is_late_as_well() -> None:
    """It can't reach its server pod, say; and kubelet may say a moment later that it is Ready."""
    ask = replace(ASK, pod={"metadata": {"labels": {}, "annotations": {}}, "spec": {"containers": []}})
    requester = replace(REQUESTER, ask=ask)
    id = names.instance_id("qwen", "n", ("0",))
    pool = replace(POOL, bindings={id: "r"}, port=80)
    it = _machine(requester, pool, e.Tells("p", Told({id: Instance(id, State.AWAKE, frozenset("0"), port=9)})))
    _done(it, e.Query(requester), has=("0",))
    target = Target(f"http://10.0.0.2:9/failover/models/{id}/ready", "http://10.0.0.2:9/failover/models?watch=1",
                    "10.0.0.2", 9)  # fmt: skip

    def phase(it: Machine) -> Phase:
        return it.waits["r"][0]

    _done(it, e.Relay(requester, target), now=700.0)
    assert phase(it) is Phase.READY, "it was told only now"
    assert not _late(it.feed(e.Look(), 1299.0)) and it.look_at == 1300.0
    [says] = _late(it.feed(e.Look(), 1300.0))
    assert "isn't Ready after 600 s" in says and "its own pod isn't Ready" in says
    assert phase(it) is Phase.WAKING
    ready = replace(requester, ready=True, version="8")
    it.feed(ready, 1400.0)
    assert phase(it) is Phase.READY and not it.places["n"].unready_since
    it.feed(replace(ready, ready=False, version="9"), 5000.0)
    assert phase(it) is Phase.READY, "and it has as long again"
    assert _late(it.feed(e.Look(), 5600.0)), "which is said again"
    assert phase(it) is Phase.WAKING


@pytest.mark.parametrize("set_by", [-3600.0, 3600.0])
def test_one_that_comes_once_the_api_server_s_clock_was_set_is_late_after_its_bound(set_by: float) -> None:
    it = _machine()
    it.feed(replace(REQUESTER, running=False, created=100.0 + set_by), 100.0)
    it.feed(replace(REQUESTER, running=False, created=100.0 + set_by, version="6"), 300.0)
    assert not _late(it.feed(e.Look(), 699.0)) and it.look_at == 700.0 and _late(it.feed(e.Look(), 700.0))


def test_one_that_was_ready_is_late_once_it_has_been_unready_for_so_long_whoever_leads() -> None:
    """Its engine died a moment ago, say, a day after it was made."""
    unready = replace(REQUESTER, version="6", unready_since=86_400.0)
    same, anew = _machine(replace(REQUESTER, ready=True)), Machine(Settings())
    assert not _late(same.feed(unready, 86_400.0))
    anew.feed(unready, 86_410.0)
    assert not _late(anew.feed(e.Listed(), 86_410.0))
    for it in (same, anew):
        assert not _late(it.feed(e.Look(), 86_999.0)) and it.look_at == 87_000.0
        assert _late(it.feed(e.Look(), 87_000.0))


@pytest.mark.parametrize("wish", ["qwen", "llama"])
@pytest.mark.parametrize(("marks", "told"), [({names.ACCELERATORS: "0"}, False), ({}, True)])
def test_what_another_one_was_given_as_well_stays_with_the_one_that_is_bound_although_it_answers_later(
    wish: str, marks: dict[str, str], told: bool
) -> None:
    """This controller has just begun."""
    ask = replace(ASK, pod={"metadata": {"labels": {}, "annotations": {}}, "spec": {"containers": []}})
    bound = replace(REQUESTER, ask=ask, ready=True, marks=marks)
    other = replace(REQUESTER, uid="r2", name="b", ask=replace(ask, wish=wish), created=-1.0)
    id = names.instance_id("qwen", "n", ("0",))
    its = {id: Instance(id, State.ASLEEP, frozenset("0"))} if told else {}
    it = _machine(bound, other, replace(POOL, bindings={id: "r"}), e.Tells("p", Told(its)))
    effects = it.feed(e.Done(e.Query(other), accelerators=("0",)), 0.0)
    assert it.waits["r2"] == (Phase.WAITING, "a is served on 0, which were given to both")
    assert not [effect for effect in effects if isinstance(effect, e.Mark) and effect.pod.uid == "p"]


def test_what_was_asked_of_an_instance_is_forgotten_once_it_has_gone_unless_it_failed() -> None:
    """A pool is there for months, and has another instance for each change of a command."""
    it = _machine(POOL, _told(State.OFF))
    tries, other = it.places["n"].tries, ("wake", "p", "i")
    tries[other] = Try(False, 2, 9.0, "out of memory")
    assert tries["delete", "p", "i"].busy, "it was launched for none"
    it.feed(e.Tells("p", Told({})), 1.0)
    assert [key for key in tries if key[-1] == "i"] == [other]
