"""An engine in a pod of its own, as vLLM is with its sleep mode, and accelerators that are files.

    python -m tests.dual_pods.engine_stand_in 127.1.0.2 DIRECTORY/GPU-0,DIRECTORY/GPU-1

From its start until it sleeps, and from its wake on, it holds the lock of each of its files; the kernel gives them back
at its end. Where another engine holds one, `DIRECTORY/both` says so.
"""

import fcntl
import json
import os
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.support.answering import Answering

LOADS_S = WAKES_S = 0.3
SLEEPS_S = 1.0
"""Longer than another one needs to begin, where none keeps it from that."""


class Engine:
    def __init__(self, accelerators: list[Path]) -> None:
        self.turn = threading.Lock()
        self.is_asleep = False
        self._ready_at = time.monotonic() + LOADS_S
        self._accelerators, self._held = accelerators, list[int]()
        self.take()

    @property
    def is_ready(self) -> bool:
        return time.monotonic() >= self._ready_at

    def take(self) -> None:
        self.is_asleep = False
        for path in self._accelerators if not self._held else ():
            self._held.append(os.open(path, os.O_RDWR | os.O_CREAT))
            try:
                fcntl.flock(self._held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with (path.parent / "both").open("a") as both:
                    both.write(f"{path.name}: another one has it as {sys.argv[1]} comes\n")

    def give_back(self) -> None:
        self.is_asleep = True
        while self._held:
            os.close(self._held.pop())


class Handler(Answering):
    engine: Engine

    def do_GET(self) -> None:
        if not self.engine.is_ready:
            self.answer(503)
        elif self.path == "/is_sleeping":
            with self.engine.turn:  # one that wakes answers nothing, as vLLM
                self.answer(200, json.dumps({"is_sleeping": self.engine.is_asleep}))
        else:
            self.answer(200)

    def do_POST(self) -> None:
        self.body()
        with self.engine.turn:
            if self.path == "/wake_up":
                self.engine.take()
                time.sleep(WAKES_S)
            else:
                time.sleep(SLEEPS_S)
                self.engine.give_back()
        self.answer(200)


if __name__ == "__main__":
    Handler.engine = Engine([Path(path) for path in sys.argv[2].split(",")])
    ThreadingHTTPServer((sys.argv[1], 8000), Handler).serve_forever()
