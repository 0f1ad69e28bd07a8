"""What the shim promises, with an engine whose faults the test chooses (`toy.py`)."""

import importlib.util
import re
import select
import shutil
import signal
import socket
import threading

import pytest

from engine_shim.shell import paths
from lockserver.rules import messages as lock_messages
from sidecar.wire.frames import Channel
from sidecar.wire.sockets import connect
from tests.engine.kinds import TOY, Kind, there
from tests.engine.shims import House, Program
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


def test_a_wake_that_hangs_is_ended_at_its_bound_and_the_other_serves(house: House) -> None:
    house.start_lock()
    (house.faults("a") / "hang_wake").touch()
    a = house.shim(TOY, "a", "--waking-timeout-s", "2")
    a.until("Waking")
    assert a.get("/live")[0] == 200 and a.get("/ready")[0] == 503
    b = house.shim(TOY, "b")
    b.until("Active", ready=True)
    assert "the wake took longer than 2 s" in a.said()
    (house.faults("a") / "hang_wake").unlink()
    a.until("Standby", ready=True)


def test_a_standby_that_is_not_well_is_not_ready_and_starts_again(house: House) -> None:
    _, b = house.pair(TOY)
    (house.faults("b") / "unwell").touch()
    b.until("Standby", ready=False)
    until(lambda: (s := house.status()) is not None and not any(w.ready for w in s.waiters), "the lock knows it, too")
    until(lambda: b.state()["starts"] == 2, "it starts again")
    (house.faults("b") / "unwell").unlink()
    b.until("Standby", ready=True)


def test_an_engine_that_burns_processor_without_a_step_is_an_alarm_and_is_ended_later(house: House) -> None:
    a, b = house.pair(TOY, "--stall-s", "2", "--busy-stall-s", "8")
    (house.faults("a") / "burn").touch()
    (house.faults("a") / "stall").touch()
    until(lambda: " alarm shim no_step " in a.said(), "it is an alarm first")
    assert a.state()["deaths"] == 0 and a.state()["ready"]
    b.until("Active", ready=True)
    until(lambda: "no step finished for 8 s, though it used processors" in a.said(), "it says why")
    (house.faults("a") / "stall").unlink()
    a.until("Standby", ready=True)


def test_without_a_lock_server_an_engine_waits_and_says_so_and_the_probes_answer(house: House) -> None:
    a = house.shim(TOY, "a")
    until(lambda: a.state()["processes"] == 1, "its main process is there")
    until(lambda: "engine: waits for a lock server in" in a.said(), "a hint")
    assert a.get("/live")[0] == 200 and a.get("/startup")[0] == 200 and a.get("/ready")[0] == 503
    house.start_lock()
    a.until("Active", starts=1)


def test_the_exit_mode_is_decision_2_to_the_letter(house: House) -> None:
    house.start_lock()
    (house.faults("a") / "hang_init").touch()
    a = house.shim(TOY, "a", "--restart", "exit")
    assert a.get("/live")[0] == 503 and a.get("/startup")[0] == 503
    (house.faults("a") / "hang_init").unlink()
    a.until("Active")
    assert a.get("/live")[0] == a.get("/startup")[0] == a.get("/ready")[0] == 200
    before = a.tree()
    a.main().kill()
    assert a.code() == 1
    for process in before:
        process.wait()


def test_a_switchover_that_is_called_off_has_the_engine_serve_on_at_once_though_its_drain_hangs(house: House) -> None:
    """Called off by the end of the caller that asked for it."""
    a, b = house.pair(TOY)
    url, tree = a.state()["url"], a.state()["incarnation"]
    (house.faults("a") / "hang_drain").touch()
    words = ("--run-dir", str(house.run_dir), "switchover", "--drain-timeout", "3600")
    for _ in range(2):
        asked = Program(house, "switchover", "lockserver.cli.lockctl", *words)
        house.add(asked)
        a.until("Draining")
        until(lambda: house.endpoint() == "", "the endpoint is withdrawn")
        asked.kill()
        a.until("Active", ready=True, url=url)
        house.until_announced(a)
        assert house.served(TOY)
    assert a.state()["incarnation"] == tree and b.state()["state"] == "Standby"
    (house.faults("a") / "hang_drain").unlink()
    asked = Program(house, "switchover", "lockserver.cli.lockctl", *words)
    house.add(asked)
    assert asked.code() == 0, asked.said()
    b.until("Active", ready=True)


def test_a_second_shim_of_one_name_says_so_in_a_line(house: House) -> None:
    a = house.one(TOY)
    second = house.shim(TOY, "a")
    assert second.code() == 1
    last = second.said().splitlines()[-1]
    assert "another engine-shim runs engine a here" in last and str(a.pid) in last
    assert a.state()["deaths"] == 0


@pytest.mark.skipif(len(there()) < 2, reason="there is no reference engine")
def test_what_is_wrong_with_an_engines_arguments_is_how_it_ended(house: House) -> None:
    program = house.shim(Kind("reference", "reference", ("--kv-byts", "1MiB"), "/"), "a")
    assert program.code() == 64
    assert re.search(r"tree_ends .*why=\".*--kv-byts 1MiB", program.said()), program.said()


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_vllm_where_it_isnt_installed_is_refused_with_a_sentence(house: House) -> None:
    program = house.shim(Kind("vllm", "vllm", ("--model", "/x"), "/"), "a")
    assert program.code() == 64 and "vLLM isn't installed in this Python" in program.said()


def test_the_probes_answer_whatever_clients_and_engine_do(house: House) -> None:
    a = house.one(TOY, "--stall-s", "3600")
    a.main().signal(signal.SIGSTOP)
    slow = [socket.create_connection(("127.0.0.1", a.port())) for _ in range(100)]
    slow[0].sendall(b"GET /live HTTP/1.1\r\n")
    assert a.get("/live")[0] == 200
    assert a.get("/nothing")[0] == 404
    for sock in slow:
        sock.close()
    page = a.get("/metrics")
    assert page[0] == 200 and 'failover_engine_state{state="Active"} 1.0' in page[1]
    assert len(a.descriptors()) < 60


def test_rubbish_at_the_shims_door_costs_its_sender_the_connection_and_no_other_anything(house: House) -> None:
    a = house.one(TOY)
    path = house.run_dir / paths.ENGINES / paths.shim_socket("a")
    for rubbish in (b"\xff\xff\xff\xff", b"\0\0\0\4\xc1\xc1\xc1\xc1", b"\0\0\0\1\x80"):
        with connect(path) as sock:
            sock.sendall(rubbish)
            sock.settimeout(20)
            while sock.recv(4096):
                pass
    assert a.state()["deaths"] == 0 and a.state()["state"] == "Active"


def refuse(listener: socket.socket) -> None:
    """A client that wants to look is refused, and one that comes as an engine finds no server."""
    while True:
        try:
            channel = Channel(listener.accept()[0], lock_messages.from_client)
        except OSError:
            return
        select.select([channel.fileno()], [], [])
        if any(isinstance(message, lock_messages.Observe) for message, _ in channel.receive()):
            channel.send(lock_messages.Refused(why="not now"))
        channel.close()


def test_a_refusal_to_look_at_the_lock_is_no_redundancy_is_said_and_passes(house: House) -> None:
    a, _ = house.pair(TOY)
    a.until("Active", redundant=True)
    assert house.lock is not None
    house.lock.kill()
    path = house.run_dir / "lock.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        until(lambda: " alarm shim lock_unseen " in a.said() and "refuses: not now" in a.said(), "it says so")
        a.until("Active", redundant=False)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    path.unlink(missing_ok=True)
    house.start_lock()
    a.until("Active", redundant=True)


def test_where_the_life_files_are_removed_it_goes_by_its_own_processes_and_says_so(house: House) -> None:
    house.start_lock()
    assert house.lock is not None
    a = house.shim(TOY, "a")
    a.until("Active")
    house.lock.signal(signal.SIGSTOP)
    shutil.rmtree(house.run_dir / "life")
    a.main().kill()
    until(lambda: " alarm shim nobody_left " in a.said(), "it says what it goes by")
    until(lambda: a.state()["starts"] >= 2, "and starts again")
    house.lock.signal(signal.SIGCONT)
