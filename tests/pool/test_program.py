"""The pool's own program: what comes over its socket, what it keeps, and its file read again."""

import json
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pool.client import ModelDemand, PoolClient
from pool.entries import Entry, Flags
from pool.observer import Listing, Observer, ObserverError
from pool.rules import messages as m
from sidecar.wire.frames import Channel
from tests.engine.shims import House, Program
from tests.support import tmpfs
from tests.support.waiting import DEADLINE_S, until

FILE = {"devices": ["host:0"], "models": {"chat": {"engine": "reference", "memory": "1GiB"}}}


@pytest.fixture
def house() -> Iterator[House]:
    with tmpfs.directory("pool") as directory:
        house = House(directory)
        yield house
        house.close()


class PoolProgram(Program):
    def __init__(self, house: House, file: object = FILE, name: str = "pool", more: tuple[str, ...] = ()) -> None:
        self.run_dir, self.path = house.run_dir, house.directory / "models.yaml"
        self.path.write_text(file if isinstance(file, str) else json.dumps(file))
        super().__init__(house, name, "pool", "--run-dir", str(self.run_dir), "--models", str(self.path), *more)
        house.add(self)

    def listing(self) -> Listing | None:
        try:
            with Observer(self.run_dir) as observer:
                return observer.listing()
        except ObserverError:
            return None

    def ready(self) -> "PoolProgram":
        until(self.listing, "the pool answers")
        return self

    def reload(self, file: object, seen: Callable[[Listing], object]) -> None:
        self.path.write_text(file if isinstance(file, str) else json.dumps(file))
        self.signal(signal.SIGHUP)
        until(lambda: seen(self.ready().listing() or Listing()), "the file is read again")

    def do(self, verb: m.Verb, name: str | None = None, **more: Any) -> tuple[int, str]:
        with Observer(self.run_dir) as observer:
            done = observer.ask(m.Command(number=7, verb=verb, name=name, **more), m.CommandDone)
            assert (done.number, done.ok) == (7, done.status < 300)
            return done.status, done.detail


def names(listing: Listing) -> list[str]:
    return [model.name for model in listing.models]


def test_a_file_that_is_wrong_changes_nothing_and_is_an_alarm_until_it_is_right(house: House) -> None:
    """Without a launcher, too, for which it waits, and says so."""
    pool = PoolProgram(house).ready()
    listing = pool.listing()
    assert listing is not None and names(listing) == ["chat"] and "the launcher doesn't answer" in listing.waiting_for
    status, detail = pool.do("sleep", "chat")
    assert status == 503 and "launcher" in detail
    assert pool.do("wake", "chta") == (404, "no model is called chta; is chat meant?")
    pool.reload("models: {chat: {priorty: 1}}", lambda listing: listing.alarms)
    listing = pool.listing()
    assert listing is not None and len(listing.alarms) == 1
    assert listing.alarms[0].endswith(
        "models.yaml is wrong, and nothing of it is followed: chat: there is no field priorty; is priority meant?"
    )
    assert names(listing) == ["chat"]
    other = {**FILE, "models": {**FILE["models"], "small": {"engine": "reference"}}}  # type: ignore[dict-item]
    pool.reload(other, lambda listing: names(listing) == ["chat", "small"] and not listing.alarms)
    assert "small is new" in pool.said()
    pool.reload(FILE, lambda listing: names(listing) == ["chat"])
    assert "small was taken out" in pool.said()


def test_what_a_door_is_told_was_done_it_has_been_shown(house: House) -> None:
    """A pool that had hung answered a wake, and its door showed for a moment that nothing was to wake."""
    PoolProgram(house).ready()
    heard: list[Any] = []
    client = PoolClient(house.run_dir, heard.append)
    client.start()
    try:
        until(lambda: any(isinstance(news, Listing) for news in heard), "it shows its models")
        client.command(m.Command(number=0, verb="pin", name="chat"), heard.append)
        until(lambda: any(isinstance(news, m.CommandDone) for news in heard), "the command is done")
    finally:
        client.close()
    before = heard[: next(at for at, news in enumerate(heard) if isinstance(news, m.CommandDone))]
    assert [news for news in before if isinstance(news, Listing)][-1].models[0].pinned


def test_a_pool_that_begins_beside_a_file_that_is_wrong_follows_what_the_last_one_did(house: House) -> None:
    """Else a file that is half edited takes all swaps away once a pool ends, however it does."""
    pool = PoolProgram(house).ready()
    pool.kill()
    again = PoolProgram(house, "models: {chat: {priorty: 1}}", "again").ready()
    listing = again.listing()
    assert listing is not None and names(listing) == ["chat"]
    assert [alarm.endswith("chat: there is no field priorty; is priority meant?") for alarm in listing.alarms] == [True]
    again.reload(FILE, lambda listing: not listing.alarms)


def test_a_device_that_is_none_of_the_hosts_is_refused_when_the_file_is_read_again_though_it_names_no_devices(
    house: House,
) -> None:
    """As models check and the start refuse it: there the host's devices are known."""
    of_no_device = {"models": {"chat": {"engine": "reference", "memory": "1GiB", "devices": ["host:9"]}}}
    pool = PoolProgram(house, {"models": FILE["models"]}, more=("--devices", "host:0")).ready()
    pool.reload(of_no_device, lambda listing: listing.alarms)
    listing = pool.listing()
    assert listing is not None and "chat: devices: host:9 is none of this host's" in listing.alarms[0]


def test_a_file_that_names_all_gpus_and_one_of_them_for_a_model_is_followed(house: House) -> None:
    """`cuda` is no device's name: which there are the ledger says."""
    of_one = {"devices": ["cuda"], "models": {"chat": {"engine": "reference", "devices": ["GPU-1"]}}}
    listing = PoolProgram(house, of_one).ready().listing()
    assert listing is not None and listing.models[0].devices == ["GPU-1"] and not listing.alarms


def test_a_door_hears_what_models_there_are_and_what_has_changed(house: House) -> None:
    pool, heard = PoolProgram(house).ready(), list[Any]()
    client = PoolClient(house.run_dir, heard.append)
    client.start()
    try:
        until(lambda: any(isinstance(one, m.Models) for one in heard), "models")
        until(lambda: any(isinstance(one, m.Outlook) and "chat" in one.models for one in heard), "an outlook")
        client.demand({"chat": ModelDemand(waiting=2)})
        until(lambda: any(isinstance(one, Listing) and one.models[0].waiting == 2 for one in heard), "its own demand")
        done = list[m.CommandDone]()
        client.command(m.Command(number=0, verb="flags", flags=Flags(allow_cloud_fallback=False)), done.append)
        until(lambda: done, "an answer")
        flags = [one.flags for one in heard if isinstance(one, m.Models)]
        assert done[0].ok and flags[-1] == Flags(allow_cloud_fallback=False)
        pool.kill()
        until(lambda: heard[-1] is None, "the door is told that the pool has gone")
        heard.clear()
        again = PoolProgram(house, name="again").ready()
        until(lambda: any(isinstance(one, Listing) and one.models[0].waiting == 2 for one in heard), "it is back")
        listing = again.listing()
        assert listing is not None and not listing.flags.allow_cloud_fallback, "what was set outlives it"
    finally:
        client.close()


def test_what_a_person_is_told_is_done_says_so_where_the_next_pool_will_not_know_it(house: House) -> None:
    pool = PoolProgram(house, {**FILE, "api_launch": True}).ready()
    small, most = Entry(name="small", engine="reference"), resource.prlimit(pool.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pool.pid, resource.RLIMIT_FSIZE, (0, most))
    lacks = "the next pool won't know what was changed: pool.json can't be written: File too large"
    assert pool.do("launch", entry=small) == (200, f"small is launched, but {lacks}")
    until(lambda: lacks in (listing.alarms if (listing := pool.listing()) else ()), "an alarm")
    resource.prlimit(pool.pid, resource.RLIMIT_FSIZE, (most, most))
    assert pool.do("remove", "small") == (200, "small is removed")
    until(lambda: (listing := pool.listing()) and not listing.alarms, "no alarm")
    large = Entry(name="large", engine="reference", defaults={"x": "a" * 850_000})
    assert pool.do("launch", entry=large) == (200, "large is launched"), "which a socket takes in several parts"


def test_what_was_launched_and_is_wrong_beside_the_file_that_is_read_again_is_an_alarm(house: House) -> None:
    """The file is followed all the same, and what it has by now is its own for good."""
    file = {**FILE, "api_launch": True}
    pool = PoolProgram(house, file).ready()
    for name in ("small", "other"):
        assert pool.do("launch", entry=Entry(name=name, engine="reference"))[0] == 200
    chat: dict[str, Any] = {"engine": "reference", "aliases": ["small"]}
    pool.reload({**file, "models": {"chat": chat}}, lambda listing: listing.alarms)
    listing = pool.listing()
    assert listing is not None and listing.models[-1].name == "other" and len(names(listing)) == 3
    assert "what was launched by command is wrong beside" in listing.alarms[0]
    assert "small is a name of small and of chat: a request for it could mean either" in listing.alarms[0]
    assert pool.do("remove", "small")[0] == 200
    until(lambda: (listing := pool.listing()) and not listing.alarms, "no alarm")
    pool.reload({**file, "models": {"chat": chat, "other": {"engine": "reference"}}}, names)
    until(lambda: "launched by command before" in pool.said(), "the log says so")
    pool.reload({**file, "models": {"chat": chat}}, lambda listing: names(listing) == ["chat"])


def test_a_model_is_launched_by_command_only_where_the_file_allows_it_and_outlives_the_pool(house: House) -> None:
    pool = PoolProgram(house).ready()
    small = Entry(name="small", engine="reference")
    assert pool.do("launch", entry=small)[0] == 403
    pool.reload({**FILE, "api_launch": True, "swap_share": 0.2}, lambda listing: "swap_share changed" in pool.said())
    assert pool.do("launch")[0] == 400 and pool.do("launch", "chat", entry=small)[0] == 409
    assert pool.do("launch", entry=Entry(name="bad", engine="nonsense"))[0] == 400
    for _ in range(20):
        assert pool.do("launch", entry=small) == (200, "small is launched")
        assert b'"small"' in (house.run_dir / "pool.json").read_bytes(), "what was answered is on disk"
        assert pool.do("remove", "small")[0] == 200
        assert b'"small":' not in (house.run_dir / "pool.json").read_bytes()
    assert pool.do("launch", entry=small)[0] == 200
    pool.kill()
    pool = PoolProgram(house, {**FILE, "api_launch": True}, "again").ready()
    assert names(pool.listing() or Listing()) == ["small", "chat"]
    assert pool.do("remove", "chat")[0] == 409 and pool.do("remove", "smal")[0] == 404
    assert pool.do("remove", "small")[0] == 200
    assert names(pool.listing() or Listing()) == ["chat"]


BAD: list[tuple[list[Any], str]] = [
    ([m.AskModels()], "the first message has to be"),
    ([m.Observe(protocol=1), m.Demand()], "only a door has a demand"),
    ([m.Observe(protocol=9)], "has to be upgraded"),
    ([b"\x00\x00\x00\x05hello"], "no message of this protocol"),
    ([b"\x7f\xff\xff\xff"], "at most"),
]


def test_a_caller_that_makes_a_mistake_is_told_which_and_no_other_is_disturbed(house: House) -> None:
    pool = PoolProgram(house).ready()
    with Observer(house.run_dir) as other:
        for messages, said in BAD:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(DEADLINE_S)
            sock.connect(str(house.run_dir / "pool.sock"))
            channel = Channel(sock, m.from_pool, max_frame_bytes=m.MAX_FRAME_BYTES)
            for message in messages:
                sock.send(message) if isinstance(message, bytes) else channel.send(message)
            heard = list[Any]()
            while not channel.eof:
                heard.extend(channel.receive())
            assert said in str(heard[-1].message), heard
            assert other.listing().models[0].name == "chat" and pool.listing() is not None
            channel.close()
    second = PoolProgram(house, name="second")
    assert second.code() == 1 and "Traceback" not in second.said(), "nor by a second pool in its directory"


def test_a_file_that_is_wrong_at_the_start_is_a_sentence(house: House) -> None:
    program = PoolProgram(house, "models: {a: {}}\na: 1", "wrong")
    assert program.code() == 1 and "there is no field a" in program.said() and "Traceback" not in program.said()
