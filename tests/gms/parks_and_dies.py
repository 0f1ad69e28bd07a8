"""Parks weights again and again, each time in a process that is killed one step later, until one isn't. Before each it
waits for a line, and after each it prints how it ended.
"""

import os
import signal
import sys
from pathlib import Path

from gms.client import GmsClient
from gms.memory import libc
from gms.shell import device_io, parking
from gms.shell.slabs import SlabStore
from gms.shell.weights_shell import WeightsShell

RUN_DIR, DEVICE = Path(sys.argv[1]), sys.argv[2]
STEPS = (
    (WeightsShell, ("want", "make", "slept", "tell", "publish")),
    (SlabStore, ("use", "put_back")),
    (device_io, ("copy_out",)),
    (parking, ("_sum",)),
    (libc, ("allocate",)),
)


def dies_at(number: int) -> None:
    left = [number]

    def counted(owner: object, name: str) -> None:
        does = getattr(owner, name)

        def call(*words: object, **more: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return does(*words, **more)

        setattr(owner, name, call)

    for owner, names in STEPS:
        for name in names:
            counted(owner, name)
    with GmsClient(RUN_DIR, DEVICE, "parker", unparks=False) as client:
        client.park(20)


def main() -> None:
    for number in range(1000):
        sys.stdin.readline()
        child = os.fork()
        if child == 0:
            dies_at(number)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        print(code, flush=True)
        if code == 0:
            return


main()
