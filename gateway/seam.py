"""The text of an answer where another engine goes on with it.

A token is some bytes, and not always whole characters. An engine that goes on behind somebody else's tokens decodes
from its own beginning: its first text may be wrong though its tokens are right. So around the break text is made of all
tokens together, by asking the engine (`/detokenize`); and as soon as the engine itself says the same for a whole piece,
it is believed from there on. `/detokenize` tells special tokens ("<|end|>") as well, which most answers don't show:
whatever looks like one and isn't in the engine's own text is left out.

`Seam` finds what text the client is still owed of the tokens that it has, and gives each new piece its text. `Stops`
then looks for stop strings, which may begin on one side of the break and end on the other: the engine that goes on
isn't told of any. Pure: the questions are put by whoever uses it.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from operator import itemgetter
from typing import Any

UNDECODED = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 32
"""Tokens before the break that are decoded along with it, at first."""
_OVERLAP = 16
"""Characters that have to agree with what the client has."""
_SPECIAL = re.compile(r"<[^][<>\s\ufffd]+>|\[[^][<>\s\ufffd]+\]")
"""What special tokens look like; much that is said looks the same."""
_TRIES = 64
"""So many ways to leave out some of what looks special are compared with what the client has."""


@dataclass(slots=True)
class Piece:
    """What an engine adds to a choice."""

    ids: Sequence[int]
    text: str
    logprobs: Any = None
    finish: str | None = None
    stop: int | str | None = None


class Torn(Exception):
    """The texts on both sides of the break don't fit together."""


class Seam:
    """The seam of one choice. `wants` has the tokens whose text is to be asked for; `heard` is given the answer."""

    def __init__(self, sent: str, ids: Sequence[int], hold: int, *, keep: bool = False) -> None:
        """`sent`: the text that the client has. `hold`: so many characters an engine keeps back behind it, because they
        could be the beginning of a stop string. `keep`: what ends the answer is part of it.
        """
        self._keep = keep
        self._sent = sent
        self._ids = list(ids)
        self._hold = hold
        self._window = self._ids[-(_CONTEXT + hold) :] if sent else list(ids)
        self._begun = False
        self._told = 0
        """How much of the text behind the window's beginning is out, or isn't shown."""
        self._before = ""
        """The text of the window and all pieces but the next."""
        self._said = ""
        """What the engine itself has said of the pieces whose text isn't out."""
        self._pieces: deque[Piece] = deque()
        self._behind: list[int] = []
        """The tokens of the pieces that are out."""
        self.owed = ""
        """The text of old tokens that the client hasn't got; known with the first answer."""
        self.settled = not ids
        """The engine's own text fits."""
        self.wants: list[int] | None = None if self.settled else self._window

    def push(self, piece: Piece) -> list[Piece]:
        """The next piece, as the engine says it. What can be passed on by now."""
        if self.settled:
            return [piece]
        self._pieces.append(piece)
        if self._begun and self.wants is None:
            self._ask()
        return []

    def heard(self, text: str) -> list[Piece]:
        """The text of what it wanted. What can be passed on by now. Raises Torn."""
        self.wants = None
        if not self._begun:
            self._begin(text)
            if self.wants is None and self._pieces:
                self._ask()
            return []
        ready = [self._give(text)]
        if self.settled:
            ready += self._pieces
            self._pieces.clear()
        elif self._pieces:
            self._ask()
        return ready

    def _begin(self, text: str) -> None:
        names = [name for name in _look_special(text) if name not in self._sent]
        if not self._sent:  # without stop strings, whatever is shown and whole would have been sent
            hidden = set() if self._hold else set(names)
            self._start(text, len(_without(text, hidden)), hidden)
            return
        for owes in (_owed, _owed_behind_bytes, _owed_otherwise, _owed_roughly):
            fits = []
            for hidden in islice(_some_of(names), _TRIES):
                owed = owes(self._sent, _without(text, hidden), self._hold)
                if owed is not None:
                    fits.append((owed, hidden))
            if fits:
                self._start(text, *min(fits, key=itemgetter(0)))
                return
        if len(self._window) == len(self._ids):
            raise Torn("the tokens' text doesn't end as the text that was sent")
        self._window = self.wants = self._ids[-2 * len(self._window) :]

    def _start(self, text: str, owed: int, hidden: set[str]) -> None:
        self._begun, self._before = True, text
        shown = _without(text, hidden)
        self.owed = shown[len(shown) - owed :].rstrip(UNDECODED)
        bytes_told = max(0, len(shown) - owed - len(shown.rstrip(UNDECODED)))
        self._told = len(_without_end(text, hidden)) + bytes_told if owed else len(text)

    def _ask(self) -> None:
        piece = self._pieces[0]
        ends = piece.finish == "stop" and not self._keep
        ids = piece.ids[:-1] if ends else piece.ids  # the token that ends an answer has no text
        self.wants = [*self._window, *self._behind, *ids]

    def _give(self, text: str) -> Piece:
        piece = self._pieces.popleft()
        self._behind += piece.ids
        self._said += piece.text
        shown = _shown(text[self._told :], self._said)
        partial = shown.endswith(UNDECODED)
        follows = text.startswith(self._before) and self._told == len(self._before)
        self.settled = follows and not self._before.endswith(UNDECODED) and not partial and shown == piece.text
        self._before = text
        if partial and piece.finish is None:
            return Piece(piece.ids, "", piece.logprobs)
        self._told, self._said = len(text), ""
        shown = shown.rstrip(UNDECODED) if partial else shown
        return Piece(piece.ids, shown, _named(piece.logprobs, shown), piece.finish, piece.stop)


def _named(logprobs: Any, text: str) -> Any:
    """Log probabilities name a token that completes a character after it. The engine that goes on doesn't know how that
    character began, and calls the token nothing.
    """
    names: list[str] = (logprobs.get("tokens") or []) if isinstance(logprobs, dict) else []
    said = "".join(names)
    completes_at = next((at for at, name in enumerate(names) if name), len(names)) - 1
    if completes_at < 0 or len(text) <= len(said) or not text.endswith(said) or UNDECODED in text:
        return logprobs
    name = text[: len(text) - len(said)]
    named = {**logprobs, "tokens": [*names[:completes_at], name, *names[completes_at + 1 :]]}
    tops = logprobs.get("top_logprobs")
    if tops and tops[completes_at]:
        own = {other or name: value for other, value in tops[completes_at].items()}
        named["top_logprobs"] = [*tops[:completes_at], own, *tops[completes_at + 1 :]]
    return named


def _shown(text: str, said: str) -> str:
    """This text without what the engine, who has said that of it, doesn't show. The end of a name may be missing: the
    engine keeps back a token in which a character begins.
    """
    unsaid = len(text.rstrip(UNDECODED)) if text.endswith(UNDECODED) else -1

    def is_said(name: re.Match[str]) -> bool:
        begun = (name[0][:many] for many in range(1, len(name[0])))
        return name[0] in said or (name.end() == unsaid and said.endswith(tuple(begun)))

    return _SPECIAL.sub(lambda name: name[0] if is_said(name) else "", text)


def _look_special(text: str) -> list[str]:
    return list(dict.fromkeys(_SPECIAL.findall(text)))


def _some_of(names: list[str]) -> Iterable[set[str]]:
    """Every choice of them, the small ones first."""
    for many in range(len(names) + 1):
        yield from map(set, combinations(names, many))


def _without(text: str, hidden: Iterable[str]) -> str:
    for name in hidden:
        text = text.replace(name, "")
    return text


def _without_end(text: str, hidden: Iterable[str]) -> str:
    """Without the characters that have begun at its end, and what is hidden between them."""
    return re.sub(rf"(?:{'|'.join(map(re.escape, (UNDECODED, *hidden)))})+\Z", "", text)


def _owed(sent: str, text: str, hold: int) -> int | None:
    """How many characters at the end of this text the client hasn't. None: the two don't fit, as far as can be seen."""
    undecoded = len(text) - len(text.rstrip(UNDECODED))
    for owed in (hold + undecoded, hold):
        common = min(_OVERLAP, len(text) - owed, len(sent))
        if common > 0 and text[len(text) - owed - common : len(text) - owed] == sent[-common:]:
            return owed
    return None


def _owed_behind_bytes(sent: str, text: str, hold: int) -> int | None:
    """The same where the client's last characters are bytes as well, a line's end as some tokenizers have it: together
    with a character that has begun they aren't decoded any more.
    """
    undecoded = len(text) - len(text.rstrip(UNDECODED))
    for told in range(1, 1 if hold else undecoded):
        if not sent[-told:].isascii():
            return None
        if _owed(sent[:-told], text, 0) == undecoded:
            return undecoded - told
    return None


def _owed_otherwise(sent: str, text: str, hold: int) -> int | None:
    """The same where the last token is whole characters and the beginning of another; and where there was no reason to
    keep anything back, so that all that doesn't fit isn't shown.
    """
    undecoded = len(text) - len(text.rstrip(UNDECODED))
    if not undecoded:
        return None if hold else 0
    tail = sent[-_OVERLAP:]
    at = text.rfind(tail) if len(tail) == _OVERLAP else 0 if text.startswith(sent) else -1
    owed = len(text) - at - len(tail)
    return owed if at >= 0 and owed > hold + undecoded else None


def _owed_roughly(sent: str, text: str, hold: int) -> int | None:
    """The same where bytes that are no characters are told differently, since a token that isn't shown lies between
    them: only what is behind the last of them is compared.
    """
    owed = hold + len(text) - len(text.rstrip(UNDECODED))
    before, _, ours = text[: len(text) - owed].rpartition(UNDECODED)
    theirs = sent.rpartition(UNDECODED)[2]
    common = min(_OVERLAP, len(ours), len(theirs))
    return owed if before and common and ours[-common:] == theirs[-common:] else None


class Stops:
    """Stop strings in the text of one choice, as the engine would have looked for them."""

    def __init__(self, stop: tuple[str, ...], *, keep: bool, min_tokens: int, count: int, sent: str, owed: str) -> None:
        self._stop = stop
        self._keep = keep
        self._min_tokens = min_tokens
        self._count = count
        longest = max(map(len, stop), default=1) - 1
        self._hold = 0 if keep else longest
        tail = sent[-longest:] if longest else ""
        self._text = tail + owed
        self._told = len(tail)
        self._longest = longest

    def push(self, piece: Piece) -> Piece:
        """The same piece with the text that can be told, and with its end if a stop string is complete."""
        self._count += len(piece.ids)
        self._text += piece.text
        found = self._found(len(piece.text)) if self._count > self._min_tokens else None
        if found is not None:
            string, end = found
            return Piece(piece.ids, self._tell(end), piece.logprobs, "stop", string)
        if piece.finish is not None:
            return Piece(piece.ids, self._tell(len(self._text)), piece.logprobs, piece.finish, piece.stop)
        text = self._tell(len(self._text) - self._hold)
        past = max(0, min(self._told, len(self._text) - self._longest))
        self._text = self._text[past:]
        self._told -= past
        return Piece(piece.ids, text, piece.logprobs)

    def rest(self) -> str:
        """All that was held back: the answer ends here."""
        return self._tell(len(self._text))

    def _tell(self, end: int) -> str:
        end = max(end, self._told)
        text = self._text[self._told : end]
        self._told = end
        return text

    def _found(self, new: int) -> tuple[str, int] | None:
        """The stop string that is complete first, and where the answer's text ends."""
        best: tuple[int, str, int] | None = None
        for string in self._stop if new else ():
            at = self._text.find(string, max(0, len(self._text) - new - len(string) + 1))
            if at >= 0 and (best is None or at + len(string) < best[0]):
                best = (at + len(string), string, at)
        if best is None:
            return None
        end, string, at = best
        return string, end if self._keep else at
