"""The reference pair's faults one by one: each server's crash in each state of an engine, a wake that hangs, weights
that are wrong or were replaced, roles that change. After each exactly one serves, the other is
ready, and the same prompt has the same answer; or the exact failure that is wanted.
"""

import signal
import threading
from functools import partial

import pytest

from gms.client import GmsClient
from gms.memory.host import HostMemory
from gms.rules.messages import Status as Weights
from reference_engine import options
from reference_engine.store import _write
from tests.engine.kinds import REFERENCE, TOY, there
from tests.engine.shims import House, Program, Shim
from tests.engine.test_scenarios import settled
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(REFERENCE not in there(), reason="there is no reference engine")]
SLOW = ("--init-delay-s", "1", "--wake-delay-s", "1", "--wake-timeout-s", "3")


def crash(house: House, server: str) -> None:
    """And another in its place, with the holder back if there was one that served: one that wakes may serve by then."""
    url = house.endpoint()
    house.restart(server, REFERENCE)
    until(lambda: house.endpoint() == url or not url, "the holder is back")


@pytest.mark.parametrize("server", ["lock", "gms"])
def test_a_servers_crash_in_each_state_of_an_engine_and_the_pair_is_whole_again(house: House, server: str) -> None:
    a = house.one(REFERENCE)
    token = a.state()["token"]
    b = house.shim(REFERENCE, "b", arguments=SLOW)
    until(lambda: (s := house.status()) is not None and s.permits["init"].holder == "b", "b initialises")
    crash(house, server)
    b.until("Standby", ready=True)
    crash(house, server)
    settled(house, REFERENCE, a, b)
    assert (a.state()["token"], a.state()["deaths"], b.state()["deaths"]) == (token, 0, 0)
    a.main().kill()
    b.until("Waking")
    crash(house, server)
    settled(house, REFERENCE, b, a)
    assert (a.state()["deaths"], b.state()["deaths"]) == (1, 0)


def test_a_primary_that_is_there_before_gms_waits_for_it_and_no_start_fails(house: House) -> None:
    """Three starts that end with the same words would be the last, and GMS may be slower than three starts."""
    house.start_lock(*REFERENCE.lock)
    a = house.shim(REFERENCE, "a")
    until(lambda: "waits for GMS" in a.said() or a.state()["deaths"], "it says what it waits for")
    house.start_gms(REFERENCE)
    house.until_announced(a)
    assert a.state()["deaths"] == 0


def test_a_server_that_stays_away_for_a_while_costs_a_serving_pair_nothing(house: House) -> None:
    a, b = house.pair(REFERENCE)
    url = house.endpoint()
    for program in (house.lock, house.gms):
        assert program is not None
        program.kill()
        for shim in (a, b):
            until(partial(longer, shim, shim.state()["for_s"] + 2), "two beats have passed")
        assert a.get("/live")[0] == b.get("/live")[0] == a.get("/ready")[0] == 200
        if program is house.lock:
            house.start_lock(*REFERENCE.lock)
            until(lambda: house.endpoint() == url, "the holder is back")
        else:
            house.answers_as_ever(REFERENCE)
            house.start_gms(REFERENCE)
        settled(house, REFERENCE, a, b)
    assert a.state()["deaths"] == b.state()["deaths"] == 0


def test_without_gms_a_wake_ends_within_its_time_out_and_with_gms_back_the_pair_recovers_by_itself(
    house: House,
) -> None:
    """No client can hand the layout back then: it is written anew."""
    a, b = house.pair(REFERENCE, arguments=("--wake-timeout-s", "1"))
    assert house.gms is not None
    house.gms.kill()
    a.main().kill()
    until(lambda: b.state()["deaths"] >= 1, "the wake is given up")
    assert "failed in waking: NotInTime" in b.said() and not house.endpoint()
    assert "Traceback" not in b.said()
    house.start_gms(REFERENCE)
    active, standby = house.in_turn(a, b)
    settled(house, REFERENCE, active, standby)


def test_a_shadow_that_waits_for_weights_is_told_when_they_are_handed_back(house: House) -> None:
    """GMS is new and has none yet, because the one who has them is slow to bring them back."""
    a = house.one(REFERENCE)
    a.main().signal(signal.SIGSTOP)
    a.workers()[0].signal(signal.SIGSTOP)
    house.restart("gms", REFERENCE)
    until(lambda: (s := house.weights()) is not None and s.state == "RECOVERING", "GMS waits for its layout")
    b = house.shim(REFERENCE, "b")
    until(lambda: "b" in comers(house.weights()), "b waits")
    a.main().signal(signal.SIGCONT)
    a.workers()[0].signal(signal.SIGCONT)
    settled(house, REFERENCE, a, b)
    assert (a.state()["deaths"], b.state()["deaths"]) == (0, 0)


def comers(weights: Weights | None) -> list[str]:
    return [client.engine_id for client in weights.clients if client.region == "weights"] if weights else []


def longer(shim: Shim, than_s: float) -> bool:
    return bool(shim.state()["for_s"] > than_s)


def test_a_worker_that_is_stopped_while_it_has_work_is_noticed_within_the_bound(house: House) -> None:
    a, b = house.pair(REFERENCE, "--stall-s", "3")
    a.workers()[0].signal(signal.SIGSTOP)
    asking = threading.Thread(target=broken_off, args=(house,))
    asking.start()
    b.until("Active", ready=True)
    asking.join()
    settled(house, REFERENCE, b, a)
    assert a.state()["deaths"] == 1


def broken_off(house: House) -> None:
    with pytest.raises((AssertionError, OSError, IndexError)):
        house.ask("/v1/completions", REFERENCE.prompt)


# -- weights -----------------------------------------------------------------------------------------------------------


def test_an_engine_that_finds_another_models_weights_ends_for_good_with_a_sentence_and_the_other_serves_on(
    house: House,
) -> None:
    a, b = house.pair(REFERENCE)
    b.signal(signal.SIGTERM)
    assert b.code() == 0
    before = set(house.processes())
    for name, role in (("c", "primary"), ("d", "shadow")):
        other = house.shim(REFERENCE, name, arguments=("--seed", "7"), role=role)
        assert other.code() == 65
        assert "host:0 has the weights of another model" in other.said() and "Traceback" not in other.said()
        assert "failover down" in other.said(), "the way to get the new one in"
        assert other.said().count(" info shim start ") == 1, "it is started once, and not again"
        until(lambda: set(house.processes()) == before, "nothing of it is left")
    settled(house, REFERENCE, a, house.shim(REFERENCE, "b"))
    assert a.state()["deaths"] == 0


def test_a_worker_that_finds_another_models_weights_on_its_device_ends_the_engine_for_good(house: House) -> None:
    """The main process finds the right ones on its own."""
    two = ("--devices", "host:0,host:1")
    house.start_lock(*REFERENCE.lock)
    house.add(Program(house, "gms", "gms", "--run-dir", str(house.run_dir), *two, "--capacity", "28MiB"))
    until((house.devices / "1").exists, "GMS has made the device")
    replaced(house, "host:1", ("--seed", "7"), first=True)
    a = house.shim(REFERENCE, "a", arguments=two)
    assert a.code() == 65
    assert "host:1 has the weights of another model" in a.said() and "Traceback" not in a.said()


def replaced(house: House, device: str, arguments: tuple[str, ...], *, first: bool = False) -> None:
    """By a client that is no engine."""
    shape = options.parse([*REFERENCE.arguments, *arguments], {}).shape
    memory = HostMemory(device.removeprefix("host:"), house.devices)
    with GmsClient(house.run_dir, device, "no-engine", memory=memory) as client:
        _write(client.write(30) if first else client.replace(8 << 20, 30), shape)


@pytest.fixture
def asleep(house: House) -> tuple[Shim, Shim]:
    """A reference engine that waits behind another kind of engine: no client reads the weights."""
    house.start_lock(*REFERENCE.lock)
    house.start_gms(REFERENCE)
    x = house.shim(TOY, "x")
    x.until("Active", ready=True)
    a = house.shim(REFERENCE, "a")
    a.until("Standby", ready=True)
    return x, a


def test_a_standby_whose_weights_were_replaced_by_another_models_is_not_ready_and_ends_for_good(
    house: House, asleep: tuple[Shim, Shim]
) -> None:
    x, a = asleep
    replaced(house, "host:0", ("--seed", "7"))
    assert a.code() == 65
    assert "unwell" in a.said() and "has the weights of another model" in a.said()
    assert x.state()["state"] == "Active" and x.state()["deaths"] == 0


def test_a_standby_whose_weights_were_written_anew_wakes_on_the_new_ones(
    house: House, asleep: tuple[Shim, Shim]
) -> None:
    x, a = asleep
    replaced(house, "host:0", ())
    x.signal(signal.SIGTERM)
    a.until("Active", ready=True)
    house.answers_as_ever(REFERENCE)
    b = house.shim(REFERENCE, "b")
    b.until("Standby", ready=True)
    a.main().kill()
    b.until("Active", ready=True)
    settled(house, REFERENCE, b, a)


def test_an_address_in_a_directory_that_isnt_there_yet_is_said_in_a_line_and_tried_again(house: House) -> None:
    house.start_lock(*REFERENCE.lock)
    house.start_gms(REFERENCE)
    address = f"unix:{house.directory}/later/x.sock"
    a = house.shim(REFERENCE, "a", "--listen", address)
    until(lambda: a.state()["starts"] >= 2, "it is tried again")  # the third failure alike would be the last
    assert f"CannotServe: the engine can't listen on {address}: " in a.said()
    assert "Traceback" not in a.said()
    (house.directory / "later").mkdir()
    a.until("Active", ready=True)
    assert house.endpoint() == address


# -- roles -------------------------------------------------------------------------------------------------------------


def test_both_may_be_primaries_or_shadows_and_change_between_two_starts(house: House) -> None:
    house.start_lock(*REFERENCE.lock)
    house.start_gms(REFERENCE)
    a, b = (house.shim(REFERENCE, engine_id, role="primary") for engine_id in ("a", "b"))
    active, standby = house.in_turn(a, b)
    settled(house, REFERENCE, active, standby)
    for _ in range(2):  # the one that serves goes, and comes back in the other role
        role = {"primary": "shadow", "shadow": "primary"}[active.state()["role"]]
        active.kill()
        standby.until("Active", ready=True)
        active, standby = standby, house.shim(REFERENCE, active.engine_id, role=role)
        standby.until("Standby", ready=True)
        assert standby.state()["role"] == role
        settled(house, REFERENCE, active, standby)
