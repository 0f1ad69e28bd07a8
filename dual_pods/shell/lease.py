"""Which controller leads: a Lease of Kubernetes, the second of whose `acquireTime` is the token of all that it does.

No clock is compared with another machine's: a candidate takes a Lease over when it has seen no change of it for its
whole time, by its own clock; a leader trusts its own from the moment *before* it wrote it, and for two thirds of the
time. Tokens only grow, also where a Lease was deleted or edited by hand: pools and requesters obey no lower one. So
they are no less than the seconds of the wall clock (`leaseTransitions` holds them until 2038), and more than each seen.
"""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

from dual_pods.rules.machine import newer
from dual_pods.shell.kube import REQUEST_S, Kube, Refused
from sidecar.http.http_client import Unanswered
from sidecar.terminal.logs import Log


class Lease:
    def __init__(self, kube: Kube, namespace: str, name: str, me: str, duration_s: float, log: Log) -> None:
        self._kube, self._log, self._me = kube, log, me
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path, self._name = f"{self._all}/{name}", name
        self._duration_s = duration_s
        self._seen: tuple[str, float] = ("", 0.0)
        """The version that was seen last, and since when."""
        self._highest = 0
        self._written: dict[str, Any] | None = None
        """What it says, as far as this one knows that: while it leads, a renewal is a write alone."""
        self._renewing = asyncio.Lock()
        self.token = 0
        self.trusted_until = 0.0
        """By the monotonic clock. What is done for this leadership is done before."""

    @property
    def leads(self) -> bool:
        return time.monotonic() < self.trusted_until

    async def acquire(self) -> None:
        """Returns when this one leads."""
        while True:
            try:
                if await self._try():
                    self._log.info("leads", token=self.token)
                    return
            except (Refused, Unanswered) as error:
                self._log.warning("lease", why=str(error))
            await asyncio.sleep(max(self._duration_s / 8, 0.01))

    async def keep(self) -> None:
        """Renews it; returns when it is lost, or can't be trusted any more."""
        while self.leads:
            left_s = self.trusted_until - time.monotonic()
            await asyncio.sleep(min(self._duration_s / 3, max(left_s / 2, 0.01)))
            try:
                if not await self.renew():
                    self._log.warning("lease_lost", why="another controller has it")
                    break
            except (Refused, Unanswered) as error:
                self._log.warning("lease", why=str(error), trusted_s=round(self.trusted_until - time.monotonic(), 1))
        self.trusted_until = 0.0

    async def renew(self) -> bool:
        """False: another one has it. One at a time: else the one would take the other's write for another leader's."""
        async with self._renewing:
            left_s = self.trusted_until - time.monotonic()
            return await self._try(renews=True, timeout_s=max(left_s, 0.1))

    async def release(self) -> None:
        """So that another one needn't wait."""
        try:
            found = await self._kube.ask("GET", self._path)
            if found["spec"].get("holderIdentity") == self._me:
                found["spec"]["holderIdentity"] = ""
                await self._kube.ask("PUT", self._path, found)
        except (Refused, Unanswered) as error:
            self._log.warning("lease", why=str(error))
        self.trusted_until = 0.0

    async def _try(self, *, renews: bool = False, timeout_s: float = REQUEST_S) -> bool:
        spec: dict[str, Any]
        known, self._written = self._written if renews else None, None
        try:
            found = known or await self._kube.ask("GET", self._path, timeout_s=timeout_s)
            spec, version, write = found.get("spec") or {}, found["metadata"]["resourceVersion"], ("PUT", self._path)
        except Refused as refused:
            if refused.code != 404:
                raise
            found = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            spec, version, write = {}, "", ("POST", self._all)
        acquired = int(datetime.fromisoformat(spec.get("acquireTime", _time(0))).timestamp())
        self._highest = max(self._highest, self.token, acquired)
        mine = spec.get("holderIdentity") == self._me
        if renews and newer(self._seen[0], version):  # the API server was put back to an older state: all is seen anew
            return False
        if version != self._seen[0]:
            self._seen = version, time.monotonic()
        if renews and not (mine and acquired == self.token):
            return False
        duration_s = spec.get("leaseDurationSeconds") or self._duration_s
        free = not spec.get("holderIdentity") or time.monotonic() >= self._seen[1] + duration_s
        if not mine and not free:
            return False
        token = self.token if renews else max(self._highest, int(time.time())) + 1
        times = {"acquireTime": _time(token), "renewTime": _time(time.time())}
        found["spec"] = {"holderIdentity": self._me, "leaseDurationSeconds": max(round(self._duration_s), 1), **times}
        began = time.monotonic()
        try:
            lease = await self._kube.ask(*write, found, timeout_s=timeout_s)
        except Refused as refused:
            if known is not None and refused.code in (404, 409):  # it isn't as it was
                return await self._try(renews=True, timeout_s=timeout_s)
            if refused.code != 409:
                raise
            return False  # another one was first
        self._written = lease
        self._seen = lease["metadata"]["resourceVersion"], time.monotonic()
        self.token = token
        self.trusted_until = began + self._duration_s * 2 / 3
        return True


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
