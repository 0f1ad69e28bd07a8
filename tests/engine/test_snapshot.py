"""An engine with `--snapshot`: its first start makes one, the next read it, and one that is of no use is named and
kept. The reference engine, for real.
"""

from pathlib import Path

import pytest

from engine_shim.cli.pair_parts import Options, children
from gms.snapshot import find
from tests.engine.kinds import REFERENCE, there
from tests.engine.shims import House
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(REFERENCE not in there(), reason="there is no reference engine")]


def serves(house: House, place: Path, *arguments: str) -> str:
    """An engine on a device without weights answers as ever. What it said."""
    house.start_gms(REFERENCE)
    a = house.shim(REFERENCE, "a", "--snapshot", str(place), arguments=arguments)
    house.until_announced(a)
    if not arguments:
        house.answers_as_ever(REFERENCE)
    said = a.said()
    if "snapshot" not in said:
        until(lambda: "a snapshot: weights is saved" in a.said(), "the snapshot is made")
    for program in (a, house.gms):
        assert program is not None
        program.kill()
    a.log.unlink()
    return said


def test_the_first_start_saves_the_next_read_and_what_is_of_no_use_is_named_and_kept(
    house: House, tmp_path: Path
) -> None:
    house.start_lock(*REFERENCE.lock)
    place = tmp_path / "made" / "here"
    assert "has its weights from" not in serves(house, place)
    first = find(place)
    assert first is not None
    came = f"host:0 has its weights from the snapshot {place}"
    assert came in serves(house, place)
    said = serves(house, place, "--seed", "7")
    assert f"the snapshot {place} is of other weights: seed is 0 there, and 7 here. The weights are loaded as" in said
    shard = place / first.manifest.shard_name(0, 0)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    said = serves(house, place)
    assert f"the snapshot {place} is damaged: {shard.name} is crc32:" in said and came not in said
    found = find(place)
    assert found is not None and found.manifest == first.manifest


def test_failover_up_tells_its_engines(tmp_path: Path) -> None:
    shim = ("--snapshot", str(tmp_path))
    parts = children(Options(tmp_path, "reference", ("host:0",), "1GiB", ("a", "b"), shim, ()))
    assert [f"--snapshot {tmp_path}" in " ".join(part.command) for part in parts] == [False, False, True, True]
