"""The demo's second act: a kill -9 in the middle of an answer, and what shows of it from outside, in one loop.

Watched are the killed process's pidfd, the client's stream, and what the lock server tells any observer. The demo takes
no part in the handoff; only the wake's own durations are told by the engine (its shim's `/state`).
"""

import select
import signal
import time
from dataclasses import dataclass, field

from demo.client import Stream
from demo.machine import NotSo
from demo.pair import PATIENCE_S, Pair
from demo.words import Seen
from lockserver import messages as m
from lockserver.observer import Observer, ServerSilent

PARTS = {"remap": "weights mapped", "kv": "KV cache"}


@dataclass
class Handoff:
    seen: list[Seen]
    holder: m.HolderState
    """Who serves now."""
    killed_at: float
    wake: str = ""
    """How long it took, by the clock of who woke."""


@dataclass
class _Watch:
    before: m.HolderState
    stream: Stream
    wanted: int
    began: float = field(default_factory=time.monotonic)
    seen: list[Seen] = field(default_factory=list)
    noted: set[str] = field(default_factory=set)

    def note(self, what: str, once: str = "") -> None:
        if once not in self.noted:
            self.seen.append(Seen((time.monotonic() - self.began) * 1000, what))
        if once:
            self.noted.add(once)

    def client(self) -> None:
        self.stream.take(0.0)
        if self.stream.whole:
            raise NotSo("the answer was over before its engine was dead")
        if self.stream.over:
            self.note(f"the client's answer breaks off: it has {len(self.stream.ids)} of {self.wanted} tokens", "over")

    def lock(self, status: m.Status) -> m.HolderState | None:
        """Returns who serves, once that is another."""
        old, now = self.before, status.holder
        if status.state == "FENCING":
            self.note(f"{old.engine_id} is fenced: the lock server wants proof of its end", "fenced")
        if now is None or now.token == old.token:
            return None
        self.note(f"{now.engine_id} is granted the lock, with token {now.token}", "granted")
        if not now.endpoint:
            return None
        self.note(f"{now.engine_id} serves: it has said where", "serves")
        return now


def kill_and_watch(pair: Pair, before: m.HolderState, pidfd: int, stream: Stream, wanted: int) -> Handoff:
    """Kills the main process of whoever serves, and returns when another serves and the client has seen it, too."""
    with Observer(pair.run_dir) as observer:
        observer.tell(m.Watch())
        observer.hear(m.Status, PATIENCE_S)
        watch = _Watch(before, stream, wanted)
        watch.note(f"SIGKILL to {before.pid}, the main process of {before.engine_id}")
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        for fd in (pidfd, observer.fileno(), stream.fileno()):
            poll.register(fd, select.POLLIN)
        after: m.HolderState | None = None
        while after is None or not stream.over or "dead" not in watch.noted:
            ready = {fd for fd, _ in poll.poll(PATIENCE_S * 1000)}
            if not ready:
                raise NotSo(f"nobody serves {PATIENCE_S:g} s after the kill; seen last: {watch.seen[-1].what}")
            if pidfd in ready:
                poll.unregister(pidfd)
                watch.note(f"{before.pid} is dead, says its pidfd", "dead")
            if stream.fileno() in ready:
                watch.client()
                if stream.over:
                    poll.unregister(stream)
            if observer.fileno() in ready:
                for status in _come(observer):
                    after = watch.lock(status) or after
        return Handoff(watch.seen, after, watch.began)


def go_on(pair: Pair, handoff: Handoff, stream: Stream, wanted: int) -> Stream:
    """The client asks whoever serves now to continue from the ids that it has. Adds to what was seen."""
    who = handoff.holder.engine_id
    with Stream(handoff.holder.endpoint or "", stream.prompt_ids + stream.ids, wanted - len(stream.ids)) as rest:
        rest.until(1)
        if not rest.times:
            raise NotSo(f"{who} ends the continued answer before its first token")
        ms = (rest.times[0] - handoff.killed_at) * 1000
        handoff.seen.append(Seen(ms, f"the client has asked {who} to go on, and has its first token"))
        rest.to_its_end()
    spent = pair.engine(who)["phases_s"]
    parts = ", ".join(f"{word} {spent[name] * 1000:.1f}" for name, word in PARTS.items() if name in spent)
    handoff.wake = f"By its own clock {who} was awake {spent['wake'] * 1000:.1f} ms after its grant ({parts})."
    return rest


def _come(observer: Observer) -> list[m.Status]:
    """What has come by now."""
    came: list[m.Status] = []
    try:
        while True:
            came.append(observer.hear(m.Status, 0.0))
    except ServerSilent:
        return came
