"""Many regions on one device, by the machine alone: models side by side, pools beside them, and one that is dropped."""

import re

import pytest

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import record
from gms.rules.region_key import MOST, of_pool
from gms.rules.sessions import Doing
from gms.rules.weights import Phase
from tests.gms.machine_shell import WINDOW_S, House, document, restarted

A, B = "model-a", "model-b"


def side_by_side() -> House:
    """Two models, each with a reader: 2 of the first and 4 of the second."""
    house = House()
    house.loaded(10, by=1, key=A)
    house.loaded(20, 30, by=3, key=B)
    for conn, key in ((2, A), (4, B)):
        house.hello(conn, key=key)
        house.says(conn, m.Open(mode="ro"))
    return house


def hand_back(house: House, key: str, *, reading: bool = False) -> tuple[m.HandBack, tuple[tuple[str, int], ...]]:
    said = house.on_disk.region(key)
    assert said is not None
    sizes = [slab.size for slab in said.slabs]
    back = m.HandBack(generation=said.generation, hash=said.hash, sizes=sizes, layout=document(*sizes), reading=reading)
    return back, tuple((slab.identity, slab.size) for slab in said.slabs)


def test_a_pools_key_has_its_models_name_and_never_more_letters_than_a_key_may_have() -> None:
    assert [of_pool("weights", "kv", 1), of_pool("weights", "kv-index")] == ["kv-1", "kv-index"]
    assert of_pool("llama-3", "kv", 0) == "llama-3.kv-0"
    assert of_pool("m" * 59, "kv", 0) == f"{'m' * 59}.kv-0", "64 letters"
    two = {of_pool("m" * 60 + end, "kv", 12) for end in "ab"}
    assert len(two) == 2 and all(re.fullmatch(r"m{49}-[0-9a-f]{8}\.kv-12", key) for key in two)
    assert all(len(key) == MOST for key in two)


# -- side by side ------------------------------------------------------------------------------------------------------


def test_models_lie_side_by_side_and_one_is_written_while_another_is_read() -> None:
    house = side_by_side()
    assert (house.doing(2), house.doing(4)) == (Doing.READING, Doing.READING)
    house.leaves(2)
    house.writer(5, 15, key=A)
    assert house.region(A).phase is Phase.RW and house.doing(4) is Doing.READING
    house.commits(5, 15)
    assert not house.heard(4, m.Changed) and not house.heard(4, m.Drop), "nothing that another model's readers hear"


def test_all_regions_come_back_to_a_new_server_each_by_its_own_processes() -> None:
    house = restarted(side_by_side())
    assert {house.region(key).phase for key in (A, B)} == {Phase.RECOVERING}
    house.hello(2, key=A)
    house.says(2, *hand_back(house, A, reading=True))
    assert (house.region(A).phase, house.region(B).phase) == (Phase.RO, Phase.RECOVERING)
    house.hello(4, key=A)
    answer = house.says(4, *hand_back(house, B))
    assert house.heard(4, m.Refused) and answer is not None, "what is another region's is stale"
    house.hello(6, key=B)
    assert isinstance(house.says(6, *hand_back(house, B)), m.HandedBack)
    assert house.status.state in ("COMMITTED", "RO")


def test_a_write_for_one_region_says_what_is_so_of_all() -> None:
    """Else a crash after it would lose the others."""
    house = side_by_side()
    before = house.on_disk.region(B)
    house.leaves(2)
    house.writer(5, key=A)
    assert house.on_disk.region(A) is None, "it is cleared"
    assert house.on_disk.region(B) == before


def test_a_pool_and_a_model_cant_have_the_same_key() -> None:
    house = side_by_side()
    answer = house.says(7, m.Hello(protocol=m.PROTOCOL, engine_id="x", pid=7, key=A, policy="exclusive"))
    assert isinstance(answer, m.Problem) and "take another key" in answer.why


def test_a_pool_beside_models_takes_nothing_from_them() -> None:
    house = side_by_side()
    house.hello(7, key="kv", policy="exclusive")
    claim = m.ClaimPool(digest="d", sizes=[40], table_size=4096, token=3, proven=True, timeout_s=1.0)
    assert isinstance(house.says(7, claim), m.PoolOwned)
    told = {region.key: (region.policy, region.bytes) for region in house.status.regions}
    assert told == {A: ("shared", 10), B: ("shared", 50), "kv": ("exclusive", 40)}
    assert house.status.bytes == 60, "of the weights"


def test_an_old_or_foreign_file_is_unreadable_and_says_of_which_format_it_is() -> None:
    with pytest.raises(record.UnreadableRecord, match="format 1"):
        record.decode(b'{"given": 7, "generation": 6, "hash": "", "format": 1, "check": "00"}')


def test_that_a_file_cant_be_read_is_not_forgotten_when_a_pool_is_written_and_the_server_dies_in_the_window() -> None:
    """Its successor reads a good file, which doesn't tell of the readers that are on their way. (The simulator's.)"""
    house = House(b"{")
    house.hello(1, key="kv-0", policy="exclusive")
    house.says(1, m.ClaimPool(digest="a", sizes=[5], table_size=4096, token=1, proven=True, timeout_s=1.0))
    new = House(house.file)
    new.hello(2)
    assert new.says(2, m.Open(mode="rw")) is None and "may still be on their way" in new.status.waiting_for[0]
    new.later(WINDOW_S)
    assert isinstance(new.last(2), m.Opened) and not new.on_disk.unreadable


# -- one is dropped ----------------------------------------------------------------------------------------------------


def drops(house: House, key: str, timeout_s: float = 1.0) -> m.ServerMessage | None:
    if 9999 not in house.machine.sessions.observers:
        house.says(9999, m.Observe(protocol=m.PROTOCOL))
    return house.says(9999, m.DropRegion(key=key, timeout_s=timeout_s))


def test_what_is_read_or_written_is_not_dropped_and_its_users_are_named() -> None:
    house = side_by_side()
    answer = drops(house, A)
    assert isinstance(answer, m.Refused) and "engine-2 (pid 2) reads" in answer.why
    house.leaves(2)
    house.writer(5, key=A)
    answer = drops(house, A)
    assert isinstance(answer, m.Refused) and "engine-5 (pid 5) is writing" in answer.why
    assert drops(house, "no-such") == m.Refused(
        why="there is no region no-such; there are: weights, model-a, model-b", reason="not_now"
    )


def test_a_model_is_dropped_first_on_disk_and_its_memory_goes_and_no_other_model_notices() -> None:
    house = side_by_side()
    house.leaves(2)
    before, slabs = house.on_disk.region(B), len(house.slabs)
    house.log.clear()
    assert drops(house, A) == m.RegionDropped(key=A, bytes=10, seen=True)
    kinds = [type(effect) for effect in house.log]
    assert kinds.index(e.Persist) < kinds.index(e.Forget), "first on disk, then the memory goes"
    assert house.on_disk.region(A) is None and house.on_disk.region(B) == before
    assert len(house.slabs) == slabs - 1 and house.doing(4) is Doing.READING
    assert restarted(house).machine.regions.keys() == {m.WEIGHTS, B}


def test_it_is_said_to_be_gone_only_when_every_process_has_let_go_of_it() -> None:
    house = side_by_side()
    generation = house.region(A).weights.there[0]
    house.says(2, m.Withdraw(keeps=generation))
    assert drops(house, A) is None, "it waits for the sleeper"
    assert house.heard(2, m.Drop) == [m.Drop(generation=generation)]
    house.says(2, m.Dropped(generation=generation))
    assert house.last(9999) == m.RegionDropped(key=A, bytes=10, seen=True)


def test_the_device_is_asked_until_no_process_has_it_whichever_client_says_what() -> None:
    house = side_by_side()
    house.leaves(2)
    said = house.on_disk.region(A)
    assert said is not None
    house.held = {slab.identity for slab in said.slabs}
    assert drops(house, A, timeout_s=2.0) is None, "a process that is not connected has it"
    house.later(1.0)
    assert not house.heard(9999, m.RegionDropped)
    house.held.clear()
    house.later(0.2)
    assert house.last(9999) == m.RegionDropped(key=A, bytes=10, seen=True)


def test_a_process_that_does_not_let_go_is_named_in_time() -> None:
    house = side_by_side()
    house.says(2, m.Withdraw(keeps=house.region(A).weights.there[0]))
    drops(house, A, timeout_s=1.0)
    house.later(1.1)
    answer = house.last(9999)
    assert isinstance(answer, m.RegionDropped) and "engine-2 (pid 2)" in answer.still[0] and not answer.seen


def test_a_drop_that_the_disk_refuses_drops_nothing() -> None:
    house = side_by_side()
    house.leaves(2)
    house.disk_fails = True
    answer = drops(house, A)
    assert isinstance(answer, m.Refused) and answer.reason == "disk"
    assert house.region(A).phase is Phase.COMMITTED and house.on_disk.region(A) is not None


def test_in_the_window_of_a_new_server_nothing_is_dropped_and_after_it_what_is_awaited_may_be() -> None:
    house = restarted(side_by_side())
    assert drops(house, A) is None, "it waits"
    house.later(1.0)
    (answer,) = house.heard(9999, m.Refused)
    assert isinstance(answer, m.Refused) and "may still be handed back" in answer.why
    assert drops(house, A, WINDOW_S + 5) is None
    house.later(WINDOW_S)
    house.held.clear()
    house.later(1.0)
    assert house.heard(9999, m.RegionDropped) == [m.RegionDropped(key=A, bytes=10, seen=True)]
    assert house.on_disk.region(A) is None


@pytest.mark.parametrize("writes", [False, True])
def test_all_that_wait_for_the_end_of_a_window_are_served_one_write_at_a_time(writes: bool) -> None:
    """Seed 832 of the simulator: a writer's turn and a drop had one moment, and the server was broken."""
    house = restarted(side_by_side())
    if writes:
        house.hello(3, key=A)
        house.says(3, m.Open(mode="rw"))
    for key in (A, B):
        drops(house, key, WINDOW_S + 5)
    house.later(WINDOW_S)
    house.held.clear()
    house.later(2.0)
    assert not house.machine.device.why_closed
    answered = house.heard(9999, m.RegionDropped) + house.heard(9999, m.Refused)
    assert len(answered) == 2 and house.on_disk.region(B) is None


def test_what_waits_to_be_dropped_stays_where_a_reader_comes_back_or_who_asked_leaves() -> None:
    house = restarted(side_by_side())
    assert drops(house, A, WINDOW_S) is None
    house.hello(2, key=A)
    house.says(2, *hand_back(house, A, reading=True))
    (answer,) = house.heard(9999, m.Refused)
    assert isinstance(answer, m.Refused) and "engine-2 (pid 2) reads" in answer.why
    assert drops(house, B, WINDOW_S) is None
    house.leaves(9999)
    house.later(WINDOW_S)
    assert house.on_disk.region(A) is not None and house.on_disk.region(B) is not None


def test_a_process_that_hands_back_nothing_where_there_is_nothing_has_nothing() -> None:
    """Seed 2346 of the simulator."""
    house = House()
    house.hello(1)
    house.says(1, m.HandBack(generation=0, hash="", sizes=[7], reading=True))
    (answer,) = house.heard(1, m.Refused)
    assert isinstance(answer, m.Refused) and answer.why == "memory 0 is gone; there is none now"
    assert house.doing(1) is not Doing.READING


def test_the_region_that_a_process_names_by_default_is_never_a_pool() -> None:
    house = House()
    answer = house.says(1, m.Hello(protocol=m.PROTOCOL, engine_id="x", pid=1, key=m.WEIGHTS, policy="exclusive"))
    assert isinstance(answer, m.Problem) and house.status.state == "EMPTY"


def test_a_file_that_tells_of_a_region_twice_is_unreadable() -> None:
    region = record.Region(A, "shared", 6, "a" * 64, (record.Slab(5, "x"),))
    with pytest.raises(record.UnreadableRecord, match="twice"):
        record.decode(record.encode(record.Record(7, (region, region), "boot")))


def test_a_region_without_anything_goes_with_its_last_client() -> None:
    house = House()
    house.hello(1, key="passing-by")
    house.leaves(1)
    assert list(house.machine.regions) == [m.WEIGHTS]


# -- the record can't be read ------------------------------------------------------------------------------------------


def test_an_alarm_about_a_lost_record_names_its_region_and_only_that_regions_own_calm_ends_it() -> None:
    house = House(b"\xff{")
    lost = "what {} had is lost to this server: the state file can't be read"
    assert len(house.status.alarms) == 1 and "the state file can't be read" in house.status.alarms[0]
    house.hello(1, key=A)
    house.hello(2, key=B)
    house.later(WINDOW_S)
    house.loaded(10, by=3, key=A)
    (alarm,) = house.status.alarms
    assert alarm.startswith(lost.format(B)), "the file is written anew, and A is loaded again"
    house.loaded(20, by=4, key=B)
    assert not house.status.alarms
    house.hello(5, key="new")
    assert not house.status.alarms, "what comes later never stood in that file"


@pytest.mark.parametrize("way", ["dropped by hand", "forgotten with its last connection"])
def test_an_alarm_about_a_lost_record_ends_with_a_region_that_no_process_wants(way: str) -> None:
    house = House(b"\xff{")
    house.hello(1, key=B)
    house.later(WINDOW_S)
    if way == "dropped by hand":
        house.says(9, m.Observe(protocol=m.PROTOCOL))
        house.says(9, m.DropRegion(key=B, timeout_s=0.0))
    else:
        house.leaves(1)
    assert not any(B in alarm for alarm in house.status.alarms)
