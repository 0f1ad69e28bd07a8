"""local-pod: runs the pod of a manifest on this machine as kubelet would, without a cluster, images or root.

Reading order: `machine.py` (kubelet's rules, in prose first), `container.py`, `probing.py`, `backoff.py`; these are
pure. Around them `kubelet.py` (the loop inside the pod's namespaces), `sandbox.py` (roots, volumes, users),
`asking.py` (probes); outside them `run.py` (reads, makes the namespaces, waits) and `commands.py` (what people say).

In a wheel this package is called `gpu_failover_local_pod`, so its parts import each other relatively.
"""

CHECKOUT = __name__ == "tools.local_pod"
