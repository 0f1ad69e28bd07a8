"""What a rank of an engine does with a GPU's memory, without vLLM: weights that are GMS's, and a KV cache's pool.

python -m tests.engine.rank RUN_DIR DEVICE ENGINE_ID KV_BYTES WEIGHTS_BYTES; with 0 bytes of weights it only reads. On
its input a word a line (sleep, wake, look), on its output an answer a line, as JSON. It begins as an engine does:
weights mapped, the KV cache in scratch.
"""

import json
import sys
from pathlib import Path
from typing import Any

from engine_shim.vllm_engine.kv_pool import KvPool
from gms.client import GmsClient, Layout, Reader, Writer, open_memory
from tools.vmm_refcount.contents import contents

TIMEOUT_S = 60.0
CONTENT = b"the weights"


class Rank:
    def __init__(self, run_dir: str, device: str, engine_id: str, kv_bytes: str, weights_bytes: str) -> None:
        self.memory = open_memory(device)
        self.client = GmsClient(Path(run_dir), device, engine_id, memory=self.memory)
        self.contents = contents(device)
        self.reader = self._weights(int(weights_bytes))
        self.pool = KvPool(self.memory, 8)
        self.cache = self.pool.allocate(int(kv_bytes))

    def _weights(self, size: int) -> Reader:
        granted = self.client.write_or_read(TIMEOUT_S) if size else self.client.read(TIMEOUT_S)
        if not isinstance(granted, Writer):
            return granted
        with granted:
            slab = granted.create(size)
            granted.keep_mapped()
            self.contents.poke(granted.address(slab), CONTENT)
            return granted.commit(Layout((size,), (), {}))

    def do(self, word: str) -> dict[str, Any]:
        if word == "sleep":
            self.pool.sleep()
            self.reader.sleep()
        elif word == "wake":
            self.reader.wake(TIMEOUT_S)
            self.pool.wake()
        elif word == "look":
            weights = self.contents.peek(self.reader.address(0), len(CONTENT))
            self.contents.poke(self.cache, b"kv")
            return {"weights": weights.decode(), "places": [self.reader.address(0), self.cache]}
        return {}


def main() -> None:
    rank = Rank(*sys.argv[1:])
    _say({"scratch": rank.pool.scratch})
    for line in sys.stdin:
        _say(rank.do(line.strip()))


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
