"""A client's connection: what is heard, when it has ended, and that no descriptor stays behind."""

import array
import contextlib
import itertools
import os
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.machine.client_loop import ClientLoop
from sidecar.wire import client_connection, frames
from sidecar.wire.client_connection import ClientConnection
from sidecar.wire.frames import Channel, PeerTooSlow, close_all
from tests.sidecar.wire import Blob, Hello, decoder, pipes
from tests.support.descriptors import no_descriptor_leaks
from tests.support.interruptions import interrupted_before
from tests.support.waiting import DEADLINE_S


class Client:
    """One whose loop runs from the first wait on."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.ended: list[str] = []
        self.kept: list[int] = []
        self.loop = ClientLoop("test", RuntimeError, let_go=lambda: self.link.hang_up())
        self.link = ClientConnection(self.loop, heard=self.hear, ended=self.ended.append)
        mine, theirs = socket.socketpair()
        self.link.open(Channel(mine, decoder, max_backlog_bytes=1 << 20))
        self.server = Channel(theirs, decoder)
        self.raw = theirs

    def hear(self, message: Any) -> None:
        self.heard.append(message)
        if isinstance(message, Hello) and message.name == "keep":
            self.kept += self.link.take_descriptors()
        elif isinstance(message, Hello) and message.name == "hang up":
            self.link.hang_up()

    def until(self, count: int) -> None:
        self.loop.start()
        assert self.loop.wait(lambda: len(self.heard) + len(self.ended) >= count, DEADLINE_S)


@pytest.fixture
def client() -> Iterator[Client]:
    with no_descriptor_leaks():
        client = Client()
        yield client
        client.loop.close()
        client.server.close()
        close_all(client.kept)


def test_descriptors_belong_to_who_takes_them_and_the_others_are_closed(client: Client) -> None:
    with pipes(4) as files:
        client.server.send(Hello("keep"), files[:2])
        client.server.send(Hello("not wanted"), files[2:])
        client.until(2)
    assert len(client.kept) == 2
    assert client.link.take_descriptors() == ()


def test_the_end_is_told_once(client: Client) -> None:
    client.server.send(Hello("last"))
    client.server.close()
    client.until(2)
    assert (client.heard, client.ended, client.link.up) == ([Hello("last")], [""], False)
    assert not client.link.say(Hello("too late"))


def test_nonsense_ends_it_with_what_was_wrong(client: Client) -> None:
    client.raw.sendall(struct.pack(">I", 1 << 30))
    client.until(1)
    assert "bytes" in client.ended[0] and not client.link.up


def test_after_a_hang_up_nothing_more_is_heard_of_what_had_come(client: Client) -> None:
    """Else a machine that is away hears of the last connection as if it were of the next."""
    with pipes(2) as files:
        client.server.send(Hello("hang up"))
        client.server.send(Hello("keep"), files)
        client.server.close()
        client.until(1)
        assert not client.loop.wait(lambda: len(client.heard) > 1, 0.05)
    assert (client.heard, client.ended, client.kept) == ([Hello("hang up")], [], [])


def test_a_server_that_takes_nothing_is_hung_up_on(client: Client) -> None:
    said = 0
    while client.link.say(Blob(os.urandom(32 << 10))):
        said += 1
        assert said < 1000
    assert not client.link.up and client.ended == []


def test_an_introduction_brings_ones_own_pidfd(client: Client) -> None:
    assert client.link.introduce(Hello("it's me"))
    [(message, descriptors)] = client.server.receive()
    try:
        assert isinstance(message, Hello) and message.name == "it's me"
        [pidfd] = descriptors
        with open(f"/proc/self/fdinfo/{pidfd}") as lines:
            assert f"Pid:\t{os.getpid()}\n" in lines.readlines()
    finally:
        close_all(descriptors)


# -- signal handlers that raise ----------------------------------------------------------------------------------------

OURS = (frames.__file__, client_connection.__file__)


def half_received() -> Client:
    """A connection that has descriptors of a frame that isn't complete, and owes its server some more."""
    client = Client()
    whole, mine = socket.socketpair()
    with pipes(4) as files:
        to = Channel(whole, decoder)
        to.send(Hello("later"), files[:3])
        data, control, _, _ = mine.recvmsg(1 << 16, 1 << 10)
        client.raw.sendmsg([data[:-1]], control)
        for _, _, payload in control:
            close_all(array.array("i", payload))
        with contextlib.suppress(PeerTooSlow):
            while not client.link._channel.wants_write:  # type: ignore[union-attr]
                client.link.say(Blob(b"x" * 60_000))
        client.link.say(Hello("owed"), files)
    to.close()
    mine.close()
    client.link._on_ready(select.EPOLLIN)  # by hand: a thread would send what is owed, too
    assert client.link._channel is not None and client.link._channel.half_frame
    return client


@pytest.mark.parametrize("what", ["hang up", "send what is owed"])
def test_what_is_raised_before_any_instruction_closes_no_descriptor_twice(what: str) -> None:
    """Its number is a stranger's by then, or it isn't in use and the connection can never be given up."""
    for number in itertools.count(1):
        client = half_received()
        channel = client.link._channel
        assert channel is not None
        if what == "hang up":
            was_interrupted = interrupted_before(number, client.link.hang_up, OURS)
        else:
            with contextlib.suppress(BlockingIOError):
                while client.raw.recv(1 << 20, socket.MSG_DONTWAIT):
                    pass
            was_interrupted = interrupted_before(number, channel.flush, OURS)
        client.link.hang_up()
        assert not client.link.up
        client.server.close()
        client.loop.close()
        if not was_interrupted:
            break
    assert number > 20
