"""The vLLM engine, as the contract (`engine_shim/engine.py`) wants it.

vLLM's client of EngineCore and its HTTP application are written for asyncio, so they live in a loop in a thread of its
own, and the calls of the contract wait for it. `start` makes everything: processes, weights, the application, and what
warms it all (`warm_up.py`). `sleep` and `wake` reach the workers through vLLM's own calls. `serve` only binds.

What this file may not do: know a version of vLLM (`versions.py`), or how a worker sleeps (`pair_worker.py`).
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import gc
import math
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from engine_shim.engine import CannotRun, Health, Listen, Setting, WorkerFailed, started
from engine_shim.kv.adoption import Why
from engine_shim.shell.transient import is_of_network
from engine_shim.vllm_engine import (
    contents,
    engine_directory,
    huge_pages,
    kv_index,
    options,
    versions,
    warm_up,
    what_it_takes,
)
from engine_shim.vllm_engine.endpoint import Endpoint
from engine_shim.weights_wait import await_gms, await_weights
from sidecar.terminal.logs import Log
from sidecar.wire.sockets import ServerSocket

T = TypeVar("T")
_WELL_TIMEOUT_S = 2.0
_ASK_EVERY_S = 15.0
_STOP_TIMEOUT_S = 2.0
_LEAVE_TIMEOUT_S = 2.0
_KNOWN_PROMPT = range(1, 8)
"""Shorter than any block, so that it is computed each time; its later tokens read the KV cache."""
_KNOWN_TOKENS = 2
"""The prompt's own pass, and a step after it."""


class VllmEngine:
    def __init__(self, setting: Setting) -> None:
        """Touches no device. Raises CannotRun; SystemExit where vLLM's own parser says no."""
        self._setting = setting
        self._args, told = options.parse(setting)
        self._contents = contents.read(self._args)
        self._for_workers = dataclasses.replace(told, contents=self._contents.digests)
        self._args.model_loader_extra_config = self._for_workers.to_extra()
        self._log = Log("vllm-engine")
        self._loop = asyncio.new_event_loop()
        # EngineCore dies with the thread that started it; this one ends with the process.
        threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True).start()
        self._client: Any = None
        self._endpoint: Endpoint | None = None
        self._generates = False
        """It isn't an embedding model, say."""
        self._socket_name: ServerSocket | None = None
        self._needs: dict[str, int] = {}
        self._steps = 0
        self._grant: tuple[int, bool] | None = None
        self._order: kv_index.Order | None = None
        """What the scheduler was told at the wake, if every rank has its part of the predecessor's KV cache."""
        self._kept: tuple[int, int] | None = None
        self._woken = False
        self._parked = self._left_out = 0
        """How many blocks of the KV cache sleep with it, and how many were dropped when it went to sleep."""
        kv_index.forget_order(setting.run_dir, setting.engine_id)
        self._asking = threading.Lock()
        self._was_well = False
        self._asked_at = -math.inf

    # -- the contract --------------------------------------------------------------------------------------------------

    def await_others(self) -> None:
        """A primary has no device until GMS is there, and a shadow nothing to read until a primary has written."""
        told = self._for_workers
        where = (self._setting.gms_dir, self._setting.name, told.devices, told.weights_timeout_s)
        await_gms(*where) if told.writes else await_weights(*where, self._setting.region)

    def start(self) -> None:
        self._run(self._start())

    async def _start(self) -> None:
        try:
            config = versions.configured(self._args)
        except Exception as error:  # vLLM has no class of its own for what it refuses
            if is_of_network(error):
                raise
            raise CannotRun(f"vLLM refuses this configuration: {versions.sentence(error)}") from error
        options.check(config)
        try:
            self._client = versions.start(self._args, config, self._stepped)
        except RuntimeError as error:
            if str(error).startswith(versions.CORE_FAILED):  # it says itself why, unless it was killed
                raise WorkerFailed(str(error)) from error
            raise
        await self._ask_needs()
        app, self._generates = await versions.application(self._client, self._args)
        contents.require_unchanged(self._args, self._contents)
        self._endpoint = Endpoint(app, versions.http_settings(self._args))
        app.state.server = self._endpoint.server
        await self._endpoint.prepare()
        if self._generates:
            await self._warm_up(self._endpoint, config.model_config.max_model_len)
        gc.freeze()  # there are a million objects that stay, and needn't be looked through again and again
        gc.enable()
        huge_pages.move_memory()
        self._was_well = True

    def takes(self) -> dict[str, str]:
        return what_it_takes.said(self._args, started(self._client).vllm_config, self._contents.digests)

    def sleep(self) -> None:
        self._run(self._sleep())

    async def _sleep(self) -> None:
        client = started(self._client)
        if self._for_workers.parks and self._woken:  # before that, its blocks lie in scratch
            await client.pause_generation(mode="abort", clear_cache=False)
            self._left_out, *blocks = await versions.reset_prefix_cache(client, versions.PARK)
            self._parked = len(blocks)
            if blocks:
                self._parked = min(await client.collective_rpc("failover_park", args=(blocks,)))
            if self._parked < len(blocks):  # there was no time
                self._left_out += (await versions.reset_prefix_cache(client, versions.PARK, self._parked))[0]
        await client.sleep(level=1)

    async def _ask_needs(self) -> None:
        needs: dict[str, int] = {}
        for device, size in await self._client.collective_rpc("failover_needs"):
            needs[device] = needs.get(device, 0) + size
        self._needs = needs

    def needs(self) -> dict[str, int]:
        return dict(self._needs)

    def well(self, fresh: bool = True) -> bool:
        """Asks the workers. While another thread is asking them already, the last answer counts.

        After every question vLLM's workers look out for the next one without a pause, for a second: a standby that was
        asked every second would keep a processor per rank busy. A rank whose weights are gone leaves a mark in a file,
        which needs no asking.
        """
        client = self._client
        if client is None or client.errored or engine_directory.marked():
            return False
        recent = self._was_well and time.monotonic() < self._asked_at + _ASK_EVERY_S
        if (recent and not fresh) or not self._asking.acquire(blocking=False):
            return self._was_well
        try:
            self._asked_at = time.monotonic()
            self._was_well = all(self._run(client.collective_rpc("failover_well"), _WELL_TIMEOUT_S))
            self._run(self._ask_needs(), _WELL_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            self._was_well = False
        finally:
            self._asking.release()
        return self._was_well

    def granted(self, token: int, proven: bool) -> None:
        self._grant = (token, proven)

    def wake(self) -> None:
        self._run(self._wake())

    async def _wake(self) -> None:
        client, told = started(self._client), self._for_workers
        self._woken = True
        if not told.keeps or self._grant is None:
            await client.wake_up()
            await self._unpark(client)
            return
        claimed = await client.collective_rpc("failover_claim", args=self._grant)
        await client.wake_up()
        pools, why_empty, before, weights = zip(*claimed, strict=True) if all(claimed) else ((), (), (), ())
        token, proven = self._grant
        # The predecessor may have computed with what is there now.
        if await contents.adapters_changed(self._args, self._contents):
            why_empty = (Why.OTHER_DIGEST.value,) * len(pools)
            self._log.warning("kv_not_believed", why="files of a LoRA adapter have changed since the start")
        self._order = kv_index.Order(token, proven, pools, why_empty, before, weights)
        kv_index.give(self._order, told.directory, told.engine_id)
        kept = await versions.reset_prefix_cache(client)  # the scheduler adopts what is there
        self._kept = (kept[0], kept[1]) if isinstance(kept, (list, tuple)) else None

    async def _unpark(self, client: Any) -> None:
        parked, left_out, self._parked, self._kept = self._parked, self._left_out, 0, None
        if not parked and not left_out:
            return
        there = not parked or all(await client.collective_rpc("failover_unparked"))
        room, block = await versions.reset_prefix_cache(client, versions.UNPARK)
        if not there or await contents.adapters_changed(self._args, self._contents):
            await versions.reset_prefix_cache(client)
            found = 0, parked + left_out, Why.OTHER_DIGEST
        else:
            found = parked, left_out, Why.NO_ROOM if left_out else Why.NONE
            self._kept = None if left_out else (room, block)
        self._log.info("kv", adopted=found[0], dropped=found[1], why=found[2].value)
        self._setting.adopted(found[0], found[1], found[2].value)

    def known(self) -> Sequence[int]:
        if not self._generates:
            return ()
        name = f"known-{time.monotonic_ns()}"
        return self._run(versions.first_tokens(started(self._client), _KNOWN_PROMPT, _KNOWN_TOKENS, name))

    def serve(self, listen: Listen) -> None:
        endpoint = started(self._endpoint)
        again = self._socket_name
        if again is not None:  # its socket is gone
            again.close()
        bound, self._socket_name = listen.bind()
        endpoint.gate.closed = False  # it may have drained before it slept
        self._run(endpoint.listen(bound))
        if again is None:
            self._later(self._say_times())

    def health(self) -> Health:
        client = started(self._client)
        detail = "vLLM says that its engine is dead" if client.errored else ""
        return Health(versions.unfinished(client), self._steps, detail)

    def drain(self, timeout_s: float) -> None:
        gate = started(self._endpoint).gate
        gate.closed = True
        self._run(gate.idle(timeout_s))

    def resume(self) -> None:
        started(self._endpoint).gate.closed = False

    def kept(self) -> tuple[int, int] | None:
        return self._kept

    def leave(self) -> None:
        if self._order is None:
            return
        try:
            self._run(self._leave(self._order), _LEAVE_TIMEOUT_S)
        except Exception as error:  # vLLM may be dead; this process ends, too, and GMS then counts it as a death
            self._log.warning("kv_not_released", why=f"{type(error).__name__}: {error}")

    async def _leave(self, order: kv_index.Order) -> None:
        """Nothing writes to the cache any more: then the scheduler releases its table, and the workers their memory."""
        client, told = started(self._client), self._for_workers
        await client.pause_generation(mode="abort", clear_cache=False)
        kv_index.give(msgspec.structs.replace(order, leave=True), told.directory, told.engine_id)
        await client.reset_prefix_cache()
        await client.collective_rpc("failover_leave")

    def stop(self) -> None:
        if self._endpoint is not None:
            with contextlib.suppress(concurrent.futures.TimeoutError):
                self._run(self._endpoint.close(), _STOP_TIMEOUT_S)
        if self._socket_name is not None:
            self._socket_name.close()
            self._socket_name = None
        if self._client is not None:
            self._client.shutdown(timeout=_STOP_TIMEOUT_S)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _stepped(self) -> None:
        self._steps += 1

    async def _warm_up(self, endpoint: Endpoint, longest: int) -> None:
        began = time.monotonic()
        name = (self._args.served_model_name or [self._args.model])[0]
        said: dict[str, int] = {}
        for body in warm_up.bodies(name, longest):
            answer = await endpoint.warm_up("/v1/completions", body, self._api_key())
            said[answer] = said.get(answer, 0) + 1
        self._log.info("warmed_up", seconds=f"{time.monotonic() - began:.1f}", answers=said)

    def _api_key(self) -> str:
        return str((self._args.api_key or [""])[0])

    async def _say_times(self) -> None:
        """Reports how long the slowest rank took for each part of the wake."""
        found: list[dict[str, float]] = await self._client.collective_rpc("failover_times")
        for name in found[0]:
            self._setting.phase(name, max(each[name] for each in found))

    def _later(self, what: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    def _run(self, what: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return self._later(what).result(timeout_s)
