"""The shim: a small process above an engine. It decides nothing; `lifecycle.py` does.

This file has the engine's processes, the socket where they register, the probes' port, the signals, and the threads
that watch the lock's public state, ask the other engines' shims, and see what appears in /dev/shm. Everything else runs
in one loop, which nothing that the engine does can hold up: it never waits for the engine, and reads what the engine
says when it comes.

What this file may not do: load anything heavy (no torch, no numpy), or start a process that isn't the engine's.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from engine_shim import membership
from engine_shim.rules import events as e
from engine_shim.rules import messages as m
from engine_shim.rules import probes
from engine_shim.rules.lifecycle import Lifecycle
from engine_shim.shell import known_engines, life_locks, paths, probe_pages, scratch, shim_status
from engine_shim.shell.metrics import prepare as prepare_metrics
from engine_shim.shell.own_files import OwnFiles
from engine_shim.shell.shm_cleanup import ShmCleanup
from lockserver.observer import Status, watch_for_good
from sidecar.http.http_port import CannotListen, HttpPort
from sidecar.kernel import peers, process_setup, process_tree
from sidecar.kernel.durable import AlreadyLocked
from sidecar.kernel.port_owner import way_out
from sidecar.kernel.processes import Processes
from sidecar.machine.loop import Inbox
from sidecar.machine.shell import Shell
from sidecar.terminal.cannot_start import CannotStart, unusable
from sidecar.terminal.logs import Log
from sidecar.terminal.names import incarnation_name
from sidecar.wire.connections import Connections, Protocol
from sidecar.wire.frames import close_all
from sidecar.wire.tcp import named

_SPOKEN = Protocol(m.to_shim, lambda why: m.Problem(why=why))
_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
LOOK_S = 1.0
"""How often the shim looks whether its own files are still there."""
ASK_EVERY_LOOKS = 10
"""How often it asks its counterparts what they take, unless they are others by now."""


@dataclass(frozen=True)
class Options:
    config: e.Config
    run_dir: Path
    probe: tuple[str, int]
    command: tuple[str, ...]
    """Starts the engine's main process."""


class _Member(NamedTuple):
    """A process that has registered, on one connection."""

    process: int
    main: bool
    sock: socket.socket


class Shim(Shell):
    machine: Lifecycle

    def __init__(self, options: Options, log: Log) -> None:
        super().__init__(log)
        self.options = options
        self.code = 1
        engine_id = options.config.engine_id
        self.machine = Lifecycle(options.config)
        try:
            self.port = HttpPort(options.probe, self.loop, probe_pages.pages(self.machine, time.monotonic))
        except CannotListen as error:
            where, why = named(*options.probe), way_out(error, "--probe")
            raise CannotStart(f"the probes can't listen on {where}: {why}") from None
        self.processes = Processes(self.loop)
        self.connections = Connections(
            self.loop, log, _SPOKEN, frozenset(), heard=self._on_message, closed=self._on_closed
        )
        directory = options.run_dir / paths.ENGINES
        try:
            self._files = OwnFiles(options.run_dir, engine_id, self.connections.listen)
        except OSError as error:
            raise unusable(directory, error) from None
        self._members: dict[int, _Member] = {}
        """By connection."""
        self._main = 0
        """Pid of the main process; 0 when there is none."""
        self._group = 0
        self._scratch = scratch.directory(options.run_dir, engine_id)
        self._cannot_make = ""
        self._counterparts: tuple[str, ...] = ()
        """As last seen at the lock; another thread asks their shims."""
        self._seen: Inbox[e.LockSeen | e.LockAway | e.OthersTake | None] = Inbox(self.loop, self._on_seen)
        """None: it is time to look at our own files."""
        self._shm = ShmCleanup(lambda: process_tree.descendants(os.getpid()), directory / paths.shm_files(engine_id))
        if not self._shm.watch():
            log.warning("no_inotify", why="files that a killed engine leaves in /dev/shm won't be removed")

    def serve(self) -> int:
        """Runs until it is told to end, or must. Returns the exit code."""
        process_setup.adopt_orphans()
        ends = set(_END) - ({signal.SIGHUP} if process_setup.outlives_its_terminal() else set())
        self.loop.deliver((*ends, *_PASSED_ON, signal.SIGCHLD), self._on_signal)
        threading.Thread(target=self._watch_lock, name="lock-watch", daemon=True).start()
        threading.Thread(target=self._look_around, name="look-around", daemon=True).start()
        threading.Thread(target=prepare_metrics, name="metrics", daemon=True).start()
        host, port = self.port.address
        self.log.info("probes", engine=self.options.config.engine_id, host=host, port=port)
        self.feed(e.Started())
        why = self.run()
        self.log.info("stopped", engine=self.options.config.engine_id, why=why)
        return self.code

    def close(self) -> None:
        self.port.close()
        self.connections.close()
        self._files.close()

    # -- signals and children --------------------------------------------------------------------------------------

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            self._collect()
        elif number in _PASSED_ON:
            self._tell_main(number)
        else:
            self.feed(e.Terminate(number.name))

    def _tell_main(self, number: int) -> None:
        if self._main:  # it isn't collected yet, so the pid is its own
            os.kill(self._main, number)

    def _collect(self) -> bool:
        """Collects the dead. True while children are left."""
        ended, left = process_tree.collect()
        if self._main in ended:
            code, self._main = ended[self._main], 0
            self._hear_out()
            self.feed(e.Ended(code))
        return left

    def _hear_out(self) -> None:
        """What the engine's processes said before one of them ended is heard before that end. A busy machine may show
        both to this loop at once, and in any order.
        """
        for member in list(self._members.values()):
            hear = self.loop.handlers.get(member.sock.fileno())
            if hear is not None:
                hear(select.EPOLLIN)

    # -- effects ---------------------------------------------------------------------------------------------------

    def _start(self, effect: e.Start) -> None:
        options = self.options
        environment = {
            **os.environ,
            "ENGINE_ID": options.config.engine_id,
            "ENGINE_ROLE": options.config.role,
            **membership.environment(self._files.socket_path, effect.number, os.getpid()),
            scratch.VARIABLE: str(self._scratch),
        }
        self._make_files_again()
        if not self._files.socket_is_there:
            self.answer(e.NotStarted(f"no process of an engine could register: {self._cannot_make}"))
            return
        try:
            scratch.make(self._scratch)
            self._main = self._group = process_tree.start(options.command, environment)
        except OSError as error:
            what = error.filename or options.command[0]
            self.answer(e.NotStarted(f"the engine can't be started: {what}: {error.strerror}"))

    def _kill_tree(self, effect: e.KillTree) -> None:
        for known in self.machine.processes:
            self.processes.kill(known)
        process_tree.kill((), self._group if self._main or self.machine.processes else 0)
        if self._collect():
            process_tree.kill(process_tree.descendants(os.getpid()), 0)

    def _look(self, effect: e.Look) -> None:
        left = int(self._collect())
        known = self.processes.pidfds(list(self.machine.processes))
        left = max(left, sum(not peers.is_dead(fd) for fd in known))
        options = self.options
        found = life_locks.look(options.run_dir, options.config.engine_id) if not left else life_locks.Found(False)
        if found.why and not found.held:
            alarm = self.machine.number > 0
            self.note(e.Note("nobody_left", {"engine": options.config.engine_id, "why": found.why}, alarm))
        self.answer(e.Looked(left, found.held, found.why))

    def _clean_up(self, effect: e.CleanUp) -> None:
        self._group = 0
        paths.remove_endpoints(self.options.run_dir, self.options.config.engine_id)
        scratch.remove(self._scratch)
        removed = self._shm.remove()
        if removed:
            self.note(e.Note("cleaned_up", {"engine": self.options.config.engine_id, "files": ",".join(removed)}))

    def _admit(self, effect: e.Admit) -> None:
        self.connections.send(effect.conn, m.Welcome(beat_s=self.options.config.beat_s))

    def _turn_away(self, effect: e.TurnAway) -> None:
        self._members.pop(effect.conn, None)
        self.connections.complain(effect.conn, effect.why)

    def _forget(self, effect: e.Forget) -> None:
        for known in effect.processes:
            self.processes.forget(known)
        for conn in [conn for conn, member in self._members.items() if member.process in effect.processes]:
            del self._members[conn]
            self.connections.drop(conn)

    def _exit(self, effect: e.Exit) -> None:
        self.code = effect.code
        self.loop.stopping = effect.why

    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        e.Start: _start,
        e.KillTree: _kill_tree,
        e.Look: _look,
        e.CleanUp: _clean_up,
        e.Forward: lambda shim, effect: shim._tell_main(signal.SIGTERM),
        e.Admit: _admit,
        e.TurnAway: _turn_away,
        e.Forget: _forget,
        e.Exit: _exit,
        e.Note: Shell.note,
    }

    # -- what the engine's processes say ---------------------------------------------------------------------------

    def _on_message(self, conn: int, sock: socket.socket, message: m.ToShim, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, m.Hello):
            self._on_hello(conn, sock, message, descriptors)
            return
        close_all(descriptors)
        member = self._members.get(conn)
        if isinstance(message, m.AskState):
            self.connections.send(conn, m.StateIs(state=probes.state(self.machine, time.monotonic())))
        elif member is not None and (member.main or isinstance(message, m.Adopted | m.Failing)):
            self.feed(self._event(message))
        else:
            self.connections.complain(conn, f"only the main process of an engine may say {type(message).__name__}")

    def _event(self, message: m.Named | m.Step | m.Beat | m.Takes | m.Phase | m.Adopted | m.Failing) -> e.Event:
        if isinstance(message, m.Step):
            return e.Reported(e.State(message.to.capitalize()), message.token, message.url)
        if not isinstance(message, m.Beat):
            return message
        used_s = None
        if self.machine.makes_no_step(message.queued, message.steps):
            used_s = process_tree.used_s(process_tree.descendants(os.getpid()))
        return e.Beat(message.well, message.why, message.queued, message.steps, message.unreachable, used_s)

    def _on_hello(self, conn: int, sock: socket.socket, hello: m.Hello, descriptors: tuple[int, ...]) -> None:
        if hello.protocol != m.PROTOCOL or conn in self._members:
            close_all(descriptors)
            self.connections.complain(conn, f"one Hello, of protocol {m.PROTOCOL}, is expected here")
            return
        named = self.identify_caller(conn, sock, descriptors, hello.pid)
        if named is None:
            return
        if named.process is None:
            self.connections.complain(
                conn, "this kernel has no pidfds, without which the end of a process can't be seen (Linux >= 5.3)"
            )
            return
        number = named.process
        self._members[conn] = _Member(number, hello.main, sock)
        self.processes.on_death(number, lambda: self._on_death(number))
        self.feed(e.Registered(conn, number, hello.start, hello.main))

    def _on_death(self, number: int) -> None:
        self._hear_out()
        self._collect()  # the main process's exit code, which says more
        self.feed(e.Died(number))

    def _on_closed(self, conn: int) -> None:
        """The end of a connection says nothing: only a pidfd tells of the end of a process."""
        self._members.pop(conn, None)

    # -- the lock's public state -----------------------------------------------------------------------------------

    def _watch_lock(self) -> None:
        watch_for_good(self.options.run_dir, self._on_lock, lambda why: self.log.alarm("lock_unseen", why=why))

    def _on_lock(self, status: Status | None) -> None:
        """In the thread that watches the lock."""
        if status is None:
            self._seen.give(e.LockAway())
            return
        holder = status.holder
        ready = [waiter.engine_id for waiter in status.waiters if waiter.ready]
        self._counterparts = self._counterparts_of(holder.engine_id if holder is not None else "", ready)
        self._seen.give(
            e.LockSeen(
                incarnation_name(holder.engine_id, holder.incarnation) if holder is not None else "",
                status.state == "FENCING",
                holder is not None and bool(holder.endpoint),
                status.state == "HELD" and bool(ready),
                self._counterparts,
            )
        )

    def _counterparts_of(self, holder: str, ready: list[str]) -> tuple[str, ...]:
        ours = self.options.config.engine_id
        found = ready if holder == ours else [holder] if holder else []
        return tuple(engine_id for engine_id in found if engine_id != ours)

    def _look_around(self) -> None:
        """In a thread of its own: a server that is asked may be slow, or stopped."""
        asked: tuple[str, ...] = ()
        looks = 0
        while True:
            others = self._counterparts
            if others != asked or looks >= ASK_EVERY_LOOKS:
                takes: dict[str, dict[str, str]] = {}
                for engine_id in others:
                    with contextlib.suppress(shim_status.ObserverError):
                        takes[engine_id] = shim_status.ask(self.options.run_dir, engine_id).get("takes", {})
                self._seen.give(e.OthersTake(takes))
                asked, looks = (others, 0) if all(map(takes.get, others)) else (asked, looks)
            self._seen.give(None)
            time.sleep(LOOK_S)
            looks += 1

    def _on_seen(self, seen: e.LockSeen | e.LockAway | e.OthersTake | None) -> None:
        if seen is None:
            self._make_files_again()
        else:
            self.feed(seen)

    # -- its own files ---------------------------------------------------------------------------------------------

    def _make_files_again(self) -> None:
        """A file that was removed is made again, and the log says so. What can't be made is said once."""
        try:
            made = self._files.make_again()
            self._shm.keep_list()
        except (OSError, AlreadyLocked) as error:
            if str(error) != self._cannot_make:
                self.log.alarm("files_missing", directory=self._files.directory, why=error)
            self._cannot_make = str(error)
            return
        self._cannot_make = ""
        if made:
            self.log.alarm("made_again", files=",".join(made), why="they were removed")


def command(options: Any) -> tuple[str, ...]:
    """The command line of the main process, from the shim's own settings."""
    words = [sys.executable, "-m", "engine_shim.shell.main_process", "--engine", options.engine]
    words += ["--engine-id", options.engine_id, "--role", options.role]
    words += ["--run-dir", str(options.run_dir), "--drain-s", f"{options.drain_s:g}"]
    words += ["--room-timeout-s", f"{options.room_timeout_s:g}"]
    if options.kv:
        words += ["--kv", options.kv, "--kv-parked", str(options.kv_parked)]
    if options.host_dir is not None:
        words += ["--host-dir", str(options.host_dir)]
    if options.weights:
        words += ["--weights", options.weights]
    if options.snapshot is not None:
        words += ["--snapshot", str(options.snapshot)]
    if options.engine == known_engines.COMMAND:
        words += ["--health", options.health]
        words += ["--needs", ",".join(f"{device}={bytes}" for device, bytes in options.needs.items())]
    if options.listen is not None:
        words += ["--listen", options.listen.text]
    return (*words, "--", *options.arguments)
