"""Two models on one device that has room for one awake: two locks in one server, one GMS, one ledger. Each sleeps in
place for the other; no two are awake together, and what doesn't fit is said, and costs the other nothing.
"""

import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from engine_shim.engine import Setting
from engine_shim.shell.room import Room
from gms.observer import Observer as GmsObserver
from tests.engine.kinds import REFERENCE, there
from tests.engine.many import Host, Model
from tests.engine.shims import House, Program, Shim
from tests.support.waiting import until
from vram.client import HOST_DIR_VARIABLE, TREE_VARIABLE, Lease, LedgerClient

pytestmark = pytest.mark.skipif(REFERENCE not in there(), reason="the reference engine needs numpy")


@pytest.fixture
def host(house: House, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("FAILOVER_HOST_DEVICES", str(house.devices))
    return Host(house)


def two(host: Host) -> tuple[Model, Model, Shim, Shim]:
    """`chat` is awake, `coder` asleep."""
    chat, coder = Model(host, "chat"), Model(host, "coder")
    a, b = chat.engine(), coder.engine()
    for shim in (a, b):
        shim.until("Standby", ready=True)
    chat.wake()
    chat.serves()
    return chat, coder, a, b


def test_models_take_turns_in_place_and_give_way_to_any_program_that_the_ledger_asks_for(host: Host) -> None:
    chat, coder, a, b = two(host)
    pids = [shim.main().pid for shim in (a, b)]
    for last, following in ((chat, coder), (coder, chat), (chat, coder)):
        assert set(host.leased()) == {last.name}
        following.wake()  # before the last one's sleep: its engine has the lock at once, and waits for the bytes
        last.sleep()
        following.serves()
        last.rests()
    command = (sys.executable, "-c", "import time; time.sleep(1000)")
    where = ("--run-dir", str(host.directory), "hold", "--needs", f"host:0={16 << 20}")
    host.house.add(Program(host.house, "hold", "vram.cli.vramctl", *where, "--", *command))
    coder.rests("the ledger asks for its memory")
    b.until("Standby", ready=True)
    assert [shim.main().pid for shim in (a, b)] == pids
    assert [shim.state()["deaths"] for shim in (a, b)] == [0, 0]


def test_gms_leases_what_weights_take_before_they_are_loaded_and_keeps_no_engine_waiting(host: Host) -> None:
    chat, _, a, b = two(host)
    with GmsObserver(host.directory, "host:0") as observer:
        sizes = {f"gms/host:0/{each.key}": each.bytes for each in observer.status().regions if each.bytes}
    assert host.leased(gms=True) == sizes and len(sizes) == 2
    third = Model(host, "third")
    shim = third.engine()
    until(lambda: "no lease of the host's memory for it" in shim.said(), "its load finds no room")
    chat.serves()
    assert "gms/host:0/third" not in host.leased(gms=True)
    chat.sleep()
    shim.until("Standby", ready=True)
    assert host.leased(gms=True).keys() == {*sizes, "gms/host:0/third"} and not host.leased()
    a.until("Standby", ready=True, deaths=0)
    b.until("Standby", ready=True, deaths=0)


def test_what_does_not_fit_gives_its_lock_back_loudly_and_the_other_serves_on(host: Host) -> None:
    chat = Model(host, "chat")
    chat.engine()
    chat.rests()
    chat.wake()
    chat.serves()
    large = Model(host, "large")
    shim = large.engine("--room-timeout-s", "2", arguments=("--kv-bytes", str(28 << 20)))
    shim.until("Standby", ready=True)
    large.wake()
    large.rests("there is no room for large")
    large.rests("foreign)")  # with figures
    chat.serves()
    shim.until("Standby", ready=True, deaths=0)


def test_what_a_kv_cache_holds_is_parked_until_a_wake_that_has_room(host: Host) -> None:
    chat = Model(host, "chat")
    shim = chat.engine("--kv", "keep", "--room-timeout-s", "1")
    chat.rests()
    chat.wake()
    chat.serves()
    chat.sleep()
    command = (sys.executable, "-c", "import time; time.sleep(1000)")
    where = ("--run-dir", str(host.directory), "hold", "--needs", f"host:0={16 << 20}")
    hold = Program(host.house, "hold", "vram.cli.vramctl", *where, "--", *command)
    host.house.add(hold)
    until(host.leased, "it is held")
    chat.wake()
    chat.rests("there is no room for chat")
    hold.kill()
    assert "adopted=" not in shim.said()
    chat.wake()
    chat.serves()
    status = chat.status()
    assert status is not None and status.holder is not None and status.holder.kept is not None
    assert shim.said().count("dropped=0 why=none") == 1


def test_a_ledger_that_hangs_is_waited_for_and_is_no_want_of_room(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests were refused where a swap came while it hung."""
    tries, answers, reserve = list[str](), list[str](), LedgerClient.reserve

    def counted(self: LedgerClient, name: str, needs: Mapping[str, int], **more: Any) -> Lease:
        tries.append(name)
        return reserve(self, name, needs, **more)

    monkeypatch.setattr(LedgerClient, "reserve", counted)
    for name in (HOST_DIR_VARIABLE, TREE_VARIABLE):  # what its processes join by is this process's no longer than that
        monkeypatch.setenv(name, "")
    setting = Setting(host.directory / "lock" / "chat", "a", "", (), host_dir=host.directory)
    room = Room(setting, lambda why: None, 3.0)
    room.start()
    host.ledger.stop()
    waker = threading.Thread(target=lambda: answers.append(room.take({"host:0": 1 << 20})))
    waker.start()
    until(lambda: len(tries) > 1, "it asks again")
    host.ledger.signal(signal.SIGCONT)
    waker.join()
    assert answers == [""] and room.take({"host:0": 1 << 30}) != ""
    room.give_back()
    room._ledger.close()


def test_a_death_gives_its_bytes_back_by_proof_and_the_ledgers_costs_nothing(host: Host) -> None:
    awake, asleep, a, b = two(host)
    for dies in ("awake", "asleep", "ledger"):
        if dies == "ledger":
            host.ledger.kill()
            awake.serves()
            host.start("vram", "--run-dir", str(host.directory), "--memory", "host", "--settle-s", "0.2")
            until(lambda name=awake.name: host.leased().keys() == {name}, "the lease is back with its holder")  # type: ignore[misc]
        else:
            (a if dies == "awake" else b).main().kill()
            for shim in (a, b):
                until(lambda shim=shim: shim.state()["ready"], f"it is there again: {dies}")  # type: ignore[misc]
        awake.serves()
        asleep.wake()
        awake.sleep()
        asleep.serves()
        assert host.leased().keys() == {asleep.name}, dies
        awake, asleep, a, b = asleep, awake, b, a
