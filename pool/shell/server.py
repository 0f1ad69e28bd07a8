"""The pool's shell: its socket, the file that it keeps, and what it watches: the launcher, the ledger, GMS of each
device, each model's lock. It decides nothing; `pool/rules/machine.py` does.

models.yaml is read at the start and on SIGHUP. A file that is wrong changes nothing, and is an alarm that says what is
wrong with it; what a good one has changed is said in the log.
"""

import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from gms import observer as gms
from lockserver import observer as locks
from pool import launching, models_file
from pool.client import SOCKET
from pool.entries import FOLLOWS_NONE, DeviceShown, Entry, Flags
from pool.models_file import BadFile, ModelsFile
from pool.rules import events as e
from pool.rules import messages as m
from pool.rules import record, view
from pool.rules.machine import Machine
from pool.rules.model import runs_as
from pool.shell import reading, weights
from pool.shell.metrics import Metrics
from sidecar.kernel.durable import DirectoryLock, DurableFile
from sidecar.kernel.path_watch import make_private_directory
from sidecar.machine.context import Event
from sidecar.machine.loop import Aside
from sidecar.machine.shell import Shell
from sidecar.terminal.cannot_start import unusable
from sidecar.terminal.logs import Log
from sidecar.terminal.names import is_meant
from sidecar.wire.connections import Connections, Protocol
from sidecar.wire.observer import Whom
from sidecar.wire.sockets import ServerSocket
from sidecar.wire.upstream import Upstream
from sidecar.wire.versions import Spoken
from vram import observer as ledger

FILE, FOLLOWED, SERVER_LOCK = "pool.json", "models.json", "pool.lock"
ENDING_S = 1.0
MOST_DROP_S = 30.0
_SPOKEN = Spoken(m.OLDEST, m.PROTOCOL)
_PROTOCOL = Protocol(
    m.from_any, lambda why: m.Problem(why=why), lambda why: m.Busy(why=why), max_frame_bytes=m.MAX_FRAME_BYTES
)
FORBIDDEN = "models.yaml doesn't say `api_launch: true`, so no model is launched by command: it would run any program"


@dataclass(frozen=True)
class Options:
    run_dir: Path
    models: Path
    devices: tuple[str, ...] = ()
    """Where models run that name none; empty: on all that the ledger knows."""
    socket_mode: int = 0o600
    allow_uids: frozenset[int] = frozenset()


class Server(Shell):
    machine: Machine

    def __init__(self, options: Options, log: Log, metrics: Metrics | None = None) -> None:
        """Raises CannotStart, AlreadyLocked, BadFile."""
        super().__init__(log)
        self.options = options = replace(options, run_dir=options.run_dir.absolute())
        self.incarnation = secrets.token_hex(8)
        self.machine = Machine()
        self._metrics = metrics
        self._bad_file = ""
        self._beside = ""
        """What is wrong with models that were launched, beside those of the file."""
        self._record = record.Record()
        self._unsaved = False
        self._unwritable = ""
        self._devices: tuple[str, ...] = options.devices
        self._seen_devices: dict[str, DeviceShown] = {}
        self._observers: dict[int, bool] = {}
        """Introduced connections -> whether each is a door."""
        self._watching: set[int] = set()
        self._said: dict[int, m.Outlook] = {}
        self._answers: list[e.Answer] = []
        self._changes = 0
        self._listing = m.Listing()
        self.file, self._followed = DurableFile(options.run_dir, FILE), DurableFile(options.run_dir, FOLLOWED)
        try:
            make_private_directory(options.run_dir)
            self.server_socket = ServerSocket(options.run_dir, SOCKET)
            self._lock = DirectoryLock(options.run_dir, SERVER_LOCK).acquire(ENDING_S)
        except OSError as error:
            raise unusable(options.run_dir, error) from None
        self._spec = self._first()
        self.connections = Connections(
            self.loop, log, _PROTOCOL, options.allow_uids, heard=self._heard, closed=self._closed
        )
        self._locks: dict[str, Upstream] = {}
        self._gms: dict[str, Upstream] = {}
        self._ledger_said: ledger.Status | None = None
        self._moves = Aside(self.loop, "moves")
        self._ledger = self._upstream(ledger.whom(options.run_dir), ledger, self._on_ledger, e.LedgerSeen(None))
        self._launcher = Upstream(
            self.loop, _launcher(options.run_dir), (), heard=self._on_launcher,
            lost=lambda: self.feed(e.LauncherSeen(None)), clock=time.monotonic,
        )  # fmt: skip

    def _upstream(self, whom: Whom, words: Any, heard: Callable[[Any], None], away: Event) -> Upstream:
        return Upstream(
            self.loop, whom, (words.Watch(),), heard=heard, lost=lambda: self.feed(away), clock=time.monotonic,
            question=words.AskStatus(),
        )  # fmt: skip

    # -- start and end ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises CannotStart."""
        try:
            self._record = record.decode(self.file.read() or b"{}")
        except (OSError, ValueError) as error:
            self.log.warning("record_unreadable", why=error, put_aside_as=str(self.file.set_aside()))
        it = self._record
        self.feed(e.Began(it.learned, it.pins, it.names, it.kept_asleep, it.others))
        self.configure()
        try:
            self.connections.listen(self.server_socket.open(self.options.socket_mode))
        except OSError as error:
            raise unusable(self.options.run_dir, error) from None
        self.watch_over(self.server_socket.path, self._look_at_path)
        self.log.info("ready", socket=self.server_socket.path, pid=os.getpid(), models=len(self.machine.models))

    def heed_signals(self) -> None:
        self.loop.deliver((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), self._on_signal)

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            self.reload()
        else:
            self.loop.stopping = number.name

    def _look_at_path(self) -> None:
        if self.server_socket.replaced():
            self.loop.stopping = f"{self.options.run_dir} or its socket was replaced"

    @property
    def due_at(self) -> float:
        return min(super().due_at, *(one.deadline for one in self._upstreams))

    def mind(self, happened: bool) -> None:
        for one in self._upstreams:
            one.due(time.monotonic())
        super().mind(happened)

    @property
    def _upstreams(self) -> tuple[Upstream, ...]:
        return (self._launcher, self._ledger, *self._gms.values(), *self._locks.values())

    def close(self) -> None:
        self._save()
        self.unwatch()
        for one in self._upstreams:
            one.close()
        self.server_socket.close()
        self.connections.close()
        self._lock.close()

    # -- models.yaml -----------------------------------------------------------------------------------------------

    def _first(self) -> ModelsFile:
        """The file. Where it is wrong by now, what a pool before has followed: it changes nothing. Raises BadFile."""
        try:
            return self._read()
        except BadFile as error:
            wrong = error
        try:
            followed = msgspec.json.decode(self._followed.read() or b"", type=ModelsFile)
        except (OSError, msgspec.MsgspecError):
            raise BadFile(*(f"{self.options.models}: {sentence}" for sentence in wrong.args)) from None
        self._say_file_is_wrong(wrong)
        return followed

    def _read(self) -> ModelsFile:
        """Raises BadFile."""
        new = models_file.read(self.options.models)
        if problems := self._problems(new):
            raise BadFile(*problems)
        self._bad_file = ""
        try:
            self._followed.write(msgspec.json.encode(new))
        except OSError as error:
            self.log.warning("record_unwritable", why=error)
        return new

    def _problems(self, spec: ModelsFile, asleep: Container[str] = ()) -> list[str]:
        named = [device for device in spec.devices if device != models_file.ALL_GPUS]
        on_these = msgspec.structs.replace(spec, devices=named or list(self._devices))
        return models_file.wrong(on_these, self._totals(), asleep)

    def _say_file_is_wrong(self, error: BadFile) -> None:
        why = "; ".join(map(str, error.args))
        self._bad_file = f"{self.options.models} is wrong, and {FOLLOWS_NONE}: {why}"
        self.log.alarm("models_file_wrong", why=why, follows="nothing has changed")

    def reload(self) -> None:
        try:
            new = self._read()
        except BadFile as error:
            self._say_file_is_wrong(error)
            self.publish(None)
            return
        for line in models_file.changes(self._spec, new) or ["nothing has changed"]:
            self.log.info("reloaded", what=line)
        self._spec = new
        self.configure()

    def _totals(self) -> dict[str, int]:
        return {name: device.total for name, device in self._seen_devices.items() if device.total is not None}

    def entries(self) -> dict[str, Entry]:
        return {**self._record.launched, **self._spec.models}

    def configure(self) -> None:
        self._mind_launched()
        running = [entry for entry in self.entries().values() if entry.runs]
        rules = {entry.name: models_file.model_rules(entry, self._devices) for entry in running}
        self.feed(e.Configured(self._spec.host_rules(), rules))
        for conn, is_door in self._observers.items():
            if is_door:
                self.connections.send(conn, self._models())
        self.publish(None)

    def _mind_launched(self) -> None:
        """The file is followed, whatever was launched before: a model that it has by now is the file's."""
        launched, models = self._record.launched, self._spec.models
        if those := sorted(launched.keys() & models.keys()):
            self.log.info("reloaded", what=f"launched by command before, and now the file's: {', '.join(those)}")
            launched = {name: entry for name, entry in launched.items() if name not in models}
            self._record, self._unsaved = msgspec.structs.replace(self._record, launched=launched), True
        both = msgspec.structs.replace(self._spec, models=self.entries())
        why = "; ".join(self._problems(both, self._kept_asleep())) if launched else ""
        if why and why != self._beside:
            self.log.alarm("launched_beside_file_wrong", why=why)
        self._beside = why

    def _kept_asleep(self) -> set[str]:
        return {model.name for model in self.machine.models.values() if model.kept_asleep}

    @property
    def flags(self) -> Flags:
        return self._record.flags or self._spec.flags

    def _models(self) -> m.Models:
        spec = self._spec
        return m.Models(
            entries=list(self.entries().values()), profiles=spec.profiles, flags=self.flags, default=spec.default
        )

    # -- callers ---------------------------------------------------------------------------------------------------

    def _heard(self, conn: int, sock: socket.socket, message: Any, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, m.DoorHello | m.Observe):
            if not (agreed := _SPOKEN.agreed(message)):
                why = _SPOKEN.why_none(message)
                self.connections.send(conn, m.Incompatible(oldest=m.OLDEST, newest=m.PROTOCOL, why=why))
                self.connections.drop(conn)
                return
            self._observers[conn] = isinstance(message, m.DoorHello)
            self.connections.send(conn, m.Welcome(incarnation=self.incarnation, protocol=agreed))
            if self._observers[conn]:
                self.connections.send(conn, self._models())
                self.publish(None)
        elif conn not in self._observers:
            self.connections.complain(conn, "the first message has to be DoorHello or Observe")
        elif isinstance(message, m.Demand):
            if self._observers[conn]:
                self.feed(e.DemandSaid(conn, message.models))
            else:
                self.connections.complain(conn, "only a door has a demand")
        elif isinstance(message, m.Command):
            self._command(conn, message)
        else:
            if isinstance(message, m.Watch):
                self._watching.add(conn)
            self._look_anew()
            self.connections.send(conn, self._listing)

    def _closed(self, conn: int) -> None:
        self._observers.pop(conn, None)
        self._watching.discard(conn)
        self._said.pop(conn, None)
        self.feed(e.Closed(conn))

    def _command(self, conn: int, command: m.Command) -> None:
        if command.verb not in ("launch", "remove", "flags"):
            self.feed(e.Asked(conn, command))
            return
        status, detail = self._change(command)
        self._do_answer(
            e.Answer(conn, m.CommandDone(number=command.number, ok=status < 300, status=status, detail=detail))
        )

    def _change(self, command: m.Command) -> tuple[int, str]:
        """What this pool keeps itself. Returns a status, as HTTP has it, and a sentence."""
        launched, name = dict(self._record.launched), command.name or (command.entry.name if command.entry else "")
        if command.verb == "flags":
            if command.flags is None:
                return 400, "no flags were given"
            self._record = msgspec.structs.replace(self._record, flags=command.flags)
        elif command.verb == "remove":
            if name in self._spec.models:
                return 409, f"{name} is in models.yaml: take it out there, and have the file read again (SIGHUP)"
            if launched.pop(name, None) is None:
                return 404, f"no model is called {name}{is_meant(name, launched)}"
        else:
            status, why = self._launchable(command.entry, name)
            if why:
                return status, why
            assert command.entry is not None
            launched[name] = msgspec.structs.replace(command.entry, name=name)
        self._record = msgspec.structs.replace(self._record, launched=launched)
        self._unsaved = True
        self.configure()
        return 200, {"flags": "done", "remove": f"{name} is removed"}.get(command.verb, f"{name} is launched")

    def _launchable(self, entry: Entry | None, name: str) -> tuple[int, str]:
        if not self._spec.api_launch:
            return 403, FORBIDDEN
        if entry is None or not name:
            return 400, "an entry is needed, and a name"
        if name in self._spec.models:
            return 409, f"{name} is in models.yaml"
        named = msgspec.structs.replace(entry, name=name)
        both = msgspec.structs.replace(self._spec, models={**self.entries(), name: named})
        problems = self._problems(both, self._kept_asleep())
        return (400, "; ".join(problems)) if problems else (200, "")

    # -- what is watched -------------------------------------------------------------------------------------------

    def _on_launcher(self, message: Any) -> None:
        if not isinstance(message, launching.Children):
            return
        children = {
            name: e.Child(child.running, child.ends, child.why, child.host_bytes, child.runs_as, child.exit_code)
            for name, child in message.children.items()
        }
        running = {name for name, child in children.items() if child.running}
        for name in self._locks.keys() - running:
            self._locks.pop(name).close()
        self.feed(e.LauncherSeen(children))
        for name in running - self._locks.keys():
            run_dir = self.options.run_dir / launching.LOCKS / name
            self._locks[name] = self._upstream(
                locks.whom(run_dir), locks, partial(self._on_lock, name), e.LockSeen(name, None)
            )  # fmt: skip

    def _on_lock(self, name: str, message: Any) -> None:
        if isinstance(message, locks.Status):
            self.feed(e.LockSeen(name, reading.lock(message)))
        elif isinstance(message, locks.Step) and (answered := reading.answer(name, message)) is not None:
            self.feed(answered)

    def _on_ledger(self, status: Any) -> None:
        if not isinstance(status, ledger.Status):
            return
        self._ledger_said = status
        self._seen_devices = {
            device.device: DeviceShown(uuid=device.device, total=device.total, free=device.free, leased=device.leased)
            for device in status.devices
            if device.device in self._devices or not self._devices
        }
        if not self._devices and status.devices:
            self._devices = tuple(device.device for device in status.devices)
            self.configure()
        seen = reading.ledger(status, self.machine.models, self.machine.picture.regions, self.machine.picture.gms)
        for name in (seen.room or {}).keys() - self._gms.keys():
            whom, away = gms.whom(self.options.run_dir, name), e.WeightsSeen(name, None)
            self._gms[name] = self._upstream(whom, gms, partial(self._on_gms, name), away)
        self.feed(seen)

    def _on_gms(self, device: str, status: Any) -> None:
        if not isinstance(status, gms.Status):
            return
        known = device in self.machine.picture.gms
        self.feed(reading.weights(device, status))
        if not known and device in self.machine.picture.gms:
            self._on_ledger(self._ledger_said)

    # -- effects ---------------------------------------------------------------------------------------------------

    def _do_sleep(self, effect: e.Sleep) -> None:
        if lock := self._locks.get(effect.model):
            lock.say(locks.Sleep(drain_timeout_s=effect.drain_s, why=effect.why))

    def _do_wake(self, effect: e.Wake) -> None:
        if lock := self._locks.get(effect.model):
            lock.say(locks.Wake())

    def _do_start(self, effect: e.Start) -> None:
        rules = self.machine.models[effect.model].rules
        said = launching.Start(entry=rules.entry, devices=list(rules.devices), runs_as=runs_as(rules.entry))
        self._launcher.say(said)

    def _do_end(self, effect: e.End) -> None:
        self._launcher.say(launching.End(name=effect.model, forget=effect.model not in self.entries()))

    def _move(self, verb: str, name: str, ended: type[e.ParkEnded | e.DropEnded], most_s: float) -> None:
        self._moves.do(
            lambda: weights.move(self.options.run_dir, verb, name, most_s), lambda why: self.feed(ended(name, why))
        )

    def _do_answer(self, effect: e.Answer) -> None:
        self._answers.append(effect)
        self.publish(effect)

    def _do_save(self, effect: e.Save) -> None:
        self._unsaved = self._publish = True

    # -- what others see -------------------------------------------------------------------------------------------

    def _look_anew(self) -> m.Outlook:
        """How things stand, for doors; for people it is in `_listing` then."""
        now, it = time.monotonic(), self.machine.picture
        run_dirs = {name: str(self.options.run_dir / launching.LOCKS / name) for name in self.machine.models}
        outlook = view.outlooks(it, run_dirs, now)
        beside = self._beside and f"what was launched by command is wrong beside {self.options.models}: {self._beside}"
        self._listing = m.Listing(
            models=view.shown(it, outlook, time.time(), now),
            devices=list(self._seen_devices.values()),
            token=self._changes,
            flags=self.flags,
            swapping_share=self.machine.swapping_share(now),
            quantum_s=view.quantum(it),
            waiting_for=it.lacks,
            alarms=[*self.machine.context.alarms.values(), *filter(None, [self._bad_file, beside, self._unwritable])],
        )
        if self._metrics is not None:
            self._metrics.listing = self._listing
        return m.Outlook(models=outlook)

    def show(self) -> None:
        self._changes += 1
        outlook = self._look_anew()
        for conn, is_door in list(self._observers.items()):
            if is_door and self._said.get(conn) != outlook:
                self._said[conn] = outlook
                self.connections.send(conn, outlook)
        for conn in list(self._watching):
            self.connections.send(conn, self._listing)
        self._save()
        self._answer()

    def _answer(self) -> None:
        """What was done has been shown by now, and the next pool knows it."""
        answers, self._answers = self._answers, []
        for effect in answers:
            done = effect.message
            if done.ok and self._unwritable:
                done = msgspec.structs.replace(done, detail=f"{done.detail}, but {self._unwritable}"[:2000])
            self.connections.send(effect.conn, done)

    def _save(self) -> None:
        if not self._unsaved:
            return
        self._record = msgspec.structs.replace(self._record, **msgspec.structs.asdict(self.machine.learned()))
        why = ""
        try:
            self.file.write(record.encode(self._record))
        except OSError as error:
            why = f"the next pool won't know what was changed: {FILE} can't be written: {error.strerror}"
        self._unsaved = bool(why)
        if why != self._unwritable:
            self._unwritable, self._publish = why, True
            if why:
                self.log.warning("record_unwritable", why=why)
            else:
                self.log.info("record_written")

    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        e.Sleep: _do_sleep,
        e.Wake: _do_wake,
        e.Start: _do_start,
        e.End: _do_end,
        e.Park: lambda server, effect: server._move("park", effect.weights, e.ParkEnded, effect.most_s),
        e.Drop: lambda server, effect: server._move("drop", effect.weights, e.DropEnded, MOST_DROP_S),
        e.Answer: _do_answer,
        e.Save: _do_save,
        e.Note: Shell.note,
        e.Publish: Shell.publish,
    }


def _launcher(run_dir: Path) -> Whom:
    return Whom(
        name="launcher",
        at=str(run_dir),
        run_dir=run_dir,
        socket=run_dir / launching.SOCKET,
        start="failover models up models.yaml",
        decoder=launching.from_launcher,
        hello=launching.Hello(protocol=launching.OLDEST, newest=launching.PROTOCOL),
        last_words={},
        max_frame_bytes=launching.MAX_FRAME_BYTES,
    )
