"""vLLM's prefix cache and the table beside the KV cache that outlives the engine: what the one learns, the other says.

vLLM's scheduler has its blocks in a pool of its own (`BlockPool`). Three of the pool's methods are all that it takes:
a block gets a key, loses its keys (always before it is handed out), and everything is forgotten. A key is given when a
step is *planned*; it goes into the table when that step comes back finished (`kv_scheduler.py`).

Before the wake nothing is kept: the warm-up's blocks lie in scratch. After it the main process says by a file what the
ranks have claimed; then this process claims the table, and what is true in it goes into the prefix cache.

What this file may not do: import vLLM. What it needs of a version stands in `versions.py`.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine_shim import paths
from engine_shim.kept_cache import KeptCache, shape_of
from engine_shim.kv.adoption import Adoption, Facts, Why, adopt
from engine_shim.kv.publishing import Publisher, Step
from engine_shim.kv.table import KEY_BYTES, Record, Table, table_bytes
from gms.client import GmsClient, open_memory
from sidecar.logs import Log

KEY = "kv-index"
CLAIM_S = 10.0


class Order(msgspec.Struct):
    """From the main process: the ranks have claimed their memory."""

    token: int
    proven: bool
    pools: list[str]
    """For each rank, which memory it is."""
    why_empty: list[str]
    weights: list[str]


@dataclass(frozen=True)
class Outcome:
    """To the main process."""

    adopted: int
    dropped: int
    why: str


def order_file(run_dir: Path, engine_id: str) -> Path:
    return run_dir / paths.ENGINES / f"{engine_id}.kv.json"


def outcome_file(run_dir: Path, engine_id: str) -> Path:
    return run_dir / paths.ENGINES / f"{engine_id}.kv.outcome.json"


def forget_files(run_dir: Path, engine_id: str) -> None:
    """At the start: what is there is the last start's."""
    for path in (order_file(run_dir, engine_id), outcome_file(run_dir, engine_id)):
        path.unlink(missing_ok=True)


class KvIndex:
    def __init__(self, pool: Any, facts: dict[str, str], run_dir: Path, device: str, engine_id: str) -> None:
        """`pool`: vLLM's. `facts`: what has to be the same in both engines, beside the pools and the weights."""
        self._pool = pool
        self._facts = facts
        self._where = (run_dir, engine_id)
        self._log = Log("kv-index")
        self._publisher: Publisher | None = None
        self.step = Step()
        """What is planned, or comes back, at the moment."""
        self._client = GmsClient(run_dir, device, engine_id)
        memory = open_memory(device)
        self._kept = KeptCache(
            self._client, KEY, shape_of(facts, (memory.granularity,), table_bytes(pool.num_gpu_blocks))
        )
        self._insert, self._remove = pool._insert_block_hash, pool._remove_cached_block_hashes
        self._reset = pool.reset_prefix_cache
        pool._insert_block_hash, pool._remove_cached_block_hashes = self._inserted, self._removed
        pool.reset_prefix_cache = self._was_reset

    # -- vLLM's pool ---------------------------------------------------------------------------------------------------

    def _inserted(self, key: bytes, block: Any, num_tokens: int | None) -> None:
        self._insert(key, block, num_tokens)
        publisher = self._publisher
        # A block may have several keys (of parts of it), of which the table has room for the first.
        if publisher is not None and block.block_hash == key and not block.is_null and len(key) <= KEY_BYTES:
            publisher.fills(self.step, block.block_id, bytes(key), num_tokens or 0)

    def _removed(self, block: Any) -> Any:
        if self._publisher is not None:
            self._publisher.hand_out(block.block_id)
        return self._remove(block)

    def _was_reset(self) -> Any:
        done = self._reset()
        if done and self._publisher is not None:
            self._publisher.forget_all()
        return done

    def finished(self, *steps: Step | None) -> None:
        """On every rank."""
        for step in steps:
            if step is not None and self._publisher is not None:
                self._publisher.finished(step)

    # -- the wake ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Adopts what is there, if the main process has said that every rank has its part. May be called again."""
        if self._publisher is not None:
            return
        try:
            order = msgspec.json.decode(order_file(*self._where).read_bytes(), type=Order)
        except FileNotFoundError:
            return
        claimed = self._kept.claim(order.token, order.proven, CLAIM_S)
        mapping = self._kept.mapping
        if claimed is None or mapping is None:
            self._say(Outcome(0, 0, Why.NO_POOL.value))
            return
        table = Table(mapping.table.cast("Q"), self._pool.num_gpu_blocks)
        facts = Facts("vllm", {"weights": json.dumps(order.weights)}, self._facts, (claimed.name, *order.pools))
        whys = [why for why in (claimed.why_empty, *order.why_empty) if why]
        adoption = adopt(table, facts.digest(), Why(whys[0]) if whys else Why.NONE)
        adopted = self._adopt(adoption)
        self._publisher = Publisher(table)
        self._say(Outcome(adopted, adoption.dropped, adoption.why.value))

    def _adopt(self, adoption: Adoption) -> int:
        """They go to the end of the free queue: its head is what is written over next. The longest prefix goes first,
        because without the blocks before it a block is of no use.
        """
        free = self._pool.free_block_queue
        adopted = [record for record in adoption.records if self._is_free(record)]
        for record in sorted(adopted, key=lambda record: -record.tokens):
            block = self._pool.blocks[record.block]
            self._insert(record.key, block, record.tokens or None)
            free.remove(block)
            free.append(block)
        return len(adopted)

    def _is_free(self, record: Record) -> bool:
        block = self._pool.blocks[record.block]
        return not block.is_null and block.ref_cnt == 0 and block.block_hash is None

    def _say(self, outcome: Outcome) -> None:
        self._log.info("kv", **asdict(outcome))
        path = outcome_file(*self._where)
        with contextlib.suppress(OSError):
            beside = path.with_suffix(".new")
            beside.write_text(json.dumps(asdict(outcome)))
            os.replace(beside, path)
