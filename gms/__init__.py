"""GMS, the GPU memory service: it owns the weights. `rules/machine.py` has the rules."""
