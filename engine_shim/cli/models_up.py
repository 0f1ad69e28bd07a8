"""`failover models up`: all programs of a host with many models (`models_parts.py`) as one process tree, with one
Ctrl-C (`tree.py`); and the launcher, which starts and ends models' engines as the pool says, over `launcher.sock`.

    before the lock, the ledger, GMS, the pool and the door have been well together
                                  everything ends with the exit code of the one that can't be started
    lock                          everything ends
    ledger, gms, pool, door       tried again, after longer and longer pauses, with an alarm; what is awake serves on
    a model's engine              the pool is told why, and tries again when the model is wanted

One thread does all of this. What it may not do: decide which model runs.
"""

import contextlib
import os
import shutil
import signal
import time
from dataclasses import dataclass
from typing import Any

from engine_shim.cli import part_environment
from engine_shim.cli.models_parts import BASE, Options, children, engines
from engine_shim.cli.pair_look import UpFacts
from engine_shim.cli.pair_parts import gms_listens, welcome
from engine_shim.cli.tree import Tree, TreeLock, event_in, why_in
from engine_shim.rules.hopeless_parts import DOOR, POOL, HopelessParts
from engine_shim.shell import cleanup
from pool import launching
from sidecar.kernel import process_tree
from sidecar.kernel.path_watch import make_private_directory
from sidecar.machine.supervisor import NEVER, Child
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.logs import Log
from sidecar.wire.connections import Connections, Protocol
from sidecar.wire.sockets import ServerSocket
from sidecar.wire.tcp import taken
from sidecar.wire.versions import Spoken

POLL_S = 0.02
MEASURE_S = 5.0
"""How often it looks how much of the host's memory each model has."""
MOST_PRINTED = 400
_SPOKEN = Spoken(launching.OLDEST, launching.PROTOCOL)
_PROTOCOL = Protocol(launching.from_pool, lambda why: launching.Problem(why=why), None, launching.MAX_FRAME_BYTES)


@dataclass
class Launched:
    """A model whose processes run, or are to end."""

    runs_as: str
    shims: list[Child]
    ending: bool = False
    forget: bool = False
    again: launching.Start | None = None
    """It is to be started once it has ended."""
    host_bytes: int = 0
    printed: str = ""
    """By one of its engines, or what it started: the newest line that isn't its shim's."""
    why: str = ""
    """One of its engines has ended by itself."""


@dataclass
class Ended:
    ends: int = 0
    why: str = ""
    runs_as: str = ""
    exit_code: int = 0


class ModelsUp(Tree):
    def __init__(self, options: Options) -> None:
        """Raises CannotStart."""
        self.options = options
        self._tree_lock = TreeLock(options.run_dir)
        super().__init__(children(options), BASE, least_width=max([8, *map(len, options.spec.models)]))
        for child in self.above:
            child.start_at = NEVER
        self._hopeless = HopelessParts(())
        self._worked = False
        """All parts have been there together, since this process began."""
        self._models: dict[str, Launched] = {}
        self._ended: dict[str, Ended] = {}
        self._said = launching.Children()
        self._pools: set[int] = set()
        self._measure_at = 0.0
        try:
            make_private_directory(options.run_dir_of(".").parent)
            self._socket = ServerSocket(options.run_dir, launching.SOCKET)
            listener = self._socket.open()
        except OSError as error:
            raise CannotStart(f"{options.run_dir} can't be used: {error.strerror}; give another --run-dir") from None
        self._connections = Connections(
            self.supervisor.loop, Log("launcher"), _PROTOCOL, frozenset(), heard=self._heard, closed=self._pools.discard
        )
        self._connections.listen(listener)

    def run(self) -> int:
        options = self.options
        self.listen_to_signals()
        self.say("up", f"run directory {options.run_dir}; Ctrl-C ends everything")
        self.say("up", f"kill -HUP {os.getpid()} has {options.models} read again")
        for line in part_environment.unused(options.environment):
            self.say("up", line)
        self._write_facts()
        self.until(self._base_ready, poll_s=POLL_S)
        for child in self.above:
            child.start_at = 0.0
        self.until(self._door_ready, poll_s=POLL_S)
        if not self.ending:
            self._worked = True
            self._write_facts()
            for line in welcome(options.address, next(iter(options.spec.models), "")):
                self.say("up", line)
        self.until(lambda: False)
        return self.end()

    def _write_facts(self) -> None:
        options, starting = self.options, not self._worked
        UpFacts(options.address, options.devices, starting, models=True, ending=self.ending).write(options.run_dir)

    def _base_ready(self) -> bool:
        run_dir = self.options.run_dir
        return gms_listens(run_dir, self.options.devices) and (run_dir / "vram" / "vram.sock").exists()

    def _door_ready(self) -> bool:
        """It listens: nothing else can have its port."""
        door = next(child for child in self.supervisor.children if child.name == DOOR)
        return bool(door.pid) and bool(taken(*self.options.listen)) and bool(self._pools)

    # -- what the pool says ----------------------------------------------------------------------------------------

    def _heard(self, conn: int, sock: Any, message: Any, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, launching.Hello):
            if not _SPOKEN.agreed(message):
                self._connections.complain(conn, _SPOKEN.why_none(message))
                return
            self._pools.add(conn)
            self._connections.send(conn, self._said)
        elif conn not in self._pools:
            self._connections.complain(conn, "the first message has to be Hello")
        elif isinstance(message, launching.Start):
            self._start(message)
        else:
            self._end_model(message)
        self._tell()

    def _start(self, message: launching.Start) -> None:
        name = message.entry.name
        model = self._models.get(name)
        if model is not None and model.ending:
            model.again = message
            return
        if model is None and not self.ending:
            options, place = self.options, self.options.run_dir_of(name)
            try:
                make_private_directory(place)
            except OSError as error:
                self._note_end(name, message.runs_as, f"its directory {place} can't be used: {error.strerror}")
                return
            model = Launched(message.runs_as, engines(options, message.entry, message.devices))
            self._models[name] = model
            self.supervisor.children += model.shims
            for shim in model.shims:
                self.supervisor.again(shim, 0.0)

    def _end_model(self, message: launching.End) -> None:
        model = self._models.get(message.name)
        if model is None:
            if message.forget:
                self._forget(message.name)
            return
        model.ending, model.again = True, None
        model.forget = model.forget or message.forget
        for shim in model.shims:
            shim.wanted = False
            shim.start_at = NEVER
        self.supervisor.tell(model.shims, signal.SIGTERM)

    def mind(self) -> None:
        now = time.monotonic()
        if now >= self._connections.deadline:
            self._connections.do_due(now)
        self._mind_the_hopeless()
        for name, model in list(self._models.items()):
            if not any(shim.pid or shim.start_at < NEVER for shim in model.shims):
                self._take_out_ended(name, model)
        if now >= self._measure_at:
            self._measure_at = now + MEASURE_S
            for model in self._models.values():
                model.host_bytes = sum(process_tree.memory_bytes(shim.pid) for shim in model.shims if shim.pid)
        if said := self._tree_lock.keep():
            self.say("up", said)
        if self._socket.replaced():
            self._listen_again()
        if self.ending:
            self._write_facts()
        self._tell()

    def _relay(self, name: str, line: str) -> None:
        super()._relay(name, line)
        for model in self._models.values():
            if not any(shim.name == name for shim in model.shims):
                continue
            event = event_in(line, "shim")
            if event == "tree_ends":
                printed = f"; the last that it printed: {model.printed[:MOST_PRINTED]}" if model.printed else ""
                model.why, model.printed = why_in(line)[:MOST_PRINTED] + printed, ""
            elif not event and not line.startswith("engine: "):  # its shim, and its main process, say why themselves
                model.printed = line

    def _listen_again(self) -> None:
        """The socket was removed, or the directory: no pool that comes anew could say what is to run."""
        options = self.options
        with contextlib.suppress(OSError):  # it is tried again
            make_private_directory(options.run_dir_of(".").parent)
            new = ServerSocket(options.run_dir, launching.SOCKET)
            try:
                self._connections.listen(new.open())
            except OSError:
                new.close()
                return
            self._socket.close()
            self._socket = new
            self._write_facts()
            self.say("up", f"{new.path} was removed: made again")

    def _take_out_ended(self, name: str, model: Launched) -> None:
        del self._models[name]
        hopeless = next((shim for shim in model.shims if shim.hopeless), None)
        if model.ending or hopeless is None:
            self._note_end(name, model.runs_as, "")
        else:
            self._note_end(name, model.runs_as, self.why(hopeless), hopeless.code or 0)
        for shim in model.shims:
            self.supervisor.children.remove(shim)
        if model.again is not None:
            self._start(model.again)
        elif model.forget:
            self._forget(name)

    def _note_end(self, name: str, runs_as: str, why: str, exit_code: int = 0) -> None:
        """`why`: it couldn't be started."""
        last = self._ended.get(name, Ended())
        self._ended[name] = Ended(last.ends + 1, why, runs_as, exit_code)

    def _forget(self, name: str) -> None:
        """Its directory goes in one step: a lock server that saw half of it gone served the other half anew."""
        self._ended.pop(name, None)
        place, gone = self.options.run_dir_of(name), self.options.run_dir / f".{name}.gone"
        shutil.rmtree(gone, ignore_errors=True)  # of a launcher that was killed here
        with contextlib.suppress(OSError):
            place.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _tell(self) -> None:
        """Every pool, if something has changed."""
        found = {
            name: launching.ChildState(ends=one.ends, why=one.why[:2000], runs_as=one.runs_as, exit_code=one.exit_code)
            for name, one in self._ended.items()
        }
        for name, model in self._models.items():
            ends = self._ended[name].ends if name in self._ended else 0
            found[name] = launching.ChildState(
                running=True, ends=ends, why=model.why, host_bytes=model.host_bytes, runs_as=model.runs_as
            )
        said = launching.Children(children=found)
        if said != self._said:
            self._said = said
            for conn in list(self._pools):
                self._connections.send(conn, said)

    def _mind_the_hopeless(self) -> None:
        engines_ = {shim.name for model in self._models.values() for shim in model.shims}
        for child in self.supervisor.children:
            if not child.hopeless or child.name in engines_:
                continue
            self.judge(child, self._hopeless, served=self._worked)
            if self.because is not None:
                return

    def signalled(self, number: signal.Signals) -> bool:
        if number == signal.SIGHUP:
            self.supervisor.tell([one for one in self.supervisor.children if one.name == POOL], signal.SIGHUP)
        return number in (signal.SIGHUP, signal.SIGUSR1)

    def cleaned(self) -> list[str]:
        options = self.options
        self._connections.close()
        self._socket.close()
        stays = cleanup.remove(options.run_dir, options.devices)
        UpFacts.remove(options.run_dir)
        self._tree_lock.close()
        return stays
