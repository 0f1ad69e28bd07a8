"""Introductions, and questions that anybody may ask.

Pure, a part of the machine. A mistake costs its sender the connection and disturbs nobody else: this file says what was
wrong (a `Problem`), and `machine.py` ends the connection.
"""

from collections.abc import Callable

from gms import events as e
from gms import messages as m
from gms import versions
from gms.context import Context
from gms.sessions import Client, Observer, Sessions
from gms.weights import Weights


class Callers:
    def __init__(
        self, context: Context, weights: Weights, sessions: Sessions, config: e.Config, strangers: versions.Strangers
    ) -> None:
        self._context = context
        self._weights = weights
        self._sessions = sessions
        self._config = config
        self._strangers = strangers

    def step(self) -> None:
        self._strangers.step()

    # -- introductions ---------------------------------------------------------------------------------------------

    def introduce(self, event: e.Received, hello: m.Hello | m.Observe) -> m.Problem | None:
        """None: it is in."""
        problem = self._problem(event.conn, hello)
        if event.process is not None and (problem is not None or isinstance(hello, m.Observe)):
            self._context.out.append(e.ForgetProcess(event.process))
        if problem is not None:
            return problem
        if isinstance(hello, m.Observe):
            self._sessions.observers[event.conn] = Observer()
        else:
            context = self._context
            client = Client(event.conn, hello.engine_id, hello.pid, event.process, context.wall)
            self._welcome(client, versions.spoken().agreed(hello))
        return None

    def _problem(self, conn: int, hello: m.Hello | m.Observe) -> m.Problem | None:
        if self._sessions.knows(conn):
            return m.Problem(why="this connection has introduced itself already")
        if not versions.spoken().agreed(hello):
            if isinstance(hello, m.Hello):
                self._strangers.came(hello)
            return m.Problem(why=versions.spoken().why_none(hello), about="protocol")
        if isinstance(hello, m.Hello) and self._sessions.full:
            return m.Problem(why=f"{len(self._sessions.clients)} processes are connected already", about="place")
        return None

    def _welcome(self, client: Client, protocol: int) -> None:
        self._strangers.talks(client.engine_id)
        self._sessions.clients[client.conn] = client
        if client.process is not None:
            self._context.out.append(e.WatchDeath(client.process))
        self._context.changed = True
        generation, hash = self._weights.there
        welcome = m.Welcome(
            server_incarnation=self._config.server_incarnation,
            device=self._config.device,
            granularity=self._config.granularity,
            generation=generation,
            hash=hash,
            recovering=self._weights.awaited is not None,
            protocol=protocol,
        )
        self._context.send(client.conn, welcome)

    # -- questions -------------------------------------------------------------------------------------------------

    def ask(self, conn: int, message: m.ClientMessage) -> m.Problem | None:
        """Whatever isn't a request of a client. None: it is answered."""
        answer = _ANSWERS.get(type(message))
        if answer is None or not self._sessions.knows(conn):
            looks = conn in self._sessions.observers
            why = "an observer can't ask for it" if looks else "introduce yourself first: Hello or Observe"
            return m.Problem(why=f"{type(message).__name__}: {why}")
        problem = answer(self, conn)
        return problem if isinstance(problem, m.Problem) else None

    def _layout(self, conn: int) -> None:
        layout = self._weights.committed
        answer = m.LayoutIs(generation=0, hash="")
        if layout is not None:
            answer = m.LayoutIs(
                generation=layout.generation, hash=layout.hash, layout=layout.document, sums=list(layout.sums)
            )
        self._context.send(conn, answer)

    def _history(self, conn: int) -> None:
        self._context.send(conn, m.History(events=self._context.history))

    def _watch(self, conn: int) -> m.Problem | None:
        observer = self._sessions.observers.get(conn)
        if observer is None:
            return m.Problem(why="Watch: it is for observers (Observe)")
        observer.watches = self._context.changed = True
        return None

    def _ping(self, conn: int) -> None:
        self._context.send(conn, m.Pong(server_incarnation=self._config.server_incarnation))


_ANSWERS: dict[type, Callable[[Callers, int], object]] = {
    m.AskLayout: Callers._layout,
    m.AskHistory: Callers._history,
    m.Watch: Callers._watch,
    m.Ping: Callers._ping,
}
