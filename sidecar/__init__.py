"""What every process of the suite stands on: frames and descriptors, peers and pidfds, life locks, durable files,
settings, logs, metrics.

Nothing here knows what a lock, an engine or a weight is, and nothing here imports any other package of the suite.
Start with `frames` (the wire) and `peers` (who is at the other end, and is it dead).
"""
