"""Rules that the simulator taught us, as directed tests: it would need many schedules to come to them again."""

from pathlib import Path

from evidence.rules.record import Processes
from lockserver.observer import Observer
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.rules.record import Record, encode
from tests.lockserver.harness import BOOT, Engine, Harness
from tests.support.lock_server import lock_server


def after_a_free_lock() -> Harness:
    """A new server, whose file says that no engine holds, and that token 10 was the newest."""
    harness = Harness()
    harness.file = encode(Record(Processes(BOOT), 10))
    return harness.start(token_floor=0)


def test_the_main_process_has_a_copy_before_a_join_is_acknowledged() -> None:
    harness = after_a_free_lock()
    a = harness.engine("a").register()
    a.join()
    assert [type(x.message) for x in harness.effects if isinstance(x, e.Send)] == [m.Keep, m.Welcome]


def test_no_process_follows_in_a_claimant_of_what_has_ended() -> None:
    a = after_a_free_lock().engine("a").register(claims={ACTIVE: 5})
    assert a.refused and a.join() not in a.numbers


def test_a_record_that_is_written_for_the_permit_does_not_make_a_missing_file_look_like_a_free_lock() -> None:
    harness = Harness().start()
    harness.engine("a").register(claims={INIT: 0})
    assert harness.record is not None and INIT in harness.record.permits and harness.record.active is None
    assert not harness.restart().waiter("b").holds and harness.state == "RECOVERING"


def told_of_a_holder() -> tuple[Harness, Engine]:
    """An older file, and a waiter that kept no pidfd of the newer holder. Something else is written then."""
    harness = after_a_free_lock()
    a, b = harness.engine("a"), harness.engine("b").register(claims={INIT: 0})
    a.token = 12
    b.says(m.HandBack(mark=a.token, tree=a.name, numbers=[]))
    b.says(m.Release(lock=INIT))
    return harness, a


def test_a_holder_that_was_only_heard_of_is_told_when_the_file_knows_its_processes() -> None:
    """Seed 194890: it was told at once, and no server could have read the file."""
    harness, a = told_of_a_holder()
    assert harness.record is not None and harness.record.holder is not None and not harness.members_on_disk
    a.register()  # the harness compares its Welcome with the disk
    assert a.last(m.Welcome) and [member.pid for member in harness.members_on_disk] == [a.main.pid]


def test_of_whom_no_process_is_known_a_free_life_lock_proves_nothing() -> None:
    harness, a = told_of_a_holder()
    a.main.locks.clear()
    assert not harness.restart().waiter("b").holds and harness.state == "RECOVERING"
    assert "none of its processes is known" in harness.waiting_for
    a.main.locks.add(a.name)
    a.register()
    assert a.last(m.Welcome) and harness.members_on_disk


def test_what_a_waiter_tells_of_a_newer_holder_is_written_at_once() -> None:
    """Seed 186668: nothing was, and the next server heard of that holder from no waiter."""
    harness = after_a_free_lock()
    a, b = harness.engine("a"), harness.engine("b").register()
    b.says(m.HandBack(mark=12, tree=a.name, numbers=[]))
    assert harness.tenure.token == 12
    b.says(m.HandBack(mark=12, tree=a.name, numbers=[]))
    assert not [effect for effect in harness.effects if isinstance(effect, e.Persist)], "and once"


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
    first.wants_permit()
    assert first.heard(m.Granted)
    harness.crash().file = older
    harness.start()
    holder.register().says(m.Serving(url="http://a"))
    second = harness.engine("c").register().wants_permit()
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
    second = harness.engine("c").register().wants_permit()
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
