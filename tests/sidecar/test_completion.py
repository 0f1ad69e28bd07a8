"""What a shell completes, and the man pages: both are read from the parsers of the installed commands."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sidecar.terminal import completion
from tools import man

PROGRAMS = completion.programs()
CASES = {
    "failover ": "completion",
    "failover s": "status",
    "failover up --engine-": "--engine-ids",
    "failover up --kv ": "drop keep",
    "failover k": "k8s kill",
    "lockctl sw": "switchover",
    "gateway --log-format ": "json text",
    "k8s-lint --k": "--kubernetes",
}
HEADINGS = {
    *("NAME", "SYNOPSIS", "COMMANDS", "POSITIONAL ARGUMENTS", "OPTIONS"),
    *("ENVIRONMENT", "EXAMPLE", "EXAMPLES", "EXIT CODES"),
}
BASH = """
while read -r line; do
    read -ra COMP_WORDS <<< "$line"
    case "$line" in *_) COMP_WORDS[-1]="${COMP_WORDS[-1]%_}" ;; esac
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
    _gpu_failover
    echo "${COMPREPLY[@]}"
done
"""
ZSH = """
compdef() { }; _files() { echo }
compadd() { shift; print -r -- ${(M)@:#$PREFIX*} }
while read -r line; do
    words=(${=line}); words[-1]=${words[-1]%_}; CURRENT=$#words; PREFIX=$words[-1]
    _gpu_failover
done
"""
FISH = """
while read -l line
    complete -C (string replace -r '_$' '' $line) | cut -f1 | string join ' '
end
true
"""


@pytest.mark.parametrize(("shell", "asks"), [("bash", BASH), ("zsh", ZSH), ("fish", FISH)])
def test_a_shell_completes_every_command(shell: str, asks: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} isn't installed")
    script = completion.script(shell, PROGRAMS)
    program = f"{script.replace('compdef _gpu', ': _gpu')}{asks}" if shell == "zsh" else f"{script}{asks}"
    lines = "".join(f"{typed}_\n" for typed in CASES)
    done = subprocess.run([shell, "-c", program], input=lines, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for typed, found in zip(CASES, done.stdout.splitlines(), strict=True):
        assert set(CASES[typed].split()) <= set(found.split()), f"{typed}: {found}"
        if not typed.endswith(" "):
            assert set(CASES[typed].split()) == set(found.split())


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_each_flag_of_each_command_is_in_it(shell: str) -> None:
    script = completion.script(shell, PROGRAMS)
    for program, parser in PROGRAMS.items():
        for name, each in completion.commands(program, parser):
            for flag in completion.flags(each):
                assert (f" -l {flag[2:]} " if shell == "fish" else flag) in script, name


def test_each_command_has_a_man_page_that_groff_takes(tmp_path: Path) -> None:
    pages = man.pages()
    assert {f"{program}.1" for program in PROGRAMS} < set(pages) and "failover-up.1" in pages
    for file, text in pages.items():
        assert ".SH SYNOPSIS\n" in text and ".SH OPTIONS\n" in text, file
        assert set(re.findall(r"^\.SH (.*)", text, re.M)) <= HEADINGS, file
        (tmp_path / file).write_text(text)
    if shutil.which("groff") is not None:
        words = ["groff", "-man", "-ww", "-Tutf8", "-rLL=130n", *pages]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert [file for file in pages if file.partition(".")[0] not in done.stdout] == []
