"""The commands as a person meets them: help with examples, a line for every mistake, Ctrl-C without a traceback."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine_shim import __main__ as shim_command
from engine_shim.cli import failover
from sidecar.terminal.extras import how_to_get
from tests.engine.kinds import TOY
from tests.engine.shims import House
from tests.support.processes import ROOT

SHIM = ("--engine", "reference", "--engine-id", "a", "--run-dir", "/run/failover", "--probe", ":0")


def answer(module: str, *words: str) -> tuple[int, str]:
    """Exit code, and all that it said."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def mistake(capsys: pytest.CaptureFixture[str], command: object, *words: str) -> str:
    """What it says of them, in a line; and where help is."""
    with pytest.raises(SystemExit) as ended:
        command.main(list(words))  # type: ignore[attr-defined]
    said = capsys.readouterr()
    assert ended.value.code == 64 and not said.out
    line, help = said.err.splitlines()
    assert re.fullmatch(r"see: (engine-shim|failover( \w+)?) --help", help)
    return line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "the following arguments are required: --engine, --engine-id, --run-dir, --probe"),
        ((*SHIM, "--engine", "nix"), "'nix' is no engine; allowed: reference, vllm, command, or MODULE:FACTORY"),
        ((*SHIM, "--role", "boss"), "'boss' is unknown; allowed: primary, shadow"),
        ((*SHIM, "--restart", "maybe"), "'maybe' is unknown; allowed: in-place, exit"),
        ((*SHIM, "--engine-id", "a/b"), "'a/b' is no name; allowed:"),
        ((*SHIM, "--run-dir", ""), "--run-dir: it is empty; allowed: a directory"),
        ((*SHIM, "--probe", "9000"), "'9000' is no address; allowed: HOST:PORT"),
        ((*SHIM, "--listen", "unix:here"), "a Unix socket needs an absolute path"),
        ((*SHIM, "--listen", "here"), "'here' is no address; allowed: unix:PATH, or HOST:PORT"),
        ((*SHIM, "--preset", "tiny"), "unknown here: --preset; the engine's own go behind --"),
        ((*SHIM, "tiny"), "unknown here: tiny; the engine's own go behind --"),
        *(
            ((*SHIM, flag, value), f"{flag}: '{value}' is no time in seconds")
            for flag in ("--waking-timeout-s", "--init-timeout-s", "--stall-s", "--drain-s")
            for value in ("soon", "0", "-1", "inf", "nan")
        ),
    ],
)
def test_a_mistake_in_engine_shims_settings_is_answered_with_a_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    assert expected in mistake(capsys, shim_command, *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "the following arguments are required: up|models|status|doctor|down|kill"),
        (("sit",), "invalid choice: 'sit'"),
        (("up", "--preset", "tiny"), "unknown here: --preset; the engine's own go behind --"),
        (("up", "--run-dir", ""), "--run-dir: it is empty"),
        (("up", "--devices", ""), "'' is no device; allowed: host:NAME"),
        (("up", "--devices", "gpu0"), "'gpu0' is no device; allowed: host:NAME"),
        (("up", "--devices", "host:0,host:0"), "names a device twice"),
        (("up", "--engine", "nonsense"), "'nonsense' is no engine"),
        (("up", "--devices", "none"), "the engine reference has its weights in GMS, on a device: --devices host:0"),
        (("up", "--engine", "vllm", "--devices", "none"), "the engine vllm has its weights in GMS"),
        (("up", "--devices", "cuda"), "the reference engine computes in host memory: --devices host:0"),
        (("up", "--devices", "host:0,cuda"), "can't be mixed"),
        (("up", "--capacity", "much"), "'much' is no size"),
        (("up", "--capacity", "4Gi"), "'4Gi' is no size (is 4GiB meant?)"),
        (("up", "--capacity", "0"), "'0' is no host device's size"),
        (("up", "--capacity", "4GB"), "multiples of 2MiB such as 512MiB or 4GiB (the next smaller one is 3814MiB)"),
        (("up", "--engine-ids", "a"), "isn't two names such as a,b"),
        (("up", "--engine-ids", "a,a"), "isn't two names such as a,b"),
        (("up", "--engine-ids", "a,up"), "isn't two names such as a,b"),
        (("up", "--stall-s", "0"), "'0' is no time in seconds"),
        (("up", "extra"), "unknown here: extra; the engine's own go behind --"),
        (("up", "--engine", "vllm", "--", "MODEL", "--port=80"), "--port behind --: clients come to the door"),
        (("status", "--jsn"), "unknown here: --jsn"),
        (("down", "--timeout-s", "x"), "'x' is no time in seconds"),
        (("kill",), "the following arguments are required: active|ENGINE_ID"),
        (("kill", "a/b"), "'a/b' is no name"),
    ],
)
def test_a_mistake_in_failovers_settings_is_answered_with_a_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    assert expected in mistake(capsys, failover, *words)


@pytest.mark.parametrize(
    "words", [("up", "--bogus"), ("up", "extra"), ("up", "--devices", "none"), ("down", "--bogus")]
)
def test_a_mistake_of_a_sub_command_points_to_its_own_help(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit):
        failover.main(list(words))
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == f"see: failover {words[0]} --help"
    assert "did you mean --engine?" not in said, "the hint that arguments go behind -- is no word that was typed"


@pytest.mark.parametrize("command", ["up", "status", "down", "kill", "top"])
def test_every_help_of_failover_says_what_its_exit_codes_mean(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        failover.main([command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Exit code 0: .*; 1[:,] ", said)
    assert command != "down" or "1: it hasn't in time, or no failover up runs here" in said


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("FAILOVER_STALL_S", "abc", "'abc' is no time"), ("ENGINE_ROLE", "king", "'king' is unknown")],
)
def test_a_mistake_in_the_environment_is_named_with_its_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    assert f"from the environment ({name}): {expected}" in mistake(capsys, shim_command, *SHIM)


def test_what_an_engine_shim_is_told_and_what_it_takes_unless_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_ID", "x")
    monkeypatch.setenv("ENGINE_ROLE", "shadow")
    place = ["--engine", "vllm", "--run-dir", "/r", "--probe", ":9"]
    options = shim_command.parser().parse_args([*place, "--", "--seed", "7"])
    assert (options.engine_id, options.role, options.arguments) == ("x", "shadow", ["--seed", "7"])
    assert (options.engine, options.restart, options.listen) == ("vllm", "in-place", None)
    assert (options.waking_timeout_s, options.init_timeout_s, options.stall_s, options.drain_s) == (60, 7200, 60, 20)
    flags = ["--engine-id", "y", "--role", "primary", "--listen", "unix:/x.sock", "--restart", "exit"]
    options = shim_command.parser().parse_args([*place, *flags])
    assert (options.engine_id, options.role, options.listen.path) == ("y", "primary", "/x.sock")
    assert options.restart == "exit"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--probe", "nowhere.invalid:0"), "the probes can't listen on nowhere.invalid:0: "),
        (("--run-dir", "/etc/hostname"), "/etc/hostname/engine can't be used: Not a directory; something on the way"),
    ],
)
def test_what_the_machine_refuses_the_shim_is_said_in_a_line(words: tuple[str, ...], expected: str) -> None:
    code, said = answer("engine_shim", *SHIM, "--run-dir", "/tmp", "--probe", "127.0.0.1:0", *words)
    assert code == 1 and said.startswith(f"engine-shim: {expected}") and len(said.splitlines()) == 1


def test_who_has_the_port_of_the_probes_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        where = f"127.0.0.1:{sock.getsockname()[1]}"
        code, said = answer("engine_shim", *SHIM, "--run-dir", "/tmp", "--probe", where)
    assert code == 1
    assert f"can't listen on {where}: Address already in use by process {os.getpid()} (" in said


def test_what_the_engine_refuses_is_refused_before_anything_starts(tmp_path: Path) -> None:
    code, said = answer("engine_shim.cli.failover", "up", "--run-dir", str(tmp_path / "run"), "--", "--presett", "tiny")
    assert code == 64 and "unrecognized arguments: --presett tiny" in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_ctrl_c_while_failover_is_loaded_just_ends_it() -> None:
    """Which takes half a second and more; without it there would be a traceback of whatever is being loaded."""
    program = (
        "import signal, sys; sys.argv = ['/usr/bin/failover']; import engine_shim.cli.failover; "
        "sys.exit(signal.getsignal(signal.SIGINT) is not signal.SIG_DFL)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_disk_without_room_for_the_manifests_is_one_sentence(tmp_path: Path) -> None:
    small = (
        "import resource, sys; from engine_shim.cli.failover import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", small, "k8s", "manifests", str(tmp_path / "here")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    sentence = rf"failover: {re.escape(str(tmp_path))}/here\S* can't be written: File too large\n"
    assert done.returncode == 1 and re.fullmatch(sentence, done.stderr), done.stderr


def test_failover_up_in_a_file_says_so() -> None:
    code, said = answer("engine_shim.cli.failover", "up", "--run-dir", "/etc/hostname")
    assert code == 1 and said == "failover: /etc/hostname can't be used: it is no directory; give another --run-dir\n"


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("json:nothing", "the engine json:nothing can't be loaded: json has no nothing"),
        ("os:path", "the engine os:path can't be loaded: os can't be called for its path"),
        ("nomodule:X", "the engine nomodule:X can't be loaded: No module named 'nomodule'"),
    ],
)
def test_an_engine_that_isnt_one_is_refused_with_a_sentence(tmp_path: Path, engine: str, expected: str) -> None:
    place = ("--engine-id", "a", "--run-dir", str(tmp_path), "--probe", "127.0.0.1:0")
    code, said = answer("engine_shim", *place, "--engine", engine)
    assert code == 64 and f"engine: {expected}" in said and "Traceback" not in said


@pytest.mark.chaos
def test_status_for_programs_has_the_lock_and_every_engine(house: House) -> None:
    a, _ = house.pair(TOY)
    code, said = answer(
        "engine_shim.cli.failover", "status", "--json", "--door", "none", "--run-dir", str(house.run_dir)
    )
    found = json.loads(said)
    fields = {"run_dir", "up", "lock", "lock_why", "gms", "engines", "door", "starting", "ending", "last_served"}
    fields |= {"no_room", "refused", "of_many", "serving", "redundant", "redundancy"}
    assert code == 0 and set(found) == fields and found["serving"] == "a"
    assert found["redundant"] and found["redundancy"] == "yes: b would take over"
    assert [(engine["engine_id"], engine["state"]) for engine in found["engines"]] == [
        ("a", "Active"),
        ("b", "Standby"),
    ]
    assert found["lock"]["holder"]["engine_id"] == "a" and found["engines"][0]["url"] == a.state()["url"]


@pytest.mark.parametrize(
    ("package", "words", "way"),
    [
        ("uvloop", (), how_to_get("gateway")),
        ("numpy", ("--listen", "none"), how_to_get("reference")),
        ("pynvml", ("--engine", "mine:make", "--devices", "cuda"), how_to_get("cuda")),
        ("vllm", ("--engine", "vllm"), "install gpu-failover into the one that has it"),
    ],
)
def test_what_a_pair_lacks_is_said_before_anything_starts(
    package: str,
    words: tuple[str, ...],
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as end:
        failover.main(["up", "--run-dir", str(tmp_path / "run"), *words])
    said = capsys.readouterr().err
    assert end.value.code == 64 and package.lower() in said.lower() and way in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [("models", "--json", "status"), ("models", "status", "--json")])
def test_a_flag_counts_on_either_side_of_status(words: tuple[str, ...]) -> None:
    assert failover.parser().parse_args(words).json
