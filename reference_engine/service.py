"""The loop that does the work: one thread, in which requests come in, steps are made and tokens go out.

A token is handed on as soon as it is there. Between two steps the loop looks after its connections. What fails in a
step (a worker process that is gone, memory that isn't there) breaks the engine: it says so to no client, ends
all their connections, and leaves the rest to its shim.

What this file may not do: speak HTTP (`sidecar/http/http_server.py`), or know what is asked for (`app.py`).
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from reference_engine.answer import Answer, Piece, Question
from reference_engine.kv_prefix import Chain, Key
from reference_engine.model import CHUNK
from reference_engine.places import BLOCK, Floats, Span
from reference_engine.sampling import Chosen, Sampler, chosen
from reference_engine.scheduler import Job, Scheduler
from sidecar.terminal.logs import Log

PROMPTS = 4 * CHUNK
"""So many positions of prompts a step computes at most."""
_END_S = 2.0
_LATEST_S = 0.0005
"""A step that is due so soon is made now: the loop's clock isn't finer."""


class Forward(Protocol):
    def forward(self, asked: list[tuple[list[int], Span]]) -> Iterable[Floats]: ...


class Work(Job):
    """One request being answered."""

    def __init__(self, question: Question, tell: Callable[[Piece], None], broke: Callable[[str], None]) -> None:
        super().__init__(len(question.prompt) + question.max_tokens)
        self.tell = tell
        self.broke = broke
        self.answer = Answer(question)
        self.question = question
        self.sampler = Sampler(question.sampling, question.prompt)
        self.chosen: tuple[Chosen, ...] = ()
        """What was said of the newest token, if that was asked for."""
        self.todo = list(question.prompt)
        """Tokens that aren't in the cache yet."""
        self.done = 0
        """How many are."""
        self.chain = Chain(question.prompt)
        self.keys = self.chain.keys

    @property
    def reusable(self) -> Sequence[Key]:
        """At least the last token of the prompt is computed."""
        return self.keys[: (len(self.question.prompt) - 1) // BLOCK]

    def came_in(self) -> None:
        self.done = self.known * BLOCK
        del self.todo[: self.done]

    def said(self, token: int) -> None:
        """It goes into the cache with the next step."""
        self.todo = [token]
        self.chain.extend(self.todo)


class Service:
    def __init__(self, model: Forward, scheduler: Scheduler, log: Log) -> None:
        self._model = model
        self._scheduler = scheduler
        self._log = log
        self._step: asyncio.Handle | None = None
        self._idle = threading.Event()
        self._idle.set()
        self.steps = 0
        self.broken = ""
        self.on_broken: Callable[[], None] = lambda: None
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="reference", daemon=True)
        self._thread.start()

    # -- from other threads ----------------------------------------------------------------------------------------

    def call(self, what: Callable[[], None]) -> None:
        """Does it in the loop, and waits until it is done."""

        async def done() -> None:
            what()

        self.run(done())

    def run(self, what: Coroutine[None, None, None], timeout_s: float = 10.0) -> None:
        """Raises TimeoutError if the loop is held by a step that doesn't end."""
        asyncio.run_coroutine_threadsafe(what, self.loop).result(timeout_s)

    @property
    def queued(self) -> int:
        return self._scheduler.queued

    @property
    def running(self) -> int:
        return self._scheduler.running

    def wait_idle(self, timeout_s: float) -> bool:
        """Until no request is being answered or waits for it."""
        return self._idle.wait(timeout_s)

    def stop(self) -> None:
        """Ends the loop. Requests that are being answered aren't told."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(_END_S)

    # -- in the loop -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._scheduler.open()

    def close(self, why: str) -> None:
        """Takes no new request."""
        self._scheduler.close(why)

    def ask(self, work: Work) -> None:
        """Raises NotNow or TooLong."""
        self._scheduler.add(work)
        self._idle.clear()
        self._plan()

    def break_off(self, why: str) -> None:
        """No request is answered any further."""
        for job in self._scheduler.jobs:
            self._scheduler.end(job)
            if isinstance(job, Work):
                job.broke(why)
        self._plan()

    def forget(self, work: Work) -> None:
        """Its client wants it no more."""
        self._scheduler.end(work)
        self._plan()

    def _plan(self) -> None:
        """Sees to it that the next step is made when it is due."""
        if self._step is not None:
            self._step.cancel()
            self._step = None
        if not self._scheduler.queued:
            self._idle.set()
            return
        if self.broken:
            return
        at = self._scheduler.next_at()
        if at is None:
            return
        if at - self.loop.time() < _LATEST_S:
            self._step = self.loop.call_soon(self._make_step)
        else:
            self._step = self.loop.call_at(at, self._make_step)

    def _make_step(self) -> None:
        self._step = None
        works = self._chosen()
        asked = []
        for work in works:
            tokens, work.todo = work.todo[:CHUNK], work.todo[CHUNK:]
            asked.append((tokens, Span(work.done, len(tokens), work.blocks)))
        try:
            logits = self._model.forward(asked) if asked else ()
            told = [self._advance(work, len(its[0]), row) for work, its, row in zip(works, asked, logits, strict=True)]
        except Exception as error:  # whatever it is: it may have left the model half-way
            self._break(f"{type(error).__name__}: {error}")
            return
        for work, token in zip(works, told, strict=True):
            if token is not None and work.blocks:  # else it was ended by what another's token set off
                self._tell(work, token)
        self.steps += 1
        self._plan()

    def _chosen(self) -> list[Work]:
        """All that are due, but only so many positions of prompts at a time: a request in the middle of its answer
        has to wait for them.
        """
        found, positions = [], 0
        for job in self._scheduler.step(self.loop.time() + _LATEST_S):
            if not isinstance(job, Work):
                continue
            size = min(len(job.todo), CHUNK)
            if size > 1:
                if positions and positions + size > PROMPTS:
                    continue
                positions += size
            found.append(job)
        return found

    def _advance(self, work: Work, size: int, logits: Floats) -> int | None:
        """Its next token, if its prompt is through."""
        question = work.question
        work.done += size
        self._scheduler.computed(work, work.done)
        if work.todo:
            return None
        token = work.sampler.choose(logits, work.answer.banned, work.answer.only)
        if question.logprobs is not None:
            work.chosen = (chosen(logits, token, question.logprobs),)
        work.said(token)
        return token

    def _tell(self, work: Work, token: int) -> None:
        try:
            piece = replace(work.answer.push(token), logprobs=work.chosen)
            self._scheduler.told(work, self.loop.time())
            if piece.finish_reason is not None:
                self._scheduler.end(work)
            work.tell(piece)
        except Exception as error:  # a mistake in here costs this request, and no other
            self._log.alarm("answer_failed", error=f"{type(error).__name__}: {error}")
            self._scheduler.end(work)
            work.broke(str(error))

    def _break(self, why: str) -> None:
        self.broken = why
        self._log.alarm("engine_broken", why=why)
        self._scheduler.close("the engine is broken")
        self.break_off(why)
        self.on_broken()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()
