"""Leases: the statements on both databases, the client's machine, a simulator of both, and real processes."""
