"""All evidence about processes that a server has, in one place: the parts of this package, for one user.

    evidence.begin(record)                  what the last server wrote down
    evidence.joining.register(...), join()  a process comes in; `why_not_...` are the questions before it
    evidence.heard(event)                   a process died, a life lock was probed, ...: what became of it, if news
    evidence.bind({...})                    these have been granted something: their end is to be proven
    evidence.is_gone(who, ...)              a verdict, and what it lacks
    evidence.plan(now), carry_out(plan)     what is to be asked next, and when to look again
    evidence.remove(who)                    the proof is complete
    evidence.record()                       what the next server must know
    evidence.copies, strangers              what clients keep of it; life locks of those that haven't come

Pure. What it asks for goes out with the effects of its user's machine.
"""

from typing import Any

from evidence.rules.events import Config, LifeProbed, LookedUp, OutOfReach, Peer
from evidence.rules.incarnation import Incarnation
from evidence.rules.incarnations import Incarnations, Plan
from evidence.rules.joining import Joining
from evidence.rules.pidfd_copies import PidfdCopies
from evidence.rules.proof import Verdict, gone
from evidence.rules.record import Processes
from evidence.rules.strangers import Strangers
from sidecar.machine.context import Context, Died


class Evidence:
    def __init__(self, config: Config, context: Context[Any]) -> None:
        self.config = config
        self.incarnations = Incarnations(context)
        self.joining = Joining(self.incarnations)
        self.copies = PidfdCopies(config, self.incarnations)
        self.strangers = Strangers(config, context, self.incarnations)

    # -- across a crash --------------------------------------------------------------------------------------------

    def begin(self, found: Processes) -> bool:
        """What the last server wrote down. False: the machine was booted since, and every process of then has ended."""
        same_boot = found.boot_id == self.config.boot_id
        look_up = bool(found.pid_namespace) and found.pid_namespace == self.config.pid_namespace
        self.incarnations.begin(found, same_boot=same_boot, look_up=look_up)
        return same_boot

    def record(self) -> Processes:
        return self.incarnations.record(self.config.boot_id, self.config.pid_namespace)

    def hand_back(
        self, whose: Incarnation | None, numbers: list[int], peers: tuple[Peer, ...], *, from_file: bool = False
    ) -> None:
        """A client brings the copies that it kept for the last server. None: nothing is known of whose they are."""
        for number, peer in zip(numbers, peers, strict=False):
            if whose is not None:
                self.incarnations.hand_back(whose, number, peer, from_file=from_file)
            else:
                self.incarnations.forget((peer,))
        self.incarnations.forget(peers[len(numbers) :])

    # -- what happens ----------------------------------------------------------------------------------------------

    def heard(self, event: Died | LifeProbed | LookedUp | OutOfReach) -> tuple[Incarnation, bool] | None:
        """If a process has died: whose it is, and whether it was the main process."""
        if isinstance(event, Died):
            return self.incarnations.died(event.process)
        if isinstance(event, LifeProbed):
            self.incarnations.probed(event.incarnation, event.held)
        elif isinstance(event, LookedUp):
            self.incarnations.looked_up(event)
        else:
            self.incarnations.out_of_reach(event.process, event.why)
        return None

    def closed(self, who: Incarnation, conn: int) -> bool:
        """A connection of it has ended. True if it was the main process's."""
        return self.incarnations.closed(who, conn)

    # -- the proof -------------------------------------------------------------------------------------------------

    def bind(self, incarnations: dict[str, Incarnation]) -> None:
        self.incarnations.bind(incarnations)

    def is_gone(
        self,
        who: Incarnation,
        *,
        found: bool = False,
        over: bool = False,
        memory_is_free: bool = False,
        life_lock_is_enough: bool = False,
        unknown_may_be_dying: bool = False,
    ) -> Verdict:
        """`proof.py` says what the words mean."""
        return gone(
            who,
            found=found,
            over=over,
            memory_is_free=memory_is_free,
            life_lock_is_enough=life_lock_is_enough,
            unknown_may_be_dying=unknown_may_be_dying,
        )

    def plan(self, now: float) -> Plan:
        return self.incarnations.plan(now)

    def carry_out(self, plan: Plan) -> list[int]:
        """Returns the connections that end with it."""
        return self.incarnations.carry_out(plan)

    def remove(self, who: Incarnation) -> list[int]:
        """What was bound is proven gone. Returns the connections that end with it."""
        return self.incarnations.remove(who, was_bound=True)
