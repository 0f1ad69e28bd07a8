"""`python -m tests.tools.newcomer`: clones this repository into an empty directory, and types there, with an empty
home, what docs/using/install.md and the README say, word for word. Of the blocks that are marked `not run` those are
typed that name this file. A `make` that one page has had typed isn't typed for the other again. `make newcomer` calls
it, and CI runs that.

If port 8000 is taken here, a free one stands for it. It prints what was said; the exit code is that of the first
command that fails.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.pages import Page
from tests.support.processes import ROOT

OWN = "tests/tools/newcomer.py"
PAGES = ("docs/using/install.md", "README.md")
NOT_ITS_OWN = ("VIRTUAL_ENV", "PYTHON", "FAILOVER_", "XDG_", "MAKE", "MFLAGS")
DEADLINE_S = 1200
_WHOLE = """\
for _ in {1..600}; do if failover status | grep -q '^redundancy *yes'; then break; fi; sleep 0.2; done
failover status
"""
_ENDS = "failover down\nwait $stays\n"
_KEPT = "eval \"$(sed -n 's/^ *\\(.*failover.* down\\)\\( .*\\)\\?$/\\1/p' said | tail -1)\"\n"


def typed(page: Page) -> Iterator[str]:
    """For one shell. What stays has begun before the first block that only looks, and is over where one installs."""
    before = re.search(r"after `(source [^`]+)`", page.text)
    staying = [f"{before[1]}\n"] if before is not None else []
    goes_on = False
    for block in page.blocks:
        if block.said == "stays":
            staying.append(f"{{\n{block.text}}} &\nstays=$!\n{_WHOLE}")
        elif OWN in block.said:
            yield _ENDS * goes_on + block.text + _KEPT * ("KEEP=1" in block.text)
            goes_on = False
        elif not block.said:
            goes_on = goes_on or bool(staying)
            yield "".join(staying) + block.text
            staying = []
    if goes_on:
        yield _ENDS


def new(block: str, made: set[str]) -> str:
    """Without the lines that make what is made."""
    lines = [line for line in block.splitlines(keepends=True) if line not in made]
    made.update(line for line in lines if line.startswith("make "))
    return "".join(lines)


def types(page: Page, where: Path, environment: dict[str, str], port: int, made: set[str]) -> int:
    """The exit code; what was said is on stdout, and for `_KEPT` in the file `said`."""
    blocks = (f"cat <<'TYPED'\n\n$ {block}TYPED\n{block}" for block in (new(each, made) for each in typed(page)))
    text = re.sub(r"\blocalhost:8000\b", f"localhost:{port}", "".join(blocks))
    with open(where / "said", "wb") as said:
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text], cwd=where, env=environment, process_group=0,
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            code = shell.wait(DEADLINE_S)
        finally:  # what stays is in its group, where a command has failed
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
    print((where / "said").read_text(errors="replace"), flush=True)
    return code


def a_port() -> int:
    for number in (8000, 0):
        try:
            with socket.create_server(("127.0.0.1", number)) as free:
                return int(free.getsockname()[1])
        except OSError:  # it is taken
            continue
    raise AssertionError("no port is free")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="new") as directory:
        where, home, runtime = (Path(directory, name) for name in ("empty", "home", "run"))
        home.mkdir()
        runtime.mkdir(mode=0o700)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(where)], check=True)
        port = a_port()
        environment = {name: value for name, value in os.environ.items() if not name.startswith(NOT_ITS_OWN)}
        own = str(Path(sys.executable).parent)
        path = ":".join(folder for folder in environment["PATH"].split(":") if folder != own)
        environment |= {"PATH": path, "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}
        environment |= {"FAILOVER_LISTEN": f"127.0.0.1:{port}"} if port != 8000 else {}
        made: set[str] = set()
        for name in PAGES:
            if code := types(Page(where / name), where, environment, port, made):
                print(f"newcomer: {name} ended with {code}; what was typed last is above", file=sys.stderr)
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
