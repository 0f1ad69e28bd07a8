"""The rules of the shim's shell (`shim.py`) and of membership (`membership.py`), with an engine of a few lines
(`bare.py`): real processes, and no lock server but where it says so. `tests/mutants/by_hand.py` takes the rules out.
"""

import os
import resource
import select
import signal
import socket
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from engine_shim import membership
from engine_shim.rules import events as e
from engine_shim.rules import messages as m
from engine_shim.rules.events import Config
from engine_shim.shell import paths, shim_status
from engine_shim.shell.shim import Options, Shim
from lockserver import client as lock_client
from sidecar.kernel import peers
from sidecar.kernel.lifelock import LifeLock
from sidecar.terminal.logs import Log
from sidecar.wire import sockets
from sidecar.wire.frames import Channel
from tests.engine.bare import BEGIN
from tests.engine.shims import NO_ANSWER, House, Program, alone
from tests.support.processes import ROOT, Process
from tests.support.waiting import DEADLINE_S, until

NAP = "import threading; threading.Event().wait()"


class Bare(Program):
    """The shim of engine `a`, and what its engine's program told in files."""

    def __init__(self, house: House, program: str) -> None:
        self.house = house
        house.run_dir.mkdir(exist_ok=True)
        prefix = f"HERE = {str(house.directory)!r} + '/'\n"
        super().__init__(house, "a", "tests.engine.bare", str(house.run_dir), prefix + program)
        house.add(self)

    def state(self) -> dict[str, Any]:
        try:
            return shim_status.ask(self.house.run_dir, "a")
        except shim_status.ObserverError:
            return dict(NO_ANSWER)

    def until(self, what: str, **fields: Any) -> None:
        until(lambda: all(self.state().get(key) == value for key, value in fields.items()), f"{what}: {self.said()}")

    def told(self, name: str) -> str:
        path = self.house.directory / name
        until(path.exists, f"it tells {name}: {self.said()}")
        return path.read_text()

    def process(self, name: str) -> Process:
        return Process(int(self.told(name)))


class Line:
    """A connection to the shim, as a process of its tree would have it."""

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / paths.ENGINES / paths.shim_socket("a")
        self.channel = Channel(sockets.connect(path), m.from_shim)

    def say(self, message: Any) -> None:
        self.channel.send(message)

    def hello(self, start: int = 1, main: bool = False, protocol: int = m.PROTOCOL) -> Any:
        pidfd = peers.own_pidfd()
        self.channel.send(m.Hello(protocol=protocol, start=start, pid=os.getpid(), main=main), [pidfd])
        os.close(pidfd)
        return self.heard()

    def heard(self) -> Any:
        while not self.channel.eof:
            assert select.select([self.channel.fileno()], [], [], DEADLINE_S)[0], "it says nothing"
            for message, _ in self.channel.receive():
                return message
        return None


SERVES = "step('standby'); step('waking', token=3); step('active', token=3, url='unix:/x')\n"


# -- the whole tree ----------------------------------------------------------------------------------------------------


def test_whatever_an_engine_has_started_ends_with_it_and_only_then_comes_the_next(house: House) -> None:
    """A child, one in a session of its own, and one whose parent is gone."""
    orphan = "import subprocess, sys; it = subprocess.Popen([sys.executable, '-c', sys.argv[1]], "
    orphan += "start_new_session=True, stdout=subprocess.DEVNULL); print(it.pid)"
    shim = Bare(
        house,
        "number = os.environ['FAILOVER_START']\nif number == '2': told(HERE + 'main2', os.getpid()); forever()\n"
        "told(HERE + 'near' + number, child(NAP).pid)\n"
        "told(HERE + 'apart' + number, child(NAP, start_new_session=True).pid)\n"
        f"orphan = subprocess.check_output([sys.executable, '-c', {orphan!r}, NAP], text=True)\n"
        "told(HERE + 'orphan' + number, orphan)\ntold(HERE + 'main' + number, os.getpid()); forever()",
    )
    first = [shim.process(f"{name}1") for name in ("main", "near", "apart", "orphan")]
    first[0].kill()
    shim.told("main2")
    assert all(process.dead for process in first)


def test_a_registered_process_that_was_not_started_here_ends_with_the_tree(house: House) -> None:
    shim = Bare(house, "told(HERE + 'main', os.getpid()); forever()")
    main = shim.process("main")
    path = house.run_dir / paths.ENGINES / paths.shim_socket("a")
    program = (
        f"from engine_shim import membership; line = membership._register(main=False); print('in', flush=True); {NAP}"
    )
    environment = {**os.environ, **membership.environment(path, 1, shim.pid)}
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, stdout=subprocess.PIPE
    ) as outsider:
        assert outsider.stdout is not None and outsider.stdout.readline() == b"in\n"
        main.kill()
        assert outsider.wait(DEADLINE_S) == -signal.SIGKILL


def test_the_end_of_any_registered_process_is_seen_and_is_the_end_of_all(house: House) -> None:
    worker = "from engine_shim import membership; line = membership._register(main=False); " + NAP
    shim = Bare(house, f"told(HERE + 'worker', child({worker!r}).pid); told(HERE + 'main', os.getpid()); forever()")
    main, victim = shim.process("main"), shim.process("worker")
    shim.until("both are registered", processes=2)
    victim.signal(signal.SIGKILL)
    main.wait()


def test_a_shim_that_is_killed_takes_its_engine_with_it_and_leaves_no_core(house: House) -> None:
    shim = Bare(house, "import resource; told(HERE + 'core', resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
                "told(HERE + 'main', os.getpid()); forever()")  # fmt: skip
    main = shim.process("main")
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    assert int(shim.told("core")) == (0 if most == 0 else 1)
    shim.kill()
    main.wait()


# -- what it is told, and tells ----------------------------------------------------------------------------------------


def test_the_engine_knows_who_it_is_and_signals_go_to_it(house: House) -> None:
    shim = Bare(
        house,
        "told(HERE + 'who', os.environ['ENGINE_ID'] + ' ' + os.environ['ENGINE_ROLE'])\n"
        "for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):\n"
        "    signal.signal(number, lambda number, _: told(HERE + signal.Signals(number).name, 1))\n"
        + SERVES + "told(HERE + 'ready', 1)\nwhile True: signal.pause()",
    )  # fmt: skip
    assert shim.told("who") == "a shadow"
    shim.told("ready")
    shim.until("it serves", state="Active", url="unix:/x", token=3)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        shim.signal(number)
        shim.told(number.name)
    shim.signal(signal.SIGTERM)
    assert shim.code() == 0


def test_any_process_of_the_tree_may_say_that_no_start_can_help_and_the_shim_ends(house: House) -> None:
    worker = "from engine_shim import membership; line = membership._register(main=False); " + (
        "line.failing('other weights', exit_code=65)"
    )
    shim = Bare(house, f"child({worker!r}); forever()")
    assert shim.code() == 65
    assert 'why="other weights"' in shim.said()


def test_what_a_process_said_before_its_end_is_heard_before_it(tmp_path: Path) -> None:
    """A busy machine may show the shim's loop both at once, the end first."""
    alone(lambda: hears_of_an_end_first(tmp_path), tmp_path / "said")


def hears_of_an_end_first(run_dir: Path) -> None:
    program = BEGIN + "shim.failing('other weights', exit_code=65); os._exit(1)"
    options = Options(Config("a"), run_dir, ("127.0.0.1", 0), (sys.executable, "-c", program))
    shim = Shim(options, Log("shim", stream=StringIO()))
    shim.feed(e.Started())
    while not shim.machine.processes:
        for fd, what in shim.loop.poll():
            shim.loop.handlers[fd](what)
    (number,) = shim.machine.processes
    (pidfd,) = shim.processes.pidfds([number])
    assert select.select([pidfd], [], [], DEADLINE_S)[0]
    shim._on_death(number)
    assert shim.machine.why == "other weights"
    assert shim.code == 65 and shim.loop.stopping


def test_one_hello_of_this_protocol_for_this_start_and_one_main_process_which_alone_says_steps(house: House) -> None:
    shim = Bare(house, "told(HERE + 'main', os.getpid()); forever()")
    shim.told("main")
    for wrong in ({"protocol": 99}, {"start": 7}, {"main": True}):
        line = Line(house.run_dir)
        assert isinstance(line.hello(**wrong), m.Problem), wrong
        assert line.heard() is None, "the connection ends with it"
    line = Line(house.run_dir)
    assert isinstance(line.hello(), m.Welcome) and isinstance(line.hello(), m.Problem)
    stranger, worker = Line(house.run_dir), Line(house.run_dir)
    stranger.say(m.Step(to="standby"))
    assert isinstance(stranger.heard(), m.Problem) and stranger.heard() is None
    assert isinstance(worker.hello(), m.Welcome)
    worker.say(m.Step(to="standby"))
    assert isinstance(worker.heard(), m.Problem)
    another = Line(house.run_dir)
    another.say(m.Failing(why="it isn't mine", exit_code=64))
    assert isinstance(another.heard(), m.Problem)
    assert shim.state()["state"] == "Init" and shim.state()["deaths"] == 0


def test_a_socket_that_was_removed_is_made_again_before_the_next_start(house: House) -> None:
    shim = Bare(house, "told(HERE + os.environ['FAILOVER_START'], os.getpid()); forever()")
    main = shim.process("1")
    path = house.run_dir / paths.ENGINES / paths.shim_socket("a")
    path.unlink()
    main.kill()
    assert not shim.process("2").dead and path.exists()
    assert "made_again files=a.shim.sock" in shim.said()


# -- before the next ---------------------------------------------------------------------------------------------------


def test_while_a_process_holds_a_life_lock_of_this_engine_nothing_is_started(house: House) -> None:
    life = house.run_dir / paths.LIFE
    life.mkdir(parents=True)
    lock = LifeLock.create(life, "a.00000000000000aa")
    shim = Bare(house, "told(HERE + 'main', os.getpid()); forever()")
    until(lambda: shim.state()["state"] == "Init", "the shim is there")
    for _ in range(20):
        assert shim.state()["starts"] == 0
    lock.close()
    shim.told("main")


def test_what_a_killed_engine_leaves_is_gone_before_the_next(house: House) -> None:
    name = f"psm_rules_{os.getpid()}"
    endpoint = paths.endpoint(house.run_dir, "a", 3)
    shim = Bare(
        house,
        f"from multiprocessing import shared_memory\nfirst = os.environ['FAILOVER_START'] == '1'\n"
        f"told(HERE + 'seen' + os.environ['FAILOVER_START'], (os.path.exists('/dev/shm/{name}'), "
        f"os.path.exists({str(endpoint)!r})))\n"
        f"if first:\n    open({str(endpoint)!r}, 'w'); it = os.open('/dev/shm/{name}', os.O_CREAT | os.O_RDWR)\n"
        "told(HERE + 'main', os.getpid()); forever()",
    )
    try:
        main = shim.process("main")
        notes = house.run_dir / paths.ENGINES / paths.shm_files("a")
        until(lambda: notes.exists() and name in notes.read_text(), "it was seen")
        main.kill()
        assert shim.told("seen2") == "(False, False)"
    finally:
        Path(f"/dev/shm/{name}").unlink(missing_ok=True)


# -- presence ----------------------------------------------------------------------------------------------------------

WORKER = "import ctypes, os; from engine_shim import membership; kept = membership.enter(); death = ctypes.c_int(); "
WORKER += (
    "ctypes.CDLL(None).prctl(2, ctypes.byref(death)); its = os.environ['HERE'] + 'in'; "
    "open(its + '.new', 'w').write(str(death.value)); os.rename(its + '.new', its); " + NAP
)
LOCKED = """
from lockserver.client import LockClient
lock = LockClient(os.path.dirname(os.path.dirname(os.environ['FAILOVER_SHIM'])), 'a'); lock.start()
os.environ.update(lock.environment()); os.environ['HERE'] = HERE
"""


def test_a_worker_is_armed_is_known_to_the_shim_and_counts_with_the_lock_before_it_goes_on(house: House) -> None:
    house.start_lock()
    shim = Bare(house, LOCKED + f"told(HERE + 'worker', child({WORKER!r}).pid); forever()")
    worker = shim.process("worker")
    assert shim.told("in") == str(int(signal.SIGKILL))
    shim.until("it is known", processes=2)
    (life,) = os.listdir(house.run_dir / paths.LIFE)
    inode = os.stat(house.run_dir / paths.LIFE / life).st_ino
    descriptors = [f"/proc/{worker.pid}/fd/{fd}" for fd in os.listdir(f"/proc/{worker.pid}/fd")]
    assert any(os.path.exists(fd) and os.stat(fd).st_ino == inode for fd in descriptors), "it holds the life lock"


def test_a_process_whose_parent_ended_before_it_was_armed_ends_itself(house: House) -> None:
    house.start_lock()
    late = "import os, time; shim = int(os.environ['FAILOVER_SHIM_PID'])\n"
    late += "while os.getppid() != shim: time.sleep(0.01)\n" + WORKER
    parent = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]]).pid, flush=True)"
    shim = Bare(
        house,
        LOCKED + f"late = subprocess.Popen([sys.executable, '-c', {parent!r}, {late!r}], stdout=subprocess.PIPE)\n"
        "told(HERE + 'late', late.stdout.readline().decode())\nforever()",
    )
    pid = int(shim.told("late"))
    until(lambda: not os.path.exists(f"/proc/{pid}"), "it ends")
    assert not (house.directory / "in").exists()
    assert shim.state()["deaths"] == 0


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A shim that accepts and says what the test says."""
    doorway = sockets.ServerSocket(tmp_path, "a.shim.sock")
    listener = doorway.open()
    listener.setblocking(True)
    listener.settimeout(DEADLINE_S)
    for name, value in membership.environment(doorway.path, 5, os.getpid()).items():
        monkeypatch.setenv(name, value)
    return listener


def test_a_worker_registers_armed_and_joins_the_lock_only_when_it_is_welcome(door: socket.socket) -> None:
    program = "from engine_shim import membership; from lockserver import client; membership.WELCOME_S = 1000.0\n"
    program += "client.join = lambda: print('joins', flush=True); membership.enter()"
    parent = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {program!r}]).pid, flush=True); {NAP}"
    )
    for welcome in (True, False):
        process = subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        worker = Process(int(process.stdout.readline()))
        channel = Channel(door.accept()[0], m.to_shim)
        received: Any = []
        while not received:
            assert select.select([channel.fileno()], [], [], DEADLINE_S)[0]
            received = list(channel.receive())
        ((message, descriptors),) = received
        for fd in descriptors:
            os.close(fd)
        assert (message.pid, message.start, message.main) == (worker.pid, 5, False)
        assert not select.select([process.stdout], [], [], 0)[0], "it waits"
        if welcome:
            channel.send(m.Welcome(beat_s=1.0))
            assert process.stdout.readline() == b"joins\n"
        process.kill()
        worker.wait()  # armed before it spoke
        assert process.stdout.read() == b""
        process.wait()
        channel.close()


def test_who_is_turned_away_does_not_go_on(door: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_client, "join", lambda: pytest.fail("it went on"))
    monkeypatch.setattr(membership.process_setup, "die_with_parent", lambda parent: None)  # type: ignore[attr-defined]
    pid = os.fork()
    if pid == 0:
        try:
            membership.enter()
        except membership.NotAMember as error:
            os._exit(7 if "start 5 is over" in str(error) else 8)
        finally:
            os._exit(9)
    channel = Channel(door.accept()[0], m.to_shim)
    channel.send(m.Problem(why="start 5 is over"))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    channel.close()


def test_without_a_shim_no_process_enters(monkeypatch: pytest.MonkeyPatch, door: socket.socket, tmp_path: Path) -> None:
    for name, enters in (
        (membership.SHIM_VARIABLE, membership.enter_main),
        (membership.START_VARIABLE, membership.enter_main),
        (membership.SHIM_PID_VARIABLE, membership.arm_main),
    ):
        with monkeypatch.context() as without:
            without.delenv(name)
            with pytest.raises(membership.NotAMember, match=f"{name} is not in the environment"):
                enters()
    monkeypatch.setenv(membership.SHIM_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(membership.NotAMember, match="no engine-shim listens"):
        membership.enter_main()


def test_where_no_engine_of_one_of_many_models_runs_its_pool_is_named(tmp_path: Path) -> None:
    """An engine that a person starts by hand there would be one beside the pool's."""
    of_model = tmp_path / "lock" / "chat"
    of_model.mkdir(parents=True)
    with pytest.raises(shim_status.ObserverError, match="start one"):
        shim_status.ask(of_model, "a")
    (tmp_path / "launcher.sock").touch()
    with pytest.raises(shim_status.ObserverError, match=f"failover models wake chat --run-dir {tmp_path}") as said:
        shim_status.ask(of_model, "a")
    assert "engine-shim --engine-id" not in str(said.value)
