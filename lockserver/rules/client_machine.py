"""What a process does towards the lock server: the rules of the client. Pure, like `machine.py`;
`lockserver/client.py` has the files, `evidence/shell/session.py` the socket and the thread.

One of these runs in every process of an engine: the main process registers and may hold locks, the others join. Both
come back by themselves when the server does. What a process does so towards any server that binds trees, and its rules,
with a C: `evidence/rules/standing.py`.

The rules:
 1. Nothing is held before `Granted` (or a `Welcome` that says so).
 2. A connection that is made again is told everything that was said: the claim, the wishes, the address (C2).
 3. A holder whose server is away goes on for as long as no other engine can be granted (C3). Under
    `--unsafe-presume-dead` a new server grants when its window is over: the holder ends before that, too.
 4. A rule about any process: C4.
 5. A holder of whose grant its server knows nothing ends at once. What is refused: C5.
 6. A rule about any process: C6.
 7. Giving up is asked for: the server says that it is withdrawn, or the grant came first and is taken. A server that is
    silent is not waited for; what it grants then, to a program that doesn't ask again, ends this process.
 8. A rule about any process: C7.
 9. What was given back isn't held any more. Each hello says so until the next grant: the word may have been lost. The
    names go first: a server that finds them taken grants nothing. What was given back since it was claimed in this
    hello is given back after the `Welcome`, and only then asked for anew.
"""

import math
from collections.abc import Callable
from typing import Any

from evidence.rules.standing import Link, Me, Standing
from lockserver.rules import client_events as c
from lockserver.rules import messages as m
from lockserver.rules.messages import ACTIVE, INIT
from sidecar.wire.versions import Spoken

ANSWER_S = 2.0
"""How long a program that gives up waits for the server's word; a server that is stopped says nothing."""
PRESUMED_DEAD_SHARE = 0.8
"""This share of the window: when it is over, a holder that its server may presume dead has ended."""


GIVEN_UP = "the lock was granted after it was given up, and only an end releases it"


class ClientMachine:
    def __init__(self, me: Me) -> None:
        self.standing = Standing(me, Spoken(m.OLDEST, m.PROTOCOL), "lock server")
        self.holds: dict[m.LockName, int] = {}
        self._claimed: dict[m.LockName, int] = {}
        """In the last hello."""
        self.wants: dict[m.LockName, dict[str, int]] = {}
        self.ready = True
        self.deadline = 0.0
        self._out: list[c.Effect] = []
        self._given_up: set[m.LockName] = set()
        """Locks that the program no longer waits for, and hasn't asked for since."""
        self._withdrawals = 0
        self._answer_by = math.inf
        """The program has given up the lock `active`, and waits until then for the server's word."""
        self._permit_unanswered = 0
        """This withdrawal of the permit: what is granted before the answer to it means nothing."""
        self._draining = False
        """For a switchover, which ends with the server that asked for it."""
        self._gave_back = 0
        """The token of the grant that was given back, until there is another."""
        self._proven = False
        """The grant of `active` stands on the whole proof."""
        self._serving = m.Serving(url="")
        self._policy: m.Policy | None = None

    def handle(self, event: c.Event, now: float) -> list[c.Effect]:
        standing = self.standing
        self._out = standing.begin(now)
        if standing.last_word is not None:
            return self._out
        _HANDLERS[type(event)](self, event)
        if now >= self._answer_by:
            self._stop_waiting()
        self.deadline = min(standing.step(*self._must_end_at()), self._answer_by)
        if isinstance(standing.last_word, c.Lost):
            self.holds.clear()
        return self._out

    # -- the connection (rules 2 and 3) ----------------------------------------------------------------------------

    def _must_end_at(self) -> tuple[float, str]:
        """Until when a holder may go on without its server."""
        policy = self._policy
        if ACTIVE not in self.holds or policy is None:
            return math.inf, ""
        ends = [self.standing.must_end_at()]
        if policy.presume_dead:
            until = self.standing.away_since + policy.window_s * PRESUMED_DEAD_SHARE
            ends.append((until, "the lock server is away, and would soon presume us dead"))
        return min(ends)

    def _on_connected(self, event: c.Connected) -> None:
        standing = self.standing
        said = standing.connected(event)
        if standing.me.main:
            self._claimed = dict(self.holds)
            standing.say(m.Register(claims=self._claimed, secret=standing.secret, gave_back=self._gave_back, **said))

    def _on_disconnected(self, event: c.Disconnected) -> None:
        self._drop_questions()
        self.standing.disconnected(event)

    def _on_path_seen(self, event: c.PathSeen) -> None:
        if self.standing.path_seen(event):
            self._drop_questions()

    def _drop_questions(self) -> None:
        """The connection has ended, and what was asked on it."""
        self._permit_unanswered = 0
        if self._answer_by < math.inf:
            self._stop_waiting()

    # -- what the server says --------------------------------------------------------------------------------------

    def _on_heard(self, event: c.Heard) -> None:
        message = event.message
        if isinstance(message, m.Welcome):
            self._welcomed(message)
        elif isinstance(message, m.Granted):
            if message.lock == ACTIVE:
                self._out.append(c.KeepNames())
            self._granted(message)
        elif isinstance(message, m.Withdrawn):
            self._on_withdrawn(message)
        elif isinstance(message, m.Refused):
            self._refused(message.why)
        elif isinstance(message, m.Prepare):
            self._out.append(c.Check(message.round))
        elif isinstance(message, m.Drain):
            self._draining = True
            self._out.append(c.BeginDrain(message.round, message.timeout_s))
        elif isinstance(message, m.Resume):
            if self._draining:  # a plan may be off before it has come so far
                self._draining = False
                self._out.append(c.ServeOn(message.why))
        elif isinstance(message, m.Exit):
            self._out.append(c.End())
        elif isinstance(message, m.GiveBack):
            self._draining = False  # there is no way back
            self._out.append(c.GiveItBack())
        else:
            self.standing.hear(message)

    def _welcomed(self, message: m.Welcome) -> None:
        standing, self._policy = self.standing, message.policy
        standing.welcomed(message.number, message.secret, message.policy.settle_s)
        given_back = self._claimed.keys() - self.holds.keys()
        holds = {lock: token for lock, token in message.holds.items() if lock not in given_back}
        if ACTIVE in holds:
            self._out.append(c.KeepNames())
        if ACTIVE in self.holds and ACTIVE not in holds:
            standing.lose("the lock server knows nothing of our grant")
            return
        if ACTIVE in holds and ACTIVE in self._given_up:
            standing.lose(GIVEN_UP)
            return
        if self._draining and ACTIVE in self.holds:
            self._draining = False
            self._out.append(c.ServeOn("the server that asked for the switchover is gone"))
        if INIT in self.holds and INIT not in holds:
            del self.holds[INIT]
        standing.begin_to_count(message.server_incarnation)
        if INIT in holds and INIT not in self.holds and INIT not in self.wants:
            given_back |= {INIT}
        for lock in sorted(given_back & message.holds.keys()):
            standing.say(m.Release(lock=lock, token=message.holds[lock]))
        for lock, needs in list(self.wants.items()):
            if lock in holds:
                self._granted(m.Granted(lock=lock, token=holds[lock]))
            else:
                self.standing.say(m.Acquire(lock=lock, needs=needs, again=True))
        if ACTIVE in self.wants and not self.ready:
            self.standing.say(m.Ready(ready=False))
        if ACTIVE in self.holds and self._serving.url:
            self.standing.say(self._serving)

    def _granted(self, message: m.Granted) -> None:
        name: m.LockName = ACTIVE if message.lock == ACTIVE else INIT
        if name == INIT and self._permit_unanswered:
            return
        asked = name in self.wants or (name == ACTIVE and self._answer_by < math.inf)
        if name == ACTIVE and name in self._given_up and not asked:
            self.standing.lose(GIVEN_UP)
        elif name == INIT and not asked and INIT not in self.holds:
            self.standing.say(m.Release())
        elif asked:
            self.wants.pop(name, None)
            self._take_up(name)
            self.holds[name] = message.token
            if name == ACTIVE:
                self._proven, self._gave_back = message.proven, 0
            self._out.append(self._got(name, message.token))

    def _got(self, lock: m.LockName, token: int) -> c.Got:
        return c.Got(lock, token, proven=lock == ACTIVE and self._proven)

    def _refused(self, why: str) -> None:
        if self.standing.link is Link.IN:
            self.wants.pop(ACTIVE, None)
        self.standing.refused(why)

    # -- what the program wants ------------------------------------------------------------------------------------

    def _on_want(self, event: c.Want) -> None:
        if event.lock in self.holds:
            self._out.append(self._got(event.lock, self.holds[event.lock]))
            return
        self._take_up(event.lock)
        self.wants[event.lock] = event.needs
        if event.lock == ACTIVE:
            self.ready = True
        self.standing.say_if_in(m.Acquire(lock=event.lock, needs=event.needs))

    def _on_withdraw(self, event: c.Withdraw) -> None:
        if event.lock == INIT:
            self._give_up_the_permit()
        elif ACTIVE in self.holds:
            self._out.append(self._got(ACTIVE, self.holds[ACTIVE]))  # it came first
        elif self.wants.pop(ACTIVE, None) is not None:
            self._given_up.add(ACTIVE)
            if self._ask_to_withdraw(ACTIVE):
                self._answer_by = self.standing.now + ANSWER_S
            else:
                self.standing.say_if_in(m.Ready(ready=False))
                self._out.append(c.Without(ACTIVE))
        elif self._answer_by == math.inf:
            self._out.append(c.Without(ACTIVE))

    def _give_up_the_permit(self) -> None:
        """Whether it waits for it or has it: what was granted meanwhile is given back."""
        wanted = self.wants.pop(INIT, None) is not None
        self.holds.pop(INIT, None)
        if wanted and self._ask_to_withdraw(INIT):
            self._permit_unanswered = self._withdrawals
        else:
            self.standing.say_if_in(m.Release())
        self._out.append(c.Without(INIT))

    def _ask_to_withdraw(self, lock: m.LockName) -> bool:
        """False: there is no server."""
        if self.standing.link is not Link.IN:
            return False
        self._withdrawals += 1
        self.standing.say(m.Withdraw(lock=lock, number=self._withdrawals))
        return True

    def _on_withdrawn(self, message: m.Withdrawn) -> None:
        if message.lock == INIT and message.number == self._permit_unanswered:
            self._permit_unanswered = 0
        elif message.lock == ACTIVE and message.number == self._withdrawals and self._answer_by < math.inf:
            self._stop_waiting()

    def _stop_waiting(self) -> None:
        """The lock was given up, and that stands."""
        self._answer_by = math.inf
        self._out.append(c.Without(ACTIVE))

    def _take_up(self, lock: m.LockName) -> None:
        """The program waits for it (again), or has it."""
        self._given_up.discard(lock)
        if lock == ACTIVE:
            self._answer_by = math.inf

    def _on_set_ready(self, event: c.SetReady) -> None:
        self.ready = event.ready
        if ACTIVE in self.wants:
            if event.needs is not None:
                self.wants[ACTIVE] = event.needs
            self.standing.say_if_in(m.Ready(ready=event.ready, needs=event.needs))

    def _on_set_serving(self, event: c.SetServing) -> None:
        self._serving = m.Serving(url=event.url, kept=event.kept)
        if ACTIVE in self.holds:
            self.standing.say_if_in(self._serving)

    def _on_gave_back(self, event: c.GaveBack) -> None:
        token = self.holds.pop(ACTIVE, 0)
        if token:
            self._gave_back, self._serving, self._draining = token, m.Serving(url=""), False
            self._out.append(c.Without(ACTIVE))
            self.standing.say_if_in(m.Release(lock=ACTIVE, token=token, why=event.why))

    def _on_checked(self, event: c.Checked) -> None:
        self.standing.say_if_in(m.Prepared(round=event.round, ok=event.ok, why=event.why))

    def _on_drain_ended(self, event: c.DrainEnded) -> None:
        self.standing.say_if_in(m.Drained(round=event.round, ok=event.ok, why=event.why))


_HANDLERS: dict[type, Callable[[ClientMachine, Any], object]] = {
    c.Connected: ClientMachine._on_connected,
    c.Disconnected: ClientMachine._on_disconnected,
    c.Hopeless: lambda machine, event: machine._refused(event.why),
    c.Heard: ClientMachine._on_heard,
    c.Want: ClientMachine._on_want,
    c.Withdraw: ClientMachine._on_withdraw,
    c.SetReady: ClientMachine._on_set_ready,
    c.SetServing: ClientMachine._on_set_serving,
    c.GaveBack: ClientMachine._on_gave_back,
    c.Checked: ClientMachine._on_checked,
    c.DrainEnded: ClientMachine._on_drain_ended,
    c.VouchFor: lambda machine, event: machine.standing.vouch_for(event),
    c.ChildEnded: lambda machine, event: machine.standing.child_ended(event),
    c.PathSeen: ClientMachine._on_path_seen,
    c.Tick: lambda machine, event: None,  # time has passed; `handle` looks what follows
}
