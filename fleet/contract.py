"""Does another program keep the rules? For a program in any language that is to take leases.

    python -m fleet.contract --database sqlite:///PATH -- ./my-program

The program finds FAILOVER_DATABASE, FAILOVER_HOST and FAILOVER_WORKING in its environment. It is to take that host
alone, touch that file time and again while it works, and give the host back within a term after SIGTERM. A term may be
as short as 3 s (`ttl_s`). What is tried:

1. it has a lease while it works, and renews it before it is relied on no longer
2. it gives its lease back when it ends in order
3. it waits while another has the host, and goes on when that is over
4. it has ended or stopped working within a term when its lease is taken away
"""

import argparse
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fleet.rules.leases import LeaseRow, seen
from fleet.shell.store import Store, StoreError, database, open_store
from sidecar.terminal.exit_codes import EX_REFUSED
from sidecar.terminal.settings import Parser, seconds, valued


class Broken(Exception):
    """A rule, and what was seen instead."""


class Contract:
    def __init__(self, url: str, command: list[str], patience_s: float) -> None:
        self.store: Store = open_store(url)
        self.host = f"contract-{secrets.token_hex(4)}"
        self.store.init([self.host])
        self._patience_s, self._command, self._url = patience_s, command, url
        self._place = tempfile.TemporaryDirectory(prefix="contract-")
        self._working = Path(self._place.name) / "working"
        self._programs: list[subprocess.Popen[bytes]] = []

    def run(self, say: Callable[[str], None]) -> None:
        """Raises Broken."""
        try:
            for rule in (self.renews, self.gives_back, self.waits, self.steps_down):
                rule()
                say(f"ok    {rule.__doc__}")
        finally:
            for program in self._programs:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
                program.wait()
            self._place.cleanup()

    def renews(self) -> None:
        """it has a lease while it works, and renews it in time"""
        program = self._start()
        first = self._held("it takes the host")
        for _ in range(3):
            renewed = self._renewal(first)
            if renewed.token != first.token or renewed.renewed_at > first.renewed_at + first.ttl_s * 2 / 3:
                raise Broken(f"it was renewed after {renewed.renewed_at - first.renewed_at:.1f} s of {first.ttl_s:g} s")
            first = renewed
        if not self._working.exists():
            raise Broken("it holds its lease, and doesn't touch the file FAILOVER_WORKING")
        self._end(program)

    def waits(self) -> None:
        """it waits while another has the host, and goes on when that is over"""
        lease, token = self._take()
        self._working.unlink(missing_ok=True)
        program = self._start()
        self._until(lambda: next((row for row in self._all() if row.token is None), None), "it asks for the host")
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            self.store.call("renew", host=self.host, lease=lease, token=token)
            if self._working.exists():
                raise Broken("it works while another has the host")
            time.sleep(0.1)
        self.store.call("release", host=self.host, lease=lease)
        self._held("it takes the host when that is free")
        self._end(program)

    def gives_back(self) -> None:
        """it gives its lease back when it ends in order"""
        program = self._start()
        row = self._renewal(self._held("it takes the host"))  # by then it knows that it holds
        self._end(program)
        events = [each["event"] for each in self.store.call("history", host=self.host, last=10)]
        if "released" not in events[:2] or self._rows():
            raise Broken(f"its lease (token {row.token}) wasn't given back: {', '.join(events[:3])}")

    def steps_down(self) -> None:
        """it has stopped working within a term when its lease is taken away"""
        program = self._start()
        row = self._held("it takes the host")
        self._renewal(row)
        self.store.call("release", host=self.host, lease=row.lease)
        lapses_at = time.monotonic() + row.ttl_s
        while time.monotonic() < lapses_at and program.poll() is None:
            time.sleep(0.02)
        self._working.unlink(missing_ok=True)
        time.sleep(1.0)
        if program.poll() is None and self._working.exists() and not self._rows():
            raise Broken("it works on without a lease")

    # -- the program and the database ------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        told = {"FAILOVER_DATABASE": self._url, "FAILOVER_HOST": self.host, "FAILOVER_WORKING": str(self._working)}
        self._programs.append(subprocess.Popen(self._command, env=os.environ | told, process_group=0))
        return self._programs[-1]

    def _end(self, program: subprocess.Popen[bytes]) -> None:
        program.send_signal(signal.SIGTERM)
        try:
            program.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            raise Broken(f"it doesn't end within {self._patience_s:g} s after SIGTERM") from None

    def _all(self) -> list[LeaseRow]:
        found = seen(self.store.call("look", host=self.host))
        return list(found.rows) if found is not None else []

    def _rows(self) -> list[LeaseRow]:
        return [row for row in self._all() if row.token is not None]

    def _held(self, what: str) -> LeaseRow:
        row = self._until(lambda: next(iter(self._rows()), None), what)
        if not row.exclusive:
            raise Broken("its lease is a shared one")
        return row

    def _renewal(self, before: LeaseRow) -> LeaseRow:
        newer = lambda: next((row for row in self._rows() if row.renewed_at > before.renewed_at), None)  # noqa: E731
        return self._until(newer, "it renews its lease")

    def _until(self, look: Callable[[], LeaseRow | None], what: str) -> LeaseRow:
        end = time.monotonic() + self._patience_s
        while (found := look()) is None:
            if time.monotonic() >= end:
                raise Broken(f"not within {self._patience_s:g} s: {what}")
            if (code := self._programs[-1].poll()) is not None:
                raise Broken(f"the program has ended, with {code}, before this: {what}")
            time.sleep(0.02)
        return found

    def _take(self) -> tuple[str, int]:
        lease = secrets.token_hex(16)
        values = {"mode": "exclusive", "priority": 0, "holder": "the contract's test", "purpose": "", "drain": 0.0}
        rows = self.store.call("ask", host=self.host, lease=lease, ttl=10.0, wait=10.0, **values)
        if rows[0]["token"] is None:
            raise Broken("a lease is left of a program that has ended")
        return lease, rows[0]["token"]


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m fleet.contract", description="Does a program keep the rules of leases?",
                    formatter_class=argparse.RawDescriptionHelpFormatter, epilog=__doc__)  # fmt: skip
    parser.setting("--database", parse=database, required=True, metavar="URL", help="hosts are added to it")
    parser.add_argument("--patience-s", type=valued(seconds), default=60.0, metavar="S", help="for each step")
    parser.add_argument("words", nargs="+", metavar="COMMAND", help="the program")
    options = parser.parse_args(argv)
    try:
        Contract(options.database, options.words, options.patience_s).run(print)
    except Broken as error:
        print(f"BROKEN  {error}", file=sys.stderr)
        return 1
    except StoreError as error:
        print(f"python -m fleet.contract: {error}", file=sys.stderr)
        return EX_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
