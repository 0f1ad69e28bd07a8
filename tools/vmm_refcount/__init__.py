"""The experiment of the specification's Decision 7: when is device memory free again?

GMS leans on the answers: memory lives as long as any process has a handle, a descriptor or a mapping of
it, and not one moment longer. `python -m tools.vmm_refcount --help` says how to run it, `docs/inside/vmm_refcount.md`
what it saw.

    __main__.py   flags, exit codes
    stories.py    the experiment, stage by stage
    stage.py      steps, each measured from outside before and after
    processes.py  the processes of a story, as the experiment sees them; `process.py` is such a process
    meters.py     who measures: the host's ledger, or NVML
    contents.py   writing and reading device memory
    report.py     the table, and the JSON
"""
