"""Life locks of those that haven't come: rule E9."""

from evidence.rules.events import ProbeStrangers, StrangersProbed, Unlink
from evidence.rules.record import Processes
from evidence.rules.strangers import LOOK_EVERY_S
from tests.evidence.parts import NAME, ON_FILE, Known, peer

SETTLE_S = 2.0


def test_what_is_written_is_what_the_next_one_finds() -> None:
    known = Known()
    known.bind(known.from_file(look_up=False))
    known.incarnations.pending_unlinks["x.1"] = 0
    record = known.evidence.record()
    assert record == Processes("", [ON_FILE], ["x.1"])
    after = Known()
    assert after.evidence.begin(record) and after.incarnations.known[NAME].members[1].mapped
    assert after.incarnations.pending_unlinks == {"x.1": 0} and after.evidence.record().known == [], "not bound yet"


def test_only_the_bound_are_remembered_and_of_them_the_living_and_the_main_process() -> None:
    known = Known()
    who = known.a(members=3)
    known.registered("b", 9)
    known.bind(who)
    known.incarnations.died(1)
    known.incarnations.died(2)
    (kept,) = known.evidence.record().known
    assert kept.name == NAME and [member.number for member in kept.members] == [1, 3]


def test_what_was_of_an_earlier_boot_has_ended() -> None:
    known = Known()
    assert not known.evidence.begin(Processes("another boot", [ON_FILE], ["x.1"]))
    assert not known.incarnations.known and known.incarnations.pending_unlinks == {NAME: 0, "x.1": 0}


def test_a_look_is_wanted_one_at_a_time_and_again_when_it_is_too_old() -> None:
    known = Known()
    strangers = known.evidence.strangers
    assert strangers.look(0.0) is None and strangers.wants_look(0.0)
    strangers.ask()
    assert strangers.look(0.0) is None and not strangers.wants_look(0.0)
    strangers.probed(StrangersProbed((), ()), keep=True)
    assert strangers.look(0.0) is not None
    known.at(LOOK_EVERY_S)
    assert strangers.look(LOOK_EVERY_S) is None and strangers.wants_look(LOOK_EVERY_S)
    strangers.ask()
    assert strangers.look(LOOK_EVERY_S) is None, "the look before proves nothing while the next one is under way"
    strangers.probed(StrangersProbed(("c.1",), ()), keep=True)
    assert strangers.look(9.0) == StrangersProbed(("c.1",), ()), "one that is there is said, however old the look"


def test_one_that_has_let_go_since_the_last_look_may_be_dying() -> None:
    known = Known()
    strangers = known.evidence.strangers
    strangers.probed(StrangersProbed(("c.1",), ()), keep=True)
    assert strangers.settled_at() == SETTLE_S
    known.at(LOOK_EVERY_S)
    strangers.probed(StrangersProbed((), ("c.1",)), keep=True)
    assert strangers.settled_at() == LOOK_EVERY_S + SETTLE_S, "it may have done so just before this look"
    known.at(1.0)
    strangers.probed(StrangersProbed((), ("c.1",)), keep=True)
    assert strangers.settled_at() == LOOK_EVERY_S + SETTLE_S


def test_life_files_that_cannot_be_read_may_be_of_a_stranger() -> None:
    known = Known()
    known.evidence.strangers.probed(StrangersProbed((), (), "Permission denied"), keep=True)
    known.at(1.0)
    known.evidence.strangers.probed(StrangersProbed((), ()), keep=True)
    assert known.evidence.strangers.settled_at() == 1.0 + SETTLE_S


def test_one_that_was_heard_of_and_is_alive_is_unheard_until_its_main_process_comes() -> None:
    known = Known()
    who = known.incarnations.hear_of("c", "0" * 8)
    assert not known.evidence.strangers.unheard()
    known.incarnations.enter(who, peer(3), 3, 2)
    assert "a process of c is alive" in known.evidence.strangers.unheard()[0]
    known.incarnations.enter_main(who, peer(4), 4, 50)
    assert not known.evidence.strangers.unheard()


def test_which_have_registered_are_no_strangers_and_which_are_only_awaited_are_unless_bound() -> None:
    known = Known()
    known.registered("b", 2)
    known.incarnations.hear_of("c", "0" * 8)
    known.evidence.strangers.ask()
    known.bind(known.incarnations.known["c.00000000"])
    known.evidence.strangers.ask()
    assert known.asked(ProbeStrangers) == [
        ProbeStrangers(("b.00000000",)),
        ProbeStrangers(("b.00000000", "c.00000000")),
    ]


def test_what_they_left_behind_goes_at_once_or_when_it_is_settled_that_none_is_awaited() -> None:
    known = Known()
    known.from_file(look_up=False)
    known.incarnations.pending_unlinks["x.1"] = 0
    known.evidence.strangers.probed(StrangersProbed((), ("y.1", NAME, "x.1")), keep=False)
    assert known.asked(Unlink) == [Unlink("y.1")]
    known.evidence.strangers.probed(StrangersProbed((), ("z.1",)), keep=True)
    known.evidence.strangers.settle()
    assert known.asked(Unlink) == [Unlink("y.1")] and known.incarnations.pending_unlinks == {"x.1": 0, "z.1": 0}
