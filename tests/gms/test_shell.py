"""One device's server as a process: what callers may do to it, and what a restart finds. Real sockets, real SIGKILL."""

import contextlib
import itertools
import os
import resource
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gms.rules import messages as m
from gms.shell.rundir import directory
from sidecar.wire.frames import close_all
from tests.gms.container import SLAB, Caller, Container, dead, descriptors, document, hello, kill
from tests.support.children import Child
from tests.support.waiting import until

OBSERVE = m.Observe(protocol=m.PROTOCOL)


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def encoded(message: object) -> bytes:
    return framed(msgspec.msgpack.encode(message))


# -- what it is for ----------------------------------------------------------------------------------------------------


def test_a_layout_that_is_larger_than_an_ordinary_frame_goes_in_and_out(container: Container) -> None:
    container.serves()
    data = document((SLAB,), [f"model.layers.{n}.{'x' * 500}" for n in range(8000)])
    assert len(data) > 4 << 20
    writer = container.caller(hello(), m.Open(mode="rw"))
    writer.hear(m.Opened)
    writer.ask(m.Create(size=SLAB), m.Created)
    writer.ask(m.Commit(layout=data), m.Committed)
    reader = container.caller(hello("b"), m.Open(mode="ro"))
    assert reader.hear(m.Opened)[0].layout == data
    assert container.caller(OBSERVE).ask(m.AskLayout(), m.LayoutIs).layout == data


# -- callers -----------------------------------------------------------------------------------------------------------

RUDE = {
    "a length just over the limit": struct.pack(">I", m.MAX_FRAME_BYTES + 1),
    "an unknown message": framed(msgspec.msgpack.encode({"type": "Surprise"})),
    "a path for a name": encoded(m.Hello(protocol=m.PROTOCOL, engine_id="../x", pid=1)),
    "a negative size": encoded(OBSERVE) + framed(msgspec.msgpack.encode({"type": "Create", "size": -1})),
}


def test_a_rude_caller_is_told_why_and_loses_its_connection_and_no_other_anything(container: Container) -> None:
    container.serves()
    writer = container.writer()
    before = len(descriptors(container.server_pid()))
    for how, data in RUDE.items():
        rude = container.caller()
        rude.sock.sendall(data)
        assert rude.hear(m.Problem)[0].why, how
        rude.ends()
    null = os.open("/dev/null", os.O_RDONLY)
    messages = (OBSERVE, m.Ping(), m.Create(size=SLAB), m.Dropped(generation=1))
    for message, count in itertools.product(messages, (1, 100)):
        rude = container.caller()
        rude.say(message, [null] * count)
        assert "takes no descriptors" in rude.hear(m.Problem)[0].why
        rude.ends()
    os.close(null)
    assert writer.ask(m.Ping(), m.Pong)
    assert container.status().state == "RO"
    until(lambda: len(descriptors(container.server_pid())) <= before, "nothing of them is left")


def test_what_is_handed_back_and_is_no_memory_of_the_device_costs_the_connection(container: Container) -> None:
    container.serves()
    writer = container.writer((SLAB, SLAB))
    generation = container.status().generation
    before = len(descriptors(container.server_pid()))
    own = os.memfd_create("no memory of a device")
    os.truncate(own, SLAB)
    bare = os.open(container.host_devices / "0", os.O_RDWR)
    reading, writing = os.pipe()
    for fd in (own, bare, reading, container.caller().sock.fileno()):
        rude = container.caller(hello("rude"))
        rude.say(m.HandBack(generation=generation, hash="0" * 64, sizes=[SLAB]), [fd])
        assert rude.hear(m.Problem)[0].why.startswith("HandBack: slab 0: ")
        rude.ends()
    reader = container.caller(hello("b"), m.Open(mode="ro"))
    _, fds = reader.hear(m.Slabs)
    rude = container.caller(hello("rude"))
    rude.say(m.HandBack(generation=generation, hash="0" * 64, sizes=[2 * SLAB]), fds[:1])
    assert f"{2 * SLAB} were announced" in rude.hear(m.Problem)[0].why
    rude = container.caller(hello("rude"))
    rude.say(m.HandBack(generation=generation, hash="0" * 64, sizes=[SLAB]), fds)
    assert "more slabs than sizes" in rude.hear(m.Problem)[0].why
    close_all([own, bare, reading, writing, *fds])
    assert writer.ask(m.Ping(), m.Pong)
    reader.close()
    until(lambda: len(descriptors(container.server_pid())) <= before + 1, "nothing of it is kept")


def test_a_kernel_that_names_no_peer_needs_the_pidfd_of_the_caller_itself(container: Container) -> None:
    container.serves("--pidfds", "sent")
    without = container.caller(hello())
    assert "send a pidfd" in without.hear(m.Problem)[0].why
    null = os.open("/dev/null", os.O_RDONLY)
    other = os.pidfd_open(os.getppid())
    own = os.pidfd_open(os.getpid())
    for fd, words in ((null, "names no process"), (other, "and you are")):
        caller = container.caller()
        caller.say(hello(), [fd])
        assert words in caller.hear(m.Problem)[0].why
    caller = container.caller()
    caller.say(hello(), [own])
    assert caller.hear(m.Welcome)[0].device == "host:0"
    close_all([null, other, own])


def test_a_client_whose_socket_stays_open_in_a_child_is_gone_when_it_dies(container: Container) -> None:
    container.serves()

    def read(say: Callable[[str], None]) -> None:
        caller = container.caller(hello("parent"), m.Open(mode="rw"))
        caller.hear(m.Opened)
        child = os.fork()
        if child == 0:
            signal.pause()
        say(str(child))
        signal.pause()

    with Child(read) as child:
        heir = int(child.line())
        assert container.status().state == "RW"
        child.kill()
        container.shows(state="EMPTY", clients=[])
        assert not dead(heir)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user")
@pytest.mark.parametrize(("settings", "served"), [((), False), (("--allow-uid", "65534"), True)])
def test_another_user_is_refused_with_a_sentence_unless_it_is_allowed(
    container: Container, settings: tuple[str, ...], served: bool
) -> None:
    container.serves("--socket-mode", "666", *settings)
    for path in (container.run_dir.parent, container.run_dir, directory(container.run_dir)):
        path.chmod(0o755)

    def call(say: Callable[[str], None]) -> None:
        os.setuid(65534)
        caller = Caller(container.run_dir, "host:0", OBSERVE, m.Ping())
        if served:
            say(type(caller.hear(m.Pong)[0]).__name__)
        else:
            say(caller.hear(m.Problem)[0].why)

    with Child(call) as child:
        said = child.line()
    assert said == "Pong" if served else "user 65534 is not allowed here" in said and "--allow-uid" in said


# -- the end and the next one ----------------------------------------------------------------------------------------


def test_other_memory_of_the_same_size_is_not_taken_for_the_layout(container: Container) -> None:
    container.serves()
    writer = container.caller(hello("a"), m.Open(mode="rw"))
    writer.hear(m.Opened)
    kept: list[int] = []
    for _ in range(2):
        writer.say(m.Create(size=SLAB))
        kept += writer.hear(m.Created)[1]
    data = document((SLAB, SLAB))
    committed = writer.ask(m.Commit(layout=data), m.Committed)
    kill(container.server_pid())
    container.serves()
    back = container.caller(hello("a"))
    back.say(
        m.HandBack(generation=committed.generation, hash=committed.hash, sizes=[SLAB, SLAB], layout=data),
        [kept[1], kept[0]],
    )
    refused, _ = back.hear(m.Refused)
    assert refused.reason == "stale" and "its memory is not that in the file" in refused.why
    assert container.status().state == "RECOVERING"
    close_all(kept)


def test_a_replaced_directory_ends_the_server(container: Container) -> None:
    gms = container.serves()
    here = directory(container.run_dir)
    here.rename(here.with_name("moved"))
    assert gms.ends() == 1
    assert "was replaced" in gms.err.rest()


def test_while_the_disk_refuses_no_client_commits_and_afterwards_one_does(container: Container) -> None:
    container.serves()
    writer = container.caller(hello("a"), m.Open(mode="rw"))
    writer.hear(m.Opened)
    writer.ask(m.Create(size=SLAB), m.Created)
    _, most = resource.prlimit(container.server_pid(), resource.RLIMIT_FSIZE)
    resource.prlimit(container.server_pid(), resource.RLIMIT_FSIZE, (0, most))
    refused = writer.ask(m.Commit(layout=document((SLAB,))), m.Refused)
    assert refused.reason == "disk" and "can be tried again" in refused.why
    assert any("can't be written" in alarm for alarm in container.status().alarms)
    resource.prlimit(container.server_pid(), resource.RLIMIT_FSIZE, (most, most))
    writer.ask(m.Commit(layout=document((SLAB,))), m.Committed)
    assert container.shows(alarms=[]).state == "RO"


def test_it_has_no_more_than_it_needs_and_a_long_path_is_no_hindrance(container: Container) -> None:
    container.run_dir = container.run_dir / ("d" * 120)
    container.serves("--socket-mode", "660")
    assert (directory(container.run_dir) / "host:0.sock").stat().st_mode & 0o777 == 0o660
    container.writer((SLAB, SLAB))
    pid = container.server_pid()
    maps = Path(f"/proc/{pid}/maps").read_text()
    assert "torch" not in maps
    assert str(container.host_devices) not in maps, "no memory of the device"
    for fd, what in descriptors(pid).items():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            flags = Path(f"/proc/{pid}/fdinfo/{fd}").read_text().split("flags:")[1].split()[0]
            assert fd <= 2 or int(flags, 8) & os.O_CLOEXEC, f"{fd}: {what}"
