"""The KV cache that outlives this engine: what was adopted at the wake, and what is published from then on.

The reference engine works on one step at a time, and its steps end on all ranks at once. So a block is published as
soon as the step that filled it has returned.

What this file may not do: claim memory (`kv_pages.py`), or know requests (`scheduler.py`).
"""

from collections.abc import Sequence

from engine_shim.kv.adoption import Adoption, Facts, Why, adopt, why_not_together
from engine_shim.kv.publishing import Publisher, Step
from engine_shim.kv.table import Table
from reference_engine.kv_prefix import Blocks, Key
from reference_engine.scheduler import Scheduler

NOTHING = Adoption(why=Why.NO_POOL)
_KINDS = (
    ("vllm:prefix_cache_queries_total", "Tokens of prompts' full blocks that were looked for in the KV cache."),
    ("vllm:prefix_cache_hits_total", "Tokens of those that were there."),
    (
        "failover_kv_blocks_adopted_total",
        "Blocks of a predecessor's KV cache that this engine found true and took over.",
    ),
    ("failover_kv_blocks_dropped_total", "Blocks of a predecessor's KV cache that this engine did not believe."),
)


class Kept:
    def __init__(self, table: memoryview, blocks: int) -> None:
        self._words = table.cast("Q")
        self._table = Table(self._words, blocks)
        self._publisher = Publisher(self._table)

    def adopt(self, facts: Facts, why_empty: Sequence[str], before: Sequence[int]) -> Adoption:
        """What GMS says of each rank's pool, and who had it last."""
        return adopt(self._table, facts.digest(), why_not_together(why_empty, before))

    def serve(self, blocks: Blocks, scheduler: Scheduler, adoption: Adoption) -> int:
        """From now on the table says what the blocks hold. How many of the adopted are of use."""
        blocks.hand_out = self._publisher.hand_out
        scheduler.publish = self.publish
        longest_first = sorted(adoption.records, key=lambda record: -record.tokens)
        return blocks.adopt((record.block, record.key) for record in longest_first)

    def close(self) -> None:
        """Nothing more is published. The memory of the table may be given back."""
        self._words.release()

    def publish(self, block: int, key: Key, tokens: int) -> None:
        step = Step()
        self._publisher.fills(step, block, key, tokens)
        self._publisher.finished(step)


def metrics(blocks: Blocks, adopted: int, adoption: Adoption, model: str) -> list[str]:
    """In Prometheus' form."""
    labels = f'{{model_name="{model}"}}'
    values = (
        (labels, blocks.counts.asked),
        (labels, blocks.counts.reused),
        ("", adopted),
        (f'{{why="{adoption.why.value}"}}', adoption.dropped),
    )
    lines = []
    for (name, help), (labelled, value) in zip(_KINDS, values, strict=True):
        lines += [f"# HELP {name} {help}", f"# TYPE {name} counter", f"{name}{labelled} {value}"]
    return lines
