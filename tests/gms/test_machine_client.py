"""A process's side of GMS, one promise a test: what it says, what it keeps, and what it tells its program."""

from typing import Literal

import pytest

from gms.layout import structure_hash
from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.client_machine import GRACE_S, RETRY_MOST_S, TURNED_AWAY_S
from gms.rules.shared_client import Doing, SharedClient
from tests.gms.machine_shell import document

DOCUMENT = document(10, 20)
HASH = structure_hash(DOCUMENT)
LAYOUT = m.Opened(mode="ro", generation=5, hash=HASH, sizes=[10, 20], layout=DOCUMENT)


class Program:
    """Its shell, which answers at once."""

    def __init__(self, batch: int = 253) -> None:
        self.machine = SharedClient("engine", 7, batch=batch)
        self.now = 0.0
        self.said: list[m.ClientMessage] = []
        self.told: list[c.Effect] = []
        self.kept: set[tuple[int, int]] = set()
        self.brought: list[tuple[int, int]] = []
        self.feed(c.Tick())

    def feed(self, event: c.Event) -> list[c.Effect]:
        effects = self.machine.handle(event, self.now)
        for effect in effects:
            if isinstance(effect, c.Say):
                self.said.append(effect.message)
                self.brought += [(effect.first, effect.count)] if effect.count else []
            elif isinstance(effect, c.LetGo):
                self.feed(m.Dropped(effect.generation))
            self.told.append(effect)
        assert self.machine.deadline > self.now
        return effects

    def hears(self, *messages: m.ServerMessage) -> list[c.Effect]:
        return [effect for message in messages for effect in self.feed(c.Heard(message))]

    def comes_in(self, generation: int = 0, name: str = "", *, recovering: bool = False) -> None:
        self.feed(c.Connected())
        self.hears(
            m.Welcome(
                server_incarnation="s",
                device="gpu",
                granularity=1,
                generation=generation,
                hash=name,
                recovering=recovering,
            )
        )

    def later(self, seconds: float) -> list[c.Effect]:
        until, effects = self.now + seconds, []
        while self.machine.deadline <= until:
            self.now = self.machine.deadline
            effects += self.feed(c.Tick())
            if any(isinstance(effect, c.Connect) for effect in effects[-2:]):
                effects += self.feed(c.Disconnected())
        self.now = until
        return effects

    @property
    def last_said(self) -> m.ClientMessage | None:
        return self.said[-1]

    def last(self, kind: type) -> c.Effect:
        return [effect for effect in self.told if type(effect) is kind][-1]

    def count(self, kind: type) -> int:
        return sum(type(effect) is kind for effect in self.told)

    def reads(self) -> None:
        self.comes_in()
        self.feed(m.Open("ro"))
        self.hears(LAYOUT, m.Slabs(generation=5, first=0, fds=2))
        assert self.machine.doing is Doing.READING

    def sleeps(self) -> None:
        self.reads()
        self.feed(c.Sleep())
        self.hears(m.Withdrawn())

    def writes(self) -> None:
        self.comes_in()
        self.feed(m.Open("rw"))
        self.hears(m.Opened(mode="rw", generation=6))
        for slab, size in enumerate((10, 20)):
            self.feed(m.Create(size))
            self.hears(m.Created(slab=slab, size=size, fds=1))


def test_a_reader_has_its_layout_once_all_slabs_are_there() -> None:
    program = Program()
    program.comes_in()
    program.feed(m.Open("ro", 3.0))
    program.hears(LAYOUT, m.Slabs(generation=5, first=0, fds=1))
    assert program.count(c.Got) == 0
    program.hears(m.Slabs(generation=5, first=1, fds=1))
    assert program.last(c.Got) == c.Got("ro", 5, HASH)
    assert [effect for effect in program.told if isinstance(effect, c.Keep)] == [c.Keep(5, 0), c.Keep(5, 1)]


def test_a_sleeper_says_what_it_keeps_and_wakes_with_it() -> None:
    program = Program()
    program.sleeps()
    assert m.Withdraw(keeps=5) in program.said
    program.feed(m.Open("ro", 3.0, expect=HASH))
    assert program.last_said == m.Open(mode="ro", timeout_s=3.0, have=5, expect=HASH)
    program.hears(m.Opened(mode="ro", generation=5, hash=HASH))
    got = program.last(c.Got)
    assert got == c.Got("ro", 5, HASH) and program.count(c.Keep) == 1


def test_a_reader_reads_on_while_its_server_is_away_and_says_so_when_it_is_back() -> None:
    program = Program()
    program.reads()
    told = len(program.told)
    program.feed(c.Disconnected())
    program.later(60.0)
    assert program.machine.doing is Doing.READING
    program.comes_in(5, HASH, recovering=True)
    back = program.said[-1]
    assert isinstance(back, m.HandBack) and back.reading and back.layout == DOCUMENT
    assert program.brought == [(0, 2)]
    program.hears(m.HandedBack(generation=5, reading=True))
    quiet = (c.Connect, c.Say, m.Welcome, m.Changed)
    assert not [effect for effect in program.told[told:] if not isinstance(effect, quiet)], "it went unnoticed"


def test_to_a_sleeper_what_a_new_server_waits_for_has_not_gone_and_what_others_have_is_not_there_yet() -> None:
    """Else it says of itself that it can't wake, and is passed over if the other is killed at that moment."""
    for name, seen in ((HASH, m.Changed(5, HASH)), ("f" * len(HASH), m.Changed(0, ""))):
        program = Program()
        program.sleeps()
        program.feed(c.Disconnected())
        program.later(1.0)
        program.comes_in(5, name, recovering=True)
        assert program.last(m.Changed) == seen


def test_what_it_brings_back_comes_in_batches() -> None:
    program = Program(batch=1)
    program.sleeps()
    program.feed(c.Disconnected())
    program.later(1.0)
    program.comes_in(5, HASH, recovering=True)
    batches = [message for message in program.said if isinstance(message, m.HandBack)]
    assert [(batch.first, bool(batch.layout)) for batch in batches] == [(0, True), (1, False)]
    assert program.brought == [(0, 1), (1, 1)]


def test_to_a_server_that_waits_for_nothing_it_says_only_what_it_has() -> None:
    program = Program()
    program.reads()
    program.feed(c.Disconnected())
    program.comes_in(5, HASH)
    back = program.said[-1]
    assert isinstance(back, m.HandBack) and back.reading and not back.layout and not program.brought


def test_a_reader_whose_layout_is_no_more_is_told_and_lets_go_once_it_has_unmapped() -> None:
    program = Program()
    program.reads()
    program.feed(c.Disconnected())
    program.comes_in(9, "f" * 64)
    program.hears(m.Refused(why="no more", reason="stale"), m.Drop(generation=5))
    assert program.last(c.Stale) == c.Stale(5, "no more")
    assert program.count(c.LetGo) == 0, "it may still be reading"
    program.feed(m.Open("ro"))
    refused = program.last(c.No)
    assert isinstance(refused, c.No) and refused.reason == "stale"
    program.feed(c.Release())
    assert program.last(c.LetGo) == c.LetGo(5) and m.Dropped(generation=5) in program.said


def test_a_sleeper_that_is_told_to_drop_drops_and_says_so() -> None:
    program = Program()
    program.sleeps()
    program.hears(m.Drop(generation=5))
    assert program.last(c.LetGo) == c.LetGo(5) and m.Dropped(generation=5) in program.said
    program.feed(m.Open("ro", 3.0, expect=HASH))
    assert program.last_said == m.Open(mode="ro", timeout_s=3.0, expect=HASH)


def test_who_wakes_on_a_new_layout_lets_the_old_one_go() -> None:
    program = Program()
    program.sleeps()
    program.feed(m.Open("ro", 3.0, expect=HASH))
    new = m.Opened(mode="ro", generation=8, hash=HASH, sizes=[10, 20], layout=DOCUMENT)
    program.hears(new, m.Slabs(generation=8, first=0, fds=2))
    assert program.last(c.LetGo) == c.LetGo(5) and program.last(c.Got) == c.Got("ro", 8, HASH)


def test_a_writer_whose_server_is_gone_has_lost_its_work() -> None:
    program = Program()
    program.writes()
    program.feed(c.Disconnected())
    assert program.count(c.Lost) == 1 and program.last(c.LetGo) == c.LetGo(6)
    assert program.machine.doing is Doing.NOTHING


def test_a_writer_whose_commit_was_not_answered_comes_back_with_it() -> None:
    program = Program()
    program.writes()
    program.feed(c.Publish(DOCUMENT, (10, 20)))
    program.feed(c.Disconnected())
    program.later(1.0)
    assert program.count(c.Lost) == 0
    program.comes_in(6, HASH, recovering=True)
    back = program.said[-1]
    assert isinstance(back, m.HandBack) and back.reading and back.layout == DOCUMENT
    program.hears(m.HandedBack(generation=6, reading=True))
    assert program.last(m.Committed) == m.Committed(6, HASH)


def test_a_writer_whose_commit_did_not_reach_the_disk_has_lost_its_work() -> None:
    program = Program()
    program.writes()
    program.feed(c.Publish(DOCUMENT, (10, 20)))
    program.feed(c.Disconnected())
    program.comes_in(5, HASH, recovering=True)
    assert program.count(c.Lost) == 1, "the same structure under another number is another's"


def test_a_commit_that_is_refused_can_be_tried_again() -> None:
    program = Program()
    program.writes()
    program.feed(c.Publish(DOCUMENT, (10, 20)))
    program.hears(m.Refused(why="full", reason="disk"))
    program.feed(c.Publish(DOCUMENT, (10, 20)))
    program.hears(m.Committed(generation=6, hash=HASH))
    assert program.count(m.Committed) == 1


def test_who_waits_asks_the_next_server_again_for_the_time_that_is_left() -> None:
    program = Program()
    program.comes_in()
    program.feed(m.Open("ro", 10.0))
    program.feed(c.Disconnected())
    program.now = 4.0
    program.comes_in()
    assert program.last_said == m.Open(mode="ro", timeout_s=6.0)


def test_a_wish_ends_in_time_with_no_server_at_all() -> None:
    program = Program()
    program.feed(c.Disconnected())
    program.feed(m.Open("ro", 3.0))
    program.later(2.9)
    assert program.count(c.No) == 0
    program.later(0.2)
    told = program.last(c.No)
    assert isinstance(told, c.No) and told.reason == "time_out" and program.machine.doing is Doing.NOTHING


def test_a_wish_ends_in_time_though_the_server_does_not_answer() -> None:
    program = Program()
    program.comes_in()
    program.feed(m.Open("ro", 3.0))
    program.later(3.0 + GRACE_S + 0.1)
    assert program.count(c.No) == 1 and m.Withdraw() in program.said
    program.hears(LAYOUT, m.Slabs(generation=5, first=0, fds=2))
    assert program.count(c.Got) == 0 and program.count(c.Keep) == 0, "it was under way"
    program.hears(m.Withdrawn())
    program.feed(m.Open("ro"))
    program.hears(LAYOUT, m.Slabs(generation=5, first=0, fds=2))
    assert program.count(c.Got) == 1


def test_the_answer_to_a_wish_that_was_given_up_is_none_to_the_next() -> None:
    program = Program()
    program.comes_in()
    program.feed(m.Open("ro", 3.0))
    program.later(3.0 + GRACE_S + 0.1)
    program.feed(m.Open("ro"))
    program.hears(LAYOUT, m.Slabs(generation=5, first=0, fds=2))
    assert program.count(c.Got) == 0 and not isinstance(program.last_said, m.Open), "it was under way"
    program.hears(m.Withdrawn())
    assert isinstance(program.last_said, m.Open)
    program.hears(LAYOUT, m.Slabs(generation=5, first=0, fds=2))
    assert program.count(c.Got) == 1


def test_slabs_of_a_layout_that_did_not_arrive_whole_are_let_go_of() -> None:
    program = Program()
    program.comes_in()
    program.feed(m.Open("ro"))
    program.hears(LAYOUT, m.Slabs(generation=5, first=0, fds=1))
    program.feed(c.Disconnected())
    assert program.last(c.LetGo) == c.LetGo(5)


def test_a_writer_that_gives_up_leaves_nothing_here_and_says_so() -> None:
    program = Program()
    program.writes()
    program.feed(c.Release())
    assert program.last(c.LetGo) == c.LetGo(6) and m.Withdraw() in program.said


def test_who_sleeps_while_it_is_coming_back_is_a_reader_no_more() -> None:
    program = Program()
    program.reads()
    program.feed(c.Disconnected())
    program.comes_in(5, HASH, recovering=True)
    program.feed(c.Sleep())
    assert not isinstance(program.said[-1], m.Withdraw)
    program.hears(m.HandedBack(generation=5, reading=True))
    assert m.Withdraw(keeps=5) in program.said


def test_a_mistake_ends_what_it_was_about_and_not_the_process() -> None:
    program = Program()
    program.comes_in()
    program.feed(m.Open("ro"))
    program.hears(m.Problem(why="no such mode"))
    told = program.last(c.No)
    assert isinstance(told, c.No) and told.reason == "problem"
    program.feed(c.Disconnected())
    program.comes_in()
    program.feed(m.Open("ro"))
    assert isinstance(program.said[-1], m.Open)


def test_what_is_out_of_turn_is_refused_here_already() -> None:
    program = Program()
    program.reads()
    for event in (m.Create(5), c.Publish(DOCUMENT, (10, 20)), m.Open("ro")):
        program.feed(event)
        told = program.last(c.No)
        assert isinstance(told, c.No) and told.reason == "not_now"
    assert program.machine.doing is Doing.READING


def test_what_a_server_will_never_take_back_is_stale_and_not_tried_for_ever() -> None:
    program = Program()
    program.sleeps()
    program.feed(c.Disconnected())
    program.comes_in(5, HASH, recovering=True)
    program.hears(m.Problem(why="HandBack: slab 0: no memory of this device"))
    assert program.count(c.Stale) == 1 and program.last(c.LetGo) == c.LetGo(5)
    program.feed(c.Disconnected())
    program.comes_in(5, HASH, recovering=True)
    assert sum(isinstance(message, m.HandBack) for message in program.said) == 1


# -- a server that won't have us ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("about", ["protocol", "place"])
def test_who_is_turned_away_reads_on_and_comes_again_a_second_later(about: Literal["protocol", "place"]) -> None:
    program = Program()
    program.reads()
    program.feed(c.Disconnected())
    program.later(RETRY_MOST_S)
    program.feed(c.Connected())
    program.hears(m.Problem(why="not you", about=about))
    assert program.last(m.Problem) == m.Problem("not you", about)
    program.feed(c.Disconnected())
    assert program.machine.doing is Doing.READING and program.machine.kept is not None
    assert not program.count(c.Stale) and not program.count(c.LetGo)
    connects = program.count(c.Connect)
    program.later(TURNED_AWAY_S - 0.1)
    assert program.count(c.Connect) == connects
    program.later(0.2)
    assert program.count(c.Connect) == connects + 1


def test_a_wake_under_a_server_that_wont_have_us_fails_at_once_and_keeps_what_there_is() -> None:
    program = Program()
    program.sleeps()
    program.feed(c.Disconnected())
    program.later(RETRY_MOST_S)
    program.feed(m.Open("ro", 30.0, expect=HASH))
    program.feed(c.Connected())
    program.hears(m.Problem(why="not you", about="protocol"))
    assert program.last(c.No) == c.No("not you", "problem")
    assert program.machine.kept is not None and program.machine.doing is Doing.NOTHING


def test_a_wake_that_is_not_wanted_any_more_keeps_what_there_is() -> None:
    program = Program()
    program.sleeps()
    program.feed(m.Open("ro", 30.0, expect=HASH))
    program.feed(c.Sleep())
    assert program.last_said == m.Withdraw(keeps=5) and program.machine.kept is not None
    program.hears(m.Opened(mode="ro", generation=5, hash=HASH), m.Withdrawn())
    assert program.machine.doing is Doing.NOTHING and program.count(c.Got) == 1


def test_a_request_of_no_time_at_all_is_asked_all_the_same() -> None:
    program = Program()
    program.comes_in()
    program.feed(m.Open("ro", 0.0))
    assert program.last_said == m.Open(mode="ro", timeout_s=0.0)
    program.hears(m.Refused(why="nothing is committed", reason="time_out"))
    assert program.last(c.No) == c.No("nothing is committed", "time_out")
