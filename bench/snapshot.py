"""A snapshot on disk: the weights back in the device, beside `dd` with O_DIRECT, which reads the same shard and throws
it away.

Both read past the page cache, in pieces of 16 MiB, in turns. Ours makes the memory as well, compares the digest, and
commits. The floor is fair because no cold start can be sooner than the disk. On a host device the memory that is made
costs the processor time, which a GPU's doesn't: so `dd` into a new file in memory stands beside it, too.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Comparison, Result
from bench.stage import DEADLINE_S, Broken, directory
from bench.weights import Stage
from gms.client import WEIGHTS, Layout, Tensor
from gms.memory.host_device import GRANULARITY
from gms.shell.device_io import PIECE_BYTES
from gms.snapshot import find, save

SHARE = 0.8
"""Of the speed of `dd`, at least."""


def measure(tmpfs: Path, disk: Path, size: int, rounds: int) -> Iterator[Result]:
    """`tmpfs`: where the device is; `disk`: where the snapshot is."""
    fair = Comparison(f"restore {size >> 20} MiB", "dd iflag=direct", 1 / SHARE, 1 / SHARE)
    kept = Comparison(f"restore {size >> 20} MiB", "dd iflag=direct, into a new file on tmpfs")
    with directory(tmpfs) as path, directory(disk) as place:
        stage = Stage(path, size + 64 * GRANULARITY)
        try:
            stage.ready()
            client = stage.client("restores")
            with client.write(DEADLINE_S) as writer:
                memory = writer.memory(writer.create(size))
                for at in range(0, size, PIECE_BYTES):
                    memory[at : at + PIECE_BYTES] = os.urandom(min(PIECE_BYTES, size - at))
                del memory
                with writer.commit(Layout((size,), (Tensor("w", 0, 0, (size,), (1,), "uint8"),))) as reader:
                    save([reader], WEIGHTS, place)
            snapshot = find(place)
            if snapshot is None:
                raise Broken(f"there is no snapshot at {place}, which was saved a moment ago")
            words = [f"if={place / snapshot.manifest.shard_name(0, 0)}", f"bs={PIECE_BYTES}", "iflag=direct"]

            def dd(to: Path) -> int:
                began = time.perf_counter_ns()
                subprocess.run(["dd", *words, f"of={to}"], check=True, stderr=subprocess.DEVNULL)
                return time.perf_counter_ns() - began

            def ours() -> int:
                client.write(DEADLINE_S).abort()  # what the round before left takes no time of this one
                began = time.perf_counter_ns()
                with client.write(DEADLINE_S) as writer:
                    reader = snapshot.fill(0, writer)
                took = time.perf_counter_ns() - began
                reader.close()
                return took

            for number in range(rounds + 1):
                took = ours()
                fair.add(dd(Path("/dev/null")), took, keep=number > 0)
                kept.add(dd(path / "copy"), took, keep=number > 0)
                (path / "copy").unlink()
            yield fair
            yield kept
        finally:
            stage.close()
