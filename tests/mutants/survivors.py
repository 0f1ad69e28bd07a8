"""What is known of made mutants that nobody notices: `survivors.txt`, below a line that says why.

A line that begins with `=` is a reason why those below it can't be told from the source; below a line that begins with
`?` stand those that nobody has judged yet, each a missing test or one more reason.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

FILE = Path(__file__).with_name("survivors.txt")
NOT_JUDGED = "? Nobody has judged these yet: each is a missing test, or can't be told from the source."


def known(text: str) -> dict[str, str]:
    """Name -> the line above it that says why."""
    found, why = dict[str, str](), NOT_JUDGED
    for line in filter(None, text.splitlines()):
        if line.startswith(("=", "?")):
            why = line
        else:
            found[line] = why
    return found


def accepted(text: str, noticed: Iterable[str], survived: Iterable[str], there: Iterable[str]) -> str:
    """The file with what a run has found: who survived and wasn't known is not judged yet."""
    gone, there = set(noticed), set(there)
    names = {name: why for name, why in known(text).items() if name in there and name not in gone}
    for name in survived:
        names.setdefault(name, NOT_JUDGED)
    whys = sorted(set(names.values()))
    return "\n".join(line for why in whys for line in (why, *sorted(n for n, of in names.items() if of == why), ""))


def table(results: Iterable[tuple[str, str]], reasons: dict[str, str]) -> list[str]:
    """Per file: how many were tried, how many noticed, and what is known of the others."""
    rows: dict[str, Counter[str]] = {}
    for name, found in results:
        why = reasons.get(name, "new")
        kind = "noticed" if found else {"=": "the same", "?": "not judged"}.get(why[0], "new")
        rows.setdefault(name.partition(" ")[0], Counter())[kind] += 1
    rows["all of them"] = sum(rows.values(), Counter())
    kinds = ("noticed", "the same", "not judged", "new")
    head = f"{'file':36}{'tried':>7}" + "".join(f"{kind:>12}" for kind in kinds)
    return [head] + [
        f"{file:36}{row.total():>7}" + "".join(f"{row[kind]:>12}" for kind in kinds) for file, row in rows.items()
    ]
