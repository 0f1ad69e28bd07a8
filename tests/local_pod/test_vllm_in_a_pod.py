"""vLLM in the pod of k8s/dra/one-gpu.yaml, with an overlay for the CPU: the shipped manifest, containers, probes, users
and places, and the real engine in them. One scenario, because a start of vLLM takes a quarter of a minute.
"""

import importlib.util
from pathlib import Path

import pytest

from tests.k8s.manifests import SHIPPED
from tests.k8s.merging import with_overlay
from tests.local_pod.client import asking
from tests.local_pod.ordinary import Place, running
from tests.local_pod.pair import MAIN, flips, lock, other, whole
from tools.local_pod import places, wire

OVERLAY = Path(__file__).parent / "vllm-on-the-cpu.yaml"
TOKENS = 400

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM isn't installed: make test-vllm"),
]


def test_kill_9_of_the_active_in_its_container_and_each_answer_goes_on(here: Place) -> None:
    from tests.vllm import tiny_model

    model = tiny_model.make(here.directory / "model")
    for path in (model, *model.iterdir()):
        path.chmod(path.stat().st_mode | 0o055)  # the user that runs the pod reads it
    manifest = with_overlay(here.directory / "pod.yaml", SHIPPED / "one-gpu.yaml", OVERLAY.read_text())
    pod = (str(manifest), "--volume", f"models={model}")
    with running(here, *pod, "--relist-s", "0.2", "--startup-period-s", "0.2"):
        seen = whole(here)
        assert seen["memory"] == "verified" and seen["alarms"] == []
        goes_on(here, seen["holder"]["engine_id"])


def goes_on(here: Place, active: str) -> None:
    """Not until the killed one is ready again: that is a start of vLLM more, and nothing that a pod changes."""
    with asking(here, 2, TOKENS) as clients:
        clients.answered_since(1)
        broken_off = clients.under_way(TOKENS // 4)
        victim = {"container": f"engine-{active}", "inside": MAIN, "signal": "SIGKILL"}
        told, _ = wire.ask(here.pod / places.CONTROL, {"do": "signal", **victim})
        clients.answered_since(2)
    assert broken_off.ended > told["at"] and broken_off in clients.answers
    assert clients.broken() == []
    seen = lock(here)
    assert (seen["holder"]["engine_id"], seen["memory"]) == (other(active), "verified")
    assert flips(here) == [True]
    assert all(each["restarts"] == 0 for each in here.status()["containers"])
