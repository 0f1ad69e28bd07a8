"""Which model is to answer a request, of many: by its names, its client's profile, and ladders `a|b`. Pure.

1. A name is a model's own, or one of its aliases; an entry with a ladder is a name for other models, and so is `a|b`. A
   profile says for its clients what a name means. What isn't known is left out of a ladder; where nothing
   of it is known, the error has the names that are nearly the same.
2. While fallbacks to the cloud aren't allowed, the remote models of a ladder are left out, but for one that stands
   first: that is no fallback, but what was asked for. So no ladder is left empty.
3. The first model of a ladder that can answer is asked: one that hasn't failed, with room for the request, and in time
   for its deadline. A later one that is awake goes before it only where the first would take longer than a bound
   (`AWAKE_FIRST_MS`), never if it is remote, and not in a ladder whose entry says `in_order`.
4. What can't be answered in time is refused at once, with the estimate. What is taken is kept until its deadline.

What this file may not do: know what a request says beside its model (`wishes.py`), or keep anything.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from gateway.rules import events as e
from gateway.rules.errors import Refusal
from pool.entries import Entry, Flags, ModelOutlook, Profile, State
from sidecar.terminal.names import is_meant

NEAR, ASKED_MOST, RUNGS_MOST = 3, 2000, 64
AWAKE_FIRST_MS = 5000
_READY = ModelOutlook(state=State.AWAKE, estimate_ms=0)
_UNKNOWN = ModelOutlook()


class Catalogue:
    """What models there are, as the pool said it last."""

    def __init__(
        self,
        entries: Sequence[Entry] = (),
        profiles: Sequence[Profile] = (),
        flags: Flags | None = None,
        default: str = "",
    ) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.flags = flags or Flags()
        self.default = default
        self._profiles = {client: profile for profile in reversed(profiles) for client in profile.clients}
        also = {alias: entry for entry in reversed(entries) for alias in entry.aliases}
        self._named = also | self.entries
        """What each is called: a model's own name goes before another's alias."""

    def profile_of(self, client: str) -> Profile | None:
        return self._profiles.get(client)

    def candidates(self, asked: str, client: str) -> list[Entry]:
        """The models that may answer, in the ladder's order. Raises Refusal."""
        if not self.entries:
            raise Refusal(503, "no model is known yet: the pool hasn't said any", retry_after_s=1)
        asked = asked or self.default
        if not asked:
            raise Refusal(400, f"a request has to name its model; there are: {self._there()}")
        profile = self.profile_of(client)
        meant = profile.models if profile is not None else {}
        rungs = list(islice(self._rungs(asked[:ASKED_MOST], meant, set()), RUNGS_MOST))
        if not self.flags.allow_cloud_fallback:
            rungs = rungs[:1] + [(name, entry) for name, entry in rungs[1:] if entry is None or entry.remote is None]
        found = {entry.name: entry for _, entry in rungs if entry is not None}
        if not found:
            near = next(filter(None, (is_meant(name, self._named) for name, _ in rungs[:NEAR])), "")
            raise Refusal(404, f"the model {asked[:200]!r} does not exist{near or f'; there are: {self._there()}'}")
        return list(found.values())

    def in_order(self, asked: str, client: str) -> bool:
        """The quality of the first matters more than when it comes."""
        asked, profile = asked or self.default, self.profile_of(client)
        entry = self._named.get(profile.models.get(asked, asked) if profile is not None else asked)
        return entry is not None and entry.in_order

    def _rungs(self, asked: str, meant: Mapping[str, str], done: set[str]) -> Iterator[tuple[str, Entry | None]]:
        """Every name of a ladder, and what it is. What a profile says, and each ladder, counts once."""
        if asked in meant:
            asked, meant = meant[asked], {}
        for name in filter(None, map(str.strip, asked.split("|"))):
            entry = self._named.get(name)
            if name in meant:
                yield from self._rungs(name, meant, done)
            elif entry is None or not entry.ladder:
                yield name, entry
            elif entry.name not in done:
                done.add(entry.name)
                yield from self._rungs("|".join(entry.ladder), {}, done)

    def awake(self, outlook: Mapping[str, ModelOutlook]) -> list[Entry]:
        """For a request that asks no model: the first that is awake. Raises Refusal."""
        for entry in self.entries.values():
            if entry.runs and outlook_of(entry, outlook).state is State.AWAKE:
                return [entry]
        raise Refusal(503, "no model is awake, and this request names none", retry_after_s=1)

    def _there(self) -> str:
        return ", ".join(sorted(self.entries)[:50])


# -- which of a ladder -----------------------------------------------------------------------------------------------


def order(
    candidates: Sequence[Entry],
    outlook: Mapping[str, ModelOutlook],
    load: Callable[[Entry], tuple[int, int]],
    deadline_ms: int | None,
    awake_first_ms: float = AWAKE_FIRST_MS,
) -> list[Entry]:
    """The models that can answer, in the order in which they are to be asked. `load`: how many requests wait for one,
    and how many this client has there. `awake_first_ms`: where the first needs longer, one that is awake goes before
    it. Raises Refusal, with the first one's reason.
    """
    why: Refusal | None = None
    can: list[Entry] = []
    for entry in candidates:
        refusal = _why_not(entry, outlook_of(entry, outlook), *load(entry), deadline_ms)
        why = why or refusal
        if refusal is None:
            can.append(entry)
    if not can:
        assert why is not None
        raise why
    if _needs_ms(can[0], outlook) > awake_first_ms:
        awake = next((it for it in can if it.remote is None and outlook_of(it, outlook).state is State.AWAKE), can[0])
        can = [awake, *(entry for entry in can if entry is not awake)]
    return can


def outlook_of(entry: Entry, outlook: Mapping[str, ModelOutlook]) -> ModelOutlook:
    return _READY if entry.remote is not None else outlook.get(entry.name, _UNKNOWN)


def all_have_failed(entries: Iterable[Entry], outlook: Mapping[str, ModelOutlook]) -> bool:
    """A ladder is no model."""
    return all(outlook_of(entry, outlook).state is State.FAILED for entry in entries if not entry.ladder)


def states(outlook: Mapping[str, ModelOutlook]) -> dict[str, State]:
    return {name: seen.state for name, seen in outlook.items()}


def _needs_ms(entry: Entry, outlook: Mapping[str, ModelOutlook]) -> float:
    estimate = outlook_of(entry, outlook).estimate_ms
    return math.inf if estimate is None else estimate


def _why_not(entry: Entry, seen: ModelOutlook, waiting: int, of_client: int, deadline_ms: int | None) -> Refusal | None:
    name, limits, later_s = entry.name, entry.limits, _later_s(seen)
    if seen.leaving:
        return Refusal(404, f"the model {name!r} is being taken away")
    if seen.state is State.FAILED:
        return Refusal(503, _failed(entry, seen), retry_after_s=later_s)
    if of_client >= limits.per_client:
        why = f"{limits.per_client} requests of this client are at the model {name!r} already"
        return Refusal(429, why, retry_after_s=later_s)
    if waiting >= limits.waiting:
        return Refusal(429, f"{limits.waiting} requests wait for the model {name!r} already", retry_after_s=later_s)
    soonest_ms = seen.estimate_ms if seen.soonest_ms is None else seen.soonest_ms
    if deadline_ms is not None and soonest_ms is not None and soonest_ms > deadline_ms:
        why = (
            f"the model {name!r} is {seen.state.value}, and can answer in about {soonest_ms / 1000:.1f} s: later "
            f"than the {deadline_ms / 1000:g} s that this request has"
        )
        return Refusal(504, why, retry_after_s=later_s, estimate_ms=soonest_ms)
    return None


def _later_s(seen: ModelOutlook) -> int:
    return math.ceil((seen.estimate_ms or 1) / 1000)


def _failed(entry: Entry, seen: ModelOutlook) -> str:
    again = f"; it may be asked again in {_later_s(seen)} s" if seen.estimate_ms else ""
    return f"the model {entry.name!r} can't be served now: {seen.why or 'it failed'}{again}"


# -- in words --------------------------------------------------------------------------------------------------------


def told(entry: Entry, seen: ModelOutlook, *, away: bool) -> e.Outlook:
    """What the pool says, for a model's own machine: `loading, third in the queue, about 4 s`."""
    if entry.remote is not None:
        return e.Outlook("")
    if seen.state is State.FAILED:
        return e.Outlook(seen.state.value, _failed(entry, seen), _later_s(seen))
    if away:
        return e.Outlook(f"{seen.state.value}, as the pool said before it went away")
    turn = f"{_ordinal(seen.turn)} in the queue" if seen.turn else ""
    about = f"about {math.ceil(seen.estimate_ms / 1000)} s" if seen.estimate_ms else ""
    never = seen.why.removeprefix(f"{turn}: ") if seen.estimate_ms is None else ""
    return e.Outlook(", ".join(filter(None, (seen.state.value, turn, about, never))))


def listed(entry: Entry, seen: ModelOutlook, created: int, max_len: int | None) -> dict[str, object]:
    """As OpenAI's clients list a model, and its state."""
    said: dict[str, object] = {"id": entry.name, "object": "model", "created": created, "owned_by": "failover"}
    said |= {"state": seen.state.value, "aliases": entry.aliases, "estimate_ms": seen.estimate_ms}
    return said if max_len is None else said | {"max_model_len": max_len}


def _ordinal(number: int) -> str:
    words = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    return words[number - 1] if number <= len(words) else f"number {number}"
