"""An engine's main process. `live` is the straight way of the specification's Decision 2, from top to bottom; an engine
that sleeps in place goes round from the wake to the sleep again.

It holds the lock connection, reports each step to the shim when it is taken, and ends when anything on the way fails.
The shim then ends the other processes and sees to the next start. What this file may not do: know which engine it is,
or outlive a failure.
"""

import contextlib
import gc
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from engine_shim import membership
from engine_shim.cli import command_settings
from engine_shim.engine import (
    AnswersKnown,
    CannotRun,
    CannotServe,
    Engine,
    GoesOn,
    Listen,
    SaysWhatItKept,
    SaysWhatItTakes,
    ServesElsewhere,
    Setting,
    WaitsForOthers,
    WokeWrong,
    WorkerFailed,
)
from engine_shim.rules import messages as m
from engine_shim.rules import takes
from engine_shim.shell import known_engines, paths, saving
from engine_shim.shell.address import Address, taken_by_another_program
from engine_shim.shell.room import Room
from engine_shim.shell.transient import is_transient
from gms.client import DeviceError, GmsError
from lockserver import client
from lockserver.client import LockClient
from sidecar.kernel.path_watch import make_private_directory
from sidecar.terminal.exit_codes import EX_USAGE
from sidecar.terminal.settings import Parser

HINT_AFTER_S = 3.0
REOPEN_S = 0.005
"""While a drain that was called off still runs: it may shut the engine's door after that."""
SAY_ENOUGH = (client.LockError, GmsError, DeviceError, CannotServe, WorkerFailed, WokeWrong, KeyboardInterrupt)
"""Failures whose sentence says what a person needs; where in the code they came up adds nothing."""


@dataclass
class Order:
    """What an engine that serves is told by other threads. It is carried out in the main one."""

    what: str
    """`drain` and then `drained`; `resume`; `leave`: it is drained, and its successor is ready; `sleep`: it is drained,
    and gives the lock back; `bind`: its socket is gone; `end`."""
    done: threading.Event = field(default_factory=threading.Event)
    off: bool = False
    """A drain that isn't wanted any more."""


class Main:
    def __init__(
        self,
        engine: Engine,
        run_dir: Path,
        engine_id: str,
        shim: membership.ShimConnection,
        drain_s: float,
        room: Room | None = None,
        started: Callable[[], object] = lambda: None,
    ) -> None:
        """`room`: there are other models, and a ledger. `started` is called when the engine has."""
        self.engine = engine
        self.run_dir = run_dir
        self.engine_id = engine_id
        self.shim = shim
        self.drain_s = drain_s
        self.state = "init"
        self.listen: Listen | None = None
        """Where it was told to serve; then where it does."""
        self.address: Address | None = None
        self.cannot_bind = ""
        """Why its address could not be bound again."""
        self.orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._is_ending = False
        """It drains because it was told to end: its main thread reads no `orders` any more."""
        self._is_leaving = False
        """It gives up what it has. Asked how it is, it would say that it isn't well."""
        self._needs: dict[str, int] | None = None
        """What the lock server was told that a wake needs, once it was."""
        self._steps = 0
        """As last seen."""
        self._token = 0
        """The number of its last grant."""
        self._known: Sequence[int] | None = None
        """What it answered to the known prompt after its first wake."""
        self.lock = LockClient(
            run_dir,
            engine_id,
            check=self._check_and_say_needs,
            on_lost=self._on_lost,
            on_drain=self._on_drain,
            on_resume=lambda why: self.orders.put(Order("resume")),
            on_exit=self._on_exit,
            on_give_back=lambda: self.orders.put(Order("sleep")),
        )
        self.room = room
        self._started = started

    # -- from init to serve ----------------------------------------------------------------------------------------

    def live(self, listen: Listen | None) -> None:
        """init -> sleep -> acquire (blocks) -> wake -> serve -> sleep -> acquire ... Returns when it was told to end
        and has drained.

        After a switchover the successor waits for the end of this process, which therefore does no more than it must.
        """
        engine, lock = self.engine, self.lock
        signal.signal(signal.SIGTERM, self._on_sigterm)
        with _hint(f"waits for a lock server in {self.run_dir}: lockserver --run-dir {self.run_dir} starts one"):
            lock.start()
        os.environ.update(lock.environment())
        if self.room is not None:
            with _hint(
                "waits for the ledger of device memory: vram --run-dir, with the --host-dir of this, starts one"
            ):
                self.room.start()
        self.shim.say(m.Named(incarnation=lock.name))
        if isinstance(engine, WaitsForOthers):
            with _hint("waits for GMS, which has to run; a shadow waits for weights, too, which a primary writes"):
                engine.await_others()
        asked = time.monotonic()
        with lock.permit():
            self.shim.phase("permit", time.monotonic() - asked)
            if taken := taken_by_another_program(listen, self.run_dir):
                raise CannotServe(f"the engine {taken}; give another --listen")
            with self._timed("init"):
                engine.start()
            self._started()
            if isinstance(engine, SaysWhatItTakes):
                self.shim.say(m.Takes(takes=takes.bounded(engine.takes())))
            with self._timed("sleep"):
                engine.sleep()
        self.listen = listen
        self._step("standby")
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        while (last := self._live_one_grant(listen)) in ("sleep", "no room"):
            if last == "sleep":
                self._sleep()
        self._is_leaving = True
        if isinstance(engine, GoesOn):
            engine.leave()
        if last != "leave":
            engine.stop()

    def _live_one_grant(self, listen: Listen | None) -> str:
        """From one grant to its end. Returns the order that ended it."""
        engine, lock, self.listen = self.engine, self.lock, listen
        before = self._token
        self._needs = engine.needs() if self.room is None else {}  # else the ledger counts them
        grant = lock.acquire(self._needs)
        self._token = grant.token
        if self.room is not None and (why := self.room.take(engine.needs())):
            _tell(why)
            lock.give_back(why)
            return "no room"
        self._step("waking", token=grant.token)
        if isinstance(engine, GoesOn):
            engine.granted(grant.token, grant.proven)
        with self._timed("wake"):
            engine.wake()
        if isinstance(engine, AnswersKnown):
            self._ask_known(engine)
        own = listen or Listen(path=str(paths.endpoint(self.run_dir, self.engine_id, grant.token)))
        at = self.listen = engine.own_address() if isinstance(engine, ServesElsewhere) else own
        with self._timed("serve"):
            engine.serve(at)
        self._set_address(Address(at))
        # Among other models it is its own: a standby that served since has read what isn't in it.
        kept = self.room is None or before == grant.token - 1
        lock.serving(at.url, engine.kept() if kept and isinstance(engine, SaysWhatItKept) else None)
        self._step("active", token=grant.token, url=at.url)
        return self._serve(grant.token, at.url)

    def _ask_known(self, engine: AnswersKnown) -> None:
        """Before any client can: an engine that woke into rubbish says so nowhere else. It is warm then, too."""
        with self._timed("known"):
            found = tuple(engine.known())
        if self._known is None:
            self._known = found
        elif found != self._known:
            raise WokeWrong(
                f"after a wake it answers {found} to what it answered {self._known} to: it isn't what it was"
            )

    def _sleep(self) -> None:
        """It is drained. What hangs here is ended by the lock server, or by the shim."""
        self._step("sleeping")
        self._set_address(None)
        with self._timed("sleep"):
            self.engine.sleep()
        if self.room is not None:
            self.room.give_back()
        self.lock.give_back()
        self._step("standby")

    def _serve(self, token: int, url: str) -> str:
        """Serves until it is told to end, and returns the order that said so. The endpoint is withdrawn before anything
        else.

        A drain for a switchover runs in a thread of its own: when the switchover is called off, the engine serves on
        at once, and not when the drain returns. That it is called off may be heard before that it begins: each comes
        from a thread of its own.
        """
        drain: Order | None = None
        called_off = False
        while True:
            try:
                order = self.orders.get(timeout=REOPEN_S if drain is not None and self.state == "active" else None)
            except queue.Empty:  # it was called off, and may have begun only after that
                self.engine.resume()
                continue
            if order.what == "drain" and called_off:
                order.off, called_off = True, False
            elif order.what in ("drain", "end"):
                drain = order
                self.lock.serving("")
                if self.state == "active":
                    self._step("draining", token=token)
                order.done.set()
                if order.what == "end":
                    self._is_ending = True
                    self.engine.drain(self.drain_s)
                    return order.what
            elif order.what in ("leave", "sleep"):
                return order.what
            elif order.what == "resume":
                if self.state == "active":
                    called_off = True
                    continue
                if drain is not None:
                    drain.off = True
                self.engine.resume()
                self.lock.serving(url)
                self._step("active", token=token, url=url)
            elif order.what == "drained":
                drain = None
                if self.state == "active":
                    self.engine.resume()
            elif order.what == "bind" and self.state == "active":
                self._bind_again(url)
            order.done.set()

    def _bind_again(self, url: str) -> None:
        """Its socket was removed. Until it is there again, the endpoint isn't announced."""
        address, listen = self.address, self.listen
        why = address.lost() if address is not None else ""
        if address is None or listen is None or not why:
            return
        self.lock.serving("")
        try:
            make_private_directory(Path(listen.path).parent)
            self.engine.serve(listen)
        except (CannotServe, OSError) as error:
            self.cannot_bind = f"{why}, and can't be bound again: {error}"
            return
        self.cannot_bind = ""
        self._set_address(Address(listen))
        self.lock.serving(url)
        _tell(f"{why}: bound again")

    def _set_address(self, address: Address | None) -> None:
        """Where it serves from now on. The beat may never have seen the one before."""
        before, self.address = self.address, address
        if before is not None:
            before.close()

    def _step(self, to: str, token: int = 0, url: str = "") -> None:
        self.state = to
        self.shim.say(m.Step(to=to, token=token, url=url))

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.shim.phase(name, time.monotonic() - began)

    # -- from other threads, and signals ---------------------------------------------------------------------------

    def _on_sigterm(self, *_: object) -> None:
        """An engine that serves drains; any other has nothing to lose and ends at once."""
        if self.state in ("active", "draining"):
            self.orders.put(Order("end"))
        else:
            os._exit(0)

    def _on_exit(self) -> None:
        """The switchover's successor waits for this end; or it was to give back, and its time is over. Where the orders
        are read no more it comes at once.
        """
        if self._is_ending or self.state == "sleeping":
            os._exit(0)
        self.orders.put(Order("leave"))

    def _on_drain(self, timeout_s: float) -> None:
        """Drains for a switchover, in a thread of its own. An exception calls the switchover off."""
        order = Order("drain")
        self.orders.put(order)
        order.done.wait()
        try:
            if not order.off:
                self.engine.drain(timeout_s)
        finally:
            self.orders.put(Order("drained"))

    def _check_and_say_needs(self) -> bool:
        well = self.engine.well()
        self._say_needs(well)
        return well

    def _say_needs(self, well: bool) -> None:
        """They change: a KV cache that outlives its engine is there, or isn't."""
        if self.state != "standby" or self._needs is None or self.room is not None:
            return
        needs = self.engine.needs()
        if needs != self._needs:
            self._needs = needs
            self.lock.ready(well, needs)

    def vouch_for(self, pid: int) -> None:
        self.lock.vouch_for(pid)
        if self.room is not None:
            self.room.vouch_for(pid)

    def _on_lost(self, why: str) -> NoReturn:
        self.shim.failing(f"lock lost: {why}")
        client.end_process(why)

    def _beat(self) -> None:
        """Reports how the engine is: to the shim, and while it waits also to the lock server."""
        was_ready = True
        while True:
            address = self.address
            was_ready = was_ready or self.state != "standby"  # what waits anew is ready until it says otherwise
            if self.state == "standby":
                beat = self._look_asleep()
                ready = beat.well and not beat.unreachable
                if ready is not was_ready:
                    self.lock.ready(ready)
                    was_ready = ready
                self._say_needs(beat.well)
                self.shim.say(beat)
            elif self.state in ("active", "draining"):
                beat = self._note_use_and_look()
                if not self._is_leaving:
                    self.shim.say(beat)
                    if beat.unreachable:
                        self._have_it_bound_again()
            if address is None:
                time.sleep(self.shim.beat_s)
            else:
                address.wait(self.shim.beat_s)

    def _have_it_bound_again(self) -> None:
        order = Order("bind")
        self.orders.put(order)
        order.done.wait(self.shim.beat_s)
        if self.cannot_bind:
            time.sleep(self.shim.beat_s)
        elif order.done.is_set():
            self.shim.say(self._note_use_and_look())

    def _look_asleep(self) -> m.Beat:
        try:
            well = self.engine.well(fresh=False)
        except Exception as error:  # whatever it raises: an engine whose check fails isn't well
            return m.Beat(well=False, why=_said(error))
        taken = taken_by_another_program(self.listen, self.run_dir)
        return m.Beat(well=well, why="" if well else "its own check says no", unreachable=taken[: m.TEXT_MOST])

    def _note_use_and_look(self) -> m.Beat:
        try:
            health = self.engine.health()
        except Exception as error:
            return m.Beat(well=False, why=_said(error))
        if self.room is not None and (health.queued or health.steps != self._steps):
            self.room.used()
        self._steps = health.steps
        lost = self.address.lost() if self.address is not None else ""
        return m.Beat(
            well=not health.detail,
            why=health.detail[: m.TEXT_MOST],
            queued=health.queued,
            steps=health.steps,
            unreachable=(lost and (self.cannot_bind or lost))[: m.TEXT_MOST],
        )


@contextlib.contextmanager
def _hint(why: str) -> Iterator[None]:
    """Prints a line after a while, for the person who looks at an engine that does nothing."""
    timer = threading.Timer(HINT_AFTER_S, _tell, (why,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _LastWords:
    """The standard error, which remembers its last words. A logger that is made meanwhile may have it for ever."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.words = ""

    def write(self, text: str) -> int:
        self.words = (self.words + text)[-m.TEXT_MOST :]
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _told_what_its_parser_says(shim: membership.ShimConnection) -> Iterator[None]:
    """An engine's parser prints what is wrong with its arguments, and ends. The shim is told it, as any other end."""
    heard = _LastWords(sys.stderr)
    try:
        with contextlib.redirect_stderr(cast(TextIO, heard)):
            yield
    except SystemExit:
        lines = [line for line in heard.words.splitlines() if line and not line.startswith("see: ")]
        if lines:
            shim.failing(lines[-1], exit_code=EX_USAGE)
        raise


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[: m.TEXT_MOST]


def parser() -> Parser:
    p = Parser(prog="engine", description="An engine's main process. It is started by engine-shim.")
    command_settings.one_engine(p)
    command_settings.times(p, "drain_s", "room_timeout_s")
    p.add_argument("--check", action="store_true", help="only look whether the engine takes its arguments: 0, or 64")
    p.add_argument("arguments", nargs="*", metavar="ARGUMENT", help="the engine's own, behind --")
    return p


def run(argv: list[str] | None = None) -> NoReturn:
    options = parser().parse_args(argv)
    shim: membership.ShimConnection | None = None
    main: Main | None = None
    try:
        setting = Setting(
            options.run_dir,
            options.engine_id,
            options.role,
            tuple(options.arguments),
            host_dir=options.host_dir,
            weights=options.weights or "",
            health=options.health,
            needs=options.needs,
            snapshot=options.snapshot,
        )
        if options.check:  # the engine is made, which touches no device, and nothing else
            known_engines.make(options.engine, setting)
            os._exit(0)
        membership.arm_main()
        shim = membership.enter_main()
        setting = replace(
            setting,
            phase=shim.phase,
            adopted=shim.adopted,
            failing=shim.failing,
            kv=(options.kv or "") if options.host_dir is None else "drop",
            kv_parked=options.kv_parked if options.host_dir is not None and options.kv == "keep" else 0,
            vouch=lambda pid: main.vouch_for(pid) if main is not None else None,
        )
        with _told_what_its_parser_says(shim):
            engine = known_engines.make(options.engine, setting)
        room = Room(setting, shim.failing, options.room_timeout_s) if options.host_dir is not None else None
        saves = partial(saving.save_if_missing, setting)
        main = Main(engine, options.run_dir, options.engine_id, shim, options.drain_s, room, saves)
        main.live(options.listen)
    except SystemExit:
        os._exit(EX_USAGE)  # the engine's parser has printed what is wrong with its arguments
    except (CannotRun, membership.NotAMember) as error:
        code = error.exit_code if isinstance(error, CannotRun) else 0
        if shim is not None:
            shim.failing(str(error), exit_code=code)
        _tell(str(error))
        os._exit(code or 1)
    except BaseException as error:
        state = main.state if main is not None else "init"
        why = f"failed in {state}: {_said(error)}"
        if shim is not None:
            shim.failing(why, transient=is_transient(error))
        if not isinstance(error, SAY_ENOUGH):
            traceback.print_exc()
        _tell(why)
        os._exit(1)
    os._exit(0)


def _tell(why: str) -> None:
    try:
        print(f"engine: {why}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return


if __name__ == "__main__":
    run()
elif __name__ == "__mp_main__":
    # A process that an engine starts with multiprocessing loads this file first, and then everything that it needs.
    # Looking for garbage meanwhile finds none and took a quarter of vLLM's start. `membership.enter` turns it on.
    gc.disable()
    # Not only there: seconds pass until then, and vLLM's EngineCore waits five minutes for a parent that has ended.
    membership.arm()
