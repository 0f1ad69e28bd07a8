"""The benchmarks: `python -m bench` (or `make bench`). Ratios, each to a floor of the same run.

    figures.py      samples, ratios, the table, the JSON
    stage.py        run directories, a lock server, and one that never reacts
    cast.py         the processes: holders and waiters, forked from this warm one
    crowd.py        a thousand waiters from a few processes
    handoff.py      SIGKILL of a holder -> the next `acquire` returned
    rest.py         the server at rest: wake-ups, memory, start
    hold.py         SIGKILL of a `lockctl hold` -> the next one's command runs
    lease.py        the same of a `vramctl hold`; the ledger's memory
    weights.py      GMS: bind, wake, read, publish, a request, coming back
    pair.py         a pair of engines, and one takeover played and timed
    failover.py     the reference engine is killed, or stops -> the other's first token
    vllm.py         the same with vLLM on the CPU, and its cold start (`make bench-vllm`)
    pod.py          the pair in a pod: start, end, kills, NotReady, probes, the linter (`--only pod`)
    programs.py     the same programs without a pod
    swap.py         many models at any server's address (`python -m bench.swap`)

Times of one machine say little and times of two runs can't be compared, so nothing here is compared with a number from
another run, and nothing here fails because something was slow: a missed goal is said in the table. How to read it, and
what was measured: docs/inside/measurements.md.
"""
