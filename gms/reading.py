"""What a reader gets: the layout, and descriptors of all its slabs, for one request.

Pure, a part of the machine. Whether it may come in was decided before (`admission.py`).
"""

from gms import events as e
from gms import messages as m
from gms.context import Context
from gms.holders import Holders
from gms.sessions import Client, Sessions
from gms.weights import Layout, Weights


class Reading:
    def __init__(
        self, context: Context, weights: Weights, holders: Holders, sessions: Sessions, config: e.Config
    ) -> None:
        self._context = context
        self._weights = weights
        self._holders = holders
        self._sessions = sessions
        self._batch = config.batch

    def let_in(self, client: Client, wanted: m.Open) -> None:
        _, hash = self._weights.there
        if wanted.expect and wanted.expect != hash:
            why = f"the layout that was expected ({wanted.expect[:12]}) is gone; there is {hash[:12]} now"
            self._sessions.refuse(client, why, "stale")
            return
        layout, send = self.begins(client), self._context.send
        if wanted.have == layout.generation:
            send(client.conn, m.Opened(mode="ro", generation=layout.generation, hash=layout.hash))
            return
        opened = m.Opened(
            mode="ro",
            generation=layout.generation,
            hash=layout.hash,
            sizes=[slab.size for slab in layout.slabs],
            layout=layout.document,
            sums=list(layout.sums),
        )
        send(client.conn, opened)
        for first in range(0, len(layout.slabs), self._batch):
            handles = tuple(slab.handle for slab in layout.slabs[first : first + self._batch])
            send(client.conn, m.Slabs(generation=layout.generation, first=first), handles)

    def begins(self, client: Client) -> Layout:
        """It reads what is committed."""
        layout = self._weights.read(client.conn)
        client.request = None
        self.has_begun(client, layout)
        return layout

    def has_begun(self, client: Client, layout: Layout) -> None:
        """Its own commit made it a reader."""
        self._sessions.turns_to_something_else(client)
        self._holders.get(client.conn, layout.generation)
        self._context.note("reading", engine=client.engine_id, generation=layout.generation)
