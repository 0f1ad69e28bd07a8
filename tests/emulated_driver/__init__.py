"""The emulated driver: libcuda.so.1 and libnvidia-ml.so.1 of our own, with host memory for devices (`driver.h`).

    variables = emulated_driver.environment(directory, devices=2, capacity=64 << 20)
    subprocess.run([sys.executable, "-c", "..."], env={**os.environ, **variables})

A process has to be started with this environment: the loader reads LD_LIBRARY_PATH once, when a program begins. The
libraries are compiled when they are first asked for, and again when their sources change.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent.parent / "build" / "emulated_driver"  # ignored by git, removed by `make clean`
LIBRARIES = {
    "libcuda.so.1": ("libcuda.c", "vmm.c", "addresses.c", "copies.c", "books.c"),
    "libnvidia-ml.so.1": ("libnvidia_ml.c", "books.c"),
}
FLAGS = ("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
NAME = "Emulated GPU"
"""What an emulated device's name begins with; no real one's does."""


class NoCompiler(Exception):
    """There is no C compiler here."""


def why_not() -> str | None:
    """What is missing on this machine, if so; tests are skipped with that."""
    if not _compiler():
        return "the emulated CUDA driver needs a C compiler (cc or gcc), and there is none here"
    return None


def one_gpu(capacity: int) -> Iterator[dict[str, str]]:
    """For a fixture: the variables with which a process sees one device."""
    missing = why_not()
    if missing:
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="gpu-failover-test-", dir="/dev/shm") as directory:
        yield environment(Path(directory), capacity=capacity)


def libraries() -> Path:
    """The directory with the libraries, compiled if need be."""
    missing = why_not()
    if missing:
        raise NoCompiler(missing)
    compiler = _compiler()
    content = hashlib.sha256(repr((compiler, FLAGS, sorted(LIBRARIES.items()))).encode())
    for source in sorted(HERE.glob("*.[ch]")):
        content.update(source.name.encode() + b"\0" + source.read_bytes())
    made = BUILD / content.hexdigest()[:16]
    if not made.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=BUILD, prefix="making-"))
        try:
            for name, sources in LIBRARIES.items():
                output = ["-o", str(fresh / name), f"-Wl,-soname,{name}"]
                subprocess.run([*shlex.split(compiler), *FLAGS, *output, *sources, "-ldl"], cwd=HERE, check=True)
            fresh.rename(made)
        except OSError:
            if not made.exists():  # else another process was faster, with the same content
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return made


def environment(directory: Path, *, devices: int = 1, capacity: int = 64 << 20) -> dict[str, str]:
    """The variables with which a process sees emulated GPUs, whose files are in `directory` (on tmpfs)."""
    path = os.environ.get("LD_LIBRARY_PATH")
    return {
        "LD_LIBRARY_PATH": f"{libraries()}:{path}" if path else str(libraries()),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(devices))),
        "EMULATED_CUDA_DIR": str(directory),
        "EMULATED_CUDA_DEVICES": str(devices),
        "EMULATED_CUDA_BYTES": str(capacity),
    }


def _compiler() -> str:
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or ""
