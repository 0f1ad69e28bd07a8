"""The rules of a client of the ledger, one by one, against its machine."""

from typing import Any

from evidence.rules import client_events as c
from evidence.rules import messages as em
from evidence.rules.standing import Me
from sidecar.wire.frames import Message
from vram.rules import messages as m
from vram.rules.client_machine import ANSWER_S, ClientMachine, GiveUp


class Client:
    """Its server takes it in; what it says from then on is kept."""

    def __init__(self) -> None:
        self.it, self.now = ClientMachine(Me("a", "0" * 8, 1, True)), 0.0
        self.said: list[Any] = []
        self.told: list[Any] = []
        self.feed(c.Connected(life=(1, 1)))
        self.hears(m.Welcome(server_incarnation="s", number=1, settle_s=1.0, secret="", protocol=1))
        self.feed(m.Reserve(number=1, name="x", needs={"gpu": 10, "second": 10}))
        self.hears(m.Granted(number=1, lease=7, bytes={"gpu": 10, "second": 10}))
        self.said.clear()
        self.told.clear()

    def gives_up_growth(self) -> None:
        """To 20; and hears no answer to that, either."""
        self.feed(m.Resize(number=2, lease=7, bytes={"gpu": 20, "second": 10}))
        self.feed(GiveUp(2))
        self.now += ANSWER_S + 0.1
        self.feed(c.Tick())

    def comes_to_the_next_server(self) -> m.Register:
        """What it says first; `said` has what it says after its welcome."""
        self.feed(c.Disconnected())
        self.said.clear()
        self.feed(c.Connected(life=(1, 1)))
        hello: m.Register = self.said.pop()
        self.hears(m.Welcome(server_incarnation="t", number=1, settle_s=1.0, secret="", protocol=1))
        return hello

    def feed(self, event: Any) -> None:
        for effect in self.it.handle(event, self.now):
            if isinstance(effect, c.Say):
                self.said.append(effect.message)
            elif isinstance(effect, Message | c.No | c.Lost):
                self.told.append(effect)

    def hears(self, message: Any) -> None:
        self.feed(c.Heard(message))

    @property
    def resizes(self) -> list[tuple[dict[str, int], bool]]:
        return [(message.bytes, message.unused) for message in self.said if isinstance(message, m.Resize)]


def test_what_was_granted_too_late_goes_back_behind_the_next_wish_for_it_and_not_before() -> None:
    """Else the server takes away what it has just granted to that one."""
    client = Client()
    client.gives_up_growth()
    client.feed(m.Resize(number=3, lease=7, bytes={"gpu": 30, "second": 10}))
    client.hears(m.Granted(number=2, lease=7, bytes={"gpu": 20, "second": 10}))
    assert [bytes["gpu"] for bytes, _ in client.resizes] == [20, 30]
    client.hears(m.Denied(number=3, why="too many"))
    assert client.resizes[2:] == [({"gpu": 10, "second": 10}, True)]


def test_what_was_granted_too_late_goes_back_at_once_where_no_wish_follows() -> None:
    client = Client()
    client.gives_up_growth()
    client.hears(m.Granted(number=2, lease=7, bytes={"gpu": 20, "second": 10}))
    assert client.resizes[1:] == [({"gpu": 10, "second": 10}, True)]


def test_what_a_resize_gives_back_is_given_back_whether_the_rest_is_granted_or_not() -> None:
    client = Client()
    client.feed(m.Resize(number=2, lease=7, bytes={"gpu": 5, "second": 30}))
    assert client.resizes == [({"gpu": 5, "second": 10}, False), ({"gpu": 5, "second": 30}, False)]
    client.feed(GiveUp(2))
    client.hears(m.Withdrawn(number=2))
    client.feed(m.Resize(number=3, lease=7, bytes={"gpu": 10, "second": 10}))
    assert not isinstance(client.told[-1], m.Granted) and client.resizes[-1] == ({"gpu": 10, "second": 10}, False)


def test_a_lease_of_which_nothing_would_stay_is_given_back_first() -> None:
    client = Client()
    client.feed(m.Resize(number=2, lease=7, bytes={"third": 5}))
    assert isinstance(client.told[-1], m.Denied) and "give it back, and reserve anew" in client.told[-1].why


def test_that_a_lease_outlives_its_holder_and_what_was_found_is_said_and_said_again_to_the_next_server() -> None:
    client = Client()
    client.feed(m.Reserve(number=2, name="y", needs={"gpu": 5}, outlives=True, found={"gpu": 5}))
    (asked,) = client.said
    assert asked.outlives is True and asked.found == {"gpu": 5}
    client.hears(m.Granted(number=2, lease=8, bytes={"gpu": 5}))
    claims = client.comes_to_the_next_server().claims
    assert [bool(claim.outlives) for claim in claims] == [False, True]


def test_what_was_given_up_is_not_asked_for_on_the_next_connection_and_what_was_not_is_asked_in_order() -> None:
    client = Client()
    for number in (2, 3, 4):
        client.feed(m.Reserve(number=number, name=f"n{number}", needs={"gpu": 1}))
    client.feed(GiveUp(3))
    client.comes_to_the_next_server()
    assert [message.number for message in client.said if isinstance(message, m.Reserve)] == [2, 4]
    assert client.told[-1] == m.Withdrawn(number=3)


def test_one_that_gives_up_is_told_at_once_without_a_server_or_a_caller_and_else_by_the_server_or_in_time() -> None:
    client = Client()
    for number in (2, 3, 4):
        client.feed(m.Reserve(number=number, name=f"n{number}", needs={"gpu": 1}))
    client.feed(GiveUp(2, gone=True))
    client.feed(GiveUp(3))
    assert client.told == [m.Withdrawn(number=2)] and client.it.deadline <= ANSWER_S
    assert [message.number for message in client.said if isinstance(message, m.Withdraw)] == [2, 3]
    client.hears(m.Withdrawn(number=3))
    client.feed(c.Disconnected())
    client.feed(GiveUp(4))
    client.feed(GiveUp(4))
    assert client.told[1:] == [m.Withdrawn(number=3), m.Withdrawn(number=4)]


def test_an_heir_hears_once_that_it_is_one_and_says_it_to_each_server() -> None:
    client = Client()
    client.feed(m.Heir(name="y"))
    assert client.said == [m.Heir(name="y")]
    client.hears(m.Named(name="y"))
    client.hears(m.Named(name="y"))
    client.feed(m.Heir(name="y"))
    assert client.told == [m.Named(name="y")] * 2 and len(client.said) == 1
    client.feed(m.Heir(name="z"))
    assert client.comes_to_the_next_server().heirs == ["y", "z"]
    assert client.told[2:] == [m.Named(name="z")], "its hello said so"


def test_what_is_so_of_a_lease_is_claimed_as_it_is_now_and_its_use_is_said_once_a_second() -> None:
    client = Client()
    uses = (0.0, 0.0), (0.5, 0.0), (1.0, 1.0)
    for client.now, _ in uses:
        client.feed(m.Set(lease=7, used=True))
    client.feed(m.Set(lease=7, used=True, priority=3))
    client.feed(m.Set(lease=7, used=True, evictable=False))
    client.feed(m.Set(lease=8, used=True))
    assert [(said.priority, said.evictable) for said in client.said] == [(None, None)] * 2 + [(3, None), (None, False)]
    client.now = 3.0
    client.feed(m.Set(lease=7, priority=4))
    (claim,) = client.comes_to_the_next_server().claims
    assert (claim.priority, claim.evictable, claim.unused_s) == (4, False, 2.0)


def test_a_resize_to_less_is_granted_at_once_and_what_was_wished_before_is_denied() -> None:
    client = Client()
    client.feed(m.Resize(number=2, lease=7, bytes={"gpu": 20, "second": 10}))
    client.feed(m.Reserve(number=3, name="y", needs={"gpu": 1}))
    less = {"gpu": 5, "second": 10}
    client.feed(m.Resize(number=4, lease=7, bytes=less))
    assert [type(told) for told in client.told] == [m.Denied, m.Granted] and client.told[0].number == 2
    assert client.resizes[1:] == [(less, False)] and sorted(client.it.wishes)[0] == 3
    client.feed(m.Resize(number=5, lease=7, bytes=less))
    assert client.told[-1] == m.Granted(number=5, lease=7, bytes=less) and client.resizes[2:] == []
    client.hears(m.Denied(number=2, why="late"))
    assert len(client.told) == 3, "it was told already"


def test_a_lease_that_was_given_back_has_nothing_more_and_what_is_granted_of_it_too_late_goes_back() -> None:
    client = Client()
    client.gives_up_growth()
    client.feed(m.Resize(number=3, lease=7, bytes={}))
    client.feed(m.Resize(number=4, lease=7, bytes={"gpu": 1}))
    assert isinstance(client.told[-1], m.Denied) and "was given back" in client.told[-1].why
    own = [message.number for message in client.said if isinstance(message, m.Resize)][-1]
    client.hears(m.Granted(number=own, lease=7, bytes={}))
    client.hears(m.Asked(lease=7, bytes={"gpu": 5}, timeout_s=1.0, why="late"))
    assert not isinstance(client.told[-1], m.Asked) and client.it.leases == {}
    client.hears(m.Granted(number=99, lease=8, bytes={"gpu": 20}))
    assert client.resizes[-1] == ({}, True)


def test_one_that_has_leases_ends_when_another_server_has_its_path_and_one_that_has_none_goes_on() -> None:
    for has in (True, False):
        client = Client()
        if not has:
            client.feed(m.Resize(number=2, lease=7, bytes={}))
            client.hears(m.Granted(number=(1 << 40) + 1, lease=7, bytes={}))
        client.feed(c.PathSeen(elsewhere=True))
        client.now = 1.0 if has else 60.0
        client.feed(c.Tick())
        client.feed(c.Tick())
        assert sum(isinstance(told, c.Lost) for told in client.told) == has


def test_what_the_server_asks_for_and_its_last_word_are_passed_on() -> None:
    client = Client()
    asked = m.Asked(lease=7, bytes={"gpu": 5}, timeout_s=1.0, why="a waits for it")
    client.hears(asked)
    client.hears(em.Refused(why="gone"))
    assert client.told == [asked, c.No("gone")]


def test_a_process_that_is_no_main_process_joins_and_claims_nothing() -> None:
    it = ClientMachine(Me("a", "0" * 8, 1, False))
    assert [type(effect.message) for effect in it.handle(c.Connected(life=(1, 1)), 0.0)] == [em.Join]
    welcome = m.Welcome(server_incarnation="s", number=2, settle_s=1.0)
    assert c.Joined() in it.handle(c.Heard(welcome), 0.0)


def test_answers_to_the_programs_wishes_are_passed_on_and_to_the_clients_own_not() -> None:
    client = Client()
    client.feed(m.Reserve(number=2, name="y", needs={"gpu": 5}))
    client.feed(m.Resize(number=3, lease=7, bytes={"gpu": 20, "second": 10}))
    answers = [m.Granted(number=2, lease=8, bytes={"gpu": 5}), m.Denied(number=3, why="too much")]
    for answer in answers:
        client.hears(answer)
    assert client.told == answers
    client.feed(m.Resize(number=4, lease=7, bytes={"gpu": 20, "second": 10}))
    client.feed(m.Resize(number=5, lease=8, bytes={}))
    client.feed(m.Resize(number=6, lease=8, bytes={}))
    assert client.told[2:] == [m.Granted(number=number, lease=8, bytes={}) for number in (5, 6)]
    client.hears(m.Denied(number=(1 << 40) + 1, why="not this tree's"))
    client.hears(m.Granted(number=4, lease=7, bytes={"gpu": 20, "second": 10}))
    client.feed(m.Resize(number=7, lease=7, bytes={"gpu": 15, "second": 10}))
    assert [told.number for told in client.told[4:]] == [4, 7], "what has grown can shrink again"


def test_one_that_gave_up_and_has_no_server_any_more_is_told_in_time_and_of_what_is_over_nothing_follows() -> None:
    client = Client()
    client.feed(m.Reserve(number=2, name="y", needs={"gpu": 5}))
    client.feed(GiveUp(2))
    client.feed(c.Disconnected())
    client.now = 1.0
    client.feed(c.Tick())
    assert client.it.deadline == ANSWER_S
    client.feed(c.Hopeless("gone"))
    client.feed(m.Reserve(number=3, name="z", needs={"gpu": 5}))
    client.now = 9.0
    client.feed(c.Tick())
    assert client.told == [c.Lost("gone")] and sorted(client.it.wishes) == [2]
