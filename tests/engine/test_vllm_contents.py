"""What a vLLM engine makes of files that change under it: the decisions. In the engine itself: tests/vllm."""

import asyncio
import threading
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine_shim.vllm_engine import contents


@pytest.fixture
def args(tmp_path: Path) -> Namespace:
    for name in ("model", "adapter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    adapter = SimpleNamespace(name="tuned", path=str(tmp_path / "adapter"))
    return Namespace(model=str(tmp_path / "model"), tokenizer=None, lora_modules=[adapter])


@pytest.mark.parametrize("what", ["model", "adapter"])
def test_files_that_change_while_the_engine_starts_are_no_start(args: Namespace, tmp_path: Path, what: str) -> None:
    read = contents.read(args)
    contents.require_unchanged(args, read)
    (tmp_path / what / "config.json").write_text("[]")
    with pytest.raises(contents.FilesChanged):
        contents.require_unchanged(args, read)


def test_an_adapter_that_changes_between_start_and_wake_is_seen(args: Namespace, tmp_path: Path) -> None:
    read = contents.read(args)
    (tmp_path / "model" / "config.json").write_text("[]")  # vLLM has read it
    assert not asyncio.run(contents.adapters_changed(args, read))
    (tmp_path / "adapter" / "adapter_model.bin").write_bytes(b"x")
    assert asyncio.run(contents.adapters_changed(args, read))
    args.lora_modules = []
    assert not asyncio.run(contents.adapters_changed(args, read))


def test_what_cant_be_looked_at_counts_as_changed(args: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    read, over = contents.read(args), threading.Event()

    def refuses(_: Namespace) -> contents.Stamps:
        raise OSError("the disk says no")

    def hangs(_: Namespace) -> contents.Stamps:
        over.wait()
        return read.adapter_stamps

    async def asked() -> bool:
        try:
            return await contents.adapters_changed(args, read)
        finally:
            over.set()

    for look in (refuses, hangs):
        over.clear()
        monkeypatch.setattr(contents, "adapter_stamps", look)
        assert asyncio.run(asked())
