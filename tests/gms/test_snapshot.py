"""Snapshots: what is saved comes back byte for byte, what is wrong with one is refused by name, and whatever is killed
leaves the one that was there.
"""

import errno
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gms.rules import manifest as mf
from gms.snapshot import BadSnapshot, CannotSave, Snapshot, _alone, find, save
from sidecar.kernel import durable
from tests.gms.live import MIB, House, houses, plain_layout
from tests.gms.test_transfer import environment, write_file
from tests.support.processes import ROOT
from tests.support.waiting import until


@pytest.fixture
def house() -> Iterator[House]:
    yield from houses(devices=("host:0", "host:1"))


@pytest.fixture
def place(house: House, tmp_path: Path) -> Path:
    """A snapshot of what host:0 has."""
    load(house, "host:0", 3)
    with house.client("saves") as client, client.read(10) as reader:
        save([reader], "weights", tmp_path / "snapshot")
    return tmp_path / "snapshot"


def load(house: House, device: str, seed: int, name: str = "") -> bytes:
    """Two slabs of chance."""
    data = random.Random(seed).randbytes(6 * MIB)
    with house.client("loads", device) as client, client.write(10) as writer:
        for slab, part in enumerate((data[: 2 * MIB], data[2 * MIB :])):
            writer.memory(writer.create(len(part)))[:] = part
            assert writer.sizes[slab] == len(part)
        writer.commit(plain_layout(tuple(writer.sizes), name or f"w{seed}")).close()
    return data


def contents(house: House, device: str = "host:0") -> bytes:
    with house.client("looks", device) as client, client.read(10) as reader:
        return b"".join(reader.memory(slab) for slab in range(len(reader.sizes)))


def there(place: Path) -> Snapshot:
    snapshot = find(place)
    assert snapshot is not None
    return snapshot


def shard(place: Path) -> Path:
    return place / there(place).manifest.shard_name(0, 0)


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_all_ranks_come_back_byte_for_byte_each_to_its_device(house: House, tmp_path: Path) -> None:
    house.start("host:1")
    data = [load(house, f"host:{number}", number) for number in (0, 1)]
    saved = json.loads(house.gmsctl("save", tmp_path / "snapshot", "--json").stdout)
    hashes = [house.status(f"host:{number}").hash for number in (0, 1)]
    assert house.gmsctl("clear").returncode == 0
    for _ in range(2):  # said again, it is done already
        restored = house.gmsctl("restore", tmp_path / "snapshot", "--json")
        assert restored.returncode == 0, restored.stderr
        picture = json.loads(restored.stdout)
        assert {**picture, "seconds": 0} == {**saved, "seconds": 0} and picture["devices"] == ["host:0", "host:1"]
    assert [house.status(f"host:{number}").hash for number in (0, 1)] == hashes
    assert [contents(house, f"host:{number}") for number in (0, 1)] == data
    assert house.gmsctl("verify").returncode == 0, "the sums come with the snapshot"
    refused = house.gmsctl("--device", "host:0", "restore", tmp_path / "snapshot")
    assert refused.returncode == 1 and "has 2 ranks, and there are 1 devices for them" in refused.stderr
    assert house.gmsctl("clear").returncode == 0
    others = [load(house, f"host:{number}", number + 7, f"w{number}") for number in (0, 1)]
    assert [house.status(f"host:{number}").hash for number in (0, 1)] == hashes and others != data
    refused = house.gmsctl("restore", tmp_path / "snapshot")
    assert refused.returncode == 1 and "has other weights under" in refused.stderr, "of the same layout"
    assert [contents(house, f"host:{number}") for number in (0, 1)] == others


WRONG: list[tuple[Callable[[Path], object], str]] = [
    (lambda place: flip(shard(place)), r"damaged: 0\.0\.\w+\.shard is crc32:\w+, and was crc32:\w+"),
    (lambda place: shard(place).write_bytes(shard(place).read_bytes()[:-4096]), r"torn: 0\.0\.\w+\.shard has \d+ byt"),
    (lambda place: shard(place).unlink(), r"torn: 0\.0\.\w+\.shard: No such file"),
    (lambda place: flip(place / there(place).manifest.layout_name(0)), r"damaged: 0\.\w+\.layout isn't what was wr"),
    (lambda place: (place / there(place).manifest.layout_name(0)).unlink(), r"torn: 0\.\w+\.layout: No such file"),
    (lambda place: edit(place, '"key": "weights"', '"key": "other"'), r"damaged: its manifest\.json isn't what"),
    (lambda place: edit(place, '"format": 1', '"format": 2'), r"is of format 2, and this program reads format 1"),
    (lambda place: (place / mf.NAME).write_bytes(b"{"), r"is no snapshot: its manifest\.json can't be read"),
]


def edit(place: Path, text: str, instead: str) -> None:
    said = (place / mf.NAME).read_text()
    assert text in said
    (place / mf.NAME).write_text(said.replace(text, instead))


def test_a_torn_snapshot_is_refused_by_name_and_nothing_is_committed(house: House, place: Path) -> None:
    with house.client("clears") as client:
        client.write(10).abort()
        for number, (harm, says) in enumerate(WRONG):
            copy = Path(shutil.copytree(place, place.with_name(f"copy{number}")))
            harm(copy)
            with pytest.raises(BadSnapshot, match=says), client.write(10) as writer:
                there(copy).fill(0, writer)
            until(lambda: (house.status().state, house.status().bytes) == ("EMPTY", 0), "nothing is committed")
        refused = house.gmsctl("restore", copy)
        assert refused.returncode == 1 and refused.stderr.count("\n") == 1 and "Traceback" not in refused.stderr
        assert house.gmsctl("restore", tmp := place / "none").stderr == (
            f"gmsctl: there is no snapshot at {tmp}: gmsctl save makes one\n"
        )


def test_without_a_name_no_region_is_made_beside_those_of_models(house: House, tmp_path: Path) -> None:
    with house.client("loads", region="llama") as client, client.write(10) as writer:
        writer.memory(writer.create(2 * MIB))[:] = bytes(2 * MIB)
        writer.commit(plain_layout((2 * MIB,), "llama")).close()
    place = tmp_path / "snapshot"
    assert house.gmsctl("save", place, "--region", "llama").returncode == 0
    refused = house.gmsctl("restore", place)
    says = "they were saved as those of llama, and host:0 has those of llama: say --region"
    assert refused.returncode == 1 and says in refused.stderr
    file = write_file(tmp_path / "x.safetensors", [("a", "float32", (4,))], 1)
    refused = house.gmsctl("put", file)
    says = "whose weights are they? host:0 has those of llama: say --region"
    assert refused.returncode == 1 and says in refused.stderr
    assert house.gmsctl("restore", place, "--region", "llama").returncode == 0
    assert [region.key for region in house.status().regions if region.policy == "shared" and region.bytes] == ["llama"]
    assert house.gmsctl("restore", place, "--region", "weights").returncode == 0, "that was said"


def test_other_weights_that_are_there_are_not_replaced(house: House, place: Path) -> None:
    other = load(house, "host:0", 4)
    refused = house.gmsctl("restore", place)
    assert refused.returncode == 1 and "has other weights under weights: gmsctl clear" in refused.stderr
    assert contents(house) == other


def test_a_kill_at_any_step_of_a_save_leaves_the_snapshot_that_was_there(house: House, place: Path) -> None:
    first = there(place).manifest.id
    (place / "mine.txt").write_text("not a snapshot's")
    words = [sys.executable, "-m", "tests.gms.saves_and_dies", str(house.run_dir), "host:0", str(place)]
    done = subprocess.run(words, cwd=ROOT, env=environment(house), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) > 8 and all(found) and all(is_whole for _, is_whole in found)
    assert found[0] == [first, True] and found[-1][0] != first
    names = {path.name for path in place.iterdir()}
    snapshot = there(place).manifest
    assert {name for name in names if not name.startswith(mf.NAME)} == {
        "mine.txt",
        snapshot.layout_name(0),
        *(snapshot.shard_name(0, slab) for slab in range(len(snapshot.ranks[0].shards))),
    }


def test_two_do_not_save_to_one_place_and_what_cant_be_saved_leaves_what_was(house: House, place: Path) -> None:
    first, reader = there(place).manifest, house.client("saves").read(10)
    with _alone(place), pytest.raises(CannotSave, match="another process saves to"):
        save([reader], "weights", place)
    reader.sums = ["crc32:00000000", ""]
    with pytest.raises(
        CannotSave, match=r"slab 0 of host:0 is crc32:\w+, and was crc32:00000000 when it was committed"
    ):
        save([reader], "weights", place)
    assert there(place).manifest == first
    assert house.gmsctl("save", place / mf.NAME).stderr.endswith(f"{place / mf.NAME} can't be written: File exists\n")


def test_a_save_whose_name_is_perhaps_not_on_disk_leaves_the_snapshot_before_it(
    house: House, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power may bring the old manifest back. (Here the last fsync is played: no disk fails on demand.)"""
    old, write = (place / mf.NAME).read_bytes(), durable.DurableFile.write

    def half(file: durable.DurableFile, data: bytes) -> None:
        write(file, data)
        raise OSError(errno.EIO, "Input/output error")

    with house.client("saves") as client, client.read(10) as reader, monkeypatch.context() as patched:
        patched.setattr(durable.DurableFile, "write", half)
        with pytest.raises(CannotSave, match="Input/output"):
            save([reader], "weights", place)
    assert shard(place).exists()
    (place / mf.NAME).write_bytes(old)
    assert shard(place).exists()
    with house.client("saves") as client, client.read(10) as reader:
        save([reader], "weights", place)
    new = there(place).manifest.id
    assert not [path for path in place.iterdir() if mf.is_of_another(path.name, new)], "the next one clears up"


def test_the_manifest_says_what_it_is_of(place: Path) -> None:
    said = there(place).manifest
    assert said.bytes == sum(path.stat().st_size for path in place.glob("*.shard")) == 6 * MIB
    assert (said.dtypes, said.described) == ({"uint8": 6 * MIB}, {"made": "w3"})
    assert said.fingerprint == mf.fingerprint_of([said.ranks[0].hash]) and said.ranks[0].device == "host:0"
    assert '"made": "w3"' in (place / mf.NAME).read_text(), "a person can read it"
    assert there(place).rank_of({"made": "w3"}) == 0
    with pytest.raises(BadSnapshot, match="is of other weights: it says w3, and here it is w4"):
        there(place).rank_of({"made": "w4"})
