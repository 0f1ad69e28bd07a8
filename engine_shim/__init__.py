"""The life of one engine. Its states are in `lifecycle.py`, its steps from init to serve in `main_process.py`."""
