"""A server pod's pool, until the real one is there: the HTTP API of `failover models`, with engines that hold bytes
of devices.

    python -m tests.dual_pods.pool_stand_in --host 127.1.0.2 --port 8000 --devices GPU-0=80,GPU-1=80

`POST /stand-in` with a JSON object makes it misbehave (`_Faults`).
"""

import argparse
import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from pool.entries import Entry, State
from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import HttpServer, Limits
from sidecar.wire import tcp

GIB = 1 << 30
_HOT = (State.AWAKE, State.WAKING, State.LOADING, State.DRAINING)
_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream")]


class _Faults(msgspec.Struct):
    load_s: float = 0.05
    wake_s: float = 0.02
    sleep_s: float = 0.02
    launch_fails: int = 0
    """So many of the next ones."""
    wake_fails: int = 0
    frees_half: bool = False
    foreign: dict[str, int] = {}
    """Bytes on a device that no lease covers."""
    kill: str = ""
    """An instance whose engine dies."""
    listens: bool = True


@dataclass
class Model:
    entry: dict[str, Any]
    state: State = State.OFF
    why: str = ""
    held: int = 0
    asleep: int = 0
    measured: bool = False
    last_used: str | None = None
    task: asyncio.Task[None] | None = None
    needs: dict[str, int] = field(default_factory=dict)
    port: int = 0
    server: HttpServer | None = None


class Pool:
    def __init__(self, host: str, devices: dict[str, int]) -> None:
        self.host, self.devices = host, devices
        self.models: dict[str, Model] = {}
        self.faults = _Faults()
        self.watchers: list[Reply] = []
        self.token = 0
        self.most_awake: dict[str, int] = {}

    # -- what it says ----------------------------------------------------------------------------------------------

    def held(self, device: str) -> int:
        return sum(m.held for m in self.models.values() if device in m.entry["devices"])

    def free(self, device: str) -> int:
        return self.devices[device] - self.held(device) - self.faults.foreign.get(device, 0)

    def document(self) -> bytes:
        models = [
            {
                "name": name, "state": m.state.value, "why": m.why, "devices": m.entry["devices"],
                "bytes": m.needs if m.measured else {}, "asleep_bytes": dict.fromkeys(m.entry["devices"], m.asleep),
                "last_used": m.last_used, "port": None, "pinned": True,
                "turn": 0, "estimate_ms": None,
            }
            for name, m in self.models.items()
        ]  # fmt: skip
        devices = [
            {"uuid": d, "total": total, "free": self.free(d), "leased": self.held(d)}
            for d, total in self.devices.items()
        ]
        ports = {name: m.port for name, m in self.models.items() if m.port}
        return msgspec.json.encode({"models": models, "devices": devices, "token": self.token, "ports": ports})

    def changed(self) -> None:
        for device in self.devices:
            awake = [
                n for n, m in self.models.items()
                if device in m.entry["devices"] and m.state in _HOT
            ]  # fmt: skip
            self.most_awake[device] = max(self.most_awake.get(device, 0), len(awake))
        event = b"data: " + self.document() + b"\n\n"
        for watcher in self.watchers:
            watcher.stream(event)

    # -- what becomes of a model -----------------------------------------------------------------------------------

    def begin(self, model: Model, work: Any) -> None:
        if model.task is not None:
            model.task.cancel()
        model.task = asyncio.create_task(work)

    def move(self, model: Model, state: State, why: str = "") -> None:
        model.state, model.why = state, why
        self.changed()

    async def up(self, model: Model, state: State) -> None:
        loads = state is State.LOADING
        fails = self.faults.launch_fails if loads else self.faults.wake_fails
        if fails:
            setattr(self.faults, "launch_fails" if loads else "wake_fails", fails - 1)
        short = [d for d in model.entry["devices"] if self.free(d) < model.needs.get(d, 0) - model.held]
        if not fails and not short:
            model.held = max(model.needs.values(), default=0)
        self.move(model, state)
        await asyncio.sleep(self.faults.load_s if loads else self.faults.wake_s)
        if fails or short:
            self.move(
                model, State.FAILED, f"out of memory on {', '.join(short)}" if short else "its engine ended with 1"
            )
            return
        model.measured, model.asleep = True, 0
        model.last_used = datetime.now(UTC).isoformat()
        self.move(model, State.AWAKE)

    async def down(self, model: Model) -> None:
        self.move(model, State.DRAINING)
        await asyncio.sleep(self.faults.sleep_s)
        model.held = model.asleep = max(model.needs.values(), default=0) // (2 if self.faults.frees_half else 40)
        self.move(model, State.ASLEEP)

    async def end(self, name: str, model: Model) -> None:
        self.move(model, State.STOPPING)
        await asyncio.sleep(self.faults.sleep_s)
        model.held = 0
        if model.server is not None:
            model.server.close()
        del self.models[name]
        self.changed()

    # -- HTTP ------------------------------------------------------------------------------------------------------

    def handle(self, request: Request, reply: Reply) -> None:
        token = int(request.header(b"x-dual-pods-token", b"0"))
        if token and token < self.token:
            self.say(reply, 409, f"token {token} is older than {self.token}")
            return
        self.token = max(self.token, token)
        parts = request.path.strip("/").split("/")
        if parts == ["stand-in"]:
            self.misbehave(request, reply)
        elif parts[:2] != ["failover", "models"]:
            self.say(reply, 404, "there is /failover/models")
        elif len(parts) == 2 and request.method == "GET":
            self.list(request, reply)
        elif len(parts) == 2:
            self.launch(request, reply)
        elif parts[2] not in self.models:
            self.say(reply, 404, f"there is no model {parts[2]}")
        else:
            self.order(parts[2], parts[3] if len(parts) > 3 else request.method.lower(), reply)

    def say(self, reply: Reply, status: int, why: str) -> None:
        reply.send(status, msgspec.json.encode({"error": why}), _JSON)

    def misbehave(self, request: Request, reply: Reply) -> None:
        self.faults = msgspec.json.decode(request.body, type=_Faults)
        if self.faults.kill:
            model = self.models[self.faults.kill]
            model.held = 0
            self.move(model, State.FAILED, "its process has ended")
        self.changed()
        reply.send(200, msgspec.json.encode({"most_awake": self.most_awake}), _JSON)

    async def open(self, name: str, model: Model) -> None:
        """Its own port."""
        listener = tcp.listen(self.host, 0)
        model.port = listener.getsockname()[1]

        def complete(request: Request, reply: Reply) -> None:
            if request.path.startswith("/failover/"):
                self.handle(request, reply)
            else:
                reply.send(200, msgspec.json.encode({"model": name}), _JSON)

        model.server = HttpServer(asyncio.get_running_loop(), complete, lambda status, why: why.encode(), Limits())
        await model.server.listen(listener)
        self.changed()

    def list(self, request: Request, reply: Reply) -> None:
        if b"watch=1" not in request.target:
            reply.send(200, self.document(), _JSON)
            return
        reply.open(200, _EVENTS)
        reply.gone = lambda: self.watchers.remove(reply)
        self.watchers.append(reply)
        reply.stream(b"data: " + self.document() + b"\n\n")

    def launch(self, request: Request, reply: Reply) -> None:
        entry = msgspec.json.decode(request.body, type=dict[str, Any])
        name = entry.pop("id")
        msgspec.convert(entry, Entry)
        known = self.models.get(name)
        if known is not None:
            same = known.entry == entry
            self.say(reply, 201 if same else 409, f"{name} is there")
            return
        memory = entry.get("memory", {})
        if any(memory.get(d, 0) > self.devices[d] for d in entry["devices"]):
            self.say(reply, 422, f"{name} can never fit")
            return
        self.models[name] = Model(entry, needs={d: memory.get(d, 10 * GIB) for d in entry["devices"]})
        self.opening = asyncio.create_task(self.open(name, self.models[name]))
        self.say(reply, 201, "")
        self.changed()

    def order(self, name: str, what: str, reply: Reply) -> None:
        model = self.models[name]
        awake = model.state is State.AWAKE
        if what == "ready":
            self.say(reply, 200 if awake else 503, f"it is {model.state.value}")
            return
        if what == "wake" and model.state in (State.ASLEEP, State.OFF, State.FAILED):
            self.begin(model, self.up(model, State.WAKING if model.measured else State.LOADING))
        elif what == "sleep" and awake:
            self.begin(model, self.down(model))
        elif what == "delete" and model.state is not State.STOPPING:
            self.begin(model, self.end(name, model))
        elif what not in ("wake", "sleep", "delete", "stop", "pin", "unpin") or (what == "sleep" and not awake):
            self.say(reply, 409, f"it is {model.state.value}")
            return
        self.say(reply, 202, "")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--devices", required=True)
    options = parser.parse_args()
    devices = {d.partition("=")[0]: int(d.partition("=")[2]) * GIB for d in options.devices.split(",")}
    pool = Pool(options.host, devices)
    server = HttpServer(asyncio.get_running_loop(), pool.handle, lambda status, why: why.encode(), Limits(unread_s=600))
    await server.listen(tcp.listen(options.host, options.port))
    while True:  # each watcher is told now and then that it is there
        await asyncio.sleep(0.5)
        pool.changed()


if __name__ == "__main__":
    asyncio.run(main())
