"""The observer: typed errors with the way out, and a watch that outlives servers."""

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from lockserver.observer import (
    Busy,
    Incompatible,
    NoServer,
    Observer,
    ObserverError,
    Refused,
    ServerSilent,
    watch_for_good,
    watch_forever,
)
from lockserver.rules import messages as m
from lockserver.shell.rundir import SOCKET
from sidecar.wire.frames import Channel
from tests.lockctl.programs import House
from tests.support.descriptors import no_descriptor_leaks
from tests.support.waiting import DEADLINE_S


def test_it_asks_and_is_answered(house: House) -> None:
    server = house.serve()
    with no_descriptor_leaks(), Observer(house.run_dir) as observer:
        assert observer.ask(m.AskStatus(), m.Status).server_pid == server.pid
        assert observer.ask(m.Ping(), m.Pong).server_incarnation
        assert observer.ask(m.AskHistory(), m.History).events is not None


def test_watch_begins_with_the_state_and_ends_with_the_server(house: House) -> None:
    server = house.serve(settle_s="3600")
    with no_descriptor_leaks(), Observer(house.run_dir) as observer:
        states = observer.watch()
        assert next(states).state == "RECOVERING"
        assert observer.ask(m.Ping(), m.Pong).server_incarnation, "it may ask on the same connection"
        server.kill()
        with pytest.raises(NoServer, match="went away; the holder serves on"):
            next(states)


def test_no_server_has_a_name_for_each_reason(house: House) -> None:
    with no_descriptor_leaks():
        with pytest.raises(NoServer, match="there is no directory"):
            Observer(house.run_dir)
        house.run_dir.mkdir()
        with pytest.raises(NoServer, match="start one"):
            Observer(house.run_dir)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(house.run_dir / SOCKET))
        with pytest.raises(NoServer, match="it was killed"):
            Observer(house.run_dir)


def test_silence_is_an_error_of_its_own(house: House) -> None:
    server = house.serve()
    server.send(signal.SIGSTOP)
    with no_descriptor_leaks(), Observer(house.run_dir, timeout_s=0.05) as observer:
        with pytest.raises(ServerSilent, match=f"process {server.pid} stopped"):
            observer.ask(m.Ping(), m.Pong)
        server.send(signal.SIGCONT)
        observer.timeout_s = 30
        assert observer.ask(m.Ping(), m.Pong)


def test_watch_forever_says_none_once_and_comes_back(house: House) -> None:
    seen = watch_forever(house.run_dir)
    assert next(seen) is None
    for _ in range(2):
        server = house.serve()
        for status in seen:
            assert status is not None, "None is said once"
            assert status.server_pid == server.pid
            if status.state == "FREE":
                break
        server.kill()
        assert next(seen) is None


def test_watch_forever_takes_a_silent_server_for_none_and_hears_it_later(house: House) -> None:
    server = house.serve()
    server.send(signal.SIGSTOP)
    seen = watch_forever(house.run_dir, timeout_s=0.05)
    assert next(seen) is None
    server.send(signal.SIGCONT)
    status = next(seen)
    assert status is not None
    assert status.server_pid == server.pid


def test_one_that_asks_notices_a_server_that_is_stopped_while_nothing_changes(house: House) -> None:
    server = house.serve()
    seen = watch_forever(house.run_dir, timeout_s=1.0, asks=True, idle_s=0.05)
    assert [status is not None and status.server_pid for status in islice(seen, 5)] == [server.pid] * 5
    server.send(signal.SIGSTOP)
    assert None in seen
    server.send(signal.SIGCONT)
    assert next(seen) is not None


@pytest.mark.parametrize("there", [False, True])
def test_a_watch_for_good_ends_when_it_is_over_with_and_without_a_server(house: House, there: bool) -> None:
    if there:
        house.serve()
    over, told = threading.Event(), threading.Event()
    watch = threading.Thread(
        target=watch_for_good, args=(house.run_dir, lambda status: told.set(), print),
        kwargs={"asks": True, "over": over.is_set},
    )  # fmt: skip
    watch.start()
    assert told.wait(DEADLINE_S) and watch.is_alive()
    over.set()
    watch.join(DEADLINE_S)
    assert not watch.is_alive()


# -- servers that are none ---------------------------------------------------------------------------------------------


Impostor = Callable[[Callable[[socket.socket], None]], Path]


@pytest.fixture
def impostor(house: House) -> Iterator[Impostor]:
    """Listens at the socket and does to each who connects as it is told."""
    house.run_dir.mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(house.run_dir / SOCKET))
    listener.listen()
    threads: list[threading.Thread] = []

    def be(behave: Callable[[socket.socket], None]) -> Path:
        def serve() -> None:
            with listener.accept()[0] as caller:
                behave(caller)
                caller.setblocking(True)  # a Channel of the same socket has turned that off
                caller.recv(1 << 16)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return house.run_dir

    yield be
    for thread in threads:
        thread.join()
    listener.close()


def test_another_protocol_is_told(impostor: Impostor) -> None:
    run_dir = impostor(lambda caller: caller.sendall(b"HTTP/1.1 400 no\r\n\r\n"))
    with Observer(run_dir) as observer, pytest.raises(Incompatible, match="speaks another protocol"):
        observer.ask(m.Ping(), m.Pong)


@pytest.mark.parametrize(
    ("word", "error"),
    [
        (m.Incompatible(oldest=8, newest=9, why="that's why"), Incompatible),
        (m.Busy(why="that's why"), Busy),
        (m.Refused(why="that's why"), Refused),
    ],
)
def test_a_servers_no_is_told_with_its_words_and_one_that_cant_have_it_now_is_no_refusal(
    impostor: Impostor, word: m.ServerMessage, error: type[ObserverError]
) -> None:
    run_dir = impostor(lambda caller: Channel(caller.dup(), m.from_client).send(word))
    with Observer(run_dir) as observer, pytest.raises(error, match="that's why"):
        observer.ask(m.Ping(), m.Pong)


def test_descriptors_that_were_not_asked_for_are_closed(impostor: Impostor) -> None:
    reading, writing = os.pipe()

    def gift(caller: socket.socket) -> None:
        Channel(caller.dup(), m.from_client).send(m.Pong(server_incarnation="x"), [writing])
        os.close(writing)

    with Observer(impostor(gift)) as observer:
        assert observer.ask(m.Ping(), m.Pong).server_incarnation == "x"
        assert select.select([reading], [], [], DEADLINE_S)[0], "the other end is still open"
        assert os.read(reading, 1) == b""
    os.close(reading)
