"""`failover up`: lock server, GMS, both engines and the door as one process tree, with one Ctrl-C.

    lock    decides who may be awake         started again in place, as its container would be
    gms     owns the weights                 the same
    a, b    the shims of the two engines     the same; each starts its own engine again
    door    where clients come (`gateway`)   the same

The engines and the door are started when the other two are ready. When this process is told to end, these end first
(the engine that serves drains), then the rest; told again, everything ends at once, and the exit code says so (128 and
the signal's number). The children die with this process however it ends: it is one failure domain, and where that isn't
good enough there is the pod.

A program that another start won't mend (`sidecar/restarts.py`) never takes an engine that serves with it:

    before anybody has served       everything ends with its exit code: a person has made a mistake, and is there
    an engine                       is given up, with an alarm; SIGUSR1 has it started again
    the last engine                 everything ends
    lock                            everything ends
    gms, door                       tried again, after longer and longer pauses, with an alarm

What this file may not do: know anything about the lock, GMS or an engine that isn't in their command lines.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from engine_shim import cleanup, given_up, known_engines, part_environment
from engine_shim.pair_look import UpFacts
from engine_shim.pair_process import UP_LOCK
from lockserver.observer import Observer, ObserverError, Status, watch_for_good
from sidecar import signals
from sidecar.durable import AlreadyLocked, DirectoryLock
from sidecar.path_watch import make_private_directory
from sidecar.restarts import STEADY_S
from sidecar.supervisor import NEVER, Child, Supervisor, how_it_ended

LOCK, GMS, DOOR = "lock", "gms", "door"
DOOR_MODULE = "gateway"
REST_END_S = 5.0
"""How long the lock server and GMS may take to end; they have nothing to finish."""
POLL_S = 0.02
LOOK_S = 1.0
"""How often it looks whether its own files are still there."""
ASK_S = 1.0
AGAIN_FIRST_S, AGAIN_MOST_S = 5.0, 60.0
"""The pauses before GMS or the door is tried again, when another start seems not to mend it."""
UNPROVEN = (
    "--devices none: no memory is read that could prove a holder's end, so the lock server has --grant-unproven: after "
    "everything was killed at once, a holder whose life lock is free is taken for gone"
)
WITHOUT = {GMS: "no engine can start or wake until then", DOOR: "clients reach no engine through it until then"}


class CannotStart(Exception):
    """Something that a person can put right."""


@dataclass(frozen=True)
class Options:
    run_dir: Path
    engine: str
    devices: tuple[str, ...]
    capacity: str
    engine_ids: tuple[str, ...]
    shim: tuple[str, ...]
    """Further settings of the shims."""
    arguments: tuple[str, ...]
    listen: tuple[str, int] | None = None
    """Where clients come; None: there is no door."""
    door: tuple[str, ...] = ()
    """Further settings of the door."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """That of `failover up`."""

    @property
    def address(self) -> str:
        """The door's, as a client on this machine writes it."""
        host, port = self.listen or ("", 0)
        host = {"": "localhost", "0.0.0.0": "localhost", "::": "localhost"}.get(host, host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def children(options: Options) -> list[Child]:
    place = ("--run-dir", str(options.run_dir))
    on_host = any(device.startswith("host:") for device in options.devices)
    memory: tuple[str, ...] = ("--memory", "host" if on_host else "auto")
    if not options.devices:  # an engine that needs memory would wait for ever after everything was killed at once
        memory = ("--memory", "none", "--grant-unproven")
    kept = part_environment.kept_from_parts(options.environment)

    def child(name: str, part: str, command: tuple[str, ...], told: Mapping[str, str] | None = None) -> Child:
        return Child(name, command, {**part_environment.told(part, options.environment), **(told or {})}, kept)

    found = [child(LOCK, part_environment.LOCK, ("lockserver", *place, *memory))]
    if options.devices:
        size = ("--capacity", options.capacity) if on_host else ()
        command = ("gms", *place, "--devices", ",".join(options.devices), *size)
        found.append(child(GMS, part_environment.GMS, command))
    variable = known_engines.DEVICES.get(options.engine)
    named = options.devices and "cuda" not in options.devices  # cuda stands for as many GPUs as the engine has ranks
    told = {variable: ",".join(options.devices)} if variable and named else {}
    for number, engine_id in enumerate(options.engine_ids):
        role = "shadow" if number else "primary"
        who = ("--engine", options.engine, "--engine-id", engine_id, "--role", role, "--probe", "127.0.0.1:0")
        command = ("engine_shim", *who, *place, *options.shim, "--", *options.arguments)
        found.append(child(engine_id, part_environment.ENGINES, command, told))
    if options.listen is not None:
        host, port = options.listen
        listen = ("--listen", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        found.append(child(DOOR, part_environment.DOOR, (DOOR_MODULE, *place, *listen, *options.door)))
    return found


def welcome(address: str) -> list[str]:
    """The door's address in a box, and a command to paste."""
    shown = f" OpenAI-compatible: {address}/v1 "
    edge = f"+{'-' * len(shown)}+"
    ask = f"curl {address}/v1/completions -H 'content-type: application/json'"
    return [edge, f"|{shown}|", edge, f"{ask} -d '" + '{"prompt": "Hello", "max_tokens": 32}' + "'"]


class Up:
    def __init__(self, options: Options) -> None:
        """Raises CannotStart."""
        self.options = options
        run_dir = options.run_dir
        self._served = False
        """Somebody has, since this process began."""
        try:
            make_private_directory(run_dir)
            if run_dir.stat().st_uid != os.getuid():
                raise CannotStart(f"{run_dir} belongs to another user; give a --run-dir of your own")
            self._lock = DirectoryLock(run_dir, UP_LOCK).acquire()
            self._keep_facts()
        except AlreadyLocked as error:
            raise CannotStart(
                f"failover up runs already in {run_dir} (process {error.pid}); failover status shows it, "
                "failover down ends it, another --run-dir is another pair"
            ) from None
        except OSError as error:
            what = "it is no directory" if os.path.lexists(run_dir) and _is_file(run_dir) else error.strerror
            raise CannotStart(f"{run_dir} can't be used: {what}; give another --run-dir") from None
        named = children(options)
        self._width = max(len(child.name) for child in [*named, Child("up", ())])
        self._supervisor = Supervisor(named, ended=self._on_ended, relay=self._relay)
        self._base = [child for child in named if child.name in (LOCK, GMS)]
        self._shims = [child for child in named if child.name not in (LOCK, GMS)]
        for child in self._shims:
            child.start_at = NEVER
        self._told: list[signal.Signals] = []
        self._code = 0
        self._because: Child | None = None
        """Everything ends because of this one."""
        self._given_up: set[str] = set()
        """Engines."""
        self._tries: dict[str, int] = {}
        """How often GMS and the door were tried since they were seen to be hopeless."""
        self._last_words: dict[str, str] = {}
        given_up.forget(run_dir)
        self._news: deque[str] = deque()
        self._last_said = ""
        """Who serves, as it was said last."""
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def say(self, name: str, line: str) -> None:
        try:
            print(f"{name:<{self._width}} | {line}", flush=True)
        except (OSError, ValueError):
            return  # nobody reads it any more; the engines serve on

    def _relay(self, name: str, line: str) -> None:
        self._last_words[name] = line
        self.say(name, line)

    def _on_ended(self, child: Child, how: str, pause_s: float) -> None:
        when = f" in {pause_s:g} s" if pause_s else ""
        self.say("up", f"{child.name} ended ({how}); it is started again{when}")

    def run(self) -> int:
        loop = self._supervisor.loop
        signals.deliver(
            loop, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD), self._on_signal
        )
        loop.add(self._bell, self._on_news)
        threading.Thread(target=self._watch, name="up-watch", daemon=True).start()
        self.say("up", f"run directory {self.options.run_dir}; Ctrl-C ends everything")
        for line in part_environment.unused(self.options.environment):
            self.say("up", line)
        if not self.options.devices:
            self.say("up", UNPROVEN)
        self._until(self._base_ready, poll_s=POLL_S)
        for child in self._shims:
            child.start_at = 0.0
        self._until(lambda: False)
        return self._end()

    def _until(self, done: Callable[[], bool], poll_s: float = LOOK_S) -> None:
        while not self._told and self._because is None and not done():
            self._supervisor.turn(time.monotonic() + poll_s)
            self._mind_the_hopeless()
            self._keep_lock()
            self._keep_facts()

    def _keep_facts(self) -> None:
        """They change, and somebody may remove the file: failover status would know of no door any more."""
        options = self.options
        facts = UpFacts(options.address if options.listen is not None else "", options.devices, not self._served)
        if UpFacts.read(options.run_dir) != facts:
            facts.write(options.run_dir)

    def _keep_lock(self) -> None:
        """Somebody may remove its file: failover status and failover down couldn't find this process any more."""
        if self._lock.holds():
            return
        try:
            make_private_directory(self.options.run_dir)
            new = DirectoryLock(self.options.run_dir, UP_LOCK).acquire()
        except (OSError, AlreadyLocked):
            return  # it is tried again
        self._lock.close()
        self._lock = new
        self.say("up", f"{new.path} was removed by somebody: made again")

    def _base_ready(self) -> bool:
        """Whether their sockets exist. Sockets of an earlier run may be found too early; the engines wait, too."""
        run_dir = self.options.run_dir
        if not (run_dir / "lock.sock").exists():
            return False
        gms = run_dir / "gms"
        named = [device for device in self.options.devices if device.startswith("host:")]
        if not named and self.options.devices:
            return any(gms.glob("*.sock"))
        return all((gms / f"{device}.sock").exists() for device in named)

    # -- what another start won't mend -----------------------------------------------------------------------------

    def _mind_the_hopeless(self) -> None:
        for child in self._supervisor.children:
            if not child.hopeless or child.name in self._given_up:
                continue
            if child.name == LOCK or not self._has_served():
                self._because = child
                return
            if child.name in WITHOUT:
                self._try_later(child)
            else:
                self._give_up(child)

    def _give_up(self, child: Child) -> None:
        self._given_up.add(child.name)
        left = [engine_id for engine_id in self.options.engine_ids if engine_id not in self._given_up]
        if not left:
            self._because = child
            return
        way_out = f"once that is put right, kill -USR1 {os.getpid()} has it started again, and nothing else ends"
        why = f"given up by failover up ({self._why(child)}); {way_out}"
        given_up.note(self.options.run_dir, child.name, why)
        self.say("up", f"ALARM: {child.name} is {why}. Until then {', '.join(left)} is alone: nobody can take over")

    def _try_later(self, child: Child) -> None:
        steady = time.monotonic() - child.restarts.started_at >= STEADY_S
        tries = 0 if steady else self._tries.get(child.name, 0)
        self._tries[child.name] = tries + 1
        pause_s = min(AGAIN_FIRST_S * 2**tries, AGAIN_MOST_S)
        self._supervisor.again(child, pause_s)
        again = f"it is tried again in {pause_s:g} s, and {WITHOUT[child.name]}"
        self.say("up", f"ALARM: {child.name} can't be started ({self._why(child)}); {again}")

    def _try_again(self) -> None:
        """A person says that what was wrong is put right."""
        given_up.forget(self.options.run_dir)
        for child in self._supervisor.children:
            if child.name in self._given_up:
                self.say("up", f"SIGUSR1: {child.name} is started again")
                self._supervisor.again(child, 0.0)
        self._given_up.clear()

    def _why(self, child: Child) -> str:
        """How it ended, and its last words."""
        line = self._last_words.get(child.name, "")
        said = line.partition(" why=")[2].strip("\"'") or line
        return how_it_ended(child.code or 0) + (f": {said}" if said else "")

    def _has_served(self) -> bool:
        """The thread that watches may not have come to it yet."""
        if not self._served:
            with contextlib.suppress(ObserverError), Observer(self.options.run_dir, ASK_S) as observer:
                self._served = _somebody_serves(next(observer.watch()))
        return self._served

    # -- the end ---------------------------------------------------------------------------------------------------

    def _end(self) -> int:
        supervisor = self._supervisor
        supervisor.stop_restarting()
        if self._because is not None:
            child = self._because
            none_left = "no engine is left: " if child.name in self._given_up else ""
            self.say("up", f"{none_left}{child.name} can't be started: see what it says above")
            self._code = child.code or 1
        else:
            self.say("up", f"{self._told[0].name}: the engine that serves drains; told again, everything ends at once")
        told = min(len(self._told), 1)  # two may have come at once
        supervisor.tell(self._shims, signal.SIGTERM)
        self._await_end(self._shims, NEVER, told)
        if any(child.pid for child in self._shims):  # told again: a shim that is told twice ends its engine at once
            self._code = self._code or 128 + self._told[-1]
            told = len(self._told)
            supervisor.tell(self._shims, signal.SIGTERM)
            self._await_end(self._shims, REST_END_S, told)
            supervisor.tell(self._shims, signal.SIGKILL)
        supervisor.tell(self._base, signal.SIGTERM)
        self._await_end(supervisor.children, REST_END_S, told)
        supervisor.tell(supervisor.living, signal.SIGKILL)
        while supervisor.living:
            supervisor.turn(NEVER)
        given_up.forget(self.options.run_dir)
        for what in cleanup.remove(self.options.run_dir, self.options.devices):
            self.say("up", f"stays: {what}")
        self.say("up", "everything has ended")
        UpFacts.remove(self.options.run_dir)
        self._lock.close()
        return self._code

    def _await_end(self, children: list[Child], most_s: float, told: int) -> None:
        """Until they have ended, or a further signal comes."""
        until = time.monotonic() + most_s
        while any(child.pid for child in children) and len(self._told) <= told and time.monotonic() < until:
            self._supervisor.turn(until)

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            self._supervisor.collect()
        elif number == signal.SIGUSR1:
            self._try_again()
        else:
            self._told.append(number)

    # -- who serves ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Runs in a thread of its own."""
        watch_for_good(self.options.run_dir, self._on_lock, lambda why: self._tell(f"the lock can't be seen: {why}"))

    def _on_lock(self, status: Status | None) -> None:
        """Says who serves whenever that changes; the first time, where clients come."""
        holder = status.holder if status is not None else None
        if status is None or holder is None or not holder.endpoint:
            return
        self._served = self._served or _somebody_serves(status)
        line = f"{holder.engine_id} serves at {holder.endpoint} (token {holder.token})"
        if line == self._last_said:
            return
        self._tell(line)
        if not self._last_said and self.options.listen is not None:
            self._wait_for_door()
            self._tell(*welcome(self.options.address))
        self._last_said = line

    def _tell(self, *lines: str) -> None:
        self._news += lines
        os.eventfd_write(self._bell, 1)

    def _wait_for_door(self) -> None:
        """Until it can be reached."""
        at = urlsplit(self.options.address)
        while True:
            try:
                socket.create_connection((at.hostname or "", at.port or 0), POLL_S * 50).close()
                return
            except OSError:
                time.sleep(POLL_S)

    def _on_news(self, _: int) -> None:
        os.eventfd_read(self._bell)
        while self._news:
            self.say("up", self._news.popleft())


def _somebody_serves(status: Status) -> bool:
    """Now, and not as a record of a holder whose end isn't proven yet says it."""
    return status.state == "HELD" and status.holder is not None and bool(status.holder.endpoint)


def _is_file(path: Path) -> bool:
    try:
        return not path.is_dir()
    except OSError:
        return False
