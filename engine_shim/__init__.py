"""One engine's life: init, sleep, acquire, wake, serve. `lifecycle.py` has the states, `run.py` the way through."""
