"""A lease as it is asked for, as others see it, and the words for it. Pure.

Grants are decided in `statements.py`; what is asked here of the rows that were read is for people, and for
waiters, which needn't ask for a grant before it can be theirs.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from fleet.rules.statements import SHOWN
from sidecar.terminal.names import NAME, NAME_IN_WORDS, BadValue

TTL_S, WAIT_S, DRAIN_S = 60.0, 3600.0, 30.0
_LINE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]*")
"""What a terminal shows as it is; and UTF-8: other bytes come as halves of surrogates."""


class Mode(enum.Enum):
    SHARED = "shared"
    EXCLUSIVE = "exclusive"


class Wish(msgspec.Struct, frozen=True):
    host: str
    mode: Mode
    holder: str
    purpose: str = ""
    priority: int = 0
    ttl_s: float = TTL_S
    wait_s: float = WAIT_S
    drain_s: float = DRAIN_S
    """How long those that share the host may take to finish what they have begun."""


class LeaseRow(msgspec.Struct, frozen=True):
    """A lease that is held or waited for."""

    id: int
    lease: str
    mode: str
    priority: int
    holder: str
    purpose: str
    token: int | None
    asked_at: float
    granted_at: float | None
    renewed_at: float
    expires_at: float
    ttl_s: float
    drain_s: float

    @property
    def exclusive(self) -> bool:
        return self.mode == "exclusive"


class Seen(msgspec.Struct, frozen=True):
    """A host, as one look has shown it."""

    now: float
    newest: int
    """The last token that was given."""
    rows: tuple[LeaseRow, ...] = ()

    @property
    def exclusive(self) -> LeaseRow | None:
        """The exclusive lease that is held."""
        return next((row for row in self.rows if row.exclusive and row.token is not None), None)

    @property
    def intent(self) -> LeaseRow | None:
        """The oldest wish for one."""
        waiting = (row for row in self.rows if row.exclusive and row.token is None)
        return min(waiting, key=lambda row: row.id, default=None)


def check(wish: Wish) -> None:
    """Raises BadValue."""
    texts, numbers = (wish.host, wish.holder, wish.purpose), (wish.priority, wish.ttl_s, wish.wait_s, wish.drain_s)
    if not all(isinstance(each, str) for each in texts) or not all(isinstance(each, (int, float)) for each in numbers):
        raise BadValue("host, holder and purpose are texts; priority, term, wait and drain are numbers")
    if not re.fullmatch(NAME, wish.host):
        raise BadValue(f"{wish.host!r} is no host's name; allowed: {NAME_IN_WORDS}")
    for what, text, least in (("holder", wish.holder, 1), ("purpose", wish.purpose, 0)):
        if not least <= len(text) <= 200 or not _LINE.fullmatch(text):
            raise BadValue(f"the {what} has to be one line of {least} to 200 characters, in UTF-8")
    if not 0 <= wish.priority <= 100 or (wish.priority and wish.mode is Mode.SHARED):
        raise BadValue(f"{wish.priority} is no priority; allowed: 0 to 100, and 0 for a shared lease")
    if not 0.1 <= wish.ttl_s <= 86400 or not 0 <= wish.drain_s <= 86400 or not wish.wait_s >= 0:
        raise BadValue("a term is 0.1 to 86400 s long, a drain 0 to 86400 s, and a wait 0 s or more")


def seen(rows: Sequence[Mapping[str, Any]]) -> Seen | None:
    """What `look` answered. None: there is no such host."""
    if not rows:
        return None
    leases = tuple(msgspec.convert(row, LeaseRow, strict=False) for row in rows if row["lease"] is not None)
    return Seen(max(row["now"] for row in rows), rows[0]["newest"], leases)


def in_the_way(rows: Sequence[LeaseRow], lease: str) -> list[LeaseRow]:
    """What this waiter waits for: what is held, and then those that come before it, in their order."""
    me = next((row for row in rows if row.lease == lease), None)
    if me is None:
        # It is too far behind to be shown, and those that come first are exclusive; or it has lapsed.
        return [row for row in rows if row.exclusive] if len(rows) >= SHOWN else []
    others = [row for row in rows if row is not me and (row.exclusive or me.exclusive)]
    sharers = [row.id for row in rows if not row.exclusive]

    def place(row: LeaseRow) -> tuple[int, int, int]:
        """Rule 1: how many shared ones have asked before it comes before its priority."""
        return sum(id < row.id for id in sharers), -row.priority, row.id

    before = sorted((row for row in others if row.token is None and place(row) < place(me)), key=place)
    return [row for row in others if row.token is not None] + before


# -- words ---------------------------------------------------------------------------------------------------------


def whose(row: LeaseRow) -> str:
    return row.holder + (f" for {row.purpose}" if row.purpose else "")


def utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def leased(host: str, row: LeaseRow | None) -> str:
    """Why a door lets a request wait."""
    if row is None:
        return f"host {host} is wanted by another program alone"
    if row.token is None:
        return f"host {host} is wanted by {whose(row)} alone: what is there finishes, and then it is leased"
    return f"host {host} is leased by {whose(row)} until {utc(row.expires_at)}, unless that is renewed"


def waits_for(rows: Sequence[LeaseRow]) -> str:
    """The same for a waiter, in one line."""
    if not rows:
        return "nothing is in its way any more"
    first, more = rows[0], f"; {len(rows) - 1} more before us" if len(rows) > 1 else ""
    if first.token is None:
        return f"{whose(first)} waits for it ({first.mode}, before us){more}"
    return f"{whose(first)} holds it ({first.mode}, token {first.token}, until {utc(first.expires_at)}){more}"


def no_such_host(host: str, hosts: Sequence[str]) -> str:
    there = ", ".join(hosts[:20]) + (" ..." if len(hosts) > 20 else "") or "none yet"
    return f"there is no host {host} here; there are: {there}; fleetctl init --host {host} adds it"
