"""The reference engine, as the contract (`engine_shim/engine.py`) wants it.

`start` makes everything: weights, workers, the loop's thread, the application. `sleep` gives back weights and cache,
`wake` takes them again, and `serve` only binds.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from engine_shim.engine import Health, Listen
from engine_shim.weights_wait import await_weights
from reference_engine import api, options
from reference_engine.app import App
from reference_engine.crew import Crew
from reference_engine.kv import Blocks, block_bytes
from reference_engine.model import Model
from reference_engine.rank import Home
from reference_engine.scheduler import Scheduler
from reference_engine.service import Service
from sidecar.http_server import HttpServer, Limits
from sidecar.logs import Log
from sidecar.sockets import ServerSocket

T = TypeVar("T")
_UNSENT_POLL_S = 0.005


class Setting(Protocol):
    """What the shim says (`engines.Setting`)."""

    @property
    def run_dir(self) -> Path: ...
    @property
    def engine_id(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def arguments(self) -> tuple[str, ...]: ...
    def phase(self, name: str, seconds: float, /) -> None: ...


class NotStarted(Exception):
    """A call that comes later than it may: the contract has the order."""


class ReferenceEngine:
    def __init__(self, arguments: Sequence[str], setting: Setting | None = None) -> None:
        """Touches no device. Ends the program with a sentence if the arguments are no good."""
        self.options = options.parse(arguments)
        self._arguments = tuple(arguments)
        self._setting = setting
        self._home = None
        if setting is not None and self.options.devices and not self.options.standalone:
            self._home = Home(setting.run_dir, setting.engine_id, setting.role == "primary")
        self._log = Log("reference")
        self._crew: Crew | None = None
        self._service: Service | None = None
        self._server: HttpServer | None = None
        self._door: ServerSocket | None = None
        self._needs: dict[str, int] = {}
        self.address = ""
        """Where it serves, once it does."""

    # -- the way ---------------------------------------------------------------------------------------------------

    def await_others(self) -> None:
        """A shadow has nothing to read until a primary has written."""
        home, options = self._home, self.options
        if home is not None and not home.writes:
            await_weights(home.run_dir, home.engine_id, options.devices, options.weights_timeout_s)

    def start(self) -> None:
        chosen, shape = self.options, self.options.shape
        crew = self._crew = Crew(chosen, self._arguments, self._home)
        self._needs = crew.start()
        blocks = Blocks(chosen.kv_bytes // block_bytes(shape, shape.heads))
        period_s = 1 / chosen.tokens_per_s if chosen.tokens_per_s else 0.0
        scheduler = Scheduler(blocks, max_batch=chosen.max_batch, period_s=period_s)
        service = self._service = Service(Model(shape, crew.main.weights, crew), scheduler, self._log)
        app = App(service, chosen.model, shape.max_len, self._log, chosen.adapters)
        server = self._server = HttpServer(service.loop, app.handle, api.error_body, Limits())
        service.on_broken = server.close
        time.sleep(chosen.init_delay_s)

    def sleep(self) -> None:
        _started(self._crew).sleep()

    def needs(self) -> dict[str, int]:
        return dict(self._needs)

    def well(self, fresh: bool = True) -> bool:
        return self._crew is not None and self._crew.well()

    def wake(self) -> None:
        times = _started(self._crew).wake()
        for name, seconds in times.items():
            if self._setting is not None:
                self._setting.phase(name, seconds)
        time.sleep(self.options.wake_delay_s)

    def serve(self, listen: Listen) -> None:
        service, server = _started(self._service), _started(self._server)
        service.call(service.open)
        if self._door is not None:  # its socket is gone, and it binds again
            self._door.close()
            service.call(server.stop_accepting)
        listener, self._door = listen.bind()
        self.address = listen.url if listen.path else Listen(host=listen.host, port=listener.getsockname()[1]).url
        service.run(server.listen(listener))

    def takes(self) -> dict[str, str]:
        chosen, shape = self.options, self.options.shape
        return {
            "--model": chosen.model,
            "--adapters": ",".join(chosen.adapters),
            "--max-model-len": str(shape.max_len),
            "--kv-bytes": str(chosen.kv_bytes),
        }

    def health(self) -> Health:
        service, crew = _started(self._service), _started(self._crew)
        return Health(service.queued, service.steps, service.broken or crew.missing())

    def drain(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        service, server = _started(self._service), _started(self._server)
        service.call(lambda: service.close("the engine is draining: it takes no new requests"))
        service.wait_idle(timeout_s)
        while server.unsent and time.monotonic() < end:
            time.sleep(_UNSENT_POLL_S)

    def resume(self) -> None:
        service = _started(self._service)
        service.call(service.open)

    def stop(self) -> None:
        """May be called again."""
        service, self._service = self._service, None
        if service is not None and self._server is not None:
            with contextlib.suppress(TimeoutError):  # a worker that doesn't answer holds the loop: it ends with us
                service.call(self._server.close)
            service.stop()
        if self._door is not None:
            self._door.close()
            self._door = None
        if self._crew is not None:
            self._crew.stop()
            self._crew = None


def _started(thing: T | None) -> T:
    if thing is None:
        raise NotStarted("the engine has not been started, or was stopped")
    return thing
