"""What is known of a node, question by question."""

from dataclasses import replace
from typing import Any

import pytest

from dual_pods.rules import building, names
from dual_pods.rules.facts import Ask, Instance, Memory, Requester, Server, Told
from dual_pods.rules.place import Place, View
from pool.entries import State

ASK = Ask("qwen", {}, {}, needs=10)
QWEN = names.instance_id("qwen", "n", ("0",))
REQUESTER = Requester("r", "r", "ns", "n", "10.0.0.1", running=True, ask=ASK)
POOL = Server("p", "p", "ns", "n", "10.0.0.2", running=True)
SINGLE = Server("s", "s", "ns", "n", "10.0.0.3", running=True, pool=False, instance="i", accelerators=frozenset("0"))


def _it(id: str = "i", state: State = State.ASLEEP, **more: Any) -> Instance:
    return Instance(id, state, frozenset("0"), **more)


def _view(
    *pods: Requester | Server, told: dict[str, list[Instance]] | None = None, has: tuple[str, ...] | None = ("0",)
) -> View:
    place = Place("n")
    for pod in pods:
        if not isinstance(pod, Requester):
            place.servers[pod.uid] = pod
            continue
        place.requesters[pod.uid] = pod
        if has is not None:
            place.accelerators[pod.uid] = has
    place.told = {uid: Told({it.id: it for it in its}) for uid, its in (told or {}).items()}
    return View(place)


def _states(view: View) -> list[State]:
    return [seen.it.state for seen in view.instances]


@pytest.mark.parametrize(
    ("server", "told", "states"),
    [
        (POOL, None, []),
        (POOL, [_it(), _it("j", State.AWAKE)], [State.ASLEEP, State.AWAKE]),
        (replace(POOL, leaving=True), [_it()], [State.ASLEEP]),
        (replace(POOL, ended=True), [_it()], []),
        (SINGLE, None, [State.LOADING]),
        (SINGLE, [_it()], [State.ASLEEP]),
        (replace(SINGLE, running=False), [_it()], [State.LOADING]),
        (replace(SINGLE, leaving=True), [_it()], [State.STOPPING]),
        (replace(SINGLE, leaving=True, ended=True), [_it()], []),
    ],
)
def test_what_a_server_pod_may_hold(server: Server, told: list[Instance] | None, states: list[State]) -> None:
    """Only its end is proof that it holds nothing; where one engine is unheard of, it may hold what it likes."""
    assert _states(_view(server, told={} if told is None else {server.uid: told})) == states


def test_an_engine_in_a_pod_of_its_own_was_used_last_when_it_went_to_sleep() -> None:
    view = _view(replace(SINGLE, asleep_since=7.0), told={"s": [_it()]})
    assert [seen.it.last_used for seen in view.instances] == [7.0]


def test_only_a_pod_that_runs_has_anything_to_say() -> None:
    assert "server pod p hasn't said" in _view(POOL).silent("1")
    assert not _view(replace(POOL, running=False)).silent("0") and not _view(POOL, told={"p": []}).silent("0")


def test_one_engine_that_says_nothing_keeps_its_own_accelerators_alone() -> None:
    view = _view(replace(SINGLE, accelerators=frozenset("0")))
    assert "hasn't said" in view.silent("01") and not view.silent("1")
    assert [(seen.it.state, seen.it.why) for seen in view.instances] == [(State.LOADING, "it doesn't say what it does")]


def test_a_node_s_pool_is_one_that_stays() -> None:
    assert _view(SINGLE, replace(POOL, leaving=True), replace(POOL, uid="q", name="q", ended=True)).pool is None
    assert _view(SINGLE, POOL).pool == POOL


def test_a_binding_counts_if_its_requester_wants_that_instance_on_a_pod_that_stays() -> None:
    bound = replace(POOL, bindings={QWEN: "r"})
    assert _view(bound, REQUESTER).bound == {"r": (bound, QWEN)}
    assert not _view(replace(bound, leaving=True), REQUESTER).bound
    assert not _view(bound, replace(REQUESTER, leaving=True)).bound
    assert not _view(bound).bound
    assert not _view(bound, replace(REQUESTER, ask=replace(ASK, wish="llama"))).bound
    assert not _view(bound, REQUESTER, has=("1",)).bound
    assert not _view(bound, replace(REQUESTER, ask=None, marks={names.INSTANCE: QWEN})).bound
    twice = replace(bound, uid="q", name="q")
    assert _view(twice, bound, REQUESTER).bound == {"r": (bound, QWEN)}, "the first by name, whichever was told first"


def test_a_requester_that_a_new_controller_hasn_t_asked_yet_has_what_it_was_bound_to() -> None:
    bound = replace(POOL, bindings={"i1": "other", "i2": "r"})
    assert _view(bound, REQUESTER, has=None).wished("r") == "i2"
    marked = replace(REQUESTER, marks={names.INSTANCE: "i3"})
    twice = replace(bound, bindings={**bound.bindings, "i3": "r"})
    assert _view(twice, marked, has=None).wished("r") == "i3"
    assert _view(bound, marked, has=None).wished("r") == "i2", "its label is from before, and follows the promise"
    assert _view(POOL, REQUESTER, has=None).wished("r") == ""
    frozen = replace(REQUESTER, marks={names.INSTANCE: "i2", names.ACCELERATORS: "0"})
    assert _view(bound, frozen).wished("r") == "i2", "a sidecar's image may have been changed since"
    assert _view(POOL, frozen).wished("r") == _view(bound, REQUESTER).wished("r") == QWEN
    elsewhere = replace(frozen, marks={**frozen.marks, names.ACCELERATORS: "1"})
    assert _view(bound, elsewhere).wished("r") == QWEN


def test_what_is_hot_is_each_other_instance_on_these_accelerators_that_isn_t_at_rest() -> None:
    its = [_it(state.value, state) for state in State]
    hot = _view(POOL, told={"p": its}).hot(("0", "1"), "awake")
    assert {seen.it.id for seen in hot} == {s.value for s in State} - {"off", "asleep", "awake"}
    assert not _view(POOL, told={"p": its}).hot(("1",), "")


def test_those_may_go_that_sleep_and_are_promised_to_no_requester() -> None:
    its = [_it("a"), _it("b"), _it(QWEN), _it("awake", State.AWAKE), _it("off", State.OFF)]
    view = _view(replace(POOL, bindings={QWEN: "r"}), REQUESTER, told={"p": its})
    assert [it.id for it in view.sleepers("b")] == ["a"]


@pytest.mark.parametrize(
    ("it", "needs"),
    [
        (None, 10),
        (_it(state=State.OFF), 10),
        (_it(state=State.OFF, bytes={"0": 7}), 7),
        (_it(bytes={"0": 7}, asleep_bytes={"0": 2}), 5),
        (_it(bytes={"0": 7}, asleep_bytes={"0": 9}), 0),
        (_it(state=State.OFF, bytes={"0": 7}, asleep_bytes={"0": 2}), 7),
    ],
)
def test_what_a_wake_takes_is_what_was_measured_else_said_beyond_what_is_held(it: Instance | None, needs: int) -> None:
    view = _view(POOL, REQUESTER, told={"p": [it] if it is not None else []})
    assert view.needs(REQUESTER, view.find("i")) == {"0": needs}


def test_what_was_said_for_each_accelerator_counts_for_that_one() -> None:
    asks = replace(REQUESTER, ask=replace(ASK, needs={"0": 3}))
    assert _view(asks, has=("0", "1")).needs(asks, None) == {"0": 3, "1": 0}


def test_the_ledgers_of_a_node_are_one() -> None:
    view = _view(POOL)
    view.place.told = {"p": Told({}, {"0": Memory(8, 4)}), "q": Told({}, {"1": Memory(8, 2)})}
    assert set(view.memory) == {"0", "1"}


@pytest.mark.parametrize(("holds", "needs"), [({"weights": {"0": 4}}, 6), ({"parked": {"0": 4}}, 10)])
def test_a_launch_takes_no_room_for_weights_that_another_instance_has_there(holds: dict[str, Any], needs: int) -> None:
    named = building.weights_name(ASK, ("0",))
    assert _view(POOL, REQUESTER, told={"p": [_it(weights_name=named, **holds)]}).needs(REQUESTER, None) == {"0": needs}
    assert _view(POOL, REQUESTER, told={"p": [_it(weights_name="w", **holds)]}).needs(REQUESTER, None) == {"0": 10}


def test_a_wake_takes_no_room_for_its_own_weights_once_and_a_command_has_none_in_gms() -> None:
    named = building.weights_name(ASK, ("0",))
    its = _it(weights={"0": 4}, bytes={"0": 7}, weights_name=named)
    view = _view(POOL, REQUESTER, told={"p": [its]})
    assert view.needs(REQUESTER, view.find("i")) == {"0": 7}
    command = replace(REQUESTER, ask=replace(ASK, entry={"engine": "command"}))
    assert _view(POOL, command, told={"p": [replace(its, weights_name="")]}).needs(command, None) == {"0": 10}


@pytest.mark.parametrize(
    ("bound", "needs", "weights"),
    [
        ("none", "", {"a": 7, "b": 7, "c": 7, "other": 2}),  # with the last of them: victims.py
        ("none", "w", {"a": 0, "b": 0, "c": 0, "other": 2}),
        (QWEN, "", {"a": 0, "b": 0, "other": 2}),
    ],
)
def test_weights_that_sleepers_share_come_free_with_them_and_not_while_another_one_stays(
    bound: str, needs: str, weights: dict[str, int]
) -> None:
    def of(id: str, used: float) -> Instance:
        return _it(id, weights={"0": 7}, weights_name="w", last_used=used)

    its = [of("b", 2), of("a", 1), of(bound if bound == QWEN else "c", 3), _it("other", weights={"0": 2})]
    view = _view(replace(POOL, bindings={bound: "r"}), REQUESTER, told={"p": its})
    assert {it.id: it.weights.get("0", 0) for it in view.sleepers("", needs)} == weights
