"""The memory in use on accelerators, where no ledger says it: as the GPU operator's exporter tells Prometheus."""

import msgspec

from dual_pods.shell.servers import Failed
from sidecar.http.http_client import HttpClient, Unanswered

METRIC = "DCGM_FI_DEV_FB_USED"
"""In MiB."""


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True):
    result: list[_Series]


class _Said(msgspec.Struct, frozen=True):
    data: _Data


class Prometheus:
    def __init__(self, url: str, every_s: float) -> None:
        self.every_s = every_s
        self._url = f"{url.rstrip('/')}/api/v1/query?query={METRIC}"
        self._http = HttpClient(body_bytes=16 << 20)

    async def used(self) -> dict[str, dict[str, int]]:
        """Node -> accelerator, by its UUID and by its number -> bytes. Raises Failed."""
        try:
            answer = await self._http.ask("GET", self._url, timeout_s=self.every_s)
            said = msgspec.json.decode(answer.body, type=_Said)
            found: dict[str, dict[str, int]] = {}
            for series in said.data.result:
                node = found.setdefault(series.metric.get("Hostname", ""), {})
                for name in (series.metric.get("UUID"), series.metric.get("gpu")):
                    if name:
                        node[name] = int(float(series.value[1])) << 20
        except (Unanswered, msgspec.MsgspecError, ValueError) as error:
            raise Failed(f"{METRIC} can't be read: {error}") from None
        return found
