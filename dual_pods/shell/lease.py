"""The Lease by which a controller leads (`rules/leading.py`): read, written, and renewed in time."""

import asyncio
import time
from typing import Any

from dual_pods.rules.leading import Leading
from dual_pods.shell.kube import REQUEST_S, Kube, Refused
from sidecar.http.http_client import Unanswered
from sidecar.terminal.logs import Log


class Lease:
    def __init__(self, kube: Kube, namespace: str, name: str, me: str, duration_s: float, log: Log) -> None:
        self._kube, self._log, self._me = kube, log, me
        self._leading = Leading(me, duration_s)
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path, self._name = f"{self._all}/{name}", name
        self._duration_s = duration_s
        self._written: dict[str, Any] | None = None
        """What it says, as far as this one knows that: while it leads, a renewal is a write alone."""
        self._renewing = asyncio.Lock()
        self.trouble = ""
        """Why nothing was heard of it, at the last attempt to lead."""

    @property
    def token(self) -> int:
        return self._leading.token

    @property
    def trusted_s(self) -> float:
        return self._leading.trusted_until - time.monotonic()

    @property
    def leads(self) -> bool:
        return self.trusted_s > 0

    async def acquire(self) -> None:
        """Returns when this one leads."""
        while True:
            try:
                leads, self.trouble = await self._try(), ""
                if leads:
                    self._log.info("leads", token=self.token)
                    return
            except (Refused, Unanswered) as error:
                self.trouble = f"the Lease {self._name} can't be had: {error}"
                self._log.warning("lease", why=str(error))
            await asyncio.sleep(max(self._duration_s / 8, 0.01))

    async def keep(self) -> None:
        """Renews it; returns when it is lost, or can't be trusted any more."""
        while self.leads:
            await asyncio.sleep(min(self._duration_s / 3, max(self.trusted_s / 2, 0.01)))
            try:
                if not await self.renew():
                    self._log.warning("lease_lost", why="another controller has it")
                    break
            except (Refused, Unanswered) as error:
                self._log.warning("lease", why=str(error), trusted_s=round(self.trusted_s, 1))
        self._leading.trusted_until = 0.0

    async def renew(self) -> bool:
        """False: another one has it. One at a time: else the one would take the other's write for another leader's."""
        async with self._renewing:
            return await self._try(renews=True, timeout_s=max(self.trusted_s, 0.1))

    async def release(self) -> None:
        """So that another one needn't wait."""
        try:
            found = await self._kube.ask("GET", self._path)
            if found["spec"].get("holderIdentity") == self._me:
                found["spec"]["holderIdentity"] = ""
                await self._kube.ask("PUT", self._path, found)
        except (Refused, Unanswered) as error:
            self._log.warning("lease", why=str(error))
        self._leading.trusted_until = 0.0

    async def _try(self, *, renews: bool = False, timeout_s: float = REQUEST_S) -> bool:
        known, self._written = self._written if renews else None, None
        write = ("PUT", self._path)
        try:
            found = known or await self._kube.ask("GET", self._path, timeout_s=timeout_s)
        except Refused as refused:
            if refused.code != 404:
                raise
            found = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            write = ("POST", self._all)
        spec = self._leading.read(found, time.monotonic(), time.time() + self._kube.ahead_s, renews=renews)
        if spec is None:
            return False
        began = time.monotonic()
        try:
            lease = await self._kube.ask(*write, {**found, "spec": spec}, timeout_s=timeout_s)
        except Refused as refused:
            if refused.code != 409 and (write[0], refused.code) != ("PUT", 404):
                raise
            return known is not None and await self._try(renews=True, timeout_s=timeout_s)  # it isn't as it was
        self._written = lease
        self._leading.wrote(lease, began, time.monotonic())
        return True
