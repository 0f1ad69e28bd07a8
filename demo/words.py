"""How the demo prints: titles, sentences, moments of a timeline. Everything that has a number was measured."""

import os
import sys
from dataclasses import dataclass

from sidecar.formatting import Paint, Tone

WIDTH = 100
paint = Paint(sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")


@dataclass(frozen=True)
class Seen:
    """A moment, as seen from outside."""

    ms: float
    what: str


def title(text: str) -> None:
    print(f"\n{paint(text, Tone.STRONG)}\n", flush=True)


def say(text: str = "") -> None:
    print(f"  {text}".rstrip(), flush=True)


def quiet(text: str) -> None:
    print(paint(f"    {text}".rstrip(), Tone.QUIET), flush=True)


def row(*cells: object, widths: tuple[int, ...]) -> str:
    return "".join(f"{cell!s:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def moment(seen: Seen) -> None:
    print(f"    {seen.ms:7.1f}  {seen.what}", flush=True)


def compare(rows: list[tuple[str, object, object]]) -> None:
    """Before and after, and whether it is the same."""
    widths = (24, 26, 26, 12)
    quiet(row("", "before", "after", "", widths=widths))
    for label, was, now in rows:
        print("    " + row(label, was, now, "the same" if was == now else "another", widths=widths), flush=True)


def short(text: str, most: int) -> str:
    """An answer's text in quotes, cut to so many characters."""
    text = repr(text)
    return text if len(text) <= most else f"{text[: most - 4]}...{text[0]}"
