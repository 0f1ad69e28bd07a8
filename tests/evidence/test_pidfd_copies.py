"""The copies of pidfds that clients keep: rule E8."""

from collections.abc import Iterable

from evidence.rules.events import Config, ForgetProcess, Peer
from evidence.rules.incarnation import Incarnation, Stage
from evidence.rules.pidfd_copies import Give
from tests.evidence.parts import NAME, Known, peer


class Copies(Known):
    """`a` with a child. Its copies go to its main process, and to whichever other is told to keep them."""

    def __init__(self, copies_under_way: int = 32, most_copies_under_way: int = 256) -> None:
        super().__init__(Config(copies_under_way=copies_under_way, most_copies_under_way=most_copies_under_way))
        self.copies = self.evidence.copies
        self.who = self.a(members=2)
        self.gives: list[Give] = []
        self.recipients: list[Incarnation] = []
        self.hand_out()

    def recipient(self, engine_id: str, number: int) -> Incarnation:
        who = self.registered(engine_id, number)
        self.recipients.append(who)
        return who

    def hand_out(self, mark: int = 7) -> "Copies":
        self._send(self.copies.give_own())
        for to in self.recipients:
            if to.conn is not None:
                self._send(self.copies.give(to.conn, to, self.who, list(self.who.members.values()), mark))
        return self

    def _send(self, gives: Iterable[Give]) -> None:
        self.gives += gives

    def given(self, conn: int) -> list[tuple[list[int], tuple[int, ...]]]:
        return [(give.numbers, give.processes) for give in self.gives if give.conn == conn]


def test_a_main_process_keeps_its_childrens_pidfds() -> None:
    copies = Copies()
    assert copies.given(101) == [([2], (2,))]
    assert len(copies.hand_out().given(101)) == 1, "once"


def test_one_without_children_has_nothing_to_keep() -> None:
    copies = Copies()
    copies.registered("b", 5)
    assert copies.hand_out().given(105) == []


def test_what_another_keeps_is_all_of_it() -> None:
    copies = Copies()
    copies.recipient("b", 5)
    assert copies.hand_out().given(105) == [([1, 2], (1, 2))]
    assert len(copies.hand_out().given(105)) == 1, "once"
    copies.hand_out(mark=8)
    assert copies.given(105)[-1] == ([1, 2], (1, 2)) and not copies.gives[-1].more, "with another mark, all anew"


def test_a_member_that_is_new_is_given_to_all_who_keep() -> None:
    copies = Copies()
    copies.recipient("b", 5)
    copies.hand_out()
    copies.incarnations.enter(copies.who, peer(3), 3, 0)
    copies.hand_out()
    assert copies.given(105)[-1] == ([3], (3,)) and copies.given(101)[-1] == ([3], (3,)), "what is new, and no more"


def test_one_that_takes_nothing_is_given_no_more_after_so_many_and_the_others_go_on() -> None:
    copies = Copies(copies_under_way=4)
    copies.recipient("b", 105)
    copies.recipient("c", 106)
    for number in range(3, 60):
        copies.incarnations.enter(copies.who, peer(number), number, 0)
        copies.hand_out()
        for conn in (101, 206):
            copies.copies.taken(conn, 4)
    copies.hand_out()
    assert sum(len(numbers) for numbers, _ in copies.given(205)) == 4, "it is stopped"
    assert sum(len(numbers) for numbers, _ in copies.given(206)) == 59
    assert sum(len(numbers) for numbers, _ in copies.given(101)) == 58
    for _ in range(15):
        copies.copies.taken(205, 4)
        copies.hand_out()
    assert sorted(number for numbers, _ in copies.given(205) for number in numbers) == list(range(1, 60)), "it goes on"


def test_all_together_have_no_more_under_way_than_the_kernel_bears_and_a_connection_that_ends_makes_room() -> None:
    copies = Copies(copies_under_way=10, most_copies_under_way=15)
    for number in range(105, 109):
        copies.recipient(f"w{number}", number)
    for number in range(3, 30):
        copies.incarnations.enter(copies.who, peer(number), number, 0)
    copies.hand_out()
    assert sum(len(give.processes) for give in copies.gives) == 15
    assert all(copies.given(200 + number) for number in range(5, 9)), "each knows of whom there are copies"
    copies.copies.left(101)
    copies.hand_out()
    assert sum(len(give.processes) for give in copies.gives) == 25


def test_a_member_that_has_ended_is_named_and_its_copy_dropped() -> None:
    copies = Copies()
    copies.recipient("b", 5)
    copies.hand_out()
    copies.incarnations.died(2)
    copies.incarnations.drop_dead(NAME)
    copies.hand_out()
    for conn in (101, 105):
        (give,) = [give for give in copies.gives if give.conn == conn and give.more]
        assert (give.gone, give.numbers) == ([2], [])


def test_a_connection_that_is_new_is_given_everything_anew() -> None:
    copies = Copies(copies_under_way=2)
    b = copies.recipient("b", 105)
    copies.hand_out()
    copies.incarnations.enter_main(b, peer(105), 105, 300)
    copies.hand_out()
    assert copies.given(300) == [([1, 2], (1, 2))]


def test_a_member_whose_pidfd_is_known_only_now_is_given_to_all_who_keep() -> None:
    """After a restart the main process is back before its workers are."""
    copies = Copies()
    worker = copies.who.members[2]
    process, worker.process = worker.process, None
    copies.recipient("b", 5)
    assert copies.hand_out().given(105)[-1] == ([1], (1,))
    worker.process = process
    assert copies.hand_out().given(105)[-1] == ([2], (2,))


def test_what_is_handed_back_belongs_to_its_members_or_to_none() -> None:
    known = Known()
    who = known.from_file(look_up=False)
    brought = tuple(Peer(500 + number, f"pidfs:{number}", number) for number in (1, 2, 9))
    known.evidence.handed_back(who, [1, 2], brought, from_file=True)
    assert [member.process for member in who.members.values()] == [501, 502] and who.stage is Stage.AWAITED
    known.evidence.handed_back(None, [1], brought[:1])
    assert [forget.process for forget in known.asked(ForgetProcess)] == [509, 501]
