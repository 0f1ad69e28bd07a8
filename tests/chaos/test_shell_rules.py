"""Rules of the shells, each with a test that fails without it. (Rules of the machines are the simulator's.) The
docstring names the rule."""

import fcntl
import os
import signal
import sys
from pathlib import Path

from lockserver.rules import messages as m
from lockserver.shell.rundir import LIFE
from sidecar.kernel import peers
from sidecar.kernel.lifelock import LifeLock
from tests.chaos.house import Caller, House
from tests.support.processes import Process
from tests.support.waiting import readable, until


def not_closed_on_exec(process: Process) -> list[str]:
    """Every descriptor, but for the standard ones, that a program started by this process would inherit."""
    open_ones = []
    for fd, what in process.descriptors().items():
        flags = Path(f"/proc/{process.pid}/fdinfo/{fd}").read_text().split("flags:")[1].split()[0]
        if fd > 2 and not int(flags, 8) & os.O_CLOEXEC:
            open_ones.append(f"{fd}: {what}")
    return open_ones


def test_no_descriptor_of_server_or_client_is_inherited_by_a_program_that_it_starts(house: House) -> None:
    """Rule: every descriptor that is received or made is close-on-exec: pidfds from the wire, copies that waiters
    keep, sockets, life locks, probes."""
    server = house.server("--pidfds", "sent", cold=True)
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    worker = a.child("exec")
    a.do("vouch_for", pid=worker.pid)
    b.wants()
    until(lambda: "anon_inode:[pidfd]" in b.descriptors().values(), "the waiter keeps copies of the holder's pidfds")
    inherited = [
        entry for entry in not_closed_on_exec(server) if str(house.log) not in entry
    ]  # that one is the test's own
    assert inherited == []
    for engine in (a, b):
        assert [
            entry for entry in not_closed_on_exec(engine) if "log" in entry or "life" in entry or "pidfd" in entry
        ] == []


def test_a_program_that_a_holder_starts_does_not_keep_its_lock(house: House) -> None:
    """Rule: the life lock's and the socket's descriptors are close-on-exec. Else any tool that an engine has started
    holds the lock after it."""
    house.server()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    pid = a.do("start_program")["pid"]
    program = house.grow(Process(pid, os.pidfd_open(pid)))
    b.wants(watching=[a])
    a.kill()
    b.granted()
    assert not program.dead


def test_the_servers_look_at_a_life_lock_takes_no_lock(house: House) -> None:
    """Rule: F_OFD_GETLK, never a lock. A server that can't prove its holder's end looks at the free lock again and
    again; any process can have it meanwhile."""
    server = house.server()
    a = house.engine("a")
    a.holds()
    server.kill()
    a.kill()
    house.an_older_server_wrote_the_file()
    server = house.server("--window-s", "0.05")
    server.shows(lambda s: s.state == "FENCING" and s.alarms)
    life = house.run_dir / LIFE / a.tree
    for _ in range(200):
        fd = os.open(life, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
        LifeLock.join(life.parent, life.name).close()
        assert server.status().state == "FENCING"


def test_starters_are_never_disturbed_by_a_server_that_looks_at_strangers_locks(house: House) -> None:
    """Rule: the same for files of which the server knows nothing: in its settling time it looks at all of them."""
    server = house.server("--settle-s", "3600")
    (house.run_dir / LIFE).joinpath("held.0000000000000000").touch()
    with LifeLock.join(house.run_dir / LIFE, "held.0000000000000000"):
        Caller(house.run_dir, m.Observe(protocol=m.PROTOCOL)).close()
        for number in range(300):
            name = f"x.{number:016x}"
            LifeLock.create(house.run_dir / LIFE, name).close()
            LifeLock.join(house.run_dir / LIFE, name).close()
        assert server.status().state == "RECOVERING"


def test_a_waiter_that_dies_while_its_socket_stays_open_leaves_the_queue(house: House) -> None:
    """Rule: a pidfd is armed when its process is registered, not when it is granted."""
    server = house.server()
    a, b, c = (house.engine(x) for x in "abc")
    a.holds()
    b.wants()
    server.shows(lambda s: len(s.waiters) == 1)
    c.wants(watching=[a, b])
    server.shows(lambda s: len(s.waiters) == 2)
    child = b.child("fork")
    b.kill()
    server.shows(lambda s: [w.engine_id for w in s.waiters] == ["c"])
    a.kill()
    assert c.granted()["dead"] == [True, True]
    assert not child.dead


def test_a_member_that_dies_while_its_socket_stays_open_is_seen(house: House) -> None:
    """Rule: a member's pidfd is armed when it joins."""
    server = house.server()
    a = house.engine("a")
    a.holds()
    worker = a.child("exec").joins(a.tree).joined()
    child = worker.child("fork")
    server.shows(lambda s: s.holder is not None and len(s.holder.members) == 2)
    worker.kill()
    server.shows(lambda s: s.holder is not None and len(s.holder.members) == 1)
    assert not child.dead


def test_a_hundred_engines_come_and_go_and_the_server_has_the_descriptors_that_it_had(house: House) -> None:
    """Rule: probes, pidfds and connections of those who are gone are closed."""
    server = house.server()
    a = house.engine("a")
    a.holds()
    before = len(server.descriptors())
    for _ in range(50):
        b, c = house.engine("b"), house.engine("c")
        b.wants()
        worker = b.child("fork", keep=False).joins(b.tree).joined()
        b.kill()
        worker.wait()
        c.kill()
    until(lambda: len(server.descriptors()) <= before, f"the server has its {before} descriptors again")
    until(lambda: os.listdir(house.run_dir / LIFE) == [a.tree], "and its directory one life file")


def test_the_socket_has_its_name_only_once_it_listens(house: House) -> None:
    """Rule: bind under another name, listen, rename. A client that finds the socket can connect."""
    program = f"""
import os, runpy, socket, sys
listen = socket.socket.listen
def slow(self, *backlog):
    if self.getsockname()[:1] != b"\\0":  # no path: a name in the network namespace
        print("LISTENS", os.path.exists({str(house.run_dir / "lock.sock")!r}), file=sys.stderr, flush=True)
    listen(self, *backlog)
socket.socket.listen = slow
sys.argv = ["lockserver", "--run-dir", {str(house.run_dir)!r}, "--memory", "none"]
runpy.run_module("lockserver", run_name="__main__")
"""
    house.run({"do": "exec", "argv": [sys.executable, "-c", program]})
    until(lambda: (house.run_dir / "lock.sock").exists(), "the socket has its name")
    said = [line for line in house.log.read_text().splitlines() if line.startswith("LISTENS")]
    assert said == ["LISTENS False"]


def test_a_child_whose_parent_died_before_it_was_armed_ends_itself(house: House) -> None:
    """Rule: PR_SET_PDEATHSIG, and then a look at the parent: one that ended before sends nothing."""
    program = """
import os, select
from sidecar.kernel.process_setup import die_with_parent
SAYS, GO = 10, 11
parent = os.getpid()
parent_pidfd = os.pidfd_open(parent)
if os.fork() == 0:
    os.write(SAYS, str(os.getpid()).encode())
    select.select([parent_pidfd], [], [])
    select.select([GO], [], [])
    die_with_parent(parent)
    os.write(SAYS, b"lives")
    select.select([], [], [])
select.select([], [], [])
"""
    read, write = os.pipe()
    may_read, may_write = os.pipe()
    parent = house.run({"do": "exec", "argv": [sys.executable, "-c", program]}, [write, may_read])
    for fd in (write, may_read):
        os.close(fd)
    assert readable(read, 30)
    pid = int(os.read(read, 100))
    child = house.grow(Process(pid, os.pidfd_open(pid)))
    parent.kill()
    os.write(may_write, b"go")
    child.wait()
    assert os.read(read, 100) == b"", "it ended, and said nothing"
    os.close(read)
    os.close(may_write)


def test_the_holder_file_is_replaced_and_never_written_over(house: House) -> None:
    """Rule: temporary, fsync, rename. A server that is killed in the middle leaves the old file whole."""
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants()
    server.shows(lambda s: s.waiters)
    file, seen = house.run_dir / "holder.json", house.run_dir / "seen"
    os.link(file, seen)
    before = seen.read_bytes()
    a.kill()
    b.granted()
    assert seen.read_bytes() == before, "the file of before the grant was not touched"
    assert os.stat(file).st_ino != os.stat(seen).st_ino
    assert sorted(os.listdir(house.run_dir)) == [
        "holder.json",
        "holder.json.spare",
        "life",
        "lock.sock",
        "seen",
        "server.lock",
    ], "no temporary stays"


def test_two_servers_never_serve_one_directory(house: House) -> None:
    """Rule: a flock on the directory. A later server ends, and takes neither socket nor file of the first."""
    server = house.server()
    a, b = house.engine("a"), house.engine("b")
    token = a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    file, socket = (os.stat(house.run_dir / name).st_ino for name in ("holder.json", "lock.sock"))
    for late in [house.server(wait=False) for _ in range(3)]:
        assert house.exit_code(late) == 1
    assert f"process {server.pid}" in house.log.read_text()
    assert not server.dead
    assert (file, socket) == tuple(os.stat(house.run_dir / name).st_ino for name in ("holder.json", "lock.sock"))
    status = server.status()
    assert status.server_pid == server.pid and status.holder is not None and status.holder.token == token
    a.never_hears("lost", for_s=0)
    a.kill()
    assert b.granted()["dead"] == [True]


def test_a_late_event_of_a_closed_connection_is_not_taken_for_the_death_of_the_process_that_has_its_descriptor_now(
    house: House,
) -> None:
    """Rule: a pidfd that an event names is asked itself.

    Three events in one turn of the server's loop: a process comes back on a new connection (its old one is closed),
    another registers (its pidfd gets the
    old connection's number), and the old connection's own event."""
    server = house.server()

    def registration(engine_id: str) -> m.Register:
        lives.append(LifeLock.create(house.run_dir / LIFE, f"{engine_id}.{'0' * 16}"))
        return m.Register(
            protocol=m.PROTOCOL, engine_id=engine_id, incarnation="0" * 16, life=lives[-1].inode, pid=os.getpid()
        )

    lives: list[LifeLock] = []
    one, two = registration("one"), registration("two")
    own = peers.own_pidfd()
    old = Caller(house.run_dir, one, [own])
    os.close(own)
    old.next(m.Welcome)
    again, other = Caller(house.run_dir), Caller(house.run_dir)
    server.status()
    server.stop()
    again.ask(one)
    other.ask(two)
    old.ask(m.Acquire())
    server.go_on()
    again.next(m.Welcome)
    other.next(m.Welcome)
    other.ask(m.Ping())
    other.next(m.Pong)
    for caller in (old, again, other):
        caller.close()
    for life in lives:
        life.close()


def test_a_grant_is_on_disk_before_an_engine_is_told(house: House) -> None:
    """Rule: `Persist`, then `Granted`. A server that is killed at any grant finds its holder in the file."""
    for _ in range(5):
        server = house.server()
        a = house.engine("a")
        token = a.holds()
        server.kill()
        assert f'"token":{token}' in (house.run_dir / "holder.json").read_text()
        server = house.server("--window-s", "3600")
        held = server.shows(lambda s: s.state == "HELD")
        assert held.holder is not None and held.holder.token == token
        a.signal(signal.SIGKILL)
        server.shows(lambda s: s.state == "FREE")
        server.kill()
