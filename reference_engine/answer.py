"""From tokens to what a client is told: text, when it ends, and why.

Text is held back while it may still become a character (`tokenizer.py`), and while it may still become a stop string,
which is not to be seen. Token ids are never held back. Pure.
"""

from dataclasses import dataclass, field

from reference_engine import grammar, tokenizer
from reference_engine.grammar import Grammar
from reference_engine.sampling import Chosen, Sampling


@dataclass(frozen=True)
class Question:
    """What is to be generated."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    keep_stop: bool = False
    """The stop string is part of the answer."""
    ignore_end: bool = False
    min_tokens: int = 0
    show_special: bool = False
    """Special tokens are shown by their names."""
    grammar: Grammar | None = None
    """What the answer has to look like."""
    logprobs: int | None = None
    """For each token its log probability, and those of so many of the likeliest."""
    answered: int = 0
    """So many of the prompt's last tokens are the answer's beginning."""
    told: int = 0
    """So many characters of their text the client has."""


@dataclass(frozen=True)
class Piece:
    """What one token adds to an answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    """`stop` or `length`."""
    stop_reason: str | int | None = None
    """The stop string or token that ended it; None for the model's own end."""
    logprobs: tuple[Chosen, ...] = ()


class Answer:
    def __init__(self, question: Question) -> None:
        self._question = question
        self._detokenizer = tokenizer.Detokenizer(special=question.show_special)
        self._ends = question.stop_token_ids | (frozenset() if question.ignore_end else {tokenizer.END})
        self._window = max(map(len, question.stop), default=1) - 1
        """A stop string that isn't complete yet began at most so many characters ago."""
        self._hold = 0 if question.keep_stop else self._window
        self._tail = ""
        """The last of the text, at least the window."""
        self._told = 0
        """How much of it the client has."""
        self.count = 0
        self._grammar = question.grammar
        self._go_on()

    def _go_on(self) -> None:
        """Behind an answer's beginning: as if its tokens had been pushed, and so much of their text been told."""
        question = self._question
        for token in question.prompt[len(question.prompt) - question.answered :]:
            self._tail += self._detokenizer.push(token)
        self._told = question.told

    @property
    def only(self) -> frozenset[int] | None:
        """What may come next; None for anything."""
        return None if self._grammar is None else grammar.allowed(self._grammar)

    @property
    def banned(self) -> frozenset[int]:
        """What must not come next."""
        return self._ends if self.count < self._question.min_tokens else frozenset()

    def push(self, token: int) -> Piece:
        """The next token. Behind one that finishes there is none."""
        self.count += 1
        if self._grammar is not None and token != tokenizer.END:
            self._grammar = grammar.after(self._grammar, token)
        if token in self._ends:
            return Piece(self._tell(len(self._tail)), (token,), "stop", None if token == tokenizer.END else token)
        new = self._detokenizer.push(token)
        self._tail += new
        stopped = self._stopped(len(new))
        if stopped is not None:
            string, end = stopped
            return Piece(self._tell(end), (token,), "stop", string)
        if self.count >= self._question.max_tokens:
            return Piece(self._tell(len(self._tail)), (token,), "length")
        text = self._tell(max(self._told, len(self._tail) - self._hold))
        past = max(0, len(self._tail) - self._window)
        self._tail = self._tail[past:]
        self._told -= past
        return Piece(text, (token,))

    def _tell(self, end: int) -> str:
        text = self._tail[self._told : end]
        self._told = end
        return text

    def _stopped(self, new: int) -> tuple[str, int] | None:
        """The stop string that is complete first in so many new characters, and where the answer ends."""
        if self.count <= self._question.min_tokens or not new:
            return None
        old = len(self._tail) - new
        ends = [
            (at + len(string), string)
            for string in self._question.stop
            if (at := self._tail.find(string, max(0, old - len(string) + 1))) >= 0
        ]
        if not ends:
            return None
        end, string = min(ends, key=lambda found: found[0])
        return string, end if self._question.keep_stop else end - len(string)
