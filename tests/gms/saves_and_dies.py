"""Saves a snapshot again and again, each time in a process that is killed one step later, until one isn't. After each
it prints, as JSON, what is found at the place then: the id, and whether all that it names is there.
"""

import json
import os
import signal
import sys
from pathlib import Path

from gms.client import GmsClient
from gms.snapshot import Snapshot, find, save
from sidecar.kernel import durable

RUN_DIR, DEVICE, PLACE = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
STEPS = ("posix_fallocate", "pwritev", "pwrite", "fsync", "rename", "unlink")


def dies_at(number: int) -> None:
    left = [number]

    def counted(module: object, name: str) -> None:
        does = getattr(module, name)

        def call(*words: object, **more: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return does(*words, **more)

        setattr(module, name, call)

    for name in STEPS:
        counted(os, name)
    counted(durable, "_exchange")
    with GmsClient(RUN_DIR, DEVICE, "saves") as client, client.read(20) as reader:
        save([reader], "weights", PLACE)


def whole(snapshot: Snapshot) -> bool:
    snapshot.document(0)
    names = [snapshot.manifest.shard_name(0, slab) for slab in range(len(snapshot.manifest.ranks[0].shards))]
    sizes = [shard.size for shard in snapshot.manifest.ranks[0].shards]
    return [(PLACE / name).stat().st_size for name in names] == sizes


def main() -> None:
    for number in range(1000):
        child = os.fork()
        if child == 0:
            dies_at(number)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        snapshot = find(PLACE)
        print(json.dumps([snapshot.manifest.id, whole(snapshot)] if snapshot is not None else None), flush=True)
        if os.waitstatus_to_exitcode(status) == 0:
            return


main()
