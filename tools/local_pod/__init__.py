"""local-pod: runs the pod of a manifest on this machine as kubelet would, without a cluster, images or root.

Reading order: `machine.py` (kubelet's rules, in prose first), `container.py`, `probing.py`, `backoff.py`; these are
pure. Around them `kubelet.py` (the loop inside the pod's namespaces), `sandbox.py` (roots, volumes, users),
`asking.py` (probes); outside them `run.py` (reads, makes the namespaces, waits) and `commands.py` (what people say).

In a wheel this package is called `gpu_failover_local_pod`, so its parts import each other relatively.
"""

CHECKOUT = __name__ == "tools.local_pod"
VERSION = "0.2.0"
"""This distribution's; it needs gpu-failover of the same version beside it. That isn't among its dependencies: no
registry has it, and what pip would find in one by its name is a stranger's.
"""


def check_the_house() -> None:
    """Raises SystemExit with a sentence."""
    try:
        from sidecar.terminal.names import VERSION as house
    except ImportError:
        house = ""
    if house != VERSION:
        here = f"this is {house}" if house else "there is none in this Python"
        wheel = f"gpu_failover-{VERSION}-py3-none-any.whl[k8s]"
        raise SystemExit(f"local-pod: it needs gpu-failover {VERSION} beside it, and {here}: pip install '{wheel}'")


check_the_house()
