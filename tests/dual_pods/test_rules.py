"""The controller's rules, one by one, on the simulated cluster."""

import json
from dataclasses import replace
from typing import Any

import pytest

from dual_pods.rules import names
from dual_pods.rules.events import Create, Effect, Gone, Key, Listed, Measured, key
from dual_pods.rules.facts import Node
from dual_pods.rules.place import Mode
from dual_pods.rules.plan import Phase
from pool.entries import State
from tests.dual_pods.world import GIB, Chances, World, world

MODES = list(Mode)


def _engines(it: World) -> dict[str, State]:
    return {engine.id: engine.state for engine in it._engines()}


def _served(mode: Mode = Mode.SWAP, needs: int = 0, **settings: Any) -> tuple[World, str]:
    """A minute after a requester for qwen was placed on n-0."""
    it = world(mode, **settings)
    uid = it.request("a", "n", ("n-0",), "qwen", needs)
    it.run(60)
    return it, uid


@pytest.mark.parametrize("mode", [Mode.SLEEP, Mode.SWAP])
def test_the_next_requester_of_the_same_wish_wakes_what_sleeps(mode: Mode) -> None:
    it, first = _served(mode)
    it.leave(first)
    it.run(120)
    assert set(_engines(it).values()) == {State.ASLEEP}
    second = it.request("b", "n", ("n-0",), "qwen")
    it.run(180)
    assert it.ready(second) and it.machine.counts["wakes"] == 1 and len(it._engines()) == 1
    it.quiet()


def _settled(mode: Mode, wishes: dict[str, int], **settings: Any) -> World:
    """Those wishes have slept on n-0 one after the other, in this order."""
    it = world(mode, **settings)
    for wish, needs in wishes.items():
        uid = it.request(wish, "n", ("n-0",), wish, needs)
        it.run(it.now + 60)
        assert it.ready(uid), it.machine.waits[uid]
        it.leave(uid)
        it.run(it.now + 60)
    return it


def test_nothing_is_promised_before_a_server_pod_has_said_what_it_runs() -> None:
    it = _settled(Mode.SWAP, {"qwen": 20 * GIB})
    it.hushed = True
    it.restart()
    uid = it.request("b", "n", ("n-0",), "qwen", 20 * GIB)
    it.run(it.now + 60)
    assert "hasn't said yet what it runs" in it.machine.waits[uid][1] and not it.machine.counts["launches"]
    it.hushed = False
    it.tell_all()
    it.run(it.now + 60)
    assert it.ready(uid) and it.machine.counts["wakes"] == 1 and not it.machine.counts["launches"]


@pytest.mark.parametrize("mode", MODES)
def test_an_accelerator_is_given_on_only_when_the_instance_before_is_at_rest_or_gone(mode: Mode) -> None:
    """The world raises Violation where two use one."""
    it, first = _served(mode, needs=60 * GIB)
    it.leave(first, after_s=0.0)
    second = it.request("b", "n", ("n-0",), "llama", 60 * GIB, runs_after_s=0.0)
    it.run(120)
    assert it.ready(second), it.machine.waits[second]
    it.quiet()


def test_a_sleeper_that_begins_again_by_itself_goes_where_another_one_is_promised_and_not_before_it_is_heard() -> None:
    """Its container has ended, and kubelet starts it again, beside the one that is awake."""
    it = _settled(Mode.SLEEP, {"old": 40 * GIB})
    uid = it.request("b", "n", ("n-0",), "next", 40 * GIB)
    it.run(it.now + 60)
    [pod] = [p for p in it.pods.values() for engine in p.engines.values() if engine.state is State.ASLEEP]
    it.hushed = True
    it.restart()
    it.run(it.now + 60)
    assert len(it.servers()) == 2, "a new controller hasn't heard yet that it sleeps"
    it.hushed = False
    it.tell_all()
    it.run(it.now + 60)
    assert len(it.servers()) == 2
    it._move(pod, next(iter(pod.engines.values())), State.LOADING)
    it.run(it.now + 60)
    assert [s.uid for s in it.servers()] != [pod.fact.uid] and len(it.servers()) == 1 and it.ready(uid)


@pytest.mark.parametrize("goes", [True, False])
def test_a_pod_that_a_leader_of_before_creates_late_runs_nowhere(goes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The world raises Violation where two use one accelerator."""
    it, late = world(Mode.SLEEP), list[Create]()

    def stall(effect: Create) -> str:
        late.append(effect)
        return "it stalls"

    with monkeypatch.context() as patch:
        patch.setattr(it, "_create", stall)
        uid = it.request("a", "n", ("n-0",), "qwen")
        while not late:
            it.run(it.now + 0.1)
        it.restart()
        if goes:
            it.leave(uid, after_s=0.0)
    other = it.request("b", "n", ("n-0",), "llama")
    it.run(it.now + 60)
    assert it.ready(other) is goes
    it._create(late[0])
    it.run(it.now + 60)
    assert it.ready(other if goes else uid) and len(it.servers()) == 1
    it.quiet()


def test_in_direct_mode_no_instance_is_used_again() -> None:
    it = world(Mode.DIRECT)
    for name in ("a", "b"):
        uid = it.request(name, "n", ("n-0",), "qwen")
        it.run(it.now + 60)
        assert it.ready(uid)
        it.leave(uid)
        it.run(it.now + 60)
        assert not it.servers()
    assert it.machine.counts["launches"] == 2 and not it.machine.counts["wakes"]


def test_a_promise_that_another_write_has_overtaken_is_made_anew() -> None:
    it = world(Mode.SWAP, chances=Chances(conflict=500))
    uid = it.request("a", "n", ("n-0",), "qwen")
    it.run(120)
    assert it.ready(uid)


def test_an_eviction_is_counted_once_however_often_its_event_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    it = _settled(Mode.SWAP, {"old": 40 * GIB}, sleepers_bytes=0)
    monkeypatch.setattr(it, "_say", lambda effect: "forbidden")
    monkeypatch.setattr(it, "_order", lambda effect: "forbidden")
    it.request("b", "n", ("n-0",), "next", 40 * GIB)
    it.run(it.now + 60)
    assert [reason for reason, _ in it.said].count("Evicted") > 1 and it.machine.counts["evictions"] == 1


@pytest.mark.parametrize("settings", [{}, {"sleepers_bytes": 10 * GIB}])
def test_weights_in_gms_are_part_of_what_a_sleeper_has(settings: dict[str, int]) -> None:
    it = _settled(Mode.SWAP, {"old": 60 * GIB}, **settings)
    [engine] = it._engines()
    engine.weights, engine.held = 50 * GIB, engine.asleep + 50 * GIB
    it.tell_all()
    uid = it.request("b", "n", ("n-0",), "next", (20 if settings else 40) * GIB)
    it.run(it.now + 60)
    assert it.ready(uid), it.machine.waits[uid]
    assert it.machine.counts["evictions"] == 1 and not it.awake_or_asleep("old")


def test_weights_that_the_next_one_has_too_dont_count_to_what_sleepers_may_hold() -> None:
    it = world(Mode.SWAP, sleepers_bytes=4 * GIB)
    first = it.request("a", "n", ("n-0",), "m1", 60 * GIB, weights=50 * GIB)
    it.run(60)
    it.leave(first)
    it.run(120)
    uid = it.request("b", "n", ("n-0",), "m1+", 66 * GIB, weights=50 * GIB)
    it.run(180)
    assert it.ready(uid), it.machine.waits[uid]
    assert not it.machine.counts["evictions"] and it.free("n-0") == 80 * GIB - 66 * GIB - 10 * GIB // 40


@pytest.mark.parametrize("following", ["m1+", "m1++"])
def test_another_sleeper_goes_than_one_that_has_the_weights_of_the_next_one(following: str) -> None:
    """Which is itself, or shares them: 50 GiB are there, and 24 GiB are needed where 11 GiB are free."""
    it = world(Mode.SWAP)
    for wish, needs, weights in (("m1+", 74, 50), ("other", 28, 18)):
        uid = it.request(wish, "n", ("n-0",), wish, needs * GIB, weights=weights * GIB)
        it.run(it.now + 60)
        it.leave(uid)
        it.run(it.now + 60)
    uid = it.request("b", "n", ("n-0",), following, 74 * GIB, weights=50 * GIB)
    it.run(it.now + 60)
    assert it.ready(uid) and it.awake_or_asleep("m1+") and not it.awake_or_asleep("other")


@pytest.mark.parametrize("where", ["weights", "parked"])
@pytest.mark.parametrize(("others", "fits"), [(10, True), (11, False)])
def test_a_wake_needs_what_is_parked_and_not_what_is_in_gms_already(where: str, others: int, fits: bool) -> None:
    """It holds 1.75 GiB asleep, and takes 70 GiB awake, of 80: the world raises Violation where that doesn't fit."""
    it = _settled(Mode.SWAP, {"qwen": 70 * GIB})
    [engine] = it._engines()
    setattr(engine, where, 50 * GIB)
    engine.held, it.foreign["n-0"] = engine.asleep + engine.weights, others * GIB
    it.tell_all()
    uid = it.request("b", "n", ("n-0",), "qwen", 70 * GIB)
    it.run(it.now + 60)
    assert it.ready(uid) is fits, it.machine.waits[uid]


def test_a_sleeper_that_cant_be_sent_away_is_said_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    it = _settled(Mode.SWAP, {"old": 60 * GIB}, sleepers_bytes=0)
    monkeypatch.setattr(it, "_order", lambda effect: "forbidden")
    uid = it.request("b", "n", ("n-0",), "next", 60 * GIB)
    it.run(it.now + 60)
    assert it.machine.waits[uid][1] == f"sleeping instances go first: {it.only()}: forbidden"
    assert it.machine.counts["evictions"] == 1, "however often it is tried"


def test_each_sleep_and_each_eviction_is_said_and_counted() -> None:
    it, times = world(Mode.SWAP), 4
    for number in range(times * 2):
        uid = it.request(f"r{number}", "n", ("n-0",), ("old", "next")[number % 2], 79 * GIB)
        it.run(it.now + 60)
        assert it.ready(uid)
        it.leave(uid)
        it.run(it.now + 60)
    reasons = [reason for reason, _ in it.said]
    assert it.machine.counts["evictions"] == reasons.count("Evicted") == times * 2 - 1
    assert reasons.count("Sleeping") == times * 2


@pytest.mark.parametrize("mode", [Mode.SLEEP, Mode.SWAP])
def test_an_instance_that_can_t_sleep_is_said_and_goes(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    it = world(mode)
    order, refused = it._order, "/sleep?level=1 says 404: Not Found"
    monkeypatch.setattr(it, "_order", lambda effect: refused if effect.what == "sleep" else order(effect))
    first = it.request("a", "n", ("n-0",), "qwen")
    it.run(60)
    it.leave(first, after_s=0.0)
    second = it.request("b", "n", ("n-0",), "llama", runs_after_s=0.0)
    it.run(62)
    assert it.machine.waits[second][1].endswith(f"is awake ({refused}), on an accelerator of this one")
    it.run(180)
    assert it.ready(second) and not it.awake_or_asleep("qwen")
    assert any(reason == "Failed" and "can't sleep" in says for reason, says in it.said)


def test_one_that_is_refused_a_sleep_now_and_then_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    it, refusals = world(Mode.SWAP), list[str]()
    order = it._order
    monkeypatch.setattr(it, "_order", lambda e: refusals.pop() if e.what == "sleep" and refusals else order(e))
    for number in range(5):
        uid = it.request(f"r{number}", "n", ("n-0",), "qwen")
        it.run(it.now + 60)
        assert it.ready(uid)
        refusals.append("not now")
        it.leave(uid)
        it.run(it.now + 60)
    assert it.machine.counts["launches"] == 2 and not it.machine.counts["deletions"], "its pod, and the instance"


def test_a_controller_that_begins_anew_knows_when_a_sleeper_went_to_sleep() -> None:
    it = _settled(Mode.SLEEP, {"old": 40 * GIB}, sleepers_bytes=0, measured_after_s=1000.0)
    it.restart()
    uid = it.request("b", "n", ("n-0",), "next", 40 * GIB)
    it.run(it.now + 600)
    assert "since an instance there went to sleep" in it.machine.waits[uid][1] and it.awake_or_asleep("old")
    it.run(it.now + 1600)
    assert it.ready(uid) and not it.awake_or_asleep("old"), it.machine.waits[uid]


@pytest.mark.parametrize("prometheus", [True, False])
def test_without_a_ledger_the_specification_s_rule_holds(prometheus: bool) -> None:
    """A figure counts only if nothing went to sleep for a while before it; then one cover of sleepers goes."""
    it = _settled(Mode.SLEEP, {"old": 40 * GIB}, sleepers_bytes=0, measured_after_s=20.0)
    it.prometheus = prometheus
    it.restart()
    uid = it.request("b", "n", ("n-0",), "next", 40 * GIB)
    it.run(it.now + 90)
    assert it.ready(uid) and [w for w in it.wishes.values() if it.awake_or_asleep(w)] == ["next"]
    assert any("it sleeps" in s or "which sleeps" in s for _, s in it.said)


def test_a_node_that_went_before_this_controller_began_counts_as_gone() -> None:
    it = _settled(Mode.SWAP, {"qwen": GIB})
    it.restart()
    assert it.machine.places["n"].gone_since is None
    it.machine.places["n"].node = None
    it.feed(Listed())
    assert it.machine.places["n"].gone_since == it.now


@pytest.mark.parametrize("seed", range(8))
def test_a_requester_is_unready_before_its_instance_sleeps(seed: int) -> None:
    """However long each of the two takes."""
    it, uid = _served(Mode.SWAP, seed=seed)
    it.done.clear()
    it.leave(uid, after_s=5.0)
    it.run(60 + 2)
    kinds = [key[0] for key in it.done]
    assert kinds.index("relay") < kinds.index("sleep")


def test_an_engine_that_dies_and_whose_memory_is_not_free_yet_is_waked_when_it_is_and_not_made_anew() -> None:
    it, uid = _served(chances=Chances(leaks=1000), needs=60 * GIB)
    [pod] = [pod for pod in it.pods.values() if pod.engines]
    it.dies(pod, next(iter(pod.engines.values())))
    it.run(it.now + 20)  # its memory is free after 30 s
    phase, says = it.machine.waits[uid]
    assert phase is Phase.WAITING and "its process has ended" in says and "are needed" in says
    it.run(it.now + 20)
    assert it.ready(uid) and it.machine.counts["failures"] == 1 and not it.machine.counts["deletions"]
    it.quiet()


def test_an_engine_that_wakes_for_a_requester_that_has_gone_is_waited_for_though_it_says_that_it_sleeps() -> None:
    """One in a pod of its own answers nothing else while it wakes. The world raises Violation where two use one."""
    it = _settled(Mode.SLEEP, {"qwen": 20 * GIB, "llama": 20 * GIB})
    first = it.request("a", "n", ("n-0",), "qwen", 20 * GIB)
    while "wake" not in [key[0] for key in it.done[-9:]]:
        it.run(it.now + 0.01)
    it.vanish(first)
    second = it.request("b", "n", ("n-0",), "llama", 20 * GIB, 0.01)
    it.run(it.now + 0.1)
    assert "was asked to wake, and hasn't done so yet" in it.machine.waits[second][1]
    it.run(it.now + 60)
    assert it.ready(second) and sorted(state.value for state in _engines(it).values()) == ["asleep", "awake"]


@pytest.mark.parametrize("mode", MODES)
def test_a_server_pod_that_is_deleted_by_hand_is_made_anew(mode: Mode) -> None:
    it, uid = _served(mode)
    [server] = it.servers()
    it.delete_server(server.uid, after_s=10.0)
    it.run(62)
    assert it.told_ready[uid] is None, "it is unready at once"
    it.run(180)
    assert it.ready(uid) and [s.uid for s in it.servers()] != [server.uid]


@pytest.mark.parametrize("mode", MODES)
def test_a_requester_without_a_node_is_in_no_other_s_way(mode: Mode) -> None:
    it = world(mode)
    uid = it.request("a", "n", ("n-0",), "qwen")
    it.feed(replace(it.pods[uid].fact, uid="x", name="x", node="", why="no node was found for it"))
    it.run(60)
    assert it.machine.waits["x"][1].endswith("no node was found for it")
    [server] = it.servers()
    it.delete_server(server.uid)
    it.run(180)
    assert it.ready(uid) and [s.uid for s in it.servers()] != [server.uid]


@pytest.mark.parametrize(("before", "after"), [(Mode.SLEEP, Mode.SWAP), (Mode.SWAP, Mode.SLEEP)])
def test_what_sleeps_goes_where_the_next_controller_has_another_mode_and_what_is_bound_stays(
    before: Mode, after: Mode
) -> None:
    """None would wake it, and in `swap` no ledger knows what it has."""
    it, uid = _served(before, 60 * GIB)
    other = it.request("b", "n", ("n-1",), "llama", 60 * GIB)
    it.run(120)
    it.leave(other)
    it.run(180)
    [bound] = [engine for engine in it._engines() if engine.state is State.AWAKE]
    it.settings = replace(it.settings, mode=after)
    it.restart()
    it.run(240)
    assert it.ready(uid) and it._engines() == [bound]
    it.leave(uid)
    more = it.request("c", "n", ("n-1",), "phi", 60 * GIB)
    it.run(600)
    assert it.ready(more) and {server.pool for server in it.servers()} == {after is Mode.SWAP}
    it.quiet()


@pytest.mark.parametrize("mode", MODES)
def test_a_server_pod_that_ends_by_itself_is_said_deleted_and_made_anew(mode: Mode) -> None:
    it, uid = _served(mode)
    [server] = it.servers()
    it._server_ends(server.uid)
    it.run(180)
    assert ("Ended", "its containers have ended") in it.said
    assert it.ready(uid) and [s.uid for s in it.servers()] != [server.uid]


def test_a_requester_of_the_older_words_is_told_where_it_is_served_for_as_long_as_it_is() -> None:
    it = world(Mode.SWAP)
    uid = it.request("a", "n", ("n-0",), "qwen")
    it._changed(it.pods[uid], old=True)
    it.run(60)
    assert it.pods[uid].fact.marks[names.OLD_ADDRESS] == it.servers()[0].ip
    [pod] = [p for p in it.pods.values() if p.engines]
    it.dies(pod, next(iter(pod.engines.values())))
    it.run(60.5)
    assert names.OLD_ADDRESS not in it.pods[uid].fact.marks


@pytest.mark.parametrize("runs_after_s", [0.0, 9999.0])
def test_one_that_doesn_t_start_or_isn_t_heard_for_too_long_is_an_event_too(
    runs_after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = world(Mode.SWAP, bound_s=30.0)
    monkeypatch.setattr(it, "_query", lambda effect: "connection refused")
    it.request("a", "n", ("n-0",), "qwen", runs_after_s=runs_after_s)
    it.run(40)
    assert [reason for reason, _ in it.said if reason == "Late"] == ["Late"]


def test_that_it_waits_too_long_is_said_once_whatever_changes_and_whoever_leads() -> None:
    it, said = world(Mode.SWAP, bound_s=600.0), set[Key]()
    carry_out = it._carry_out

    def hear(effect: Effect) -> None:
        said.update({key(effect)} if key(effect)[2:3] == ("Late",) else ())
        carry_out(effect)

    it._carry_out = hear  # type: ignore[method-assign]
    it.request("a", "n", ("n-0",), "qwen", 20 * GIB)
    for number in range(20):
        it.foreign["n-0"] = (79 * GIB) - number
        it.restart()
        it.run(it.now + 300)
        it.give_back("n-0", 1 << 30)
    assert len(said) == 1 and [reason for reason, _ in it.said].count("Late") == 19


@pytest.mark.parametrize(
    ("accelerators", "needs", "says"),
    [(("n-7",), 0, "knows no accelerator n-7"), (("n-0",), 90 * GIB, "can never fit: n-0 has 80 GiB")],
)
def test_what_can_never_be_is_said_and_makes_nothing(accelerators: tuple[str, ...], needs: int, says: str) -> None:
    it = world(Mode.SWAP)
    uid = it.request("a", "n", accelerators, "qwen", needs)
    it.run(120)
    assert says in it.machine.waits[uid][1] and not it._engines()
    assert [reason for reason, said in it.said if says in said] == ["Refused"]
    assert says in json.loads(it.pods[uid].fact.marks[names.STATUS])["Errors"][0]


def test_a_node_that_goes_and_comes_back_serves_again() -> None:
    it, uid = _served(Mode.SWAP)
    it.feed(Gone("uid-n"))
    it.run(70)
    assert it.ready(uid), "it goes on as long as it can"
    it.feed(Node("uid-n", "n", True, True))
    it.run(140)
    assert it.ready(uid) and len(it.servers()) == 1


def test_what_ran_on_a_node_that_is_gone_for_a_while_is_let_go_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kubelet is there to say that its containers have ended."""
    it = world(Mode.SWAP, node_gone_s=60.0)
    it.request("a", "n", ("n-0",), "qwen")
    it.run(60)
    [server] = it.servers()
    monkeypatch.setattr(it, "delete_server", lambda uid: it._changed(it.pods[uid], leaving=True))
    monkeypatch.setattr(it, "_release", lambda effect: it.vanish(effect.server.uid))
    it.feed(Gone("uid-n"))
    it.run(60 + 59)
    assert [s.uid for s in it.servers()] == [server.uid] and not it.servers()[0].leaving
    it.run(60 + 65)
    assert not it.servers()


def test_a_pool_goes_with_its_node_s_taint_once_none_is_bound_there_and_comes_back_with_it() -> None:
    it = _settled(Mode.SWAP, {"old": GIB}, taint="t")
    uid = it.request("a", "n", ("n-0",), "qwen", GIB)
    it.run(it.now + 60)
    it.feed(Node("uid-n", "n", True, False))
    it.run(it.now + 60)
    assert it.ready(uid) and it.awake_or_asleep("old"), "who is bound is served on"
    it.leave(uid)
    it.run(it.now + 60)
    assert not it.servers()
    it.feed(Node("uid-n", "n", True, True))
    it.run(it.now + 60)
    [pool] = it.servers()
    assert pool.running, "it is asked for by the taint alone"


def test_two_requesters_that_were_given_one_accelerator_don_t_both_get_it() -> None:
    it = world(Mode.SWAP)
    first = it.request("a", "n", ("n-0",), "qwen")
    second = it.request("b", "n", ("n-0",), "qwen")
    it.run(60)
    assert it.ready(first) and "which were given to both" in it.machine.waits[second][1]


# -- the open bugs of llm-d's fast model actuation ---------------------------------------------------------------------


def test_bug_709_an_engine_isn_t_started_before_the_memory_of_the_one_before_is_free() -> None:
    it = _settled(Mode.SWAP, {"old": 60 * GIB})
    it.foreign["n-0"] = 79 * GIB  # its processes are gone, the driver hasn't given the memory back
    it.tell_all()
    uid = it.request("b", "n", ("n-0",), "next", 60 * GIB)
    it.run(it.now + 60)
    sentence = it.machine.waits[uid][1]
    assert "a previous engine isn't gone yet" in sentence, sentence
    it.give_back("n-0", 79 * GIB)
    it.run(it.now + 60)
    assert it.ready(uid)


def test_bug_720_memory_held_after_a_deletion_delays_the_next_start_and_fails_none() -> None:
    it, uid = _served(Mode.SWAP, chances=Chances(leaks=1000), needs=60 * GIB)
    [server] = it.servers()
    it.delete_server(server.uid)  # what it held stays held for half a minute
    it.run(80)
    assert not it.ready(uid) and "isn't gone yet" in it.machine.waits[uid][1], it.machine.waits[uid]
    it.run(180)
    assert it.ready(uid) and not it.machine.counts["failures"]


def test_bug_746_a_wake_isn_t_asked_for_where_a_sleep_freed_half() -> None:
    it = _settled(Mode.SWAP, {"qwen": 70 * GIB})
    it.chances = Chances(frees_half=1000)
    other = it.request("b", "n", ("n-0",), "llama", 70 * GIB)
    it.run(it.now + 60)
    it.leave(other)
    it.run(it.now + 60)
    again = it.request("c", "n", ("n-0",), "qwen", 70 * GIB)  # wakes: 35 GiB are held by the one that sleeps
    it.run(it.now + 60)
    assert it.ready(again) and not it.machine.counts["failures"]
    assert it.machine.counts["evictions"] == 1, "the one that freed half had to go"


@pytest.mark.parametrize("prometheus", [True, False])
@pytest.mark.parametrize("foreign", [0, 35])
def test_bug_746_nor_is_it_where_each_instance_has_a_pod(foreign: int, prometheus: bool) -> None:
    it = _settled(Mode.SLEEP, {"qwen": 70 * GIB}, sleepers_bytes=4 * GIB)
    it.prometheus, it.chances = prometheus, Chances(frees_half=1000)
    other = it.request("b", "n", ("n-0",), "llama", 70 * GIB)
    it.run(it.now + 90)
    it.leave(other)
    it.run(it.now + 60)
    it.foreign["n-0"] = foreign * GIB
    again = it.request("c", "n", ("n-0",), "qwen", 70 * GIB)  # wakes: 35 GiB are held by the one that sleeps
    it.run(it.now + 120)
    assert not it.awake_or_asleep("llama") and it.machine.counts["wakes"] == (0 if foreign else 1)
    if foreign:
        assert it.machine.waits[again][1] == "35 GiB are in use on n-0, and no sleeper can go"
        it.give_back("n-0", 35 * GIB)
        it.run(it.now + 90)
    assert it.ready(again) and not it.machine.counts["failures"]


@pytest.mark.parametrize("restarts", [False, True])
def test_an_engine_that_holds_memory_since_it_was_waked_in_vain_is_made_anew(restarts: bool) -> None:
    it = _settled(Mode.SLEEP, {"qwen": 20 * GIB}, sleepers_bytes=4 * GIB, bound_s=100.0)
    it.chances = Chances(wake_fails=1000)
    uid = it.request("b", "n", ("n-0",), "qwen", 20 * GIB)
    while it.done[-1][0] != "wake":
        it.run(it.now + 0.1)
    if restarts:
        it.restart()
    it.feed(Measured("n", {"n-0": 10 * GIB}, it.now))
    it.run(it.now + 50)
    assert it.ready(uid) is not restarts
    assert not restarts or it.machine.waits[uid][1] == "10 GiB are in use on n-0, and no sleeper can go"
    it.run(it.now + 100)  # a new controller takes it to be waking until its requester is late
    assert it.ready(uid) and it.machine.counts["evictions"] == 1


@pytest.mark.parametrize("mode", [Mode.SLEEP, Mode.SWAP])
def test_what_loads_already_when_its_next_requester_comes_goes_on_and_no_sleeper_goes_for_it(mode: Mode) -> None:
    it = _settled(mode, {"llama": 40 * GIB}, sleepers_bytes=4 * GIB)
    first = it.request("a", "n", ("n-0",), "qwen", 60 * GIB, 0.1)
    while State.LOADING not in _engines(it).values() or not all(server.running for server in it.servers()):
        it.run(it.now + 0.1)
    it.vanish(first)
    it.feed(Measured("n", {"n-0": 61 * GIB}, it.now))
    second = it.request("b", "n", ("n-0",), "qwen", 60 * GIB, 0.1)
    launches = it.machine.counts["launches"]
    it.run(it.now + 60)
    assert it.ready(second) and it.awake_or_asleep("llama")
    assert it.machine.counts["launches"] == launches and not it.machine.counts["deletions"]


@pytest.mark.parametrize("seed", range(8))
def test_what_has_loaded_for_one_that_has_gone_wakes_no_more_by_itself(seed: int) -> None:
    """A pool wakes what is pinned once it has room: beside another one to which its accelerator was promised."""
    it = world(Mode.SWAP, seed=seed, chances=Chances(wakes_later=1000))
    first = it.request("a", "n", ("n-0",), "qwen", 40 * GIB)
    while State.LOADING not in _engines(it).values():
        it.run(it.now + 0.1)
    it.leave(first)
    it.foreign["n-0"] = 50 * GIB
    while State.ASLEEP not in _engines(it).values():
        it.run(it.now + 0.1)
    it.chances = Chances()
    second = it.request("b", "n", ("n-0",), "llama", 40 * GIB)
    it.give_back("n-0", 50 * GIB)
    it.run(it.now + 60)
    assert it.ready(second) and it.awake_or_asleep("qwen")


def test_bug_444_a_start_that_fails_is_said_and_nothing_is_left_behind() -> None:
    it = world(Mode.SWAP, chances=Chances(launch_fails=1000), tries=2)
    uid = it.request("a", "n", ("n-0",), "qwen")
    it.run(120)
    assert not it.ready(uid) and "out of memory" in it.machine.waits[uid][1]
    assert any(reason == "Failed" and says.endswith("failed: out of memory") for reason, says in it.said)
    it.leave(uid)
    it.run(240)
    assert not it._engines() and all(not s.bindings for s in it.servers())
    it.quiet()


@pytest.mark.parametrize("mode", [Mode.SLEEP, Mode.DIRECT])
def test_bug_444_a_pod_whose_engine_never_comes_up_is_made_anew_as_well(mode: Mode) -> None:
    it = world(mode, tries=2)
    uid = it.request("a", "n", ("n-0",), "qwen")
    while not it.servers():
        it.run(it.now + 0.1)
    [first] = it.servers()
    for _ in range(2):
        it.run(it.now + 3)
        assert not it.ready(uid) and [s.uid for s in it.servers()] == [first.uid]
        it.restart_server(first.uid, after_s=0.5)
    it.run(it.now + 60)
    assert it.ready(uid) and [s.uid for s in it.servers()] != [first.uid]
    assert any(reason == "Failed" and "failed: server pod" in says for reason, says in it.said)


def test_bug_585_what_failed_keeps_no_place() -> None:
    it, uid = _served(Mode.SWAP, chances=Chances(launch_fails=1000), tries=1)
    it.chances = Chances()
    it.run(240)
    assert it.ready(uid) and len(it._engines()) == 1 and it.machine.counts["deletions"] >= 1


def test_a_late_answer_of_before_a_pod_was_placed_moves_it_nowhere() -> None:
    it, uid = _served(Mode.SWAP)
    it.feed(replace(it.pods[uid].fact, node="", version="1"))
    it.run(61)
    assert it.ready(uid) and uid in it.machine.places["n"].requesters and "" not in it.machine.places


def test_an_event_that_could_not_be_written_is_written_later_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    it = world(Mode.SWAP, bound_s=5.0)
    it.foreign["n-0"] = 79 * GIB
    monkeypatch.setattr(it, "_say", lambda effect: "forbidden")
    it.request("a", "n", ("n-0",), "qwen", 20 * GIB)
    it.run(30)
    tried = [reason for reason, _ in it.said].count("Late")
    assert tried > 1
    monkeypatch.undo()
    it.run(600)
    assert [reason for reason, _ in it.said].count("Late") == tried + 1


def test_what_fails_for_ever_is_tried_ever_less_often() -> None:
    it = world(Mode.SWAP, chances=Chances(launch_fails=1000), tries=1)
    it.request("a", "n", ("n-0",), "qwen")
    it.run(600)
    assert 5 < it.machine.counts["launches"] < 20


@pytest.mark.parametrize("mode", [Mode.SLEEP, Mode.DIRECT])
def test_one_accelerator_may_have_a_number_and_a_name_so_only_those_of_one_kind_are_in_use(mode: Mode) -> None:
    it = world(mode)
    it.here[""] = it.here["n"]  # where 0 is
    first = it.request("a", "n", ("n-0",), "qwen")
    second = it.request("b", "n", ("0",), "qwen")
    it.run(60)
    assert it.ready(first) and "may be the same" in it.machine.waits[second][1]
    it.leave(first)
    it.run(120)
    assert it.ready(second)


@pytest.mark.parametrize("taint", ["", "t"])
def test_while_a_pool_of_before_drains_none_is_made_in_vain_and_the_next_one_comes_as_it_has_gone(taint: str) -> None:
    """In vain it would be tried more and more rarely: up to a minute late."""
    it, first = _served(taint=taint)
    [server] = it.servers()
    it.delete_server(server.uid, after_s=58.0)
    second = it.request("b", "n", ("n-1",), "llama")
    it.run(90)
    assert it.machine.waits[second] == (Phase.WAITING, "server pod n-dual of before is leaving")
    it.run(130)
    assert it.ready(first) and it.ready(second) and not [s for r, s in it.said if r == "Failed"]
