"""Rules that the simulator taught us, as directed tests: it would need many schedules to come to them again."""

import subprocess
import sys
from pathlib import Path

from evidence.rules.record import Processes
from lockserver.observer import Observer
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.lock import State
from lockserver.rules.machine import Machine
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.rules.record import Record, decode, encode
from tests.lockserver.harness import Harness
from tests.support.lock_server import lock_server

BOOT = "boot-1"
LIFE = (1, 2)


class Told:
    """A machine, and everything that it has asked for, in order."""

    def __init__(self, started: e.Started) -> None:
        self.machine = Machine(e.Config(server_incarnation="s", boot_id=BOOT))
        self.effects: list[e.Effect] = []
        self.processes = 0
        self.feed(started)

    def feed(self, event: e.Event) -> None:
        for effect in self.machine.handle(event, e.Time(1.0, 1.0)):
            self.effects.append(effect)
            if isinstance(effect, e.Persist):
                self.feed(e.Persisted(effect.seq))

    def hears(self, conn: int, message: m.ClientMessage) -> None:
        self.processes += 1
        peers: tuple[e.Peer, ...] = ()
        if isinstance(message, m.Register | m.Join):
            peers = (e.Peer(self.processes, f"pidfs:{self.processes}", self.processes),)
        self.feed(e.Received(conn, message, peers, life_held=True, secret="s"))

    def registers(self, conn: int, claims: dict[m.LockName, int]) -> None:
        self.hears(conn, m.Register(protocol=1, engine_id="a", incarnation="0" * 8, life=LIFE, pid=conn, claims=claims))

    def joins(self, conn: int) -> None:
        self.hears(conn, m.Join(protocol=1, engine_id="a", incarnation="0" * 8, life=LIFE, pid=conn))

    @property
    def written(self) -> list[Record]:
        return [x.record for x in self.effects if isinstance(x, e.Persist)]

    def said(self, conn: int) -> list[str]:
        return [type(x.message).__name__ for x in self.effects if isinstance(x, e.Send) and x.conn == conn]


def free(token: int = 10) -> e.Started:
    return e.Started(Record(Processes(BOOT), token))


def test_the_main_process_has_a_copy_before_a_join_is_acknowledged() -> None:
    told = Told(free())
    told.registers(1, {})
    told.joins(2)
    sent = [(x.conn, type(x.message).__name__) for x in told.effects if isinstance(x, e.Send)]
    assert sent.index((1, "Keep")) < sent.index((2, "Welcome"))


def test_no_process_follows_in_a_claimant_of_what_has_ended() -> None:
    told = Told(free(token=10))
    told.registers(1, {ACTIVE: 5})
    assert told.said(1) == ["Refused"]
    told.joins(2)
    assert told.said(2) == ["Refused"]


def test_a_record_that_is_written_for_the_permit_does_not_make_a_missing_file_look_like_a_free_lock() -> None:
    told = Told(e.Started(None))
    told.registers(1, {INIT: 0})
    record = [x.record for x in told.effects if isinstance(x, e.Persist)][-1]
    assert INIT in record.permits and record.active is None
    successor = Told(e.Started(record))
    assert successor.machine.succession.state is State.RECOVERING
    successor.hears(1, m.Register(protocol=1, engine_id="b", incarnation="1" * 8, life=LIFE, pid=1))
    successor.hears(1, m.Acquire(lock=ACTIVE))
    assert "Granted" not in successor.said(1)


def told_of_a_holder() -> Told:
    """An older file, and a waiter that kept no pidfd of the newer holder. Something else is written then."""
    told = Told(free(token=10))
    told.hears(1, m.Register(protocol=1, engine_id="b", incarnation="1" * 8, life=LIFE, pid=1, claims={INIT: 0}))
    told.hears(1, m.HandBack(mark=12, tree=f"a.{'0' * 8}", numbers=[]))
    told.hears(1, m.Release(lock=INIT))
    return told


def test_a_holder_that_was_only_heard_of_is_told_when_the_file_knows_its_processes() -> None:
    """Seed 194890: it was told at once, and no server could have read the file."""
    told = told_of_a_holder()
    first = told.written[-1]
    assert decode(encode(first)) == first and first.holder is not None and first.holder.members == []
    told.registers(2, {ACTIVE: 12})
    *_, write, welcome = [
        x for x in told.effects if isinstance(x, e.Persist) or (isinstance(x, e.Send) and x.conn == 2)
    ]
    assert isinstance(write, e.Persist) and isinstance(welcome, e.Send) and told.said(2) == ["Welcome"]
    holder = write.record.holder
    assert holder is not None and [one.pid for one in holder.members] == [told.processes]


def test_of_whom_no_process_is_known_a_free_life_lock_proves_nothing() -> None:
    told = Told(e.Started(told_of_a_holder().written[-1]))
    told.hears(1, m.Register(protocol=1, engine_id="b", incarnation="1" * 8, life=LIFE, pid=1))
    told.hears(1, m.Acquire(lock=ACTIVE))
    told.feed(e.LifeProbed(f"a.{'0' * 8}", held=False))
    assert told.machine.succession.state is State.RECOVERING
    assert "none of its processes is known" in str(told.machine.status.fencing)
    told.registers(2, {ACTIVE: 12})
    assert told.said(2) == ["Welcome"] and told.written[-1].holder is not None and told.written[-1].holder.members


def test_what_a_waiter_tells_of_a_newer_holder_is_written_at_once() -> None:
    """Seed 186668: nothing was, and the next server heard of that holder from no waiter."""
    told = Told(free(token=10))
    told.hears(1, m.Register(protocol=1, engine_id="b", incarnation="1" * 8, life=LIFE, pid=1))
    told.hears(1, m.HandBack(mark=12, tree=f"a.{'0' * 8}", numbers=[]))
    assert told.written[-1].active is not None and told.written[-1].active.token == 12
    number = len(told.written)
    told.hears(1, m.HandBack(mark=12, tree=f"a.{'0' * 8}", numbers=[]))
    assert len(told.written) == number, "and once"


def test_so_is_a_process_of_the_holder_that_the_file_does_not_name() -> None:
    harness = Harness().start()
    holder, next_one = harness.holder(), harness.waiter()
    older = harness.file
    worker = holder.join()
    harness.crash().file = older
    harness.start()
    next_one.register().hand_back(holder)
    assert [member.pid for member in harness.members_on_disk] == [holder.main.pid, worker.pid]


def test_a_worker_that_comes_while_its_engine_is_fenced_is_waited_for() -> None:
    """Seed 301411: it was sent away, and its pidfd with it; the next engine was granted while it died."""
    harness = Harness().start()
    holder, next_one = harness.holder(), harness.waiter()
    worker = holder.fork()  # it had joined a server before this one
    harness.unkillable.add(worker)
    harness.dies(holder.main)
    harness.hangs_up(holder.main)
    holder.join(worker)
    assert [member.pid for member in harness.members_on_disk] == [holder.main.pid, worker.pid]
    harness.pidfd_readable(holder.main)
    holder.join(worker)  # it tries again
    worker.locks.clear()  # a dying process has its memory a little longer than its life lock
    harness.advance(60)
    assert not next_one.holds and len(harness.members_on_disk) == 2
    harness.kill(worker)
    assert next_one.holds


def test_waiters_keep_a_copy_of_such_a_worker_for_the_next_server() -> None:
    """Found with real processes: it was in the file, no client had a copy of its pidfd, and a server in another PID
    namespace (a container that was restarted) could never prove its end.
    """
    harness = Harness().start()
    holder, next_one = harness.holder(), harness.waiter()
    left = holder.fork()  # it never joins, and keeps the life lock
    harness.kill(holder.main)
    worker = holder.join()
    assert [member.pid for member in harness.members_on_disk] == [holder.main.pid, worker.pid]
    harness.crash()
    harness.kill(worker)
    harness.kill(left)
    harness.start()
    next_one.register().acquire().hand_back(holder)
    assert next_one.holds


def test_a_new_server_looks_who_may_have_the_permit() -> None:
    """Seed 210487: an older file was put back, and the permit was granted to two."""
    harness = Harness().start()
    holder = harness.holder()
    holder.says(m.Serving(url="http://a"))
    older, first = harness.file, harness.engine("b").register()
    first.says(m.Acquire(lock=INIT))
    assert first.heard(m.Granted)
    harness.crash().file = older
    harness.start()
    holder.register().says(m.Serving(url="http://a"))
    second = harness.engine("c").register()
    second.says(m.Acquire(lock=INIT))
    assert not second.heard(m.Granted) and "may come back" in str(harness.status)
    first.register(claims={INIT: 0})
    harness.advance(60)
    assert not second.heard(m.Granted)
    harness.kill_tree(first)
    assert second.heard(m.Granted)


def test_a_process_that_does_not_come_keeps_the_permit_from_no_engine_after_the_window() -> None:
    harness = Harness().start()
    holder = harness.holder()
    holder.says(m.Serving(url="http://a"))
    orphan = harness.engine("b").join()  # of a standby whose main process doesn't come
    assert orphan.alive
    harness.restart()
    holder.register().says(m.Serving(url="http://a"))
    harness.engines[-1].join(orphan)
    second = harness.engine("c").register()
    second.says(m.Acquire(lock=INIT))
    harness.advance(harness.machine.config.window_s / 2)
    assert not second.heard(m.Granted)
    harness.advance(harness.machine.config.window_s)
    assert second.heard(m.Granted)


def test_a_file_that_was_kept_aside_stays_the_last_word_across_a_further_crash(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "holder.json").write_text('{"torn')
    for _ in range(2):
        with lock_server(run_dir), Observer(run_dir) as observer:
            status = observer.ask(m.AskStatus(), m.Status)
            assert any("can't be read" in alarm for alarm in status.alarms)
    assert not (run_dir / "holder.json").exists()


def test_a_second_server_on_the_directory_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with lock_server(tmp_path / "run") as first:
        command = [sys.executable, "-m", "lockserver", "--run-dir", str(tmp_path / "run"), "--memory", "none"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert second.returncode == 1 and f"process {first.pid}" in second.stderr and "Traceback" not in second.stderr
