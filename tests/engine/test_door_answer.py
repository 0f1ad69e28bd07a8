"""What `failover status`, `doctor` and `top` say of a program in the door's place that isn't the door: a sentence, and
within a time, whatever it sends.
"""

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from engine_shim.cli import door_answer, pair_look, top
from engine_shim.cli.pair_process import PairError

OK = b"HTTP/1.1 200 OK\r\n\r\n"
UNREAD = "can't be read: is it the door, and of this version?"
NO_HTTP = "what listens there doesn't speak HTTP"
NO_END = "its answer doesn't end in time: is it the door?"
SPEAKS = {
    "another server": ([b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno\n"], "/failover says 404"),
    "a page": ([OK + b"<html>"], UNREAD),
    "other JSON": ([OK + b'{"pairs": [{"run_dir": 7}]}'], UNREAD),
    "no object": ([OK + b"null"], UNREAD),
    "JSON of any depth": ([OK + b"[" * 500_000], UNREAD),
    "no text": ([OK + b'{"pairs": [{"run_dir": "\xff"}]}'], UNREAD),
    "more than is read": ([OK, *[b"x" * (1 << 20)] * 9], UNREAD),
    "another protocol": ([b"SSH-2.0-OpenSSH_9\r\n"], NO_HTTP),
    "noise": ([os.urandom(4000)], NO_HTTP),
    "no number": ([b"HTTP/1.1 abc OK\r\n\r\n"], NO_HTTP),
    "nothing": ([], NO_HTTP),
    "a body by the byte": (itertools.chain([OK], itertools.repeat(b" ")), NO_END),
    "a head by the byte": (itertools.chain([b"HTTP/1.1 200 OK\r\nx: "], itertools.repeat(b"y")), NO_END),
    "100 for ever": (itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"), NO_END),
}
SLOWLY = ("a body by the byte", "a head by the byte", "100 for ever")
Liar = Callable[[Iterable[bytes], float], str]


@pytest.fixture
def liar() -> Iterator[Liar]:
    """Says this at each connection, with so much time between; its URL."""
    over, listeners = threading.Event(), []

    def listen(words: Iterable[bytes], pause_s: float) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client, contextlib.suppress(OSError):
                        client.recv(65536)
                        for word in words:
                            client.sendall(word)
                            if over.wait(pause_s):
                                break

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield listen
    over.set()
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize("kind", SPEAKS)
def test_a_program_that_is_no_door_is_a_sentence_and_takes_no_longer_than_one(
    kind: str, liar: Liar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A byte at a time would keep one that waits for each piece alone."""
    monkeypatch.setattr(pair_look, "TIMEOUT_S", 0.5 if kind in SLOWLY else 30.0)
    monkeypatch.setattr(top, "QUIET_S", 0.5 if kind in SLOWLY else 30.0)
    words, expected = SPEAKS[kind]
    url = liar(words, 0.02 if kind in SLOWLY else 0.0)
    seen = pair_look.look(tmp_path, url)
    assert seen.door is not None and not seen.door["answers"] and seen.door["why"].endswith(expected), seen.door
    with pytest.raises(PairError) as error:
        top.show(tmp_path, url, once=True)
    assert expected.removeprefix("/failover") in str(error.value) or "of different versions" in str(error.value)
    assert str(error.value).isprintable() and "--door HOST:PORT is another one" in str(error.value)


def test_no_program_that_answers_is_told_by_its_errors(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:99999", "http://a..b:80", f"http://{'a' * 64}:80"):
        with pytest.raises(door_answer.NoDoor, match="this is no address"):
            door_answer.ask(url, "/failover", 1.0, dict)
    with pytest.raises(ConnectionRefusedError):
        door_answer.ask("http://127.0.0.1:1", "/failover", 1.0, dict)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        began = time.monotonic()
        door_answer.ask(f"http://127.0.0.1:{silent.getsockname()[1]}", "/failover", 0.1, dict)
    assert time.monotonic() >= began + 0.1
