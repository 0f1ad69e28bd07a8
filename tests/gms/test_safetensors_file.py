"""The safetensors format: every bad file is refused with a sentence, and the others say what the library says."""

import contextlib
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gms.rules.safetensors_file import BadFile, Header, compose, header_bytes, parse


def made(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def read(file: bytes) -> Header:
    length = header_bytes(file[:8], len(file))
    return parse(file[8 : 8 + length], len(file))


def f32(start: int, end: int, *shape: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}


def test_a_good_file_is_read_in_the_order_of_its_bytes() -> None:
    header = read(made({"__metadata__": {"a": "b"}, "late": f32(8, 16, 2), "early": f32(0, 8, 2, 1)}, bytes(16)))
    assert [entry.name for entry in header.entries] == ["early", "late"]
    assert header.metadata == {"a": "b"}
    assert header.entries[0].shape == (2, 1)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (b"", "ends after 0 bytes"),
        (b"\1\0\0", "ends after 3 bytes"),
        ((1 << 40).to_bytes(8, "little"), "at most 100000000"),
        ((50).to_bytes(8, "little") + b"{}", "cut short"),
        (made(b""), "not a safetensors file"),
        (made(b"[]"), "not a safetensors file"),
        (made(b" {}"), "not a safetensors file"),
        (made(b"{"), "not JSON"),
        (made(b'{"a": NaN}'), "not JSON"),
        (made(b'{"\xff": 1}'), "not JSON"),
        (made({"a\ud800": f32(0, 4, 1)}, bytes(4)), "is not text"),
        (made({"__metadata__": {"k": "\udfff"}}), "is not text"),
        (made(b'{"a":' + b"[" * 100_000), "not JSON"),
        (made(b'{"a": 1, "a": 2}'), "'a' is in it twice"),
        (made(b'{"__metadata__": {"k": "1", "k": "2"}}'), "'k' is in it twice"),
        (made({"__metadata__": {"a": 1}}), "metadata"),
        (made({"__metadata__": ["a"]}), "metadata"),
        (made({"a": 1}), "'a' can't be read"),
        (made({"": f32(0, 4, 1)}, bytes(4)), "name has 0"),
        (made({"x" * 2000: f32(0, 4, 1)}, bytes(4)), "name has 2000"),
        (made({"a": {"dtype": "F32", "shape": [1]}}), "data_offsets"),
        (made({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}), "'a' can't be read"),
        (made({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}}), "'a' can't be read"),
        (made({"a": f32(0, 4, -1)}, bytes(4)), "'a' can't be read"),
        (made({"a": f32(-4, 0, 1)}, bytes(4)), "'a' can't be read"),
        (made({"a": f32(0, 1 << 70, 1)}, bytes(4)), "'a' can't be read"),
        (made({"a": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)), "'F31'"),
        (made({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, bytes(1)), "'F4'"),
        (made({"a": f32(0, 8, 1)}, bytes(8)), "takes 4 bytes"),
        (made({"a": f32(8, 0, 1)}, bytes(8)), "takes 4 bytes"),
        (made({"a": f32(0, 4, *[1 << 61] * 60)}, bytes(4)), "takes"),
        (made({"a": f32(0, 4, 1), "b": f32(0, 4, 1)}, bytes(4)), "before it ends at 4"),
        (made({"a": f32(0, 4, 1), "b": f32(8, 12, 1)}, bytes(12)), "bytes 4 to 8 belong to no tensor"),
        (made({"a": f32(4, 8, 1)}, bytes(8)), "bytes 0 to 4 belong to no tensor"),
        (made({"a": f32(0, 4, 1)}, bytes(3)), "cut short"),
        (made({"a": f32(0, 4, 1)}, bytes(9)), "last 5 bytes belong to no tensor"),
        (made({}, bytes(1)), "last 1 bytes belong to no tensor"),
    ],
)
def test_a_bad_file_is_refused_with_what_is_wrong(file: bytes, says: str) -> None:
    with pytest.raises(BadFile, match=says):
        read(file)


@given(st.binary(max_size=200))
def test_no_bytes_whatever_give_another_error(data: bytes) -> None:
    for file in (data, made(data), made(b"{" + data)):
        with contextlib.suppress(BadFile):
            read(file)


@given(st.data())
def test_a_good_file_with_one_byte_changed_is_read_or_refused(data: st.DataObject) -> None:
    file = bytearray(made({"a": f32(0, 8, 2), "b": f32(8, 8, 0), "__metadata__": {"x": "y"}}, bytes(8)))
    at = data.draw(st.integers(0, len(file) - 1))
    file[at] = data.draw(st.integers(0, 255))
    try:
        header = read(bytes(file))
    except BadFile:
        return
    assert sum(entry.end - entry.start for entry in header.entries) == len(file) - header.data_start


def test_what_the_library_wrote_is_read_and_composed_again_to_the_byte(tmp_path: Path) -> None:
    np, library = pytest.importorskip("numpy"), pytest.importorskip("safetensors.numpy")
    chance = random.Random(7)
    tensors = {
        f"layer.{index}.weight": np.frombuffer(chance.randbytes(8 * index), dtype=chance.choice(["<f4", "<i8", "<u1"]))
        for index in range(40)
    }
    path = tmp_path / "model.safetensors"
    library.save_file(tensors, path, metadata={"format": "pt"})
    file = path.read_bytes()
    header = read(file)
    assert {entry.name for entry in header.entries} == set(tensors)
    assert compose([(e.name, e.dtype, e.shape) for e in header.entries], header.metadata) == file[: header.data_start]
    for entry in header.entries:
        assert file[header.data_start + entry.start : header.data_start + entry.end] == tensors[entry.name].tobytes()


def test_what_a_file_cannot_hold_is_refused() -> None:
    with pytest.raises(BadFile, match="complex128"):
        compose([("a", "complex128", (1,))], {})
