"""What a device's regions are called: by the model, what of it they are, and the rank. Keys are made here alone. Pure.

weights                           the weights of a model that has no name, because it is the only one
llama-3                           those of a model that has one; or of several models that share them
kv-0, kv-1, kv-index              pools of the model without a name: each rank's KV cache, and a table of all ranks
llama-3.kv-0, llama-3.kv-1 ...    the same of the other: so two models on a device never have each other's
"""

import hashlib

WEIGHTS = "weights"
MOST = 64
"""As many characters a key may have (`sidecar/terminal/names.py`)."""


def of_pool(model: str, what: str, rank: int | None = None) -> str:
    """`model`: the key of its weights, unless others share them."""
    name = what if rank is None else f"{what}-{rank}"
    if model == WEIGHTS:
        return name
    if len(model) + 1 + len(name) > MOST:
        digest = hashlib.sha256(model.encode()).hexdigest()[:8]
        model = f"{model[: MOST - len(name) - len(digest) - 2]}-{digest}"
    return f"{model}.{name}"
