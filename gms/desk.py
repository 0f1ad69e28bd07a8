"""Who comes in, who only looks, and what happens when somebody leaves.

Pure, a part of the machine (`machine.py`). A mistake costs its sender the connection and disturbs nobody else.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gms import events as e
from gms import messages as m
from gms.sessions import Client, Doing
from gms.status import status_of

if TYPE_CHECKING:
    from gms.machine import Machine

MAX_CALLERS = 500


class Desk:
    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.context = machine.context
        self.observers: dict[int, bool] = {}
        """Those who only look, and whether they want to hear of each change."""

    def received(self, event: e.Received) -> None:
        """Whatever isn't a request of somebody who has introduced itself."""
        message, looks = event.message, event.conn in self.observers
        if isinstance(message, m.Hello | m.Observe):
            self._introduce(event, message)
        elif (looks or event.conn in self.machine.clients) and type(message) in _QUESTIONS:
            _QUESTIONS[type(message)](self, event)
        else:
            why = "an observer can't ask for it" if looks else "introduce yourself first: Hello or Observe"
            self.machine.throw_out(event.conn, f"{type(message).__name__}: {why}")

    def _introduce(self, event: e.Received, message: m.Hello | m.Observe) -> None:
        machine, clients, why = self.machine, self.machine.clients, ""
        if event.conn in clients or event.conn in self.observers:
            why = "this connection has introduced itself already"
        elif message.protocol != m.PROTOCOL:
            why = f"protocol {message.protocol} is not spoken here; this server speaks {m.PROTOCOL}"
        elif len(clients) + len(self.observers) >= MAX_CALLERS:
            why = f"{MAX_CALLERS} callers are connected already"
        if why or isinstance(message, m.Observe):
            if event.process is not None:
                self.context.out.append(e.ForgetProcess(event.process))
            if why:
                machine.throw_out(event.conn, why)
            else:
                self.observers[event.conn] = False
            return
        clients[event.conn] = Client(event.conn, message.engine_id, message.pid, event.process, self.context.wall)
        if event.process is not None:
            self.context.out.append(e.WatchDeath(event.process))
        self.context.changed = True
        layout, awaited = machine.committed, machine.recovery.awaited
        welcome = m.Welcome(
            server_incarnation=machine.config.server_incarnation,
            device=machine.config.device,
            granularity=machine.config.granularity,
            generation=layout.generation if layout else awaited.generation if awaited else 0,
            hash=layout.hash if layout else awaited.hash if awaited else "",
            recovering=awaited is not None,
        )
        self.context.send(event.conn, welcome)

    def end(self, conn: int) -> None:
        self.context.out.append(e.Close(conn))
        self.left(conn)

    def left(self, conn: int) -> None:
        machine = self.machine
        self.observers.pop(conn, None)
        client = machine.clients.pop(conn, None)
        if client is None:
            return
        if client.process is not None:
            self.context.out.append(e.ForgetProcess(client.process))
        if client.returning is not None:
            machine.forget(client.returning.slabs)
        if client.doing is not Doing.WATCHING:
            self.context.note("left", engine=client.engine_id, was=client.doing.value)
        self.context.changed = True
        if machine.draft is not None and machine.draft.writer is client:
            machine.writing.abort()
        machine.recovery.somebody_left()

    # -- questions -------------------------------------------------------------------------------------------------

    def _on_ask_status(self, event: e.Received) -> None:
        conn = event.conn

        def seen(memory: e.MemorySeen) -> None:
            if conn in self.machine.clients or conn in self.observers:
                self.context.send(conn, status_of(self.machine, memory.free))

        self.machine.look_at_memory((), seen)

    def _on_ask_layout(self, event: e.Received) -> None:
        layout = self.machine.committed
        answer = m.LayoutIs(generation=0, hash="")
        if layout is not None:
            answer = m.LayoutIs(
                generation=layout.generation, hash=layout.hash, layout=layout.document, sums=layout.sums
            )
        self.context.send(event.conn, answer)

    def _on_ask_history(self, event: e.Received) -> None:
        self.context.send(event.conn, m.History(events=self.context.history))

    def _on_watch(self, event: e.Received) -> None:
        if event.conn in self.observers:
            self.observers[event.conn] = self.context.changed = True
        else:
            self.machine.throw_out(event.conn, "Watch: it is for observers (Observe)")

    def _on_ping(self, event: e.Received) -> None:
        self.context.send(event.conn, m.Pong(server_incarnation=self.machine.config.server_incarnation))


_QUESTIONS: dict[type, Callable[[Desk, e.Received], None]] = {
    m.AskStatus: Desk._on_ask_status,
    m.AskLayout: Desk._on_ask_layout,
    m.AskHistory: Desk._on_ask_history,
    m.Watch: Desk._on_watch,
    m.Ping: Desk._on_ping,
}
