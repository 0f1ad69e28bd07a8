"""Leases in words and columns. Pure: rows and the database's time go in, lines come out."""

from collections.abc import Mapping
from typing import Any

from fleet.rules.leases import LeaseRow, Seen, utc, whose
from fleet.rules.statements import SHOWN
from sidecar.terminal import table
from sidecar.terminal.formatting import PLAIN, Paint, Tone, length


def lines(hosts: Mapping[str, Seen], paint: Paint = PLAIN) -> list[str]:
    rows: list[list[str]] = []
    for host, seen in hosts.items():
        held = [row for row in seen.rows if row.token is not None]
        waiting = sorted((row for row in seen.rows if row.token is None), key=lambda row: row.id)
        if not seen.rows:
            rows.append([host, paint("free", Tone.QUIET)])
        for place, row in enumerate(held + waiting):
            tone = Tone.CARE if row.token is None else Tone.BAD if row.exclusive else Tone.GOOD
            mode = row.mode if row.token is not None else f"waits, {row.mode}"
            rows.append([host if not place else "", paint(mode, tone), whose(row), _since(row, seen.now)])
        if len(seen.rows) >= SHOWN:
            rows.append(["", paint(f"only the first {SHOWN} are shown", Tone.QUIET)])
    return table.lines(rows) if rows else ["there are no hosts yet: fleetctl init --host NAME adds one"]


def _since(row: LeaseRow, now: float) -> str:
    if row.token is None or row.granted_at is None:
        urgent = f", priority {row.priority}" if row.priority else ""
        return f"asked {length(now - row.asked_at)} ago{urgent}"
    return f"token {row.token}, for {length(now - row.granted_at)}, until {utc(row.expires_at)} unless renewed"


def change_line(host: str, seen: Seen) -> str:
    """What stays the same as long as nothing but time has changed."""
    held = [f"{row.mode} {whose(row)} (token {row.token})" for row in seen.rows if row.token is not None]
    waiting = [f"{row.mode} {whose(row)}" for row in seen.rows if row.token is None]
    return f"{host}  {', '.join(held) or 'free'}" + (f"; waiting: {', '.join(waiting)}" if waiting else "")


def event_line(row: Mapping[str, Any]) -> str:
    token = f"token {row['token']}" if row["token"] is not None else ""
    purpose = f" for {row['purpose']}" if row["purpose"] else ""
    return f"{utc(row['at'])}  {row['event']:<8}  {row['mode']:<9}  {token:<10}  {row['holder']}{purpose}".rstrip()
