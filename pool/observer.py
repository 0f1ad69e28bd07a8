"""A connection for people and programs that only look at the pool, or ask for something: `failover models`.

    with Observer(run_dir) as observer:
        listing = observer.ask(m.AskModels(), Listing)
        for listing in observer.watch():                # now, and on every change
            ...

How it is done: `sidecar/wire/observer.py`.
"""

from collections.abc import Iterator
from pathlib import Path

from pool.client import SOCKET
from pool.entries import Entry, Flags
from pool.rules import messages as m
from pool.rules.messages import CommandDone, Listing
from sidecar.wire import observer as looking
from sidecar.wire.observer import TIMEOUT_S, Busy, Incompatible, NoServer, ObserverError, Refused, Whom

__all__ = ["CommandDone", "Entry", "Flags", "Listing", "NoServer", "Observer", "ObserverError"]


class Observer(looking.Observer):
    """One connection. Making it raises NoServer or Refused; so may every use of it."""

    def __init__(self, run_dir: Path | str, timeout_s: float = TIMEOUT_S) -> None:
        run_dir = Path(run_dir)
        whom = Whom(
            name="pool",
            at=str(run_dir),
            run_dir=run_dir,
            socket=run_dir / SOCKET,
            start="failover models up models.yaml",
            decoder=m.from_pool,
            hello=m.Observe(protocol=m.OLDEST, newest=m.PROTOCOL),
            last_words={m.Problem: Refused, m.Busy: Busy, m.Incompatible: Incompatible},
            without_it="engines serve on, and none is waked or put to sleep until it is back",
            max_frame_bytes=m.MAX_FRAME_BYTES,
        )
        super().__init__(whom, timeout_s)

    def listing(self) -> Listing:
        return self.ask(m.AskModels(), Listing)

    def watch(self) -> Iterator[Listing]:
        """All models now, and after every change, until the pool goes (NoServer)."""
        self.tell(m.Watch())
        while True:
            yield self.hear(Listing, None)

    def command(self, verb: m.Verb, name: str | None = None, entry: Entry | None = None) -> CommandDone:
        return self.ask(m.Command(number=1, verb=verb, name=name, entry=entry), CommandDone)
