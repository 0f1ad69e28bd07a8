"""The door's rules, one by one: who is admitted when, what a switchover does, who is blamed for a death, and that what
an old engine says is heard by no client.
"""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.rules import events as e
from gateway.rules.admission import POISON, UNREACHABLE_S
from gateway.rules.due import ENDED
from gateway.rules.grants import Grant
from gateway.rules.kinds import Api, Recovery
from tests.gateway import engine
from tests.gateway.world import SimClient, World, undisturbed

COMPLETION = "/v1/completions"
BODY: dict[str, Any] = {"prompt": "The sea", "max_tokens": 12, "temperature": 0, "stream": True, "ignore_eos": True}


def world(**bounds: Any) -> World:
    it = World(e.Bounds(**bounds))
    it.grant()
    return it


def step(it: World, client: SimClient, pieces: int = 1) -> None:
    for _ in range(pieces):
        it.piece(next(exchange for exchange in it.exchanges if exchange.ask.request == client.number))


def streaming(it: World, pieces: int) -> SimClient:
    """A client that has so much of its answer."""
    client = it.arrive(COMPLETION, BODY)
    step(it, client, pieces)
    return client


def switchover(it: World, drain_timeout_s: float) -> None:
    it.lock("HELD", switchover=e.Switchover(it.newest, drain_timeout_s))


def answered(*clients: SimClient) -> bool:
    return all(client.outcome is e.Outcome.ANSWERED for client in clients)


def with_engine(it: World) -> int:
    grant = it.machine.admission.grants.current
    return len(grant.requests) if grant is not None else 0


# -- requests and drain ----------------------------------------------------------------------------------------------


def test_a_request_that_is_admitted_has_a_lease_and_gives_it_back_however_it_ends() -> None:
    it = world()
    clients = [it.arrive(COMPLETION, BODY) for _ in range(4)]
    assert with_engine(it) == 4, "requests share a grant"
    it.leave(clients[0])
    assert with_engine(it) == 3
    it.run()
    assert with_engine(it) == 0 and answered(*clients[1:])
    it.arrive(COMPLETION, {**BODY, "max_tokens": -1})
    it.run()
    assert with_engine(it) == 0


def test_in_a_switchover_no_request_is_admitted_and_what_is_there_may_finish() -> None:
    it = world()
    old = streaming(it, 3)
    switchover(it, 30.0)
    new = [it.arrive(COMPLETION, BODY) for _ in range(3)]
    assert with_engine(it) == 1 and not any(ask.request == new[0].number for ask in it.asked)
    it.run()
    assert answered(old) and old.how == "passed" and with_engine(it) == 0
    it.wait(1.0)
    assert not new[0].ended, "they wait behind the switchover"
    it.grant()
    it.run()
    assert answered(*new)
    assert [ask.request for ask in it.asked if ask.token == 2] == [client.number for client in new], "in their order"


def test_who_has_not_finished_within_the_bound_is_continued_by_the_successor() -> None:
    it = world()
    slow = streaming(it, 3)
    switchover(it, 5.0)
    it.wait(4.9)
    assert with_engine(it) == 1
    it.wait(0.2)
    assert with_engine(it) == 0 and it.machine.admission.severed == 1
    assert any(note.event == "severed" for note in it.notes)
    it.grant()
    it.run()
    assert answered(slow) and slow.how == "continued"


def test_a_bound_of_nothing_severs_at_once_and_the_smaller_bound_holds() -> None:
    for own, plan in ((None, 0.0), (0.0, 30.0)):
        it = world(drain_timeout_s=own)
        client = streaming(it, 3)
        switchover(it, plan)
        assert with_engine(it) == 0
        it.grant()
        it.run()
        assert answered(client) and client.how == "continued"


def test_who_was_severed_does_not_slow_the_next_drain() -> None:
    """Its lease belongs to a token, and that is gone."""
    it = world()
    client = streaming(it, 2)
    switchover(it, 0.0)
    it.grant()
    step(it, client, 2)
    switchover(it, 10.0)
    assert with_engine(it) == 1
    it.run()
    assert with_engine(it) == 0 and answered(client)
    assert it.machine.admission.severed == 1


def test_a_switchover_that_is_called_off_is_as_if_it_had_not_been() -> None:
    it = world()
    old = streaming(it, 2)
    switchover(it, 5.0)
    new = it.arrive(COMPLETION, BODY)
    it.lock("HELD")
    it.wait(10.0)
    assert with_engine(it) == 2 and it.machine.admission.severed == 0
    it.run()
    assert answered(old, new)


def test_who_leaves_the_queue_triggers_nothing_and_the_others_keep_their_order() -> None:
    it = World()
    clients = [it.arrive(COMPLETION, BODY) for _ in range(6)]
    it.leave(clients[1])
    it.leave(clients[4])
    assert it.machine.admission.visitors.waiting == 4
    it.grant()
    assert [ask.request for ask in it.asked] == [clients[place].number for place in (0, 2, 3, 5)]


def test_no_request_that_waits_for_its_turn_is_given_up_while_others_have_theirs() -> None:
    """Suspects are tried one by one, and that may take longer than another engine may take to come."""
    it = world(failover_timeout_s=30.0)
    clients = [it.arrive(COMPLETION, {**BODY, "stream": False}) for _ in range(8)]
    for _ in range(2):
        assert it.serving is not None
        it.die(it.serving)
        it.grant()
    for _ in clients:
        (exchange,) = it.exchanges
        it.wait(8.0)
        it.piece(exchange)
    assert answered(*clients), [client.why for client in clients]


@pytest.mark.parametrize("streams", [True, False])
def test_a_death_that_the_lock_hears_of_late_costs_no_client_an_answer(streams: bool) -> None:
    """On a full machine it may take longer than a failure is held back: but no engine listens there any more."""
    it = world()
    client = it.arrive(COMPLETION, {**BODY, "stream": streams})
    if streams:
        step(it, client, 3)
    assert it.serving is not None
    it.die(it.serving)
    it.wait(5 * it.machine.bounds.hold_s)
    assert not client.ended, client.why
    it.grant()
    it.run()
    assert answered(client)


@pytest.mark.parametrize("leaves", ["drains", "has withdrawn"])
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("dies", [True, False])
def test_an_engine_that_dies_on_its_way_out_costs_no_client_an_answer(leaves: str, streams: bool, dies: bool) -> None:
    """The clients' connections break before the lock has heard of it; or only they do, at its drain's end."""
    it = world()
    clients = [it.arrive(COMPLETION, {**BODY, **more, "stream": streams}) for more in ({}, {"presence_penalty": 1.0})]
    for client in clients if streams else []:
        step(it, client, 3)
    if leaves == "drains":
        switchover(it, 30.0)
    else:
        it.lock("HELD", serves=False)
    assert it.serving is not None
    it.die(it.serving)
    it.serving.alive = not dies
    it.wait(2 * it.machine.bounds.hold_s)
    it.grant()
    it.run()
    assert answered(*clients), [client.why for client in clients]
    assert [client.how for client in clients] == (["continued", "compared"] if streams else ["restarted"] * 2)
    assert not any(client.number in it.machine.admission.visitors for client in clients)


def test_the_engine_is_forced_out_at_its_drains_end_whatever_it_said() -> None:
    it = world()
    client = streaming(it, 2)
    it.lock("HELD", switchover=e.Switchover(it.newest, 60.0, exiting=True))
    assert with_engine(it) == 0
    it.grant()
    it.run()
    assert answered(client)


# -- the end of all engines -------------------------------------------------------------------------------------------


def ends_alone(it: World, state: str = "HELD") -> None:
    """The engine that serves withdraws, and no engine waits for the lock."""
    it.others = False
    it.lock(state, serves=False)


def test_when_the_last_engine_is_told_to_end_who_is_new_is_refused() -> None:
    it = world()
    old = streaming(it, 2)
    ends_alone(it)
    waits = it.arrive(COMPLETION, BODY)
    assert it.machine.admission.ready(it.now) and not waits.ended, "it may only bind its socket again"
    it.wait(it.machine.bounds.hold_s)
    assert not it.machine.admission.ready(it.now)
    for client in (waits, it.arrive(COMPLETION, BODY)):
        assert client.status == 503 and (b"retry-after", b"1") in client.headers and b"told to end" in client.body
    it.run()
    assert answered(old)
    it.lock("FREE")
    assert it.arrive(COMPLETION, BODY).status == 503
    it.others = True
    it.lock("FREE")  # it starts again
    again = it.arrive(COMPLETION, BODY)
    it.grant()
    it.run()
    assert answered(again) and it.machine.admission.ready(it.now)


def test_a_successor_that_is_told_to_end_before_it_serves_leaves_none_either() -> None:
    """Both are told at the same time, and the lock is given on before the second one hears of it."""
    it = world()
    ends_alone(it)
    it.grant(serves=False)
    it.lock("FENCING", serves=False)
    it.lock("FREE")
    it.wait(it.machine.bounds.hold_s)
    assert it.arrive(COMPLETION, BODY).status == 503 and not it.machine.admission.ready(it.now)


@pytest.mark.parametrize("why", ["another waits", "it died", "the lock recovers", "the lock is away", "it comes back"])
def test_as_long_as_an_engine_may_follow_who_is_new_waits(why: str) -> None:
    it = world()
    if why == "it died":
        it.others = False
        die_with_all(it)
    elif why == "another waits":
        it.lock("HELD", serves=False)
    else:
        ends_alone(it, "RECOVERING" if why == "the lock recovers" else "HELD")
    if why == "the lock is away":
        it.feed(e.LockAway())
    if why == "it comes back":
        it.wait(0.9 * it.machine.bounds.hold_s)
        it.lock("HELD")
        ends_alone(it)
    new = it.arrive(COMPLETION, BODY)
    it.wait(0.9 * it.machine.bounds.hold_s)
    if why != "it comes back":
        it.wait(10.0)
    assert not new.ended and it.machine.admission.ready(it.now)


# -- the queue -------------------------------------------------------------------------------------------------------


def test_only_so_many_wait_and_only_for_so_long() -> None:
    it = World(e.Bounds(queue=2, queue_timeout_s=10.0))
    first, second, third = (it.arrive(COMPLETION, BODY) for _ in range(3))
    assert (third.status, third.outcome) == (503, e.Outcome.REFUSED)
    assert not first.ended
    it.wait(10.0)
    assert (first.status, second.status) == (503, 503)
    assert json.loads(first.body)["error"]["code"] == 503


def test_preflights_which_need_no_key_take_no_place_of_others() -> None:
    """A browser gives a request up whose preflight fails: so they wait, but only among themselves."""
    it = World(e.Bounds(queue=2))
    preflights = [it.arrive(COMPLETION, method="OPTIONS") for _ in range(3)]
    assert [client.status for client in preflights] == [0, 0, 503]
    it.leave(preflights[0])
    others = [it.arrive(COMPLETION, BODY) for _ in range(3)]
    assert [client.status for client in others] == [0, 0, 503]
    preflights.append(it.arrive(COMPLETION, method="OPTIONS"))
    it.grant()
    it.run()
    assert all(client.ended == "whole" for client in (preflights[1], preflights[3])) and answered(*others[:2])


def test_who_was_interrupted_waits_for_another_bound_and_its_stream_ends_with_an_error() -> None:
    it = world(failover_timeout_s=20.0, queue_timeout_s=5.0)
    client = streaming(it, 3)
    it.lock("FREE")
    it.newest += 1
    it.lock("FREE")
    it.wait(19.0)
    assert not client.ended and b": waiting" in client.body
    it.wait(2.0)
    assert str(client.ended) == "cut" and b'"engine_lost"' in client.body and b"[DONE]" not in client.body


def test_the_interrupted_come_first_oldest_first_and_only_some_at_a_time() -> None:
    it = world(reread_tokens=40)
    clients = [it.arrive(COMPLETION, {**BODY, "prompt": "x" * 20}) for _ in range(4)]
    for client in clients:
        step(it, client, 2)
    late = [it.arrive(COMPLETION, BODY) for _ in range(2)]
    dead = it.serving
    assert dead is not None
    it.lock("FENCING", serves=False)
    fresh = it.arrive(COMPLETION, BODY)
    it.die(dead)
    it.grant()
    first = [ask.request for ask in it.asked if ask.token == 2]
    assert first == [clients[0].number], "one is larger than half of what is read at a time"
    it.run()
    assert answered(*clients, *late, fresh)
    order = list(dict.fromkeys(ask.request for ask in it.asked if ask.token == 2))
    assert order == sorted(order), "oldest first, then who was new"


def test_contexts_that_are_kept_take_no_turns_as_far_as_they_fit_in_what_is_kept() -> None:
    """One that had got nothing may not have been read; and of more contexts than the cache has room for, some had to go
    out of it.
    """
    it = world(reread_tokens=40)
    clients = [it.arrive(COMPLETION, {**BODY, "prompt": "x" * 20}) for _ in range(5)]
    for client in clients[:4]:
        step(it, client, 2)
    die_with_all(it)
    it.newest += 1
    it.lock("FREE")
    waiting = it.machine.admission.visitors
    tokens = [waiting[client.number].tokens for client in clients]
    it.kept = (sum(tokens[:3]), 4)
    it.grant()
    admitted = it.machine.admission.grants.current
    assert admitted is not None
    assert list(admitted.rereading.values()) == [4, 4, 4, tokens[3]], "of what is kept nothing is left for the fourth"
    it.run()
    assert answered(*clients)


@pytest.mark.parametrize("between", ["an engine that never served", "an engine that gave it nothing"])
def test_a_context_is_kept_only_by_the_last_engine_that_served(between: str) -> None:
    it = world(reread_tokens=40)
    client = it.arrive(COMPLETION, {**BODY, "prompt": "x" * 20})
    step(it, client, 2)
    die_with_all(it)
    if between == "an engine that never served":
        it.grant(serves=False)
    else:
        it.grant()
        assert it.serving is not None
        it.die(it.serving)
    it.kept = (1000, 4)
    it.grant()
    grant = it.machine.admission.grants.current
    assert grant is not None
    (charged,) = grant.rereading.values()
    assert (charged == 4) is (between == "an engine that never served"), charged


# -- fencing ---------------------------------------------------------------------------------------------------------


def test_nothing_of_an_engine_with_an_old_token_is_passed_on() -> None:
    it = world()
    client = it.arrive(COMPLETION, BODY)
    (exchange,) = it.exchanges
    step(it, client, 2)
    had = client.body
    it.newest += 1
    it.lock("HELD")  # a newer token was given; who has it isn't seen yet
    it.feed(e.Heard(client.number, exchange.ask.leg, data=b'data: {"id": "evil"}\n\n'))
    it.feed(e.Heard(client.number, exchange.ask.leg, ended=True))
    assert client.body == had and not client.ended
    it.grant()
    it.run()
    assert answered(client) and b"evil" not in client.body


def test_that_no_engine_holds_takes_none_away_until_a_newer_token_is_given() -> None:
    """A server that lost its file may say it of a holder that lives, and that comes back with its token."""
    it = world()
    old, broken = it.arrive(COMPLETION, BODY), it.arrive(COMPLETION, BODY)
    step(it, old, 2)
    had = len(old.body)
    it.lock("FREE")
    new = it.arrive(COMPLETION, BODY)
    step(it, old)
    assert len(old.body) > had and not any(ask.request == new.number for ask in it.asked)
    (exchange,) = (exchange for exchange in it.exchanges if exchange.ask.request == broken.number)
    del it.engines[1].exchanges[exchange.ask.request, exchange.ask.leg]
    it.feed(e.Broke(exchange.ask.request, exchange.ask.leg, "its connection ended"))
    assert with_engine(it) == 1 and it.machine.admission.interrupted == 1, (
        "its engine doesn't hold: it waits for another"
    )
    it.lock("HELD")
    assert with_engine(it) == 3
    it.run()
    assert answered(old, broken, new) and old.how == "passed"


def test_without_a_lock_server_the_engine_that_served_serves_on() -> None:
    it = world()
    it.feed(e.LockAway())
    client = it.arrive(COMPLETION, BODY)
    it.run()
    assert answered(client)
    it.lock("RECOVERING", serves=True)
    again = it.arrive(COMPLETION, BODY)
    it.run()
    assert answered(again)


def test_an_engine_that_withdrew_gets_no_new_request() -> None:
    it = world()
    it.lock("HELD", serves=False)
    client = it.arrive(COMPLETION, BODY)
    assert not it.asked and not client.ended
    it.lock("HELD")
    it.run()
    assert answered(client)


# -- ends that may be none --------------------------------------------------------------------------------------------


def ends_early(method: str, target: bytes, headers: Any, body: bytes, *, created: int = 1) -> engine.Said:
    """The first engine says `[DONE]` in the middle of an answer."""
    said = engine.answer(method, target, headers, body, created=created)
    return replace(said, pieces=(*said.pieces[:4], said.pieces[-1])) if created == 1 else said


@pytest.mark.parametrize("lost", [True, False])
def test_an_end_without_a_reason_is_held_until_the_lock_has_spoken(lost: bool) -> None:
    it = World(say=ends_early)
    it.grant()
    client = it.arrive(COMPLETION, BODY)
    it.run()
    assert not client.ended and b"[DONE]" not in client.body
    if lost:
        it.lock("FENCING", serves=False)
        it.grant()
        it.run()
        assert answered(client) and client.how == "continued"
        return
    it.wait(0.9 * it.machine.bounds.hold_s)
    assert not client.ended
    it.wait(it.machine.bounds.hold_s)
    assert str(client.ended) == "cut" and b'"engine_lost"' in client.body and b"[DONE]" not in client.body


def aborts(method: str, target: bytes, headers: Any, body: bytes, *, created: int = 1) -> engine.Said:
    """The first engine answers in one piece that it broke its answer off."""
    said = engine.answer(method, target, headers, body, created=created)
    whole = said.body.replace(b'"finish_reason":"length"', b'"finish_reason":"abort"')
    assert created > 1 or whole != said.body
    return replace(said, pieces=(whole,)) if created == 1 else said


@pytest.mark.parametrize("lost", [True, False])
def test_an_answer_in_one_piece_that_was_broken_off_is_held_until_the_lock_has_spoken(lost: bool) -> None:
    it = World(say=aborts)
    it.grant()
    client = it.arrive(COMPLETION, {**BODY, "stream": False})
    it.run()
    assert not client.ended and not client.body
    if lost:
        it.lock("FENCING", serves=False)
        it.grant()
        it.run()
    it.wait(2 * it.machine.bounds.hold_s)
    assert str(client.ended) == "whole" and (b'"abort"' in client.body) is not lost, (
        "the engine's own word, if it lives"
    )


# -- engines that can't be reached ------------------------------------------------------------------------------------


def tried(it: World) -> SimClient:
    """Admitted alone, to see whether the engine can be reached again: its connection is on its way."""
    client = it.arrive(COMPLETION, BODY)
    it.connect(it.connecting[0], refused=True)
    it.arrive(COMPLETION, BODY)
    it.arrive(COMPLETION, BODY)
    assert not it.connecting, "who was refused is tried again a little later"
    it.wait(UNREACHABLE_S)
    assert [connecting.ask.request for connecting in it.connecting] == [client.number], "one alone is admitted"
    return client


def test_while_an_engine_cannot_be_reached_one_tries_and_then_all_are_admitted() -> None:
    it = World(slow=True)
    it.grant()
    tried(it)
    it.connect(it.connecting[0], refused=True)
    assert not it.connecting
    it.wait(UNREACHABLE_S)
    it.connect(it.connecting[0])
    assert len(it.exchanges) == 1 and len(it.connecting) == 2
    it.run()
    assert answered(*it.clients.values())


@pytest.mark.parametrize("refused", [True, False])
def test_a_client_that_leaves_while_it_is_tried_alone_keeps_none_out(refused: bool) -> None:
    """It isn't said what became of its connection, if it is refused."""
    it = World(slow=True)
    it.grant()
    it.leave(tried(it))
    it.connect(it.connecting[0], refused=refused)
    it.wait(UNREACHABLE_S)
    assert it.connecting or it.exchanges
    it.run()
    _first, *others = it.clients.values()
    assert answered(*others)


def test_an_engine_that_is_lost_while_one_tries_it_leaves_nothing_to_be_tried() -> None:
    it = World(slow=True)
    it.grant()
    there = it.arrive(COMPLETION, {**BODY, "max_tokens": 30})
    it.connect(it.connecting[0])
    step(it, there, 3)
    tried(it)
    it.newest += 1
    it.lock("HELD")  # a newer token was given; who has it isn't seen yet
    it.grant()
    it.run()
    assert answered(*it.clients.values())


# -- poison ----------------------------------------------------------------------------------------------------------


def die_with_all(it: World) -> None:
    dead = it.serving
    assert dead is not None
    it.lock("FENCING", serves=False)
    it.die(dead)


def followed(it: World) -> None:
    """It dies with all that it has, and another serves."""
    die_with_all(it)
    it.grant()


def test_who_kills_three_engines_is_refused_and_no_other_fails() -> None:
    it = World()
    it.grant()
    poison = it.arrive(COMPLETION, {**BODY, "prompt": "poison"})
    others = [it.arrive(COMPLETION, {**BODY, "prompt": f"other {number}"}) for number in range(5)]
    deaths = 0
    for _ in range(20):
        if poison.ended:
            break
        asked = [exchange for exchange in it.exchanges if exchange.ask.request == poison.number]
        if asked:
            deaths += 1
            followed(it)
        else:
            it.piece(it.exchanges[0])
    assert poison.status == 502 and b"three engines have died" in poison.body
    assert deaths == 3
    it.run()
    assert answered(*others)


def test_a_death_counts_only_against_who_had_got_nothing() -> None:
    it = world()
    client = it.arrive(COMPLETION, {**BODY, "max_tokens": 30})
    for _ in range(6):
        step(it, client, 2)
        followed(it)
    it.run()
    assert answered(client)


def test_a_death_does_not_count_against_whom_that_engine_was_never_sent() -> None:
    it = World(slow=True)
    queued = it.arrive(COMPLETION, {**BODY, "prompt": "queued"})
    for _ in range(3):  # no request is admitted to an engine that dies before it says where it serves
        it.grant(serves=False)
        die_with_all(it)
    it.grant()
    for _ in range(4):  # it is admitted, and its connection isn't made yet
        assert [connecting.ask.request for connecting in it.connecting if connecting.wanted] == [queued.number]
        followed(it)
    it.run()
    assert answered(queued) and not [note for note in it.notes if note.event == "suspect"]


def test_suspects_are_alone_with_an_engine_one_at_a_time() -> None:
    it = world()
    clients = [it.arrive(COMPLETION, {**BODY, "prompt": f"n{number}"}) for number in range(3)]
    for _ in range(2):
        followed(it)
    assert len({exchange.ask.request for exchange in it.exchanges}) == 1
    fresh = it.arrive(COMPLETION, BODY)
    assert len({exchange.ask.request for exchange in it.exchanges}) == 1
    it.run()
    assert answered(*clients, fresh)


def test_no_request_comes_beside_a_suspect_until_it_has_got_something() -> None:
    it = world()
    suspect = it.arrive(COMPLETION, BODY)
    for _ in range(2):
        followed(it)
    fresh = it.arrive(COMPLETION, {**BODY, "prompt": "another"})
    assert [exchange.ask.request for exchange in it.exchanges] == [suspect.number]
    step(it, suspect)
    assert [exchange.ask.request for exchange in it.exchanges] == [suspect.number, fresh.number]
    it.run()
    assert answered(suspect, fresh)


def test_an_engine_that_gave_something_is_no_strike_among_those_that_gave_nothing() -> None:
    it = world()
    client = streaming(it, 2)
    for _ in range(3):
        followed(it)
    it.run()
    assert answered(client), client.why


def poisons(it: World, *, stays: bool = True) -> tuple[SimClient, int]:
    """A request of which each engine dies that has it: the client, and so many engines. Unless it `stays`, its client
    leaves after the first death.
    """
    client = it.arrive(COMPLETION, {**BODY, "prompt": "poison"})
    deaths = 0
    while not client.ended and any(exchange.ask.request == client.number for exchange in it.exchanges):
        deaths += 1
        die_with_all(it)
        if not stays:
            it.leave(client)
        it.grant()
    return client, deaths


def test_poison_is_refused_for_a_while_whichever_client_sends_it() -> None:
    it = world()
    client, deaths = poisons(it)
    assert deaths == 3
    for again in (client, poisons(it)[0], poisons(it)[0]):
        assert (again.status, json.loads(again.body)["error"]["retry_safe"]) == (502, False)
        assert (b"x-should-retry", b"false") in again.headers and b"three engines have died" in again.body
    assert it.newest == 4, "no other engine died of it"
    other = it.arrive(COMPLETION, {**BODY, "prompt": "another"})
    it.run()
    assert answered(other)
    it.wait(it.machine.bounds.strikes_s)
    assert poisons(it)[1] == 3, "it is remembered for a while, and not for good"


def test_who_leaves_before_the_third_death_begins_where_it_was() -> None:
    it = world()
    assert [poisons(it, stays=False)[1] for _ in range(4)] == [1, 1, 1, 0]


def test_an_answer_makes_its_deaths_forgotten() -> None:
    it = world()
    for _ in range(4):
        poisons(it, stays=False)
        poisons(it, stays=False)
        well = it.arrive(COMPLETION, {**BODY, "prompt": "poison"})
        it.run()
        assert answered(well)


def test_who_asks_what_two_engines_died_of_is_tried_alone() -> None:
    it = world()
    poisons(it, stays=False)
    poisons(it, stays=False)
    first, suspect, later = (it.arrive(COMPLETION, {**BODY, "prompt": said}) for said in ("one", "poison", "two"))
    assert [exchange.ask.request for exchange in it.exchanges] == [first.number]
    step(it, first)
    assert [exchange.ask.request for exchange in it.exchanges] == [first.number, suspect.number]
    it.run()
    assert answered(first, suspect, later)


def test_only_so_many_bodies_are_remembered() -> None:
    it = world(strikes_most=3)
    poisons(it)
    for number in range(3):
        client = it.arrive(COMPLETION, {**BODY, "prompt": f"p{number}"})
        die_with_all(it)
        it.leave(client)
        it.grant()
    assert len(it.machine.admission.deaths) == 3 and poisons(it)[1] == 3


# -- silence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("more", [{}, {"presence_penalty": 1.0}])
def test_a_stream_whose_engine_says_nothing_ends_with_an_error_after_a_bound(pieces: int, more: dict[str, Any]) -> None:
    """Comments keep its client's own time-out from ever passing, and no shim may judge that engine."""
    it = world(silence_s=60.0)
    client = it.arrive(COMPLETION, {**BODY, **more})
    step(it, client, pieces)
    it.wait(59.0)
    assert not client.ended and b": waiting" in client.body
    it.wait(2.0)
    assert str(client.ended) == "cut" and b"said nothing for 60 s" in client.body and b"[DONE]" not in client.body
    assert with_engine(it) == 0


@pytest.mark.parametrize("ladder", [False, True])
def test_an_endpoint_elsewhere_that_never_answers_is_given_up_after_a_bound_for_the_next_model(ladder: bool) -> None:
    it = world(silence_s=60.0)
    client = it.arrive(COMPLETION, BODY, afar=True, api=Api.OTHER, recovery=Recovery.ENDED, ladder=ladder)
    it.wait(59.0)
    assert not client.ended
    it.wait(2.0)
    assert with_engine(it) == 0
    assert str(client.ended) == ("handed on" if ladder else "whole")
    assert ladder or (client.status == 502 and b"said nothing for 60 s" in client.body)


def test_one_that_says_something_in_time_may_take_as_long_as_it_likes() -> None:
    it = world(silence_s=60.0)
    client = it.arrive(COMPLETION, BODY, afar=True, api=Api.OTHER, recovery=Recovery.ENDED)
    (exchange,) = it.exchanges
    for number in range(4):
        it.wait(50.0)
        head = e.Head(200, [(b"content-type", b"audio/wav")], None) if not number else None
        it.feed(e.Heard(client.number, exchange.ask.leg, head=head, data=b"wave"))
    assert not client.ended


def test_comments_of_the_engines_own_are_no_word() -> None:
    it = world(silence_s=60.0)
    client = streaming(it, 2)
    (exchange,) = it.exchanges
    for _ in range(7):
        it.feed(e.Heard(client.number, exchange.ask.leg, data=b": ping\n\n"))
        it.wait(10.0)
    assert str(client.ended) == "cut" and b"said nothing for 60 s" in client.body


@pytest.mark.parametrize("then", [b"", b'data: {"error": {"message": "late"}}\n\n', b"data: {no json\n\n", None])
def test_behind_the_last_reason_to_end_nothing_can_break_the_answer(then: bytes | None) -> None:
    """Not an event, not silence (b""), and not the end of the connection (None)."""
    it = world()
    body = {**BODY, "stream_options": {"include_usage": True}}
    client = it.arrive(COMPLETION, body)
    exchange = it.exchanges[0]
    step(it, client, len(exchange.said.pieces) - 2)
    if then is None:
        del it.engines[1].exchanges[client.number, exchange.ask.leg]
        it.feed(e.Broke(client.number, exchange.ask.leg, "its connection ended"))
    elif then:
        it.feed(e.Heard(client.number, exchange.ask.leg, data=then))
    else:
        it.wait(it.machine.bounds.stall_s + 1.0)
    assert answered(client) and str(client.ended) == "end"
    assert client.events == undisturbed(COMPLETION, body)[0].events


_CHOICE = b'{"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}'
_CHUNK = b"data: " + _CHOICE + b"\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("status", [200, 204, 503])
@pytest.mark.parametrize("form", [b"application/json", b"text/event-stream"])
@pytest.mark.parametrize("said", [_CHOICE, _CHUNK, b"", b"{no json", _CHOICE.replace(b"stop", b"abort"), b" " * 99999])
@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_in_one_event_means_what_its_parts_mean(
    opened: bool, status: int, form: bytes, said: bytes, streams: bool
) -> None:
    """`opened`: the client has a comment, which is no beginning of an answer but the head of a stream. An engine died
    of the same before: an answer makes that forgotten.
    """

    def told(whole: bool) -> object:
        it = world(answer_bytes=9999)
        body = {**BODY, "stream": streams or opened}
        before = it.arrive(COMPLETION, body)
        die_with_all(it)
        it.leave(before)
        it.grant()
        client = it.arrive(COMPLETION, body)
        if opened:
            (exchange,) = it.exchanges
            it.feed(e.Heard(client.number, exchange.ask.leg, e.Head(200, exchange.said.headers, None)))
            it.wait(6.0)
            assert client.body.startswith(b": waiting")
            it.grant()
        (exchange,) = it.exchanges
        leg, headers = exchange.ask.leg, [(b"content-type", form)]
        del it.engines[exchange.ask.token].exchanges[client.number, leg]
        if whole:
            it.feed(e.Heard(client.number, leg, e.Head(status, headers, len(said)), said, True))
        else:
            it.feed(e.Heard(client.number, leg, e.Head(status, headers, len(said))))
            it.feed(e.Heard(client.number, leg, data=said))
            it.feed(e.Heard(client.number, leg, ended=True))
        unproven = list(it.machine.admission.grants.current.unproven)  # type: ignore[union-attr]
        it.wait(5.0)
        ended = (str(client.ended), client.status, client.body, client.outcome, client.why)
        return ended, unproven, with_engine(it), len(it.machine.admission.deaths), [note.event for note in it.notes]

    assert told(True) == told(False)


def test_a_stream_that_has_a_word_in_time_may_take_as_long_as_it_likes() -> None:
    it = world(silence_s=60.0)
    client = it.arrive(COMPLETION, BODY)
    while not client.ended:
        step(it, client)
        it.wait(50.0)
    assert answered(client)


# -- anything --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_every_answer_is_the_undisturbed_one(seed: int, slow: bool) -> None:
    """Arrivals, pieces, deaths, switchovers, a lock that is away: in the seed's order. A client that stays gets
    its answer, and it is the right one; the world looks at the rules all the time. `slow`: connections take time, and
    some are refused by an engine that is well.
    """
    dice = random.Random(seed)
    it = World(e.Bounds(reread_tokens=dice.choice([30, 200, 8192])), slow=slow)
    it.grant()
    bodies = [
        {**BODY, "prompt": f"q{number}", "max_tokens": dice.randrange(2, 14)}
        | dice.choice([{}, {"n": 2}, {"presence_penalty": 1.0}, {"stream": False}, {"stop": ["a"]}, {"logprobs": 1}])
        for number in range(8)
    ]
    clients: list[tuple[SimClient, dict[str, Any]]] = []
    left: set[int] = set()
    for _ in range(260):
        deed = dice.random()
        if deed < 0.05 and len(clients) < (24 if slow else 12):
            body = dice.choice(bodies)
            clients.append((it.arrive(COMPLETION, body), body))
        elif deed < (0.08 if it.connecting else 0.06) and clients:
            asking = [connecting.ask.request for connecting in it.connecting]
            client = it.clients[dice.choice(asking)] if asking else dice.choice(clients)[0]
            if not client.ended:
                it.leave(client)
                left.add(client.number)
        elif deed < (0.085 if slow else 0.09):
            if it.exchanges:
                break_within_a_piece(it, dice)
            die_with_all(it)
            it.wait(dice.choice([0.0, 0.02, 0.5]))
            it.kept = dice.choice([(0, 0), (30, 4), (1000, 4)])
            it.grant()
        elif deed < 0.10:
            switchover(it, dice.choice([0.0, 0.1, 5.0]))
            it.wait(0.2)
            it.grant()
        elif deed < 0.11:
            it.feed(e.LockAway())
        elif deed < 0.112:  # both engines are told to end, and one is started again later
            ends_alone(it)
            it.wait(2 * it.machine.bounds.hold_s)
            assert not it.machine.admission.visitors.count_new(preflights=False), "a client waits in vain"
            it.others = True
            it.grant()
        elif it.connecting and deed < 0.4:
            it.connect(dice.choice(it.connecting), refused=dice.random() < 0.6)
        elif slow and deed < 0.5:
            it.wait(UNREACHABLE_S)
        elif it.exchanges:
            it.piece(dice.choice(it.exchanges))
    it.lock("HELD")
    for _ in range(400):
        if all(client.ended for client, _ in clients):
            break
        it.run()
        it.wait(0.1)
    for client, body in clients:
        if client.number in left or POISON in client.why or ENDED in client.why:
            continue
        said = engine.answer("POST", b"/v1/completions", [(b"x-request-id", f"r{client.number}".encode())],
                             client.kind.body)  # fmt: skip
        like = SimClient(client.number, client.kind, body=said.body)
        assert client.outcome is e.Outcome.ANSWERED, (seed, body, client.why)
        if body["stream"]:
            assert _by_choice(client) == _by_choice(like), (seed, body)
        else:
            assert json.loads(client.body)["choices"] == json.loads(said.body)["choices"]


def break_within_a_piece(it: World, dice: random.Random) -> None:
    exchange = dice.choice(it.exchanges)
    if exchange.at < len(exchange.said.pieces):
        it.piece(exchange, dice.randrange(len(exchange.said.pieces[exchange.at])))


def _by_choice(client: SimClient) -> dict[int, str]:
    """Text and reason to end."""
    found: dict[int, str] = {}
    for event in client.events:
        for choice in event["choices"] if isinstance(event, dict) else ():
            text = choice["text"] + (f"|{choice['finish_reason']}" if choice["finish_reason"] else "")
            found[choice["index"]] = found.get(choice["index"], "") + text
    return found


BREAKS: list[Callable[[Grant], object]] = [
    lambda grant: grant.unproven.setdefault(2),
    lambda grant: grant.sent.add(2),
    lambda grant: grant.rereading.setdefault(2, 7),
]


@pytest.mark.parametrize("break_it", BREAKS, ids=["unproven", "sent", "rereading"])
def test_a_request_that_is_with_no_grant_and_known_all_the_same_is_noticed(break_it: Callable[[Grant], object]) -> None:
    grant = Grant(3, "a")
    grant.admit(1, 0.0, 100)
    grant.sent.add(1)
    assert (grant.check(1), grant.check(2), grant.check(None)) == ("", "", "")
    break_it(grant)
    assert grant.check(1) == ""  # one request's event: the others are looked at with the lock's, and with the clock's
    assert "requests of token 3" in grant.check(2)
    assert "requests of token 3" in grant.check(None)


def test_a_client_that_reads_again_has_got_nothing_yet() -> None:
    grant = Grant(3, "a")
    grant.admit(1, 0.0, 100)
    del grant.unproven[1]
    assert "requests of token 3" in grant.check(1) and "requests of token 3" in grant.check(None)


# -- a 503 of an engine that serves, as far as the lock knows ---------------------------------------------------------


def says_503(it: World, client: SimClient) -> None:
    """To all that it was asked, and the lock says nothing new for so long that this would be its word."""
    said = b'{"error": {"message": "the engine is draining", "code": 503}}'
    for exchange in it.exchanges:
        assert exchange.ask.request == client.number
        headers = [(b"content-type", b"application/json")]
        it.feed(e.Heard(client.number, exchange.ask.leg, e.Head(503, headers, len(said)), said, True))
        it.engines[exchange.ask.token].exchanges.pop((client.number, exchange.ask.leg), None)
    it.wait(2 * it.machine.bounds.hold_s)


@pytest.mark.parametrize("opened", [False, True])
def test_an_engine_that_says_503_is_asked_once_more(opened: bool) -> None:
    """Its lock server is new, and may not have heard yet that this engine stops to serve, or that it goes on."""
    it = world()
    client = it.arrive(COMPLETION, BODY)
    if opened:
        step(it, client, 4)
        followed(it)
    says_503(it, client)
    assert not client.ended and len(it.exchanges) == 1, "it is asked again"
    it.run()
    assert answered(client) and client.events == undisturbed(COMPLETION, BODY)[0].events


@pytest.mark.parametrize("opened", [False, True])
def test_a_503_that_is_said_again_is_the_engines_word(opened: bool) -> None:
    it = world()
    client = it.arrive(COMPLETION, BODY)
    if opened:
        step(it, client, 4)
        followed(it)
    says_503(it, client)
    says_503(it, client)
    assert client.ended and not it.exchanges
    assert opened or (client.status, client.outcome) == (503, e.Outcome.ANSWERED)


def test_another_engines_503_is_a_first_one() -> None:
    it = world()
    client = it.arrive(COMPLETION, BODY)
    says_503(it, client)
    followed(it)
    says_503(it, client)
    assert not client.ended
    it.run()
    assert answered(client)


def test_what_may_change_something_isnt_asked_twice_for_a_503() -> None:
    it = world()
    client = it.arrive("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "b"})
    says_503(it, client)
    assert (client.status, client.outcome) == (503, e.Outcome.ANSWERED) and not it.exchanges


@pytest.mark.parametrize("status", [500, 502])
def test_other_errors_are_an_engines_word_at_once(status: int) -> None:
    it = world()
    client = it.arrive(COMPLETION, BODY)
    (exchange,) = it.exchanges
    it.feed(e.Heard(client.number, exchange.ask.leg, e.Head(status, [], 0), b"", True))
    it.engines[1].exchanges.clear()
    it.wait(2 * it.machine.bounds.hold_s)
    assert client.status == status and not it.exchanges
