"""The demo's report: one HTML file with everything in it, no script, nothing from a network. What a person reads who
wasn't there: tokens per second, each client's answers with their gaps, each failover's phases.

Pure: what was measured goes in, a page comes out. `recording.py` has the same curve.
"""

from collections.abc import Iterable
from html import escape
from itertools import pairwise
from pathlib import Path

from demo.measured import PHASES, Measured

BIN_S = 0.1
GAP_S = 0.05
"""What is shorter between two pieces isn't drawn as a gap."""
WIDTH, LEFT, RIGHT = 960, 190, 12
STYLE = Path(__file__).with_name("report.css")


def page(seen: Measured) -> str:
    figures = seen.figures
    pause = figures["pause_ms"]
    wrong = figures["failed"] + figures["mismatched"]
    title = f"{figures['kills']} engines killed, {figures['requests']} answers, {figures['failed']} failed"
    tiles = (
        (figures["failed"], "requests failed", "bad" if figures["failed"] else "good"),
        (figures["mismatched"], "answers with another byte", "bad" if figures["mismatched"] else "good"),
        (f"{pause['p50']:.0f} ms", "a client's pause at a kill, the middle of all", ""),
        (f"{pause['max']:.0f} ms", "the longest pause at a kill", ""),
        (f"{figures['ready_again_s']:.1f} s", "until a killed engine was ready again", ""),
        (f"{figures['cold_start_ms'] / 1000:.1f} s", "the pair's own start, until it served", ""),
    )
    shown = "".join(f'<div class="tile {tone}"><b>{value}</b><span>{what}</span></div>' for value, what, tone in tiles)
    parts = (
        f"<h1>{title}</h1><p>{seen.where}. {'Something is wrong here.' if wrong else seen.engine}</p>",
        f'<div class="tiles">{shown}</div>',
        "<h2>Tokens per second, all clients together</h2><p>Each piece of a streamed answer counts as a token. A "
        "dashed line is a <code>kill -9</code>.</p>",
        _wide(_curve(seen), "Tokens per second over time"),
        "<h2>What each client had</h2><p>A bar is an answer as it flows; red is what the client waited at a kill, grey "
        "what it waited otherwise (its next answer's first token, mostly).</p>",
        _wide(_lanes(seen), "Each client's answers over time"),
        "<h2>Where the time of a failover goes</h2><p>Above: until another engine has the lock, and serves. Below: "
        "what the clients waited for, the middle of all, as the door counts it.</p>",
        _key(),
        _wide(_bars(seen), "The phases of each failover"),
        "<h2>The same in numbers</h2>",
        _wide(_kills(seen), "Each kill"),
        "<h2>The clients</h2>",
        _wide(_clients(seen), "Each client"),
        "<h2>What ran</h2>",
        _wide(f"<pre>$ failover {escape(' '.join(seen.words))}</pre>", "The command"),
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>gpu-failover: {title}</title><style>{STYLE.read_text()}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def rates(seen: Measured, begin: float) -> list[float]:
    """Tokens per second in each bin from that moment on."""
    counts = [0] * (int((seen.ended - begin) / BIN_S) + 1)
    for client in seen.clients:
        for times in client.answers:
            for at in times[1:]:
                if begin <= at < seen.ended:
                    counts[int((at - begin) / BIN_S)] += 1
    return [count / BIN_S for count in counts]


def area(values: list[float], width: float, height: float, most: float) -> str:
    """The path of a curve, closed at the bottom; the last bin isn't whole."""
    points = [(at * width / max(1, len(values) - 1), height - value * height / most) for at, value in enumerate(values)]
    return f"M0 {height:g}" + "".join(f"L{x:.1f} {y:.1f}" for x, y in points[:-1]) + f"V{height:g}Z"


def _wide(inside: str, what: str) -> str:
    """It scrolls by itself on a narrow screen, by the keyboard too."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{what}">{inside}</div>'


def _svg(height: float, inside: Iterable[str], what: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{what}">{"".join(inside)}</svg>'


class _Scale:
    """Seconds to columns: from when the clients began."""

    def __init__(self, seen: Measured) -> None:
        self.begin = seen.asked_from
        self.per_s = (WIDTH - LEFT - RIGHT) / max(0.1, seen.ended - self.begin)

    def __call__(self, at: float) -> float:
        return min(LEFT + (at - self.begin) * self.per_s, WIDTH - RIGHT)


def _kill_lines(seen: Measured, x: _Scale, top: float, bottom: float) -> list[str]:
    found = []
    for at, label in seen.marks():
        found.append(f'<line class="kill" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{top}" y2="{bottom}"/>')
        found.append(f'<text class="killed" x="{x(at):.1f}" y="{top - 4}" text-anchor="middle">{escape(label)}</text>')
    return found


def _seconds(seen: Measured, x: _Scale, top: float, bottom: float) -> list[str]:
    length = seen.ended - x.begin
    step = next((step for step in (1, 2, 5, 10, 20, 60) if length / step <= 12), 120)
    lines = []
    for tick in range(0, int(length) + 1, step):
        at = x(x.begin + tick)
        lines.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>')
        lines.append(f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{tick} s</text>')
    return lines


def _curve(seen: Measured) -> str:
    x, values = _Scale(seen), rates(seen, seen.asked_from)
    most = max([*values, 1.0]) * 1.1
    top, high = 24, 150
    step = next((step for step in (50, 100, 200, 500, 1000, 2000) if most / step <= 5), 5000)
    inside = _seconds(seen, x, top, top + high)
    for value in range(0, int(most) + 1, step):
        y = top + high - value * high / most
        inside.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        inside.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value}</text>')
    path = area(values, WIDTH - LEFT - RIGHT, high, most)
    inside.append(f'<path class="area" transform="translate({LEFT} {top})" d="{path}"/>')
    return _svg(top + high + 26, [*inside, *_kill_lines(seen, x, top, top + high)], "Tokens per second over time")


def _lanes(seen: Measured) -> str:
    x, top, lane = _Scale(seen), 24, 24
    bottom = top + lane * len(seen.clients)
    inside = _seconds(seen, x, top, bottom)
    kills = [at for at, _ in seen.marks()]
    for number, client in enumerate(seen.clients):
        y = top + lane * number + lane / 2
        inside.append(f'<text class="name" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(client.kind)}</text>')
        flows, waits = [], []
        for times in client.answers:
            begin = times[0]
            for before, after in pairwise(times):
                if after - before < GAP_S:
                    continue
                flows.append(f"M{x(begin):.1f} {y}H{max(x(before), x(begin) + 1.5):.1f}")
                killed = any(before <= at <= after for at in kills)
                waits.append(
                    f'<path class="{"gap" if killed else "pause"}" d="M{x(before):.1f} {y}H{x(after):.1f}">'
                    f"<title>{(after - before) * 1000:.0f} ms</title></path>"
                )
                begin = after
            flows.append(f"M{x(begin):.1f} {y}H{x(times[-1]):.1f}")
        inside += [f'<path class="flow" d="{"".join(flows)}"/>', *waits]
    return _svg(bottom + 26, [*inside, *_kill_lines(seen, x, top, bottom)], "Each client's answers over time")


def _key() -> str:
    items = "".join(f'<span><i style="background:var(--p{n})"></i>{what}</span>' for n, (_, what) in enumerate(PHASES))
    return f'<div class="key">{items}</div>'


def _bars(seen: Measured) -> str:
    most = max([sum(kill.phases().values()) for kill in seen.kills] + [1.0])
    inside, y = [], 12.0
    for number, kill in enumerate(seen.kills, 1):
        phases = kill.phases()
        inside.append(
            f'<text class="name" x="{LEFT - 8}" y="{y + 17}" text-anchor="end">kill {number}: {kill.engine}</text>'
        )
        for row, names in enumerate((("granted", "serves"), [name for name, _ in PHASES[2:]])):
            left = float(LEFT)
            for index, (name, what) in enumerate(PHASES):
                if name in names and (ms := phases.get(name, 0.0)) > 0:
                    wide = ms * (WIDTH - LEFT - RIGHT - 70) / most
                    inside.append(
                        f'<rect x="{left:.1f}" y="{y + 13 * row}" width="{max(wide, 1):.1f}" height="10" '
                        f'fill="var(--p{index})"><title>{what}: {ms:.0f} ms</title></rect>'
                    )
                    left += max(wide, 1)
            total = sum(phases.get(name, 0.0) for name in names)
            inside.append(f'<text x="{left + 6:.1f}" y="{y + 13 * row + 9}">{total:.0f} ms</text>')
        y += 36
    return _svg(y, inside, "The phases of each failover")


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    said = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr></thead><tbody>{said}</tbody></table>"


def _kills(seen: Measured) -> str:
    head = ["kill", *(what for _, what in PHASES), "longest pause", "ready again"]
    rows = []
    for number, kill in enumerate(seen.kills, 1):
        phases = kill.phases()
        ms = [f"{phases.get(name, 0):.0f} ms" for name, _ in PHASES]
        rows.append(
            [f"{number}: {kill.engine}, {kill.pid}", *ms, f"{max(kill.pauses_s) * 1000:.0f} ms", f"{kill.back_s:.1f} s"]
        )
    return _table(head, rows)


def _clients(seen: Measured) -> str:
    head = ("it asks for", "at a kill its answer is", "answers", "failed", "differ", "longest gap")
    return _table(
        head,
        [
            (c.kind, c.way, c.requests, len(c.failed), c.mismatched, f"{c.longest_s * 1000:.0f} ms")
            for c in seen.clients
        ],
    )
