"""What a KV cache that outlives its engine stands on: a table beside the cache that says which block holds what.

    table.py        the records and their header, in shared memory; a death between any two stores leaves only true ones
    publishing.py   when a record is cleared and when it is written: never while its block may still change
    adoption.py     whether a successor believes what it finds, and why not

All of it is pure: the memory is handed in as 64-bit words. It knows no engine; `reference_engine/` and `vllm_engine/`
stand on it. `docs/inside/kv.md` says the same in prose.
"""
