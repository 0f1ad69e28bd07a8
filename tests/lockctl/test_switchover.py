"""`lockctl switchover`, `sleep` and `wake`: done, refused, called off; each with its reason and its exit code."""

import json
import signal
import sys

from tests.lockctl.programs import House
from tests.support.processes import Program


def engine(house: House, engine_id: str, kind: str = "obedient") -> Program:
    """Registered, and granted or in the queue of a lock that is held: a grant counts once it is on disk."""
    program = house.run(sys.executable, "-m", "tests.lockctl.engine", str(house.run_dir), engine_id, kind)
    program.out.with_words("registered")
    house.until(
        lambda s: (
            s.state == "HELD"
            and engine_id in [*(w.engine_id for w in s.waiters), s.holder.engine_id if s.holder else ""]
        ),
        f"{engine_id} has asked, and an engine holds",
    )
    return program


def draining(house: House) -> tuple[Program, Program, Program]:
    """A server, a holder that goes on when a line comes, and the switchover that it drains for."""
    server = house.serve()
    holder = engine(house, "engine-a", "slow")
    engine(house, "engine-b")
    switchover = house.lockctl("switchover", "--drain-timeout", "3600")
    switchover.out.with_words("draining")
    return server, holder, switchover


def test_done_is_0_and_says_each_step_and_json_is_a_step_a_line(house: House) -> None:
    house.serve()
    old = engine(house, "engine-a")
    old.out.with_words("granted")
    engine(house, "engine-b")
    third = engine(house, "engine-c")
    code, out, err = house.ask("switchover", "--to", "engine-c", "--drain-timeout", "30")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["draining", "checking", "exiting", "done"]
    assert out.splitlines()[-1].startswith("done       engine-c holds the lock, with token ")
    assert old.ends() == 0
    assert third.out.with_words("granted")

    code, out, _ = house.ask("switchover", "--json")
    steps = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and all(sorted(step) == ["detail", "done", "ok", "phase"] for step in steps)
    assert [(step["phase"], step["done"], step["ok"]) for step in (steps[0], steps[-1])] == [
        ("draining", False, False),
        ("done", True, True),
    ]


def test_refused_and_called_off_by_the_holder_are_4_with_the_reason_and_it_serves_on(house: House) -> None:
    assert house.ask("switchover")[0] == 2
    house.serve()
    house.until(lambda status: status.state == "FREE", "free")
    code, out, _ = house.ask("switchover")
    assert (code, out) == (4, "refused    there is no holder to take over from: the lock is FREE\n")
    holder = engine(house, "engine-a", "sick")
    engine(house, "engine-b")
    code, out, _ = house.ask("switchover")
    assert code == 4
    assert out.splitlines()[-1] == "aborted    the holder could not drain: RuntimeError: a request is stuck"
    holder.out.with_words("serves on: the holder could not drain")


def test_ctrl_c_calls_it_off_and_the_holder_serves_on(house: House) -> None:
    _, holder, switchover = draining(house)
    switchover.send(signal.SIGINT)
    assert switchover.ends() == 4
    assert switchover.out.rest() == "aborted    it was called off"
    assert "calling it off" in switchover.err.rest()
    holder.out.with_words("serves on: it was called off")
    status = house.status()
    assert (status.state, status.switchover) == ("HELD", None)


def test_ctrl_c_after_the_holder_was_told_to_end_is_too_late_and_says_so(house: House) -> None:
    house.serve()
    holder = engine(house, "engine-a", "stubborn")
    engine(house, "engine-b")
    switchover = house.lockctl("switchover")
    switchover.out.with_words("exiting")
    holder.out.with_words("told to end")
    switchover.send(signal.SIGINT)
    assert "no switchover that could still be called off" in switchover.out.with_words("too late")
    holder.kill()
    switchover.out.with_words("done       engine-b holds the lock")
    assert switchover.ends() == 0


def test_a_second_ctrl_c_leaves(house: House) -> None:
    server, _, switchover = draining(house)
    server.send(signal.SIGSTOP)
    switchover.send(signal.SIGINT)
    switchover.err.with_words("calling it off")
    switchover.send(signal.SIGINT)
    assert switchover.ends() == 130


def test_a_server_that_goes_meanwhile_is_2(house: House) -> None:
    server, _, switchover = draining(house)
    server.kill()
    assert switchover.ends() == 2
    assert "went away" in switchover.err.rest()


def test_sleep_and_wake_say_each_step_and_the_engine_is_granted_again_with_a_newer_token(house: House) -> None:
    server = house.serve()
    holder = engine(house, "engine-a")
    first = int(holder.out.with_words("granted").split()[1])
    code, out, err = house.ask("sleep", "--why", "the batch has it")
    assert (code, err) == (0, "")
    assert [line.split("  ")[0] for line in out.splitlines()] == ["draining", "giving back", "asleep"]
    assert out.splitlines()[-1] == "asleep     the lock is at rest: the batch has it"
    code, out, _ = house.ask("status")
    assert code == 1 and out.startswith("FREE  at rest, and no engine is granted until it is waked: the batch has it")
    assert "`lockctl wake` ends the rest" in out
    server.kill()
    house.serve()
    house.until(lambda status: status.resting and len(status.waiters) == 1, "at rest under the next server")
    code, out, _ = house.ask("wake")
    assert (code, out.split()[0]) == (0, "waked")
    assert int(holder.out.with_words("granted").split()[1]) > first


def test_what_runs_under_hold_is_ended_by_a_sleep_and_the_lock_is_at_rest(house: House) -> None:
    house.serve()
    command, _ = house.holds("engine-a")
    assert house.ask("sleep")[0] == 0
    command.ends()
    house.until(lambda status: status.state == "FREE" and status.resting, "at rest")
