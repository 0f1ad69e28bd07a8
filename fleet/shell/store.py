"""The database: SQLite for one machine, PostgreSQL for a fleet. What is said to it stands in `statements.py`.

A store is one connection, made when it is first needed, and again after a failure; one thread uses it. `cut` may be
called from another: it ends what is under way, because a server that is stopped answers nothing for ever.

What this file may not do: decide, or try again.
"""

import contextlib
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from fleet.rules import statements
from fleet.rules.statements import SCHEMA, STATEMENTS, VERSION
from sidecar.kernel.filesystems import filesystem
from sidecar.terminal.extras import how_to_get
from sidecar.terminal.names import BadValue

if TYPE_CHECKING:
    import psycopg

CONNECT_S, BUSY_S, ANSWER_S = 5, 3.0, 10.0
Row = dict[str, Any]
INIT = "fleetctl init --host NAME"


class StoreError(Exception):
    """No answer came, and it isn't known whether the database has done it. Asking again may help."""


class Refused(StoreError):
    """The database answers, and will answer the same until a person changes something."""


def open_store(database: str) -> "Store":
    """Connects to nothing yet. Raises BadValue, or Refused where a package is missing."""
    parts = urlsplit(database)
    more = parts.netloc or parts.query or parts.fragment or "%00" in parts.path
    if parts.scheme == "sqlite" and not more and len(parts.path) > 1:
        return SqliteStore(Path(unquote(parts.path)))
    if parts.scheme in ("postgresql", "postgres"):
        return PostgresStore(database)
    raise BadValue(f"{database!r} is no database; allowed: sqlite:///PATH or postgresql://USER@HOST/NAME")


def ask(store: "Store", what: str, **values: object) -> list[Row]:
    """With a bound: a database that is stopped says nothing."""
    cut = threading.Timer(ANSWER_S, store.cut)
    cut.start()
    try:
        return store.call(what, **values)
    finally:
        cut.cancel()


def database(text: str) -> str:
    """For settings."""
    try:
        open_store(text)
    except Refused as error:
        raise BadValue(str(error)) from None
    return text


def default_database() -> str:
    """A file of this user's, which outlives a restart of the machine: tokens grow for ever."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    homeless = not os.path.isabs(state)  # as in a container whose user has no entry, and where none is needed either
    return f"sqlite://{'/var/lib' if os.getuid() == 0 or homeless else state}/gpu-failover/fleet.db"


def check_version(found: int | None, where: str, *, init: bool = False) -> None:
    if init and (found or 0) <= VERSION:
        return
    if found is None:
        raise Refused(f"{where} has no leases in it yet: {INIT} makes them")
    if found != VERSION:
        todo = f"{INIT} migrates it" if found < VERSION else "use a newer fleetctl"
        raise Refused(f"{where} has leases of version {found}, and this is for version {VERSION}: {todo}")


class SqliteStore:
    def __init__(self, path: Path, now: str = "") -> None:
        """`now`: SQL for the time, for tests."""
        self.path, self.where = path, f"sqlite://{path}"
        """`where` is for people, without a password: so it is with PostgreSQL."""
        self._now = now
        self._connection: sqlite3.Connection | None = None
        self._files: list[int] = []
        self._said: dict[str, list[str]] = {}

    def call(self, name: str, **values: object) -> list[Row]:
        """One of `statements.STATEMENTS`. Raises StoreError."""
        said = self._said.get(name)
        if said is None:
            said = self._said[name] = [statements.for_sqlite(each, self._now) for each in STATEMENTS[name][0]]
        with self._errors():
            connection = self._connected()
            if len(said) == 1:
                return connection.execute(said[0], values).fetchall()
            with _transaction(connection):
                return [connection.execute(each, values).fetchall() for each in said][-1]

    def init(self, hosts: list[str], grant_to: str = "") -> int:
        """Makes or migrates the schema, and adds hosts. Returns the version that was there: 0 for none."""
        if grant_to:
            raise Refused("SQLite knows no roles: the file's owner and mode say which users may write it")
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = self._open("rwc")
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                with _transaction(connection):
                    found = _sqlite_version(connection)
                    check_version(found, self.where, init=True)
                    for each in statements.for_sqlite(statements.TABLES, self._now).split(";\n"):
                        connection.execute(each)
                    connection.execute("DELETE FROM meta")
                    connection.execute("INSERT INTO meta (version) VALUES (?)", (VERSION,))
                    for host in hosts:
                        connection.execute(statements.ADD_HOST, {"host": host})
            finally:
                connection.close()
        return found or 0

    def cut(self) -> None:
        """Its waits have a bound of their own."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        files = self._there()
        if self._connection is not None and self._files != files:  # others are there: these rule from now on
            self.close()
        if self._connection is None:
            connection = self._open("rw")
            try:
                check_version(_sqlite_version(connection), self.where)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._files = self._there()
        return self._connection

    def _there(self) -> list[int]:
        """The file, and the two beside it that have its newest rows and its locks: by another path they are others."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise Refused(f"there is no database at {self.where}: {INIT} makes it") from None
        if found.st_nlink > 1 or (self._connection is None and filesystem(self.path)[1] == os.path.realpath(self.path)):
            raise Refused(f"{self.where} has another path, and another lock there: mount or link its whole directory")
        beside = () if self._connection is None else (f"{self.path}-wal", f"{self.path}-shm")
        return [found.st_ino, *(os.stat(path).st_ino for path in beside if os.path.exists(path))]

    def _open(self, mode: str) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, BUSY_S, uri=True, isolation_level=None, check_same_thread=False)
        connection.row_factory = _as_dict
        connection.execute("PRAGMA synchronous = FULL")  # a token that was given mustn't be given again after a crash
        return connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self.close()
            raise
        except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:
            self.close()
            raise self._in_words(error) from error

    def _in_words(self, error: Exception) -> StoreError:
        said = str(error)
        if isinstance(error, (OverflowError, UnicodeError)):
            return Refused(f"that is no value for {self.where}: {said}")
        if isinstance(error, OSError):
            return Refused(f"{self.where}: {error.strerror}")
        if "readonly" in said or "read-only" in said:
            return Refused(f"{self.where} can't be written by this user: give it the file and its directory")
        if "full" in said or "disk I/O" in said:
            return StoreError(f"{self.where}: the disk is full, or can't be written; nothing has changed ({said})")
        if "locked" in said or "busy" in said:
            return StoreError(f"{self.where} is locked by another process for {BUSY_S:g} s ({said})")
        if isinstance(error, sqlite3.IntegrityError):
            return Refused(f"{self.where} doesn't take this: {said}")
        if "unable to open" in said:
            return Refused(f"{self.where} can't be opened by this user: is it a file, and may it enter the directory?")
        if "not a database" in said or "malformed" in said:
            return Refused(f"{self.where} is no database of SQLite's, or a damaged one ({said})")
        return StoreError(f"{self.where}: {said}")


def _as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> Row:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _sqlite_version(connection: sqlite3.Connection) -> int | None:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchall():
        return None
    rows = connection.execute("SELECT version FROM meta").fetchall()
    return int(rows[0]["version"]) if rows else None


class PostgresStore:
    """Nothing of a session is used, so a pooler that shares connections by transaction may stand between."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise Refused(f"PostgreSQL needs the package psycopg: {how_to_get('fleet')}") from None
        try:
            known: Mapping[str, Any] = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise BadValue(f"that is no address of a PostgreSQL database: {str(error).strip()}") from None
        self._url = url
        at = f"{known.get('host', 'localhost')}:{known.get('port', 5432)}"
        self.where = f"postgresql://{known.get('user', '')}@{at}/{known.get('dbname', '')}"
        self._connection: psycopg.Connection[Row] | None = None
        self._descriptor = -1
        """Its socket's: a copy, so that `cut` can't come upon another file under the same number."""

    def call(self, name: str, **values: object) -> list[Row]:
        asked = ", ".join(f"%({each})s" for each in statements.parameters(name))
        with self._errors():
            return self._connected().execute(f"SELECT * FROM {SCHEMA}.{name}({asked})", values).fetchall()

    def init(self, hosts: list[str], grant_to: str = "") -> int:
        with self._errors():
            connection = self._connect()
            try:
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (SCHEMA,))  # two at once
                    found = _postgres_version(connection)
                    check_version(found, self.where, init=True)
                    connection.execute(statements.for_postgres(grant_to).encode())
                    for host in hosts:
                        add = statements.ADD_HOST.replace(":host", "%(host)s")  # the search path is the schema's
                        connection.execute(add.encode(), {"host": host})
            finally:
                connection.close()
        return found or 0

    def cut(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as cut:
                cut.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> "psycopg.Connection[Row]":
        import psycopg
        from psycopg.rows import dict_row

        return psycopg.connect(
            self._url, autocommit=True, prepare_threshold=None, row_factory=dict_row, connect_timeout=CONNECT_S,
            application_name="gpu-failover fleet",
        )  # fmt: skip

    def _connected(self) -> "psycopg.Connection[Row]":
        if self._connection is None:
            connection = self._connect()
            try:
                self._descriptor = os.dup(connection.fileno())
                check_version(_postgres_version(connection), self.where)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except (psycopg.Error, OSError, UnicodeError) as error:
            self.close()
            raise self._in_words(error) from error
        except StoreError:
            self.close()
            raise

    def _in_words(self, error: Exception) -> StoreError:
        from psycopg import errors

        said = str(error).strip().split("\n")[0]
        if isinstance(error, errors.InsufficientPrivilege):
            todo = "its owner runs fleetctl init --grant ROLE (--print shows the SQL)"
            return Refused(f"this role has no right to the leases in {self.where} ({said}): {todo}")
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return StoreError(f"{self.where} is read-only: a replica, or told to be; leases need the primary")
        if isinstance(error, (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName)):
            return Refused(f"{self.where} has no leases in it, or of another version ({said}): {INIT} makes them")
        if isinstance(error, (errors.IntegrityError, errors.DataError, UnicodeError)):
            return Refused(f"{self.where} doesn't take this: {said}")
        return StoreError(f"{self.where}: {said}")


def _postgres_version(connection: "psycopg.Connection[Row]") -> int | None:
    """With one question, as the client's role may ask it."""
    there = connection.execute("SELECT to_regclass(%s) IS NOT NULL AS there", (f"{SCHEMA}.meta",)).fetchone()
    if there is None or not there["there"]:
        return None
    row = connection.execute(f"SELECT version FROM {SCHEMA}.meta".encode()).fetchone()
    return int(row["version"]) if row is not None else None


Store = SqliteStore | PostgresStore
