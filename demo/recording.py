"""What the demo printed and when, as an SVG that moves: a dark terminal, and below it the tokens per second, drawn as
they came. CSS alone, no script, so it plays where a README shows it; where nothing moves it shows the end.

The times are the run's own. `Tape` is the demo's standard output; what a terminal doesn't get is colours.
"""

import io
import re
import time
from collections.abc import Iterator, Sequence
from html import escape
from typing import TextIO

from demo.measured import Measured
from demo.report import area, rates

ROWS, COLUMNS = 36, 108
CELL, LINE, SIZE = 7.8, 17.0, 13.0
EDGE, BAR, CHART = 18.0, 34.0, 118.0
HOLD_S = 8.0
"""The end stays for so long before it begins again."""
TONES = {"1;32": "g", "1;33": "y", "1;31": "r", "2": "d", "1": "b"}
CODE = re.compile(r"\x1b\[([0-9;]*)m")
STYLE = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#c9d1d9;white-space:pre}
.g{fill:#3fb950;font-weight:600}.y{fill:#d29922}.r{fill:#f85149;font-weight:600}.d{fill:#8b949e}
.b{fill:#fff;font-weight:600}.s{font-size:11px;fill:#8b949e}.k{font-size:11px;fill:#f85149}
"""


class Tape(io.TextIOBase):
    """A standard output that keeps what is written to it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._colours = out.isatty()
        self.said: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        self.said.append((time.monotonic(), text))
        self._out.write(text if self._colours else CODE.sub("", text))
        return len(text)

    def flush(self) -> None:
        self._out.flush()

    def fileno(self) -> int:
        return self._out.fileno()

    def isatty(self) -> bool:
        """What is kept has its colours in any case."""
        return True


def picture(said: Sequence[tuple[float, str]], seen: Measured) -> str:
    lines = [(seen.began, "\x1b[2m$\x1b[0m \x1b[1mmake demo\x1b[0m"), *_lines(said)]
    length = max(lines[-1][0], seen.ended) - seen.began
    whole = length + HOLD_S
    width, height = COLUMNS * CELL + 2 * EDGE, BAR + ROWS * LINE + CHART + 2 * EDGE

    def share(at: float) -> str:
        return f"{(at - seen.began) / whole * 100:.2f}%"

    style, shown = [STYLE], []
    for number, (at, line) in enumerate(lines):
        spans = "".join(_spans(line))
        if spans:
            shown.append(f'<text class="l{number}" y="{number * LINE + SIZE:g}">{spans}</text>')
            if number:
                style.append(f"@keyframes l{number}{{0%{{opacity:0}}{share(at)}{{opacity:1}}}}")
                style.append(f".l{number}{{animation:l{number} {whole:.1f}s step-end infinite}}")
    lifted = max(0, len(lines) - ROWS) * LINE  # how it stands without moving
    steps = [f"0%{{transform:translateY({lifted:g}px)}}"]
    for number, (at, _) in enumerate(lines[ROWS:], 1):
        steps.append(f"{share(at)}{{transform:translateY({lifted - number * LINE:g}px)}}")
    style.append(f"@keyframes up{{{''.join(steps)}}}.up{{animation:up {whole:.1f}s step-end infinite}}")
    wide = width - 2 * EDGE
    style.append(
        f"@keyframes on{{0%{{transform:translateX({-wide:g}px)}}{length / whole * 100:.2f}%,to{{transform:none}}}}"
        f".on{{animation:on {whole:.1f}s linear infinite}}"
        "@media(prefers-reduced-motion:reduce){*{animation:none!important}}"
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
            f'aria-label="make demo: {escape(_told(seen))}">',
            f"<style>{''.join(style)}</style>",
            f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#0d1117" stroke="#30363d"/>',
            *(
                f'<circle cx="{EDGE + 4 + 20 * n:g}" cy="17" r="6" fill="{c}"/>'
                for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
            ),
            f'<text class="s" x="{width - EDGE:g}" y="21" text-anchor="end">{escape(_where(seen))}</text>',
            f'<svg x="{EDGE:g}" y="{BAR + 4:g}" width="{wide:g}" height="{ROWS * LINE:g}">',
            f'<g transform="translate(0 {-lifted:g})"><g class="up">',
            *shown,
            "</g></g></svg>",
            *_chart(seen, length, wide, height - EDGE - CHART),
            "</svg>\n",
        )
    )


def _lines(said: Sequence[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Each with the time of its end."""
    rest = ""
    for at, text in said:
        *whole, rest = (rest + text).split("\n")
        yield from ((at, line) for line in whole)


def _spans(line: str) -> Iterator[str]:
    """Each word at its column, whatever font there is."""
    column, tone = 0, ""
    for number, part in enumerate(CODE.split(line)):
        if number % 2:
            tone = TONES.get(part, "")
            continue
        for word in re.finditer(r"\S+(?: \S+)*", part):
            x = (column + word.start()) * CELL
            wide = len(word[0]) * CELL
            said = f' class="{tone}"' if tone else ""
            yield f'<tspan x="{x:.1f}" textLength="{wide:.1f}"{said}>{escape(word[0], quote=False)}</tspan>'
        column += len(part)


def _told(seen: Measured) -> str:
    figures = seen.figures
    return f"{figures['kills']} engines killed, {figures['requests']} answers, {figures['failed']} failed"


def _where(seen: Measured) -> str:
    return f"real time, {seen.date:%Y-%m-%d}, {seen.where.split(', ')[1]}, no GPU"


def _chart(seen: Measured, length: float, wide: float, top: float) -> Iterator[str]:
    """Tokens per second; what is still to come is covered."""
    values = rates(seen, seen.began)
    most, high = max([*values, 1.0]) * 1.05, CHART - 34
    end = (seen.ended - seen.began) / length * wide
    yield f'<g transform="translate({EDGE:g} {top:g})">'
    yield f'<text class="s" y="4">tokens per second, {len(seen.clients)} clients; red: kill -9</text>'
    yield f'<text class="s" x="{wide:g}" y="4" text-anchor="end">at most {max(values):.0f}</text>'
    yield f'<svg y="14" width="{wide:g}" height="{high + 22:g}">'
    yield f'<path d="{area(values, end, high, most)}" fill="#4493f8" fill-opacity=".3" stroke="#4493f8"/>'
    yield f'<path d="M0 {high:g}H{wide:g}" stroke="#30363d"/>'
    for at, label in seen.marks():
        x = (at - seen.began) / length * wide
        yield f'<path d="M{x:.1f} 0V{high:g}" stroke="#f85149" stroke-dasharray="3 3"/>'
        short = escape(label.removeprefix("kill "))
        yield f'<text class="k" x="{x:.1f}" y="{high + 14:g}" text-anchor="middle">{short}</text>'
    cover = f'<rect y="-1" width="{wide:g}" height="{high + 24:g}" fill="#0d1117"/>'
    yield f'<g transform="translate({wide:g})"><g class="on">{cover}</g></g></svg></g>'
