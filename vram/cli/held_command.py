"""`vramctl hold`: a command under a lease. How it goes: `evidence/cli/held_command.py`."""

import argparse
import os
import re
import threading
from collections.abc import Iterator

from evidence.cli import held_command
from evidence.cli.held_command import Granted
from sidecar.terminal.formatting import sizes
from vram.client import LedgerClient
from vram.observer import watch_forever
from vram.rules import messages as m

VISIBLE = "CUDA_VISIBLE_DEVICES"
UNKNOWN = "the ledger does not know yet what there is of each device"


def hold(options: argparse.Namespace) -> int:
    def check(needs: dict[str, int]) -> None:
        if not needs:
            raise ValueError("how much of which device? Say --needs DEVICE=BYTES")
        m.check(m.Reserve(number=0, name=options.name or "any", needs=needs, priority=options.priority))

    return held_command.hold("vramctl", options, check, HeldCommand)


def whole_names(needs: dict[str, int], there: list[str]) -> dict[str, int]:
    """What is meant by `GPU-0`, or by the beginning of a UUID."""
    gpus = [device for device in there if device.startswith("GPU-")]
    found: dict[str, int] = {}
    for device, count in needs.items():
        by_index = re.fullmatch(r"GPU-(\d{1,3})", device)
        begins = [each for each in there if each.startswith(device)]
        if device in there or not (by_index or begins):
            meant = device
        elif by_index and int(by_index[1]) < len(gpus):
            meant = gpus[int(by_index[1])]
        else:
            meant = begins[0] if len(begins) == 1 else device
        found[meant] = found.get(meant, 0) + count
    return found


class HeldCommand(held_command.HeldCommand):
    prog = "vramctl"
    what = "its lease"
    lost = "lease lost"
    variable = "FAILOVER_LEASE"
    session: LedgerClient

    def __init__(self, options: argparse.Namespace, program: str, needs: dict[str, int]) -> None:
        self._named = threading.Event()
        """There was a ledger that knows its devices: the needs name them in full."""
        super().__init__(options, program, needs)

    def client(self) -> LedgerClient:
        asked = lambda lease, bytes, timeout_s, why: self.tell_to_end(f"to make room ({why})")  # noqa: E731
        word = re.sub(r"[^A-Za-z0-9._-]", "-", os.path.basename(self.options.words[0]))[:64].lstrip("._-")
        called = self.options.name or word or "hold"
        return LedgerClient(self.options.run_dir, called, on_asked=asked, on_lost=self.on_lost)

    def meet_server(self, timeout_s: float | None) -> None:
        if not self._named.wait(timeout_s):
            raise self.session.errors.not_in_time(UNKNOWN)

    def environment(self) -> dict[str, str]:
        gpus = ",".join(device for device in self.needs if device.startswith("GPU-"))
        return super().environment() | ({VISIBLE: gpus} if gpus and VISIBLE not in os.environ else {})

    def ask(self, timeout_s: float | None) -> Granted:
        options = self.options
        me = self.session.me
        lease = self.session.reserve(
            options.name or f"{me.engine_id}.{me.incarnation}",  # a lease of the same name would be waited for
            self.needs,
            priority=options.priority,
            evictable=options.evictable,
            timeout_s=timeout_s,
        )
        return Granted(lease.number, sizes(dict(lease.bytes)))

    def waiting(self) -> Iterator[tuple[str, bool]]:
        for status in watch_forever(self.options.run_dir):
            if status is None:
                where = self.options.run_dir
                yield f"no ledger at {where}: start one (vram --run-dir DIR), or give its --run-dir", False
                continue
            if not self._named.is_set():
                if not status.devices and not status.memory_why:
                    yield UNKNOWN, True
                    continue
                self.needs = whole_names(self.needs, [device.device for device in status.devices])
                self._named.set()
            if any(lease.incarnation == self.session.me.incarnation for lease in status.leases):
                return
            mine = [waiter.waits_for for waiter in status.waiters if waiter.pid == os.getpid()]
            yield (mine[0] if mine else ""), True
