"""The shell of a server that binds trees: callers, life files and pidfds. It decides nothing.

What every server has (the loop, pidfds, the socket under its name) is in `sidecar/machine/shell.py`. A server derives
from `EvidenceShell`, and its machine has a `Reception`. What an effect's question brings back is answered before
anything else is looked at; what comes later is fed.
"""

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from evidence.rules import events as e
from evidence.rules import messages as m
from evidence.rules.admission import Reception
from evidence.shell import lifefiles
from evidence.shell.memory import Reader
from sidecar.kernel import peers, process_state
from sidecar.kernel.lifelock import LifeProbe, NoLifeFile
from sidecar.kernel.path_watch import make_private_directory
from sidecar.kernel.processes import Processes, Unidentified, Whereabouts
from sidecar.machine import context
from sidecar.machine.loop import Aside
from sidecar.machine.shell import Shell
from sidecar.machine.turns import Machine
from sidecar.terminal.logs import Log
from sidecar.terminal.names import incarnation_name
from sidecar.wire import connections
from sidecar.wire.frames import close_all

_WITH_PIDFDS = (m.Vouch, m.HandBack)
_MOST_OLD_LIVES = 400
"""How many of one incarnation: each time that its life file lost its name there is one more. Beyond that its end can't
be proven any more."""
_NOT_SEEN = (
    "a process that may have a life file which the server doesn't look at (there were too many of them, or it couldn't "
    "be opened); once you know that no process of the incarnation lives, restart this server"
)
_MOST_STRANGERS = 1000
"""The machine is told of no more at a time; the next ones follow once these are gone."""


class Receiving(Machine, Protocol):
    reception: Reception


class EvidenceShell(Shell):
    machine: Receiving

    def __init__(
        self,
        log: Log,
        run_dir: Path,
        pidfds: str,
        spoken: connections.Protocol,
        allow_uids: frozenset[int],
        reader: Reader | None,
    ) -> None:
        super().__init__(log)
        self._reader = reader
        self.directory = run_dir / lifefiles.LIFE
        self.processes = Processes(self.loop, pidfds)
        self.connections = connections.Connections(
            self.loop, log, spoken, allow_uids, heard=self._on_message, closed=self._on_closed
        )
        self._looks, self._readings = Aside(self.loop, "look-at-processes"), Aside(self.loop, "memory-reader")
        self._probes: dict[str, LifeProbe] = {}
        self._old_lives: dict[str, list[LifeProbe]] = {}
        """Life files that have lost their names."""
        self._unseen_lives: set[str] = set()
        """Incarnations of which there is a life file that this server doesn't look at: nothing proves their end."""
        self._said: set[tuple[str, ...]] = set()
        """What can't be looked at, and why, as the log has it: a look comes every tenth of a second, and each life file
        that a process shows is one.
        """

    def close(self) -> None:
        self.unwatch()
        self.server_socket.close()
        self.connections.close()
        self._looks.end()
        self._readings.end()
        self.processes.close()
        for probe in [*self._probes.values(), *(old for olds in self._old_lives.values() for old in olds)]:
            probe.close()

    # -- what callers say ------------------------------------------------------------------------------------------

    def _on_closed(self, conn: int) -> None:
        self.feed(context.Closed(conn))

    def _on_message(self, conn: int, sock: socket.socket, message: Any, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, m.Introduction):
            self._on_introduction(conn, sock, message, descriptors)
        elif isinstance(message, _WITH_PIDFDS):
            try:
                named = self.processes.keep_all(descriptors)
            except Unidentified as error:
                self.connections.complain(conn, str(error))
                return
            dead = [one.process is not None and self.processes.is_dead(one.process) for one in named]
            processes = tuple(e.Peer(*one, dead=gone) for one, gone in zip(named, dead, strict=True))
            self.feed(e.Received(conn, message, processes))
        elif isinstance(message, m.OldLives):
            why = self.machine.reception.why_not_show_lives(conn, message.incarnation)
            if why:
                close_all(descriptors)
                self.connections.complain(conn, why)
            else:
                self.keep_old_lives(message, descriptors)
        elif descriptors:
            close_all(descriptors)
            self.connections.complain(conn, f"{type(message).__name__} takes no descriptors")
        else:
            self.feed(e.Received(conn, message))

    def _on_introduction(
        self, conn: int, sock: socket.socket, message: m.Introduction, descriptors: tuple[int, ...]
    ) -> None:
        named = self.identify_caller(conn, sock, descriptors, message.pid)
        if named is None:
            return
        name = incarnation_name(message.engine_id, message.incarnation)
        try:
            held = self.look_at_life(name, message.life)
        except OSError as error:
            self.processes.forget_all([named])
            self.connections.complain(conn, f"your life file can't be looked at: {error.strerror}")
            return
        self.feed(e.Received(conn, message, (e.Peer(*named),), held, secrets.token_hex(16)))
        if not self.machine.reception.knows(name):
            self.stop_looking_at(name)

    # -- processes -------------------------------------------------------------------------------------------------

    def kill(self, effect: e.Kill) -> None:
        result = self.processes.kill(effect.process)
        if result in (peers.KillResult.OUT_OF_REACH, peers.KillResult.REFUSED):
            self.answer(e.OutOfReach(effect.process, result.value))

    def look_up(self, effect: e.LookUp) -> None:
        gone: list[int] = []
        alive: list[tuple[int, e.Peer]] = []
        for number, local_pid, identity in effect.members:
            found = self.processes.look_up(local_pid, identity)
            if found is Whereabouts.GONE:
                gone.append(number)
            elif not isinstance(found, Whereabouts):
                dead = found.process is not None and self.processes.is_dead(found.process)  # and not waited for yet
                alive.append((number, e.Peer(*found, dead=dead)))
        self.answer(e.LookedUp(effect.incarnation, tuple(gone), tuple(alive)))

    def look_at(self, effect: e.LookAt) -> None:
        known = [(process, self.processes.pid(process)) for process in effect.processes]
        probes = [*self._old_lives.get(effect.incarnation, ()), *filter(None, [self._probes.get(effect.incarnation)])]
        unseen = effect.incarnation in self._unseen_lives
        inodes = [probe.inode for probe in probes] if effect.life and not unseen else []

        def look() -> e.LookedAt:
            locking = sorted({pid for inode in inodes for pid in lifefiles.locked_by(inode)})
            return e.LookedAt(
                effect.incarnation,
                tuple((process, process_state.state_of(pid)) for process, pid in known),
                (_NOT_SEEN,) if unseen else tuple(process_state.named(pid) for pid in locking),
            )

        self._looks.do(look, self.feed)

    @property
    def kind_of_evidence(self) -> str:
        return {
            peers.Evidence.PEER: "peer pidfd",
            peers.Evidence.SENT: "sent pidfd",
            peers.Evidence.NONE: "end-of-file only",
        }[self.processes.evidence]

    def read_memory(self, effect: e.ReadMemory) -> None:
        """A driver may hang; what a late reading is worth the rules say (`evidence/rules/free_memory.py`)."""
        reader = self._reader
        if reader is not None:
            self._readings.do(lambda: _read(reader), self.feed)

    def send(self, effect: e.Send) -> None:
        descriptors = self.processes.pidfds(effect.processes) if effect.processes else []
        self.connections.send(effect.conn, effect.message, descriptors)

    # -- life files ------------------------------------------------------------------------------------------------

    def probe_life(self, effect: e.ProbeLife) -> None:
        try:
            probe = self._probe(effect.incarnation)
            held = None if probe is None else probe.locked()
            if any(old.locked() for old in self._old_lives.get(effect.incarnation, ())):
                held = True
            if effect.incarnation in self._unseen_lives:
                held = True  # as far as is known
        except OSError as error:
            self._say_once(self.log.warning, "life_file_unreadable", error, name=effect.incarnation)
            held = True  # nothing is proven; it is asked again
        self.answer(e.LifeProbed(effect.incarnation, held))

    def probe_strangers(self, effect: e.ProbeStrangers) -> None:
        held: list[str] = []
        free: list[str] = []
        names, unreadable = self._list_or_make()
        known = set(effect.known)
        if not unreadable:
            there = known.union(names)
            self._said = {said for said in self._said if said[0] in there}
        for name in names:
            if name in known:
                continue
            try:
                probe = LifeProbe.open(self.directory, name)
                if probe is not None:
                    with probe:
                        (held if probe.locked() else free).append(name)
            except OSError as error:
                self._say_once(self.log.warning, "life_file_unreadable", error, name=name)
                held.append(name)  # nothing is proven
        self.answer(e.StrangersProbed(tuple(held[:_MOST_STRANGERS]), tuple(free[:_MOST_STRANGERS]), unreadable))

    def unlink(self, effect: e.Unlink) -> None:
        self.stop_looking_at(effect.incarnation)
        for each in self._old_lives.pop(effect.incarnation, ()):
            each.close()
        self._unseen_lives.discard(effect.incarnation)
        self._said = {said for said in self._said if said[0] != effect.incarnation}
        try:
            (self.directory / effect.incarnation).unlink(missing_ok=True)
        except OSError as error:
            self.log.warning("life_file_stays", name=effect.incarnation, why=error)

    def _list_or_make(self) -> tuple[list[str], str]:
        """Their names, or why they can't be read."""
        try:
            return lifefiles.names(self.directory), ""
        except FileNotFoundError:
            return [], self._make_life_directory()
        except OSError as error:
            return [], self._say_unreadable(error)

    def _make_life_directory(self) -> str:
        """Anew, where it was removed: engines that start need it. Returns why it can't be made."""
        directory = self.directory
        try:
            make_private_directory(directory)
        except OSError as error:
            return self._say_unreadable(error)
        self.log.alarm("made_anew", directory=directory, why="it was removed")
        return ""

    def _say_unreadable(self, error: OSError) -> str:
        self._say_once(self.log.alarm, "life_files_unreadable", error, directory=self.directory)
        return error.strerror or str(error)

    def _say_once(self, say: Callable[..., None], event: str, why: object, **what: object) -> None:
        said = (*map(str, what.values()), str(why))
        if said not in self._said:
            self._said.add(said)
            say(event, **what, why=why)

    def keep_old_lives(self, message: m.OldLives, descriptors: tuple[int, ...]) -> None:
        """Opened anew: with the descriptors themselves this server would hold the locks on them. Each process shows
        those that it has had, so what another one has shown stays. One that can't be opened costs the others nothing.
        """
        name = message.incarnation
        if message.left_out:
            self._give_up_looking(name, f"{message.left_out} of its life files were not shown")
        for fd in descriptors:
            try:
                self._look_at_old_life(name, LifeProbe.again(fd))
            except (NoLifeFile, BlockingIOError) as error:  # it has the kernel's lease (F_SETLEASE), which none takes
                self._say_once(self.log.alarm, "life_file_unreadable", error, name=name)
            except OSError as error:
                self._give_up_looking(name, error)
        close_all(descriptors)

    def _look_at_old_life(self, name: str, old: LifeProbe) -> None:
        """From now on, if a process has a lock on it. Raises OSError."""
        known = {each.inode: each for each in self._old_lives.get(name, ())}
        if old.inode in known or not old.locked():
            old.close()
            return
        if len(known) >= _MOST_OLD_LIVES:
            for inode, each in list(known.items()):
                if not each.locked():
                    known.pop(inode).close()
        if len(known) >= _MOST_OLD_LIVES:
            old.close()
            self._give_up_looking(name, f"more than {_MOST_OLD_LIVES} of its life files are locked")
        else:
            known[old.inode] = old
        self._old_lives[name] = list(known.values())

    def _give_up_looking(self, name: str, why: object) -> None:
        """Evidence is missing: the incarnation counts as living until a person knows better."""
        if name not in self._unseen_lives:
            self._unseen_lives.add(name)
            self.log.alarm("life_files_not_looked_at", name=name, why=why, follows="nothing proves its end")

    def look_at_life(self, name: str, inode: tuple[int, int]) -> bool:
        """The named file is in its place, is the one that the sender means, and is locked. From now on it is looked at;
        and so is the one before, if that is locked, too.
        """
        if not (self.directory).is_dir():
            self._make_life_directory()
        new, old = LifeProbe.open(self.directory, name), self._probes.get(name)
        if new is None:
            return False
        if new.inode != inode or not new.locked():
            new.close()
            return False
        self._probes[name] = new
        if old is not None and old.inode != new.inode:
            self._look_at_old_life(name, old)
        elif old is not None:
            old.close()
        return True

    def _probe(self, name: str) -> LifeProbe | None:
        """The server's eye on a life file, kept open: a file that loses its name meanwhile is still asked."""
        probe = self._probes.get(name)
        if probe is None:
            probe = LifeProbe.open(self.directory, name)
            if probe is not None:
                self._probes[name] = probe
        return probe

    def stop_looking_at(self, name: str) -> None:
        probe = self._probes.pop(name, None)
        if probe is not None:
            probe.close()

    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        e.WatchDeath: Shell.watch_death,
        e.ForgetProcess: Shell.forget_process,
        e.Kill: kill,
        e.ProbeLife: probe_life,
        e.ProbeStrangers: probe_strangers,
        e.LookUp: look_up,
        e.LookAt: look_at,
        e.Unlink: unlink,
        e.ReadMemory: read_memory,
        e.Send: send,
        e.Persist: Shell.persist,
        context.Close: lambda server, effect: server.connections.drop(effect.conn),
        context.Publish: Shell.publish,
        context.Note: Shell.note,
        context.Stop: Shell.stop,
    }


def _read(reader: Reader) -> e.MemoryRead:
    try:
        return e.MemoryRead(reader())
    except Exception as error:  # a driver's reader may raise anything; that it can't be read is the answer
        return e.MemoryRead({}, problem=f"{type(error).__name__}: {error}"[:500])


def pid_namespace() -> str:
    """In which the numbers of processes mean something; empty where `/proc` belongs to another one."""
    return os.readlink("/proc/self/ns/pid") if os.readlink("/proc/self") == str(os.getpid()) else ""
