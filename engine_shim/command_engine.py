"""Any program with an OpenAI endpoint as an engine: `llama-server`, a diffusers worker, TEI.

Its sleep is its end, and its wake a start: the program has no other way to give a device back. It runs under a guard
(`sidecar/machine/guarded.py`), so that its end is that of everything it has started; and it counts for the lock server
as one of this engine's processes before it runs. What it holds while it sleeps is nothing.

    engine-shim --engine command --health /health ... -- llama-server --port {port} -m model.gguf

What this file may not do: know the program.
"""

import contextlib
import http.client
import os
import socket
import threading
import time
from pathlib import Path

from engine_shim.engine import CannotRun, Health, Listen, Setting, WorkerFailed
from engine_shim.shell.paths import LIFE
from lockserver.client import TREE_VARIABLE
from sidecar.kernel import peers, port_owner, process_tree
from sidecar.kernel.guard import Command
from sidecar.machine.guarded import CantRun, GuardedCommand, find
from sidecar.terminal.logs import complain

HOST = "127.0.0.1"
PORT = "{port}"
END_WITHIN_S = 5.0
"""The lock server waits twice as long for an engine that gives back."""
LOOK_S = 0.05
ANSWER_S = 2.0
TOKEN_VARIABLE = "FAILOVER_TOKEN"


class CommandEngine:
    def __init__(self, setting: Setting) -> None:
        """Raises CannotRun where the command can't be there."""
        self._setting = setting
        self._command: GuardedCommand | None = None
        self._port = 0
        self._token = 0
        words = setting.arguments
        if not words:
            raise CannotRun("which command? Put it behind --")
        if not any(PORT in word for word in words):
            raise CannotRun(f"the command has to be told its port: write {PORT} where it is to stand")
        try:
            self._program = os.path.abspath(find(words[0]))
        except CantRun as error:
            raise CannotRun(str(error)) from None

    # -- the contract --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Nothing of it is there before it is waked."""

    def needs(self) -> dict[str, int]:
        return dict(self._setting.needs)

    def well(self, fresh: bool = True) -> bool:
        return os.access(self._program, os.X_OK)

    def granted(self, token: int, proven: bool) -> None:
        self._token = token

    def leave(self) -> None:
        """It has nothing that a successor goes on with."""

    def wake(self) -> None:
        """Blocks until its health path says 200; the shim has a bound."""
        command = GuardedCommand(complain)
        self._port = _free_port()
        try:
            command.fork(self._as_told())
            self._setting.vouch(command.pid)  # it touches no device before
            command.go(self._token)
        except CantRun as error:
            raise WorkerFailed(str(error)) from None
        self._command = command
        threading.Thread(target=self._mind, args=(command,), name="command", daemon=True).start()
        while not self._answers():
            if not command.lives():
                raise WorkerFailed(f"{self._program} has ended before it served")
            time.sleep(LOOK_S)
        # Another program may have taken the port since, and answers for it; or the command has handed over to a daemon,
        # of which nothing could be proven.
        if other := port_owner.owner(self._port, besides=process_tree.descendants(os.getpid())):
            raise WorkerFailed(f"{other} listens on port {self._port}, which was {self._program}'s, and isn't of it")

    def own_address(self) -> Listen:
        return Listen(host=HOST, port=self._port)

    def serve(self, listen: Listen) -> None:
        """It does already."""

    def health(self) -> Health:
        command = self._command
        lives = command is not None and command.lives()
        return Health(queued=0, steps=0, detail="" if lives else "its command has ended")

    def drain(self, timeout_s: float) -> None:
        """Whether a request is under way shows in its clients' connections only: the door keeps none that is idle."""
        end = time.monotonic() + timeout_s
        while port_owner.clients(self._port) and time.monotonic() < end:
            time.sleep(LOOK_S)

    def resume(self) -> None:
        """It has never stopped to take requests."""

    def sleep(self) -> None:
        command, self._command = self._command, None
        if command is not None:
            command.end_now(END_WITHIN_S)

    def stop(self) -> None:
        self.sleep()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _as_told(self) -> Command:
        words = [word.replace(PORT, str(self._port)) for word in self._setting.arguments]
        tree = os.environ.get(TREE_VARIABLE)
        return Command(
            self._program,
            words,
            {"PORT": str(self._port)},
            TOKEN_VARIABLE,
            (),
            "engine-guard",
            self._setting.run_dir / LIFE / tree if tree else None,
        )

    def _mind(self, command: GuardedCommand) -> None:
        """In a thread of its own: a program that ends by itself takes its engine with it. One that was put to sleep
        isn't the engine's any more, whenever this thread comes to see that.
        """
        peers.await_end(command.pidfd)
        if self._command is command:
            complain(f"engine: {self._program} has ended by itself")
            self._setting.failing(f"{Path(self._program).name} has ended by itself")
            os._exit(1)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=ANSWER_S)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", self._setting.health)
            return connection.getresponse().status == 200
        return False


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port
