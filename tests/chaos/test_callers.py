"""Other callers: many, rude, foreign. A bad frame costs its sender that connection, and no other anything."""

import contextlib
import os
import random as randomness
import shutil
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from lockserver.rules import messages as m
from lockserver.shell.rundir import connect
from tests.chaos.house import Contenders, House, Server, held_by, patient_connect
from tests.support.chance import seeded
from tests.support.processes import Process
from tests.support.root import needs_root
from tests.support.status import holder_of
from tests.support.waiting import NEVER_S, readable, until

pytestmark = pytest.mark.chaos

NOBODY, OTHER = 65534, 65533
OBSERVE = msgspec.msgpack.encode(m.Observe(protocol=m.PROTOCOL))
HELLO = struct.pack(">I", len(OBSERVE)) + OBSERVE


def idle(house: House, count: int) -> list[socket.socket]:
    sockets = []
    for _ in range(count):
        sock = patient_connect(house.run_dir)
        with contextlib.suppress(BrokenPipeError):  # turned away already
            sock.sendall(HELLO)
        sockets.append(sock)
    return sockets


def test_a_server_that_has_no_descriptors_left_serves_those_who_are_in_and_does_not_spin(house: House) -> None:
    server = house.server(limits={"RLIMIT_NOFILE": 64})
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    sockets = idle(house, 100)
    until(full(server, 63), "the server has all that it may have")
    lines = len(house.log.read_text().splitlines())
    a.never_hears("lost", for_s=NEVER_S)
    assert len(house.log.read_text().splitlines()) - lines < 50, "it says so, and not without end"
    a.kill()
    for sock in sockets:
        sock.close()
    assert b.granted()["dead"] == [True]
    assert server.status().state == "HELD"


def full(server: Server, count: int) -> Callable[[], bool]:
    return lambda: len(server.descriptors()) >= count


def test_a_new_engine_at_a_server_without_descriptors_is_served_when_there_is_room(house: House) -> None:
    """It comes in as the last one that fits: there is no descriptor for its pidfd, or for its life file."""
    server = house.server(limits={"RLIMIT_NOFILE": 64})
    a = house.engine("a")
    a.holds()
    before = len(server.descriptors())
    for left in (1, 2, 3):
        sockets = idle(house, 64 - before - left)
        until(full(server, 64 - left), "the server has nearly all that it may have")
        b = house.engine()
        b.order("start", run_dir=str(house.run_dir), engine_id="b")
        readable(b.sock.fileno(), 0.2)
        assert not server.dead
        for sock in sockets:
            sock.close()
        until(b.heard_answer, "it is served now, or was refused with a sentence")
        b.kill()
        until(lambda: len(server.descriptors()) <= before, "all is closed")
    status = server.status()
    assert status.state == "HELD" and status.holder is not None and status.holder.engine_id == "a"


# -- rude --------------------------------------------------------------------------------------------------------------


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


RUDE: dict[str, Callable[[randomness.Random], list[bytes]]] = {
    "random bytes": lambda r: [r.randbytes(r.randrange(1, 5000))],
    "a giant length": lambda r: [struct.pack(">I", r.choice([0xFFFFFFFF, (1 << 20) + 1])) + b"x" * 100],
    "an empty frame": lambda r: [framed(b"")],
    "no msgpack": lambda r: [framed(r.randbytes(50))],
    "an unknown message": lambda r: [framed(msgspec.msgpack.encode({"type": "Surprise"}))],
    "no introduction": lambda r: [
        framed(msgspec.msgpack.encode(r.choice([m.Acquire(), m.Release(), m.Drained(round=1), m.Ping()])))
    ],
    "two introductions": lambda r: [HELLO + HELLO],
    "another protocol": lambda r: [framed(msgspec.msgpack.encode(m.Observe(protocol=99)))],
    "half a frame": lambda r: [HELLO[: r.randrange(1, len(HELLO))]],
    "a frame in single bytes": lambda r: [bytes([byte]) for byte in HELLO],
    "what isn't its own to say": lambda r: [
        HELLO + framed(msgspec.msgpack.encode(r.choice([m.Acquire(), m.Serving(url="http://me"), m.Ready()])))
    ],
    "a life file that isn't there": lambda r: [
        framed(
            msgspec.msgpack.encode(
                m.Register(
                    protocol=m.PROTOCOL,
                    engine_id="x",
                    incarnation=r.randbytes(8).hex(),
                    life=(1, r.randrange(1 << 40)),
                    pid=1,
                )
            )
        )
    ],
    "a path for a name": lambda r: [
        framed(
            msgspec.msgpack.encode(
                m.Register(protocol=m.PROTOCOL, engine_id="../x", incarnation="00" * 8, life=(1, 1), pid=1)
            )
        )
    ],
    "many frames": lambda r: [HELLO + framed(msgspec.msgpack.encode(m.Ping())) * 2000],
    "many questions, unread": lambda r: [HELLO + framed(msgspec.msgpack.encode(m.AskHistory())) * 50],
}


def be_rude(run_dir: Path, how: str, random: randomness.Random, kept: list[socket.socket]) -> None:
    sock = connect(run_dir)
    sock.settimeout(2)
    with contextlib.suppress(OSError):
        for part in RUDE[how](random):
            sock.sendall(part)
    kept.append(sock)
    while len(kept) > 20:
        kept.pop(random.randrange(len(kept))).close()


def throw_descriptors(run_dir: Path, random: randomness.Random, kept: list[socket.socket]) -> None:
    """Descriptors where none belong, more than were announced, and with half a frame."""
    sock = connect(run_dir)
    sock.settimeout(2)
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        count = random.choice([1, 50, 250])
        body = random.choice(
            [HELLO, HELLO[:6], framed(msgspec.msgpack.encode({"type": "Observe", "protocol": 1, "fds": count}))]
        )
        with contextlib.suppress(OSError):
            socket.send_fds(sock, [body], [null] * count)
            if random.random() < 0.5:
                hand_back = m.HandBack(mark=1, tree="x", numbers=[1] * count, fds=count)
                socket.send_fds(sock, [framed(msgspec.msgpack.encode(hand_back))], [null] * count)
    finally:
        os.close(null)
    kept.append(sock)


def test_no_rude_caller_disturbs_another_or_leaves_anything(house: House) -> None:
    random = seeded()
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    before = server.descriptors()
    kept: list[socket.socket] = []
    for how in (*RUDE, "descriptors"):
        for _ in range(20):
            if how == "descriptors":
                throw_descriptors(house.run_dir, random, kept)
            else:
                be_rude(house.run_dir, how, random, kept)
        status = server.status()
        assert status.state == "HELD" and status.waiters, how
        while kept:
            kept.pop().close()
        until(lambda: len(server.descriptors()) <= len(before), f"the server closes what it got: {how}")
    a.kill()
    assert b.granted()["dead"] == [True]


def test_handoffs_go_on_in_the_middle_of_a_flood(house: House) -> None:
    """Everything rude at once, while holders are killed. The server's descriptors come back to what
    they were."""
    random = seeded()
    server = house.server()
    contenders = Contenders(house, "abc")
    event = contenders.next()
    server.shows(lambda s: s.state == "HELD" and len(s.waiters) == 2)
    before = server.descriptors_with(connections=3)
    over = threading.Event()

    def flood(seed: int) -> None:
        own = randomness.Random(seed)
        kept: list[socket.socket] = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                if own.random() < 0.2:
                    throw_descriptors(house.run_dir, own, kept)
                be_rude(house.run_dir, own.choice(list(RUDE)), own, kept)
        for sock in kept:
            sock.close()

    flooding = threading.Thread(target=flood, args=(random.randrange(1 << 32),))
    flooding.start()
    try:
        for _ in range(2):
            assert event["event"] == "holding", event
            last = event["token"]
            holder = Process(event["pid"])
            holder.kill()
            event = contenders.next()
            assert event["token"] > last
    finally:
        over.set()
        flooding.join()
    server.shows(lambda s: s.state == "HELD" and len(s.waiters) == 2)
    assert server.descriptors_with(connections=3) == before, "nothing is left of the flood"
    contenders.close()


# -- foreign -----------------------------------------------------------------------------------------------------------


def open_to_others(house: House) -> None:
    os.chmod(house.directory, 0o755)
    house.run_dir.mkdir()
    os.chmod(house.run_dir, 0o777)
    (house.run_dir / "life").mkdir()
    os.chmod(house.run_dir / "life", 0o777)


@pytest.mark.root
@needs_root
def test_another_user_can_not_even_connect(house: House) -> None:
    open_to_others(house)
    house.server()
    stranger = house.engine(uid=NOBODY)
    assert stranger.do("knock", run_dir=str(house.run_dir))["says"] == "PermissionError"


@pytest.mark.root
@needs_root
def test_another_user_who_can_connect_is_refused_with_a_sentence(house: House) -> None:
    open_to_others(house)
    server = house.server("--socket-mode", "666")
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    stranger = house.engine(uid=NOBODY)
    answer = stranger.do("knock", run_dir=str(house.run_dir))
    assert answer["says"] == "Problem" and f"user {NOBODY}" in answer["why"] and "--allow-uid" in answer["why"]
    assert server.status().state == "HELD"
    a.kill()
    assert b.granted()["dead"] == [True]


@pytest.mark.root
@needs_root
def test_an_allowed_user_is_served(house: House) -> None:
    open_to_others(house)
    server = house.server("--socket-mode", "666", "--allow-uid", str(NOBODY))
    os.chmod(house.witness, 0o666)
    stranger = house.engine(uid=NOBODY)
    assert stranger.do("knock", run_dir=str(house.run_dir))["says"] == "Status"
    stranger.start("n").holds()
    b = house.engine("b")
    b.wants(watching=[stranger])
    worker = stranger.child("fork", keep=False).joins(stranger.tree).joined()
    server.shows(lambda s: s.waiters)
    stranger.kill()
    assert b.granted()["dead"] == [True]
    worker.wait()


@pytest.mark.root
@needs_root
def test_a_life_file_that_the_server_may_not_read_costs_its_engine_the_connection_and_no_other_anything(
    house: House,
) -> None:
    """The server isn't root here, and an allowed engine of another user makes its file for itself alone."""
    open_to_others(house)
    os.chmod(house.witness, 0o666)
    server = house.server("--socket-mode", "666", "--allow-uid", f"{NOBODY},0", uid=OTHER)
    a = house.engine("a", uid=OTHER)
    a.holds()
    stranger = house.engine(uid=NOBODY)
    stranger.order("start", run_dir=str(house.run_dir), engine_id="n", timeout_s=1.0)
    until(lambda: stranger.heard_answer(), "the stranger is told something")
    assert not server.dead
    assert holder_of(server.status()).engine_id == "a"
    server.kill()
    house.server("--socket-mode", "666", "--allow-uid", f"{NOBODY},0", uid=OTHER).shows(lambda s: s.state == "HELD")


def test_workers_that_join_beside_stopped_standbys_cut_no_client_and_these_have_all_copies_when_they_go_on(
    house: House,
) -> None:
    """The kernel lets a user have so many descriptors sent and unread; more, and it refuses those of all."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv: the kernel lets root go past the limit")
    through = [setpriv, "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    server = house.server(through=through, limits={"RLIMIT_NOFILE": 1024})
    a, standbys = house.engine("a"), [house.engine("b"), house.engine("c")]
    token = a.holds()
    for standby in standbys:
        standby.wants()
    server.shows(lambda s: len(s.waiters) == 2, "they wait")
    for standby in standbys:
        standby.stop()
    workers = [a.child("fork", keep=False) for _ in range(44)]
    for worker in workers:
        worker.joins(a.tree)
    for worker in workers:
        worker.joined()
    status = server.shows(lambda s: s.holder is not None and len(s.holder.members) == 45, "all have joined")
    assert status.state == "HELD" and not server.history("fencing")
    assert not [line for line in house.log.read_text().splitlines() if "too_slow" in line or "cant_be_sent" in line]
    for standby in standbys:
        standby.go_on()
        until(lambda of=standby: len(pidfds(of)) >= 45, "it has a copy of each")  # type: ignore[misc]
    server.kill()
    held_by(house.server(), "a", token)


def pidfds(of: Process) -> list[str]:
    return [what for what in of.descriptors().values() if "pidfd" in what]
