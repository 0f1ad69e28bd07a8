"""Settings: flag before environment before default, and a mistake is one line that a person can act on."""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.terminal import settings
from sidecar.terminal.exit_codes import EX_USAGE
from sidecar.terminal.settings import BadValue, Parser


def parser(environment: Mapping[str, str] | None = None) -> Parser:
    made = Parser(prog="lockserver", environment=environment or {}, epilog="examples:\n  lockserver --window-s 3\n")
    made.setting("--window-s", default=10, parse=settings.seconds, metavar="S", help="how long, 100% at most")
    made.setting("--size", default="4GiB", parse=settings.size_bytes, help="how much")
    made.setting("--policy", default="wait", choices=["wait", "presume"], help="which")
    made.setting("--metrics", parse=settings.host_port, metavar="HOST:PORT", env="METRICS_AT", help="where")
    made.setting("--nothing", default="", parse=str, help="nothing, unless it is said")
    made.switch("--json", help="for machines")
    return made


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], environment: Mapping[str, str]) -> str:
    with pytest.raises(SystemExit) as caught:
        parser(environment).parse_args(arguments)
    assert caught.value.code == EX_USAGE == 64
    first, second, *rest = capsys.readouterr().err.splitlines()
    assert second == "see: lockserver --help"
    assert rest == []
    return first


def test_the_default_counts_when_nothing_else_is_said() -> None:
    found = parser().parse_args([])
    assert (found.window_s, found.size, found.policy, found.metrics, found.json) == (10, 4 << 30, "wait", None, False)


def test_the_environment_comes_before_the_default_and_the_flag_before_the_environment() -> None:
    environment = {
        "FAILOVER_WINDOW_S": "3.5",
        "FAILOVER_SIZE": "1KiB",
        "FAILOVER_POLICY": "presume",
        "METRICS_AT": "[::1]:9100",
        "FAILOVER_JSON": "yes",
    }
    found = parser(environment).parse_args([])
    assert (found.window_s, found.size, found.policy) == (3.5, 1024, "presume")
    assert (found.metrics, found.json) == (("::1", 9100), True)
    found = parser(environment).parse_args(["--window-s", "7", "--policy=wait"])
    assert (found.window_s, found.policy) == (7.0, "wait")


def test_an_empty_variable_is_none() -> None:
    assert parser({"FAILOVER_WINDOW_S": "", "FAILOVER_JSON": ""}).parse_args([]).window_s == 10


def test_a_bad_flag_says_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, ["--window-s", "soon"], {})
    assert said == (
        "lockserver: argument --window-s: 'soon' is no time in seconds; allowed: a number above 0 such as 10 or 0.5"
    )
    assert "allowed: wait, presume" in refused(capsys, ["--policy", "hope"], {})


def test_a_bad_variable_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, [], {"FAILOVER_WINDOW_S": "soon"})
    assert "from the environment (FAILOVER_WINDOW_S): 'soon' is no time in seconds; allowed:" in said
    assert "FAILOVER_JSON" in refused(capsys, [], {"FAILOVER_JSON": "perhaps"})
    assert "METRICS_AT" in refused(capsys, [], {"METRICS_AT": "9100"})


def test_a_bad_variable_doesnt_matter_when_the_flag_is_given() -> None:
    assert parser({"FAILOVER_WINDOW_S": "soon"}).parse_args(["--window-s", "7"]).window_s == 7


def test_an_unknown_flag_and_an_abbreviation_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--wind" in refused(capsys, ["--wind", "3"], {})
    assert "unrecognized arguments: --nonsense" in refused(capsys, ["--nonsense"], {})


def test_a_required_setting_may_come_from_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    def found(environment: Mapping[str, str]) -> object:
        made = Parser(prog="x", environment=environment)
        made.setting("--run-dir", required=True, help="where")
        return made.parse_args([]).run_dir

    assert found({"FAILOVER_RUN_DIR": "/run/x"}) == "/run/x"
    with pytest.raises(SystemExit) as caught:
        found({})
    assert caught.value.code == EX_USAGE
    assert "--run-dir" in capsys.readouterr().err


def test_help_shows_every_source_of_a_setting_and_keeps_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parser({"FAILOVER_WINDOW_S": "even if this is nonsense"}).parse_args(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    words = " ".join(said.split())
    assert "--window-s S how long, 100% at most [FAILOVER_WINDOW_S, default 10]" in words
    assert "default ]" not in words and "[FAILOVER_NOTHING]" in words
    assert "[METRICS_AT]" in words
    assert "--policy wait|presume" in words
    assert "examples:\n  lockserver --window-s 3\n" in said


def test_sub_commands_have_settings_too(capsys: pytest.CaptureFixture[str]) -> None:
    top = Parser(prog="lockctl", environment={})
    command = top.add_subparsers(dest="command").add_parser("status")
    assert isinstance(command, Parser)
    command.setting("--wait-s", default=1, parse=settings.seconds, help="how long")
    assert top.parse_args(["status", "--wait-s", "2"]).wait_s == 2
    with pytest.raises(SystemExit) as caught:
        top.parse_args(["status", "--wait-s", "never"])
    assert caught.value.code == EX_USAGE
    assert "see: lockctl status --help" in capsys.readouterr().err


def test_the_environment_of_the_process_is_what_counts() -> None:
    program = (
        "from sidecar.terminal.settings import Parser, seconds\n"
        "p = Parser(prog='x'); p.setting('--window-s', default=10, parse=seconds, help='h')\n"
        "print(p.parse_args().window_s)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"FAILOVER_WINDOW_S": "2"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2.0\n"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("1000B", 1000), ("4GiB", 4 << 30), ("512 MiB", 512 << 20), ("2GB", 2 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert settings.size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.5GiB", "4G", "4gib", "1e9", "4GiBs", "٤GiB", "9999999TiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BadValue, match="allowed"):
        settings.size_bytes(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "inf", "nan", "1s", "1e300", "1e7"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(BadValue, match="allowed"):
        settings.seconds(text)


def test_a_directory_that_begins_in_a_removed_one_is_a_bad_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadValue, match="removed"):
        settings.directory("run")
    assert settings.directory("/run/failover") == Path("/run/failover")


def test_a_directory_whose_name_is_no_text_is_refused_before_anything_starts() -> None:
    with pytest.raises(settings.BadValue, match=r"'/run/\\udcff' isn't text in UTF-8; allowed: a directory"):
        settings.directory("/run/\udcff")
    assert settings.directory("/run/a b ü\n") == Path("/run/a b ü\n")


def test_addresses() -> None:
    assert settings.host_port("127.0.0.1:9100") == ("127.0.0.1", 9100)
    assert settings.host_port("[::1]:0") == ("::1", 0)
    assert settings.host_port(":9100") == ("", 9100)
    for text in ("", "9100", "host:", "host:port", "host:65536", "host:-1", "host: 1"):
        with pytest.raises(BadValue, match="allowed"):
            settings.host_port(text)


def test_urls() -> None:
    assert settings.url("http://10.0.0.1:8080/") == "http://10.0.0.1:8080" and settings.url("") == ""
    assert settings.url("https://[::1]/x") == "https://[::1]/x"
    for text in ("localhost:8080", "host", "ftp://host", "http://", "http://host:99999", "http://host:0", "http://[x"):
        with pytest.raises(BadValue, match="allowed"):
            settings.url(text)


def test_names() -> None:
    for text in ("a", "engine-0.b_C", "x" * 64):
        assert settings.name(text) == text
    for text in ("", ".", "..", ".hidden", "_a", "-a", "a/b", "a b", "x" * 65, "ä", "a\n"):
        with pytest.raises(BadValue, match="allowed"):
            settings.name(text)


@given(st.text(max_size=80))
def test_whatever_is_typed_is_a_value_or_a_bad_value(text: str) -> None:
    for parse in (settings.seconds, settings.size_bytes, settings.host_port, settings.url, settings.name):
        try:
            parse(text)
        except BadValue as error:
            assert "allowed" in str(error)


def test_a_parse_function_of_one_s_own_may_raise_a_plain_value_error(capsys: pytest.CaptureFixture[str]) -> None:
    made = Parser(prog="x", environment={})
    made.setting("--number", parse=int, help="which")
    assert made.parse_args(["--number", "7"]) == argparse.Namespace(number=7)
    with pytest.raises(SystemExit):
        made.parse_args(["--number", "seven"])
    assert "'seven' is not allowed" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["lockctl", "python -m lockserver"])
def test_every_program_says_its_version(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        Parser(prog=program).parse_args(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out.startswith(f"{program} ")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["statsu"], "; did you mean status?\n"),
        (["status", "--jsno"], "; did you mean --json?\n"),
        (["status", "--capcity=3"], "; did you mean --capacity?\n"),
        (["status", "--bogus"], "--bogus\n"),
        (["status", "--cty"], "--cty\n"),
        (["--json", "status"], "; --json stands behind the command\n"),
        (["serve", "--jsno", "--lisen", "x"], "required: --listen; did you mean --listen?\n"),
        (["serve", "--", "--lisen", "x"], "required: --listen\n"),
        (["nothing"], ")\n"),
    ],
)
def test_a_typo_is_told_what_may_be_meant(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="try", environment={})
    commands = parser.add_subparsers(required=True)
    status = commands.add_parser("status")
    status.add_argument("--json", action="store_true")
    status.setting("--capacity", help="")
    status.set_defaults(parser=status)
    commands.add_parser("serve").setting("--listen", help="", required=True)
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    said = capsys.readouterr().err
    assert said.partition("\n")[0].endswith(meant.rstrip("\n")) and said.count("did you mean") == meant.count("did")
