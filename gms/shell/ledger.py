"""A device server's leases in the ledger of its host's memory: what `leases.py` wishes, carried out. A wish that waits
has a thread of its own, because the ledger may take its time; nothing else of the server's waits for it.

What this file may not do: decide how much. A server whose ledger says that it is gone serves on without leases: its
memory is then foreign to the ledger, which measures it.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from gms.rules import events as e
from sidecar.machine.loop import Inbox, Loop
from sidecar.terminal.logs import Log
from vram.client import MOST_PATIENT, Lease, LedgerClient, LedgerError, Lost


class Ledger:
    def __init__(self, run_dir: Path, device: str, loop: Loop, log: Log, feed: Callable[[e.Event], object]) -> None:
        self._device = device
        self._log = log
        self._client = LedgerClient(run_dir, f"gms.{device.replace(':', '-')}"[:64], on_lost=self._on_lost)
        self._client.begin()
        self._inbox: Inbox[e.Event] = Inbox(loop, feed)
        self._leases: dict[str, Lease] = {}
        self._turns: dict[str, threading.Lock] = defaultdict(threading.Lock)
        """One wish at a time for a region: a writer may have gone while its wish waits, and another come."""
        self._waiting: dict[int, threading.Event] = {}
        """By wish: what calls it off."""

    def lease(self, effect: e.Lease) -> None:
        if effect.wish:
            called_off = self._waiting[effect.wish] = threading.Event()
            work = (self._turns[effect.key], effect, called_off)
            threading.Thread(target=self._grow, args=work, name="gms-lease", daemon=True).start()
        elif lease := self._leases.pop(effect.key, None):
            self._try(lambda: self._shrink(effect, lease))

    def call_off(self, wish: int) -> None:
        if called_off := self._waiting.get(wish):
            self._client.call_off(called_off)

    def _shrink(self, effect: e.Lease, lease: Lease) -> None:
        """Doesn't wait for the ledger."""
        if effect.bytes:
            self._leases[effect.key] = self._client.resize(lease, {self._device: effect.bytes})
        else:
            self._client.give_back(lease)

    def _grow(self, turn: threading.Lock, effect: e.Lease, called_off: threading.Event) -> None:
        with turn:
            why = self._try(lambda: self._got(effect, called_off))
        self._waiting.pop(effect.wish)
        self._inbox.give(e.Leased(effect.wish, why and f"no lease of the host's memory for it: {why}"))

    def _got(self, effect: e.Lease, called_off: threading.Event) -> None:
        timeout_s = effect.timeout_s if math.isfinite(effect.timeout_s) else None
        lease, needs = self._leases.get(effect.key), {self._device: effect.bytes}
        if lease is not None:
            self._leases[effect.key] = self._client.resize(lease, needs, timeout_s, called_off)
        else:
            name = f"gms/{self._device}/{effect.key}"
            found = {self._device: effect.found} if effect.found else None
            self._leases[effect.key] = self._client.reserve(
                name,
                needs,
                priority=MOST_PATIENT,
                evictable=False,
                outlives=True,
                found=found,
                timeout_s=timeout_s,
                called_off=called_off,
            )

    def _try(self, does: Callable[[], object]) -> str:
        """Why the ledger has not done it; empty: it has, or there is none any more."""
        try:
            does()
        except Lost:
            return ""
        except LedgerError as error:
            return str(error)
        return ""

    def _on_lost(self, why: str) -> None:
        self._log.alarm("leases_lost", why=why, follows="weights are served and loaded without leases")
