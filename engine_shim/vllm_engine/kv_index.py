"""vLLM's prefix cache and the table beside the KV cache that outlives the engine: what the one learns, the other says.

vLLM's scheduler has its blocks in a pool of its own (`BlockPool`). Three of the pool's methods are all that it takes:
a block gets a key, loses its keys (always before it is handed out), and everything is forgotten. A key is given when a
step is *planned*; it goes into the table when that step comes back finished (`kv_scheduler.py`).

Before the wake nothing is kept: the warm-up's blocks lie in scratch. After it the main process says by a file what the
ranks have claimed; then this process claims the table, and what is true in it goes into the prefix cache. At a clean
end the main process says by the same file that the table is to be released.

What this file may not do: import vLLM. What it needs of a version stands in `versions.py`.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from engine_shim.kept_cache import KeptCache, shape_of
from engine_shim.kv.adoption import Adoption, Facts, Why, adopt, why_not_together
from engine_shim.kv.publishing import Publisher, Step
from engine_shim.kv.table import KEY_BYTES, Record, Table, table_bytes
from engine_shim.shell import paths
from engine_shim.vllm_engine import plugin
from engine_shim.vllm_engine.worker_settings import WorkerSettings
from gms.client import open_memory
from sidecar.terminal.logs import Log

POOL = "kv-index"
CLAIM_S = 10.0


class Order(msgspec.Struct, frozen=True):
    """From the main process: the ranks have claimed their memory. Of each rank:"""

    token: int
    proven: bool
    pools: tuple[str, ...]
    """Which memory it is. There are none where a rank has not got its part: then nothing is kept."""
    why_empty: tuple[str, ...]
    before: tuple[int, ...]
    """The token of the last owner of each part."""
    weights: tuple[str, ...]
    leave: bool = False
    """No step is under way, and none will be: this process ends, and a successor goes on with what the table says."""


def give(order: Order, run_dir: Path, engine_id: str) -> None:
    order_file(run_dir, engine_id).write_bytes(msgspec.json.encode(order))


def order_file(run_dir: Path, engine_id: str) -> Path:
    return run_dir / paths.ENGINES / f"{engine_id}.kv.json"


def forget_order(run_dir: Path, engine_id: str) -> None:
    """At the start: what is there is the last start's."""
    order_file(run_dir, engine_id).unlink(missing_ok=True)


class KvIndex:
    def __init__(self, pool: Any, facts: dict[str, str], settings: WorkerSettings) -> None:
        """`pool`: vLLM's. `facts`: what has to be the same in both engines, beside the pools and the weights."""
        device = settings.devices[0]
        self._pool = pool
        self._facts = facts
        self._where = (settings.directory, settings.engine_id)
        self._log = Log("kv-index")
        self._begun = False
        self._publisher: Publisher | None = None
        self._words: memoryview | None = None
        """The table, while it is this process's."""
        self.step = Step()
        """What is planned, or comes back, at the moment."""
        self._client = settings.gms(device)
        memory = open_memory(device)
        self._kept = KeptCache(
            self._client, POOL, shape_of(facts, (memory.granularity,), table_bytes(pool.num_gpu_blocks))
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

    # -- the wake, and a clean end -------------------------------------------------------------------------------------

    def leaves(self) -> bool:
        """The main process has said that the table is to be released, and it is. Nothing may be forgotten then."""
        order = self._order()
        if order is None or not order.leave:
            return False
        self._publisher = None
        if self._words is not None:
            self._words.release()
            self._words = None
        self._kept.release()
        return True

    def begin(self) -> bool:
        """Adopts what is there, once the main process has said whether every rank has its part; never later, when the
        ranks have written to their memory. May be called again. True: there was something, and all of it was adopted.
        """
        order = self._order()
        if self._begun or order is None:
            return False
        self._begun = True
        claimed = self._kept.claim(order.token, order.proven, CLAIM_S) if order.pools else None
        mapping = self._kept.mapping
        if claimed is None or mapping is None:
            self._say(0, 0, Why.NO_POOL)
            return False
        words = self._words = mapping.table.cast("Q")
        table = Table(words, self._pool.num_gpu_blocks)
        facts = Facts("vllm", {"weights": json.dumps(order.weights)}, self._facts, (claimed.name, *order.pools))
        why_not = why_not_together((claimed.why_empty, *order.why_empty), (claimed.before, *order.before))
        adoption = adopt(table, facts.digest(), why_not)
        adopted = self._adopt(adoption)
        self._publisher = Publisher(table)
        self._say(adopted, adoption.dropped, adoption.why)
        return adopted > 0 and adoption.why is Why.NONE

    def _order(self) -> Order | None:
        try:
            return msgspec.json.decode(order_file(*self._where).read_bytes(), type=Order)
        except FileNotFoundError:
            return None

    def _say(self, adopted: int, dropped: int, why: Why) -> None:
        self._log.info("kv", adopted=adopted, dropped=dropped, why=why.value)
        if plugin.has_joined():
            plugin.joined().shim.adopted(adopted, dropped, why.value)

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
