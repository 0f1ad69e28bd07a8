"""The Lease, where clocks differ and hands have been at it."""

import asyncio
import time
from typing import Any

import pytest

from dual_pods.rules.leading import Leading
from dual_pods.shell.kube import Refused
from dual_pods.shell.lease import Lease
from sidecar.terminal.logs import Log

Object = dict[str, Any]
_OLD = "2020-01-01T00:00:00.000000Z"


class Kube:
    """An API server that has the Lease alone."""

    def __init__(self) -> None:
        self.lease: Object = {}
        self.ahead_s = 0.0
        self.versions = 0
        self.asked: list[str] = []

    async def ask(self, method: str, path: str, body: Any = None, **_: Any) -> Object:
        self.asked.append(method)
        if method != "POST" and not self.lease:
            raise Refused(404, "NotFound", "there is none")
        if method != "GET":
            if method == "POST" and self.lease:
                raise Refused(409, "AlreadyExists", "another one was first")
            if method == "PUT" and body["metadata"] != self.lease["metadata"]:
                raise Refused(409, "Conflict", "the object has been modified")
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
            kube.lease = {"spec": {"acquireTime": _OLD}, "metadata": {"resourceVersion": "x"}}
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
        kube.lease["spec"]["acquireTime"] = _OLD
        await second.acquire()
        assert second.token > before

    asyncio.run(run())


@pytest.mark.parametrize("clock", [-3600, 0, 3600])
def test_nor_does_one_that_another_controller_has_never_seen(clock: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """All controllers have the API server's clock."""
    kube, now = Kube(), time.time()
    first, second = _lease(kube, "first"), _lease(kube, "second")
    monkeypatch.setattr(time, "time", lambda: now)
    asyncio.run(first.acquire())
    kube.lease, kube.ahead_s = {}, -clock
    monkeypatch.setattr(time, "time", lambda: now + clock)
    asyncio.run(second.acquire())
    assert first.token <= second.token < first.token + 2


def test_nor_does_one_that_is_deleted_as_soon_as_another_controller_has_taken_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They know the API server's clock to a second: pools and requesters would refuse the next one for ever."""
    kube, now = Kube(), time.time()
    kube.lease = {"spec": {"acquireTime": _OLD}, "metadata": {"resourceVersion": "x"}}
    first, second = _lease(kube, "first"), _lease(kube, "second")
    monkeypatch.setattr(time, "time", lambda: now)
    asyncio.run(first.acquire())
    kube.lease = {}
    monkeypatch.setattr(time, "time", lambda: now - 1)
    asyncio.run(second.acquire())
    assert second.token > first.token


def test_one_that_is_deleted_before_it_can_be_written_is_lost_or_another_ones_and_no_fault() -> None:
    """Else an order to an engine would count as carried out, as where its pod is gone."""
    kube, gone = Kube(), list[str]()
    it = _lease(kube, "it")
    ask = kube.ask

    async def deletes(method: str, *args: Any, **more: Any) -> Object:
        answer = await ask(method, *args, **more)
        if method == "GET":
            gone.append(method)
            kube.lease = {}
        return answer

    async def run() -> None:
        await it.acquire()
        it._written = None  # its last renewal went unanswered
        kube.ask = deletes  # type: ignore[method-assign]
        assert not await it.renew() and gone == ["GET"]
        kube.ask = ask  # type: ignore[method-assign]
        await it.acquire()

    asyncio.run(run())


@pytest.mark.parametrize("acquired", ["", _OLD, "9999-12-31T23:59:59.000000Z"])
def test_a_controller_that_has_seen_no_token_begins_at_its_clock(acquired: str) -> None:
    """A time that hands have written is none of a controller's, and no later one may be left."""
    kube = Kube()
    if acquired:
        kube.lease = {"spec": {"acquireTime": acquired}, "metadata": {"resourceVersion": "x"}}
    it = _lease(kube, "it")
    began = int(time.time())
    asyncio.run(it.acquire())
    assert began < it.token < began + 600


def test_a_renewal_is_one_request_and_where_the_lease_has_changed_it_is_read_anew() -> None:
    """An API server that takes seconds for an answer would else take more of them than a leader is trusted for."""
    kube = Kube()
    it, other = _lease(kube, "it"), _lease(kube, "other")

    def edited(**spec: object) -> None:
        kube.versions += 1
        kube.lease = {"spec": kube.lease["spec"] | spec, "metadata": {"resourceVersion": str(kube.versions)}}

    def asked() -> list[str]:
        kube.asked, seen = [], kube.asked
        return seen

    async def run() -> None:
        await it.acquire()
        assert asked() == ["GET", "POST"]
        assert await it.renew() and await it.renew() and asked() == ["PUT", "PUT"]
        edited()
        assert await it.renew() and asked() == ["PUT", "GET", "PUT"], "it is still its own"
        edited(holderIdentity="")
        await other.acquire()
        asked()
        assert not await it.renew() and asked() == ["PUT", "GET"], "it is another one's"
        kube.lease = {}
        assert not await other.renew() and asked() == ["PUT", "GET"], "it is gone"

    asyncio.run(run())


def test_a_lease_in_ones_own_name_from_another_time_is_another_leadership() -> None:
    kube = Kube()
    it = _lease(kube, "it")

    async def run() -> None:
        await it.acquire()
        kube.versions += 1
        kube.lease = {"spec": kube.lease["spec"] | {"acquireTime": _OLD}, "metadata": {"resourceVersion": "2"}}
        assert not await it.renew()

    asyncio.run(run())


def test_a_lease_of_an_older_state_of_the_api_server_is_lost_though_it_is_ones_own() -> None:
    """Its watches would tell of nothing more: they follow from versions that it hasn't come to yet."""
    kube = Kube()
    it = _lease(kube, "it")

    async def run() -> None:
        await it.acquire()
        old, token = kube.lease, it.token
        assert await it.renew()
        kube.lease = old
        assert not await it.renew()
        await it.acquire()
        assert it.token > token

    asyncio.run(run())


def test_another_one_s_lease_is_taken_once_it_has_not_changed_for_its_own_time() -> None:
    it = Leading("it", 15)

    def read(version: str, now: float, holder: str = "other") -> bool:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 40}
        lease = {"metadata": {"resourceVersion": version}, "spec": spec}
        return it.read(lease, now, 1000.0, renews=False) is not None

    assert not read("1", 0.0) and not read("1", 39.9)
    assert not read("2", 40.0), "it was renewed"
    assert not read("2", 79.9) and read("2", 80.0)
    assert read("3", 80.0, "it"), "its own at once"


def test_a_leader_trusts_its_lease_from_its_write_on(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, clock = Kube(), [1000.0]
    ask = kube.ask

    async def slowly(*args: Any, **more: Any) -> Object:
        clock[0] += 4
        return await ask(*args, **more)

    monkeypatch.setattr(kube, "ask", slowly)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    it = _lease(kube, "it")

    async def run() -> None:
        assert await it._try() and it.trusted_s == 10 - 4
        assert await it._try(renews=True) and it.trusted_s == 10 - 4

    asyncio.run(run())


def test_why_it_could_not_be_had_is_said_until_it_is_heard_of_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, said = Kube(), list[str]()
    ask = kube.ask

    async def forbids(method: str, *args: Any, **more: Any) -> Object:
        said.append(it.trouble)
        if len(said) == 1:
            raise Refused(403, "Forbidden", "no right to it")
        return await ask(method, *args, **more)

    monkeypatch.setattr(kube, "ask", forbids)
    it = _lease(kube, "it", 0.01)
    asyncio.run(it.acquire())
    assert "can't be had: " in said[1] and "no right to it" in said[1]
    assert it.trouble == ""
