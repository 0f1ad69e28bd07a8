"""The statements of `fleet/rules/statements.py` over dictionaries: a simulated database, in microseconds.

It answers as SQLite and PostgreSQL do, to the last bit: `test_model_agrees.py`. Which wish is granted is said here in
another way than there, by the place that each waiter has in the order.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fleet.rules.statements import KEPT_EVENTS, SHOWN

Row = dict[str, Any]
ENDS = ("released", "left", "lapsed")


class Lease:
    __slots__ = (
        "asked_at", "drain_s", "exclusive", "expires_at", "granted_at", "holder", "id", "lease", "mode", "priority",
        "purpose", "renewed_at", "token", "ttl_s", "wait_until",
    )  # fmt: skip

    def __init__(self, id: int, now: float, values: Row) -> None:
        self.id, self.lease, self.mode, self.priority = id, values["lease"], values["mode"], values["priority"]
        self.exclusive = self.mode == "exclusive"
        self.holder, self.purpose = values["holder"], values["purpose"]
        self.token: int | None = None
        self.granted_at: float | None = None
        self.asked_at = self.renewed_at = now
        self.ttl_s, self.drain_s = values["ttl"], values["drain"]
        self.expires_at, self.wait_until = now + values["ttl"], now + values["wait"]

    def over(self, now: float) -> bool:
        return self.expires_at <= now or (self.token is None and self.wait_until <= now)


_NONE = SimpleNamespace(**dict.fromkeys(Lease.__slots__))


class Host:
    def __init__(self) -> None:
        self.token, self.clock = 0, 0.0
        self.leases: dict[str, Lease] = {}
        self.events: list[Row] = []
        self.doors: dict[str, Row] = {}

    def place(self, lease: Lease) -> tuple[int, int, int]:
        """Of a waiter: no priority passes what asked before a sharer did."""
        sharers = sum(not x.exclusive and x.token is None and x.id < lease.id for x in self.leases.values())
        return sharers, -lease.priority if lease.exclusive else 1, lease.id


class Model:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._id = now, 0
        self.hosts: dict[str, Host] = {}
        self._noted: set[tuple[str, str]] = set()

    def init(self, hosts: list[str]) -> None:
        for name in hosts:
            self.hosts.setdefault(name, Host())

    def call(self, name: str, **values: Any) -> list[Row]:
        if name == "hosts":
            return [{"name": each} for each in sorted(self.hosts)]
        host = self.hosts.get(values["host"])
        rows: list[Row] = getattr(self, name)(host, values) if host is not None else []
        return rows

    # -- what changes a host's leases ------------------------------------------------------------------------------

    def _turn(self, host: Host) -> float:
        host.clock = max(host.clock, self._now())
        return host.clock

    def _clean(self, host: Host) -> float:
        now = self._turn(host)
        for lease in [each for each in host.leases.values() if each.over(now)]:
            self._note(host, "left" if lease.token is None else "lapsed", lease)
            del host.leases[lease.lease]
        return now

    def _note(self, host: Host, event: str, lease: Lease) -> None:
        if (lease.lease, event) not in self._noted:
            self._noted.add((lease.lease, event))
            said = {name: getattr(lease, name) for name in ("mode", "token", "holder", "purpose", "lease")}
            host.events.append({"at": host.clock, "event": event, **said})

    def ask(self, host: Host, values: Row) -> list[Row]:
        now, name = self._clean(host), values["lease"]
        lease = host.leases.get(name)
        elsewhere = any(name in other.leases for other in self.hosts.values() if other is not host)
        if lease is None and not elsewhere and not any((name, event) in self._noted for event in ENDS):
            self._id += 1
            lease = host.leases[name] = Lease(self._id, now, values)
            self._note(host, "asked", lease)
        elif lease is not None and lease.token is None:
            lease.expires_at, lease.renewed_at = now + values["ttl"], now
        if lease is not None and lease.token is None and self._turn_of(host, lease):
            host.token += 1
            lease.token, lease.granted_at = host.token, now
            self._note(host, "granted", lease)
        for event in host.events[:-KEPT_EVENTS]:
            self._noted.discard((event["lease"], event["event"]))
        del host.events[:-KEPT_EVENTS]
        return self._answer(host, lease, name)

    @staticmethod
    def _turn_of(host: Host, lease: Lease) -> bool:
        others = [x for x in host.leases.values() if x is not lease and (x.exclusive or lease.exclusive)]
        if any(x.token is not None for x in others):
            return False
        place = host.place(lease) if others else ()
        return not any(host.place(x) < place for x in others)

    def renew(self, host: Host, values: Row) -> list[Row]:
        now, lease = self._clean(host), host.leases.get(values["lease"])
        if lease is not None and lease.token is not None and lease.token == values["token"]:
            lease.renewed_at, until = now, now + lease.ttl_s
            if not lease.exclusive:
                assert lease.granted_at is not None
                for x in host.leases.values():
                    if x.exclusive and x.token is None:
                        until = min(until, max(x.asked_at, lease.granted_at) + max(x.drain_s, lease.ttl_s))
            lease.expires_at = max(lease.expires_at, until)
        return self._answer(host, lease, values["lease"])

    def _answer(self, host: Host, lease: Lease | None, name: str) -> list[Row]:
        wanted = any(x.exclusive and x.token is None and x.lease != name for x in host.leases.values())
        said = (lease.lease, lease.token, lease.expires_at) if lease is not None else (None, None, None)
        return [{"now": host.clock, "lease": said[0], "token": said[1], "expires_at": said[2], "wanted": wanted}]

    def release(self, host: Host, values: Row) -> list[Row]:
        self._clean(host)
        lease = host.leases.pop(values["lease"], None)
        if lease is not None:
            self._note(host, "left" if lease.token is None else "released", lease)
        ends = [e for e in host.events[-5:] if e["lease"] == values["lease"] and e["event"] in ENDS]
        ends = ends or [e for e in host.events if e["lease"] == values["lease"] and e["event"] in ENDS]
        return [{"event": ends[-1]["event"]}] if ends else []

    def report(self, host: Host, values: Row) -> list[Row]:
        now, before = self._turn(host), host.doors.get(values["door"])
        uncovered = values["uncovered"]
        if before is not None:
            vanished = before["incarnation"] != values["incarnation"] and not before["ended"]
            uncovered += before["uncovered"] + vanished
        said = {"incarnation": values["incarnation"], "uncovered": uncovered, "seen_at": now, "ended": values["ended"]}
        said["knows"] = values["knows"]
        host.doors[values["door"]] = {"door": values["door"], **said}
        host.doors = {name: row for name, row in host.doors.items() if row["seen_at"] >= now - 604800}
        return [{"now": now}]

    # -- what only looks -------------------------------------------------------------------------------------------

    def look(self, host: Host, values: Row) -> list[Row]:
        now = max(host.clock, self._now())
        there = [each for each in host.leases.values() if not each.over(now)]
        there.sort(key=lambda x: (not x.exclusive, x.token is None, x.id))
        return [self._shown(now, host.token, each) for each in there[:SHOWN]] or [self._shown(now, host.token, _NONE)]

    @staticmethod
    def _shown(now: float, newest: int, x: Any) -> Row:
        return {
            "now": now, "newest": newest, "lease": x.lease, "mode": x.mode, "priority": x.priority,
            "holder": x.holder, "purpose": x.purpose, "token": x.token, "asked_at": x.asked_at,
            "granted_at": x.granted_at, "renewed_at": x.renewed_at, "expires_at": x.expires_at, "ttl_s": x.ttl_s,
            "drain_s": x.drain_s, "id": x.id,
        }  # fmt: skip

    def doors(self, host: Host, values: Row) -> list[Row]:
        now = max(host.clock, self._now())
        return [row | {"now": now} for _, row in sorted(host.doors.items()) if row["seen_at"] >= now - 604800]

    def history(self, host: Host, values: Row) -> list[Row]:
        return host.events[::-1][: values["last"]]
