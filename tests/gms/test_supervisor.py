"""`gms`, the command: its children live and die together, and what a person can put right is one line."""

import os
import signal
import socket
from pathlib import Path

import pytest

from gms.__main__ import main
from gms.rules import messages as m
from gms.shell.rundir import directory, socket_path
from tests.gms.command import ended
from tests.gms.container import CAPACITY, SLAB, Container, dead, descriptors, kill
from tests.support.ports import free_port

TWO = "host:0,host:1"


def test_each_device_has_a_server_of_its_own(container: Container) -> None:
    gms = container.serves("--host-memory", "8MiB", devices=TWO)
    pids = {container.server_pid(device) for device in ("host:0", "host:1")}
    assert len(pids) == 2 and gms.pid not in pids
    sockets = [what for fd, what in descriptors(gms.pid).items() if fd > 2 and "devices" in what]
    assert sockets == [], "the command inherits nothing"
    for pid in pids:
        locks = [what for what in descriptors(pid).values() if what.endswith(".lock")]
        assert len(locks) == 1, "its own, and not the supervisor's or another server's"
    container.writer(device="host:1")
    assert (container.status("host:0").state, container.status("host:1").state) == ("EMPTY", "RO")
    for device in ("host:0", "host:1"):
        assert container.status(device).host_memory == 4 << 20, "an equal share, for parked weights"


def test_the_death_of_one_server_ends_all_and_says_which_died_and_how(container: Container) -> None:
    gms = container.serves(devices=TWO)
    killed, other = container.server_pid("host:0"), container.server_pid("host:1")
    kill(killed)
    assert gms.ends() == 1
    said = gms.err.with_words("child_died")
    assert "device=host:0" in said and f"pid={killed}" in said and "SIGKILL" in said
    assert dead(other)


def test_a_signal_ends_it_and_its_servers_in_order_and_the_devices_stay(container: Container) -> None:
    for number, capacity in ((signal.SIGTERM, CAPACITY), (signal.SIGINT, 0)):
        gms = container.serves(devices=TWO, capacity=capacity)
        assert container.status().capacity == CAPACITY
        pids = [container.server_pid(device) for device in ("host:0", "host:1")]
        gms.send(number)
        assert gms.ends() == 0
        assert all(map(dead, pids))
        assert not socket_path(container.run_dir, "host:0").exists()
        assert "child_died" not in gms.err.rest()


def test_a_killed_supervisor_leaves_no_server_and_the_next_one_waits_for_their_end(container: Container) -> None:
    gms = container.serves(devices=TWO)
    for _ in range(2):
        pids = [container.server_pid(device) for device in ("host:0", "host:1")]
        gms.process.kill()
        gms = container.serves(devices=TWO)
        assert all(map(dead, pids))


@pytest.mark.slow
def test_a_server_that_does_not_end_is_killed(container: Container) -> None:
    gms = container.serves()
    pid = container.server_pid()
    os.kill(pid, signal.SIGSTOP)
    gms.send(signal.SIGTERM)
    assert gms.ends() == 0
    assert dead(pid)
    assert "child_killed" in gms.err.rest()


def test_a_second_one_on_the_same_directory_is_refused(container: Container) -> None:
    first = container.serves()
    second = container.gms()
    assert second.ends() == 1
    said = second.err.rest()
    assert f"process {first.pid}" in said and "stop it first" in said and "Traceback" not in said
    assert container.status().state == "EMPTY"


REFUSED = {
    "a directory that can't be made": (("--run-dir", "/proc/nowhere"), "where directories can be made"),
    "a new device without a capacity": (("--devices", "host:new"), "--capacity 4GiB"),
    "more than the filesystem has": (("--devices", "host:0", "--capacity", "1000TiB"), "mount -o remount"),
    "a GPU where there is none": (("--devices", "cuda"), "--devices cuda: "),
    "metrics where they can't be": (
        ("--devices", "host:0", "--capacity", "2MiB", "--metrics", "192.0.2.1:1"),
        "can't listen on 192.0.2.1:1",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_person_can_put_right_is_one_line_with_the_way_out(container: Container, what: str) -> None:
    settings, words = REFUSED[what]
    gms = container.gms(*settings, capacity=0)
    assert gms.ends() == 1
    said = gms.err.rest()
    assert said.startswith("gms: ") and words in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("--devices", "foo"), "'foo' is not a device"),
        (("--devices", "host:../x"), "is not a device"),
        (("--devices", ","), "no device is named"),
        (("--devices", "host:0,host:0"), "host:0 is named twice"),
        (("--run-dir", ""), "it is empty; allowed: a directory such as /run/failover"),
        (("--capacity", "0"), "'0' is no host device's size; allowed: multiples of 2MiB"),
        (("--window-s", "-1"), "is no time"),
        (("--memory-wait-s", "soon"), "is no time"),
        (("--socket-mode", "999"), "is no mode"),
        (("--allow-uid", "root"), "is no list of users"),
        (("--metrics", "here"), "is no address"),
        (("--log-format", "xml"), "allowed: text, json"),
        (("--bogus",), "--bogus"),
    ],
)
def test_a_bad_value_is_one_line_and_64(settings: tuple[str, ...], words: str) -> None:
    done = ended(main, {}, "--run-dir", "/nowhere", "--devices", "host:0", *settings)
    assert done.returncode == 64
    assert words in done.stderr and len(done.stderr.splitlines()) == 2 and "see: gms --help" in done.stderr


def test_help_has_examples_and_every_setting() -> None:
    done = ended(main, {}, "--help")
    assert done.returncode == 0
    text = done.stdout
    for flag in ("--devices", "--capacity", "--window-s", "--memory-wait-s", "--socket-mode", "--metrics"):
        assert flag in text and f"FAILOVER_{flag[2:].replace('-', '_').upper()}" in text
    assert "examples:" in text


def test_a_name_that_is_taken_by_a_foreign_file_is_one_line(container: Container) -> None:
    here = directory(container.run_dir)
    here.parent.mkdir()
    here.write_text("")
    gms = container.gms()
    assert gms.ends() == 1
    assert "can't be used" in gms.err.rest()


def test_metrics_have_every_device_behind_one_port(container: Container) -> None:
    pytest.importorskip("prometheus_client")
    port = free_port()
    container.serves("--metrics", f"127.0.0.1:{port}", devices=TWO)
    container.writer(device="host:1")
    hello = m.Hello(protocol=m.PROTOCOL, engine_id="engine-a", pid=os.getpid(), key="kv", policy="exclusive")
    owner = container.caller(hello)
    claim = m.ClaimPool(digest="a", sizes=[SLAB], table_size=4096, token=7, proven=True, timeout_s=9.0)
    owner.ask(claim, m.PoolOwned)
    assert page(port, "/startup") == "host:0, host:1: served\n"
    seen = scrape(port)
    assert seen['failover_gms_region_bytes{device="host:0",key="kv",policy="exclusive"}'] == SLAB
    assert seen['failover_gms_pool_state{device="host:0",key="kv",state="OWNED"}'] == 1
    assert seen['failover_gms_pool_blocks{device="host:0",key="kv"}'] == 0
    assert seen['failover_gms_pool_adoptions_total{device="host:0",key="kv"}'] == 0
    assert seen['failover_gms_pool_drops_total{device="host:0",key="kv",why="second_death"}'] == 0
    assert seen['failover_gms_up{device="host:0"}'] == seen['failover_gms_up{device="host:1"}'] == 1
    assert seen['failover_gms_state{device="host:0",state="EMPTY"}'] == 1
    assert seen['failover_gms_state{device="host:1",state="RO"}'] == 1
    assert seen['failover_gms_state{device="host:1",state="EMPTY"}'] == 0
    assert seen['failover_gms_weights_bytes{device="host:1"}'] == SLAB
    assert seen['failover_gms_free_bytes{device="host:1"}'] == CAPACITY - SLAB
    assert seen['failover_gms_clients{device="host:1",doing="reading"}'] == 1
    assert seen['failover_gms_commits_total{device="host:1"}'] == 1
    assert seen['failover_gms_hand_backs_total{device="host:1"}'] == 0
    assert seen['failover_gms_generation{device="host:1"}'] == container.status("host:1").generation
    incarnation = container.status("host:1").server_incarnation
    assert seen[f'failover_gms_incarnation{{device="host:1",incarnation="{incarnation}"}}'] == 1
    os.kill(container.server_pid("host:0"), signal.SIGSTOP)
    seen = scrape(port)
    assert (seen['failover_gms_up{device="host:0"}'], seen['failover_gms_up{device="host:1"}']) == (0, 1)
    assert 'failover_gms_state{device="host:0",state="EMPTY"}' not in seen
    assert page(port, "/startup").startswith("host:0: "), "a device whose server doesn't answer isn't served"


def page(port: int, path: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        text = b""
        while more := sock.recv(65536):
            text += more
    return text.decode().partition("\r\n\r\n")[2]


def scrape(port: int) -> dict[str, float]:
    lines = page(port, "/metrics").splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_the_directory_of_devices_can_be_chosen_and_its_lines_may_be_json(container: Container, tmp_path: Path) -> None:
    other = container.run_dir.parent / "elsewhere"
    gms = container.gms("--host-devices", str(other), "--log-format", "json")
    assert '"event": "ready"' in gms.err.with_words("ready")
    assert (other / "0").stat().st_size == CAPACITY
