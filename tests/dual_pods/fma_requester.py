"""FMA's requester, as its sources have it (pkg/server/requester of 0.6.4): it is ready when it was told so last, asks
no instance, relays nothing, and heeds no body.

    python -m tests.dual_pods.fma_requester HOST GPU-0,GPU-1
"""

import http.server
import json
import sys
import threading
from typing import ClassVar

from tests.support.answering import Answering


class Spi(Answering):
    ready: ClassVar = threading.Event()
    gpus: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        if self.path == "/v1/dual-pods/accelerators":
            self.answer(200, json.dumps(self.gpus))
        elif self.path == "/v1/dual-pods/accelerator-memory-usage":
            self.answer(200, json.dumps(dict.fromkeys(self.gpus, 0)))
        else:
            self.answer(404, "404 page not found")

    def do_POST(self) -> None:
        self.body()
        if self.path in ("/v1/become-ready", "/v1/become-unready"):
            (self.ready.set if self.path.endswith("-ready") else self.ready.clear)()
            self.answer(200, "OK")
        else:
            self.answer(404, "404 page not found")

    def answer(self, status: int, said: str = "", kind: str = "text/plain") -> None:
        super().answer(status, f"{said}\n", kind)


class Probes(Spi):
    def do_GET(self) -> None:
        if self.path != "/ready":
            self.answer(404, "404 page not found")
        elif self.ready.is_set():
            self.answer(200, "OK")
        else:
            self.answer(503, "Service Unavailable")


if __name__ == "__main__":
    host, Spi.gpus = sys.argv[1], sys.argv[2].split(",")
    probes = http.server.ThreadingHTTPServer((host, 8080), Probes)
    threading.Thread(target=probes.serve_forever, daemon=True).start()
    http.server.ThreadingHTTPServer((host, 8081), Spi).serve_forever()
