"""`fleetctl doctor`: what leases stand on, looked at one by one."""

import os
import time
from collections.abc import Callable, Iterator

from fleet.rules.leases import seen, utc, whose
from fleet.shell.store import Row, SqliteStore, Store
from sidecar.kernel.filesystems import NETWORK, filesystem
from sidecar.terminal.findings import Finding, fail, ok, warn

CLOCK_OFF_S, WAITS_LONG_S, SILENT_S = 5.0, 600.0, 60.0


def examine(store: Store, ask: Callable[..., list[Row]]) -> Iterator[Finding]:
    if isinstance(store, SqliteStore) and filesystem(store.path.parent)[0].startswith(NETWORK):
        do = "use PostgreSQL, or a file on a disk of this machine"
        yield fail("file", f"{store.where} is on a network filesystem, where its locks can't be relied on", do)
    began = time.monotonic()
    hosts = [row["name"] for row in ask("hosts")]
    took_ms = (time.monotonic() - began) * 1000
    yield ok("database", f"{store.where} answers ({took_ms:.0f} ms with the connection), {len(hosts)} hosts")
    if isinstance(store, SqliteStore) and not os.access(store.path, os.W_OK):
        yield fail("file", f"{store.where} can't be written by this user", "give it the file and its directory")
    if not hosts:
        yield warn("hosts", "there are none", "fleetctl init --host NAME adds one")
    offset_s = 0.0
    for host in hosts:
        before, found = time.time(), seen(ask("look", host=host))
        assert found is not None
        between = min(max(found.now, before), time.time())  # the answer may have taken long
        offset_s = max(offset_s, found.now - between, key=abs)
        for row in found.rows:
            if row.token is not None and found.now - row.renewed_at > row.ttl_s / 2:
                do = "its holder may be stopped or cut off; it lapses by itself"
                yield warn(f"{host}", f"{whose(row)} was renewed last at {utc(row.renewed_at)}", do)
            if row.token is None and row.exclusive and found.now - row.asked_at > WAITS_LONG_S:
                do = f"fleetctl status {host} says what it waits for"
                yield warn(f"{host}", f"{whose(row)} has waited since {utc(row.asked_at)}", do)
        for door in ask("doors", host=host):
            silent_s = found.now - door["seen_at"]
            if not door["ended"] and silent_s > SILENT_S:
                do = "start it, or end it in order; a week after it was last heard of it is forgotten"
                yield warn(f"{host}", f"{door['door']} hasn't been heard of for {silent_s:.0f} s: no run is clean", do)
    if isinstance(store, SqliteStore) and offset_s > CLOCK_OFF_S:
        do = "leases end as if it were that time: a host whose holder dies now is free again so much later"
        yield fail("clock", f"this machine's clock was {offset_s:.0f} s ahead once, and was set back", do)
    elif abs(offset_s) > CLOCK_OFF_S:
        do = "leases don't mind (each side counts by its own clock), but the times that are shown are wrong: set it"
        yield warn("clock", f"the database's clock is {offset_s:+.0f} s from this machine's", do)
