"""What a person with a pager meets: each incident is told by `failover status`, or by an alert, by itself."""

import contextlib
import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from engine_shim.cli import pair_look
from engine_shim.cli.failover import main
from sidecar.kernel import process_tree
from tests.engine.kinds import TOY
from tests.engine.shims import House, Program, Shim
from tests.support import tmpfs
from tests.support.ports import free_port
from tests.support.processes import Process
from tests.support.prometheus import NO_PROMTOOL, PROMTOOL, Samples, not_as_expected, scrape
from tests.support.waiting import until

chaos = pytest.mark.chaos


class Pager:
    """A pair as a pod has it: no `failover up` tells where the door is, and each part has a port for Prometheus."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.house = house
        self.capsys = capsys
        self.port = free_port()
        self.ports = {"gateway": self.port}
        self.moments: list[tuple[int, Samples]] = []
        monkeypatch.setattr(pair_look, "DOOR", f"http://127.0.0.1:{self.port}")

    def door(self, run_dir: Path, *more: str) -> Program:
        listen = ("--listen", f"127.0.0.1:{self.port}")
        return self._start("door", "gateway", "--run-dir", str(run_dir), *listen, *more)

    def pod(self) -> tuple[Shim, Shim]:
        """`a` serves, `b` is ready, GMS has a device, the door answers; and so it is for twenty minutes."""
        house, devices = self.house, ("--devices", "host:0", "--capacity", "64MiB")
        house.start_lock(*self._metrics("lockserver"))
        house.gms = self._start("gms", "gms", "--run-dir", str(house.run_dir), *devices, *self._metrics("gms"))
        a, b = house.pair(TOY)
        self.ports |= {"engine-a": a.port(), "engine-b": b.port()}
        self.door(house.run_dir, "--restart", "in-place")
        self.until_whole()
        self.goes_on(20 * 60)
        return a, b

    def _start(self, name: str, *command: str) -> Program:
        program = Program(self.house, name, *command)
        self.house.add(program)
        return program

    def _metrics(self, container: str) -> tuple[str, str]:
        self.ports[container] = free_port()
        return "--metrics", f"127.0.0.1:{self.ports[container]}"

    def status(self, *words: str) -> tuple[int, str]:
        return self._said("status", *words)

    def says_how_it_ended(self, engine_id: str, deaths: int) -> bool:
        """In JSON: it may be ready again before the next look."""
        seen = {one["engine_id"]: one for one in json.loads(self.status("--json")[1])["engines"]}[engine_id]
        return bool(seen["deaths"] == deaths and seen["last_end"])

    def doctor(self, *words: str) -> tuple[int, str]:
        return self._said("doctor", *words)

    def _said(self, command: str, *words: str) -> tuple[int, str]:
        self.capsys.readouterr()
        code = main([command, "--run-dir", str(self.house.run_dir), *words])
        return code, self.capsys.readouterr().out

    def until_whole(self) -> None:
        until(lambda: self.status()[0] == 0 and "redundancy     yes" in self.status()[1], "the pair is whole")

    def goes_on(self, for_s: int) -> None:
        """What the parts say now they say for so long."""
        self.moments.append((for_s, scrape(self.ports)))

    def fires(self, *alerts: str) -> None:
        """These alerts, and no other."""
        if PROMTOOL is None:
            pytest.skip(f"what status says was looked at, and no alert: {NO_PROMTOOL}")
        assert not_as_expected(self.house.directory, self.moments, alerts) == ""


@pytest.fixture
def pager(house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pager:
    return Pager(house, monkeypatch, capsys)


@chaos
def test_a_door_that_no_failover_up_tells_of_is_asked_and_one_that_is_away_is_an_alarm(
    house: House, pager: Pager
) -> None:
    house.pair(TOY)
    code, said = pager.status()
    assert code == 1 and "redundancy     yes: b would take over" in said
    assert (
        f"door           http://127.0.0.1:{pager.port}/v1  (doesn't answer: no program listens there; --door " in said
    )
    assert "alarm          the door doesn't answer: clients reach no engine through it" in said
    assert pager.status("--door", "none")[0] == 0, "the engines' own sockets are for clients, then"
    other = pager.door(house.directory)
    until(
        lambda: f"a door of other pairs listens there ({house.directory})" in pager.status()[1], "it isn't this one's"
    )
    assert pager.status()[0] == 1
    other.kill()
    until(lambda: other.dead, "it has ended")
    own = pager.door(house.run_dir)
    until(lambda: pager.status()[0] == 0, "clients reach an engine")
    assert f"door           http://127.0.0.1:{pager.port}/v1  (answers)\n" in pager.status()[1]
    own.signal(signal.SIGSTOP)
    code, said = pager.status()
    assert code == 1 and f"(doesn't answer: says nothing for 2 s: is process {own.pid} (" in said


@chaos
def test_the_doctor_looks_at_each_part_of_the_pair_and_what_cant_be_asked_is_said(house: House, pager: Pager) -> None:
    _, b = pager.pod()
    code, said = pager.doctor()
    assert code == 0, said
    machine = ("kernel", "seccomp", "clock", "inotify", "space")
    for part in (*machine, "server", "gms host:0", "door", "engine a", "engine b", "redundancy"):
        assert f"\nok    {part} " in f"\n{said}", said
    b.signal(signal.SIGSTOP)
    code, said = pager.status()
    assert code == 2 and "redundancy     unknown: b's shim doesn't answer" in said
    code, said = pager.doctor()
    assert code == 1 and "\nFAIL  engine b " in said


# -- five incidents ----------------------------------------------------------------------------------------------------


@chaos
@pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)
def test_engines_are_killed(house: House, pager: Pager) -> None:
    a, b = pager.pod()
    for deaths in (1, 2, 3):
        b.main().kill()
        until(partial(pager.says_how_it_ended, "b", deaths), "status says that it ended, and how")
        pager.until_whole()
        pager.goes_on(5 * 60)
    a.main().kill()
    pager.until_whole()
    pager.goes_on(60)
    pager.fires("FailoverEngineKeepsEnding warning engine-b", "FailoverHappened info lockserver")


@chaos
def test_no_engine_ever_gets_through_its_start(house: House, pager: Pager) -> None:
    (house.faults("a") / "fail_init").touch()
    house.start_lock(*pager._metrics("lockserver"))
    a = house.shim(TOY, "a")

    def ended(times: int) -> bool:
        return int(a.state()["deaths"]) >= times

    pager.ports = {"lockserver": pager.ports["lockserver"], "engine-a": a.port()}
    for deaths in range(3):
        until(partial(ended, deaths), "it ends again")
        pager.goes_on(5 * 60)
    code, said = pager.status("--door", "none")
    assert code == 1 and "none serves    the lock server knows of none that did. Next: a " in said
    assert "a fault in init" in said
    pager.fires("FailoverNoEngineServes critical")


@chaos
def test_the_lock_server_is_stopped(house: House, pager: Pager) -> None:
    pager.pod()
    assert house.lock is not None
    house.lock.signal(signal.SIGSTOP)
    code, said = pager.status()
    assert code == 2 and "alarm          no lock server answers, and without one no engine takes over" in said
    pager.goes_on(90)
    pager.fires("FailoverServerAway warning lockserver")


@chaos
def test_the_run_directory_is_full(house: House, pager: Pager) -> None:
    with tmpfs.mounted(house.run_dir, "size=24m,mode=0700"):
        pager.pod()
        with open(house.run_dir / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(1 << 16))
        assert os.statvfs(house.run_dir).f_bavail == 0
        pager.goes_on(90)
        code, said = pager.status()
        assert code == 0 and "alarm          the run directory has 0 bytes free: make room in " in said
        code, said = pager.doctor()
        assert code == 1 and "FAIL  space " in said
        pager.fires("FailoverRunDirFull warning lockserver")


@chaos
def test_a_device_process_of_gms_is_stopped(house: House, pager: Pager) -> None:
    pager.pod()
    assert house.gms is not None
    (process,) = [Process(pid) for pid in process_tree.descendants(house.gms.pid)]
    process.signal(signal.SIGSTOP)
    code, said = pager.status()
    assert code == 2 and "alarm          GMS of host:0 doesn't answer: no engine wakes without it" in said
    code, said = pager.doctor()
    assert code == 1 and "\nFAIL  gms host:0 " in said
    pager.goes_on(90)
    pager.fires("FailoverServerAway warning gms")


@chaos
@pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)
def test_the_door_ends_again_and_again(house: House, pager: Pager) -> None:
    pager.pod()
    door = next(one for one in house.programs if one.log.name == "door.log")
    for _ in range(3):
        (server,) = [Process(pid) for pid in process_tree.descendants(door.pid)]
        server.kill()
        pager.until_whole()
        pager.goes_on(60)
    pager.fires("FailoverDoorKeepsEnding critical gateway")


@chaos
def test_the_door_ends_and_kubelet_waits_before_it_starts_it_again(house: House, pager: Pager) -> None:
    pager.pod()
    door = next(one for one in house.programs if one.log.name == "door.log")
    door.signal(signal.SIGTERM)
    door.code()
    code, said = pager.status()
    assert code == 1 and "redundancy     yes" in said
    assert "alarm          the door doesn't answer: clients reach no engine through it" in said
    code, said = pager.doctor()
    assert code == 1 and "\nFAIL  door " in said
    pager.goes_on(90)
    pager.fires("FailoverDoorAway critical", "FailoverServerAway warning gateway")
