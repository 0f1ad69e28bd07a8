"""`gmsctl put`, `get` and `verify`, with checkpoints of the shapes that real ones have, scaled down."""

import ctypes
import itertools
import json
import os
import pty
import random
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gms.layout import ITEM_BITS, Layout, Tensor
from gms.rules.safetensors_file import DTYPES, compose
from gms.shell.transfer import get
from tests.gms.live import MIB, House, houses
from tests.support.processes import ROOT
from tests.support.waiting import DEADLINE_S, until

Shapes = list[tuple[str, str, tuple[int, ...]]]


def dense_7b(scale: int = 16) -> Shapes:
    """A 7B model's tensor list (32 layers, grouped heads), each dimension divided."""
    hidden, inner, kv, vocab = 4096 // scale, 14336 // scale, 1024 // scale, 32000 // scale
    shapes: Shapes = [("model.embed_tokens.weight", "bfloat16", (vocab, hidden))]
    for layer in range(32):
        at = f"model.layers.{layer}"
        shapes += [
            (f"{at}.input_layernorm.weight", "bfloat16", (hidden,)),
            (f"{at}.mlp.down_proj.weight", "bfloat16", (hidden, inner)),
            (f"{at}.mlp.gate_proj.weight", "bfloat16", (inner, hidden)),
            (f"{at}.mlp.up_proj.weight", "bfloat16", (inner, hidden)),
            (f"{at}.post_attention_layernorm.weight", "bfloat16", (hidden,)),
            (f"{at}.self_attn.k_proj.weight", "bfloat16", (kv, hidden)),
            (f"{at}.self_attn.o_proj.weight", "bfloat16", (hidden, hidden)),
            (f"{at}.self_attn.q_proj.weight", "bfloat16", (hidden, hidden)),
            (f"{at}.self_attn.v_proj.weight", "bfloat16", (kv, hidden)),
        ]
    return [*shapes, ("model.norm.weight", "bfloat16", (hidden,)), ("lm_head.weight", "bfloat16", (vocab, hidden))]


def mixture(scale: int = 64) -> Shapes:
    """A mixture of experts: 24 layers of 60 experts, in eight-bit floats with block scales, and packed four bits."""
    hidden, inner = 2048 // scale * 8, 1408 // scale * 8
    shapes: Shapes = [("model.embed_tokens.weight", "bfloat16", (151936 // scale, hidden))]
    for layer in range(24):
        at = f"model.layers.{layer}"
        shapes.append((f"{at}.mlp.gate.weight", "float32", (60, hidden)))
        for expert in range(60):
            for part in ("gate_proj", "up_proj", "down_proj"):
                name = f"{at}.mlp.experts.{expert}.{part}"
                if layer % 2:
                    shapes.append((f"{name}.weight", "float8_e4m3fn", (inner, hidden // 4)))
                    shapes.append((f"{name}.weight_scale_inv", "float32", (-(-inner // 128), -(-hidden // 512))))
                else:
                    shapes.append((f"{name}.qweight", "int32", (hidden // 32, inner)))
                    shapes.append((f"{name}.qzeros", "int32", (1, inner // 8)))
                    shapes.append((f"{name}.scales", "float16", (1, inner)))
                    shapes.append((f"{name}.g_idx", "int32", (hidden,)))
    return [*shapes, ("model.nothing", "uint8", (0, 7)), ("model.version", "int64", ())]


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    size = ITEM_BITS[dtype] // 8
    for each in shape:
        size *= each
    return size


def write_file(path: Path, shapes: Shapes, seed: int, metadata: dict[str, str] | None = None) -> Path:
    chance = random.Random(seed)
    with path.open("wb") as file:
        file.write(compose(shapes, metadata or {}))
        for _, dtype, shape in shapes:
            file.write(chance.randbytes(size_of(dtype, shape)))
    return path


def contents(*paths: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Read by hand, so that nothing of ours judges itself."""
    found = {}
    for path in paths:
        found.update(contents_of(path.read_bytes()))
    return found


def contents_of(data: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    found = {}
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    for name, said in header.items():
        start, end = said["data_offsets"]
        found[name] = (said["dtype"], tuple(said["shape"]), data[8 + length + start : 8 + length + end])
    return found


@pytest.fixture
def house() -> Iterator[House]:
    yield from houses(capacity=1024 * MIB)


def command(house: House, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "gms.cli.gmsctl", "--run-dir", str(house.run_dir), *map(str, arguments)]


def environment(house: House) -> dict[str, str]:
    return {**os.environ, "FAILOVER_HOST_DEVICES": str(house.devices)}


def test_two_models_lie_side_by_side_and_one_is_dropped_provably(house: House, tmp_path: Path) -> None:
    file = write_file(tmp_path / "model.safetensors", dense_7b(32), 1)
    assert house.gmsctl("put", file).returncode == 0
    of_one = house.used()
    assert house.gmsctl("put", "--region", "other", file).returncode == 0
    assert house.used() == 2 * of_one
    out = tmp_path / "out.safetensors"
    assert house.gmsctl("get", "--region", "other", out).returncode == 0 and contents(out) == contents(file)
    assert "other: COMMITTED" in house.gmsctl("status").stdout
    with house.client(region="other") as client, client.read(timeout_s=20) as reader:
        refused = house.gmsctl("drop", "other")
        assert refused.returncode == 1 and "reads" in refused.stderr, "what is read is not dropped"
        reader.sleep()
        done = house.gmsctl("drop", "other")
        assert (done.returncode, done.stderr) == (0, ""), "a sleeper lets go of it when it is asked"
        assert "no process has its memory any more, as the device says" in done.stdout
    assert house.used() == of_one and house.status().state == "COMMITTED"
    assert house.gmsctl("drop", "other").returncode == 1, "there is no such region any more"


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [dense_7b(), mixture()], ids=["7B dense", "mixture of experts"])
def test_a_checkpoint_of_several_files_comes_back_byte_for_byte(house: House, tmp_path: Path, shapes: Shapes) -> None:
    half = len(shapes) // 2
    files = [
        write_file(tmp_path / "model-1.safetensors", shapes[:half], 1, {"format": "pt"}),
        write_file(tmp_path / "model-2.safetensors", shapes[half:], 2, {"format": "pt"}),
    ]
    done = house.gmsctl("put", *files)
    assert done.returncode == 0, done.stderr
    assert f"{len(shapes)} tensors" in done.stdout
    assert done.stderr == "", "no bar where there is no terminal"
    status = house.status()
    assert (status.state, status.tensors) == ("COMMITTED", len(shapes))
    out = tmp_path / "out.safetensors"
    assert house.gmsctl("get", out).returncode == 0
    assert contents(out) == contents(*files)
    assert os.listdir(tmp_path).count("out.safetensors") == 1
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]
    verified = house.gmsctl("verify", "--json")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["verdict"] == "same"


def test_one_file_with_every_dtype_comes_back_as_it_was(house: House, tmp_path: Path) -> None:
    shapes = dense_7b(64) + [(f"t.{dtype}", dtype, (3, 5)) for dtype in DTYPES.values()]
    file = write_file(tmp_path / "in.safetensors", shapes, 3, {"format": "pt", "made": "here"})
    assert house.gmsctl("put", file).returncode == 0
    out = tmp_path / "out.safetensors"
    assert house.gmsctl("get", "--device", "host:0", out).returncode == 0
    assert out.read_bytes() == file.read_bytes()


def test_a_bad_file_is_refused_before_anything_is_cleared(house: House, tmp_path: Path) -> None:
    good = write_file(tmp_path / "good.safetensors", dense_7b(64), 1)
    assert house.gmsctl("put", good).returncode == 0
    before = house.status()
    bad, missing, large = (tmp_path / f"{name}.safetensors" for name in ("bad", "missing", "large"))
    bad.write_bytes(good.read_bytes()[:-1])
    size = 1200 * MIB
    with large.open("wb") as sparse:
        sparse.write(compose([("w", "uint8", (size,))], {}))
        sparse.truncate(sparse.tell() + size)
    wrong = ((bad, "cut short"), (missing, "No such file"), (good, "is in"), (large, str(1024 * MIB)))
    for replace, (file, says) in itertools.product(((), ("--replace",)), wrong):
        files = (large,) if file is large else (good, file)
        refused = house.gmsctl("put", *replace, *files)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert says in refused.stderr and refused.stderr.count("\n") == 1
    after = house.status()
    assert (after.state, after.generation) == ("COMMITTED", before.generation)


def test_a_replacement_keeps_the_old_weights_until_it_is_there(house: House, tmp_path: Path) -> None:
    assert house.gmsctl("put", write_file(tmp_path / "1.safetensors", dense_7b(64), 1)).returncode == 0
    first = house.status().generation
    sleeper = house.client("sleeper").read(10)
    sleeper.sleep()
    done = house.gmsctl("put", "--replace", write_file(tmp_path / "2.safetensors", dense_7b(64), 2))
    assert done.returncode == 0, done.stderr
    assert house.status().generation > first
    sleeper.wake(10)
    get(sleeper, tmp_path / "out.safetensors")
    assert contents(tmp_path / "out.safetensors") == contents(tmp_path / "2.safetensors")


def test_who_is_waited_for_is_said_while_it_waits(house: House, tmp_path: Path) -> None:
    file = write_file(tmp_path / "1.safetensors", dense_7b(64), 1)
    assert house.gmsctl("put", file).returncode == 0
    for words in (("put", file), ("clear",)):
        reader = house.client("the-reader").read(10)
        here = command(house, *words, "--timeout-s", "1000")
        with subprocess.Popen(here, cwd=ROOT, env=environment(house), stderr=subprocess.PIPE, text=True) as waits:
            try:
                assert waits.stderr is not None
                said = waits.stderr.readline()
                assert re.fullmatch(r"gmsctl: waits, for at most 1000 s: the-reader \(pid \d+\) reads\n", said)
                reader.close()
                assert waits.wait(DEADLINE_S) == 0 and waits.stderr.read() == ""
            finally:
                waits.kill()


def test_verify_sees_a_changed_byte_and_says_where_or_that_it_cannot_tell(house: House, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    for words in (("get", out), ("verify",)):
        assert house.gmsctl(*words, "--timeout-s", "0.1").returncode == 3, "there are no weights"
    assert not out.exists()
    file = write_file(tmp_path / "1.safetensors", dense_7b(64), 1)
    assert house.gmsctl("put", "--no-checksums", file).returncode == 0
    seen = house.gmsctl("verify")
    assert seen.returncode == 3 and "no sums" in seen.stdout
    assert house.gmsctl("put", file).returncode == 0
    reader = house.client("vandal").read(10)
    memory = house.memory()
    handle = memory.import_(reader._slabs.descriptors[0], reader.sizes[0])  # type: ignore[union-attr]
    address = memory.reserve(reader.sizes[0])
    memory.map(address, handle, size=reader.sizes[0], writable=True)
    byte = ctypes.c_ubyte.from_address(address + 300)
    byte.value ^= 1
    seen = house.gmsctl("verify")
    assert seen.returncode == 1 and "different: slab 0" in seen.stdout
    byte.value ^= 1
    assert house.gmsctl("verify").returncode == 0
    memory.close()
    house.kill()
    assert house.gmsctl("get", "--device", "host:0", out).returncode == 2


def test_views_with_strides_and_ties_come_out_as_what_they_show(house: House, tmp_path: Path) -> None:
    with house.client().write(10) as writer:
        slab = writer.create(MIB)
        writer.memory(slab)[:64] = bytes(range(64))
        reader = writer.commit(
            Layout(
                tuple(writer.sizes),
                (
                    Tensor("plain", 0, 0, (2, 3), (3, 1), "int16"),
                    Tensor("transposed", 0, 0, (3, 2), (1, 3), "int16"),
                    Tensor("every other", 0, 1, (4,), (2,), "uint8"),
                    Tensor("expanded", 0, 5, (2, 3), (0, 0), "uint8"),
                    Tensor("halves", 0, 0, (2,), (2,), "complex64"),
                    Tensor("scalar", 0, 8, (), (), "int32"),
                    Tensor("none", 0, 0, (3, 0), (1, 1), "int32"),
                ),
            )
        )
    get(reader, tmp_path / "out.safetensors")
    found = {name: data for name, (_, _, data) in contents(tmp_path / "out.safetensors").items()}
    assert found["plain"] == bytes(range(12))
    assert found["transposed"] == bytes([0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11])
    assert found["every other"] == bytes([1, 3, 5, 7])
    assert found["expanded"] == bytes([5] * 6)
    assert found["halves"] == bytes([*range(8), *range(16, 24)])
    assert (found["scalar"], found["none"]) == (bytes([8, 9, 10, 11]), b"")


@pytest.mark.slow
@pytest.mark.chaos
def test_ctrl_c_at_any_moment_leaves_the_old_weights_or_the_new(house: House, tmp_path: Path) -> None:
    chance = random.Random(seed := random.randrange(1 << 32))
    print(f"seed {seed}")
    files = [write_file(tmp_path / f"{number}.safetensors", dense_7b(8), number) for number in (1, 2)]
    assert house.gmsctl("put", files[0]).returncode == 0
    there = contents(files[0])
    interrupted = 0
    for round in range(8):
        before = house.status().generation
        file = files[(round + 1) % 2]
        put = subprocess.Popen(
            command(house, "put", "--replace", file), cwd=ROOT, env=environment(house), stderr=subprocess.PIPE
        )
        when = chance.random()
        until(lambda: house.status().state == "RW" or put.poll() is not None, "it writes")  # noqa: B023
        if when > 0.3:
            until(lambda: house.status().bytes > when * 100 * MIB or put.poll() is not None, "so far")  # noqa: B023
        put.send_signal(signal.SIGINT)
        _, errors = put.communicate(timeout=30)
        until(lambda: house.status().state in ("COMMITTED", "RO"), "no client writes")
        if house.status().generation != before:
            there = contents(file)
        else:
            interrupted += 1
            assert put.returncode == 130, errors
        assert b"Traceback" not in errors, errors.decode()
        until(lambda: house.status().state == "COMMITTED", "no client reads")
        until(lambda: house.used() == house.status().bytes, "nothing is left behind")
        got = house.gmsctl("get", tmp_path / "out.safetensors")
        assert got.returncode == 0, got.stderr
        assert contents(tmp_path / "out.safetensors") == there
    assert interrupted


def test_on_a_terminal_there_is_a_bar(house: House, tmp_path: Path) -> None:
    file = write_file(tmp_path / "1.safetensors", dense_7b(64), 1)
    ours, theirs = pty.openpty()
    put = subprocess.Popen(
        command(house, "put", file), cwd=ROOT, env=environment(house), stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    assert put.wait(60) == 0
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert "100%" in shown


def test_what_a_name_stands_for_is_written_to_or_refused_and_not_replaced(house: House, tmp_path: Path) -> None:
    file = write_file(tmp_path / "1.safetensors", dense_7b(64), 1)
    assert house.gmsctl("put", file).returncode == 0
    refused = house.gmsctl("get", tmp_path / "no" / "such" / "out.safetensors")
    assert refused.returncode == 1 and "can't be written" in refused.stderr
    socket.socket(socket.AF_UNIX).bind(str(tmp_path / "socket"))
    for place in (tmp_path, tmp_path / "socket"):
        before = place.stat().st_mode
        refused = house.gmsctl("get", place)
        assert refused.returncode == 1 and "neither a file nor a pipe" in refused.stderr
        assert place.stat().st_mode == before
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "out.safetensors", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    assert house.gmsctl("get", link).returncode == 0
    assert link.is_symlink() and contents(target) == contents(file)
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        node = Path("/dev/null")
    assert house.gmsctl("get", node).returncode == 0
    assert stat.S_ISCHR(node.stat().st_mode)


@pytest.mark.slow
def test_a_pipe_is_written_to(house: House, tmp_path: Path) -> None:
    file = write_file(tmp_path / "1.safetensors", dense_7b(64), 1)
    assert house.gmsctl("put", file).returncode == 0
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert house.gmsctl("put", pipe).returncode == 1, "it isn't waited for"
    get = subprocess.Popen(command(house, "get", pipe), cwd=ROOT, env=environment(house), stdout=subprocess.DEVNULL)
    assert contents_of(pipe.read_bytes()) == contents(file)
    assert get.wait(60) == 0
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    line = " ".join(command(house, "get", "/dev/stdout")) + " | head -c 8 | wc -c"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=environment(house), capture_output=True, text=True)
    assert done.stdout.strip() == "8" and "Traceback" not in done.stderr


def test_names_with_commands_for_the_terminal_are_shown_and_not_obeyed(house: House, tmp_path: Path) -> None:
    file = write_file(tmp_path / "named.safetensors", [("a\x1b[2J\nb", "uint8", (4,))], 1)
    assert house.gmsctl("put", file).returncode == 0
    shown = house.gmsctl("layout").stdout
    assert "\x1b" not in shown and "a\\x1b[2J\\nb" in shown and len(shown.splitlines()) == 2
