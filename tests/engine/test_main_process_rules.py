"""The steps of an engine's main process (`engine_shim/shell/main_process.py`), one by one, with a lock, a shim and an
engine that only note what they are asked. With real ones: `test_scenarios.py`, `test_shim.py`.
"""

import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine_shim import membership
from engine_shim.engine import CannotRun, CannotServe, Health, Listen, WokeWrong, WorkerFailed, other_weights
from engine_shim.membership import NotAMember
from engine_shim.rules import messages as m
from engine_shim.shell import known_engines, main_process
from engine_shim.shell.transient import is_of_network
from lockserver import client
from lockserver.client import LockError
from sidecar.terminal.exit_codes import EX_OTHER_WEIGHTS, EX_USAGE

TOKEN = 17
OWN = Path("/run/failover")
URL = f"unix:{OWN}/engine/engine-a.{TOKEN}.sock"


class Exit(BaseException):
    """Instead of the end of this process."""


class Notebook:
    """Everything that is asked for, in its order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.beats: list[m.Beat] = []
        self.then: dict[str, Any] = {}
        """Line -> what happens when it is written."""
        self.failing, self.exit_code = "", 0
        self.readiness: list[bool] = []

    def note(self, line: str) -> None:
        self.lines.append(line)
        then = self.then.pop(line, None)
        if isinstance(then, BaseException):
            raise then
        if then is not None:
            then()


class Lock:
    def __init__(self, book: Notebook, callbacks: dict[str, Any]) -> None:
        self.book = book
        self.callbacks = callbacks
        self.name = "engine-a.0123456789abcdef"

    def start(self) -> None:
        self.book.note("lock.start")

    def environment(self) -> dict[str, str]:
        return {"FAILOVER_TREE": self.name}

    @contextmanager
    def permit(self) -> Iterator[None]:
        self.book.note("lock.permit")
        yield
        self.book.note("lock.permit is given back")

    def acquire(self, needs: dict[str, int]) -> Any:
        self.book.note(f"lock.acquire {needs}")
        return type("Grant", (), {"token": TOKEN, "proven": True})

    def serving(self, url: str, kept: tuple[int, int] | None = None) -> None:
        self.book.note(f"lock.serving {url}".strip())

    def give_back(self) -> None:
        self.book.note("lock.give_back")

    def ready(self, ready: bool, needs: dict[str, int] | None = None) -> None:
        self.book.readiness.append(ready)
        if needs is not None:
            self.book.note(f"lock.ready {ready} {needs}")


class Shim:
    beat_s = 3600.0

    def __init__(self, book: Notebook) -> None:
        self.book = book

    def say(self, message: Any) -> None:
        if isinstance(message, m.Beat):
            self.book.beats.append(message)
        elif isinstance(message, m.Named):
            self.book.note(f"tree {message.incarnation}")
        else:
            assert isinstance(message, m.Step)
            self.book.note(f"{message.to} {message.token or ''} {message.url}".strip())

    def failing(self, why: str, *, exit_code: int = 0, transient: bool = False) -> None:
        self.book.failing, self.book.exit_code = why, exit_code

    def phase(self, name: str, spent_s: float) -> None:
        assert spent_s >= 0

    def adopted(self, adopted: int, dropped: int, why: str) -> None:
        raise AssertionError("this engine has no KV cache")


class Engine:
    def __init__(self, book: Notebook) -> None:
        self.book = book
        self.is_well = True
        self.wants = {"host:0": 3}
        self.is_healthy = Health(0, 0)

    def await_others(self) -> None:
        self.book.note("engine.await_others")

    def start(self) -> None:
        self.book.note("engine.start")

    def sleep(self) -> None:
        self.book.note("engine.sleep")

    def needs(self) -> dict[str, int]:
        return dict(self.wants)

    def well(self, fresh: bool = True) -> bool:
        self.book.note("engine.well")
        return self.is_well

    def wake(self) -> None:
        self.book.note("engine.wake")

    def serve(self, listen: Listen) -> None:
        self.book.note(f"engine.serve {listen.url}")

    def health(self) -> Health:
        self.book.note("engine.health")
        return self.is_healthy

    def drain(self, timeout_s: float) -> None:
        self.book.note(f"engine.drain {timeout_s:g}")

    def resume(self) -> None:
        self.book.note("engine.resume")

    def stop(self) -> None:
        self.book.note("engine.stop")


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    book = Notebook()
    monkeypatch.setenv("FAILOVER_TREE", "")

    def lock(run_dir: Path, engine_id: str, **callbacks: Any) -> Lock:
        assert (run_dir, engine_id) == (OWN, "engine-a")
        return Lock(book, callbacks)

    def leave(code: int) -> None:
        book.note(f"exit {code}")
        raise Exit

    monkeypatch.setattr(main_process, "LockClient", lock)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(client, "end_process", lambda why: leave(99))
    before = signal.getsignal(signal.SIGTERM)
    yield book
    signal.signal(signal.SIGTERM, before)


def made(book: Notebook, kind: type[Engine] = Engine) -> tuple[main_process.Main, Engine, Lock]:
    engine = kind(book)
    main = main_process.Main(engine, OWN, "engine-a", Shim(book), 7.0)  # type: ignore[arg-type]
    lock: Any = main.lock
    return main, engine, lock


def way(book: Notebook) -> list[str]:
    """Without what the thread that beats asks."""
    return [line for line in book.lines if line not in ("engine.well", "engine.health")]


INIT = ["lock.start", "tree engine-a.0123456789abcdef", "engine.await_others"]
INIT += ["lock.permit", "engine.start", "engine.sleep", "lock.permit is given back"]
WAKE = ["standby", "lock.acquire {'host:0': 3}", f"waking {TOKEN}", "engine.wake"]
SERVE = [f"engine.serve {URL}", f"lock.serving {URL}", f"active {TOKEN} {URL}"]
END = ["lock.serving", f"draining {TOKEN}", "engine.drain 7", "engine.stop"]


def test_the_way_is_init_sleep_acquire_wake_serve_announce_and_back_withdraw_drain_stop(book: Notebook) -> None:
    main, _, _ = made(book)
    book.then[SERVE[-1]] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    main.live(None)
    assert way(book) == INIT + WAKE + SERVE + END
    assert os.environ["FAILOVER_TREE"] == "engine-a.0123456789abcdef", "its workers know whose they are"


def test_it_serves_where_it_is_told_to(book: Notebook) -> None:
    main, _, _ = made(book)
    main.orders.put(main_process.Order("end"))
    main.live(Listen(host="127.0.0.1", port=8000))
    assert [line for line in book.lines if "http://127.0.0.1:8000" in line] == [
        "engine.serve http://127.0.0.1:8000",
        "lock.serving http://127.0.0.1:8000",
        f"active {TOKEN} http://127.0.0.1:8000",
    ]


@pytest.mark.parametrize("at", [*INIT, *WAKE, *SERVE[:1]])
def test_what_fails_on_the_way_ends_it_and_nothing_follows(book: Notebook, at: str) -> None:
    main, _, _ = made(book)
    book.then[at] = MemoryError("no room")
    with pytest.raises(MemoryError):
        main.live(None)
    after = way(book)[way(book).index(at) + 1 :]
    assert after in ([], ["lock.permit is given back"]), after


@pytest.mark.parametrize("at", [*INIT, *WAKE, SERVE[0]])
def test_told_to_end_before_it_serves_it_ends_at_once(book: Notebook, at: str) -> None:
    main, _, _ = made(book)
    book.then[at] = lambda: main._on_sigterm()
    with pytest.raises(Exit):
        main.live(None)
    assert way(book)[way(book).index(at) + 1 :] == ["exit 0"]


def switched(book: Notebook, *orders: str, kind: type[Engine] = Engine) -> list[str]:
    """What follows after these orders to an engine that serves, before it is told to end."""
    main, _, _ = made(book, kind)
    for order in (*orders, "end"):
        main.orders.put(main_process.Order(order))
    main.live(None)
    lines = way(book)
    return lines[lines.index(SERVE[-1]) + 1 :]


AGAIN = ["engine.resume", f"lock.serving {URL}", f"active {TOKEN} {URL}"]


def test_a_switchover_withdraws_the_endpoint_before_anything_else(book: Notebook) -> None:
    assert switched(book, "drain") == ["lock.serving", f"draining {TOKEN}", "lock.serving", "engine.drain 7", END[-1]]


def test_a_switchover_that_is_called_off_serves_again_and_then_announces_it(book: Notebook) -> None:
    assert switched(book, "drain", "resume") == ["lock.serving", f"draining {TOKEN}", *AGAIN, *END]


def test_who_serves_has_nothing_to_resume(book: Notebook) -> None:
    assert switched(book, "resume") == END


def test_a_drain_that_is_heard_of_after_it_was_called_off_is_none(book: Notebook) -> None:
    drains = ["lock.serving", f"draining {TOKEN}"]
    assert switched(book, "resume", "drain", "drained") == ["engine.resume", *END]
    book.lines.clear()
    assert switched(book, "resume", "drain", "drained", "drain", "resume") == ["engine.resume", *drains, *AGAIN, *END]


def test_told_to_end_while_it_drains_it_drains_to_its_end(book: Notebook) -> None:
    main, _, _ = made(book)
    main.orders.put(main_process.Order("drain"))
    book.then[f"draining {TOKEN}"] = main._on_sigterm
    main.live(None)
    assert way(book)[-1:] == END[-1:] and "exit 0" not in book.lines


def test_a_successor_that_is_ready_does_not_wait_for_the_drain_of_one_that_was_told_to_end(book: Notebook) -> None:
    main, _, lock = made(book)
    main.orders.put(main_process.Order("end"))
    book.then["engine.drain 7"] = lock.callbacks["on_exit"]
    with pytest.raises(Exit):
        main.live(None)
    assert way(book)[-2:] == ["engine.drain 7", "exit 0"]


def test_a_drain_that_began_after_it_was_called_off_is_taken_back(book: Notebook) -> None:
    said = switched(book, "drain", "resume", "drained")
    assert said == ["lock.serving", f"draining {TOKEN}", *AGAIN, "engine.resume", *END]
    book.lines.clear()
    assert "engine.resume" not in switched(book, "drain", "drained"), "one that stands stays"


def test_while_a_drain_that_was_called_off_still_runs_the_engine_is_opened_again_and_again(book: Notebook) -> None:
    """It may shut the engine's door at any moment of that."""
    main, _, _ = made(book)
    opened = 0

    def again() -> None:
        nonlocal opened
        opened += 1
        if opened < 4:
            book.then["engine.resume"] = again
            return
        for order in ("drained", "end"):
            main.orders.put(main_process.Order(order))

    book.then["engine.resume"] = again
    for order in ("drain", "resume"):
        main.orders.put(main_process.Order(order))
    main.live(None)
    assert opened == 4 and way(book)[-len(END) :] == END


def test_a_drain_that_is_called_off_before_it_begins_does_not_begin(book: Notebook) -> None:
    main, _, lock = made(book)
    thread = threading.Thread(target=lock.callbacks["on_drain"], args=(5.0,))
    thread.start()
    order = main.orders.get(timeout=20)
    order.off = True
    order.done.set()
    thread.join(20)
    assert book.lines == [] and main.orders.get(timeout=20).what == "drained"


def test_the_drain_for_a_switchover_waits_until_the_endpoint_is_withdrawn_and_has_its_own_bound(book: Notebook) -> None:
    main, _, lock = made(book)
    withdrawn = threading.Event()
    thread = threading.Thread(target=lock.callbacks["on_drain"], args=(5.0,))
    thread.start()
    order = main.orders.get(timeout=20)
    assert order.what == "drain" and book.lines == []
    withdrawn.set()
    order.done.set()
    thread.join(20)
    assert book.lines == ["engine.drain 5"]
    assert main.orders.get(timeout=20).what == "drained"


class Leaves(Engine):
    """Which protocols a class has is remembered for it: so one that has more is a class of its own."""

    def granted(self, token: int, proven: bool) -> None:
        pass

    def leave(self) -> None:
        self.book.note("engine.leave")


def test_when_its_successor_is_ready_it_leaves_and_does_no_more_than_it_must(book: Notebook) -> None:
    main, _, _ = made(book, Leaves)
    for order in ("drain", "leave"):
        main.orders.put(main_process.Order(order))
    main.live(None)
    lines = way(book)
    assert lines[lines.index(SERVE[-1]) + 1 :] == ["lock.serving", f"draining {TOKEN}", "engine.leave"]
    book.lines.clear()
    assert switched(book, kind=Leaves) == [*END[:-1], "engine.leave", END[-1]], "and so it does when it is told to end"


def test_a_drain_that_fails_calls_the_switchover_off(book: Notebook) -> None:
    main, _, lock = made(book)
    book.then["engine.drain 5"] = RuntimeError("stuck")
    failed: list[BaseException] = []

    def drain() -> None:
        try:
            lock.callbacks["on_drain"](5.0)
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=drain)
    thread.start()
    main.orders.get(timeout=20).done.set()
    thread.join(20)
    assert failed and main.orders.get(timeout=20).what == "drained"


SLEEP = ["lock.serving", f"draining {TOKEN}", "sleeping", "engine.sleep", "lock.give_back"]


def test_told_to_sleep_it_gives_the_device_back_then_the_lock_and_waits_for_the_next_grant(book: Notebook) -> None:
    said = switched(book, "drain", "drained", "sleep")
    assert said == [*SLEEP, *WAKE, *SERVE, *END]


@pytest.mark.parametrize("at", ["sleeping", "engine.sleep", "lock.give_back"])
def test_what_fails_in_a_sleep_ends_it_and_the_lock_is_not_given_back_after_it(book: Notebook, at: str) -> None:
    main, _, _ = made(book)
    for order in ("drain", "sleep"):
        main.orders.put(main_process.Order(order))
    book.then[SERVE[-1]] = lambda: book.then.update({at: MemoryError("a rank is gone")})
    with pytest.raises(MemoryError):
        main.live(None)
    assert way(book)[-1] == at


def test_one_that_was_to_give_back_and_whose_time_is_over_ends_at_once(book: Notebook) -> None:
    main, _, lock = made(book)
    for order in ("drain", "sleep"):
        main.orders.put(main_process.Order(order))
    book.then["sleeping"] = lock.callbacks["on_exit"]
    with pytest.raises(Exit):
        main.live(None)
    assert way(book)[-2:] == ["sleeping", "exit 0"]


@pytest.mark.parametrize("second", [(1, 2, 3), (1, 2, 4)], ids=["the same", "another"])
def test_before_it_serves_it_is_asked_what_it_always_answers(book: Notebook, second: tuple[int, ...]) -> None:
    answers = [(1, 2, 3), second]

    class Known(Engine):
        def known(self) -> tuple[int, ...]:
            self.book.note("engine.known")
            return answers.pop(0)

    if second == (1, 2, 3):
        assert switched(book, "drain", "sleep", kind=Known) == [*SLEEP, *WAKE, "engine.known", *SERVE, *END]
        return
    with pytest.raises(WokeWrong, match=r"answers \(1, 2, 4\) to what it answered \(1, 2, 3\) to"):
        switched(book, "drain", "sleep", kind=Known)
    assert way(book)[-1] == "engine.known", "and no client is admitted"


def test_what_the_lock_asks_of_it(book: Notebook) -> None:
    main, engine, lock = made(book)
    for well in (True, False):
        engine.is_well = well
        assert lock.callbacks["check"]() is well, "asked before a grant: could it wake?"
    book.lines.clear()
    lock.callbacks["on_resume"]("why")
    assert main.orders.get(timeout=20).what == "resume"
    lock.callbacks["on_exit"]()
    assert main.orders.get(timeout=20).what == "leave" and book.lines == []
    lock.callbacks["on_give_back"]()
    assert main.orders.get(timeout=20).what == "sleep" and book.lines == []


def test_who_has_lost_the_lock_says_so_and_ends_at_once(book: Notebook) -> None:
    _, _, lock = made(book)
    with pytest.raises(Exit):
        lock.callbacks["on_lost"]("it was given to another")
    assert book.failing == "lock lost: it was given to another" and book.lines == ["exit 99"]


# -- beats -------------------------------------------------------------------------------------------------------------


def beats(main: main_process.Main, monkeypatch: pytest.MonkeyPatch, *turns: Any) -> None:
    """So many rounds; each turn is done before its round."""
    left = list(turns)

    def sleep(seconds: float) -> None:
        assert seconds == Shim.beat_s
        if not left:
            raise Exit
        left.pop(0)()

    monkeypatch.setattr(time, "sleep", sleep)
    left.pop(0)()
    with pytest.raises(Exit):
        main._beat()


def test_asleep_it_asks_the_engine_and_tells_shim_and_lock(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    main, engine, _ = made(book)
    main.state = "standby"

    def is_well(well: bool) -> Any:
        return lambda: setattr(engine, "is_well", well)

    beats(main, monkeypatch, is_well(True), is_well(False), is_well(False), is_well(True))
    assert [beat.well for beat in book.beats] == [True, False, False, True]
    assert book.beats[1].why
    assert book.readiness == [False, True], "the lock hears of a change"
    assert set(book.lines) == {"engine.well"}


def test_asleep_the_lock_hears_when_a_wake_needs_something_else(
    book: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, engine, lock = made(book)
    main._needs, main.state = engine.needs(), "standby"
    beats(main, monkeypatch, lambda: None, lambda: setattr(engine, "wants", {"host:0": 1}), lambda: None)
    assert [line for line in book.lines if line.startswith("lock")] == ["lock.ready True {'host:0': 1}"]
    engine.wants = {"host:0": 2}
    assert lock.callbacks["check"]()
    assert book.lines[-1] == "lock.ready True {'host:0': 2}", "and before a grant"


def test_awake_it_says_how_much_is_queued_and_done_and_what_is_wrong(
    book: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, engine, _ = made(book)
    engine.is_healthy = Health(3, 9)

    def breaks() -> None:
        main.state = "draining"
        engine.is_healthy = Health(1, 10, "a worker is gone")

    beats(main, monkeypatch, lambda: setattr(main, "state", "active"), breaks)
    first, second = book.beats
    assert (first.well, first.queued, first.steps) == (True, 3, 9)
    assert (second.well, second.queued, second.why) == (False, 1, "a worker is gone")
    assert book.readiness == []


@pytest.mark.parametrize("state", ["standby", "active"])
def test_a_check_that_fails_is_an_engine_that_is_not_well(
    book: Notebook, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    main, _, _ = made(book)
    main.state = state
    asked = "engine.well" if state == "standby" else "engine.health"
    beats(main, monkeypatch, lambda: book.then.update({asked: ValueError("which?")}))
    assert [(beat.well, beat.why) for beat in book.beats] == [(False, "ValueError: which?")]


@pytest.mark.parametrize("state", ["init", "waking"])
def test_where_its_state_has_a_bound_it_does_not_beat(
    book: Notebook, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    main, _, _ = made(book)
    main.state = state
    beats(main, monkeypatch, lambda: None, lambda: None)
    assert book.beats == [] and book.lines == []


def test_it_beats_from_standby_on(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    main, _, _ = made(book)
    began = threading.Event()
    monkeypatch.setattr(main, "_beat", began.set)
    book.then["engine.sleep"] = lambda: None if not began.is_set() else pytest.fail("too early")
    book.then["lock.acquire {'host:0': 3}"] = lambda: began.wait(20) or pytest.fail("it is silent while it waits")
    main.orders.put(main_process.Order("end"))
    main.live(None)


# -- the program -------------------------------------------------------------------------------------------------------


def ran(book: Notebook, monkeypatch: pytest.MonkeyPatch, **fails: BaseException) -> list[str]:
    """The whole program; the steps that are named fail."""

    def step(name: str, result: Any = None) -> Any:
        def done(*_: object) -> Any:
            book.note(name)
            if name in fails:
                raise fails[name]
            return result

        return done

    monkeypatch.setattr(membership, "arm_main", step("arm_main"))
    monkeypatch.setattr(membership, "enter_main", step("enter_main", Shim(book)))
    monkeypatch.setattr(known_engines, "make", step("make", Engine(book)))
    monkeypatch.setattr(main_process.Main, "live", step("live"))
    with pytest.raises(Exit):
        main_process.run(["--engine", "a.b:c", "--engine-id", "engine-a", "--run-dir", str(OWN)])
    return book.lines


def test_it_is_armed_then_counts_and_only_then_makes_an_engine(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(book, monkeypatch) == ["arm_main", "enter_main", "make", "live", "exit 0"]


@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("x"), KeyboardInterrupt()])
def test_whatever_fails_on_the_way_is_said_to_the_shim_and_the_end(
    book: Notebook, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    assert ran(book, monkeypatch, live=error)[-2:] == ["live", "exit 1"]
    assert book.failing.startswith(f"failed in init: {type(error).__name__}")


@pytest.mark.parametrize(
    ("error", "shown"),
    [(RuntimeError("x"), True), (WorkerFailed("gone"), False), (CannotServe("taken"), False), (LockError("no"), False)],
)
def test_a_trace_is_shown_only_of_what_went_wrong_in_this_process(
    book: Notebook,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    shown: bool,
) -> None:
    ran(book, monkeypatch, live=error)
    said = capsys.readouterr().err
    assert ("Traceback" in said) is shown and f"failed in init: {type(error).__name__}" in said


@pytest.mark.parametrize(
    ("step", "error", "code"),
    [
        ("make", CannotRun("no torch"), EX_USAGE),
        ("live", other_weights("gpu", "one is large", ""), EX_OTHER_WEIGHTS),
        ("make", SystemExit(2), EX_USAGE),
        ("enter_main", NotAMember("no shim"), 1),
    ],
)
def test_its_exit_code_says_whether_another_start_could_help(
    book: Notebook, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException, code: int
) -> None:
    assert ran(book, monkeypatch, **{step: error})[-1] == f"exit {code}"
    assert book.exit_code == (code if isinstance(error, CannotRun) else 0)


class OfALibrary(ConnectionError):
    """Which says so without having asked."""


@pytest.mark.parametrize(
    ("cause", "of_network"),
    [
        (ConnectionRefusedError(111, "Connection refused"), True),
        (TimeoutError("timed out"), True),
        (socket.gaierror(-2, "Name or service not known"), True),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), True),
        (OSError(errno.ENOENT, "No such file"), False),
        (OfALibrary("offline mode is enabled"), False),
        (ValueError("no such model"), False),
    ],
    ids=repr,
)
def test_a_failure_of_the_network_is_told_from_others_by_its_cause(cause: Exception, of_network: bool) -> None:
    said = OSError("We couldn't connect to the hub")
    said.__context__ = RuntimeError("an error happened")
    said.__context__.__cause__ = cause
    assert is_of_network(said) is of_network and not is_of_network(None)
