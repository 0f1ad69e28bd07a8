"""What a process does towards the lock server: the rules of the client. Pure, like `machine.py`; `session.py` has the
socket and the thread.

One of these runs in every process of an engine: the main process registers and may hold locks, the others join. Both
come back by themselves when the server does.

The rules:
 1. Nothing is held before `Granted` (or a `Welcome` that says so), and no process counts before `Welcome`.
 2. A connection that ends is made again, with everything that was said: the claim, the children vouched for, the
    wishes, the address.
 3. A holder whose server is away goes on for as long as no other engine can be granted. That is so while the path of
    the run directory leads to the directory in which it was granted, or to no server at all. If it leads to another
    server that doesn't take this holder back, that server may grant as soon as it has settled: this process ends
    before. Under `--unsafe-presume-dead` a new server grants when its window is over: the holder ends before that, too.
 4. A main process looks where its path leads, when the kernel says that it may have changed and every second besides.
    If it leads elsewhere, the server there has to hear of this process at once: the connection is made there.
 5. Told that another holds, or refused: it ends at once. So does a member that is refused.
 6. What the server gives to keep is kept, and handed to the next server before anything is asked of it.
 7. Giving up is asked for: the server says that it is withdrawn, or the grant came first and is taken. A server that is
    silent is not waited for; what it grants then, to a program that doesn't ask again, ends this process.
 8. A server that can't talk with us, or has no room, ends nothing: it is asked again later.
"""

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from lockserver.rules import messages as m
from lockserver.rules.client_events import (
    BeginDrain,
    Check,
    Checked,
    ChildCounts,
    ChildEnded,
    Connect,
    Connected,
    Disconnected,
    DrainEnded,
    DropCopies,
    Effect,
    End,
    Event,
    Got,
    HangUp,
    Heard,
    Hopeless,
    Joined,
    KeepCopies,
    KeepNames,
    LookAtPath,
    Lost,
    No,
    PathSeen,
    Say,
    ServeOn,
    SetReady,
    SetServing,
    ShowOldLives,
    There,
    Tick,
    VouchFor,
    Want,
    Warn,
    WatchChild,
    Withdraw,
    Without,
)
from lockserver.rules.messages import ACTIVE, INIT
from sidecar.machine.reconnect import Reconnect
from sidecar.terminal.names import incarnation_name

RETRY_MOST_S = 0.1
LOOK_S = 1.0
"""How often a main process looks where its path leads; more often where a server settles sooner."""
LATER_S = 2.0
"""For a server that can't have us now; sooner where a server settles sooner."""
ANSWER_S = 2.0
"""How long a program that gives up waits for the server's word; a server that is stopped says nothing."""
PRESUMED_DEAD_SHARE = 0.8
"""This share of the window: when it is over, a holder that its server may presume dead has ended."""


GIVEN_UP = "the lock was granted after it was given up, and only an end releases it"


class Me(msgspec.Struct, frozen=True):
    engine_id: str
    incarnation: str
    pid: int
    main: bool


class Link(Enum):
    AWAY = "away"
    KNOCKING = "knocking"
    IN = "in"


class ClientMachine:
    def __init__(self, me: Me) -> None:
        self.me = me
        self.link = Link.AWAY
        self.holds: dict[m.LockName, int] = {}
        self.wants: dict[m.LockName, dict[str, int]] = {}
        self.ready = True
        self.server_incarnation = ""
        self.deadline = 0.0
        self._out: list[Effect] = []
        self._now = 0.0
        self._given_up: set[m.LockName] = set()
        """Locks that the program no longer waits for, and hasn't asked for since."""
        self._withdrawals = 0
        self._answer_by = math.inf
        """The program has given up the lock `active`, and waits until then for the server's word."""
        self._permit_unanswered = 0
        """This withdrawal of the permit: what is granted before the answer to it means nothing."""
        self._draining = False
        """For a switchover, which ends with the server that asked for it."""
        self._proven = False
        """The grant of `active` stands on the whole proof."""
        self._children: dict[int, int] = {}
        """Those that were vouched for and live."""
        self._serving = m.Serving(url="")
        self._secret = ""
        self._number = 0
        self._policy: m.Policy | None = None
        self._kept: dict[str, tuple[str, m.Keep]] = {}
        """Incarnation -> which server gave the copies of its pidfds, and what it said with them."""
        self._to_return: set[str] = set()
        """Incarnations of which a server that was not yet heard of may not know as much as was kept."""
        self._reconnect = Reconnect(RETRY_MOST_S)
        self._connecting = False
        self._look_at = math.inf
        self._away_since = 0.0
        self._unheard_since = math.inf
        """Since when a server may be at the end of the path that hasn't taken this holder back."""
        self._warned = ""
        self.last_word: Lost | No | None = None
        """It is over."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._now, self._out = now, []
        if self.last_word is not None:
            return self._out
        _HANDLERS[type(event)](self, event)
        if self._now >= self._answer_by:
            self._stop_waiting()
        self._step()
        self.deadline = min(self.deadline, self._answer_by)
        return self._out

    # -- the connection (rules 2 and 3) ----------------------------------------------------------------------------

    def _step(self) -> None:
        self.deadline = math.inf
        if self.last_word is not None:
            return
        if self.link is Link.IN:
            self._keep_looking()
            return
        end_at, why = self._must_end_at()
        if self._now >= end_at:
            self._lose(why)
            return
        self.deadline = end_at
        if self.link is Link.KNOCKING:  # a server that is stopped takes a knock, and never answers
            self._keep_looking()
            self.deadline = min(self.deadline, end_at)
        if self.link is Link.AWAY and not self._connecting:
            if self._now >= self._reconnect.at:
                self._connecting = True
                self._out.append(Connect())
            else:
                self.deadline = min(self.deadline, self._reconnect.at)

    def _keep_looking(self) -> None:
        if not self.me.main:
            return
        if self._now >= self._look_at:
            self._look_at = self._now + min(LOOK_S, self._settle_s / 4)
            self._out.append(LookAtPath())
        self.deadline = self._look_at

    @property
    def _settle_s(self) -> float:
        """How long a new server waits for a holder that it can't know of; no joined process is silent for so long."""
        return self._policy.settle_s if self._policy is not None else math.inf

    def _must_end_at(self) -> tuple[float, str]:
        """Until when a holder may go on without its server."""
        policy = self._policy
        if ACTIVE not in self.holds or policy is None:
            return math.inf, ""
        ends = [
            (
                self._unheard_since + policy.settle_s,
                "the run directory was replaced, and no lock server in it has us back in time",
            )
        ]
        if policy.presume_dead:
            until = self._away_since + policy.window_s * PRESUMED_DEAD_SHARE
            ends.append((until, "the lock server is away, and would soon presume us dead"))
        return min(ends)

    def _on_connected(self, event: Connected) -> None:
        self._connecting = False
        self._see(event.there)
        self.link, self._to_return = Link.KNOCKING, set(self._kept)
        me = self.me
        if me.main:
            hello: m.ClientMessage = m.Register(
                protocol=m.OLDEST,
                newest=m.PROTOCOL,
                engine_id=me.engine_id,
                incarnation=me.incarnation,
                life=event.life,
                pid=me.pid,
                claims=dict(self.holds),
                secret=self._secret,
                mapped=event.mapped,
            )
        else:
            hello = m.Join(
                protocol=m.OLDEST,
                newest=m.PROTOCOL,
                engine_id=me.engine_id,
                incarnation=me.incarnation,
                life=event.life,
                pid=me.pid,
                number=self._number,
                mapped=event.mapped,
            )
        self._say(hello)

    def _on_disconnected(self, event: Disconnected) -> None:
        self._away()
        self._see(event.there)
        if event.why:
            self._tell(event.why)

    def _away(self) -> None:
        if self.link is Link.IN:
            self._away_since = self._now
        self._reconnect.ended(self._now)
        self._permit_unanswered = 0
        if self._answer_by < math.inf:
            self._stop_waiting()
        self.link, self._connecting = Link.AWAY, False

    def _on_path_seen(self, event: PathSeen) -> None:
        """While there is a connection. If it leads elsewhere, the server at the other end of the connection is not the
        server that others find.
        """
        if event.elsewhere and self.link is not Link.AWAY:
            self._out.append(HangUp())
            self._away()
            self._see(There.ANOTHER)

    def _on_hopeless(self, event: Hopeless) -> None:
        self._connecting = False
        self._refused(event.why)

    def _see(self, there: There) -> None:
        self._unheard_since = min(self._unheard_since, self._now) if there is There.ANOTHER else math.inf

    # -- what the server says --------------------------------------------------------------------------------------

    def _on_heard(self, event: Heard) -> None:
        message = event.message
        if isinstance(message, m.Welcome):
            self._welcomed(message)
        elif isinstance(message, m.Granted):
            if message.lock == ACTIVE:
                self._out.append(KeepNames())
            self._granted(message)
        elif isinstance(message, m.Withdrawn):
            self._on_withdrawn(message)
        elif isinstance(message, m.Refused):
            self._refused(message.why)
        elif isinstance(message, m.Problem):
            self._problem(message.why)
        elif isinstance(message, m.Incompatible):
            self._warn(f"the lock server can't talk with this process: {message.why}")
        elif isinstance(message, m.Busy):
            self._warn(f"the lock server says that it isn't possible now: {message.why}")
        elif isinstance(message, m.Prepare):
            self._out.append(Check(message.round))
        elif isinstance(message, m.Keep):
            self._keep(message)
        elif isinstance(message, m.Drain):
            self._draining = True
            self._out.append(BeginDrain(message.round, message.timeout_s))
        elif isinstance(message, m.Resume):
            self._draining = False
            self._out.append(ServeOn(message.why))
        elif isinstance(message, m.Exit):
            self._out.append(End())
        elif isinstance(message, m.Vouched):
            self._out.append(ChildCounts(message.child))

    def _welcomed(self, message: m.Welcome) -> None:
        self.link, self._look_at = Link.IN, self._now + LOOK_S / 4
        self._reconnect.welcomed(self._now)
        self._policy, self._number = message.policy, message.number
        self._unheard_since = math.inf  # the directory of the server that has us back is ours from now on
        self._warned = ""
        if ACTIVE in message.holds:
            self._out.append(KeepNames())
        self._secret = message.secret or self._secret
        if ACTIVE in self.holds and ACTIVE not in message.holds:
            self._lose("the lock server knows nothing of our grant")
            return
        if ACTIVE in message.holds and ACTIVE in self._given_up:
            self._lose(GIVEN_UP)
            return
        if self._draining and ACTIVE in self.holds:
            self._draining = False
            self._out.append(ServeOn("the server that asked for the switchover is gone"))
        if INIT in self.holds and INIT not in message.holds:
            del self.holds[INIT]
        self._return_copies(message.server_incarnation)
        self.server_incarnation = message.server_incarnation
        self._out += [ShowOldLives(), Joined()]
        for child, pid in self._children.items():
            self._say(m.Vouch(child=child, pid=pid))
        if INIT in message.holds and INIT not in self.holds and INIT not in self.wants:
            self._say(m.Release())
        for lock, needs in list(self.wants.items()):
            if lock in message.holds:
                self._granted(m.Granted(lock=lock, token=message.holds[lock]))
            else:
                self._say(m.Acquire(lock=lock, needs=needs, again=True))
        if ACTIVE in self.wants and not self.ready:
            self._say(m.Ready(ready=False))
        if ACTIVE in self.holds and self._serving.url:
            self._say(self._serving)

    def _return_copies(self, server_incarnation: str = "") -> None:
        for tree, (given_by, keep) in self._kept.items():
            if tree in self._to_return and given_by != server_incarnation:
                self._say(m.HandBack(token=keep.token, tree=keep.tree, numbers=keep.numbers))
        self._to_return.clear()

    def _keep(self, message: m.Keep) -> None:
        """Only the copies of one's own incarnation and of the newest holder are kept. What a new server gives before
        its welcome may name fewer than what was kept from the last one: that goes back before it is replaced.
        """
        if self.link is not Link.IN:
            self._return_copies()
        own = incarnation_name(self.me.engine_id, self.me.incarnation)
        for tree in list(self._kept):
            if tree not in (own, message.tree) and message.tree != own:
                del self._kept[tree]
                self._out.append(DropCopies(tree))
        left: list[int] = []
        more = message.more and message.tree in self._kept
        if more:
            changed = [*message.gone, *message.numbers]
            left = [number for number in self._kept[message.tree][1].numbers if number not in changed]
            self._out.append(DropCopies(message.tree, changed))
        kept = msgspec.structs.replace(message, numbers=left + message.numbers)
        self._kept[message.tree] = (self.server_incarnation, kept)
        self._out.append(KeepCopies(message.tree, message.numbers, more))
        if message.answer:
            self._say(m.Kept(copies=len(message.numbers)))

    def _granted(self, message: m.Granted) -> None:
        name: m.LockName = ACTIVE if message.lock == ACTIVE else INIT
        if name == INIT and self._permit_unanswered:
            return
        asked = name in self.wants or (name == ACTIVE and self._answer_by < math.inf)
        if name == ACTIVE and name in self._given_up and not asked:
            self._lose(GIVEN_UP)
        elif name == INIT and not asked and INIT not in self.holds:
            self._say(m.Release())
        elif asked:
            self.wants.pop(name, None)
            self._take_up(name)
            self.holds[name] = message.token
            if name == ACTIVE:
                self._proven = message.proven
            self._out.append(self._got(name, message.token))

    def _got(self, lock: m.LockName, token: int) -> Got:
        return Got(lock, token, proven=lock == ACTIVE and self._proven)

    def _refused(self, why: str) -> None:
        if self.link is Link.IN:
            self.wants.pop(ACTIVE, None)
            self._out.append(No(why))
        elif ACTIVE in self.holds or self.server_incarnation:
            self._lose(why)
        else:
            self._over(No(why))

    def _problem(self, why: str) -> None:
        """The server says that this process has made a mistake. Before the first welcome that is final; a process that
        was welcomed comes back, and a person should know.
        """
        if self.server_incarnation:
            self._warn(f"the lock server ended the connection: {why}")
        else:
            self._over(No(why))

    def _warn(self, text: str) -> None:
        """Nothing ends, and it is asked again later."""
        self._reconnect.later(self._now, min(LATER_S, self._settle_s / 2))
        self._tell(text)

    def _tell(self, text: str) -> None:
        """Once, and not at every try."""
        if text != self._warned:
            self._warned = text
            self._out.append(Warn(text))

    def _lose(self, why: str) -> None:
        self.holds.clear()
        self._over(Lost(why))

    def _over(self, last_word: Lost | No) -> None:
        self.last_word = last_word
        self._out.append(last_word)

    # -- what the program wants ------------------------------------------------------------------------------------

    def _on_want(self, event: Want) -> None:
        if event.lock in self.holds:
            self._out.append(self._got(event.lock, self.holds[event.lock]))
            return
        self._take_up(event.lock)
        self.wants[event.lock] = event.needs
        if event.lock == ACTIVE:
            self.ready = True
        self._say_if_in(m.Acquire(lock=event.lock, needs=event.needs))

    def _on_withdraw(self, event: Withdraw) -> None:
        if event.lock == INIT:
            self._give_up_the_permit()
        elif ACTIVE in self.holds:
            self._out.append(self._got(ACTIVE, self.holds[ACTIVE]))  # it came first
        elif self.wants.pop(ACTIVE, None) is not None:
            self._given_up.add(ACTIVE)
            if self._ask_to_withdraw(ACTIVE):
                self._answer_by = self._now + ANSWER_S
            else:
                self._say_if_in(m.Ready(ready=False))
                self._out.append(Without(ACTIVE))
        elif self._answer_by == math.inf:
            self._out.append(Without(ACTIVE))

    def _give_up_the_permit(self) -> None:
        """Whether it waits for it or has it: what was granted meanwhile is given back."""
        wanted = self.wants.pop(INIT, None) is not None
        self.holds.pop(INIT, None)
        if wanted and self._ask_to_withdraw(INIT):
            self._permit_unanswered = self._withdrawals
        else:
            self._say_if_in(m.Release())
        self._out.append(Without(INIT))

    def _ask_to_withdraw(self, lock: m.LockName) -> bool:
        """False: there is no server."""
        if self.link is not Link.IN:
            return False
        self._withdrawals += 1
        self._say(m.Withdraw(lock=lock, number=self._withdrawals))
        return True

    def _on_withdrawn(self, message: m.Withdrawn) -> None:
        if message.lock == INIT and message.number == self._permit_unanswered:
            self._permit_unanswered = 0
        elif message.lock == ACTIVE and message.number == self._withdrawals and self._answer_by < math.inf:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        """The lock was given up, and that stands."""
        self._answer_by = math.inf
        self._out.append(Without(ACTIVE))

    def _take_up(self, lock: m.LockName) -> None:
        """The program waits for it (again), or has it."""
        self._given_up.discard(lock)
        if lock == ACTIVE:
            self._answer_by = math.inf

    def _on_set_ready(self, event: SetReady) -> None:
        self.ready = event.ready
        if ACTIVE in self.wants:
            if event.needs is not None:
                self.wants[ACTIVE] = event.needs
            self._say_if_in(m.Ready(ready=event.ready, needs=event.needs))

    def _on_set_serving(self, event: SetServing) -> None:
        self._serving = m.Serving(url=event.url, kept=event.kept)
        if ACTIVE in self.holds:
            self._say_if_in(self._serving)

    def _on_checked(self, event: Checked) -> None:
        self._say_if_in(m.Prepared(round=event.round, ok=event.ok, why=event.why))

    def _on_drain_ended(self, event: DrainEnded) -> None:
        self._say_if_in(m.Drained(round=event.round, ok=event.ok, why=event.why))

    def _on_vouch_for(self, event: VouchFor) -> None:
        self._children[event.child] = event.pid
        self._out.append(WatchChild(event.child))
        self._say_if_in(m.Vouch(child=event.child, pid=event.pid))

    def _on_child_ended(self, event: ChildEnded) -> None:
        """It touches no device any more, whether or not the server has heard of it."""
        self._children.pop(event.child, None)
        self._out.append(ChildCounts(event.child))

    def _on_tick(self, event: Tick) -> None:
        """Time has passed; `_step` looks what follows."""

    def _say_if_in(self, message: m.ClientMessage) -> None:
        if self.link is Link.IN:
            self._say(message)

    def _say(self, message: m.ClientMessage) -> None:
        self._out.append(Say(message))


_HANDLERS: dict[type, Callable[[ClientMachine, Any], None]] = {
    Connected: ClientMachine._on_connected,
    Disconnected: ClientMachine._on_disconnected,
    Hopeless: ClientMachine._on_hopeless,
    Heard: ClientMachine._on_heard,
    Want: ClientMachine._on_want,
    Withdraw: ClientMachine._on_withdraw,
    SetReady: ClientMachine._on_set_ready,
    SetServing: ClientMachine._on_set_serving,
    Checked: ClientMachine._on_checked,
    DrainEnded: ClientMachine._on_drain_ended,
    VouchFor: ClientMachine._on_vouch_for,
    ChildEnded: ClientMachine._on_child_ended,
    PathSeen: ClientMachine._on_path_seen,
    Tick: ClientMachine._on_tick,
}
