"""Leases on hosts that several programs share, in a database; they end by time, and prove nothing.

with fleet.exclusive("gpu-box-1", purpose="bench") as lease: ...
"""

from fleet.helper import HEADER, Lease, LeaseLost, NotGranted, exclusive, shared

__all__ = ["HEADER", "Lease", "LeaseLost", "NotGranted", "exclusive", "shared"]
