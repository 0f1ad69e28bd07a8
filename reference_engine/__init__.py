"""The reference engine: a small, real transformer in numpy that is an engine like any other, ready in a fraction of a
second. What is shown with it is shown of the pair, not of a stub: its weights are GMS's, its KV cache is device memory
that has to be free, and its answers show a single token that was lost or said twice.

Reading order: `model.py` (the arithmetic, and why it is exact), `weights.py`, `kv.py`, `tokenizer.py`, `answer.py`,
`grammar.py` and `parser.py` (what an answer may look like), `scheduler.py` (which requests are worked on), `service.py`
(the loop that does it), `api.py`, `asking.py`, `forms.py` and `app.py` (the way in), `crew.py` and `worker.py` (more
processes), `engine.py` (the contract). To try it alone:

    python -m reference_engine --standalone --listen 127.0.0.1:8000
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_shim.engine import Engine, Setting

# numpy reads it when it is imported. A thread for each processor costs an engine more to start than this model can
# ever win by it, and several engines on one machine all the more.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def make(setting: "Setting") -> "Engine":
    """For the shim (`engines.py`)."""
    from reference_engine.engine import ReferenceEngine

    return ReferenceEngine(setting.arguments, setting)
