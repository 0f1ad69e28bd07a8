"""The copies of pidfds that clients keep, built alone."""

import pytest

from lockserver import events as e
from lockserver import messages as m
from lockserver.events import Forget
from lockserver.free_memory import FreeMemory
from lockserver.incarnation import Incarnation, Stage
from lockserver.lock import Doubt, Found, Lock
from lockserver.messages import ACTIVE
from lockserver.pidfd_copies import PidfdCopies
from lockserver.queue import Queue
from tests.lockserver.parts import NAME, TENURE, Known, held_by, peer, registered


class Copies(Known):
    """A holder `a` with a child, and its copies."""

    def __init__(self, keepers: int = 2, **config: int) -> None:
        super().__init__(keepers=keepers, **config)
        self.queue = Queue(self.config, self.context, FreeMemory(self.config, self.context))
        self.copies = PidfdCopies(self.config, self.context, self.incarnations, self.queue)
        self.lock = held_by(self.a(members=2))
        self.copies.hand_out(self.lock)

    def waiter(self, engine_id: str, number: int) -> Incarnation:
        who = registered(self.incarnations, engine_id, number)
        self.queue.enter(who, {}, looked=True)
        return who

    def given(self, conn: int) -> list[tuple[list[int], tuple[int, ...]]]:
        return [
            (send.message.numbers, send.processes)
            for send in self.asked(e.Send)
            if send.conn == conn and isinstance(send.message, m.Keep)
        ]

    def hand_back(
        self, who: Incarnation, tree: str, token: int, *numbers: int, more: tuple[e.Peer, ...] = (), newest: int = 99
    ) -> None:
        message = m.HandBack(token=token, tree=tree, numbers=list(numbers))
        peers = tuple(e.Peer(500 + number, f"pidfs:{number}", number) for number in numbers)
        self.copies.hand_back(e.Received(1, message, peers + more), who, self.lock, newest)


def test_a_main_process_keeps_its_childrens_pidfds() -> None:
    copies = Copies()
    assert copies.given(101) == [([2], (2,))]
    copies.copies.hand_out(copies.lock)
    assert len(copies.given(101)) == 1, "once"


def test_one_without_children_has_nothing_to_keep() -> None:
    copies = Copies()
    copies.waiter("b", 5)
    copies.incarnations.lose(copies.incarnations.known[NAME], Stage.LOST)
    copies.lock.lose(0.0, None)
    copies.copies.hand_out(copies.lock)
    assert copies.given(105) == []


def test_the_first_few_waiters_keep_the_holders() -> None:
    copies = Copies(keepers=2)
    for engine_id, number in (("b", 5), ("c", 6), ("d", 7)):
        copies.waiter(engine_id, number)
    copies.copies.hand_out(copies.lock)
    copies.copies.hand_out(copies.lock)
    assert copies.given(105) == copies.given(106) == [([1, 2], (1, 2))] and copies.given(107) == []
    copies.queue.leave(copies.incarnations.known["b.00000000"])
    copies.copies.hand_out(copies.lock)
    assert copies.given(107) == [([1, 2], (1, 2))] and len(copies.given(106)) == 1


def test_a_member_that_is_new_is_given_to_all_who_keep() -> None:
    copies = Copies()
    copies.waiter("b", 5)
    copies.copies.hand_out(copies.lock)
    copies.incarnations.enter(copies.incarnations.known[NAME], peer(3), 3, 0)
    copies.copies.hand_out(copies.lock)
    assert copies.given(105)[-1] == ([3], (3,)) and copies.given(101)[-1] == ([3], (3,)), "what is new, and no more"


def test_one_that_takes_nothing_is_given_no_more_after_so_many_and_the_others_go_on() -> None:
    copies = Copies(copies_under_way=4)
    for engine_id, number in (("b", 105), ("c", 106)):
        copies.waiter(engine_id, number)
    a = copies.incarnations.known[NAME]
    for number in range(3, 60):
        copies.incarnations.enter(a, peer(number), number, 0)
        copies.copies.hand_out(copies.lock)
        for conn in (101, 206):
            copies.copies.taken(conn, 4)
    assert sum(len(numbers) for numbers, _ in copies.given(205)) == 4, "it is stopped"
    assert sum(len(numbers) for numbers, _ in copies.given(206)) == 59
    assert sum(len(numbers) for numbers, _ in copies.given(101)) == 58
    for _ in range(15):
        copies.copies.taken(205, 4)
        copies.copies.hand_out(copies.lock)
    assert sorted(number for numbers, _ in copies.given(205) for number in numbers) == list(range(1, 60)), "it goes on"


def test_all_together_have_no_more_under_way_than_the_kernel_bears() -> None:
    copies = Copies(copies_under_way=10, most_copies_under_way=15, keepers=4)
    for number in range(105, 109):
        copies.waiter(f"w{number}", number)
    a = copies.incarnations.known[NAME]
    for number in range(3, 30):
        copies.incarnations.enter(a, peer(number), number, 0)
    copies.copies.hand_out(copies.lock)
    sent = sum(len(send.processes) for send in copies.asked(e.Send) if isinstance(send.message, m.Keep))
    assert sent == 15
    assert all(copies.given(200 + number) for number in range(5, 9)), "each knows of whom there are copies"


def test_a_member_that_has_ended_is_named_and_its_copy_dropped() -> None:
    copies = Copies()
    copies.waiter("b", 5)
    copies.copies.hand_out(copies.lock)
    copies.incarnations.died(2)
    copies.incarnations.drop_dead(NAME)
    copies.copies.hand_out(copies.lock)
    for conn in (101, 105):
        (keep,) = [message for message in copies.said(conn) if isinstance(message, m.Keep) and message.more]
        assert (keep.gone, keep.numbers) == ([2], [])


def test_a_connection_that_is_new_is_given_everything_anew() -> None:
    copies = Copies(copies_under_way=2)
    b = copies.waiter("b", 105)
    copies.copies.hand_out(copies.lock)
    copies.incarnations.enter_main(b, peer(105), 105, 300)
    copies.copies.hand_out(copies.lock)
    assert copies.given(300) == [([1, 2], (1, 2))] and copies.incarnations.known[b.name].conn == 300


class Restarted(Copies):
    """A server that has only heard of the holder: from a file, or not at all."""

    def __init__(self, found: Found) -> None:
        Known.__init__(self)
        self.queue = Queue(self.config, self.context, FreeMemory(self.config, self.context))
        self.copies = PidfdCopies(self.config, self.context, self.incarnations, self.queue)
        self.lock = Lock(ACTIVE)
        doubt = Doubt(found, 0.0, 10.0)
        if found is Found.HOLDER:
            self.lock.find(self.from_file(look_up=False), TENURE, doubt)
        else:
            self.lock.suspect(doubt)
        self.b = self.waiter("b", 5)

    @property
    def forgotten(self) -> set[int]:
        return {forget.process for forget in self.asked(Forget)}


def test_what_a_waiter_hands_back_is_the_holders() -> None:
    server = Restarted(Found.HOLDER)
    server.hand_back(server.b, NAME, 7, 1, 2, more=(peer(9),))
    holder = server.incarnations.known[NAME]
    assert [member.process for member in holder.members.values()] == [501, 502] and server.forgotten == {9}


@pytest.mark.parametrize(("tree", "token"), [(NAME, 6), ("c.00000000", 7), ("c.00000000", 6)])
def test_what_does_not_fit_the_file_is_forgotten(tree: str, token: int) -> None:
    server = Restarted(Found.HOLDER)
    server.hand_back(server.b, tree, token, 1, 2)
    assert server.forgotten == {501, 502} and server.lock.holder is server.incarnations.known[NAME]
    assert not server.lock.holder.seen_alive


def test_a_newer_holder_than_the_files_is_heard_of() -> None:
    server = Restarted(Found.HOLDER)
    server.hand_back(server.b, "c.00000000", 8, 1)
    assert server.lock.holder is server.incarnations.known["c.00000000"] and server.lock.token == 8
    assert server.lock.recorded_by is None and server.noted("awaiting_holder")


def test_without_a_file_the_holder_is_heard_of_from_whoever_kept_its_pidfds() -> None:
    server = Restarted(Found.NOTHING)
    server.hand_back(server.b, NAME, 7, 1, 2)
    holder = server.lock.holder
    assert holder is not None and holder.name == NAME and holder.stage is Stage.AWAITED
    assert {member.process for member in holder.members.values()} == {501, 502}


def test_one_that_is_here_or_is_proven_gone_is_not_heard_of() -> None:
    server = Restarted(Found.NOTHING)
    server.incarnations.pending_unlinks[NAME] = 0
    server.hand_back(server.b, NAME, 7, 1)
    assert server.lock.holder is None and server.forgotten == {501}
    server.hand_back(server.b, "b.00000000", 7, 1)
    assert server.lock.holder is None, "it is the caller itself"


def test_one_may_hand_back_ones_own_children() -> None:
    copies = Copies()
    a = copies.incarnations.known[NAME]
    copies.hand_back(a, NAME, 0, 3)
    assert a.members[3].process == 503


def test_a_member_whose_pidfd_is_known_only_now_is_given_to_all_who_keep() -> None:
    """After a restart the main process is back before its workers are."""
    copies = Copies()
    worker = copies.incarnations.known[NAME].members[2]
    process, worker.process = worker.process, None
    copies.waiter("b", 5)
    copies.copies.hand_out(copies.lock)
    assert copies.given(105)[-1] == ([1], (1,))
    worker.process = process
    copies.copies.hand_out(copies.lock)
    assert copies.given(105)[-1] == ([2], (2,))
