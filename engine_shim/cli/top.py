"""`failover top`: what the door's page shows, in a terminal, until `q`. Where there is no terminal: once.

What this file may not do: judge or word what it shows (`top_text.py`; the door has made the document).
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import sys
import termios
import threading
import time
import tty
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_shim.cli import top_text
from engine_shim.cli.door_answer import NoDoor, ask
from engine_shim.cli.pair_look import DOOR, what_up_says
from engine_shim.cli.pair_process import PairError
from sidecar.terminal.formatting import PLAIN
from sidecar.terminal.terminal import say, terminal_paint

QUIET_S, RETRY_S = 5.0, 1.0
"""The door says something every second."""
LINE_MOST = 4 << 20
_FAULTS = (OSError, ValueError, RecursionError, NoDoor, top_text.OtherVersion, http.client.HTTPException)


def show(run_dir: Path, door: str, once: bool) -> int:
    """Returns the exit code. Raises PairError where the door doesn't answer and that is all there is to say."""
    url = door or what_up_says(run_dir)[0].door or DOOR
    if once or not sys.stdout.isatty():
        try:
            document = ask(url, "/failover/state", QUIET_S, dict[str, Any])
            shown = top_text.lines(document, terminal_paint() if sys.stdout.isatty() else PLAIN, 10_000)
        except _FAULTS as error:
            raise PairError(f"{_why(url, error)}; --door HOST:PORT is another one") from None
        say("\n".join(shown))
        return 0
    with _screen() as left:
        try:
            _follow(url)
        except KeyboardInterrupt:
            if not left.is_set():
                raise
    return 0


def _follow(url: str) -> None:
    last: dict[str, Any] | None = None
    while True:
        try:
            with _open(f"{url}/failover/events") as reply:
                while line := reply.readline(LINE_MOST):
                    if line.startswith(b"data: "):
                        document = json.loads(line[6:])
                        _draw(document, "")
                        last = document
            why = f"the door at {url} has ended"
        except _FAULTS as error:
            why = _why(url, error)
        since = f"; what is below was so at {last['at'][11:19]} UTC" if last is not None else ""
        _draw(last, f"{why}{since}")
        time.sleep(RETRY_S)


def _draw(document: dict[str, Any] | None, away: str) -> None:
    width, height = shutil.get_terminal_size()
    shown = [away] if document is None else top_text.lines(document, terminal_paint(), width, height - 1, away)
    say("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in shown) + "\x1b[J")


@contextlib.contextmanager
def _screen() -> Iterator[threading.Event]:
    """The terminal's other screen, and what was there before comes back. The event: `q` was pressed."""
    left, stdin = threading.Event(), 0
    before = termios.tcgetattr(stdin) if os.isatty(stdin) else None
    main = threading.get_ident()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by itself it leaves the screen as it is

    def listen() -> None:
        while letter := os.read(stdin, 1):
            if letter in b"qQ":
                left.set()
                signal.pthread_kill(main, signal.SIGINT)
                return

    try:
        sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
        if before is not None:
            tty.setcbreak(stdin)
            threading.Thread(target=listen, daemon=True).start()
        yield left
    finally:
        if before is not None:
            termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        with contextlib.suppress(OSError):
            sys.stdout.write("\x1b[?25h\x1b[?1049l")
            sys.stdout.flush()


def _open(url: str) -> Any:
    """No proxy: the door is on this machine, or as near."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=QUIET_S)


def _why(url: str, error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"what listens at {url} answers {error.code}: is it the door, and of this version?"
    if isinstance(error, TimeoutError):
        return f"the door at {url} says nothing for {QUIET_S:g} s: is its process stopped (state T in ps)?"
    if isinstance(error, top_text.OtherVersion):
        return str(error)
    if isinstance(error, http.client.IncompleteRead):  # it was killed
        return f"the door at {url} has ended"
    if isinstance(error, http.client.HTTPException):
        return f"what listens at {url} doesn't speak HTTP"
    reason = getattr(error, "reason", error)
    return f"no door answers at {url}: {getattr(reason, 'strerror', None) or reason}"
