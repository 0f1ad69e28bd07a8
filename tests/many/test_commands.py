"""Programs behind `command:` that do what programs do: real ones, beside a model that sleeps in place."""

import sys
from typing import Any

import pytest

from tests.engine.shims import House
from tests.many.host import DEVICE, Host
from tests.many.test_others import foreign

pytestmark = pytest.mark.chaos
MIB = 1 << 20


def beside(house: House, told: dict[str, str], memory: str = "", **file: Any) -> Host:
    """`a` is the command, and `b` takes more than half of the device."""
    (house.directory / "told").mkdir()
    for name, text in told.items():
        (house.directory / "told" / name).write_text(text)
    command = [sys.executable, "-m", "tests.many.odd_command", str(house.directory / "told"), "{port}"]
    a = {"engine": "command", "command": command, "arguments": [], "environment": {"USES": DEVICE}, "memory": memory}
    b = {"arguments": ["--kv-bytes", "96MiB"], "memory": "96MiB"}
    return Host(house, {"a": a, "b": b}, capacity="160MiB", **file).ready()


def asked(host: Host) -> None:
    (stream,) = host.run([host.stream("a", stream=False)])
    assert stream.status == 200 and b"an answer" in stream.raw, stream.raw[-400:]


@pytest.mark.parametrize("memory", ["", "10MiB"], ids=["unknown", "too small"])
def test_what_a_command_takes_beyond_its_lease_keeps_no_other_model_from_its_turn(house: House, memory: str) -> None:
    """Its own memory counted as another program's, so that nothing else fitted while it was awake: for ever."""
    host = beside(house, {"uses": str(100 * MIB)}, memory)
    asked(host)
    host.until(lambda: foreign(host) >= 90, "the ledger has seen what it uses")
    host.answered(host.run([host.stream("b", x_deadline_ms=20_000)]))


@pytest.mark.parametrize("form", ["text", "json"])
def test_one_that_dies_as_it_wakes_is_refused_with_the_last_that_it_printed(house: House, form: str) -> None:
    """Only the log said why, which clients don't read."""
    house.environment["FAILOVER_LOG_FORMAT"] = form
    code = "import sys; print('loading'); sys.exit('unknown architecture: foo')"
    dies = [sys.executable, "-u", "-c", code, "{port}"]
    host = Host(house, {"a": {"engine": "command", "command": dies, "arguments": [], "memory": "10MiB"}}).ready()
    (stream,) = host.run([host.stream("a", stream=False)])
    said = stream.raw.decode()
    assert stream.status == 503 and "as it woke: " in said and "python has ended" in said, said
    assert "the last that it printed: unknown architecture: foo" in said, said
