"""A port of its own for each model that is to have one (`own_port`): what comes there is for that model, whatever a
request calls it. A relay of bytes needs that: it can't say which of two instances of one model is meant.

What this file may not do: know what is asked. Its servers hand on what the door's own server does, with a model's name.
"""

import asyncio
from collections.abc import Callable

from sidecar.http.http_server import HttpServer
from sidecar.wire import tcp


class Ports:
    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, make: Callable[[str], HttpServer]) -> None:
        self.known: dict[str, int] = {}
        """Model -> its port."""
        self._loop, self._host, self._make = loop, host, make
        self._servers: dict[str, HttpServer] = {}
        self._listens: set[asyncio.Task[None]] = set()

    def mind(self, wanted: set[str]) -> None:
        """One that has gone may finish what it answers. Where no port is to be had, it is tried again with the next
        word of the pool.
        """
        for name in self._servers.keys() - wanted:
            del self.known[name]
            self._servers.pop(name).stop_listening()
        for name in sorted(wanted - self._servers.keys()):
            try:
                listener = tcp.listen(self._host, 0)
            except tcp.CannotListen:
                return
            server = self._servers[name] = self._make(name)
            self.known[name] = listener.getsockname()[1]
            task = self._loop.create_task(server.listen(listener))
            self._listens.add(task)
            task.add_done_callback(self._listens.discard)

    def stop_listening(self) -> None:
        for server in self._servers.values():
            server.stop_listening()

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
