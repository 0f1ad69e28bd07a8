"""An engine for tests of switchovers: says on its standard output what it is told, and does as its name says.

    python -m tests.lockctl.engine RUN_DIR ENGINE_ID {obedient|slow|stubborn|sick}

obedient drains at once; slow drains when a line comes on its standard input; stubborn does not end when it is told to;
sick raises when it is to drain. All sleep when they are told to, and ask again.
"""

import os
import sys
import threading

from lockserver.client import LockClient


def main(run_dir: str, engine_id: str, kind: str) -> None:
    def drain(timeout_s: float) -> None:
        say(f"draining {timeout_s:g}")
        if kind == "slow":
            sys.stdin.readline()
        elif kind == "sick":
            raise RuntimeError("a request is stuck")

    def end() -> None:
        say("told to end")
        if kind != "stubborn":
            os._exit(0)

    to_sleep = threading.Event()
    client = LockClient(
        run_dir,
        engine_id,
        on_drain=drain,
        on_resume=lambda why: say(f"serves on: {why}"),
        on_exit=end,
        on_give_back=to_sleep.set,
    ).start()
    say("registered")
    while True:
        say(f"granted {client.acquire().token}")
        to_sleep.wait()
        to_sleep.clear()
        client.give_back()


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
