"""The checks that need a real GPU: `python -m tests.gpu --out DIR`.

NOT YET RUN ON A REAL DEVICE: no session had one so far. The checks of memory have run on the emulated driver only, and
the engine's on the CPU with a tiny model (`python -m tests.gpu.engine pair host:0 500`), which shows that they work and
says nothing of a GPU.

memory   needs Python, cuda-bindings and nvidia-ml-py; no pytest, no network, no torch. The conformance suite itself
         (`tests/gms/memory/`) isn't run there: it compares bytes exactly, and on a GPU each process's context is in the
         figures. `memory.py` has its promises again, with room for that, and the questions to which only a GPU knows
         the answer.
pair,    need vLLM, too, with the torch that it wants, in PYTHONPATH if not installed; no network and no weights: models
wake     are made up (`plan.py`, `engine.py`).
"""
