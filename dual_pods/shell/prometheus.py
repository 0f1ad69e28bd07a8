"""The memory in use on accelerators, where no ledger says it: as the GPU operator's exporter tells Prometheus."""

from typing import Any

import msgspec

from dual_pods.rules.reading import BadAnswer, decoded
from dual_pods.shell.servers import Failed, sentence
from sidecar.http.http_client import HttpClient, Unanswered

METRIC = "DCGM_FI_DEV_FB_USED"
"""In MiB."""


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class Prometheus:
    def __init__(self, url: str, every_s: float) -> None:
        self.every_s = every_s
        self._url = f"{url}/api/v1/query?query={METRIC}"
        self._http = HttpClient(body_bytes=16 << 20)

    async def used(self) -> dict[str, dict[str, int]]:
        """Node -> accelerator, by its UUID and by its number -> bytes. Of several series of one the most counts, and
        one without a figure is left out. Raises Failed.
        """
        wrong: Exception | None = None
        try:
            answer = await self._http.ask("GET", self._url, timeout_s=self.every_s)
            found: dict[str, dict[str, int]] = {}
            if answer.status != 200:
                raise Failed(f"{METRIC} can't be read: {self._url} says {answer.status}: {sentence(answer.body)}")
            said = decoded(answer.body, dict[str, Any])
            for series in msgspec.convert(said["data"]["result"], list[_Series]):
                try:
                    used = int(float(series.value[1])) << 20
                except (ValueError, OverflowError) as error:
                    wrong = error
                    continue
                node = found.setdefault(series.metric.get("Hostname", ""), {})
                for name in (series.metric.get("UUID"), series.metric.get("gpu")):
                    if name:
                        node[name] = max(used, node.get(name, 0))
            if wrong is not None and not found:
                raise wrong
        except (Unanswered, BadAnswer, LookupError, TypeError, ValueError, OverflowError) as error:
            raise Failed(f"{METRIC} can't be read: {error}") from None
        return found
