"""The pair of k8s/dra/reference.yaml in a pod, and what the lock says of it, for tests and measurements."""

import json
import time
from typing import Any

from tests.k8s.manifests import SHIPPED
from tests.local_pod.ordinary import PATIENCE_S, Place, Refused
from tests.support.waiting import until

POD = (str(SHIPPED / "reference.yaml"), "--relist-s", "0.2", "--startup-period-s", "0.2")
"""As it is shipped; kubelet's looks and startup probes come more often, so that a test takes less time."""
RUN_DIR = "/run/failover/pair"
MAIN, WORKER = "engine_shim.shell.main_process", "reference_engine.worker"
LOOK_EVERY_S = PATIENCE_S / 600
"""A look is a start of Python in a container: a test that waits for minutes looks less often."""
SERVER = "--restart exit"
"""What a server's command line has behind its keeper."""


def lock(here: Place, container: str = "engine-b") -> dict[str, Any]:
    """What the lock server says, from within a container; {} when it doesn't answer."""
    said = here.say("exec", container, "--", "sh", "-c", "lockctl status --json 2>/dev/null || true")
    found: dict[str, Any] = json.loads(said) if said.strip() else {}
    return found


def whole(here: Place, holder: str = "", *, since: int = 0, container: str = "engine-b") -> dict[str, Any]:
    """Waits until one engine serves and the other is ready to; since: by a later grant than that token."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = lock(here, container)
        serves = seen.get("holder") or {}
        redundant = bool(serves.get("endpoint")) and any(each["ready"] for each in seen["waiters"])
        if redundant and holder in ("", serves["engine_id"]) and serves["token"] > since:
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(LOOK_EVERY_S)


def kill_kept(here: Place, server: str, pattern: str = SERVER) -> None:
    """SIGKILL to what a keeper keeps, as soon as it is there: it may be on its way back from an earlier death, which
    is nothing that the lock knows of (`whole`).
    """

    def killed() -> bool:
        try:
            here.say("kill", server, "--inside", pattern)
        except Refused as error:
            assert "no process in" in error.said, error
            return False
        return True

    until(killed, f"{server} has what is to be killed")


def other(engine_id: str) -> str:
    return "b" if engine_id == "a" else "a"


def flips(here: Place) -> list[bool]:
    return [flip["ready"] for flip in here.status()["flips"]]


def sh(here: Place, container: str, script: str) -> str:
    return here.say("exec", container, "--", "sh", "-c", script).strip()
