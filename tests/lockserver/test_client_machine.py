"""The rules of the client's machine (`client_machine.py`), event by event: no socket, no thread, and the time is
a number."""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from evidence.rules.standing import LOOK_S, RETRY_MOST_S, Me
from lockserver.rules import client_events as c
from lockserver.rules import messages as m
from lockserver.rules.client_machine import ANSWER_S, PRESUMED_DEAD_SHARE, ClientMachine
from lockserver.rules.messages import ACTIVE, INIT
from sidecar.machine.reconnect import FIRST_S, STEADY_S

E = TypeVar("E", bound=c.Effect)
WINDOW_S, SETTLE_S = 10.0, 2.0


def where(same: bool) -> c.There:
    return c.There.SAME if same else c.There.ANOTHER


class Client:
    """A client's machine, and the few things that a shell would remember."""

    def __init__(self, *, main: bool = True, presume_dead: bool = False, settle_s: float = SETTLE_S) -> None:
        self.machine = ClientMachine(Me("a", "0123abcd", 41, main))
        self.presume_dead, self.settle_s = presume_dead, settle_s
        self.now = 0.0
        self.effects: list[c.Effect] = []
        """Those of the last event."""
        self.all: list[c.Effect] = []

    def tell(self, event: c.Event) -> "Client":
        self.effects = self.machine.handle(event, self.now)
        self.all += self.effects
        return self

    def hear(self, message: m.ServerMessage) -> "Client":
        return self.tell(c.Heard(message))

    def welcome(self, *, server: str = "s1", holds: dict[str, int] | None = None, number: int = 1) -> "Client":
        welcome = m.Welcome(
            server_incarnation=server,
            number=number,
            policy=m.Policy(self.presume_dead, WINDOW_S, self.settle_s),
            secret="s3cret",
            holds=holds or {},
            protocol=m.PROTOCOL,
        )
        return self.hear(welcome)

    def come_in(self, *, server: str = "s1", holds: dict[str, int] | None = None, same: bool = True) -> "Client":
        """Through the door, from wherever it is."""
        self.until_it_knocks()
        return self.tell(c.Connected((1, 2), True, where(same))).welcome(server=server, holds=holds)

    def advance(self, seconds: float) -> "Client":
        self.now += seconds
        return self.tell(c.Tick())

    def until_it_knocks(self) -> None:
        self.tell(c.Tick())
        while not any(isinstance(effect, c.Connect) for effect in self.effects):
            assert self.machine.deadline < math.inf, "it will never knock"
            self.now = self.machine.deadline
            self.tell(c.Tick())

    def away(self, *, same: bool = True) -> "Client":
        return self.tell(c.Disconnected(where(same)))

    def holder(self, token: int = 7) -> "Client":
        return self.come_in().tell(c.Want(ACTIVE)).hear(m.Granted(lock=ACTIVE, token=token))

    def knock_in_vain_until(self, until: float, *, same: bool = True, there: c.There | None = None) -> float | None:
        """No server opens. Returns when it gave up, if it did."""
        while not self.lost:
            if self.of(c.Connect):
                self.tell(c.Disconnected(where(same) if there is None else there))
            elif self.machine.deadline > until:
                break
            else:
                self.now = max(self.now, self.machine.deadline)
                self.tell(c.Tick())
        if self.lost:
            return self.now
        self.now = until
        return None

    def of(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def said(self) -> list[m.ClientMessage]:
        return [effect.message for effect in self.of(c.Say)]

    @property
    def lost(self) -> str:
        return next((effect.why for effect in self.all if isinstance(effect, c.Lost)), "")


@pytest.fixture
def client() -> Iterator[Client]:
    yield Client()


# -- rule 1: nothing before Granted, no process before Welcome -----------------------------------------------------


def test_it_knocks_at_once(client: Client) -> None:
    assert client.tell(c.Tick()).of(c.Connect) == [c.Connect()]
    assert not client.tell(c.Tick()).effects, "one attempt at a time"


def test_a_main_process_registers_and_another_process_joins() -> None:
    for main, kind in ((True, m.Register), (False, m.Join)):
        client = Client(main=main).tell(c.Tick())
        (hello,) = client.tell(c.Connected((3, 4))).said
        assert isinstance(hello, kind) and hello.mapped
        assert (hello.protocol, hello.newest, hello.engine_id, hello.incarnation, hello.life, hello.pid) == (
            m.OLDEST,
            m.PROTOCOL,
            "a",
            "0123abcd",
            (3, 4),
            41,
        )


def test_no_process_counts_before_the_welcome(client: Client) -> None:
    client.tell(c.Tick()).tell(c.Connected((1, 2)))
    assert not client.of(c.Joined)
    assert client.welcome().of(c.Joined)


def test_nothing_is_asked_before_the_welcome_and_everything_right_after_it(client: Client) -> None:
    client.tell(c.Want(ACTIVE, {"gpu": 5})).tell(c.Want(INIT)).tell(c.SetReady(False)).tell(c.VouchFor(3, 77))
    assert client.all == [c.Connect(), c.WatchChild(3)]
    (hello,) = client.tell(c.Connected((1, 2))).said
    assert isinstance(hello, m.Register)
    client.welcome()
    assert client.said == [
        m.Vouch(child=3, pid=77),
        m.Acquire(lock=ACTIVE, needs={"gpu": 5}, again=True),
        m.Acquire(lock=INIT, again=True),
        m.Ready(ready=False),
    ]


def test_the_lock_is_got_with_granted_and_not_before(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE))
    assert client.said == [m.Acquire(lock=ACTIVE)] and not client.of(c.Got)
    assert client.hear(m.Granted(lock=ACTIVE, token=7)).of(c.Got) == [c.Got(ACTIVE, 7)]
    assert client.machine.holds == {ACTIVE: 7}


def test_the_lock_is_got_with_a_welcome_that_says_so(client: Client) -> None:
    """The server persisted the grant, and crashed before it could tell."""
    client.come_in().tell(c.Want(ACTIVE)).away().come_in(server="s2", holds={ACTIVE: 9})
    assert client.of(c.Got) == [c.Got(ACTIVE, 9)]
    assert not any(isinstance(message, m.Acquire) for message in client.said)


def test_a_grant_that_was_not_wanted_is_not_taken_and_one_that_was_is_got_once(client: Client) -> None:
    granted = m.Granted(lock=ACTIVE, token=7)
    assert not client.come_in().hear(granted).of(c.Got)
    assert client.tell(c.Want(ACTIVE)).hear(granted).of(c.Got) and not client.hear(granted).of(c.Got)


# -- rule 2: back with everything ----------------------------------------------------------------------------------


def test_a_connection_that_ends_is_made_again_with_the_claim_the_children_and_the_address(client: Client) -> None:
    client.holder(7).tell(c.VouchFor(3, 77)).tell(c.SetServing("unix:x"))
    client.now = 100.0
    client.away()
    assert client.of(c.Connect), "at once: it had lasted"
    (hello,) = client.tell(c.Connected((1, 2))).said
    assert isinstance(hello, m.Register) and hello.claims == {ACTIVE: 7} and hello.secret == "s3cret"
    client.welcome(server="s2", holds={ACTIVE: 7})
    assert client.said == [m.Vouch(child=3, pid=77), m.Serving(url="unix:x")] and not client.lost


def test_a_child_that_has_ended_counts_for_a_waiter_and_is_not_told_of_again(client: Client) -> None:
    client.holder(7).tell(c.VouchFor(3, 77)).tell(c.VouchFor(4, 78))
    assert client.of(c.WatchChild) == [c.WatchChild(4)] and client.said == [m.Vouch(child=4, pid=78)]
    assert client.tell(c.ChildEnded(3)).of(c.ChildCounts) == [c.ChildCounts(3)]
    client.away().come_in(server="s2", holds={ACTIVE: 7})
    assert client.said == [m.Vouch(child=4, pid=78)]


def test_wanting_what_is_held_gets_it_again_and_what_was_granted_on_the_whole_proof_stays_so(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).hear(m.Granted(lock=ACTIVE, token=7, proven=True))
    assert client.tell(c.Want(ACTIVE)).of(c.Got) == [c.Got(ACTIVE, 7, proven=True)] and not client.said


def test_a_waiter_comes_back_with_its_newest_needs(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE, {"gpu": 5})).tell(c.SetReady(True, {"gpu": 6}))
    assert client.said == [m.Ready(ready=True, needs={"gpu": 6})]
    client.away().come_in()
    assert client.said == [m.Acquire(lock=ACTIVE, needs={"gpu": 6}, again=True)]


def test_a_waiter_that_was_not_ready_is_not_ready_when_it_is_back(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).tell(c.SetReady(False)).away().come_in()
    assert client.said == [m.Acquire(lock=ACTIVE, again=True), m.Ready(ready=False)]


def test_a_member_comes_back_with_its_number() -> None:
    client = Client(main=False).tell(c.Tick()).tell(c.Connected((1, 2))).welcome(number=5).away()
    client.until_it_knocks()
    (hello,) = client.tell(c.Connected((1, 2))).said
    assert isinstance(hello, m.Join) and hello.number == 5


def test_one_that_lasted_is_made_again_at_once_and_the_waiting_starts_anew(client: Client) -> None:
    client.come_in()
    for _ in range(8):
        client.away().come_in()
    client.now += STEADY_S
    assert client.away().of(c.Connect)
    client.tell(c.Disconnected())
    assert client.machine.deadline - client.now == pytest.approx(FIRST_S)


def test_why_no_connection_can_be_made_is_said_once(client: Client) -> None:
    for _ in range(3):
        client.until_it_knocks()
        client.tell(c.Disconnected(why="the directory is another user's"))
    assert [effect for effect in client.all if isinstance(effect, c.Warn)] == [
        c.Warn("the directory is another user's")
    ]


def test_one_that_is_in_only_looks_where_its_path_leads(client: Client) -> None:
    client.holder()
    looks = 0
    for _ in range(20):
        assert client.now < client.machine.deadline < math.inf
        client.now = client.machine.deadline
        looks += len(client.tell(c.Tick()).of(c.LookAtPath))
        assert not [effect for effect in client.effects if not isinstance(effect, c.LookAtPath)]
    assert looks > 0 and client.now >= looks * min(LOOK_S, SETTLE_S / 4) - LOOK_S


def test_a_member_that_is_in_sleeps() -> None:
    assert a_member().machine.deadline == math.inf


def test_an_address_said_while_the_server_is_away_is_told_when_it_is_back(client: Client) -> None:
    client.holder(7).away().tell(c.SetServing("u"))
    assert not client.said
    client.come_in(holds={ACTIVE: 7})
    assert client.said == [m.Serving(url="u")]


def test_a_holder_that_drained_for_a_server_that_is_gone_serves_on(client: Client) -> None:
    client.holder(7).hear(m.Drain(round=3, timeout_s=30.0))
    assert client.of(c.BeginDrain) == [c.BeginDrain(3, 30.0)]
    client.away().come_in(server="s2", holds={ACTIVE: 7})
    assert any(isinstance(effect, c.ServeOn) for effect in client.all)


# -- rule 3: a holder whose server is away -------------------------------------------------------------------------


def test_with_proof_a_holder_serves_on_for_as_long_as_its_server_is_away(client: Client) -> None:
    client.holder().away()
    assert client.knock_in_vain_until(100.0) is None


def test_where_it_may_be_presumed_dead_it_ends_before_the_window_does() -> None:
    client = Client(presume_dead=True).holder()
    client.now = 50.0
    client.away()
    ended = client.knock_in_vain_until(200.0)
    assert (
        ended is not None and ended < 50.0 + WINDOW_S and ended == pytest.approx(50.0 + WINDOW_S * PRESUMED_DEAD_SHARE)
    )
    assert "presume us dead" in client.lost


def test_where_it_may_be_presumed_dead_a_server_that_lets_it_knock_and_never_answers_is_away_too() -> None:
    client = Client(presume_dead=True).holder()
    client.now = 50.0
    client.away()
    client.tell(c.Connected((1, 2)))
    ends = 50.0 + WINDOW_S * PRESUMED_DEAD_SHARE
    assert client.machine.deadline < ends
    while client.machine.deadline < ends:
        client.now = client.machine.deadline
        assert client.tell(c.Tick()).of(c.LookAtPath), "it looks where its path leads meanwhile"
    client.now = client.machine.deadline
    assert client.now == pytest.approx(ends) and client.tell(c.Tick()).of(c.Lost)


def test_a_shell_that_was_stopped_over_the_window_ends_with_its_first_event() -> None:
    client = Client(presume_dead=True).holder().away()
    client.now += WINDOW_S * 3
    assert client.tell(c.Connected((1, 2))).of(c.Lost)
    assert not client.tell(c.Tick()).effects, "it is over, once"


def test_where_it_may_be_presumed_dead_a_server_that_is_back_in_time_ends_the_wait() -> None:
    client = Client(presume_dead=True).holder().away()
    client.now += WINDOW_S / 2
    client.tell(c.Connected((1, 2))).welcome(server="s2", holds={ACTIVE: 7})
    client.now += 100
    assert not client.tell(c.Tick()).of(c.Lost)


def test_a_waiter_is_not_ended_by_any_absence() -> None:
    client = Client(presume_dead=True).come_in().tell(c.Want(ACTIVE)).away(same=False)
    assert client.knock_in_vain_until(100.0, same=False) is None


def test_a_holder_whose_directory_was_replaced_has_the_settling_time_to_find_the_new_server(client: Client) -> None:
    client.holder()
    client.now = 50.0
    client.away(same=False)
    ended = client.knock_in_vain_until(200.0, same=False)
    assert ended == pytest.approx(50.0 + SETTLE_S) and "replaced" in client.lost


def test_a_holder_that_finds_the_new_server_in_time_serves_on(client: Client) -> None:
    client.holder().away(same=False)
    client.now += SETTLE_S / 2
    client.come_in(server="s2", same=False, holds={ACTIVE: 7})
    assert not client.lost
    client.now += 100
    client.away()  # of the new directory, which is the one by now
    assert client.knock_in_vain_until(client.now + 100) is None


def test_a_directory_that_is_back_in_its_place_ends_the_wait(client: Client) -> None:
    client.holder().away(same=False)
    client.knock_in_vain_until(client.now + SETTLE_S / 2, same=False)
    assert client.knock_in_vain_until(client.now + 100, same=True) is None


def test_each_replacement_of_the_directory_gives_the_settling_time_anew(client: Client) -> None:
    client.holder().away(same=False).come_in(server="s2", same=False, holds={ACTIVE: 7})
    client.now += 1000
    client.away(same=False)
    assert client.of(c.Connect) and not client.lost
    client.now += SETTLE_S / 2
    client.tell(c.Disconnected(c.There.ANOTHER))
    assert not client.lost
    client.come_in(server="s3", same=False, holds={ACTIVE: 7})
    assert not client.lost


def test_where_it_may_be_presumed_dead_too_a_replaced_directory_leaves_only_the_settling_time() -> None:
    client = Client(presume_dead=True).holder()
    client.away(same=False)
    ended = client.knock_in_vain_until(100.0, same=False)
    assert ended is not None and ended <= SETTLE_S


def test_a_holder_that_knocks_at_another_server_which_never_answers_ends_before_a_waiter_is_granted_there(
    client: Client,
) -> None:
    client.holder().away().until_it_knocks()
    client.tell(c.Connected((1, 2), True, c.There.ANOTHER))
    assert not client.advance(SETTLE_S / 2).lost and client.advance(SETTLE_S / 2).lost


def test_where_no_server_runs_no_waiter_can_be_granted_and_a_holder_serves_on(client: Client) -> None:
    client.holder().away(same=False)
    assert client.knock_in_vain_until(100.0, there=c.There.NO_SERVER) is None
    client.tell(c.Disconnected(c.There.ANOTHER))  # there is a server now, and it doesn't open
    began = client.now
    ended = client.knock_in_vain_until(200.0, same=False)
    assert ended is not None and ended <= began + SETTLE_S + RETRY_MOST_S


# -- rule 4: where the path leads ----------------------------------------------------------------------------------


def test_a_holder_whose_path_leads_elsewhere_goes_there_at_once(client: Client) -> None:
    client.holder()
    client.now = 50.0
    client.tell(c.PathSeen(elsewhere=True))
    assert {c.HangUp, c.Connect} <= {type(effect) for effect in client.effects}, "the server there has to hear of it"
    (hello,) = client.tell(c.Connected((1, 2), True, c.There.ANOTHER)).said
    assert isinstance(hello, m.Register) and hello.claims == {ACTIVE: 7}
    assert not client.welcome(server="s2", holds={ACTIVE: 7}).lost


def test_a_path_that_leads_where_it_did_changes_nothing(client: Client) -> None:
    assert not client.holder().tell(c.PathSeen(elsewhere=False)).effects
    assert not client.away().tell(c.PathSeen(elsewhere=True)).of(c.HangUp), "there is no connection to end"


def test_a_holder_that_isnt_heard_where_its_path_leads_ends_before_a_waiter_is_granted_there(client: Client) -> None:
    client.holder().tell(c.PathSeen(elsewhere=True))
    assert not client.advance(SETTLE_S / 2).lost and client.advance(SETTLE_S / 2).lost


@pytest.mark.parametrize("settle_s", [1.0, 60.0])
def test_it_looks_every_second_and_sooner_than_a_server_there_can_have_settled(settle_s: float) -> None:
    client = Client(settle_s=settle_s).holder()
    looked = [client.now]
    while len(looked) < 4:
        client.now = client.machine.deadline
        looked += [client.now] if client.tell(c.Tick()).of(c.LookAtPath) else []
    assert all(later - earlier <= min(LOOK_S, settle_s / 2) for earlier, later in pairwise(looked))


# -- rule 7: a server that can't have us ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    [m.Incompatible(oldest=8, newest=9, why="another version"), m.Busy(why="full"), m.Problem(why="no descriptors")],
)
def test_a_server_that_cant_have_us_back_ends_nothing_and_is_asked_again_later(
    client: Client, word: m.ServerMessage
) -> None:
    client.holder().away()
    for _ in range(3):
        client.until_it_knocks()
        before = client.now
        client.tell(c.Connected((1, 2))).hear(word).away()
        assert not client.lost
        assert client.machine.deadline == pytest.approx(before + SETTLE_S / 2)
    assert len([effect for effect in client.all if isinstance(effect, c.Warn)]) == 1, "it is said once"
    assert not client.come_in(server="s2", holds={ACTIVE: 7}).lost
    client.away().until_it_knocks()
    assert client.tell(c.Connected((1, 2))).hear(word).of(c.Warn), "and again if it had us back meanwhile"


def test_a_mistake_of_one_that_was_never_welcomed_is_final(client: Client) -> None:
    client.tell(c.Tick()).tell(c.Connected((1, 2))).hear(m.Problem(why="no such name"))
    assert client.of(c.No) == [c.No("no such name")]
    assert not client.away().effects


def test_another_version_is_waited_for_also_by_one_that_was_never_welcomed(client: Client) -> None:
    client.tell(c.Tick()).tell(c.Connected((1, 2))).hear(m.Incompatible(oldest=8, newest=9, why="another")).away()
    assert client.of(c.No) == [] and client.machine.deadline < math.inf


# -- rule 5: told, it ends -----------------------------------------------------------------------------------------


def a_member() -> Client:
    return Client(main=False).tell(c.Tick()).tell(c.Connected((1, 2))).welcome(number=2)


@pytest.mark.parametrize(
    "comes",
    [lambda: Client().holder(), lambda: Client().come_in().tell(c.Want(ACTIVE)), a_member],
    ids=["a holder", "a waiter: its end was proven, so its children may have been killed", "a member"],
)
def test_one_that_is_refused_when_it_comes_back_ends_at_once(comes: Callable[[], Client]) -> None:
    client = comes().away()
    client.until_it_knocks()
    client.tell(c.Connected((1, 2))).hear(m.Refused(why="b was granted the lock"))
    assert client.of(c.Lost) == [c.Lost("b was granted the lock")] and not client.machine.holds


def test_a_holder_of_whom_the_new_server_knows_nothing_ends_at_once(client: Client) -> None:
    client.holder().away().come_in(server="s2", holds={})
    assert client.of(c.Lost) and not client.of(c.Joined)


def test_one_that_is_refused_the_first_time_is_told_no_and_does_not_knock_again() -> None:
    for main in (True, False):
        client = Client(main=main).tell(c.Tick()).tell(c.Connected((1, 2))).hear(m.Refused(why="no"))
        assert client.of(c.No) == [c.No("no")] and not client.lost
        client.away()
        assert not client.effects


def test_a_wish_that_is_refused_is_no_end(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE, {"gpu": 10**12})).hear(m.Refused(why="more than there is"))
    assert client.of(c.No) == [c.No("more than there is")] and not client.lost
    client.away().come_in()
    assert not any(isinstance(message, m.Acquire) for message in client.said)
    assert client.tell(c.Want(ACTIVE)).said == [m.Acquire(lock=ACTIVE)]


def test_where_there_is_nothing_to_come_back_to_it_ends(client: Client) -> None:
    client.holder().away()
    assert client.tell(c.Hopeless("its end was proven")).of(c.Lost) == [c.Lost("its end was proven")]
    first = Client().tell(c.Tick()).tell(c.Hopeless("no locks here"))
    assert first.of(c.No) and not first.lost


def test_after_its_end_nothing_is_said_or_done(client: Client) -> None:
    client.holder().away().come_in(server="s2")
    for event in (
        c.Tick(),
        c.Want(ACTIVE),
        c.Connected((1, 2)),
        c.Heard(m.Granted(lock=ACTIVE, token=9)),
        c.Disconnected(),
    ):
        assert not client.tell(event).effects and client.machine.deadline == math.inf


def test_giving_up_is_asked_for_and_the_answer_is_waited_for(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).tell(c.Withdraw(ACTIVE))
    assert client.said == [m.Withdraw(number=1)] and not client.of(c.Without)
    assert client.hear(m.Withdrawn(lock=ACTIVE, number=1)).of(c.Without)


def test_a_grant_that_crosses_a_withdrawal_is_taken(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).tell(c.Withdraw(ACTIVE))
    assert client.hear(m.Granted(lock=ACTIVE, token=7)).of(c.Got) and not client.lost
    assert client.advance(ANSWER_S + 1).of(c.Without) == [], "it is held"


def test_a_server_that_says_nothing_is_not_waited_for_and_a_grant_after_that_ends_the_process(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).tell(c.Withdraw(ACTIVE))
    assert client.machine.deadline <= client.now + ANSWER_S
    assert client.advance(ANSWER_S).of(c.Without)
    assert client.hear(m.Granted(lock=ACTIVE, token=7)).of(c.Lost)


def test_a_withdrawal_that_a_crash_of_the_server_left_unanswered_stands(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).tell(c.Withdraw(ACTIVE))
    assert client.away().of(c.Without)


def test_an_answer_to_an_older_withdrawal_means_nothing(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).tell(c.Withdraw(ACTIVE)).tell(c.Want(ACTIVE))
    assert not client.hear(m.Withdrawn(lock=ACTIVE, number=1)).of(c.Without)
    client.tell(c.Withdraw(ACTIVE))
    assert not client.hear(m.Withdrawn(lock=ACTIVE, number=1)).of(c.Without)
    assert client.hear(m.Withdrawn(lock=ACTIVE, number=2)).of(c.Without)


def test_a_wish_that_was_withdrawn_and_made_again_takes_the_grant(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).tell(c.Withdraw(ACTIVE)).tell(c.Want(ACTIVE))
    assert client.said == [m.Acquire(lock=ACTIVE)]
    assert client.hear(m.Granted(lock=ACTIVE, token=7)).of(c.Got) and not client.lost


def test_a_wish_that_was_withdrawn_while_away_is_not_made_again(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).away().tell(c.Withdraw(ACTIVE)).come_in()
    assert client.said == []


def test_a_lock_that_was_withdrawn_while_away_and_granted_all_the_same_ends_the_process(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).away().tell(c.Withdraw(ACTIVE)).come_in(server="s2", holds={ACTIVE: 7})
    assert client.of(c.Lost)


# -- the permit ----------------------------------------------------------------------------------------------------


def test_a_permit_is_given_back_with_a_word(client: Client) -> None:
    client.come_in().tell(c.Want(INIT)).hear(m.Granted(lock=INIT, token=0))
    assert client.of(c.Got) == [c.Got(INIT, 0)]
    assert client.tell(c.Withdraw(INIT)).said == [m.Release()]


def test_a_permit_that_was_granted_before_its_withdrawal_is_not_taken_for_the_next_one(client: Client) -> None:
    client.come_in().tell(c.Want(INIT)).tell(c.Withdraw(INIT))
    assert client.of(c.Without) and client.said == [m.Withdraw(lock=INIT, number=1)]
    client.tell(c.Want(INIT))
    assert not client.hear(m.Granted(lock=INIT, token=0)).of(c.Got)
    client.hear(m.Withdrawn(lock=INIT, number=1))
    assert client.hear(m.Granted(lock=INIT, token=0)).of(c.Got)


def test_a_permit_that_comes_unasked_is_given_back(client: Client) -> None:
    client.come_in().tell(c.Want(INIT)).tell(c.Withdraw(INIT)).hear(m.Withdrawn(lock=INIT, number=1))
    assert client.hear(m.Granted(lock=INIT, token=0)).said == [m.Release()]


def test_a_permit_that_was_given_back_while_away_is_released_when_the_server_is_back(client: Client) -> None:
    client.come_in().tell(c.Want(INIT)).hear(m.Granted(lock=INIT, token=0)).away().tell(c.Withdraw(INIT))
    assert client.come_in(server="s2", holds={INIT: 0}).said == [m.Release()]


def test_a_permit_is_claimed_when_the_server_is_back_and_its_loss_is_no_end(client: Client) -> None:
    client.come_in().tell(c.Want(INIT)).hear(m.Granted(lock=INIT, token=0)).away()
    client.until_it_knocks()
    (hello,) = client.tell(c.Connected((1, 2))).said
    assert isinstance(hello, m.Register) and hello.claims == {INIT: 0}
    client.welcome(server="s2", holds={})
    assert not client.lost and INIT not in client.machine.holds


# -- what is given back between a hello and its welcome --------------------------------------------------------------


@pytest.mark.parametrize(("lock", "token", "back"), [(ACTIVE, 7, c.GaveBack()), (INIT, 0, c.Withdraw(INIT))])
@pytest.mark.parametrize("then", ["nothing", "wanted", "wanted in vain"])
def test_what_was_given_back_since_it_was_claimed_is_given_back_and_then_asked_for_anew(
    client: Client, lock: m.LockName, token: int, back: c.Event, then: str
) -> None:
    client.come_in().tell(c.Want(lock)).hear(m.Granted(lock=lock, token=token)).away().until_it_knocks()
    (hello,) = client.tell(c.Connected((1, 2))).said
    assert isinstance(hello, m.Register) and hello.claims == {lock: token}
    client.tell(back)
    if then != "nothing":
        client.tell(c.Want(lock, {"gpu": 60}))
    if then == "wanted in vain":
        client.tell(c.Withdraw(lock))
    client.welcome(server="s2", holds={lock: token})
    asked = [m.Acquire(lock=lock, needs={"gpu": 60}, again=True)] if then == "wanted" else []
    assert client.said == [m.Release(lock=lock, token=token), *asked] and not client.of(c.Got) and not client.lost


# -- switchover ----------------------------------------------------------------------------------------------------


def test_prepare_is_checked_and_answered(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).hear(m.Prepare(round=4))
    assert client.of(c.Check) == [c.Check(4)]
    assert client.tell(c.Checked(4, False, "sick")).said == [m.Prepared(round=4, ok=False, why="sick")]


def test_drain_resume_and_exit_are_the_programs(client: Client) -> None:
    client.holder().hear(m.Drain(round=2, timeout_s=9.0))
    assert client.of(c.BeginDrain) == [c.BeginDrain(2, 9.0)]
    assert client.tell(c.DrainEnded(2, True)).said == [m.Drained(round=2)]
    assert client.hear(m.Resume(why="called off")).of(c.ServeOn) == [c.ServeOn("called off")]
    assert client.hear(m.Exit(round=2)).of(c.End) == [c.End()]


def test_a_plan_that_is_off_before_the_drain_is_nothing_to_serve_on_from(client: Client) -> None:
    client.holder().hear(m.Resume(why="called off"))
    assert not client.of(c.ServeOn)


def test_an_answer_that_is_ready_when_the_server_is_away_is_not_said(client: Client) -> None:
    client.holder().hear(m.Drain(round=2, timeout_s=9.0)).away()
    assert not client.tell(c.DrainEnded(2, True)).said
    assert not client.tell(c.Checked(2, True)).said


# -- rule 6: what is given to keep ---------------------------------------------------------------------------------


def keep(tree: str, token: int = 7, *numbers: int) -> m.Keep:
    return m.Keep(mark=token, tree=tree, numbers=list(numbers) or [1])


def test_what_a_new_server_gives_before_its_welcome_does_not_take_the_place_of_more_that_was_kept(
    client: Client,
) -> None:
    """A member that is stopped can't come back by itself: only its copy tells of it (found by the simulator)."""
    client.come_in(server="s1").hear(keep("a.0123abcd", 7, 2, 3)).away()
    client.until_it_knocks()
    client.tell(c.Connected((1, 2))).hear(keep("a.0123abcd", 7, 2))
    assert client.effects == [
        c.Say(m.HandBack(mark=7, tree="a.0123abcd", numbers=[2, 3])),
        c.KeepCopies("a.0123abcd", [2]),
    ]
    assert client.welcome(server="s2").said == [], "it doesn't get back what it gave"


def test_copies_are_kept_and_handed_to_the_next_server_before_anything_is_asked_of_it(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).tell(c.VouchFor(1, 5)).hear(keep("x.00000001", 7, 1, 2))
    assert client.of(c.KeepCopies) == [c.KeepCopies("x.00000001", [1, 2])]
    client.away().come_in(server="s2")
    first, *rest = client.said
    assert first == m.HandBack(mark=7, tree="x.00000001", numbers=[1, 2])
    assert [type(message) for message in rest] == [m.Vouch, m.Acquire]
    assert client.effects.index(c.Say(first)) < client.effects.index(c.Joined())


def test_the_server_that_gave_them_does_not_get_them_back(client: Client) -> None:
    client.come_in().hear(keep("x.00000001")).away().come_in(server="s1")
    assert not client.said


def test_only_the_newest_holders_copies_are_kept_and_the_old_ones_dropped(client: Client) -> None:
    client.come_in().hear(keep("x.00000001", 7)).hear(keep("y.00000002", 8))
    assert client.effects == [c.DropCopies("x.00000001"), c.KeepCopies("y.00000002", [1])]
    client.away().come_in(server="s2")
    assert client.said == [m.HandBack(mark=8, tree="y.00000002", numbers=[1])]


def test_ones_own_childrens_copies_are_kept_beside_the_holders(client: Client) -> None:
    client.come_in().hear(keep("a.0123abcd", 7, 2)).hear(keep("y.00000002", 8)).hear(keep("a.0123abcd", 8, 2, 3))
    assert not client.of(c.DropCopies)
    client.away().come_in(server="s2")
    assert client.said == [
        m.HandBack(mark=8, tree="a.0123abcd", numbers=[2, 3]),
        m.HandBack(mark=8, tree="y.00000002", numbers=[1]),
    ]


def test_more_copies_are_added_those_of_the_gone_dropped_and_what_came_is_acknowledged(client: Client) -> None:
    client.come_in().hear(keep("y.00000002", 8, 1, 2, 3))
    more = m.Keep(mark=8, tree="y.00000002", numbers=[4, 5], more=True, gone=[2], answer=True)
    assert client.hear(more).effects == [
        c.DropCopies("y.00000002", [2, 4, 5]),
        c.KeepCopies("y.00000002", [4, 5], more=True),
        c.Say(m.Kept(copies=2)),
    ]
    client.away().come_in(server="s2")
    assert client.said == [m.HandBack(mark=8, tree="y.00000002", numbers=[1, 3, 4, 5])]


def test_nothing_that_the_server_may_say_is_an_error_to_the_machine(client: Client) -> None:
    others: list[Any] = [
        m.Pong(server_incarnation="s"),
        m.History(events=[]),
        m.SwitchoverStep(phase="p", detail="d"),
    ]
    client.come_in()
    for message in others:
        assert client.hear(message).effects == []
    assert client.hear(m.Vouched(child=9)).of(c.ChildCounts) == [c.ChildCounts(9)]
    more = m.Keep(mark=8, tree="y.00000002", numbers=[4], more=True)
    assert client.hear(more).effects == [c.KeepCopies("y.00000002", [4])], "more than nothing is all of it"


def test_a_grant_that_came_in_the_moment_in_which_it_was_given_up_is_held(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).hear(m.Granted(lock=ACTIVE, token=7))
    assert client.tell(c.Withdraw(ACTIVE)).of(c.Got) and not client.lost and not client.of(c.Without)


def test_the_names_that_come_with_a_grant_are_kept_and_the_permit_brings_none(client: Client) -> None:
    client.come_in().tell(c.Want(ACTIVE)).tell(c.Want(INIT))
    assert client.hear(m.Granted(lock=ACTIVE, token=7)).of(c.KeepNames)
    assert not client.hear(m.Granted(lock=INIT, token=0)).of(c.KeepNames)
