"""The whole pair in a pod, as an ordinary user: lock server, GMS and two engines, each a container of its own."""

import json
import time
from pathlib import Path
from typing import Any

from tests.k8s.manifests import SHIPPED
from tests.local_pod.ordinary import PATIENCE_S, Place, running

POD = (
    str(SHIPPED / "reference.yaml"),
    "--overlay",
    str(Path(__file__).parent / "today.yaml"),
    "--relist-s",
    "0.2",
    "--startup-period-s",
    "0.2",
)


def lock(here: Place) -> dict[str, Any]:
    """What the lock server says, from within a container."""
    said = here.say("exec", "engine-b", "--", "sh", "-c", "lockctl status --json || true")
    found: dict[str, Any] = json.loads(said)
    return found


def whole(here: Place, holder: str = "") -> dict[str, Any]:
    """Waits until somebody serves and somebody else is ready."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = lock(here)
        serves = seen.get("holder") or {}
        redundant = bool(serves.get("endpoint")) and any(each["ready"] for each in seen["waiters"])
        if redundant and holder in ("", serves["engine_id"]):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)


def test_the_pair_comes_up_and_a_kill_inside_flips_nothing(here: Place) -> None:
    with running(here, *POD):
        first = whole(here)
        assert first["memory"] == "verified" and first["alarms"] == []
        active = first["holder"]["engine_id"]
        other = "b" if active == "a" else "a"
        here.say("kill", f"engine-{active}", "--inside", "engine_shim.run")
        after = whole(here, other)
        assert after["memory"] == "verified" and after["holder"]["token"] > first["holder"]["token"]
        status = here.status()
        assert [flip["ready"] for flip in status["flips"]] == [True]
        assert all(each["restarts"] == 0 for each in status["containers"])


def test_the_death_of_a_containers_first_process_flips_it_once_and_the_other_serves(here: Place) -> None:
    with running(here, *POD):
        active = whole(here)["holder"]["engine_id"]
        other = "b" if active == "a" else "a"
        here.say("kill", f"engine-{active}")
        here.until_event("ready", 2)
        assert whole(here, other)["memory"] == "verified"
        assert [flip["ready"] for flip in here.status()["flips"]] == [True, False, True]
        assert here.container(f"engine-{active}")["restarts"] == 1
