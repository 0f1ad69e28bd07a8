"""The linter, under the name that it has here: `k8s.lint` in a checkout, `gpu_failover_lint` in a wheel."""

from typing import TYPE_CHECKING

from . import CHECKOUT

if TYPE_CHECKING or CHECKOUT:
    from k8s.lint.check import check
    from k8s.lint.documents import Unreadable, read
    from k8s.lint.formats import NoQuantity, quantity
    from k8s.lint.node import Level
else:
    from gpu_failover_lint.check import check
    from gpu_failover_lint.documents import Unreadable, read
    from gpu_failover_lint.formats import NoQuantity, quantity
    from gpu_failover_lint.node import Level

__all__ = ["Level", "NoQuantity", "Unreadable", "check", "quantity", "read"]
