"""A thousand waiters from a few processes: raw frames on many connections, each an incarnation with its own life file.

To the server they are a thousand engines that wait. Those of one process have the same pidfs inode, which only says
that one death would end them all. They sleep in the kernel: nothing is sent to a waiter before its turn comes.
"""

import contextlib
import os
import secrets
import select
from collections.abc import Iterator
from pathlib import Path

from bench import stage
from bench.cast import Line, Player
from lockserver.rules import messages as m
from lockserver.shell.rundir import LIFE, connect
from sidecar.kernel import peers, process_setup
from sidecar.kernel.lifelock import LifeLock
from sidecar.terminal.names import incarnation_name
from sidecar.wire.frames import Channel, Message, close_all

PROCESSES = 4


@contextlib.contextmanager
def crowd(server: stage.LockServer, waiters: int, watchers: int) -> Iterator[None]:
    """All of them in the queue when this begins. End the server first, or see it bury them."""
    in_queue = server.status().waiters_total + waiters
    players: list[Player] = []
    try:
        for number in range(PROCESSES):
            count = waiters // PROCESSES + (number < waiters % PROCESSES)
            watching = watchers // PROCESSES + (number < watchers % PROCESSES)
            players.append(_player(server.run_dir, f"crowd{number}", count, watching))
        for player in players:
            player.hear()
        server.until(lambda status: status.waiters_total == in_queue, "the crowd in the queue")
        yield
    finally:
        for player in players:
            player.end()


def _player(run_dir: Path, name: str, waiters: int, watchers: int) -> Player:
    return Player(lambda line: _wait_many(line, run_dir, name, waiters, watchers))


def _wait_many(line: Line, run_dir: Path, name: str, waiters: int, watchers: int) -> None:
    process_setup.raise_descriptor_limit()
    kept: list[Channel | LifeLock] = []
    for number in range(waiters):
        kept += _waiter(run_dir, f"{name}-{number}")
    for _ in range(watchers):
        channel = Channel(connect(run_dir), m.from_server)
        _ask(channel, m.Observe(protocol=m.PROTOCOL))
        _ask(channel, m.Watch(), answered=True)
        kept.append(channel)
    line.say(0)
    poll = select.poll()
    channels = {one.fileno(): one for one in kept if isinstance(one, Channel)}
    for fd in channels:
        poll.register(fd, select.POLLIN)
    while channels:
        for fd, _events in poll.poll():
            for _message, descriptors in channels[fd].receive():
                close_all(descriptors)
            if channels[fd].eof:
                poll.unregister(fd)
                channels.pop(fd).close()


def _waiter(run_dir: Path, engine_id: str) -> tuple[Channel, LifeLock]:
    incarnation = secrets.token_hex(8)
    life = LifeLock.create(run_dir / LIFE, incarnation_name(engine_id, incarnation))
    channel = Channel(connect(run_dir), m.from_server)
    hello = m.Register(
        protocol=m.PROTOCOL, engine_id=engine_id, incarnation=incarnation, life=life.inode, pid=os.getpid()
    )
    pidfd = peers.own_pidfd()
    _ask(channel, hello, pidfd, answered=True)
    os.close(pidfd)
    _ask(channel, m.Acquire())
    return channel, life


def _ask(channel: Channel, message: Message, *descriptors: int, answered: bool = False) -> None:
    channel.send(message, descriptors)
    if answered:
        select.select([channel], [], [])
        for _, received in channel.receive():
            close_all(received)
