"""The address at which an engine serves, as its own main process watches it: whether clients still come here.

A socket in the run directory may be removed under an engine that serves (`rm`, a cleaner, a volume that was emptied).
The engine notices nothing by itself, and no client can connect any more. The kernel says when to look
(`path_watch.py`), and a caller that asks looks in any case.

What this file may not do: bind anything. `main_process.py` does.
"""

import contextlib
import os
import select
import threading
from pathlib import Path

from engine_shim.engine import Listen
from lockserver.observer import Observer, ObserverError
from sidecar.kernel.path_watch import CannotWatch, PathWatch
from sidecar.wire import tcp


class Address:
    """Made when the engine has bound its address."""

    def __init__(self, listen: Listen) -> None:
        self._lock = threading.Lock()
        """One thread waits, and another one closes."""
        self._path = Path(listen.path) if listen.path else None
        self._named = self._now()
        self._watch: PathWatch | None = None
        if self._path is not None:
            with contextlib.suppress(CannotWatch):  # then it is looked at with every beat
                self._watch = PathWatch(self._path)

    def lost(self) -> str:
        """Why no client can connect any more; empty while clients find it. A port can't be taken away."""
        if self._path is None or self._now() == self._named:
            return ""
        return f"{self._path} was {'replaced' if self._now() else 'removed'}"

    def wait(self, timeout_s: float) -> None:
        """Until something has happened to the path, or the time is over."""
        poll = select.poll()
        with self._lock:
            for fd, events in self._watch.descriptors() if self._watch is not None else ():
                poll.register(fd, events)
        if poll.poll(timeout_s * 1000):
            with self._lock:
                if self._watch is not None:
                    self._watch.look()

    def close(self) -> None:
        with self._lock:
            watch, self._watch = self._watch, None
            if watch is not None:
                watch.close()

    def _now(self) -> tuple[int, int] | None:
        """What the path names."""
        try:
            found = os.stat(self._path) if self._path is not None else None
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if found is not None else None


def taken_by_another_program(listen: Listen | None, run_dir: Path) -> str:
    """Why the engine could not bind its port, when another program has it, and not the other engine of the pair; empty
    if it could, and where that isn't known: the other one may be about to leave it.
    """
    if listen is None or not listen.port:
        return ""
    why = tcp.taken(listen.host, listen.port)
    if not why:
        return ""
    try:
        with Observer(run_dir) as observer:
            seen = next(observer.watch())
    except ObserverError:
        return ""
    holder = seen.holder
    elsewhere = holder is not None and holder.endpoint not in (None, "", listen.url)
    free = seen.state == "FREE" and holder is None
    return why if free or (seen.state == "HELD" and elsewhere) else ""
