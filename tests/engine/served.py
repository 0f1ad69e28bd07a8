"""A program with an endpoint, as others write them: it knows nothing of us. It leaves a daemon behind that no signal
but SIGKILL ends, and its health path says 503 at first.

    python -m tests.engine.served PORT
"""

import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOADS_S = 0.1


class Handler(BaseHTTPRequestHandler):
    began = time.monotonic()

    def do_GET(self) -> None:
        loading = time.monotonic() < self.began + LOADS_S
        self.say(503 if self.path == "/healthz" and loading else 200, f"{os.getpid()} {os.environ['FAILOVER_TOKEN']}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(0.5)
        self.say(200, "an answer")

    def say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


def leave_a_daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.execvp("sleep", ["sleep", "10000"])
        os._exit(0)
    os.wait()


if __name__ == "__main__":
    leave_a_daemon()
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
