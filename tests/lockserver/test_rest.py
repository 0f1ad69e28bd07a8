"""A lock at rest (rule 14 of `machine.py`): `Drain -> Drained -> GiveBack -> Release`, every way in which that is
called off or fails, and what a new server makes of it."""

from collections.abc import Callable

import pytest

from evidence.rules.record import Processes
from lockserver.rules import messages as m
from lockserver.rules.messages import ACTIVE
from lockserver.rules.record import Record, encode
from tests.lockserver.harness import BOOT, Disk, Harness
from tests.lockserver.test_switchover import Change


class Night(Change):
    """A holder `a`, waiters `b` and `c`, and a caller who wants the lock at rest."""

    def __init__(self, *, ask: bool = True, drain_timeout_s: float = 30.0) -> None:
        super().__init__(ask=False)
        self.b.wakes = self.c.wakes = True
        if ask:
            self.says(m.Sleep(drain_timeout_s=drain_timeout_s, why="another model's turn"))

    def says(self, message: m.ClientMessage) -> None:
        self.harness.receive(self.asker, message)

    def asleep(self) -> "Night":
        self.drained()
        assert self.a.heard(m.GiveBack)
        self.a.gives_back()
        return self

    def wake(self) -> None:
        self.says(m.Wake())

    @property
    def rests(self) -> bool:
        self.harness.advance(30)
        status, record = self.harness.status, self.harness.record
        assert status.resting is bool(status.resting_why) is (record is not None and bool(record.resting))
        held = [engine.engine_id for engine in self.harness.engines if engine.holds]
        assert not (status.resting and held), held
        return status.resting and status.state == "FREE" and status.holder is None


@pytest.fixture
def night() -> Night:
    return Night()


# -- the way -----------------------------------------------------------------------------------------------------------


def test_from_drain_to_rest_and_the_engine_lives_on_and_waits_behind_the_others(night: Night) -> None:
    first = night.a.token
    assert night.harness.status.switchover == "draining: a -> rest" and not night.a.heard(m.GiveBack)
    night.drained()
    assert night.harness.status.plan is not None
    assert (night.harness.status.plan.step, night.harness.status.plan.to) == ("giving back", "")
    night.a.gives_back()
    assert night.steps == ["draining", "giving back", "asleep"] and night.last.done and night.last.ok
    night.a.acquire()
    assert night.rests and night.harness.status.resting_why == "another model's turn"
    assert not night.a.heard(m.Exit) and night.a.alive and night.a.connected
    assert [waiter.engine_id for waiter in night.harness.status.waiters] == ["b", "c", "a"]
    night.wake()
    assert night.b.token > first and night.last.phase == "waked" and not night.harness.status.resting


def test_no_waiter_is_granted_at_rest_and_after_the_wake_each_looks_at_its_engine_first(night: Night) -> None:
    night.asleep()
    night.b.wakes = None
    assert night.rests and not night.b.heard(m.Prepare)
    night.wake()
    assert night.b.heard(m.Prepare) and not night.b.holds
    night.b.looks()
    assert night.b.holds


def test_what_was_given_back_unasked_is_at_rest_too_and_says_why() -> None:
    night = Night(ask=False)
    night.a.gives_back("no room for it")
    assert night.rests and night.harness.status.resting_why == "no room for it"


@pytest.mark.parametrize("token", [-1, 1], ids=["older", "newer"])
def test_only_the_grant_that_is_meant_is_given_back_and_only_by_its_holder(token: int) -> None:
    night = Night(ask=False)
    night.a.says(m.Release(lock=ACTIVE, token=night.a.token + token))
    night.b.says(m.Release(lock=ACTIVE, token=night.a.token))
    assert night.harness.state == "HELD" and night.a.connected and night.b.connected


# -- without a holder --------------------------------------------------------------------------------------------------


def test_without_a_holder_it_is_at_rest_at_once_and_on_disk_before_the_word() -> None:
    harness = Harness().start(settle_s=0.1)
    asker = harness.observer()
    harness.advance(1)
    harness.disk = Disk.SLOW
    harness.receive(asker, m.Sleep())
    assert not harness.heard(asker, m.SwitchoverStep)
    while harness.writes:
        harness.write_lands()
    assert [step.phase for step in harness.heard(asker, m.SwitchoverStep)] == ["asleep"]
    harness.disk = Disk.WORKS
    a = harness.waiter("a")
    harness.advance(10)
    assert harness.state == "FREE" and not a.holds


def test_while_a_holder_is_proven_gone_it_may_be_put_to_rest_and_no_waiter_follows(night: Night) -> None:
    other = Night(ask=False)
    stray = other.a.fork()
    other.harness.kill(other.a.main)
    other.says(m.Sleep())
    assert other.last.phase == "asleep" and other.harness.state == "FENCING"
    other.harness.kill(stray)
    assert other.rests


def test_a_grant_that_is_being_written_is_not_called_back() -> None:
    harness = Harness().start(settle_s=0.1)
    asker = harness.observer()
    harness.advance(1)
    harness.disk = Disk.SLOW
    a = harness.waiter("a")
    harness.receive(asker, m.Sleep())
    assert [step.phase for step in harness.heard(asker, m.SwitchoverStep)] == ["refused"]
    harness.write_lands()
    assert a.holds


@pytest.mark.parametrize("message", [m.Sleep(), m.Switchover()], ids=["a sleep", "a switchover"])
def test_refused_while_another_is_under_way(night: Night, message: m.ClientMessage) -> None:
    second = night.harness.observer()
    night.harness.receive(second, message)
    step = night.harness.last(second, m.SwitchoverStep)
    assert step is not None and step.phase == "refused" and "a sleep is under way" in step.detail


# -- called off, too late, and failed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "off",
    [
        lambda night: night.wake(),
        lambda night: night.says(m.AbortSwitchover()),
        lambda night: night.harness.hangs_up(night.harness.conns[night.asker]),
        lambda night: night.drained(ok=False, why="stuck"),
        lambda night: night.harness.advance(33),
    ],
    ids=["waked", "called off", "the asker has left", "it can't drain", "it takes too long"],
)
def test_up_to_give_back_it_is_off_and_the_holder_serves_on(night: Night, off: Callable[[Night], object]) -> None:
    off(night)
    assert night.serves_on() and not night.harness.status.resting and not night.a.heard(m.GiveBack)


def test_after_give_back_there_is_no_way_back_but_a_client_that_wakes_it_finds_it_waked(night: Night) -> None:
    night.drained()
    night.says(m.AbortSwitchover())
    assert night.last.phase == "refused" and not night.a.heard(m.Resume)
    night.wake()
    assert night.last.phase == "waked"
    night.a.gives_back()
    assert night.b.holds and not night.harness.status.resting


def test_a_holder_that_does_not_give_back_is_killed_and_fenced_and_the_lock_is_at_rest(night: Night) -> None:
    stray = night.a.fork()
    night.drained()
    night.harness.advance(9.9)
    assert night.a.alive and night.harness.state == "HELD"
    night.harness.advance(0.2)
    assert not night.a.main.alive and night.harness.shouted("was told to give the lock back and has not")
    assert night.harness.state == "FENCING" and night.harness.status.resting
    night.harness.kill(stray)
    assert night.rests


def test_a_death_after_give_back_leaves_it_at_rest_and_one_before_does_not(night: Night) -> None:
    night.drained()
    night.harness.kill(night.a.main)
    assert night.last.phase == "asleep" and night.rests
    other = Night()
    other.harness.kill(other.a.main)
    assert other.last.phase == "died" and other.b.holds and not other.harness.status.resting


def test_a_death_at_rest_is_a_waiters_and_needs_no_proof(night: Night) -> None:
    night.asleep()
    night.a.acquire()
    night.harness.kill(night.a.main)
    assert night.rests
    night.wake()
    assert night.b.holds


def test_a_holder_that_gives_back_in_a_switchover_ends_it(night: Night) -> None:
    other = Change()
    other.a.gives_back()
    assert other.last.phase == "died" and other.last.done and other.harness.status.resting


# -- a new server ------------------------------------------------------------------------------------------------------


def test_rest_outlives_the_server_and_so_does_a_wake(night: Night) -> None:
    night.asleep()
    night.harness.restart()
    night.b.register().acquire()
    night.a.register()
    assert night.rests
    night.asker = night.harness.observer()
    night.wake()
    assert night.b.holds
    night.harness.restart()
    night.b.register()
    assert night.harness.state == "HELD" and not night.harness.status.resting


@pytest.mark.parametrize("disk", [Disk.CRASH_BEFORE, Disk.CRASH_AFTER], ids=["before the write", "after it"])
def test_a_server_that_dies_as_it_hears_of_it_leaves_the_word_to_the_next_hello(night: Night, disk: Disk) -> None:
    first = night.a.token
    night.drained()
    night.harness.disk = disk
    night.a.gives_back()
    night.harness.disk = Disk.WORKS
    night.harness.start()
    night.a.register().acquire()
    night.b.register().acquire()
    night.c.register()
    assert night.rests and night.harness.noted("given_back") is True
    night.asker = night.harness.observer()
    night.wake()
    assert night.a.token > first


@pytest.mark.parametrize("seen", [True, False], ids=["and the server saw that", "and the server saw nothing yet"])
def test_what_was_given_back_while_the_connection_was_broken_is_heard_when_it_is_back(night: Night, seen: bool) -> None:
    night.drained()
    if seen:
        night.harness.hangs_up(night.a.main)
    else:
        del night.harness.conns[night.a.conn]
    night.a.gives_back()
    night.a.register().acquire()
    assert night.rests and night.last.phase == "asleep" and night.harness.status.plan is None


def test_what_was_given_back_once_is_not_put_to_rest_again_by_a_later_hello(night: Night) -> None:
    night.asleep()
    night.b.says(m.Ready(ready=False))
    night.c.says(m.Ready(ready=False))
    night.wake()
    night.harness.hangs_up(night.a.main)
    night.a.register().acquire()
    assert night.a.holds


def test_an_older_file_that_names_an_earlier_grant_of_the_same_engine_ends_no_healthy_holder() -> None:
    harness = Harness().start()
    a, asker = harness.holder("a"), harness.observer()
    older = harness.file
    a.gives_back()
    a.acquire()
    harness.receive(asker, m.Wake())
    assert a.holds
    harness.crash().file = older
    harness.start()
    a.register()
    assert not a.refused and harness.state == "HELD" and harness.status.token == a.token
    a.token += 1
    a.register()
    assert a.refused, "a server that is in no doubt knows better"


def test_a_holder_that_comes_back_ends_the_rest_that_was_asked_for_meanwhile() -> None:
    night = Night(ask=False)
    night.harness.hangs_up(night.a.main)
    night.says(m.Sleep())
    assert night.harness.status.resting
    night.a.register()
    assert night.harness.state == "HELD" and not night.harness.status.resting


@pytest.mark.parametrize(("file", "rests"), [(False, True), (True, False)], ids=["no file", "a file"])
def test_one_of_many_locks_is_at_rest_when_it_is_new_and_as_its_file_says_later(file: bool, rests: bool) -> None:
    harness = Harness(at_rest=True)
    harness.file = encode(Record(Processes(BOOT), 5)) if file else None
    a = harness.start().waiter("a")
    harness.advance(5)
    assert harness.status.resting is rests and a.holds is not rests


# -- what the next one is told -----------------------------------------------------------------------------------------


def test_memory_that_was_given_back_must_be_seen_to_be_free_and_then_the_grant_is_proven() -> None:
    harness = Harness(memory={"gpu": (100, 100)}).start()
    a, asker = harness.engine("a").register().acquire(gpu=60), harness.observer()
    harness.advance(5)
    assert a.holds
    harness.memory = {"gpu": (40, 100)}
    b = harness.waiter("b", gpu=60)
    a.gives_back()
    harness.receive(asker, m.Wake())
    harness.advance(1)
    assert not b.holds and "needs 60 bytes" in harness.waiting_for
    harness.memory = {"gpu": (100, 100)}
    harness.advance(1)
    assert b.holds and b.proven


def test_names_that_were_given_back_cost_no_settling_time(night: Night) -> None:
    night.harness.restart()
    night.a.register()
    night.b.register().acquire()
    night.c.register()
    night.asker = night.harness.observer()
    night.a.gives_back()
    night.wake()
    night.harness.advance(0.2)
    assert night.b.holds
