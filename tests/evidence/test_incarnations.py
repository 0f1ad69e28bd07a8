"""One incarnation, and all that a server knows, built alone: who belongs to which, and how their ends are watched."""

from collections.abc import Callable

import pytest

from evidence.rules import events as e
from evidence.rules.events import ForgetProcess, Kill, LookedUp, LookUp, ProbeLife, Unlink, WatchDeath
from evidence.rules.incarnation import MAIN, PROBE_ALIVE_MOST_S, PROBE_FIRST_S, PROBE_MOST_S, Incarnation, Life, Stage
from evidence.rules.incarnations import BOTH_BACK_S, MOST_MEMBERS, MOST_REMEMBERED, MOST_UNLINKS
from evidence.rules.proof import all_ended, life_lock_tells
from evidence.rules.record import Known as OnFile
from evidence.rules.record import Member, Processes
from tests.evidence.parts import NAME, ON_FILE, Known, incarnation, killed, peer


@pytest.fixture
def known() -> Known:
    return Known()


# -- one incarnation ---------------------------------------------------------------------------------------------------


def test_it_is_gone_when_every_process_has_ended_and_none_holds_the_life_lock() -> None:
    who = incarnation(members=2)
    assert who.seen_alive and not all_ended(who)
    who.members[1].dead = True
    who.life = Life.FREE
    assert not all_ended(who) and not who.members_gone
    who.members[2].dead = True
    assert all_ended(who)
    who.life = Life.HELD
    assert not all_ended(who)


def test_a_process_without_pidfd_lives_for_as_long_as_its_connection() -> None:
    member = incarnation().members[MAIN]
    member.process = None
    assert not member.seen_alive
    member.conns.add(5)
    assert member.seen_alive
    member.dead = True
    assert not member.seen_alive


def test_whom_only_the_file_tells_of_is_unaccounted_for() -> None:
    who = incarnation(members=2)
    assert not who.unaccounted
    who.members[2].process = None
    assert who.unaccounted
    who.members[2].dead = True
    assert not who.unaccounted


def test_the_life_lock_tells_of_those_who_keep_it_while_they_live() -> None:
    who = incarnation(members=2)
    assert life_lock_tells(who)
    who.members[2].mapped = False
    assert not life_lock_tells(who)
    who.members[2].dead = True
    assert life_lock_tells(who)
    empty = Incarnation("a", "0" * 8, Stage.AWAITED)
    assert not life_lock_tells(empty) and not empty.was_alive, "of whom no process is known it tells nothing"


@pytest.mark.parametrize(
    "otherwise",
    [
        lambda who: setattr(who, "stage", Stage.PRESENT),
        lambda who: setattr(who, "came", False),
        lambda who: setattr(who, "cannot_talk", "another version"),
        lambda who: who.members[1].conns.add(7),
        lambda who: setattr(who.members[2], "dead", False),
        lambda who: who.members.update({3: who.members.pop(1)}),
    ],
    ids=["present", "never came", "can't talk", "talks", "not alone", "no main process"],
)
def test_only_a_main_process_that_talks_no_more_and_is_alone_may_have_left(
    otherwise: Callable[[Incarnation], object],
) -> None:
    who = incarnation(members=2)
    who.stage, who.came, who.life, who.members[2].dead = Stage.LOST, True, Life.FREE, True
    assert who.may_have_left and who.ends
    otherwise(who)
    assert not who.may_have_left and not who.ends


def test_a_main_process_that_has_ended_has_not_left() -> None:
    who = killed(incarnation())
    who.stage, who.came = Stage.LOST, True
    assert not who.may_have_left


def test_members_are_numbered_upwards_and_no_number_comes_again() -> None:
    who = Incarnation("a", "0" * 8, Stage.AWAITED)
    assert who.add("pidfs:5", 5).number == MAIN + 1, "the main process's number is kept for it"
    assert who.add("pidfs:6", 6, 9).number == 9
    del who.members[9]
    assert who.add("pidfs:7", 7, 4).number == 4
    assert who.add("pidfs:8", 8).number == 10
    assert who.main is None and who.pid == 0


def test_a_process_is_recognised_by_its_inode_and_not_by_its_pid() -> None:
    who = incarnation(members=2)
    assert who.find(e.Peer(9, "pidfs:2", 99), 0) is who.members[2] and who.pid == 1
    assert who.find(e.Peer(9, "pidfs:9", 2), 2) is None, "another process has its pid by now"
    assert who.find(peer(2, inode=False), 2) is None, "it has an inode"
    who.members[2].identity = ""
    assert who.find(peer(2), 2) is None, "it had none"


def test_on_older_kernels_a_pid_counts_while_it_cannot_be_anothers() -> None:
    who = incarnation(members=2)
    for member in who.members.values():
        member.identity = ""
    assert who.find(peer(2, inode=False), 0) is who.members[2]
    who.members[2].process = None
    assert who.find(peer(2, inode=False), 0) is None
    assert who.find(peer(2, inode=False), 2) is who.members[2], "it also knows its number"
    who.members[2].pid = 0
    assert who.find(e.Peer(None, "", 0), 2) is None
    who.members[2].pid, who.members[2].dead = 2, True
    assert who.find(peer(2, inode=False), 2) is None


@pytest.mark.parametrize(("lives", "most_s"), [(False, PROBE_MOST_S), (True, PROBE_ALIVE_MOST_S)])
def test_a_life_lock_is_looked_at_less_and_less_often(lives: bool, most_s: float) -> None:
    who = incarnation()
    who.members[MAIN].dead = not lives
    waits = []
    for _ in range(40):
        who.probed(True, 10.0)
        waits.append(who.probe_at - 10.0)
    assert waits[0] == pytest.approx(PROBE_FIRST_S) and waits == sorted(waits)
    assert waits[-1] == pytest.approx(most_s)
    for number, wait in enumerate(waits):
        assert wait <= PROBE_FIRST_S + 0.26 * sum(waits[:number]), "no waiter waits much longer than it must"


@pytest.mark.parametrize(("held", "life"), [(True, Life.HELD), (False, Life.FREE), (None, Life.MISSING)])
def test_what_a_look_at_the_life_lock_tells(held: bool | None, life: Life) -> None:
    who = incarnation()
    who.probed(held, 0.0)
    assert who.life is life


# -- who belongs -------------------------------------------------------------------------------------------------------


def test_every_members_end_is_watched(known: Known) -> None:
    who = known.a(members=2)
    assert known.asked(WatchDeath) == [WatchDeath(1), WatchDeath(2)]
    assert [member.number for member in who.members.values()] == [1, 2] and who.life is Life.HELD
    assert known.incarnations.died(2) == (who, False) and known.incarnations.died(1) == (who, True)
    assert known.incarnations.died(3) is None


def test_a_process_that_joins_again_is_the_same_member(known: Known) -> None:
    who = known.a(members=2)
    known.incarnations.enter(who, e.Peer(9, "pidfs:2", 2, 2), 2, 2)
    assert len(who.members) == 2 and who.members[2].process == 9
    assert known.asked(ForgetProcess) == [ForgetProcess(2)], "one pidfd of it is enough"


def test_what_is_known_of_a_process_stays_whichever_client_brings_its_next_pidfd(known: Known) -> None:
    who = known.a(members=2)
    member = who.members[2]
    known.incarnations.attach(who, member, e.Peer(9, "", 0, dead=True), 0)
    assert (member.identity, member.pid, member.was_alive, member.dead) == ("pidfs:2", 2, True, False), (
        "its end is seen"
    )
    unknown = who.add("", 0)
    unknown.dead, who.life, known.context.changed = True, Life.FREE, False
    known.incarnations.attach(who, unknown, e.Peer(8, "pidfs:8", 0), 88)
    assert (unknown.identity, unknown.pid, unknown.dead) == ("pidfs:8", 88, False), "here it is, whatever was said"
    known.incarnations.enter(who, peer(2), 2, 2)
    assert who.life is Life.HELD and known.context.changed


def test_no_child_takes_the_main_processs_number(known: Known) -> None:
    who = known.a()
    assert known.incarnations.enter(who, peer(5), 5, MAIN).number == 2
    assert known.incarnations.enter(who, peer(6), 6, 2).number == 3, "nor another child's"
    assert known.incarnations.enter(who, peer(7), 7, 12).number == 12


def test_only_the_same_process_is_the_main_process_again(known: Known) -> None:
    who = known.a()
    assert known.incarnations.is_main(who, peer(1), "") and not known.incarnations.is_main(who, peer(2), "")
    assert not known.incarnations.is_main(who, peer(1, inode=False), "")
    heard = known.incarnations.hear_of("b", "0" * 8)
    assert known.incarnations.is_main(heard, peer(2), "")
    main = heard.add("", 0, MAIN)
    assert not known.incarnations.is_main(heard, peer(2), "") and known.incarnations.is_main(
        heard, peer(2, inode=False), ""
    )
    main.pid = 3
    assert not known.incarnations.is_main(heard, peer(2, inode=False), "")
    main.dead, main.pid = True, 2
    assert not known.incarnations.is_main(heard, peer(2, inode=False), "")


def test_one_that_was_only_heard_of_is_looked_at_and_shown(known: Known) -> None:
    known.incarnations.hear_of("b", "0" * 8)
    known.carry_out()
    assert known.asked(ProbeLife) == [ProbeLife("b.00000000")]
    who = known.incarnations.arrives("c", "0" * 8, "s3cret")
    known.context.changed = False
    known.incarnations.enter_main(who, peer(3), 3, None)
    assert who.older and who.name in known.incarnations.absent and known.context.changed, "it lives, and can't talk"
    assert not known.incarnations.arrives("d", "0" * 8, "").older


def test_on_older_kernels_the_secret_tells_who_is_the_main_process(known: Known) -> None:
    who = known.a()
    who.members[MAIN].identity, who.secret = "", "s3cret"
    assert known.incarnations.is_main(who, peer(9, inode=False), "s3cret")
    assert not known.incarnations.is_main(who, peer(1, inode=False), "")


def test_whom_the_file_names_is_awaited_and_looked_up(known: Known) -> None:
    who = known.from_file()
    assert who.stage is Stage.AWAITED and who.name in known.incarnations.absent
    assert known.asked(LookUp) == [LookUp(NAME, ((1, 51, "pidfs:1"), (2, 52, "pidfs:2")))]
    assert who.members[1].mapped and not who.members[2].mapped
    before = who.members[2]
    assert known.from_file() is who and list(who.members) == [1, 2] and who.members[2] is before
    numbered = ON_FILE.members[0], Member(2, "pidfs:2", 2)
    known.incarnations.from_file(OnFile("b", "0" * 8, [*numbered], "s3cret"), look_up=True)
    assert known.asked(LookUp)[-1] == LookUp("b.00000000", ((1, 51, "pidfs:1"),)), "by the numbers that there are"
    assert known.incarnations.known["b.00000000"].secret == "s3cret"


def test_one_in_the_file_whose_main_process_is_another_one_now_is_looked_at(known: Known) -> None:
    who = known.from_file()
    known.carry_out()
    known.incarnations.probed(NAME, True)
    known.carry_out()
    known.registered("b", 1)
    assert [look.who for look in known.incarnations.plan(known.now).looks] == [who]


def test_in_another_pid_namespace_a_number_means_nothing(known: Known) -> None:
    known.from_file(look_up=False)
    known.incarnations.from_file(OnFile("b", "0" * 8, [Member(2, "pidfs:2", 2)]), look_up=True)
    known.evidence.begin(Processes(known.evidence.config.boot_id, [ON_FILE]))
    assert not known.asked(LookUp), "nor where neither is known"


def test_what_became_of_those_who_were_looked_up(known: Known) -> None:
    who = known.from_file()
    known.incarnations.looked_up(LookedUp(NAME, gone=(1, 7), alive=((2, peer(2)), (8, peer(8)))))
    assert who.members[1].dead and who.members[2].process == 2 and not who.members[2].dead
    assert known.asked(ForgetProcess) == [ForgetProcess(8)]
    known.incarnations.looked_up(LookedUp(NAME, gone=(2,), alive=((2, peer(9)),)))
    assert not who.members[2].dead, "it is seen alive"
    assert known.asked(ForgetProcess) == [ForgetProcess(8), ForgetProcess(9)]
    known.incarnations.looked_up(LookedUp("b.00000000", gone=(1,), alive=((1, peer(3)),)))
    assert known.asked(ForgetProcess)[-1] == ForgetProcess(3)


def test_one_whose_processes_are_all_found_to_have_ended_is_forgotten(known: Known) -> None:
    known.from_file()
    known.carry_out()
    known.incarnations.probed(NAME, False)
    known.carry_out()
    known.incarnations.looked_up(LookedUp(NAME, gone=(1, 2), alive=()))
    known.carry_out()
    assert not known.incarnations.known


def test_no_process_belongs_to_an_incarnation_that_is_condemned(known: Known) -> None:
    who = known.a()
    assert known.incarnations.why_condemned(NAME) == "" == known.incarnations.why_closed(NAME)
    known.incarnations.lose(who, Stage.LOST)
    assert known.incarnations.why_condemned(NAME) == "", "its main process may come back"
    assert "is being fenced" in known.incarnations.why_closed(NAME), "but children may not slip in meanwhile"
    known.incarnations.lose(who, Stage.DOOMED)
    assert "is being fenced" in known.incarnations.why_condemned(NAME)
    known.incarnations.remove(killed(who), was_bound=True)
    assert known.incarnations.why_condemned(NAME) == f"{NAME} is gone: its end was proven"
    known.incarnations.reject("b.1", "claimed too much")
    assert known.incarnations.why_condemned("b.1") == "b.1 claimed too much"


def test_only_one_whose_main_process_lives_and_talks_no_more_may_open_again(known: Known) -> None:
    def may() -> bool:
        return known.incarnations.may_open_again(NAME)

    assert not may()
    who = known.a()
    assert not may(), "it is open"
    known.incarnations.lose(who, Stage.LOST)
    assert may()
    known.incarnations.reject(NAME, "lied")
    assert not may()
    known.incarnations.rejected.clear()
    main = who.members.pop(MAIN)
    assert not may()
    who.members[MAIN], main.dead = main, True
    assert not may()


def test_one_that_cannot_talk_here_is_open_for_its_children(known: Known) -> None:
    who = known.incarnations.hear_of("a", "0" * 8)
    known.incarnations.enter_main(who, peer(1), 1, None)
    known.incarnations.note_cannot_talk(who, "it speaks version 9")
    assert who.stage is Stage.LOST and known.incarnations.why_closed(NAME) == ""


def test_only_the_newest_of_those_who_were_rejected_are_remembered(known: Known) -> None:
    for number in range(MOST_REMEMBERED + 1):
        known.incarnations.reject(str(number), "lied")
    assert len(known.incarnations.rejected) == MOST_REMEMBERED and not known.incarnations.why_condemned("0")


def test_a_pidfd_that_is_handed_back_is_of_one_in_the_file_or_of_one_that_lives_and_is_newer_than_it(
    known: Known,
) -> None:
    who = known.from_file()
    known.incarnations.handed_back(who, 2, peer(2), from_file=True)
    known.incarnations.handed_back(who, 1, peer(8), from_file=True)
    assert who.members[2].process == 2 and who.members[1].process is None
    assert known.asked(ForgetProcess) == [ForgetProcess(8)]
    known.incarnations.handed_back(who, 2, e.Peer(9, "pidfs:2", 2), from_file=True)
    assert known.asked(ForgetProcess)[-1] == ForgetProcess(9), "it has one already"
    known.incarnations.handed_back(who, 4, e.Peer(4, "pidfs:4", 0, dead=True), from_file=True)
    assert 4 not in who.members and known.asked(ForgetProcess)[-1] == ForgetProcess(4)
    known.incarnations.handed_back(who, 5, peer(5), from_file=True)
    assert who.members[5].process == 5, "it lives: the file is older than it"
    known.incarnations.handed_back(who, 3, peer(3), from_file=False)
    assert who.members[3].process == 3, "where no file tells, each that is handed back is a member"
    known.incarnations.handed_back(who, 3, peer(7), from_file=False)
    assert who.members[6].process == 7, "also under a number that another has"
    for number in range(7, MOST_MEMBERS + 9):
        who.add("", 0, number)
    known.incarnations.handed_back(who, 999, peer(99), from_file=False)
    assert 999 not in who.members, "as many as an incarnation may have"
    assert known.asked(ForgetProcess)[-1] == ForgetProcess(99)


def test_on_older_kernels_a_pidfd_that_is_handed_back_goes_by_its_number(known: Known) -> None:
    who = known.from_file()
    known.incarnations.handed_back(who, 2, e.Peer(9, "", 0), from_file=True)
    assert who.members[2].process is None and known.asked(ForgetProcess) == [ForgetProcess(9)], "the file has its inode"
    who.members[2].identity = ""
    known.incarnations.handed_back(who, 2, e.Peer(10, "", 0), from_file=True)
    known.incarnations.handed_back(who, 7, e.Peer(11, "", 7), from_file=True)
    known.incarnations.handed_back(who, 2, e.Peer(12, "", 0), from_file=False)
    assert [who.members[number].process for number in (2, 7, 8)] == [10, 11, 12], "that one is another process"


def test_who_has_ended_before_it_is_handed_back_to_a_new_server_is_no_member_whose_end_needs_a_proof(
    known: Known,
) -> None:
    """Written to the file it would have no number, and the next server could never prove its end."""
    who = known.a()
    known.incarnations.handed_back(who, 2, e.Peer(2, "pidfs:2", 0, dead=True), from_file=False)
    assert list(who.members) == [1] and known.asked(ForgetProcess) == [ForgetProcess(2)]
    absent = known.incarnations.hear_of("b", "1")
    known.incarnations.handed_back(absent, 1, e.Peer(3, "pidfs:3", 0, dead=True), from_file=False)
    assert absent.members[1].process == 3, "of one that isn't here nothing else may be known"


# -- ends --------------------------------------------------------------------------------------------------------------


def test_the_loss_of_a_main_process_is_news_once(known: Known) -> None:
    who = known.a()
    who.probed(True, 50.0)
    assert known.incarnations.lose(who, Stage.LOST) and who.name in known.incarnations.absent
    assert who.probe_at < 0 and who.probe_wait_s == PROBE_FIRST_S, "its life lock is looked at at once"
    assert not known.incarnations.lose(who, Stage.LOST)
    assert not known.incarnations.lose(who, Stage.DOOMED), "that it is lost is known"
    assert not known.incarnations.lose(who, Stage.LOST) and who.stage is Stage.DOOMED, "there is no way back from there"


def test_one_that_is_back_is_not_awaited_any_more(known: Known) -> None:
    who = known.a()
    known.incarnations.lose(who, Stage.LOST)
    known.incarnations.enter_main(who, peer(1), 1, 200)
    assert who.stage is Stage.PRESENT and not known.incarnations.absent and who.conn == 200


def test_an_end_of_file_proves_nothing_where_there_is_a_pidfd(known: Known) -> None:
    who = known.a(members=2)
    assert known.incarnations.closed(who, 101) and who.conn is None and not who.members[1].dead
    who.members[2].process = None
    who.members[2].conns = {5, 6}
    assert not known.incarnations.closed(who, 5) and not who.members[2].dead
    assert not known.incarnations.closed(who, 6) and who.members[2].dead, "there is nothing else of it"


def test_what_outlives_its_main_process_is_killed(known: Known) -> None:
    who = known.a(members=4)
    known.incarnations.died(2)
    known.incarnations.out_of_reach(3, "another PID namespace")
    later = who.add("pidfs:5", 5)
    for _ in range(2):
        known.incarnations.kill_living(who)
        assert known.asked(Kill) == [Kill(1), Kill(4)]
    known.incarnations.attach(who, later, peer(5), 5)
    known.incarnations.kill_living(who)
    assert known.asked(Kill)[2:] == [Kill(5)], "of which there was no pidfd"
    known.incarnations.out_of_reach(99, "another PID namespace")


def test_the_life_lock_is_looked_at_once_it_can_be_free(known: Known) -> None:
    who = known.a(members=2)
    known.bind(who)
    known.incarnations.lose(who, Stage.LOST)
    known.incarnations.died(1)
    known.carry_out()
    assert not known.asked(ProbeLife)
    known.incarnations.died(2)
    known.carry_out()
    known.carry_out()
    assert known.asked(ProbeLife) == [ProbeLife(NAME)], "one answer is awaited at a time"
    known.incarnations.probed(NAME, True)
    known.carry_out()
    assert len(known.asked(ProbeLife)) == 1 and known.again == PROBE_FIRST_S
    known.at(PROBE_FIRST_S)
    known.carry_out()
    known.incarnations.probed(NAME, False)
    known.carry_out()
    assert len(known.asked(ProbeLife)) == 1 and all_ended(who)


def test_the_life_lock_of_one_that_is_back_is_held(known: Known) -> None:
    known.a()
    known.incarnations.probed(NAME, False)
    known.incarnations.probed("b.1", False)
    assert known.incarnations.known[NAME].life is Life.HELD


def test_a_main_process_that_runs_another_program_now_has_ended_as_the_old_one(known: Known) -> None:
    who = known.a(members=2)
    known.incarnations.lose(who, Stage.LOST)
    known.carry_out()
    assert not who.members[1].dead
    again = known.incarnations.arrives("b", "0" * 8, "")
    known.incarnations.enter_main(again, e.Peer(11, "pidfs:1", 1, 1), 1, 300)
    known.carry_out()
    assert not who.members[1].dead, (
        "a process may be the main process of two, and be back with the other one in a moment"
    )
    known.at(BOTH_BACK_S)
    known.carry_out()
    assert who.members[1].dead and known.asked(Kill) == [Kill(2)], "what else belongs to it is ended"
    known.carry_out()
    assert known.asked(Kill) == [Kill(2)], "once"
    assert not again.members[1].dead


def test_a_main_process_that_asks_anew_each_time_as_another_one_has_ended_as_the_old_one(known: Known) -> None:
    """Seed 10036067: each of the others was there for less than the time that proves it, so that none ever did."""
    who = known.a()
    known.incarnations.lose(who, Stage.LOST)
    for number in range(3):
        known.at(number * BOTH_BACK_S / 2)
        other = known.incarnations.arrives("b", f"{number}" * 8, "")
        known.incarnations.enter_main(other, e.Peer(11 + number, "pidfs:1", 1, 1), 1, 300 + number)
        known.carry_out()
        assert who.members[1].dead == (number == 2)
        known.incarnations.lose(other, Stage.LOST)
        known.carry_out()


def test_one_that_came_back_since_is_given_the_whole_time_again(known: Known) -> None:
    who = known.a()
    known.incarnations.lose(who, Stage.LOST)
    other = known.incarnations.arrives("b", "0" * 8, "")
    known.incarnations.enter_main(other, e.Peer(11, "pidfs:1", 1, 1), 1, 300)
    known.carry_out()
    known.incarnations.enter_main(who, e.Peer(12, "pidfs:1", 1, 1), 1, 301)
    known.incarnations.enter_main(other, e.Peer(13, "pidfs:1", 1, 1), 1, 302)
    known.at(BOTH_BACK_S)
    known.incarnations.lose(who, Stage.LOST)
    known.carry_out()
    assert not who.members[1].dead, "it is the main process of both"


def test_a_dead_member_is_dropped_and_its_pidfd_with_it(known: Known) -> None:
    who = known.a(members=3)
    known.incarnations.died(1)
    known.incarnations.died(2)
    known.incarnations.drop_dead(NAME)
    assert list(who.members) == [1, 3] and known.asked(ForgetProcess) == [ForgetProcess(2)]
    known.incarnations.drop_dead("b.1")


def test_the_life_file_of_one_that_was_bound_goes_when_its_end_is_on_disk(known: Known) -> None:
    who = known.a(members=2)
    known.incarnations.died(1)
    assert known.incarnations.remove(who, was_bound=True) == [101]
    assert known.asked(ForgetProcess) == [ForgetProcess(1), ForgetProcess(2)] and not known.asked(Unlink)
    assert not known.incarnations.known and known.incarnations.died(2) is None
    known.incarnations.written(5)
    assert not known.asked(Unlink), "no write says so yet"
    known.incarnations.pending_unlinks[NAME] = 6
    known.incarnations.written(5)
    assert not known.asked(Unlink)
    known.incarnations.written(6)
    assert known.asked(Unlink) == [Unlink(NAME)] and not known.incarnations.pending_unlinks


def test_the_life_file_of_one_that_was_never_bound_goes_at_once(known: Known) -> None:
    known.incarnations.remove(known.a(), was_bound=False)
    assert known.asked(Unlink) == [Unlink(NAME)]


def test_there_is_a_bound_on_life_files_that_wait_for_a_write(known: Known) -> None:
    known.a()
    known.incarnations.unlink_later((NAME, *(str(number) for number in range(MOST_UNLINKS + 5))))
    assert len(known.incarnations.pending_unlinks) == MOST_UNLINKS and NAME not in known.incarnations.pending_unlinks
