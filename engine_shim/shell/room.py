"""The device memory of an engine that shares its host with other models: a lease in the host's ledger, from before each
wake until after each sleep. The lease has the model's name; so what one engine of a pair had is kept for the other.

What this file may not do: sleep. What the ledger asks for is a sleep of the lock, like any other.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

from engine_shim.engine import Setting
from lockserver import observer as lock
from lockserver.observer import Observer, ObserverError
from sidecar.terminal.formatting import size
from sidecar.terminal.logs import complain
from vram import observer as ledger
from vram.client import MOST_PATIENT, Lease, LedgerClient, NotInTime, Refused, end_process

SLEEP_S = 5.0
"""So much of the time that the ledger gives is for what comes after the drain."""

SILENT_S, ANSWERS_S = 30.0, 2.0
"""So long more it waits for a ledger that doesn't answer at all, and what counts as that."""

MOST_ALARMS = 3
"""So many belong to the sentence that says why there is no room."""

URGENT = 0
"""What an engine has while it is awake; a person's program, which asks with it, is given the memory of any."""


class Room:
    def __init__(self, setting: Setting, failing: Callable[[str], object], timeout_s: float) -> None:
        """`timeout_s`: so long it waits for the bytes of a model that goes to sleep."""

        def lost(why: str) -> NoReturn:
            failing(f"lease lost: {why}")
            end_process(why)

        self._run_dir = setting.run_dir
        self._timeout_s = timeout_s
        self._host_dir = setting.gms_dir
        self._ledger = LedgerClient(setting.gms_dir, setting.name, on_asked=self._give_way, on_lost=lost)
        self._lease: Lease | None = None

    def start(self) -> None:
        """Blocks until the ledger knows this engine. Its processes join by what is in the environment then."""
        self._ledger.start()
        self._ledger.heir(self._run_dir.name)
        os.environ.update(self._ledger.environment())

    def vouch_for(self, pid: int) -> None:
        self._ledger.vouch_for(pid)

    def take(self, needs: Mapping[str, int]) -> str:
        """Blocks until so much is this engine's. Why it is not; empty if it is. Time in which the ledger doesn't answer
        is none that it had.
        """
        name, until = self._run_dir.name, time.monotonic() + self._timeout_s + SILENT_S
        while needs:
            try:
                self._lease = self._ledger.reserve(name, needs, priority=MOST_PATIENT, timeout_s=self._timeout_s)
                self._ledger.set(self._lease, priority=URGENT)
                return ""
            except (NotInTime, Refused) as error:
                asked_at = time.monotonic()
                why = f"there is no room for {name}: {error}{self._figures(needs)}"
                was_silent = time.monotonic() > asked_at + ANSWERS_S / 2
                if isinstance(error, Refused) or not was_silent or time.monotonic() > until:
                    return why
        return ""

    def _figures(self, needs: Mapping[str, int]) -> str:
        """What is missing, as the ledger sees it now."""
        with contextlib.suppress(ledger.ObserverError), ledger.Observer(self._host_dir, ANSWERS_S) as observer:
            status = observer.status()
            short = [
                f"it takes {size(needs[one.device])} of {one.device}, where {size(one.available)} of {size(one.total)} "
                f"are to be had ({size(one.leased)} leased, {size(one.returning)} not back yet, "
                f"{size(one.foreign)} foreign)"
                for one in status.devices
                if needs.get(one.device, 0) > one.available
            ]
            return "".join(f"; {one}" for one in (*short, *status.alarms[:MOST_ALARMS]))
        return ""

    def used(self) -> None:
        if self._lease is not None:
            self._ledger.touch(self._lease)

    def give_back(self) -> None:
        """The engine is asleep."""
        lease, self._lease = self._lease, None
        if lease is not None:
            self._ledger.give_back(lease)

    def _give_way(self, lease: Lease, asked: dict[str, int], timeout_s: float, why: str) -> None:
        """In a thread of its own: the ledger asks for memory, which is all that an engine has awake, or nothing."""
        wish = lock.Sleep(
            drain_timeout_s=max(0.0, timeout_s - SLEEP_S), why=f"the ledger asks for its memory: {why}"[:2000]
        )
        try:
            with Observer(self._run_dir) as observer:
                observer.tell(wish)
                while not (step := observer.hear(lock.Step, timeout_s)).done:
                    continue
            if not step.ok:
                complain(f"engine: it does not give way: {step.detail}")
        except ObserverError as error:
            complain(f"engine: it can't give way: {error}")
