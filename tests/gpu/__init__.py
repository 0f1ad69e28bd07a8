"""The checks that need a real GPU: `python -m tests.gpu --out DIR`.

NOT YET RUN ON A REAL DEVICE: no session had one so far. It has run on the emulated driver only, which shows that the
checks work and says nothing of a GPU.

It needs Python, cuda-bindings and nvidia-ml-py; no pytest, no network, no torch. The conformance suite itself
(`tests/gms/memory/`) isn't run there: it compares bytes exactly, and on a GPU everybody's context is in the figures.
`memory.py` has its promises again, with room for that, and the questions to which only a GPU knows the answer.
"""
