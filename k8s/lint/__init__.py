"""Says what is wrong with manifests before a cluster does. `python -m k8s.lint FILE...`; begin at `check.py`."""
