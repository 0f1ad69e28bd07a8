"""`python -m tools.man DIRECTORY`: a man page of each installed command and sub-command, from its --help alone.

make man && man build/man/failover-up.1
"""

import os
import re
import sys
from pathlib import Path

from sidecar.terminal import completion
from sidecar.terminal.names import VERSION

_HEADING = re.compile(r"^(usage|[a-z][a-z ]*):\s*(.*)$")


def page(name: str, what: str, said: str) -> str:
    """`said`: the help. What stands below a heading there stays as it is, line by line."""
    title = name.replace(" ", "-")
    lines = [f'.TH {title.upper()} 1 "" "gpu-failover {VERSION}"', ".SH NAME", f"{title} \\- {_roff(what)}"]
    inside = False
    all_lines = said.rstrip().splitlines()
    for before, line in zip(["", *all_lines], all_lines, strict=False):
        heading = None if before else _HEADING.match(line)
        if heading is not None:
            named = "SYNOPSIS" if heading[1] == "usage" else heading[1].upper()
            lines += [".fi"] * inside + [f".SH {named}", ".nf"]
            inside = True
            line = heading[2]
        lines += [_roff(line)] if line or not lines[-1].startswith(".nf") else []
    return "\n".join([*lines, ".fi"]) + "\n"


def _roff(line: str) -> str:
    line = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def pages() -> dict[str, str]:
    """File -> text."""
    os.environ["COLUMNS"] = "80"  # as argparse breaks its lines
    found = {}
    for program, parser in completion.programs().items():
        for name, each in completion.commands(program, parser):
            what = (each.description or "").split(". ")[0].rstrip(".")
            found[f"{name.replace(' ', '-')}.1"] = page(name, what, each.format_help())
    return found


def main() -> int:
    into = Path(sys.argv[1])
    into.mkdir(parents=True, exist_ok=True)
    for file, text in (made := pages()).items():
        (into / file).write_text(text, encoding="utf-8")
    print(f"{into}: {len(made)} man pages; man {into}/failover.1")
    return 0


if __name__ == "__main__":
    sys.exit(main())
