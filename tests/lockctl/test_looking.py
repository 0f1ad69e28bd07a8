"""`lockctl watch`, `history` and `ping`, over the end and the return of a server."""

import json
import signal

import pytest

from tests.lockctl.programs import House


@pytest.mark.slow
def test_watch_has_a_line_for_each_change_and_says_when_the_server_goes_and_is_back(house: House) -> None:
    watch = house.lockctl("watch")
    assert "NO SERVER" in watch.out.next(), "it may be started before the server"
    server = house.serve()
    watch.out.with_words("FREE")
    house.holds("engine-a", "--serving", "http://a:1")
    line = watch.out.with_words("at http://a:1")
    assert "HELD" in line
    assert "engine-a (token " in line
    assert line.endswith("waiting: none")
    server.kill()
    assert "NO SERVER" in watch.out.next()
    house.serve()
    line = watch.out.with_words("HELD")
    assert "engine-a" in line
    said = len(watch.out.said)
    house.hold("engine-b")
    watch.out.with_words("waiting: engine-b")
    assert len(watch.out.said) == len(set(watch.out.said)), "a line for each change, and none without one"
    assert len(watch.out.said) > said
    watch.send(signal.SIGINT)
    assert watch.ends() == 130
    assert watch.err.rest() == ""


def test_watch_json_is_an_object_a_line(house: House) -> None:
    server = house.serve()
    house.until(lambda status: status.state == "FREE", "free")
    watch = house.lockctl("watch", "--json")
    first = json.loads(watch.out.next())
    assert first["state"] == "FREE"
    assert first["at"].endswith("Z")
    assert first["server_pid"] == server.pid
    server.kill()
    gone = json.loads(watch.out.next())
    assert (gone["state"], sorted(gone)) == ("NO_SERVER", ["at", "state"])
    server = house.serve()
    while (status := json.loads(watch.out.next()))["state"] != "FREE":
        pass
    assert status["server_pid"] == server.pid


def test_history_has_the_events_in_order(house: House) -> None:
    house.serve()
    holder, _ = house.holds("engine-a")
    holder.kill()
    house.until(lambda status: status.state == "FREE", "released")
    code, out, _ = house.ask("history", "--json")
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert all(sorted(event) == ["at", "detail", "event"] for event in events)
    names = [event["event"] for event in events]
    assert [name for name in names if name in ("granted", "fencing", "released")] == ["granted", "fencing", "released"]
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    code, out, _ = house.ask("history", "--last", "2")
    assert code == 0
    assert len(out.splitlines()) == 2
    assert "engine=engine-a" in out.splitlines()[-1]
    assert house.ask("history")[1].splitlines()[-2:] == out.splitlines()


def test_ping_measures_and_counts(house: House) -> None:
    house.serve()
    code, out, _ = house.ask("ping")
    assert code == 0 and out.count("answer from ") == 1, "once, as gmsctl ping"
    code, out, _ = house.ask("ping", "--count", "3", "--interval", "0.01")
    assert code == 0
    assert out.count("answer from ") == 3
    assert "3 sent, 3 answered, 0% lost" in out
    assert "min/avg/max/mdev = " in out
    code, out, _ = house.ask("ping", "--count", "2", "--interval", "0.01", "--json")
    assert code == 0
    assert [json.loads(line)["seq"] for line in out.splitlines()] == [1, 2]


def test_ctrl_c_ends_a_ping(house: House) -> None:
    house.serve()
    ping = house.lockctl("ping", "--count", "1000000", "--interval", "0.01")
    ping.out.with_words("seq=5")
    ping.send(signal.SIGINT)
    assert ping.ends() == 0
    assert "0% lost" in ping.out.rest()


def test_ping_is_2_when_no_server_answers_or_the_server_goes(house: House) -> None:
    assert house.ask("ping")[0] == 2
    server = house.serve()
    ping = house.lockctl("ping", "--count", "2", "--interval", "1000")
    ping.out.with_words("seq=1")
    server.kill()
    assert ping.ends() == 2, "seen at once, not with the next one"
    assert "went away" in ping.err.rest()
    assert "1 sent, 1 answered" in ping.out.rest()
