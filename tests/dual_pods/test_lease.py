"""The Lease, where clocks differ and hands have been at it."""

import asyncio
import time
from typing import Any

import pytest

from dual_pods.shell.kube import Refused
from dual_pods.shell.lease import Lease
from sidecar.terminal.logs import Log

Object = dict[str, Any]


class Kube:
    """An API server that has the Lease alone."""

    def __init__(self) -> None:
        self.lease: Object = {}
        self.versions = 0

    async def ask(self, method: str, path: str, body: Any = None, **_: Any) -> Object:
        if method == "GET" and not self.lease:
            raise Refused(404, "NotFound", "there is none")
        if method != "GET":
            if bool(self.lease) == (method == "POST"):
                raise Refused(409, "AlreadyExists", "another one was first")
            self.versions += 1
            self.lease = {**body, "metadata": {"resourceVersion": str(self.versions)}}
        return self.lease


def _lease(kube: Any, me: str, duration_s: float = 15) -> Lease:
    return Lease(kube, "ns", "dual-pods", me, duration_s, Log("test"))


@pytest.mark.parametrize("clock", [-3600, 0, 3600])
@pytest.mark.parametrize("begins", ["created", "taken over"])
def test_a_lease_that_was_deleted_brings_no_token_back_whatever_the_clocks_say(
    clock: float, begins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube = Kube()
    first, second = _lease(kube, "first"), _lease(kube, "second")
    now = time.time()

    async def run() -> None:
        monkeypatch.setattr(time, "time", lambda: now)
        if begins == "taken over":
            kube.lease = {"spec": {"leaseTransitions": 7}, "metadata": {"resourceVersion": "x"}}
        await first.acquire()
        assert not await second._try(), "the other one has it"
        kube.lease = {}
        monkeypatch.setattr(time, "time", lambda: now + clock)
        await second.acquire()
        assert second.token > first.token
        assert not await first._try(renews=True), "it notices"
        kube.lease = {}
        await second.acquire()
        before = second.token
        kube.lease["spec"]["leaseTransitions"] = 3
        await second.acquire()
        assert second.token > before

    asyncio.run(run())


@pytest.mark.parametrize("lease", [{}, {"spec": {"leaseTransitions": 3}, "metadata": {"resourceVersion": "x"}}])
def test_a_controller_that_has_seen_no_token_begins_at_its_clock(lease: Object) -> None:
    kube = Kube()
    kube.lease = lease
    it = _lease(kube, "it")
    began = int(time.time())
    asyncio.run(it.acquire())
    assert it.token > began
