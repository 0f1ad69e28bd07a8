"""The demo's three acts: a pair comes up behind one address; five kills of the engine that serves, while eight clients
read; and kills of what stands beside the engines. Everything that is printed was seen or measured in this run; what
isn't as it should be stops it.
"""

import json
import signal
import sys
import textwrap
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from demo.crowd import CONTINUED, LOADS, Answer, Crowd, longest
from demo.machine import NotSo, check
from demo.measured import PHASES, Kill, Measured
from demo.pair import ENGINES, Pair, vllm
from demo.words import compare, paint, quiet, row, say, title
from gms.rules import messages as gm
from lockserver.rules import messages as lm
from sidecar.terminal.formatting import Tone, size

KILLS = {"reference": 5, "vllm": 2}
"""One of vLLM is ready again after half a minute."""
ENGINES_ARE = {
    "reference": "The engines are the small reference engine, whose arithmetic is real and whose text means nothing",
    "vllm": "The engines are vLLM on the CPU, with a tiny model whose text means nothing",
}
CALM_S = 1.0
"""Between a pair that is whole and the next kill: for a person who looks on, and sees the answers flow again."""
SETTLED_S = 0.1
"""What an engine has sent before it was killed has come by then."""


@dataclass(frozen=True)
class Whole:
    """A pair of which one serves and the other is ready, as its lock server, GMS and shims say."""

    lock: lm.Status
    holder: lm.HolderState
    ready: lm.WaiterState
    weights: gm.Status
    engines: dict[str, dict[str, Any]]


def look(pair: Pair) -> Whole | None:
    """None: not whole (yet)."""
    lock, weights = pair.lock(), pair.weights()
    if lock is None or weights is None or lock.state != "HELD" or weights.state != "RO":
        return None
    ready = [waiter for waiter in lock.waiters if waiter.ready]
    engines = {engine_id: pair.engine(engine_id) for engine_id in ENGINES}
    if lock.holder is None or not lock.holder.endpoint or not ready or not all(e["ready"] for e in engines.values()):
        return None
    if {engine["state"] for engine in engines.values()} != {"Active", "Standby"}:
        return None
    if {client.engine_id for client in weights.clients} != set(ENGINES):
        return None
    return Whole(lock, lock.holder, ready[0], weights, engines)


def play(kind: str = "reference", keep: bool = False) -> Measured:
    with Pair(vllm() if kind == "vllm" else None) as pair:
        measured = Measured(pair.began, pair.words, ENGINES_ARE[kind])
        first = a_pair_comes_up(pair, measured)
        crowd = Crowd(pair.host, pair.port, LOADS[kind])
        crowd.learn()
        measured.clients, measured.asked_from = crowd.clients, time.monotonic()
        crowd.start()
        last = the_kills(pair, crowd, first, measured)
        the_servers_die(pair, crowd, last, measured)
        measured.ended = time.monotonic()
        crowd.stop()
        closing(crowd, measured)
        if keep:
            pair.keep()
            it_stays(pair)
    return measured


# -- act 1 ------------------------------------------------------------------------------------------------------------


def a_pair_comes_up(pair: Pair, measured: Measured) -> Whole:
    title("1. A pair comes up behind one address: one engine serves, the other is ready; the weights are loaded once")
    up, _, engine_words = " ".join(pair.words).partition(" -- ")
    quiet(f"$ failover {up} -- \\")
    quiet("  " + " \\\n      ".join(textwrap.wrap(engine_words, 96, break_on_hyphens=False)))
    say()
    for what, seen in (
        ("the lock server answers", lambda: pair.lock()),
        ("GMS answers; no weights are loaded", lambda: pair.weights()),
        ("the weights are loaded", lambda: _committed(pair)),
    ):
        pair.until(seen, what)
        _step(pair, what)
    pair.until(lambda: _serves(pair), "one engine serves")
    measured.cold_start_ms = _step(pair, "one engine serves") * 1000
    whole = pair.until(lambda: look(pair), "one engine serves and the other is ready")
    _step(pair, "the other is initialised, asleep, and ready to take over")
    pair.until(lambda: any(one["serves"] for one in pair.door().get("pairs", ())) or None, "the door sees who serves")
    say()
    widths = (9, 10, 14, 13, 40)
    quiet(row("engine", "state", "process", "its start", "the weights", widths=widths))
    history = pair.weights_history()
    for engine_id, pid in ((whole.holder.engine_id, whole.holder.pid), (whole.ready.engine_id, whole.ready.pid)):
        engine = whole.engines[engine_id]
        init = f"{engine['phases_s']['init']:.2f} s"
        loaded = of_weights(history, engine_id, whole.weights)
        print("    " + row(engine_id, engine["state"], pid, init, loaded, widths=widths), flush=True)
    say()
    weights = whole.weights
    check(commits(weights) == 1, f"GMS counts {commits(weights)} commits of weights, and one was due")
    check(pair.cache > weights.free, f"the device has {weights.free} bytes free, which is room for two awake engines")
    free = f"{size(weights.free)} of {size(weights.capacity)} are free"
    say(f"The device: {free}, and a KV cache of its own takes {size(pair.cache)}: there is no room for two.")
    say("The one that takes over goes on with the other one's cache.")
    say(f"Clients know one address, the door's: http://{pair.host}:{pair.port}/v1")
    return whole


def _step(pair: Pair, what: str) -> float:
    """Seconds since the pair's start."""
    spent_s = time.monotonic() - pair.began
    say(f"  {spent_s:5.1f} s  {what}")
    return spent_s


def _committed(pair: Pair) -> bool | None:
    weights = pair.weights()
    return True if weights is not None and weights.state == "RO" else None


def _serves(pair: Pair) -> bool | None:
    lock = pair.lock()
    return True if lock is not None and lock.holder is not None and lock.holder.endpoint else None


def of_weights(history: list[gm.HistoryEvent], engine_id: str, weights: gm.Status) -> str:
    done = [event.event for event in history if event.detail.get("engine") == engine_id]
    if "committed" in done:
        return f"loaded: {size(weights.bytes)}"
    check("reading" in done, f"{engine_id} is ready and GMS has never seen it read weights")
    check("writing" not in done, f"{engine_id} has written weights, too")
    return "found there; loaded nothing"


def commits(weights: gm.Status) -> int:
    return weights.events.get("committed", 0)


# -- act 2 ------------------------------------------------------------------------------------------------------------


def the_kills(pair: Pair, crowd: Crowd, whole: Whole, measured: Measured) -> Whole:
    kills = KILLS[pair.kind]
    title(f"2. kill -9 of the engine that serves, {kills} times, while {len(crowd.clients)} clients read streams")
    kinds = [client.kind for client in crowd.clients]
    say("Each asks for another kind of answer, again and again, and compares every byte with the undisturbed one.")
    say(f"Four kinds go on from their tokens: {', '.join(kinds[:CONTINUED])};")
    say(f"four are made again and compared: {', '.join(kinds[CONTINUED:])}.")
    say()
    widths = (6, 8, 9, 13, 10, 17, 15, 20)
    quiet(row("", "", "", "another", "and", "longest pause of", "one that is", "the killed one", widths=widths))
    quiet(
        row(
            "kill",
            "engine",
            "process",
            "is granted",
            "serves",
            "one continued",
            "compared",
            "is ready again",
            widths=widths,
        )
    )
    killed_at = 0.0
    for number in range(1, kills + 1):
        before = whole
        calm = time.monotonic() + CALM_S
        pair.until(partial(_everybody_reads, crowd, killed_at, calm), "every client is in the middle of an answer")
        failovers = pair.door()["pairs"][0]["failovers"]
        pidfd = pair.pidfd_of_main(before.holder.pid)
        answers = crowd.answers()
        killed_at = time.monotonic()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        whole = pair.until(partial(_another, pair, before), f"{before.holder.engine_id} is ready again")
        back_s = time.monotonic() - killed_at
        last = pair.until(partial(_told, pair, failovers), "the door tells of the failover")
        pair.until(partial(_everybody_went_on, answers, killed_at), "every client has more of its answer")
        pauses = [longest(answer.times, killed_at) for answer in answers]
        measured.kills.append(Kill(killed_at, before.holder.engine_id, before.holder.pid, pauses, back_s, last))
        old, parts = before.holder, last["phases_ms"]
        check(whole.holder.token > old.token, "the fencing token has not grown")
        check_weights(before.weights, whole.weights)
        check(commits(whole.weights) == 1, "the weights were loaded again")
        longest_s = (max(pauses[:CONTINUED]), max(pauses[CONTINUED:]))
        ms = (parts["granted"], parts["serves"], *(pause_s * 1000 for pause_s in longest_s))
        cells = (number, old.engine_id, old.pid, *(f"{one:.0f} ms" for one in ms), f"after {back_s:.1f} s")
        line = "    " + row(*cells, widths=widths)
        print(paint(line[: 4 + sum(widths[:2])], Tone.BAD) + line[4 + sum(widths[:2]) :], flush=True)
        _failures(crowd)
    say()
    state = pair.door()
    ways = f"{state['continued']} were continued, {state['compared']} compared"
    say(f"The door says of the answers that met a kill: {ways}, {state['restarted']} had not begun.")
    return whole


def _everybody_reads(crowd: Crowd, since: float, calm: float) -> bool | None:
    return (time.monotonic() > calm and crowd.everybody_reads(since)) or None


def _another(pair: Pair, before: Whole) -> Whole | None:
    whole = look(pair)
    if whole is None or whole.holder.token == before.holder.token:
        return None
    return whole if whole.ready.engine_id == before.holder.engine_id else None


def _everybody_went_on(answers: list[Answer], since: float) -> bool | None:
    return all(answer.times[-1] > since + SETTLED_S or answer.over for answer in answers) or None


def _told(pair: Pair, before: int) -> dict[str, Any] | None:
    """What the door says of the failover that came after `before` others; None: nothing yet."""
    one = pair.door().get("pairs", [{"failovers": 0}])[0]
    if one["failovers"] <= before or one["interrupted"] or not (one["last_failover"] or {}).get("gap_ms"):
        return None
    found: dict[str, Any] = one["last_failover"]
    return found


def _failures(crowd: Crowd) -> None:
    for client in crowd.clients:
        if client.failed:
            raise NotSo(f"the client with {client.kind} has no answer: {client.failed[0]}")
        if client.mismatched:
            raise NotSo(f"the client with {client.kind} has another answer than undisturbed")


def check_weights(before: gm.Status, after: gm.Status) -> None:
    same = (before.generation, before.hash) == (after.generation, after.hash)
    check(same, f"the weights are others: generation {before.generation} was {after.generation}")


# -- act 3 ------------------------------------------------------------------------------------------------------------


def the_servers_die(pair: Pair, crowd: Crowd, before: Whole, measured: Measured) -> None:
    who = before.holder.engine_id
    title(f"3. kill -9 of the lock server and of GMS, while {who} answers all of them")
    calm = time.monotonic() + CALM_S
    pair.until(partial(_everybody_reads, crowd, 0.0, calm), "every client is in the middle of an answer")
    servers = {name: pair.pidfd_of(module) for name, module in (("the lock server", "lockserver"), ("GMS", "gms"))}
    answers = crowd.answers()
    ended = sum(client.requests for client in crowd.clients)
    began = measured.servers_killed_at = time.monotonic()
    for _, pidfd in servers.values():
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    after = pair.until(lambda: _served_again(pair, before), "lock server and GMS are back")
    back_s = time.monotonic() - began
    compare(
        [
            ("lock server", before.lock.server_pid, after.lock.server_pid),
            ("process of GMS", before.weights.server_pid, after.weights.server_pid),
            ("who serves", before.holder.engine_id, after.holder.engine_id),
            ("its main process", before.holder.pid, after.holder.pid),
            ("fencing token", before.holder.token, after.holder.token),
            ("weights' generation", before.weights.generation, after.weights.generation),
        ]
    )
    check(before.holder == after.holder, f"{who} did not serve on as it was")
    check_weights(before.weights, after.weights)
    check(commits(after.weights) == 0, "the weights were loaded again")
    say()
    pause_ms = max(longest(answer.times, began) for answer in answers) * 1000
    say(f"Both were back after {back_s:.1f} s. {who} served on; no client waited longer than {pause_ms:.0f} ms.")
    pair.until(lambda: sum(c.requests for c in crowd.clients) >= ended + len(crowd.clients) or None, "answers end")
    _failures(crowd)


def _served_again(pair: Pair, before: Whole) -> Whole | None:
    whole = look(pair)
    if whole is None or whole.lock.server_pid == before.lock.server_pid:
        return None
    if whole.holder.kept != before.holder.kept:  # no file has it: the holder says it again once it is back
        return None
    return whole if whole.weights.server_pid != before.weights.server_pid else None


# -- the end ----------------------------------------------------------------------------------------------------------


def closing(crowd: Crowd, measured: Measured) -> None:
    failed = sum(len(client.failed) for client in crowd.clients)
    mismatched = sum(client.mismatched for client in crowd.clients)
    pauses = [pause_s for kill in measured.kills for pause_s in kill.pauses_s]
    phases = [phase for phase, _ in PHASES]
    figures: dict[str, Any] = {
        "kills": len(measured.kills),
        "server_kills": 2,
        "requests": sum(client.requests for client in crowd.clients),
        "failed": failed,
        "mismatched": mismatched,
        "pause_ms": {"p50": round(median(pauses) * 1000, 1), "max": round(max(pauses) * 1000, 1)},
        "longest_gap_ms": round(max(client.longest_s for client in crowd.clients) * 1000, 1),
        "cold_start_ms": round(measured.cold_start_ms, 1),
        "ready_again_s": round(median(kill.back_s for kill in measured.kills), 2),
        "phases_ms": {
            phase: round(median(kill.phases().get(phase, 0.0) for kill in measured.kills), 2) for phase in phases
        },
    }
    measured.figures = figures
    title("What was shown")
    widths = (50, 30)
    for label, value in (
        ("kill -9 of the engine that served", figures["kills"]),
        ("kill -9 of the lock server and of GMS", 2),
        ("requests", figures["requests"]),
        ("failed", failed),
        ("answers with a byte that differs", mismatched),
        ("a client's pause at a kill, the middle of all", f"{figures['pause_ms']['p50']:.0f} ms"),
        ("the longest gap that a client saw", f"{figures['longest_gap_ms']:.0f} ms"),
        ("the pair's own start, until an engine served", f"{measured.cold_start_ms / 1000:.1f} s"),
        ("a killed engine was ready again after", f"{figures['ready_again_s']:.1f} s"),
    ):
        line = "    " + row(label, value, widths=widths)
        print(paint(line, Tone.GOOD) if value == 0 else line, flush=True)
    print(flush=True)
    _failures(crowd)


def it_stays(pair: Pair) -> None:
    """What a person can do with it."""
    beside = Path(sys.executable).with_name("failover")
    failover = str(beside) if beside.exists() else f"{sys.executable} -m engine_shim.cli.failover"
    failover += f" --run-dir {pair.run_dir}"
    ask = json.dumps({**({"model": "tiny"} if pair.kind == "vllm" else {}), "prompt": "Hello", "max_tokens": 200})
    title("The pair stays (KEEP=1)")
    say("Ask it, and kill the engine that serves meanwhile, from another terminal:")
    say()
    stream = ask.removesuffix("}") + ', "stream": true}'
    say(f"  curl -N http://{pair.host}:{pair.port}/v1/completions -H 'content-type: application/json' -d '{stream}'")
    say(f"  {failover} kill active")
    say()
    say("This ends it, and removes everything:")
    say()
    say(f"  {failover} down")
    say()
