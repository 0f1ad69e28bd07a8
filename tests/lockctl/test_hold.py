"""`lockctl hold`: the command runs only under the lock, and never outlives it."""

import os
import pty
import random
import select
import signal
import sys
from pathlib import Path

import pytest

from tests.lockctl.programs import LOCKCTL, House
from tests.support.processes import ROOT, Lines, Program, gone
from tests.support.waiting import until

DEVICE = 64 << 20
SAYS_SIGNALS = (
    "import signal, sys\n"
    "signals = [signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM]\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, signals)\n"
    "print('started', flush=True)\n"
    "while (came := signal.sigwait(signals)) != signal.SIGTERM: print('got', came.name, flush=True)\n"
    "print('got', came.name, flush=True)\n"
    "sys.exit(9)\n"
)
"""A command that says which signals it gets, and ends with 9 at SIGTERM."""


@pytest.fixture
def served(house: House) -> House:
    house.serve()
    house.until(lambda status: status.state == "FREE", "free")
    return house


# -- the command and its exit code ------------------------------------------------------------------------------------


def test_the_command_runs_under_the_lock_and_its_exit_code_is_passed_on(served: House) -> None:
    command = ("sh", "-c", "echo $FAILOVER_TOKEN $FAILOVER_TREE $FAILOVER_RUN_DIR; read line; exit 7")
    program = served.hold("engine-a", command=command)
    token, tree, run_dir = program.out.next().split()
    holder = served.status().holder
    assert holder is not None
    assert (token, tree) == (str(holder.token), f"engine-a.{holder.incarnation}")
    assert run_dir == str(served.run_dir)
    assert program.process.stdin is not None
    program.process.stdin.write(b"end\n")
    program.process.stdin.flush()
    assert program.ends() == 7
    assert f"granted, with token {token}" in program.err.next()
    served.until(lambda status: status.state == "FREE", "released by its end")


def test_what_cant_be_run_is_told_before_the_lock_is_asked_for(house: House, tmp_path: Path) -> None:
    """There isn't even a server."""
    plain = tmp_path / "plain"
    plain.write_text("")
    for command, code, words in (
        ("no-such-command", 127, "no-such-command: there is no such command in PATH"),
        (str(tmp_path / "gone"), 127, "gone: there is no such command"),
        (str(plain), 126, "plain is not executable (chmod +x)"),
        (str(tmp_path), 126, "is a directory"),
    ):
        program = house.hold("engine-a", command=(command,))
        assert program.ends() == code
        assert words in program.err.rest()


SAYS_ITS_SETTINGS = (
    "import resource, signal; "
    "print(resource.getrlimit(resource.RLIMIT_CORE)[0] <= 1, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
)


def test_one_command_after_the_other_has_the_lock_and_its_end_is_told(served: House, tmp_path: Path) -> None:
    for name, lines in (("by-none", "#!/no/such/interpreter\n"), ("by-the-shell", "echo by the shell: $1; exit 3\n")):
        (tmp_path / name).write_text(lines)
        (tmp_path / name).chmod(0o755)
    for command, code, out, err in (
        (("sh", "-c", "kill -KILL $$"), 128 + 9, "", ""),
        (("sh", "-c", "kill -TERM $$"), 128 + 15, "", ""),
        ((str(tmp_path / "by-none"),), 126, "", "the interpreter that it names isn't there"),
        ((str(tmp_path / "by-the-shell"), "word"), 3, "by the shell: word", ""),
        ((sys.executable, "-c", SAYS_ITS_SETTINGS), 0, "True []", ""),
    ):
        program = served.hold("engine-a", command=command)
        assert (program.ends(), program.out.rest()) == (code, out), command
        assert err in program.err.rest(), command
    ignored = served.hold("engine-b", command=("grep", "SigIgn", "/proc/self/status"))
    assert int(ignored.out.next().split()[1], 16) & (1 << signal.SIGPIPE - 1) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--engine-id", "a"),
        ("--", "true"),
        ("--engine-id", ".a", "--", "true"),
        ("--engine-id", "a/b", "--", "true"),
        ("--engine-id", "a", "--needs", "5GiB", "--", "true"),
        ("--engine-id", "a", "--needs", "gpu=much", "--", "true"),
        ("--engine-id", "a", "--needs", "gpu=1", "--needs", "gpu=2", "--", "true"),
        ("--engine-id", "a", "--needs", "gpu=9999999999TiB", "--", "true"),
        ("--engine-id", "a", "--serving", "http://" + 2000 * "x", "--", "true"),
        ("--engine-id", "a", "--timeout-s", "-1", "--", "true"),
        ("--engine-id", "a", "--grace-s", "long", "--", "true"),
        ("--engine-id", "a", "ls", "-l"),
    ],
)
def test_wrong_usage_is_64(house: House, words: tuple[str, ...]) -> None:
    code, out, err = house.ask("hold", *words)
    assert (code, out) == (64, "")
    assert "lockctl hold --help" in err


# -- ends -------------------------------------------------------------------------------------------------------------


def test_the_command_dies_with_lockctl_even_where_no_server_could_kill_it(served: House) -> None:
    holder, command = served.holds("engine-a")
    server = served.status().server_pid
    os.kill(server, signal.SIGSTOP)
    holder.kill()
    until(lambda: gone(command), "the command dies")
    os.kill(server, signal.SIGCONT)
    served.until(lambda status: status.state == "FREE", "released")


LEAVES_CHILDREN = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)  # has none of the command's descriptors
daemon = os.fork()
if daemon == 0:
    os.setsid()
    if os.fork() == 0:
        print("started", child.pid, os.getpid(), flush=True)
        time.sleep(1000)
    os._exit(0)
os.waitpid(daemon, 0)
if sys.argv[1] == "stays":
    time.sleep(1000)
"""


@pytest.mark.parametrize("how", ["it ends", "lockctl is killed", "its guard is killed", "it is told to end"])
def test_what_the_command_leaves_behind_is_killed_before_the_next_one_runs(served: House, how: str) -> None:
    stays = "goes" if how == "it ends" else "stays"
    holder = served.hold("engine-a", command=(sys.executable, "-c", LEAVES_CHILDREN, stays))
    left = served.pidfds([int(pid) for pid in holder.out.with_words("started").split()[1:]])
    second = served.hold("engine-b")
    if how == "lockctl is killed":
        holder.kill()
    elif how == "its guard is killed":
        os.kill(served.guard_of(holder), signal.SIGKILL)
        assert holder.ends() == 128 + 9
    elif how == "it is told to end":
        holder.send(signal.SIGTERM)
    second.out.with_words("started")
    assert all(gone(pidfd) for pidfd in left)


def test_what_cant_be_killed_keeps_the_lock(served: House) -> None:
    """This process stands for one that is stuck, or another user's."""
    holder, _ = served.holds("engine-a")
    second = served.hold("engine-b")
    second.err.with_words("waiting: engine-a holds")
    with served.stray(holder):
        holder.kill()
        second.err.with_words("held by a process that did not join")
        assert served.status().holder is not None
    second.out.with_words("started")


def test_a_lost_lock_kills_the_command(house: House) -> None:
    """The server may presume a silent holder dead; so the holder ends first."""
    server = house.serve("--unsafe-presume-dead", "--window-s", "0.5")
    holder, command = house.holds("engine-a")
    server.kill()
    assert holder.ends() == 70
    until(lambda: gone(command), "the command dies")
    holder.err.with_words("lock lost: the lock server is away, and would soon presume us dead; the command is killed")


def test_signals_are_passed_on(served: House) -> None:
    holder = served.hold("engine-a", command=(sys.executable, "-c", SAYS_SIGNALS))
    holder.out.with_words("started")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
        holder.send(number)
        assert holder.out.next() == f"got {number.name}"
    assert holder.ends() == 9


def test_ctrl_c_at_a_terminal_reaches_the_command_once(served: House) -> None:
    """The terminal sends it to both; passed on it would be there twice, and a second Ctrl-C often means: at once."""
    script = (
        "import signal, sys\n"
        "print('started', flush=True)\n"
        "print('got', signal.sigtimedwait([signal.SIGINT], 30).si_signo, flush=True)\n"
        "print('and then', signal.sigtimedwait([signal.SIGINT, signal.SIGUSR1], 30).si_signo, flush=True)\n"
    )
    mask = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGUSR1])\n"
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["PYTHONPATH"] = str(ROOT)
        words = [*LOCKCTL, "--run-dir", str(served.run_dir), "hold", "--engine-id", "a", "--quiet"]
        os.execv(sys.executable, [*words, "--", sys.executable, "-c", mask + script])
    served.pidfd(pid)
    lines = Lines(terminal)
    lines.with_words("started")
    os.kill(pid, signal.SIGSTOP)  # so that two can't become one on the way
    os.write(terminal, b"\x03")
    lines.with_words(f"got {signal.SIGINT:d}")
    os.kill(pid, signal.SIGUSR1)
    os.kill(pid, signal.SIGCONT)
    lines.with_words(f"and then {signal.SIGUSR1:d}")  # lockctl takes SIGINT first, since its number is lower
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


# -- at any moment ----------------------------------------------------------------------------------------------------

ROUNDS = 40
WITNESS = (
    "import fcntl, os, sys\n"
    "witness = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
    "try: fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    "except BlockingIOError: os.open(sys.argv[1] + '.two', os.O_CREAT)\n"
    "print('started', os.getpid(), flush=True)\n"
    "sys.stdin.read()\n"
)


def test_kill_9_of_any_lockctl_at_any_moment_never_lets_two_commands_run(served: House, tmp_path: Path) -> None:
    """Each command locks the same file; its lock goes with it. One that finds it locked leaves a mark."""
    seed = int(os.environ.get("FAILOVER_HOLD_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"FAILOVER_HOLD_SEED={seed}")
    chance = random.Random(seed)
    witness = str(tmp_path / "witness")

    def start(number: int) -> Program:
        return served.hold(f"engine-{number}", "--quiet", command=(sys.executable, "-IS", "-c", WITNESS, witness))

    programs = [start(number) for number in range(3)]
    for _ in range(ROUNDS):
        victim = chance.randrange(len(programs))
        select.select([], [], [], chance.choice([0, 0.001, 0.02, 0.1]))
        programs[victim].kill()
        programs[victim] = start(victim)
    alive = {program.pid: program for program in programs}
    while alive:
        holder = served.until(lambda s: bool(s.holder and s.holder.pid in alive), "one of those who live holds").holder
        assert holder is not None
        held = alive.pop(holder.pid)
        held.out.with_words("started")
        held.kill()
    assert not Path(witness + ".two").exists()


# -- switchover -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_in_a_switchover_the_command_gets_sigterm_once_the_successor_is_ready(served: House) -> None:
    holder = served.hold("engine-a", command=(sys.executable, "-c", SAYS_SIGNALS))
    holder.out.with_words("started")
    second = served.hold("engine-b")
    second.err.with_words("waiting:")
    assert served.ask("switchover")[0] == 0
    assert holder.out.next() == "got SIGTERM"
    assert holder.ends() == 9
    second.out.with_words("started")


@pytest.mark.slow
def test_a_command_that_does_not_end_is_killed_after_the_grace(served: House) -> None:
    holder = served.hold("engine-a", "--grace-s", "0.1", command=("sh", "-c", "trap '' TERM; echo started; sleep 1000"))
    holder.out.with_words("started")
    second = served.hold("engine-b")
    second.err.with_words("waiting:")
    switchover = served.lockctl("switchover")
    assert holder.ends() == 128 + 9
    switchover.out.with_words("exiting")
    assert switchover.ends() == 0


# -- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_while_it_waits_it_says_what_for(house: House) -> None:
    waiting = house.hold("engine-b")
    assert waiting.err.next() == f"lockctl hold: waiting: no lock server at {house.run_dir}"
    house.serve()
    waiting.out.with_words("started")
    third = house.hold("engine-c")
    holder = house.status().holder
    assert holder is not None
    line = third.err.next()
    assert f"waiting: engine-b holds the lock (process {waiting.pid}, token {holder.token}, granted 20" in line
    assert line.endswith("; we are next")
    fourth = house.hold("engine-d")
    assert fourth.err.next().endswith("; 1 before us")
    third.kill()
    assert fourth.err.next().endswith("; we are next")


@pytest.mark.slow
def test_a_wait_ends_with_a_signal_its_time_or_its_command_and_its_place_is_free(served: House) -> None:
    ran = served.hold("engine-b", "--no-wait", command=("echo", "ran"))
    assert (ran.ends(), ran.out.rest()) == (0, "ran")
    served.holds("engine-a")

    for words, why in (
        (("--no-wait",), "engine-a holds the lock"),
        (("--timeout-s", "3"), "not acquired within 3 s: engine-a holds the lock"),
    ):
        refused = served.hold("engine-b", *words, command=("echo", "ran"))
        assert (refused.ends(), refused.out.rest()) == (75, "")
        assert why in refused.err.rest().splitlines()[-1]
        served.until(lambda status: not status.waiters, "its place in the queue is free")

    waiting = served.hold("engine-b")
    waiting.err.with_words("waiting:")
    waiting.send(signal.SIGINT)
    assert waiting.ends() == -signal.SIGINT
    served.until(lambda status: not status.waiters, "its place in the queue is free")

    waiting = served.hold("engine-b")
    served.until(lambda status: bool(status.waiters), "engine-b waits")
    guard = children(waiting.pid)[0]
    until(lambda: bool(children(guard)), "the command is there")
    os.kill(children(guard)[0], signal.SIGKILL)
    waiting.err.with_words("killed while it waited")
    assert waiting.ends() == 126
    served.until(lambda status: not status.waiters, "its place in the queue is free")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_quiet_says_nothing(served: House) -> None:
    first, command = served.holds("engine-a", "--quiet")
    second = served.hold("engine-b", "--quiet")
    served.until(lambda status: bool(status.waiters), "engine-b waits")
    signal.pidfd_send_signal(command, signal.SIGKILL)
    second.out.with_words("started")
    second.kill()
    assert (first.err.rest(), second.err.rest()) == ("", "")


def test_without_a_server_the_time_to_wait_ends_too(house: House) -> None:
    waiting = house.hold("engine-b", "--timeout-s", "0.2", command=("true",))
    assert waiting.ends() == 75
    assert "not acquired within 0.2 s: no lock server" in waiting.err.rest()


def test_no_wait_without_a_server_is_69(house: House) -> None:
    refused = house.hold("engine-b", "--no-wait", command=("true",))
    assert refused.ends() == 69
    assert f"no lock server at {house.run_dir}" in refused.err.rest()


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def devices(house: House) -> Path:
    """A host device of 64 MiB."""
    directory = house.run_dir.parent / "devices"
    directory.mkdir()
    with open(directory / "0", "wb") as device:
        device.truncate(DEVICE)
    house.serve("--memory", "host", "--host-devices", str(directory))
    return directory


@pytest.mark.slow
def test_a_need_that_can_never_be_met_is_69(house: House, devices: Path) -> None:
    for need, words in (("host:0=65MiB", "and it has"), ("host:9=1MiB", "no device 'host:9' is known here")):
        refused = house.hold("engine-a", "--needs", need, command=("true",))
        assert refused.ends() == 69
        said = refused.err.rest()
        assert "refused: " in said and words in said


@pytest.mark.slow
def test_memory_that_a_process_has_is_waited_for_and_named(house: House, devices: Path) -> None:
    script = (
        "import fcntl, os, struct, sys; fd = os.open(sys.argv[1], os.O_RDWR); "
        "fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 32 << 20, 0)); "
        "print('has it', flush=True); sys.stdin.read()"
    )
    stranger = house.run(sys.executable, "-c", script, str(devices / "0"))
    stranger.out.with_words("has it")
    waiting = house.hold("engine-a", "--needs", "host:0=48MiB")
    waiting.err.with_words("memory: engine-a needs")
    assert house.hold("b", "--needs", "host:0=48MiB", "--no-wait", command=("true",)).ends() == 75
    stranger.kill()
    waiting.out.with_words("started")
    assert house.status().memory == "verified"
