"""How the demo prints: titles, sentences, tables. Everything that has a number was measured."""

import os
import sys

from sidecar.terminal.formatting import Paint, Tone

paint = Paint(sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")


def title(text: str) -> None:
    print(f"\n{paint(text, Tone.STRONG)}\n", flush=True)


def say(text: str = "") -> None:
    print(f"  {text}".rstrip(), flush=True)


def quiet(text: str) -> None:
    print(paint(f"    {text}".rstrip(), Tone.QUIET), flush=True)


def row(*cells: object, widths: tuple[int, ...]) -> str:
    return "".join(f"{cell!s:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def compare(rows: list[tuple[str, object, object]]) -> None:
    """Before and after, and whether it is the same."""
    widths = (24, 26, 26, 12)
    quiet(row("", "before", "after", "", widths=widths))
    for label, was, now in rows:
        print("    " + row(label, was, now, "the same" if was == now else "another", widths=widths), flush=True)
