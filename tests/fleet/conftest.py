"""Databases of each kind: a file of SQLite's, PostgreSQL of the system and of a package, and that behind a pooler."""

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.shell.store import Store, open_store
from tests.fleet.postgres import Postgres, pooler, postgres

KINDS = ("sqlite", "system", "packaged", "pooled")
_numbers = itertools.count()
_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A server takes longer to start than its tests: those of PostgreSQL share one worker, and so its servers."""
    for item in items:
        if item.path.parent == _HERE:
            chosen = getattr(getattr(item, "callspec", None), "params", {}).get("database", "sqlite")
            if chosen != "sqlite" or {"packaged", "postgres"} & set(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.xdist_group("postgres"))


@pytest.fixture(scope="session")
def place() -> Iterator[Path]:
    """A directory that PostgreSQL's user may enter."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(scope="session")
def servers(place: Path) -> Iterator[Callable[[str], Postgres]]:
    """Each is started when it is first wanted, and serves all tests: each of them has a host of its own."""
    known: dict[str, Postgres] = {}
    with contextlib.ExitStack() as stack:

        def server(kind: str) -> Postgres:
            if kind not in known:
                known[kind] = stack.enter_context(postgres(kind, place / kind))
            return known[kind]

        yield server


@pytest.fixture
def packaged(servers: Callable[[str], Postgres]) -> Postgres:
    return servers("packaged")


@pytest.fixture(scope="session")
def urls(servers: Callable[[str], Postgres], place: Path) -> Iterator[Callable[[str], str]]:
    known: dict[str, str] = {"sqlite": f"sqlite://{place}/fleet.db"}
    with contextlib.ExitStack() as stack:

        def url(kind: str) -> str:
            if kind == "pooled" and kind not in known:
                port = stack.enter_context(pooler(servers("packaged"), place / "pooler"))
                known[kind] = servers("packaged").url(port=port)
            elif kind not in known:
                known[kind] = servers(kind).url()
            open_store(known[kind]).init([])
            return known[kind]

        yield url


@pytest.fixture
def database(request: pytest.FixtureRequest, urls: Callable[[str], str]) -> str:
    """SQLite's, unless the test says which."""
    return urls(getattr(request, "param", "sqlite"))


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    found = open_store(database)
    yield found
    found.close()


@pytest.fixture
def host(database: str) -> str:
    name = f"host-{next(_numbers)}"
    open_store(database).init([name])
    return name
