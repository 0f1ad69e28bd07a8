"""Says what is wrong with manifests before a cluster does. `python -m k8s.lint FILE...`; begin at `check.py`.

In a wheel it is `gpu_failover_lint`, with the command `k8s-lint`; so its parts import each other relatively.
"""
