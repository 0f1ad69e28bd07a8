"""A model's turn, as its own machine sees it: a lock at rest pauses what streams, what waits is told what for and has a
priority and a deadline, and a ladder goes on where a model can't.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.rules import events as e
from gateway.rules import kinds
from gateway.rules.demand import demand_of, shared, wedged
from gateway.shell.router import Model, Router
from pool.entries import Entry, ModelDemand, ModelOutlook, State
from pool.rules import messages as m
from tests.gateway import engine
from tests.gateway.test_broken_answers import ALL, check
from tests.gateway.test_door_rules import BODY, COMPLETION, answered, step, streaming, switchover, with_engine
from tests.gateway.world import SimClient, World, undisturbed

FAILED = engine.Said(500, engine.JSON, (b'{"error": {"message": "no"}}',))
POOL: dict[str, Any] = {"turn_s": 100.0, "failover_timeout_s": 10.0, "queue_timeout_s": 100.0}


def world(*, awake: bool = True, **bounds: Any) -> World:
    it = World(e.Bounds(**POOL, **bounds))
    if awake:
        it.grant()
    else:
        it.rest()
    return it


def comments(client: SimClient) -> list[str]:
    return [event[2:].decode() for event in client.body.split(b"\n\n") if event.startswith(b": ")]


# -- a swap is a pause -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drains", [False, True], ids=["at once", "behind a drain"])
@pytest.mark.parametrize("name", ALL)
def test_what_streams_when_its_lock_comes_to_rest_goes_on_with_the_next_grant(name: str, drains: bool) -> None:
    path, body = ALL[name]
    whole, _ = undisturbed(path, body)
    it = world()
    client = it.arrive(path, body)
    step(it, client, 4)
    for _ in range(3):
        if drains:
            switchover(it, 0.0)
        it.rest()
        assert with_engine(it) == 0 and not it.exchanges, "it holds nothing of an engine that is asleep"
        it.wait(60.0)
        assert not client.ended, "longer than a failover may take"
        it.grant()
        if it.exchanges:
            step(it, client, 1)
    it.run()
    check(client, whole)


def test_an_answer_of_which_one_choice_went_on_and_another_reached_no_engine_is_paused_and_none_that_is_new() -> None:
    """As one that is new it would be refused as soon as it came long enough ago."""
    body = {**BODY, "n": 2}
    whole, _ = undisturbed(COMPLETION, body)
    it = World(e.Bounds(**POOL), slow=True)
    it.grant()
    client = it.arrive(COMPLETION, body)
    it.connect(it.connecting[0])
    step(it, client, 6)
    it.rest()
    it.wait(95.0)
    it.grant()
    first, second = it.connecting
    it.connect(first)
    step(it, client, 3)
    it.connect(second, refused=True)
    it.rest()
    demand = demand_of(it.machine, it.now, 0, 0.0)
    assert (demand.waiting, demand.paused, demand.oldest_wait_ms) == (0, 1, 0)
    it.wait(95.0)
    it.grant()
    it.run()
    check(client, whole)


def test_an_engine_that_goes_to_sleep_has_died_of_nothing() -> None:
    it = world(strikes=1)
    clients = [it.arrive(COMPLETION, {**BODY, "stream": False}) for _ in range(3)]
    for _ in range(4):
        it.rest()
        it.grant()
    it.run()
    assert answered(*clients) and {client.how for client in clients} == {"restarted"}


def test_a_pause_has_a_bound_of_its_own() -> None:
    it = world()
    client = streaming(it, 4)
    it.rest()
    it.wait(99.0)
    assert client.ended != "cut"
    it.wait(1.0)
    assert client.ended == "cut" and b"no other took over within 100 s" in client.body


def test_a_lock_that_holds_nothing_for_another_reason_interrupts_nothing() -> None:
    it = world()
    client = streaming(it, 4)
    it.lock("FREE")
    it.lock("RECOVERING", resting=True)
    assert with_engine(it) == 1
    it.run()
    assert answered(client) and client.how == "passed"


def test_where_a_pool_says_whose_turn_it_is_an_engine_that_has_left_is_no_reason_to_refuse() -> None:
    it = world()
    it.others = False
    switchover(it, 0.0)
    it.lock("HELD", serves=False)
    client = it.arrive(COMPLETION, BODY)
    it.wait(50.0)
    it.rest()
    it.wait(20.0)
    assert not client.ended
    it.grant()
    it.run()
    assert answered(client)


# -- what waits ------------------------------------------------------------------------------------------------------


def test_a_stream_that_waits_is_told_what_for_and_then_answered_byte_for_byte() -> None:
    whole, _ = undisturbed(COMPLETION, BODY)
    it = world(awake=False, comment_s=5.0)
    it.feed(e.Outlook("loading, third in the queue, about 4 s"))
    client, other = it.arrive(COMPLETION, BODY), it.arrive(COMPLETION, {**BODY, "stream": False})
    it.wait(5.0)
    it.feed(e.Outlook("waking"))
    it.wait(5.0)
    assert comments(client) == ["loading, third in the queue, about 4 s", "waking"]
    assert client.status == 200 and not other.status
    it.grant()
    it.run()
    assert answered(client, other) and client.events == whole.events and client.how == other.how == "passed"


def test_one_that_has_waited_for_too_long_is_told_what_for_it_was() -> None:
    it = world(awake=False)
    it.feed(e.Outlook("asleep, it takes more than there is beside the weights of chat (pinned)"))
    client = it.arrive(COMPLETION, {**BODY, "stream": False})
    it.wait(POOL["queue_timeout_s"])
    assert client.status == 503 and b"s: asleep, it takes more" in client.body
    assert b"chat (pinned)" in client.body


def test_a_paused_stream_is_told_what_for() -> None:
    it = world(comment_s=5.0)
    client = streaming(it, 4)
    it.rest()
    it.feed(e.Outlook("asleep, second in the queue"))
    it.wait(5.0)
    assert comments(client) == ["asleep, second in the queue"]


def test_an_error_to_a_stream_that_was_told_to_wait_is_an_event_and_no_end() -> None:
    it = world(awake=False)
    it.feed(e.Outlook("loading"))
    client = it.arrive(COMPLETION, BODY)
    it.wait(6.0)
    it.feed(e.Outlook("failed", "it doesn't fit"))
    assert client.ended == "cut" and b'data: {"error"' in client.body and b"it doesn't fit" in client.body
    it.feed(e.Outlook("loading"))
    bad = it.arrive(COMPLETION, {**BODY, "max_tokens": -1})
    it.wait(6.0)
    it.grant()
    it.run()
    assert bad.ended == "cut" and json.loads(bad.body.split(b"data: ")[1])["error"]["code"] == 400


def test_a_model_that_has_failed_takes_no_new_request_and_keeps_what_was_interrupted() -> None:
    it = world()
    old = streaming(it, 4)
    it.rest()
    new = it.arrive(COMPLETION, BODY)
    it.feed(e.Outlook("failed", "it doesn't fit", retry_after_s=3600))
    later = it.arrive(COMPLETION, BODY)
    assert [client.status for client in (new, later)] == [503, 503] and b"it doesn't fit" in new.body
    assert all((b"retry-after", b"3600") in client.headers for client in (new, later)), "and not in a second"
    it.feed(e.Outlook("waking"))
    it.grant()
    it.run()
    assert answered(old)


def test_of_a_model_that_is_gone_what_was_interrupted_ends_too_with_an_error() -> None:
    it = world()
    old = streaming(it, 4)
    it.rest()
    new = it.arrive(COMPLETION, BODY)
    it.feed(e.Outlook("", "it is not here any more", gone=True))
    assert new.status == 503 and old.ended == "cut" and b"it is not here any more" in old.body


def test_where_the_pool_had_not_said_which_weights_there_are_an_answer_goes_on() -> None:
    it = world()
    it.feed(e.Outlook(""))
    begun = streaming(it, 4)
    it.rest()
    it.feed(e.Outlook("", loaded="known by now"))
    it.grant()
    it.run()
    assert answered(begun)


def test_no_answer_goes_on_with_another_models_weights_and_one_that_has_not_begun_is_all_of_theirs() -> None:
    it = world()
    it.feed(e.Outlook("", loaded="old"))
    begun = streaming(it, 4)
    it.rest()
    waits = it.arrive(COMPLETION, BODY)
    it.feed(e.Outlook("", loaded="old"))
    it.feed(e.Outlook("it ends"))
    it.grant()
    step(it, begun, 2)  # they are as they were
    it.rest()
    it.feed(e.Outlook("loading", loaded="new"))
    it.grant()
    it.run()
    assert answered(waits) and with_engine(it) == 0
    assert begun.ended == "cut" and b"its model has other weights since the answer began" in begun.body


def test_the_most_urgent_goes_first_and_among_equals_the_first_and_before_all_what_was_interrupted() -> None:
    it = world()
    old = streaming(it, 2)
    it.rest()
    clients = [it.arrive(COMPLETION, BODY, priority=priority) for priority in (0, 5, -3, 0, -3)]
    it.grant()
    order = [ask.request for ask in it.asked[1:]]
    assert order == [old.number, *(clients[place].number for place in (2, 4, 0, 3, 1))]
    it.run()
    assert answered(old, *clients)


def test_a_request_is_kept_until_its_deadline_and_others_for_as_long_as_any() -> None:
    it = world(awake=False)
    late = it.arrive(COMPLETION, BODY, until=it.now + 7.0)
    urgent = it.arrive(COMPLETION, BODY, priority=-1)
    it.wait(6.9)
    assert not late.ended
    it.wait(0.1)
    assert late.status == 504 and b"within 7 s" in late.body
    it.wait(92.9)
    assert not urgent.ended
    it.wait(0.1)
    assert urgent.status == 503 and b"within 100 s" in urgent.body
    begun = it.arrive(COMPLETION, BODY, until=it.now + 1.0)
    it.grant()
    step(it, begun, 4)
    it.rest()
    it.wait(50.0)
    it.grant()
    it.run()
    assert answered(begun), "an answer that has begun has no deadline"


def test_the_pool_is_told_what_waits_what_is_paused_and_what_streams() -> None:
    it = world()
    streams = [it.arrive(COMPLETION, BODY, client="a", priority=9) for _ in range(3)]
    step(it, streams[0], 2)
    now = demand_of(it.machine, it.now, 4, 2.5)
    assert now == ModelDemand(streaming=3, priority=9, keep_alive_s=2.5, served=4)
    it.rest()
    it.wait(2.0)
    it.arrive(COMPLETION, BODY, client="b", until=it.now + 5.0, priority=-1)
    it.wait(1.0)
    found = demand_of(it.machine, it.now, 0, 0.0)
    assert (found.waiting, found.paused, found.streaming) == (1, 3, 0)
    assert (found.oldest_wait_ms, found.deadline_in_ms, found.priority) == (3000, 4000, -1)
    assert demand_of(world().machine, 0.0, 0, 0.0) == ModelDemand(keep_alive_s=0.0)


def test_an_answer_that_was_paused_before_and_went_on_has_waited_since_its_newest_pause() -> None:
    """Else a model with long answers has the next turn again, and others wait for longer than the quantum. One that
    had nothing of its turn waits on.
    """
    it = world()
    client = streaming(it, 2)
    it.rest()
    it.wait(20.0)
    it.grant()
    it.rest()
    assert demand_of(it.machine, it.now, 0, 0.0).oldest_wait_ms == 20_000
    it.grant()
    step(it, client, 1)
    it.rest()
    it.wait(3.0)
    assert demand_of(it.machine, it.now, 0, 0.0).oldest_wait_ms == 3000


ANEW = {"in one piece": {**BODY, "stream": False}, "compared": {**BODY, "presence_penalty": 0.5}}


@pytest.mark.parametrize("body", ANEW.values(), ids=ANEW)
def test_what_begins_anew_after_a_pause_asks_for_a_turn_twice_as_long_as_the_one_in_vain(body: dict[str, Any]) -> None:
    """Else turns of the same length are all in vain, and it never ends."""
    it = world()
    client = it.arrive(COMPLETION, body)

    def turn(seconds: float) -> int:
        if client.kind.streams:
            step(it, client, 3)
        it.wait(seconds)
        it.rest()
        it.grant()
        return demand_of(it.machine, it.now, 0, 0.0).turn_ms

    assert demand_of(it.machine, it.now, 0, 0.0).turn_ms == 0
    assert [turn(each) for each in (3.0, 2.0, 5.0, 20.0)] == [6000, 6000, 10_000, 25_000], "a part of turn_s at most"
    it.run()
    assert answered(client) and demand_of(it.machine, it.now, 0, 0.0).turn_ms == 0


def test_what_goes_on_where_it_was_asks_for_no_turn_of_its_own() -> None:
    it = world()
    streaming(it, 3)
    it.wait(3.0)
    it.rest()
    assert demand_of(it.machine, it.now, 0, 0.0).turn_ms == 0


@pytest.mark.parametrize("body", ANEW.values(), ids=ANEW)
def test_what_begins_anew_and_comes_no_further_in_the_longest_turn_ends_with_an_error(body: dict[str, Any]) -> None:
    it = world()
    client = it.arrive(COMPLETION, body)
    for seconds, dies in ((25.0, False), (24.0, False), (25.0, True), (25.0, False)):
        assert not client.ended
        if client.kind.streams:
            step(it, client, 3)
        it.wait(seconds)
        if not dies:
            it.rest()
        it.wait(9.0)
        it.grant()
    assert b"it begins anew after each pause, and came no further in a turn of 25 s" in client.body


@pytest.mark.parametrize("body", ANEW.values(), ids=ANEW)
def test_what_begins_anew_in_turns_that_are_cut_short_ends_once_they_have_taken_as_long_as_a_request_waits(
    body: dict[str, Any],
) -> None:
    """A more urgent model, a deadline or `longest_wait_s` does that; else it began anew without end."""
    it = world()
    client, turns = it.arrive(COMPLETION, body), 0
    while not client.ended and turns < 50:
        if client.kind.streams:
            step(it, client, 3)
        it.wait(5.0)
        it.rest()
        it.wait(9.0)
        it.grant()
        turns += 1
    assert b"it begins anew after each pause, and came no further in turns of 100 s together" in client.body
    assert turns == 21, "the first one may have been in the middle of a turn"


def test_what_an_engine_reads_anew_after_each_pause_asks_for_a_turn_until_it_has_come_further() -> None:
    """And not for as long as it streams: others waited for that."""
    it = world()
    client = streaming(it, 3)

    def asked() -> int:
        return demand_of(it.machine, it.now, 0, 0.0).turn_ms

    def turn(reads_s: float, tokens: int) -> int:
        it.rest()
        it.grant()
        it.wait(reads_s)
        step(it, client, tokens)
        return asked()

    assert turn(3.0, 0) == 0
    it.rest()
    assert asked() == 6000
    it.grant()
    assert turn(4.0, 1) == 0
    it.rest()
    assert asked() == 8000, "so long reading takes"
    it.grant()
    assert asked() == 8000
    assert turn(0.0, 1) == 0
    it.rest()
    assert asked() == 0
    it.grant()
    it.run()
    assert answered(client)


def test_a_stream_that_waited_long_for_its_first_token_asks_for_no_turn_once_it_streams() -> None:
    it = world()
    client = it.arrive(COMPLETION, BODY)
    it.wait(9.0)
    it.rest()
    it.grant()
    assert demand_of(it.machine, it.now, 0, 0.0).turn_ms == 18_000
    step(it, client, 3)
    assert not client.ended and demand_of(it.machine, it.now, 0, 0.0).turn_ms == 0


def test_a_stream_that_comes_further_in_each_turn_asks_for_none_however_long_it_reads() -> None:
    it = world()
    client = it.arrive(COMPLETION, BODY)
    for _ in range(3):
        it.wait(4.0)
        step(it, client, 3)
        it.wait(1.0)
        it.rest()
        assert demand_of(it.machine, it.now, 0, 0.0).turn_ms == 0
        it.grant()


def test_a_less_urgent_request_lengthens_no_turn_of_others() -> None:
    """Its model is as urgent as the most urgent of its requests, so others waited for the less urgent one."""
    it = world()
    it.arrive(COMPLETION, {**BODY, "stream": False}, priority=5)
    it.wait(3.0)
    it.rest()
    assert demand_of(it.machine, it.now, 0, 0.0).turn_ms == 6000
    it.arrive(COMPLETION, BODY)
    assert demand_of(it.machine, it.now, 0, 0.0).turn_ms == 0


def test_models_whose_requests_begin_anew_share_the_longest_turn_where_they_share_devices() -> None:
    """With as many models as there are, others waited for as many turns of that length."""
    turns = {"a": 20_000, "b": 25_000, "c": 5000, "d": 25_000, "e": 0}
    demand = {name: ModelDemand(turn_ms=turn_ms, paused=1) for name, turn_ms in turns.items()}
    devices = {"a": ["0"], "b": ["0", "1"], "c": ["1"], "d": ["2"], "e": ["2"]}
    found = {name: one.turn_ms for name, one in shared(demand, devices, 25.0).items()}
    assert found == {"a": 11_111, "b": 12_500, "c": 4166, "d": 25_000, "e": 0}
    assert sum(one.turn_ms for one in shared(demand, {}, 25.0).values()) == pytest.approx(25_000, abs=4), "each on all"
    assert shared(demand, {}, 100.0) == demand


def test_the_pool_is_told_these_shares(tmp_path: Path) -> None:
    it = world()
    it.arrive(COMPLETION, {**BODY, "stream": False})
    it.wait(9.0)
    it.rest()
    parts: Any = SimpleNamespace(bounds=e.Bounds(**POOL))
    with asyncio.Runner() as runner:
        router = Router(runner.get_loop(), tmp_path, parts)
    for name in ("a", "b"):
        pair: Any = SimpleNamespace(machine=it.machine, url="")
        model = router.models[name] = Model(pair, Entry(name=name))
        model.begins("a client", None)
    assert [one.turn_ms for one in router.demand(it.now).values()] == [12_500, 12_500], "of 18 s that each asks for"


def test_a_pool_is_away_until_it_has_said_what_it_runs(tmp_path: Path) -> None:
    """What it runs is its last word of the first ones: until then no model is known, or what there was before."""
    parts: Any = SimpleNamespace(named=lambda catalogue: None, changed=lambda: None)
    with asyncio.Runner() as runner:
        router = Router(runner.get_loop(), tmp_path, parts)
    for _ in range(2):
        for news in (None, m.Models(), m.Outlook(), m.Listing()):
            router._hear(news)
            assert (router.away_since is None) is isinstance(news, m.Listing)


@pytest.mark.parametrize(
    ("demand", "seen", "still_s", "wedged_"),
    [
        (ModelDemand(waiting=1), ModelOutlook(state=State.ASLEEP), 59.0, False),
        (ModelDemand(waiting=1), ModelOutlook(state=State.ASLEEP), 61.0, True),
        (ModelDemand(paused=1), ModelOutlook(state=State.ASLEEP), 61.0, True),
        (ModelDemand(waiting=1), ModelOutlook(state=State.LOADING, estimate_ms=300_000), 350.0, False),
        (ModelDemand(waiting=1), ModelOutlook(state=State.AWAKE), 999.0, False),
        (ModelDemand(streaming=5), ModelOutlook(state=State.ASLEEP), 999.0, False),
    ],
)
def test_what_waits_while_no_model_moves_is_said_to_be_wedged(
    demand: ModelDemand, seen: ModelOutlook, still_s: float, wedged_: bool
) -> None:
    assert bool(wedged({"chat": demand}, {"chat": seen}, still_s, 60.0)) is wedged_
    both = {"chat": demand, "new": ModelDemand(waiting=1)}
    assert bool(wedged(both, {"chat": seen}, still_s, 60.0)) is (wedged_ or still_s == 999.0), "of one nothing is known"


# -- ladders ---------------------------------------------------------------------------------------------------------


def test_a_request_of_a_ladder_goes_on_where_its_model_fails_and_the_client_has_nothing() -> None:
    it = world(awake=False)
    it.feed(e.Outlook("loading"))
    stream, whole = (
        it.arrive(COMPLETION, BODY, ladder=True),
        it.arrive(COMPLETION, {**BODY, "stream": False}, ladder=True),
    )
    unsafe = it.arrive("/v1/load_lora_adapter", {"a": 1}, ladder=True)
    it.wait(6.0)
    it.feed(e.Outlook("failed", "it doesn't fit"))
    assert [client.outcome for client in (stream, whole)] == [e.Outcome.HANDED_ON] * 2
    assert comments(stream) == ["loading"] and not whole.body
    assert unsafe.status == 503, "what may change something isn't asked twice"


def test_a_ladder_goes_on_at_an_engines_own_error_and_not_once_an_answer_has_begun() -> None:
    full = replace(FAILED, status=429)
    it = World(e.Bounds(**POOL), say=lambda *_, **__: full)
    it.grant()
    refused, last = it.arrive(COMPLETION, BODY, ladder=True), it.arrive(COMPLETION, BODY)
    it.run()
    assert refused.outcome is e.Outcome.HANDED_ON and last.status == 429
    it = World(e.Bounds(**POOL), say=lambda *_, **__: FAILED)
    it.grant()
    client, last = it.arrive(COMPLETION, BODY, ladder=True), it.arrive(COMPLETION, BODY)
    it.run()
    it.wait(2.0)
    assert client.outcome is e.Outcome.HANDED_ON and (last.ended, last.status) == ("whole", 500)
    it = world()
    begun = it.arrive(COMPLETION, BODY, ladder=True)
    step(it, begun, 4)
    it.rest()
    it.wait(100.0)
    assert begun.ended == "cut"


def test_a_refusal_of_the_engines_is_the_answer_of_the_whole_ladder() -> None:
    it = world()
    client = it.arrive(COMPLETION, {**BODY, "max_tokens": -1}, ladder=True)
    it.run()
    assert client.status == 400


def test_what_was_told_to_wait_for_another_model_gets_the_rest_of_one_stream() -> None:
    whole, _ = undisturbed(COMPLETION, BODY)
    it = world()
    client = it.arrive(COMPLETION, BODY)
    it.run()
    greeted = SimClient(9, client.kind, status=200)
    it.clients[9] = greeted
    it.feed(e.Arrived(9, client.kind, True))
    it.run()
    assert answered(greeted) and greeted.events == whole.events


def test_where_an_engine_tells_no_token_ids_an_answer_is_made_the_same_again() -> None:
    def of(**fields: Any) -> kinds.Kind:
        body = json.dumps({**BODY, **fields}).encode()
        return kinds.kind_of("POST", COMPLETION.encode(), [], body, request_id="r", seed=7, tells_ids=False)

    drawn, greedy = of(temperature=1), of()
    assert drawn.recovery is greedy.recovery is kinds.Recovery.COMPARED and drawn.same_again and greedy.same_again
    assert json.loads(drawn.body)["seed"] == 7 and "seed" not in json.loads(greedy.body)
