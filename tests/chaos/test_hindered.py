"""What keeps callers from coming in, or from hearing their grant, is an alarm in the status for as long as it lasts."""

import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from gms.rules import messages as gm
from lockserver.shell.rundir import SOCKET
from tests.chaos.house import House
from tests.gms.container import Container, hello
from tests.support.seccomp import through
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


@contextlib.contextmanager
def few_descriptors(pid: int, room: int = 0) -> Iterator[None]:
    """The process can open few more, or none."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir(f"/proc/{pid}/fd"))) if room else 0
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + room, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def knock(path: str) -> socket.socket:
    knocks = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    knocks.connect(path)
    return knocks


def test_a_lock_server_without_descriptors_says_so_until_it_has_some_again(house: House) -> None:
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    with server.observer() as observer, contextlib.ExitStack() as knocks:
        assert not observer.status().alarms, "and it is in"
        with few_descriptors(server.pid, room=2):
            for _ in range(100):
                if observer.status().alarms or observer.status().alarms:  # the last caller is in by then, or kept out
                    break
                knocks.enter_context(knock(str(house.run_dir / SOCKET)))
            alarms = observer.status().alarms
            assert len(alarms) == 1 and "Too many open files" in alarms[0]
        until(lambda: not observer.status().alarms, "it is over, though no other caller comes")
    a.kill()
    assert b.granted()["dead"] == [True]


def test_a_holder_that_never_hears_its_grant_is_an_alarm(house: House) -> None:
    """The kernel takes no more descriptors of this user's: the names that go with the grant are some."""
    server = house.server(through=through(sendmsg="ETOOMANYREFS"))
    a = house.engine("a")
    a.wants()
    status = server.shows(lambda s: s.alarms)
    assert status.state == "HELD" and "refused" in status.alarms[0] and not a.heard("granted")
    a.kill()
    server.shows(lambda s: not s.alarms, "it ends with the connection")


def test_gms_without_descriptors_says_so_until_it_has_some_again(container: Container) -> None:
    container.serves()
    caller = container.caller(hello())

    def alarms() -> tuple[str, ...]:
        return tuple(caller.ask(gm.AskStatus(), gm.Status).alarms)

    assert not alarms()
    with few_descriptors(container.server_pid()), knock(str(container.run_dir / "gms" / "host:0.sock")):
        until(lambda: any("Too many open files" in alarm for alarm in alarms()), "the alarm")
    until(lambda: not alarms(), "it is over")
