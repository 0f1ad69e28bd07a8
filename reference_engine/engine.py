"""The reference engine, as the contract (`engine_shim/engine.py`) wants it.

`start` makes everything: weights, workers, the loop's thread, the application. `sleep` gives back weights and cache,
`wake` takes them again, and `serve` only binds.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from engine_shim.engine import Health, Listen, Setting, WorkerFailed, started
from engine_shim.kept_cache import Claimed
from engine_shim.kv.adoption import Adoption, Facts, Why
from engine_shim.kv.parking import most_blocks
from engine_shim.weights_wait import await_gms, await_weights
from reference_engine import api, options
from reference_engine.app import App
from reference_engine.crew import Crew
from reference_engine.kv import block_bytes
from reference_engine.kv_kept import NOTHING, Kept, metrics
from reference_engine.kv_prefix import Blocks
from reference_engine.model import Model
from reference_engine.places import BLOCK, Span
from reference_engine.rank import Home
from reference_engine.scheduler import Scheduler
from reference_engine.service import Service
from reference_engine.store import described
from sidecar.http.http_server import HttpServer, Limits
from sidecar.kernel import host_usage
from sidecar.terminal.logs import Log
from sidecar.terminal.names import VERSION
from sidecar.wire.sockets import ServerSocket

_UNSENT_POLL_S = 0.005
KNOWN_PROMPT = tuple(range(1, BLOCK + 2))
KNOWN_TOKENS = 2
"""The prompt's own pass, and a step after it."""
LEAVE_S = 2.0
"""A worker that has to give its cache back in order may take so long: a successor waits for the end of this process."""


class ReferenceEngine:
    def __init__(self, arguments: Sequence[str], setting: Setting | None = None) -> None:
        """Touches no device. Ends the program with a sentence if the arguments are no good."""
        self.options = options.parse(arguments)
        self._arguments = tuple(arguments)
        self._setting = setting
        self._home = None
        if setting is not None and self.options.devices and not self.options.standalone:
            keeps = setting.kv != "drop"  # its devices are all in host memory
            writes = setting.role == "primary"
            snapshot = str(setting.snapshot or "")
            who = str(setting.gms_dir), setting.name, writes, setting.model, setting.region
            self._home = Home(*who, keeps, snapshot)
        self._log = Log("reference")
        self._crew: Crew | None = None
        self._model: Model | None = None
        self._service: Service | None = None
        self._server: HttpServer | None = None
        self._socket: ServerSocket | None = None
        self._scheduler: Scheduler | None = None
        self._blocks = Blocks(self.options.kv_bytes // block_bytes(self.options.shape, self.options.shape.heads))
        self._grant: tuple[int, bool] | None = None
        self._kept: Kept | None = None
        self.adoption, self.adopted = NOTHING, 0
        """What came of the predecessor's KV cache, or of its own before it slept, and how many of its blocks are of
        use.
        """
        self._parked = self._left_out = 0
        """How many blocks sleep with it, and how many were dropped when it went to sleep."""
        self.address = ""
        """Where it serves, once it does."""

    # -- the way ---------------------------------------------------------------------------------------------------

    def await_others(self) -> None:
        """A primary has no device until GMS is there, and a shadow nothing to read until a primary has written."""
        home, options = self._home, self.options
        if home is not None:
            where = (Path(home.run_dir), home.engine_id, options.devices, options.weights_timeout_s)
            await_gms(*where) if home.writes else await_weights(*where, home.region)

    def start(self) -> None:
        chosen, shape = self.options, self.options.shape
        crew = self._crew = Crew(chosen, self._arguments, self._home)
        crew.start()
        period_s = 1 / chosen.tokens_per_s if chosen.tokens_per_s else 0.0
        scheduler = self._scheduler = Scheduler(self._blocks, max_batch=chosen.max_batch, period_s=period_s)
        model = self._model = Model(shape, crew.main.weights, crew)
        service = self._service = Service(model, scheduler, self._log)
        app = App(service, chosen.model, shape.max_len, self._log)
        app.more_metrics = lambda: metrics(self._blocks, self.adopted, self.adoption, chosen.model)
        server = self._server = HttpServer(service.loop, app.handle, api.error_body, Limits())
        service.on_broken = server.close
        time.sleep(chosen.init_delay_s)

    def sleep(self) -> None:
        """In place: the loop and the application stay, and so do the connections' limits; no client does."""
        if self._socket is not None:
            started(self._service).call(self._break_off)
            self._socket.close()
            self._socket = None
        self._forget_kept()
        self.adoption, self.adopted = NOTHING, 0
        count, most = self._blocks.count, self._setting.kv_parked if self._setting is not None else 0
        parks, no_room = self._blocks.keep(
            most_blocks(most, host_usage.memory_left("MemAvailable"), self.options.kv_bytes, count)
        )
        parks, no_time = self._blocks.keep(started(self._crew).sleep(parks))
        self._parked, self._left_out = len(parks), no_room + no_time if most else 0

    def _break_off(self) -> None:
        service, server = started(self._service), started(self._server)
        service.close("the engine is asleep")
        service.break_off("the engine goes to sleep")
        server.stop_accepting()
        server.break_off()

    def needs(self) -> dict[str, int]:
        return {} if self._crew is None else self._crew.needs()

    def well(self, fresh: bool = True) -> bool:
        return self._crew is not None and self._crew.well()

    def granted(self, token: int, proven: bool) -> None:
        self._grant = (token, proven)

    def wake(self) -> None:
        crew = started(self._crew)
        began = time.monotonic()
        claimed = crew.claim(*self._grant) if self._grant is not None and self._home is not None else []
        claim_s = time.monotonic() - began
        times = crew.wake()
        times["kv"] += claim_s
        self._adopt(claimed)
        self._unpark()
        for name, seconds in times.items():
            if self._setting is not None:
                self._setting.phase(name, seconds)
        time.sleep(self.options.wake_delay_s)

    def known(self) -> Sequence[int]:
        """Computed as any answer is, but for the queue: no request is there."""
        model, blocks = started(self._model), self._blocks
        tokens = list(KNOWN_PROMPT[: max(1, self.options.shape.max_len - KNOWN_TOKENS)])
        taken = blocks.take(len(tokens) + KNOWN_TOKENS).blocks
        done = 0
        found: list[int] = []
        while len(found) < KNOWN_TOKENS:
            (logits,) = model.forward([(tokens, Span(done, len(tokens), taken))])
            done += len(tokens)
            tokens = [int(logits.argmax())]
            found += tokens
        blocks.give(taken)
        return found

    def _adopt(self, claimed: Sequence[Claimed | None]) -> None:
        """What the predecessor's blocks hold, if every rank has its part of it."""
        table = started(self._crew).main.table
        pools = [one for one in claimed if one is not None]
        if table is None or len(pools) != self.options.ranks:
            return
        shape = self.options.shape
        facts = Facts(
            f"reference {VERSION}",
            {"model": described(shape), "weights": started(self._crew).main.weights_are},
            {"positions": str(BLOCK), "count": str(self._blocks.count), "key": "sha256 over the one before"},
            tuple(one.name for one in pools),
        )
        kept = self._kept = Kept(table, self._blocks.count)
        self.adoption = kept.adopt(facts, [one.why_empty for one in pools], [one.before for one in pools])
        self.adopted = kept.serve(self._blocks, started(self._scheduler), self.adoption)
        self._say()

    def _unpark(self) -> None:
        """What the blocks held when it went to sleep, if every rank has its part of it still."""
        parked, self._parked = self._parked, 0
        if not parked and not self._left_out:
            return
        if started(self._crew).unparked or not parked:
            why = Why.NO_ROOM if self._left_out else Why.NONE
            self.adopted, self.adoption = parked, Adoption(dropped=self._left_out, why=why)
        else:
            self._blocks.clear()
            self.adoption = Adoption(dropped=parked + self._left_out, why=Why.OTHER_DIGEST)
        self._say()

    def _say(self) -> None:
        found = self.adopted, self.adoption.dropped, self.adoption.why.value
        self._log.info("kv", adopted=found[0], dropped=found[1], why=found[2])
        if self._setting is not None:
            self._setting.adopted(*found)

    def serve(self, listen: Listen) -> None:
        service, server = started(self._service), started(self._server)
        service.call(service.open)
        if self._socket is not None:  # its socket is gone, and it binds again
            self._socket.close()
            service.call(server.stop_accepting)
        listener, self._socket = listen.bind()
        self.address = listen.url if listen.path else Listen(host=listen.host, port=listener.getsockname()[1]).url
        service.run(server.listen(listener))

    def takes(self) -> dict[str, str]:
        chosen, shape = self.options, self.options.shape
        return {
            "--model": chosen.model,
            "--max-model-len": str(shape.max_len),
            "--kv-bytes": str(chosen.kv_bytes),
        }

    def health(self) -> Health:
        service, crew = started(self._service), started(self._crew)
        return Health(service.queued, service.steps, service.broken or crew.missing())

    def drain(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        service, server = started(self._service), started(self._server)
        service.call(lambda: service.close("the engine is draining: it takes no new requests"))
        service.wait_idle(timeout_s)
        while server.unsent and time.monotonic() < end:
            time.sleep(_UNSENT_POLL_S)

    def resume(self) -> None:
        service = started(self._service)
        service.call(service.open)

    def kept(self) -> tuple[int, int] | None:
        whole = self.adopted and self.adoption.why is Why.NONE
        return (self._blocks.count * BLOCK, BLOCK) if whole else None

    def leave(self) -> None:
        """All ranks release what they have before one of their processes ends: the shim then kills the others."""
        leaving = threading.Thread(target=self._leave, name="leave", daemon=True)
        leaving.start()
        leaving.join(LEAVE_S)

    def _leave(self) -> None:
        self._serve_no_more()
        if self._crew is not None:
            with contextlib.suppress(WorkerFailed):  # its part is left as a death leaves it
                self._crew.sleep()

    def stop(self) -> None:
        """May be called again."""
        self._serve_no_more()
        if self._crew is not None:
            self._crew.stop()
            self._crew = None

    def _serve_no_more(self) -> None:
        service, self._service = self._service, None
        if service is not None and self._server is not None:
            with contextlib.suppress(TimeoutError):  # a worker that doesn't answer holds the loop: it ends with us
                service.call(self._server.close)
            service.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._forget_kept()

    def _forget_kept(self) -> None:
        """Nothing more is published."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None
            self._blocks.hand_out = lambda block: None
            started(self._scheduler).publish = lambda block, key, tokens: None
