"""What is in the files that decide what an engine computes, and what it makes of a request. Two engines are compared by
that and not by names: a file may have changed between their starts.

`read` is called before vLLM starts, and `require_unchanged` when it has: what has changed meanwhile may have been read
before or after. `adapters_changed` is asked at a wake: vLLM may read adapters later, too.

What this file may not do: say what follows (`what_it_takes.py`, `kv_index.py`, `engine.py`).
"""

import asyncio
import hashlib
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SMALL = tuple(f"**/*.{kind}" for kind in ("json", "jinja", "py", "txt", "model", "tiktoken"))
"""Configuration, tokenizer, chat template, processors, a model's own code. Its weights are compared by their generation
in GMS."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
_ADAPTER = ("*.json", "*.safetensors", "*.bin", "*.pt")
_SHOWN = 12
_LOOK_TIMEOUT_S = 1.0

Stamps = tuple[tuple[str, int, int, int, int], ...]


class FilesChanged(Exception):
    """Which of their contents vLLM has read can't be told. Followed by another start."""


@dataclass(frozen=True)
class Contents:
    digests: dict[str, str]
    """By what the files are: `model files`, `LoRA NAME`. Empty where there are none here."""
    stamps: Stamps
    """By which a change is seen without reading."""
    adapter_stamps: Stamps
    """Those of the files that vLLM may read later, too."""


def read(args: Namespace) -> Contents:
    seen, of_adapters = stamps(args), adapter_stamps(args)
    return Contents({what: _digest(place, patterns) for what, place, patterns in _places(args)}, seen, of_adapters)


def require_unchanged(args: Namespace, since: Contents) -> None:
    """Raises FilesChanged."""
    if stamps(args) != since.stamps:
        raise FilesChanged("files of the model or of an adapter have changed while the engine started")


async def adapters_changed(args: Namespace, since: Contents) -> bool:
    """Also where that can't be seen soon: a wake waits for no disk."""
    if not adapters(args):
        return False
    try:
        looked = asyncio.to_thread(adapter_stamps, args)
        return await asyncio.wait_for(looked, _LOOK_TIMEOUT_S) != since.adapter_stamps
    except (TimeoutError, OSError):
        return True


def stamps(args: Namespace) -> Stamps:
    return _stamps(_places(args))


def adapter_stamps(args: Namespace) -> Stamps:
    return _stamps(_adapter_places(args))


def _stamps(places: Iterable[tuple[str, str, tuple[str, ...]]]) -> Stamps:
    found = []
    for _, place, patterns in places:
        for path in _files(place, patterns):
            stat = path.stat()
            found.append((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
    return tuple(found)


def adapters(args: Namespace) -> dict[str, str]:
    """Paths of LoRA adapters, by name. vLLM refuses two of one name."""
    found = {str(module.name): str(module.path) for module in args.lora_modules or []}
    by_modality: Any = getattr(args, "default_mm_loras", None) or {}
    return found | {f"of {modality}": str(path) for modality, path in by_modality.items()}


def _places(args: Namespace) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    yield "model files", str(args.model), _SMALL
    for what in ("tokenizer", "hf_config_path"):
        if getattr(args, what, None) not in (None, args.model):
            yield f"{what} files", str(getattr(args, what)), _SMALL
    yield from _adapter_places(args)


def _adapter_places(args: Namespace) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for name, path in adapters(args).items():
        yield f"LoRA {name}", path, _ADAPTER


def _files(place: str, patterns: tuple[str, ...]) -> list[Path]:
    """Nothing for a name on the hub."""
    directory = Path(place).expanduser()
    return sorted({path for pattern in patterns for path in directory.glob(pattern) if path.is_file()})


def weights_stamp(place: str) -> str:
    """Which files of weights are in a model's directory, and since when. Empty for a name on the hub."""
    stats = [(path.name, path.stat()) for path in _files(place, _WEIGHTS)]
    said = [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:_SHOWN] if said else ""


def _digest(place: str, patterns: tuple[str, ...]) -> str:
    files, directory = _files(place, patterns), Path(place).expanduser()
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            inside = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(directory)} {inside}\n".encode())
    return digest.hexdigest()[:_SHOWN] if files else ""
