"""What there is of each device, and how much of it others have (rules V2, V5 and V6 of `machine.py`).

Pure. A reading shows what is in use of a device, and not whose it is. What is leased may be in use or not. So foreign
use is at least what is in use beyond all leases, and at most all that is in use. Within these bounds the last estimate
is kept; where use falls and no lease explains that, foreign use has fallen. What no reading shows any more beyond all
leases is forgotten after a while: leases may have come into use as it ended.
"""

from collections import Counter

from evidence.rules.events import MemoryRead
from sidecar.terminal.formatting import size
from vram.rules.events import Config
from vram.rules.leases import Lease, Leases, some
from vram.rules.messages import Bytes


class Devices:
    def __init__(self, config: Config, leases: Leases) -> None:
        self.config = config
        self.leases = leases
        self.totals: Bytes = dict(config.totals)
        self.used: Bytes = {}
        """By the last reading of each."""
        self.foreign: Counter[str] = Counter()
        self._known_foreign: Bytes = {}
        """As the last server measured it: beside all leases, whether or not this server knows them yet."""
        self._shown_at: dict[str, float] = {}
        """When all that is taken for foreign was in use beyond all leases."""
        self._before: Bytes = {}
        """The reading before, which may have been another server's."""
        self._seen = False
        """There was a reading, so that it is known which devices there are."""
        self._ended: Counter[str] = Counter()
        """What has ended since the last reading: it may explain that less is in use."""

    # -- questions -------------------------------------------------------------------------------------------------

    def can_be_read(self, device: str) -> bool:
        """Where no program can, a word is enough, and nothing is verified."""
        return self.config.reads_memory and (device in self.used or not self._seen)

    def room(self, device: str) -> int:
        """What isn't promised, nor another's. Less than nothing where others have taken what was promised."""
        taken = self.leases.counted(device) + self.foreign[device] + self.config.keep_free
        return self.totals.get(device, 0) - taken

    def missing(self, device: str) -> int:
        """So much more is in use than what is leased and what is another's: it isn't back yet."""
        mine = self.leases.leased[device] + self.foreign[device]
        return max(0, self.used.get(device, 0) - mine)

    def shows_free(self, leases: list[Lease]) -> bool:
        """What these leases had isn't in use any more, as far as can be told. Only where all of it can be read."""
        counted: Counter[str] = Counter()
        for lease in leases:
            counted.update(lease.counted)
        return all(
            device in self.used and self.used[device] <= self.leases.counted(device) - count + self.foreign[device]
            for device, count in counted.items()
        )

    def never_fits(self, needs: Bytes, *, seen: bool) -> str:
        """Why so much can't ever be leased; empty if it can, or if that isn't known yet. `seen`: which devices there
        are is known in this moment.
        """
        for device, need in sorted(needs.items()):
            total = self.totals.get(device)
            if total is None and (seen or not self.config.reads_memory):
                there = ", ".join(sorted(self.totals)) or "none"
                hint = "" if self.config.reads_memory else "; where none can be read, start vram with --total"
                return f"no device {device!r} is known here; there are: {there}{hint}"
            if total is not None and need > total - self.config.keep_free:
                kept = f", of which {size(self.config.keep_free)} are kept free" if self.config.keep_free else ""
                return f"{size(need)} of {device} are needed, and it has {size(total)} in all{kept}"
        return ""

    # -- what is done ----------------------------------------------------------------------------------------------

    def begin(self, foreign: Bytes, used: Bytes) -> None:
        """As the last server measured it."""
        self._known_foreign = foreign
        self.foreign.update(foreign)
        self._before = dict(used)

    def claimed(self, bytes: Bytes) -> None:
        """A holder has so much of which no file told: what it uses of it was taken for others' until now."""
        for device, count in bytes.items():
            least = self.used.get(device, 0) - self.leases.counted(device)
            known = min(self._known_foreign.get(device, 0), self.foreign[device])
            self.foreign[device] = max(self.foreign[device] - count, least, known)

    def ended(self, bytes: Bytes) -> None:
        """What a lease had is free, by proof or by its holder's word: less may be in use soon."""
        self._ended.update(bytes)

    def came(self, reading: MemoryRead, now: float) -> None:
        self._seen = True
        going: Counter[str] = Counter()
        """Their holders aren't here, and may have ended already."""
        for lease in self.leases.all.values():
            if lease.tree is not None and not lease.is_there:
                going.update(lease.bytes)
        for device, (free, total) in reading.devices.items():
            used, before = total - free, self._before.get(device)
            explained = self._ended[device] + self.leases.sum_returning[device] + going[device]
            fell = max(0, before - used - explained) if before is not None else 0
            least = max(0, used - self.leases.counted(device))
            foreign = min(max(self.foreign[device] - fell, least), used)
            shown_at = now if foreign == least else self._shown_at.get(device, now)
            if now >= shown_at + self.config.foreign_s:
                foreign, shown_at = least, now
            self.foreign[device], self._shown_at[device] = foreign, shown_at
            self.used[device] = self._before[device] = used
            self.totals[device] = min(total, self.config.totals.get(device, total))
        self._ended.clear()

    def returned(self) -> list[tuple[Lease, Bytes]]:
        """What of the leases that are returning is back by the last reading. What is missing is the oldest one's: of
        those before it all was seen to be back.
        """
        left = {device: self.missing(device) for device in self.leases.sum_returning if self.can_be_read(device)}
        in_use = {device: self.used.get(device, 0) for device in left}
        back = []
        for lease in sorted(
            self.leases.returning.values(), key=lambda lease: (not lease.has_outlived, lease.returning_since)
        ):
            if lease.has_outlived and not lease.overdue:  # it is in use, as far as it can be
                still = {device: min(count, in_use.get(device, count)) for device, count in lease.returning.items()}
                in_use = {device: count - still.get(device, 0) for device, count in in_use.items()}
            else:
                still = {device: min(count, left.get(device, 0)) for device, count in lease.returning.items()}
            left = {device: max(count - still.get(device, 0), 0) for device, count in left.items()}
            if some(still) != lease.returning:
                back.append((lease, some(still)))
        return back
