"""The examples of every command's --help: what their parsers say of them, and what a pair answers. Beside it, what
SECURITY.md says of who can reach which socket.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.terminal import completion
from tests.engine.shims import House
from tests.engine.test_up import running, whole
from tests.support.processes import ROOT
from tests.support.waiting import until

PROGRAMS = completion.programs()
COMMANDS = {name: parser for program in PROGRAMS for name, parser in completion.commands(program, PROGRAMS[program])}
LOOKING = ("status", "layout", "ping", "history", "watch", "doctor", "get", "verify", "k8s-lint", "k8s", "completion")
ENDING = ("failover kill", "lockctl switchover", "failover down")
NOT_HERE = (
    "kubectl",
    "helm",
    "--server",
    "deployment.yaml",
    "pod.yaml",
    "engine-b",
    "zsh)",
    "dualctl",
    "fleetctl",
    "vramctl",
)
"""What an example speaks of that isn't on this machine, or no pair's; an engine of this pair is called b."""


def examples(parser: argparse.ArgumentParser) -> list[str]:
    """Without what is said behind them."""
    found = re.search(r"^examples?:\n((?:  .*\n?)+)", parser.epilog or "", re.M)
    lines = found[1].splitlines() if found is not None else []
    return [re.split(r"\s{3,}(?=\S)|\s+# ", line[2:])[0] for line in lines if not line.startswith("   ")]


def calls(line: str) -> Iterator[list[str]]:
    """The words of each of our commands in a line for a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, "|"]:
        if word and set(word) <= set("();<>|&"):
            if words[:1] and words[0] in PROGRAMS:
                yield words
            words = []
        elif words or word not in ("until", "if", "source"):
            words.append(word)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_the_commands_take(name: str) -> None:
    found = examples(COMMANDS[name])
    if " " not in name or name.startswith(("failover", "gmsctl", "lockctl")):
        assert found
    for line in found:
        for program, *words in calls(line):
            if words[0] == "every":  # its program takes apart what stands behind the dashes
                words = words[: words.index("--")]
            PROGRAMS[program].parse_args(["1" if word.startswith("$(") else word for word in words])


def run(line: str, where: Path, environment: dict[str, str]) -> None:
    """As a person types it. What goes on until Ctrl-C gets that once it has said something."""
    typed = line.replace("| jq ", "| jq --unbuffered ")
    shell = subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", typed], cwd=where, env=environment, process_group=0,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert shell.stdout is not None
    if "ctl watch" in line:
        assert shell.stdout.readline(), line
        os.killpg(shell.pid, signal.SIGINT)
    said, wrong = shell.communicate(timeout=200)
    assert "Traceback" not in wrong, wrong
    # 141: its output is no longer read; 1: the machine lacks something, or a isn't the one that serves any more.
    more = {"doctor|kill a$": {1}, "head$": {141}, "ctl watch": {130, -signal.SIGINT}}
    fine = {0}.union(*(codes for part, codes in more.items() if re.search(part, line)))
    assert shell.returncode in fine, f"{line}: {shell.returncode}\n{said}{wrong}"


@pytest.mark.chaos
def test_examples_do_what_they_say_of_a_pair(house: House) -> None:
    up = running(house, "--capacity", "128MiB", "--listen", "127.0.0.1:0", "--devices", "host:0")
    for file in house.run_dir.rglob("*"):
        mode = file.lstat().st_mode
        private = file.is_socket() or file.is_dir()
        assert not private or stat.S_IMODE(mode) == (0o600 if file.is_socket() else 0o700), f"SECURITY.md: {file}"
    where = house.directory / "here"
    (where / ".zsh").mkdir(parents=True)
    (where / ".config" / "fish" / "conf.d").mkdir(parents=True)
    (where / "k8s").symlink_to(ROOT / "k8s")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**house.environment, "PATH": path, "HOME": str(where), "FAILOVER_RUN_DIR": str(house.run_dir)}
    lines = dict.fromkeys(
        re.sub(r"--run-dir \S+", f"--run-dir {house.run_dir}", line)
        for each in COMMANDS.values()
        for line in examples(each)
    )
    here = [line for line in lines if not any(word in line for word in NOT_HERE)]
    here = [line for line in here if "jq" not in line or shutil.which("jq")]
    ran = [line for line in here if any(set(LOOKING) & {word, *words[:3]} for word, *words in calls(line))]
    assert len(ran) > 25
    for line in ran:
        run(line, where, environment)
    for line in (line for name in ENDING for line in examples(COMMANDS[name]) if line in here):
        until(lambda: whole(house), "an engine serves, the other is ready")
        run(line, where, environment)
    assert up.code() == 0
