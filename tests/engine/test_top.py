"""`failover top`: the door's document as lines, and the command where there is a terminal and where there is none."""

import http.server
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_shim.cli import top_text
from sidecar.terminal.formatting import PLAIN, Paint
from tests.gateway import test_view as door
from tests.support.processes import ROOT
from tests.support.waiting import until


def shown(document: dict[str, Any], width: int = 200, height: int = 0, away: str = "") -> str:
    return "\n".join(top_text.lines(document, PLAIN, width, height, away))


def test_it_shows_who_serves_who_is_ready_and_what_flows() -> None:
    said = shown(door.told(door.WELL))
    assert said.startswith("a serves; b is ready to take over.  (17:00:09 UTC)\n")
    assert "a  serves  9s ago  process 10, token 1" in said and "b  ready" in said
    assert "requests   3 in flight" in said and "failovers  none since the door began" in said
    assert "ALARM  broken_rule (2 since the door began): a mistake of the door's own" in said


def test_a_proof_that_is_under_way_has_three_parts() -> None:
    said = shown(door.told(door.WELL, door.PROVING, door.LIFE))
    assert (
        "  processes     10 ms  all 2 have ended\n  life lock       ...  a process holds it\n  memory          ..."
        in said
    )
    assert "waits for  life lock of a: held" in said


def test_a_failover_is_a_bar_of_its_phases() -> None:
    said = shown(door.told(*door.STORY))
    assert "a -> b  50 ms  [ppppppppppgggggggggwwwww]  proof 20 ms, grant 20 ms, wake 10 ms" in said
    assert "to do  no engine is ready to take over yet" in said


def test_what_isnt_known_is_said_and_since_when() -> None:
    said = shown(door.told(door.WELL, away_since=door.WALL))
    assert "No lock server has answered since 17:00:00 UTC" in said
    assert "lock no answer since 17:00:00 (last HELD)" in said and "as the lock said last" in said
    assert shown(door.told(door.WELL), away="no door answers").startswith("no door answers\n")
    others: list[Any] = [{"form": 99}, {"form": 1}, {**door.told(door.WELL), "pairs": [7]}, [], None, 7]
    for other in others:
        with pytest.raises(top_text.OtherVersion, match="of different versions"):
            shown(other)


def test_it_fits_the_terminal_and_no_name_can_move_the_cursor() -> None:
    wild = door.status("HELD", door.holder("a\x1b[2J\n", 1), door.waiter("b"), alarms=["x" * 999])
    found = top_text.lines(door.told(wild), PLAIN, 40, 8)
    assert len(found) == 8 and max(map(len, found)) == 40 and all(line.isprintable() for line in found)
    assert "a?[2J? serves" in found[0]
    assert "\x1b[1;32m" in top_text.lines(door.told(door.WELL), Paint(True), 80)[0]


class _Door(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        document = json.dumps(door.told(door.WELL)).encode()
        events = self.path == "/failover/events"
        self.send_response(200 if self.path.startswith("/failover/") else 404)
        self.end_headers()
        self.wfile.write(b"data: " + document + b"\n\n" if events else document)
        self.wfile.flush()
        if events:
            self.server.over.wait()  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Door)
    server.over = threading.Event()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.over.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def top(*words: str) -> list[str]:
    return [sys.executable, "-m", "engine_shim.cli.failover", "top", *words]


def test_without_a_terminal_it_prints_once(url: str, tmp_path: Path) -> None:
    done = subprocess.run(top("--door", url), cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "b is ready to take over" in done.stdout
    assert "\x1b" not in done.stdout
    done = subprocess.run(top("--once", "--door", "127.0.0.1:1"), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "no door answers at http://127.0.0.1:1: Connection refused" in done.stderr


@pytest.mark.parametrize(("end", "code"), [("q", 0), ("\x03", 130), ("", 128 + signal.SIGTERM)])
def test_in_a_terminal_it_follows_until_a_key_or_a_signal_and_gives_the_screen_back(
    url: str, end: str, code: int
) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        top("--door", url), cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(theirs), os.O_RDWR)),  # its controlling terminal, for Ctrl-C
    )  # fmt: skip
    os.close(theirs)
    said = b""

    def read() -> bool:
        nonlocal said
        said += os.read(ours, 65536)
        return b"to take over" in said

    try:
        until(read, "it shows who serves")
        if end:
            os.write(ours, end.encode())
        else:
            child.terminate()
        while True:
            try:
                said += os.read(ours, 65536)
            except OSError:  # the terminal has no other end any more
                break
        assert child.wait() == code
        assert said.rindex(b"\x1b[?1049l") > said.rindex(b"\x1b[?1049h") and b"Traceback" not in said
    finally:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
        os.close(ours)
