"""The rules of a client of the ledger, one by one, against its machine."""

from typing import Any

from evidence.rules import client_events as c
from evidence.rules.standing import Me
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

    def gives_up_growth(self) -> None:
        """To 20; and hears no answer to that, either."""
        self.feed(m.Resize(number=2, lease=7, bytes={"gpu": 20, "second": 10}))
        self.feed(GiveUp(2))
        self.now += ANSWER_S + 0.1
        self.feed(c.Tick())

    def feed(self, event: Any) -> None:
        for effect in self.it.handle(event, self.now):
            (self.said if isinstance(effect, c.Say) else self.told).append(getattr(effect, "message", effect))

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
    client.feed(c.Disconnected())
    client.said.clear()
    client.feed(c.Connected(life=(1, 1)))
    (hello,) = client.said
    assert [bool(claim.outlives) for claim in hello.claims] == [False, True]
