"""GMS, the GPU memory service: who owns the weights. `machine.py` has the rules."""
