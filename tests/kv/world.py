"""A simulated engine whose KV cache outlives it: a scheduler that plans ahead, the workers of its ranks, and the table.

The table, the publisher, the adoption and the reference engine's own blocks are the real ones. Simulated is what they
stand on: memory whose writer can die between any two stores, and workers that execute the scheduler's steps later, each
at a pace of its own, in pieces. One seed is one schedule: engines follow each other. Each is killed at a random store
or between two of its workers' writes, and workers may outlive their scheduler.

What is checked, at each step of each worker: every block that a request builds on holds what the request's key says, on
this rank, at this moment. And at each adoption: so does every record.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine_shim.kv import adoption
from engine_shim.kv.publishing import Publisher, Step
from engine_shim.kv.table import Table, table_bytes
from reference_engine.kv_prefix import Blocks, Chain, Key
from reference_engine.places import BLOCK

DIGEST = bytes(range(32))
BLOCKS = 10
RANKS = 2
ENGINES = 4
BATCH = 3
GARBAGE = b"garbage"


class Violation(AssertionError):
    """A block doesn't hold what an engine believes that it holds."""


class Killed(BaseException):
    """The process that stores here has died."""


class MortalWords:
    """Memory of which each word is stored at once, by a process that dies after so many stores. Of what it stored last
    some may be missing then: everything back to the last check sum that it cleared is in doubt.
    """

    def __init__(self, size: int, rng: random.Random) -> None:
        self.words = [0] * size
        self._rng = rng
        self._doubtful: list[tuple[int, int]] = []
        self.left = -1
        """Stores until it dies; below 0: it doesn't."""

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, at: int, /) -> int:
        return self.words[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self.words)

    def __setitem__(self, at: int, value: int, /) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1
        if value == 0 and at % 8 == 0:
            self._doubtful.clear()
        else:
            self._doubtful.append((at, self.words[at]))
        self.words[at] = value

    def die(self) -> None:
        """The order in which the last stores reached the memory can't be known. Complete records are not lost: what
        came before the last one's end is certain.
        """
        lost = [store for store in self._doubtful if self._rng.random() < 0.5]
        for at, value in reversed(lost):
            self.words[at] = value
        self._doubtful.clear()


@dataclass(eq=False)
class Asked:
    """A request: its tokens, prompt and answer together, and how far it is."""

    tokens: list[int]
    prompt: int
    keys: list[Key]
    blocks: tuple[int, ...] = ()
    planned: int = 0
    """Positions that steps were made for."""


@dataclass
class Write:
    request: Asked
    start: int
    size: int
    blocks: tuple[int, ...]


@dataclass
class Planned:
    """One step: what its workers are to write, and what it fills."""

    writes: list[Write]
    fills: Step
    to_do: set[int] = field(default_factory=lambda: set(range(RANKS)))
    """Ranks that have not finished it."""


class Pool:
    """What outlives engines."""

    def __init__(self, rng: random.Random) -> None:
        self.words = MortalWords(table_bytes(BLOCKS) // 8, rng)
        self.contents: list[list[bytes]] = [[GARBAGE] * BLOCKS for _ in range(RANKS)]


class Engine:
    def __init__(self, pool: Pool, rng: random.Random) -> None:
        self.pool = pool
        self.rng = rng
        table = Table(pool.words, BLOCKS)
        adopted = adoption.adopt(table, DIGEST)
        for record in adopted.records:
            for rank in range(RANKS):
                if pool.contents[rank][record.block] != record.key:
                    raise Violation(f"the record of block {record.block} is believed, and rank {rank} has other data")
        self.adopted = len(adopted.records)
        self.publisher = Publisher(table)
        self.blocks = Blocks(BLOCKS, self.publisher.hand_out)
        self.blocks.adopt((record.block, record.key) for record in adopted.records)
        self.running: list[Asked] = []
        self.steps: deque[Planned] = deque()
        self.queues: list[deque[Planned]] = [deque() for _ in range(RANKS)]
        self.piece: list[list[tuple[int, bytes]]] = [[] for _ in range(RANKS)]
        """What is left of the step that a worker is at."""

    # -- the scheduler ---------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """May run ahead of what has finished."""
        if len(self.steps) >= 2:
            return
        while len(self.running) < BATCH and self.rng.random() < 0.7:
            request = self._comes()
            if not self.blocks.fits(len(request.tokens), self._of_prompt(request)):
                break
            taken = self.blocks.take(len(request.tokens), self._of_prompt(request))
            request.blocks, request.planned = taken.blocks, taken.reused * BLOCK
            self.running.append(request)
        planned = Planned([], Step())
        for request in list(self.running):
            size = min(self.rng.choice((1, BLOCK // 2, BLOCK, 2 * BLOCK)), len(request.tokens) - request.planned)
            planned.writes.append(Write(request, request.planned, size, request.blocks))
            before, request.planned = request.planned, request.planned + size
            for place in range(before // BLOCK, request.planned // BLOCK):
                block, key = request.blocks[place], request.keys[place]
                if self.blocks.filled(block, key):
                    self.publisher.fills(planned.fills, block, key, (place + 1) * BLOCK)
            if request.planned == len(request.tokens):
                self._ends(request)
        if planned.writes:
            self.steps.append(planned)
            for queue in self.queues:
                queue.append(planned)

    def abort(self) -> None:
        """A client goes away while its steps are under way."""
        if self.running:
            self._ends(self.rng.choice(self.running))

    def collect(self) -> None:
        """Steps finish in their order."""
        while self.steps and not self.steps[0].to_do:
            self.publisher.finished(self.steps.popleft().fills)

    def _comes(self) -> Asked:
        rng = random.Random(self.rng.randrange(3))  # three families of prompts that share beginnings
        tokens = [rng.randrange(300) for _ in range(2 * BLOCK)]
        tokens = tokens[: self.rng.randrange(1, 2 * BLOCK)]
        tokens += [self.rng.randrange(2) for _ in range(self.rng.randrange(1, 2 * BLOCK))]
        return Asked(tokens, self.rng.randrange(1, len(tokens) + 1), Chain(tokens).keys)

    def _of_prompt(self, request: Asked) -> list[Key]:
        return request.keys[: (request.prompt - 1) // BLOCK]

    def _ends(self, request: Asked) -> None:
        self.running.remove(request)
        self.blocks.give(request.blocks)

    # -- the workers -----------------------------------------------------------------------------------------------

    def work(self, rank: int) -> None:
        """One piece of a step."""
        queue, contents = self.queues[rank], self.pool.contents[rank]
        if not queue:
            return
        if not self.piece[rank]:
            for write in queue[0].writes:
                self._builds_on(write, rank)
                self.piece[rank] += self._pieces(write)
        block, value = self.piece[rank].pop(0)
        contents[block] = value
        if not self.piece[rank]:
            queue.popleft().to_do.discard(rank)

    def _builds_on(self, write: Write, rank: int) -> None:
        for place in range(write.start // BLOCK):
            if self.pool.contents[rank][write.blocks[place]] != write.request.keys[place]:
                raise Violation(f"block {write.blocks[place]} of rank {rank} doesn't hold what a request builds on")

    def _pieces(self, write: Write) -> list[tuple[int, bytes]]:
        """Nothing is written at once: a block is garbage until the step is through with it."""
        end = write.start + write.size
        found = []
        for place in range(write.start // BLOCK, -(-end // BLOCK)):
            found.append((write.blocks[place], GARBAGE))
            if (place + 1) * BLOCK <= end:
                found.append((write.blocks[place], write.request.keys[place]))
        return found


class World:
    def __init__(self, seed: int, proof: bool = True) -> None:
        """Without the proof, a successor doesn't wait for the end of its predecessor's workers."""
        self.rng = random.Random(seed)
        self.seed = seed
        self.proof = proof
        self.adopted = self.reused = 0

    def run(self) -> None:
        try:
            self._run()
        except Violation as violation:
            raise Violation(f"seed {self.seed}: {violation}") from None

    def _run(self) -> None:
        pool = Pool(self.rng)
        late: Engine | None = None
        for _ in range(ENGINES):
            pool.words.left = self.rng.choice((-1, self.rng.randrange(40), self.rng.randrange(400)))
            engine: Engine | None = None
            try:
                engine = Engine(pool, self.rng)
                self.adopted += engine.adopted
                self._live(engine, late)
            except Killed:
                pass
            pool.words.left = -1
            pool.words.die()
            late = engine
            if engine is not None:
                self.reused += engine.blocks.counts.reused
                for _ in range(self.rng.randrange(20)):  # the workers outlive their scheduler
                    engine.work(self.rng.randrange(RANKS))
            if self.proof:
                late = None

    def _live(self, engine: Engine, late: Engine | None) -> None:
        for _ in range(self.rng.randrange(150)):
            what = self.rng.random()
            if what < 0.25:
                engine.schedule()
            elif what < 0.28:
                engine.abort()
            elif what < 0.45:
                engine.collect()
            else:
                engine.work(self.rng.randrange(RANKS))
            if late is not None:
                late.work(self.rng.randrange(RANKS))
