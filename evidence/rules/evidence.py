"""All evidence about processes that a server has, in one place: the parts of this package, for one user.

    evidence.begin(record)                  what the last server wrote down
    evidence.joining.register(...), join()  a process comes in; `why_not_...` are the questions before it
    evidence.incarnations                   a process died, a life lock was probed, ...: what became of it; and what is
                                            to be asked next (`plan`), and when to look again
    evidence.record()                       what the next server must know
    evidence.copies, strangers              what clients keep of it; life locks of those that haven't come

Pure. What it asks for goes out with the effects of its user's machine. What proves an end: `proof.py`.
"""

from typing import Any

from evidence.rules.events import Config, Peer
from evidence.rules.incarnation import Incarnation
from evidence.rules.incarnations import Incarnations
from evidence.rules.joining import Joining
from evidence.rules.pidfd_copies import PidfdCopies
from evidence.rules.record import Processes
from evidence.rules.strangers import Strangers
from sidecar.machine.context import Context


class Evidence:
    def __init__(self, config: Config, context: Context[Any]) -> None:
        self.config = config
        self.incarnations = Incarnations(context)
        self.joining = Joining(self.incarnations)
        self.copies = PidfdCopies(config, self.incarnations)
        self.strangers = Strangers(config, context, self.incarnations)

    def begin(self, found: Processes) -> bool:
        """What the last server wrote down. False: the machine was booted since, and every process of then has ended."""
        same_boot = found.boot_id == self.config.boot_id
        look_up = bool(found.pid_namespace) and found.pid_namespace == self.config.pid_namespace
        self.incarnations.begin(found, same_boot=same_boot, look_up=look_up)
        return same_boot

    def record(self) -> Processes:
        return self.incarnations.record(self.config.boot_id, self.config.pid_namespace)

    def handed_back(
        self, whose: Incarnation | None, numbers: list[int], peers: tuple[Peer, ...], *, from_file: bool = False
    ) -> None:
        """A client brings the copies that it kept for the last server. None: nothing is known of whose they are."""
        for number, peer in zip(numbers, peers, strict=False):
            if whose is not None:
                self.incarnations.handed_back(whose, number, peer, from_file=from_file)
            else:
                self.incarnations.forget((peer,))
        self.incarnations.forget(peers[len(numbers) :])
