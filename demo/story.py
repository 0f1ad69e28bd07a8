"""The demo's four acts: a pair and its weights; a kill -9 within an answer; redundancy again; and kills of what stands
beside the engines. Everything that is printed was seen or measured in this run; what isn't as it should be stops it.
"""

import signal
import time
from dataclasses import dataclass
from typing import Any

from demo.client import Stream, text_of
from demo.handoff import go_on, kill_and_watch
from demo.machine import check
from demo.pair import DEVICE, ENGINES, Pair
from demo.words import Seen, compare, moment, paint, quiet, row, say, short, title
from gms import messages as gm
from lockserver import messages as lm
from sidecar.formatting import Tone, size

PROMPT = "The old lighthouse"
WANTED, KILL_AT, KILL_SERVERS_AT = 64, 24, 8


@dataclass(frozen=True)
class Whole:
    """A pair of which one serves and the other is ready, as its lock server, GMS and shims say."""

    lock: lm.Status
    holder: lm.HolderState
    ready: lm.WaiterState
    weights: gm.Status
    engines: dict[str, dict[str, Any]]

    @property
    def url(self) -> str:
        return self.holder.endpoint or ""


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


def play() -> None:
    with Pair() as pair:
        first = a_pair_comes_up(pair)
        undisturbed, to_token_ms, killed_at = the_same_answer(pair, first)
        second, redundant_s = redundancy_again(pair, first, killed_at)
        meanwhile = the_servers_die(pair, second, undisturbed)
        title("What was shown")
        old, new = first.holder.engine_id, second.holder.engine_id
        weights = size(first.weights.bytes)
        say(f"1. Two engines, and their {weights} of weights once: {old} served, and {new} was ready.")
        say(f"2. kill -9 of {old} in mid-answer: {to_token_ms:.0f} ms later {new} went on, with the same tokens.")
        say(f"3. {old} was ready again {redundant_s:.1f} s after it was killed; nothing was loaded twice.")
        tokens = f"{meanwhile} tokens until both were back"
        say(f"4. kill -9 of lock server and GMS: {new} served on, {tokens}, and kept the lock.")
        print(flush=True)


# -- act 1 ------------------------------------------------------------------------------------------------------------


def a_pair_comes_up(pair: Pair) -> Whole:
    title("1. A pair comes up: one engine serves, the other is ready; the weights are loaded once")
    up, _, engine_words = " ".join(pair.words).partition(" -- ")
    quiet(f"$ failover {up} -- \\")
    quiet(f"  {engine_words}")
    began = time.monotonic()
    whole = pair.until(lambda: look(pair), "one engine serves and the other is ready")
    say()
    widths = (9, 10, 7, 14, 13, 40)
    quiet(row("engine", "state", "ready", "process", "its start", "the weights", widths=widths))
    history = pair.weights_history()
    for engine_id, pid in ((whole.holder.engine_id, whole.holder.pid), (whole.ready.engine_id, whole.ready.pid)):
        engine = whole.engines[engine_id]
        init = f"{engine['phases_s']['init']:.2f} s"
        ready = "yes" if engine["ready"] else "no"
        loaded = of_weights(history, engine_id, whole.weights)
        print("    " + row(engine_id, engine["state"], ready, pid, init, loaded, widths=widths), flush=True)
    say()
    weights = whole.weights
    check(commits(weights) == 1, f"GMS counts {commits(weights)} commits of weights, and one was due")
    what = f"{size(weights.bytes)} in {weights.tensors} tensors"
    writer = next(event.detail["engine"] for event in history if event.event == "committed")
    say(f"GMS: generation {weights.generation}, {what}; written once, by {writer}.")
    needs = whole.ready.needs[DEVICE]
    check(needs > weights.free, f"the device has {weights.free} bytes free, which is room for two awake engines")
    free = f"{size(weights.free)} of {size(weights.capacity)} are free"
    say(f"The device: {free}, and a wake needs {size(needs)}: there is no room for two.")
    say(f"All of it took {time.monotonic() - began:.1f} s.")
    return whole


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


def the_same_answer(pair: Pair, whole: Whole) -> tuple[Stream, float, float]:
    """Returns the undisturbed answer, the milliseconds from the kill to the other's first token, and when it was."""
    old, new = whole.holder.engine_id, whole.ready.engine_id
    title(f"2. kill -9 of {old} in the middle of an answer, and {new} goes on with it")
    with Stream(whole.url, PROMPT, WANTED) as undisturbed:
        began = time.monotonic()
        undisturbed.to_its_end()
        took = time.monotonic() - began
    check(len(undisturbed.ids) == WANTED, f"{old} answers with {len(undisturbed.ids)} tokens instead of {WANTED}")
    say(f"Undisturbed, {old} answers {PROMPT!r} with {WANTED} tokens in {took:.2f} s. Now again:")
    say()
    pidfd = pair.pidfd_of_main(whole.holder.pid)
    with Stream(whole.url, PROMPT, WANTED) as stream:
        stream.until(KILL_AT)
        handoff = kill_and_watch(pair, whole.holder, pidfd, stream, WANTED)
    rest = go_on(pair, handoff, stream, WANTED)
    quiet(f"{'ms':>7}  seen from outside")
    for seen in handoff.seen:
        moment(seen)
    say()
    say(handoff.wake)
    say()
    say("What the lock server wrote down:")
    say()
    for line in pair.fencing():
        print(f"    {line}", flush=True)
    say()
    joined = stream.ids + rest.ids
    text = text_of(handoff.holder.endpoint or "", joined)
    widths = (14, 74)
    for label, shown in (
        ("undisturbed", short(undisturbed.text, 72)),
        (f"{len(stream.ids)} from {old}", short(stream.text, 72)),
        (f"{len(rest.ids)} from {new}", short(rest.text, 72)),
    ):
        print("    " + row(label, shown, widths=widths), flush=True)
    say()
    check(joined == undisturbed.ids, f"the joined answer's tokens differ from the undisturbed one's: {joined}")
    check(text.encode() == undisturbed.text.encode(), f"the joined answer's text differs: {text!r}")
    same = paint(f"the same {len(joined)} tokens, and the same {len(text.encode())} bytes", Tone.STRONG)
    say(f"Joined, that is the undisturbed answer: {same}.")
    return undisturbed, handoff.seen[-1].ms, handoff.killed_at


# -- act 3 ------------------------------------------------------------------------------------------------------------


def redundancy_again(pair: Pair, before: Whole, killed_at: float) -> tuple[Whole, float]:
    old = before.holder.engine_id
    title(f"3. {old} comes back, as the standby")
    after = pair.until(lambda: look(pair), f"{old} is ready again")
    seconds = time.monotonic() - killed_at
    check(after.ready.engine_id == old, f"{after.ready.engine_id} is ready, and {old} was to be")
    init = after.engines[old]["phases_s"]["init"]
    say(f"{old}, started again by its shim, is ready (process {after.ready.pid}). Its start took {init:.2f} s.")
    say()
    compare(
        [
            ("who serves", before.holder.engine_id, after.holder.engine_id),
            ("who is ready", before.ready.engine_id, after.ready.engine_id),
            ("fencing token", before.holder.token, after.holder.token),
            *of_gms(before.weights, after.weights),
            ("times they were loaded", commits(before.weights), commits(after.weights)),
        ]
    )
    check(after.holder.token > before.holder.token, "the fencing token has not grown")
    check_weights(before.weights, after.weights)
    check(commits(after.weights) == 1, "the weights were loaded again")
    return after, seconds


def of_gms(before: gm.Status, after: gm.Status) -> list[tuple[str, object, object]]:
    return [
        ("weights' generation", before.generation, after.generation),
        ("their layout's hash", before.hash[:16], after.hash[:16]),
    ]


def check_weights(before: gm.Status, after: gm.Status) -> None:
    same = (before.generation, before.hash) == (after.generation, after.hash)
    check(same, f"the weights are others: generation {before.generation} was {after.generation}")


# -- act 4 ------------------------------------------------------------------------------------------------------------


def the_servers_die(pair: Pair, before: Whole, undisturbed: Stream) -> int:
    """Returns how many tokens came while not both were back."""
    who = before.holder.engine_id
    title(f"4. kill -9 of the lock server and of GMS, while {who} answers the same question")
    servers = {name: pair.pidfd_of(module) for name, module in (("the lock server", "lockserver"), ("GMS", "gms"))}
    with Stream(before.url, PROMPT, WANTED) as stream:
        stream.until(KILL_SERVERS_AT)
        had = len(stream.ids)
        began = time.monotonic()
        quiet(f"{'ms':>7}  seen from outside")
        for name, (pid, pidfd) in servers.items():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            note(began, f"SIGKILL to {pid}, {name}")
        after, meanwhile = back(pair, before, stream, began)
        stream.to_its_end()
    check(stream.ids == undisturbed.ids, f"{who}'s answer was another with its servers killed")
    gap = max(b - a for a, b in zip(stream.times[had - 1 :], stream.times[had:], strict=False)) * 1000
    note(began, f"{who} has sent all {len(stream.ids)} tokens, the same as ever; the longest pause was {gap:.0f} ms")
    say()
    compare(
        [
            ("who serves", before.holder.engine_id, after.holder.engine_id),
            ("its main process", before.holder.pid, after.holder.pid),
            ("fencing token", before.holder.token, after.holder.token),
            *of_gms(before.weights, after.weights),
            ("process of GMS", before.weights.server_pid, after.weights.server_pid),
            ("lock server", before.lock.server_pid, after.lock.server_pid),
        ]
    )
    check(before.holder == after.holder, f"{who} did not serve on as it was")
    check_weights(before.weights, after.weights)
    check(commits(after.weights) == 0, "the weights were loaded again")
    return meanwhile


def back(pair: Pair, before: Whole, stream: Stream, began: float) -> tuple[Whole, int]:
    """Reads on, and looks who is there again. Returns with both, and the tokens that came until then."""
    had, noted = len(stream.ids), set[str]()

    def seen() -> Whole | None:
        stream.take(0.0)
        lock, weights = pair.lock(), pair.weights()
        if lock is not None and lock.state == "HELD" and lock.server_pid != before.lock.server_pid:
            once(noted, began, "another lock server is there, and knows the holder by itself")
        if weights is not None and weights.state == "RO" and weights.server_pid != before.weights.server_pid:
            once(noted, began, "another GMS is there; the engines have handed it back their weights")
        return look(pair) if len(noted) == 2 else None

    whole = pair.until(seen, "lock server and GMS are back")
    return whole, len(stream.ids) - had


def once(noted: set[str], began: float, what: str) -> None:
    if what not in noted:
        noted.add(what)
        note(began, what)


def note(began: float, what: str) -> None:
    moment(Seen((time.monotonic() - began) * 1000, what))
