"""What takes minutes: kubelet's own back-off, probes that have to fail, servers that are away for long.

    LOCAL_POD_LONG=1 python -m pytest tests/local_pod/test_pair_long.py

What it showed last is in docs/inside/kubernetes.md.
"""

import os
import time

import pytest

from tests.local_pod.client import ask, asking
from tests.local_pod.ordinary import Place, running
from tests.local_pod.pair import MAIN, POD, flips, other, whole

pytestmark = [
    pytest.mark.skipif(not os.environ.get("LOCAL_POD_LONG"), reason="takes minutes: LOCAL_POD_LONG=1 runs it"),
    pytest.mark.timeout(600),
]
AWAY_S = 40


def test_a_stopped_shim_leaves_its_engine_serving_until_liveness_ends_it(here: Place) -> None:
    with running(here, *POD):
        seen = whole(here)
        active, token = seen["holder"]["engine_id"], seen["holder"]["token"]
        with asking(here) as clients:
            stopped = time.monotonic()
            here.say("kill", f"engine-{active}", "--signal", "STOP")
            ended = here.until_event("ended", container=f"engine-{active}")
            served = [answer for answer in clients.answers if answer.began > stopped and not answer.error]
            assert served, "no client was served while the shim stood still"
            whole(here, other(active), since=token, container=f"engine-{other(active)}")
            here.until_event("ready", 2)
            clients.answered_since(2)
        assert ended["why"].startswith("liveness probe failed")
        assert clients.broken() == []
        assert flips(here) == [True, False, True]


@pytest.mark.parametrize("name", ["engine-a", "engine-b", "gms", "lockserver"])
def test_kubelets_own_back_off_keeps_the_pod_from_ready_and_no_client_from_being_served(here: Place, name: str) -> None:
    """Two deaths of a container's first process: back at once, and then after ten seconds."""
    with running(here, *POD, "--relist-s", "1"):
        whole(here)
        watcher = f"engine-{other(name[-1])}" if name.startswith("engine") else "engine-b"
        with asking(here) as clients:
            for count in (2, 3):
                here.say("kill", name)
                here.until_event("ready", count)
                whole(here, container=watcher)
            clients.answered_since(2)
        assert clients.broken() == []
        assert flips(here) == [True, False, True, False, True]
        (down, up), (down_again, up_again) = gaps(here)
        print(f"{name}: NotReady for {up - down:.1f} s, and {up_again - down_again:.1f} s the second time")
        assert up_again - down_again >= 9


def gaps(here: Place) -> list[tuple[float, float]]:
    """When it became NotReady, and Ready again."""
    times = [flip["at_s"] for flip in here.status()["flips"]][1:]
    return list(zip(times[::2], times[1::2], strict=True))


@pytest.mark.parametrize("name", ["lockserver", "gms"])
def test_a_server_is_away_for_long_while_the_active_dies(here: Place, name: str) -> None:
    with running(here, *POD, "--back-off-s", str(AWAY_S)):
        whole(here)
        expected = ask(here)
        here.say("kill", name)
        here.until_event("ready", 2)
        seen = whole(here)
        active, token = seen["holder"]["engine_id"], seen["holder"]["token"]
        with asking(here) as clients:
            here.say("kill", name)  # for AWAY_S
            here.until_event("back_off", container=name)
            clients.answered_since(2)  # the engine that serves goes on
            here.say("kill", f"engine-{active}", "--inside", MAIN)
            here.until_event("started", 3, container=name)
            here.until_event("ready", 3)
            whole(here, since=token)
            clients.answered_since(2)
        print(f"{name} away: {len(clients.broken())} of {len(clients.answers)} answers were not whole")
        if name == "lockserver":
            assert clients.broken() == []
        assert ask(here).text == expected.text
        assert flips(here) == [True, False, True, False, True]
