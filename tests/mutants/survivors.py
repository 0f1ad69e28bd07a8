"""What is known of made mutants that no test notices: `survivors.txt`, below a line that says why.

A line that begins with `=` is a reason why those below it can't be told from the source; below a line that begins
with `?` stand those that weren't judged yet, each a missing test or one more reason. A line with `+` names a file of
which all mutants were tried once: there none may survive that this list doesn't have.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

FILE = Path(__file__).with_name("survivors.txt")
NOT_JUDGED = "? Not judged yet: each is a missing test, or can't be told from the source."


def known(text: str) -> dict[str, str]:
    """Name -> the line above it that says why."""
    found, why = dict[str, str](), NOT_JUDGED
    for line in filter(None, text.splitlines()):
        if line.startswith(("=", "?")):
            why = line
        elif not line.startswith("+"):
            found[line] = why
    return found


def whole(text: str) -> set[str]:
    """The files of which all were tried once."""
    return {line.removeprefix("+ ") for line in text.splitlines() if line.startswith("+")}


def accepted(text: str, results: dict[str, str], there: Iterable[str]) -> str:
    """The file with what a run has found: a survivor that wasn't known is not judged yet."""
    there = set(there)
    names = {name: why for name, why in known(text).items() if name in there and not results.get(name)}
    for name, found in results.items():
        if not found:
            names.setdefault(name, NOT_JUDGED)
    left = {file_of(name) for name in there - set(results)}
    files = sorted((whole(text) | {file_of(name) for name in results} - left) & {file_of(name) for name in there})
    whys = sorted(set(names.values()))
    lines = [*(f"+ {file}" for file in files), ""]
    lines += [line for why in whys for line in (why, *sorted(n for n, of in names.items() if of == why), "")]
    return "\n".join(lines)


def file_of(name: str) -> str:
    return name.partition(" ")[0]


def table(results: Iterable[tuple[str, str]], reasons: dict[str, str]) -> list[str]:
    """Per file: how many were tried, how many noticed, and what is known of the others."""
    rows: dict[str, Counter[str]] = {}
    for name, found in results:
        why = reasons.get(name, "new")
        kind = "noticed" if found else {"=": "the same", "?": "not judged"}.get(why[0], "new")
        rows.setdefault(file_of(name), Counter())[kind] += 1
    rows["all of them"] = sum(rows.values(), Counter())
    kinds = ("noticed", "the same", "not judged", "new")
    head = f"{'file':36}{'tried':>7}" + "".join(f"{kind:>12}" for kind in kinds)
    return [head] + [
        f"{file:36}{row.total():>7}" + "".join(f"{row[kind]:>12}" for kind in kinds) for file, row in rows.items()
    ]
