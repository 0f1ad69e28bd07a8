"""What a new server finds, and what it learns of those whom no file names: built alone."""

from lockserver import events as e
from lockserver.events import ProbeStrangers, Started, StrangersProbed, Unlink
from lockserver.lock import Doubt, Found, Lock, Phase
from lockserver.messages import ACTIVE, INIT
from lockserver.proof import Unnamed
from lockserver.record import Record
from lockserver.recovery import STRANGERS_EVERY_S, Recovery
from tests.lockserver.parts import NAME, TENURE, UNNAMED, Known, peer, registered

BOOT = "this boot"


class NewServer(Known):
    """One that starts on a file, or without one."""

    def __init__(self, record: Record | None, *, unreadable: str = "", pid_namespace: str = "") -> None:
        super().__init__(boot_id=BOOT, pid_namespace=pid_namespace, settle_s=2.0, window_s=10.0)
        self.recovery = Recovery(self.config, self.context, self.incarnations)
        self.active, self.permit = Lock(ACTIVE), Lock(INIT, may_be_given_back=True)
        permit = record.permits.get(INIT) if record is not None else None
        self.recovery.begin(Started(record, unreadable), self.active, self.permit, permit)

    def known(self, doubt: Doubt, *, memory_is_free: bool = False) -> Unnamed:
        return self.recovery.what_is_known(doubt, self.active, self.permit, memory_is_free=memory_is_free)

    def probed(self, held: tuple[str, ...] = (), free: tuple[str, ...] = (), unreadable: str = "") -> None:
        self.recovery.strangers_probed(StrangersProbed(held, free, unreadable), self.active)


def test_the_holder_in_the_file_is_awaited_for_the_window() -> None:
    server = NewServer(Record(BOOT, 9, TENURE, {INIT: TENURE}, gone=["x.1"]))
    holder = server.incarnations.known[NAME]
    for lock in (server.active, server.permit):
        assert lock.phase is Phase.IN_DOUBT and lock.holder is holder and lock.doubt == Doubt(Found.HOLDER, 0.0, 10.0)
    assert not server.active.unnamed and server.incarnations.pending_unlinks == {"x.1": 0}
    assert server.asked(ProbeStrangers) == [ProbeStrangers((NAME,))] and server.noted("awaiting_holder")


def test_a_file_without_a_holder_leaves_no_doubt() -> None:
    server = NewServer(Record(BOOT, 9))
    assert server.active.phase is server.permit.phase is Phase.FREE


def test_a_holder_of_an_earlier_boot_is_dead() -> None:
    server = NewServer(Record("another boot", 9, TENURE, {INIT: TENURE}, doubt="UNREADABLE"))
    assert server.active.phase is server.permit.phase is Phase.FREE and not server.incarnations.known
    assert server.incarnations.pending_unlinks == {NAME: 0} and server.noted("died_with_its_boot")


def test_processes_are_looked_up_in_the_same_pid_namespace_only() -> None:
    for wrote, reads, looked_up in (("ns1", "ns1", True), ("ns1", "ns2", False), ("", "", False)):
        server = NewServer(Record(BOOT, 9, TENURE, pid_namespace=wrote), pid_namespace=reads)
        assert bool(server.asked(e.LookUp)) is looked_up


def test_without_a_file_somebody_unknown_may_hold_for_a_while() -> None:
    server = NewServer(None)
    assert server.active.doubt == server.permit.doubt == Doubt(Found.NOTHING, 0.0, 2.0)
    assert server.active.unnamed and not server.context.alarms


def test_a_file_that_cannot_be_read_is_said_and_waited_for_longer() -> None:
    server = NewServer(None, unreadable="its checksum is wrong")
    assert server.active.doubt == Doubt(Found.UNREADABLE, 0.0, 10.0)
    assert "its checksum is wrong" in server.alarm("record")


def test_what_an_earlier_server_did_not_settle_is_not_settled() -> None:
    server = NewServer(Record(BOOT, 9, doubt="UNREADABLE"))
    assert server.active.unnamed and server.active.doubt is not None and server.active.doubt.found is Found.UNREADABLE
    with_holder = NewServer(Record(BOOT, 9, TENURE, doubt="NOTHING"))
    assert with_holder.active.unnamed and with_holder.active.holder is not None
    assert not NewServer(Record(BOOT, 9, doubt="")).active.unnamed


def test_what_is_written_is_what_the_next_one_finds() -> None:
    record = Record(BOOT, 9, TENURE, {INIT: TENURE}, gone=["x.1"], doubt="NOTHING", pid_namespace="ns")
    server = NewServer(record, pid_namespace="ns")
    assert server.recovery.record(server.active, server.permit, 9) == record


def test_members_that_have_ended_are_not_in_the_file_but_the_main_process_is() -> None:
    server = NewServer(Record(BOOT, 9, TENURE))
    for member in server.incarnations.known[NAME].members.values():
        member.dead = True
    active = server.recovery.record(server.active, server.permit, 9).active
    assert active is not None and [member.number for member in active.members] == [1]


def test_strangers_are_asked_for_one_question_at_a_time_and_again_while_some_are_there() -> None:
    server = NewServer(None)
    assert server.known(UNNAMED).strangers is None
    server.known(UNNAMED)
    assert len(server.asked(ProbeStrangers)) == 1
    server.probed(held=("c.1",))
    assert server.known(UNNAMED).strangers == StrangersProbed(("c.1",), ())
    assert len(server.asked(ProbeStrangers)) == 1
    server.at(STRANGERS_EVERY_S)
    server.known(UNNAMED)
    assert len(server.asked(ProbeStrangers)) == 1


def test_life_files_that_cannot_be_read_are_asked_for_again_and_somebody_may_have_let_go_meanwhile() -> None:
    server = NewServer(None)
    server.known(UNNAMED)
    server.at(UNNAMED.until)
    server.known(UNNAMED)
    server.probed(unreadable="Permission denied")
    known = server.known(UNNAMED)
    assert known.strangers == StrangersProbed((), (), "Permission denied") and known.let_go_lately
    server.probed(unreadable="Permission denied")
    server.at(UNNAMED.until + STRANGERS_EVERY_S)
    server.known(UNNAMED)
    assert len(server.asked(ProbeStrangers)) == 1
    server.probed()
    assert server.known(UNNAMED).strangers == StrangersProbed((), ()) and server.known(UNNAMED).let_go_lately


def test_what_was_seen_before_the_time_was_over_is_looked_at_again_after_it() -> None:
    server = NewServer(None)
    server.known(UNNAMED)
    server.probed()
    assert server.known(UNNAMED).strangers is not None
    server.at(UNNAMED.until)
    known = server.known(UNNAMED)
    assert known.over and known.strangers is None and len(server.asked(ProbeStrangers)) == 1
    server.probed()
    assert server.known(UNNAMED).strangers is not None


def test_who_has_let_go_a_moment_ago_may_be_dying() -> None:
    server = NewServer(None)
    server.known(UNNAMED)
    assert not server.known(UNNAMED).let_go_lately
    server.probed(held=("c.1",))
    server.at(1.9)
    assert server.known(UNNAMED).let_go_lately
    server.at(2.0)
    assert not server.known(UNNAMED).let_go_lately


def test_who_has_let_go_between_two_looks_may_have_done_so_just_before_the_second() -> None:
    server = NewServer(None)
    server.probed(held=("c.1",))
    server.at(STRANGERS_EVERY_S)
    server.probed(free=("c.1",))
    server.at(2.0)
    assert server.known(UNNAMED).let_go_lately
    server.probed(free=("c.1",))
    server.at(2.0 + STRANGERS_EVERY_S)
    assert not server.known(UNNAMED).let_go_lately


def test_who_was_heard_of_and_is_alive_is_awaited() -> None:
    server = NewServer(None)
    heard_of = server.incarnations.awaited("c", "0" * 8)
    assert not server.known(UNNAMED).others_awaited
    server.incarnations.enter(heard_of, peer(3), 3, 2)
    assert server.known(UNNAMED).others_awaited


def test_whoever_has_registered_is_no_stranger_and_whoever_is_only_awaited_is_one() -> None:
    server = NewServer(None)
    registered(server.incarnations, "b", 2)
    server.incarnations.awaited("c", "0" * 8)
    server.known(UNNAMED)
    assert server.asked(ProbeStrangers) == [ProbeStrangers(("b.00000000",))]


def test_life_files_of_nobody_go_at_once_where_nobody_unknown_may_hold() -> None:
    server = NewServer(Record(BOOT, 9, TENURE, gone=["x.1"]))
    server.probed(free=("y.1", NAME, "x.1"))
    assert server.asked(Unlink) == [Unlink("y.1")]


def test_elsewhere_they_go_when_it_is_on_disk_that_nobody_held() -> None:
    server = NewServer(None)
    server.probed(free=("y.1",))
    assert not server.asked(Unlink) and not server.incarnations.pending_unlinks
    server.recovery.nobody_is_left()
    assert server.incarnations.pending_unlinks == {"y.1": 0}
