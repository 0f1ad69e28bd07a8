"""A program with an OpenAI endpoint, as others write them, that does what files in a directory say.

    python -m tests.many.odd_command DIRECTORY PORT

`uses`: so many bytes of the device USES, without a lease.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gms.memory.host import HostMemory

ANSWER = json.dumps(
    {"object": "text_completion", "choices": [{"index": 0, "text": "an answer", "finish_reason": "stop"}]}
).encode()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.say(200, b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.say(200, ANSWER)

    def say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def run(directory: Path, port: int) -> None:
    told = {path.name: path.read_text() for path in directory.iterdir()}
    if "uses" in told:
        HostMemory(os.environ["USES"].removeprefix("host:")).create(int(told["uses"]))
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
