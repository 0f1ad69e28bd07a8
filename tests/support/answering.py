"""What stands in for an HTTP server in a test answers with this: in one piece, over a connection that is kept."""

from http.server import BaseHTTPRequestHandler


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def answer(self, status: int, said: str = "", kind: str = "application/json") -> None:
        data = said.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Nothing."""
