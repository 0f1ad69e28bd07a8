"""A strict Kubernetes API server in memory, for tests, on a real socket.

`test_recorded.py` holds it to exchanges with a real one (`recorded/`, which a README explains), and names the cases
that it doesn't serve. What it knows of types and of how lists merge comes from the API's own schema; what a kind has of
its own stands in `kinds.yaml` and `kinds.py`. Where neither says what the real server would do, it refuses with 500: no
guesses.

    requests       api.py, on access.py (who may), reading.py and writes.py; changes.py: patches, and who owns a field
    objects        store.py: versions, history; collector.py collects what has lost its owners
    the socket     server.py, which can also be away, cut its watches, and refuse what a test wants refused
"""
