"""Parked weights, one promise a test: to park a layout is to replace it by itself in host memory (rule 12 of
`gms/rules/machine.py`), and what holds of every replacement holds of this one.
"""

import pytest

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import record
from gms.rules.sessions import Doing
from gms.rules.weights import Phase
from tests.gms.machine_shell import WINDOW_S, House, document, restarted
from tests.gms.test_machine_rules import hand_back, opened, refused

SUMS = ["a", "b"]


def house_with_weights(*, ledger: int | None = None, host_memory: int = 100, tells: bool = True) -> House:
    """A layout of two slabs, whose writer, connection 1, is asleep, and an engine that is asleep, connection 2."""
    house = House(ledger=ledger, host_memory=host_memory, tells=tells)
    house.writer(1, 30, 20)
    generation = commits(house, 1).generation
    house.says(1, m.Checksums(generation=generation, sums=SUMS))
    house.says(1, m.Withdraw(keeps=generation))
    house.hello(2, "engine-b", parks=True)
    reads(house, 2)
    return house


def reads(house: House, conn: int) -> m.Opened:
    house.says(conn, m.Open(mode="ro"))
    assert house.doing(conn) is Doing.READING
    return opened(house.heard(conn, m.Opened)[-1])


def falls_asleep(house: House, conn: int = 2) -> None:
    house.says(conn, m.Withdraw(keeps=house.weights.there[0]))
    assert house.doing(conn) is Doing.ASLEEP


def begins_to_park(house: House, timeout_s: float = 0.0) -> m.ServerMessage | None:
    """The writer parks what it has kept."""
    return house.says(1, m.Open(mode="rw", timeout_s=timeout_s, parks=house.weights.there[0]))


def parks(house: House) -> m.Committed:
    assert opened(begins_to_park(house)).mode == "rw"
    assert isinstance(house.says(1, m.Create(size=50)), m.Created)
    return commits(house, 1)


def commits(house: House, conn: int) -> m.Committed:
    before = len(house.heard(conn, m.Committed))
    house.says(conn, m.Commit(layout=document(30, 20)))
    (done,) = house.heard(conn, m.Committed)[before:]
    assert isinstance(done, m.Committed)
    return done


def parked_house(**settings: int) -> House:
    house = house_with_weights(**settings)  # type: ignore[arg-type]
    falls_asleep(house)
    parks(house)
    return house


def brings_back(house: House, conn: int = 2) -> m.Committed:
    parked = house.weights.there[0]
    assert opened(house.says(conn, m.Open(mode="rw", unparks=parked, bytes=50))).mode == "rw"
    for size in (30, 20):
        assert isinstance(house.says(conn, m.Create(size=size)), m.Created)
    return commits(house, conn)


def gone(house: House, conn: int = 1) -> list[m.ServerMessage]:
    return house.heard(conn, m.RegionDropped)


def test_parked_weights_take_nothing_of_the_device_and_are_what_they_were() -> None:
    house = house_with_weights(ledger=1000)
    falls_asleep(house)
    before, hash = house.weights.there
    assert house.leased == {"weights": 50}
    done = parks(house)
    assert (house.state, done.hash, house.status.bytes, house.status.parked) == ("PARKED", hash, 0, {"weights": 50})
    assert house.free == 1000 and house.leased == {"weights": 0}
    said = house.record
    assert said.parked and (said.generation, said.contents, said.hash) == (done.generation, before, hash)
    layout = house.weights.committed
    assert layout is not None and list(layout.sums) == SUMS
    brought_back = brings_back(house)
    assert (house.state, house.status.bytes, house.status.parked, house.leased) == ("RO", 50, {}, {"weights": 50})
    said, layout = house.record, house.weights.committed
    assert not said.parked and (said.generation, said.contents, said.hash) == (brought_back.generation, before, hash)
    assert layout is not None and list(layout.sums) == SUMS and before < done.generation < brought_back.generation
    house.hello(3, parks=True)
    told = reads(house, 3)
    assert (told.sizes, told.sums, told.contents) == ([30, 20], SUMS, before)


def test_what_a_process_reads_is_not_parked_and_the_reader_is_named() -> None:
    house = house_with_weights()
    why = refused(begins_to_park(house))
    assert why.reason == "time_out" and "engine-b (pid 2) reads" in why.why
    assert house.doing(2) is Doing.READING and house.state == "RO"
    assert begins_to_park(house, 5.0) is None, "it waits for that"
    falls_asleep(house)
    assert opened(house.last(1)).mode == "rw"


def test_what_is_written_is_not_parked() -> None:
    house = house_with_weights()
    falls_asleep(house)
    assert opened(house.says(2, m.Open(mode="rw", replace=True))).mode == "rw"
    assert "engine-b (pid 2) is writing" in refused(begins_to_park(house)).why


def test_the_writer_hears_when_the_devices_slabs_are_gone_by_the_devices_word_and_that_of_each_process() -> None:
    house = house_with_weights()
    falls_asleep(house)
    before = house.weights.there[0]
    house.held = {slab.identity for slab in house.record.slabs}
    parks(house)
    assert before in [message.generation for message in house.heard(2, m.Drop) if isinstance(message, m.Drop)]
    for conn in (1, 2):
        house.says(conn, m.Dropped(generation=before))
    house.later(0.5)
    assert not gone(house), "a process has that memory, says the device"
    house.held = set()
    house.later(0.5)
    assert gone(house) == [m.RegionDropped(key="weights", bytes=50, seen=True)]


def test_a_process_that_keeps_the_devices_slabs_is_named_to_the_writer_in_time() -> None:
    house = house_with_weights()
    falls_asleep(house)
    before = house.weights.there[0]
    parks(house)
    house.says(1, m.Dropped(generation=before))
    house.later(6)
    (answer,) = gone(house)
    assert isinstance(answer, m.RegionDropped) and not answer.seen
    assert answer.still and "engine-b (pid 2)" in answer.still[0]


def test_where_the_device_cant_tell_each_process_has_to() -> None:
    house = house_with_weights(tells=False)
    falls_asleep(house)
    before = house.weights.there[0]
    parks(house)
    for conn in (1, 2):
        assert not gone(house)
        house.says(conn, m.Dropped(generation=before))
    assert gone(house) == [m.RegionDropped(key="weights", bytes=50, seen=False)]


def test_a_writer_that_has_gone_is_not_waited_for() -> None:
    house = house_with_weights()
    falls_asleep(house)
    parks(house)
    house.leaves(1)
    house.later(10)
    assert house.state == "PARKED" and not house.region()._dropping


def test_sleepers_keep_the_parked_memory_in_place_of_the_slabs() -> None:
    house = house_with_weights()
    falls_asleep(house)
    before = house.weights.there[0]
    done = parks(house)
    (parked, identities), drop = house.sent[2][-2:]
    assert drop[0] == m.Drop(generation=before), "only then, so that it has one of them all the time"
    assert parked == m.Parked(
        generation=done.generation,
        hash=done.hash,
        size=50,
        layout=document(30, 20),
        sums=SUMS,
        contents=before,
    )
    assert identities == (house.record.slabs[0].identity,)
    house.says(2, m.Dropped(generation=before))
    assert house.doing(2) is Doing.ASLEEP and house.machine.device.holders.layouts(2) == [done.generation]
    brings_back(house, 1)
    assert house.last(2) == m.Drop(generation=done.generation)


def test_a_program_that_knows_nothing_of_parking_is_only_asked_to_drop_and_waits_to_read() -> None:
    house = house_with_weights()
    falls_asleep(house)
    house.hello(3, "old")
    reads(house, 3)
    falls_asleep(house, 3)
    parks(house)
    assert not house.heard(3, m.Parked) and house.heard(3, m.Drop)
    assert house.says(3, m.Open(mode="ro", timeout_s=2)) is None
    assert "gmsctl unpark weights brings it back" in house.status.waiting_for[0]
    brings_back(house)
    assert house.doing(3) is Doing.READING


@pytest.mark.parametrize("mode", ["ro", "rw_or_ro"])
def test_a_reader_of_parked_weights_is_refused_at_once_and_can_bring_them_back(mode: m.Mode) -> None:
    house = parked_house()
    house.hello(3, parks=True)
    assert refused(house.says(3, m.Open(mode=mode))).reason == "parked"
    (parked,) = house.heard(3, m.Parked)
    assert isinstance(parked, m.Parked) and parked.generation == house.weights.there[0]
    assert refused(house.says(3, m.Open(mode=mode, have=parked.generation))).reason == "parked"
    assert len(house.heard(3, m.Parked)) == 1, "it has it"
    brings_back(house, 3)
    assert house.doing(3) is Doing.READING


def test_who_wants_to_read_while_it_is_parked_or_brought_back_waits_for_that() -> None:
    house = house_with_weights()
    falls_asleep(house)
    opened(begins_to_park(house))
    assert house.says(2, m.Open(mode="ro")) is None and house.doing(2) is Doing.WAITING
    house.says(1, m.Create(size=50))
    house.says(1, m.Commit(layout=document(30, 20)))
    assert refused(house.last(2)).reason == "parked"
    house.hello(3, parks=True)
    opened(house.says(1, m.Open(mode="rw", unparks=house.weights.there[0])))
    assert house.says(3, m.Open(mode="ro")) is None
    for size in (30, 20):
        house.says(1, m.Create(size=size))
    commits(house, 1)
    assert house.doing(3) is Doing.READING


def test_a_wake_that_is_given_up_just_when_the_layout_is_parked_leaves_it_with_its_process() -> None:
    """It says that it keeps the slabs, of which it hears next that they are gone."""
    house = house_with_weights()
    falls_asleep(house)
    before = house.weights.there[0]
    opened(begins_to_park(house))
    house.says(1, m.Create(size=50))
    assert house.says(2, m.Open(mode="ro", have=before)) is None
    parked = commits(house, 1).generation
    told = [type(message) for message, _ in house.sent[2] if not isinstance(message, m.Changed)]
    assert told[-3:] == [m.Parked, m.Drop, m.Refused], "so it has one of them all the time"
    house.says(2, m.Withdraw(keeps=before))
    house.says(2, m.Dropped(generation=before))
    assert house.doing(2) is Doing.ASLEEP and house.machine.device.holders.layouts(2) == [parked]
    brings_back(house, 1)
    assert house.last(2) == m.Drop(generation=parked)


def test_of_two_that_bring_back_or_park_the_second_finds_that_there_is_nothing_to_do() -> None:
    house = parked_house()
    house.hello(3, parks=True)
    parked = house.weights.there[0]
    opened(house.says(2, m.Open(mode="rw", unparks=parked)))
    assert house.says(3, m.Open(mode="rw", unparks=parked)) is None
    for size in (30, 20):
        house.says(2, m.Create(size=size))
    commits(house, 2)
    assert refused(house.last(3)).reason == "parked" and house.doing(2) is Doing.READING
    house = parked_house()
    why = refused(begins_to_park(house))
    assert why.reason == "parked" and "is not in the device any more" in why.why


@pytest.mark.parametrize("written", [True, False])
def test_weights_that_are_others_by_now_or_gone_are_not_said_to_be_parked(written: bool) -> None:
    house = house_with_weights()
    falls_asleep(house)
    before = house.weights.there[0]
    opened(house.says(2, m.Open(mode="rw")))
    if written:
        house.says(2, m.Create(size=30))
        house.says(2, m.Commit(layout=document(30)))
    why = refused(house.says(1, m.Open(mode="rw", timeout_s=5, parks=before)))
    assert why.reason == "stale" and "is not in the device any more" in why.why


@pytest.mark.parametrize("slabs", [0, 1, 2])
def test_a_writer_that_ends_in_the_middle_leaves_what_was_there(slabs: int) -> None:
    house = house_with_weights()
    falls_asleep(house)
    stood = house.weights.committed
    opened(begins_to_park(house))
    if slabs:
        house.says(1, m.Create(size=50))
    house.leaves(1)
    assert (house.state, house.weights.committed, house.status.parked) == ("COMMITTED", stood, {})
    house = parked_house()
    stood = house.weights.committed
    opened(house.says(2, m.Open(mode="rw", unparks=house.weights.there[0])))
    for size in (30, 20)[:slabs]:
        house.says(2, m.Create(size=size))
    house.leaves(2)
    assert (house.state, house.weights.committed, house.free) == ("PARKED", stood, 1000)


def test_a_disk_that_refuses_leaves_it_where_it_was() -> None:
    house = house_with_weights()
    falls_asleep(house)
    opened(begins_to_park(house))
    house.says(1, m.Create(size=50))
    house.disk_fails = True
    assert refused(house.says(1, m.Commit(layout=document(30, 20)))).reason == "disk"
    assert not house.heard(2, m.Drop) and not house.record.parked
    house.disk_fails = False
    house.says(1, m.Commit(layout=document(30, 20)))
    assert house.state == "PARKED"


def test_host_memory_has_a_bound_for_all_models_together() -> None:
    house = house_with_weights(host_memory=99)
    falls_asleep(house)
    house.loaded(50, by=5, key="other")
    house.hello(6, key="other", parks=True)
    opened(house.says(6, m.Open(mode="rw", parks=house.region("other").weights.there[0])))
    assert isinstance(house.says(6, m.Create(size=50)), m.Created)
    opened(begins_to_park(house))
    why = refused(house.says(1, m.Create(size=50)))
    assert why.reason == "no_memory" and "50 bytes of host memory are needed, and 49 are left of the 99" in why.why
    house.says(1, m.Withdraw())
    assert house.weights.phase.value == "COMMITTED", "it stays in the device"
    house.leaves(6)
    assert house.status.parked == {}, "what was being parked is given back"


def test_a_parked_layout_is_one_piece_of_its_size_and_the_same_layout() -> None:
    house = house_with_weights()
    falls_asleep(house)
    opened(begins_to_park(house))
    assert refused(house.says(1, m.Create(size=49))).reason == "bad_layout"
    house.says(1, m.Create(size=50))
    assert refused(house.says(1, m.Create(size=50))).reason == "bad_layout"
    assert refused(house.says(1, m.Commit(layout=document(20, 30)))).reason == "bad_layout"
    assert commits(house, 1) and house.state == "PARKED"
    opened(house.says(2, m.Open(mode="rw", unparks=house.weights.there[0])))
    for size in (20, 30):
        house.says(2, m.Create(size=size))
    assert refused(house.says(2, m.Commit(layout=document(20, 30)))).reason == "bad_layout"
    assert refused(house.says(2, m.Commit(layout=document(30, 20)))).reason == "bad_layout"


def test_room_is_asked_for_by_what_is_in_the_device() -> None:
    house = parked_house()
    house.foreign = 960
    why = refused(house.says(2, m.Open(mode="rw", unparks=house.weights.there[0], bytes=50)))
    assert why.reason == "no_memory" and house.state == "PARKED"
    house.foreign = 950
    assert brings_back(house)


def test_a_new_server_waits_for_what_is_parked_and_a_sleeper_hands_it_back() -> None:
    house = restarted(parked_house(), held=False)
    house.later(1)
    assert house.state == "RECOVERING", "whether a process has host memory can't be told"
    for conn in (2, 3):
        house.hello(conn, parks=True)
    house.leaves(3)
    assert house.state == "RECOVERING"
    back = hand_back(house, layout=document(30, 20), sums=SUMS, table=True)
    slabs = tuple((slab.identity, 0) for slab in house.record.slabs)
    said = house.record
    assert isinstance(house.says(2, back, slabs), m.HandedBack)
    assert (house.state, house.record, house.doing(2)) == ("PARKED", said, Doing.ASLEEP)
    assert house.status.parked == {"weights": 50}
    house.hello(4)
    house.says(4, hand_back(house, layout=b"", reading=True))
    assert refused(house.heard(4, m.Refused)[0]).reason == "stale"
    house.hello(5)
    assert house.says(5, m.Open(mode="rw")) is None, "another writer waits until the window is over"
    brings_back(house)
    layout = house.weights.committed
    assert layout is not None and list(layout.sums) == SUMS and layout.contents == said.contents


def test_parked_weights_that_no_process_has_kept_are_lost_with_the_server_and_an_alarm_says_so() -> None:
    house = restarted(parked_house())
    house.later(WINDOW_S + 1)
    assert house.state == "RECOVERING" and "was not handed back" in house.status.alarms[0]
    house.hello(3, parks=True)
    assert opened(house.says(3, m.Open(mode="rw_or_ro"))).mode == "rw", "it loads them anew"


def test_parked_weights_are_dropped_as_others_are() -> None:
    house = parked_house()
    parked = house.weights.there[0]
    house.says(9, m.Observe(protocol=m.PROTOCOL))
    house.says(9, m.DropRegion(key="weights"))
    assert house.last(2) == m.Drop(generation=parked) and house.state == "EMPTY" and not gone(house, 9)
    for conn in (1, 2):
        house.says(conn, m.Dropped(generation=parked))
    assert gone(house, 9) == [m.RegionDropped(key="weights", bytes=50, seen=False)]


def test_a_writer_that_loads_other_weights_clears_them() -> None:
    house = parked_house()
    parked = house.weights.there[0]
    opened(house.says(1, m.Open(mode="rw", bytes=1000)))
    assert house.last(2) == m.Drop(generation=parked) and house.status.parked == {}


def test_contents_that_differ_from_what_was_summed_up_are_an_alarm() -> None:
    house = house_with_weights()
    generation = house.weights.there[0]
    house.says(2, m.Checksums(generation=generation, sums=SUMS))
    assert not house.status.alarms
    house.says(2, m.Checksums(generation=generation, sums=["a", "c"]))
    assert "engine-b (pid 2)" in house.status.alarms[0] and "gmsctl verify" in house.status.alarms[0]
    assert house.weights.committed is not None and list(house.weights.committed.sums) == SUMS
    house.leaves(2)
    opened(house.says(1, m.Open(mode="rw")))
    for size in (30, 20):
        house.says(1, m.Create(size=size))
    commits(house, 1)
    assert not house.status.alarms, "these are others"


def test_a_process_that_has_none_of_it_is_not_given_the_parked_memory() -> None:
    house = house_with_weights()
    falls_asleep(house)
    house.hello(3, parks=True)
    parks(house)
    assert not house.heard(3, m.Parked) and house.doing(3) is Doing.WATCHING


def test_a_wish_to_park_and_to_bring_back_costs_its_sender_the_connection_and_no_other_anything() -> None:
    house = parked_house()
    parked = house.weights.there[0]
    problem = house.says(2, m.Open(mode="rw", parks=parked, unparks=parked))
    assert isinstance(problem, m.Problem) and "not both" in problem.why
    assert not house.status.alarms and house.state == "PARKED"
    brings_back(house, 1)


def test_what_is_parked_leaves_the_whole_device_to_what_replaces_it() -> None:
    house = parked_house()
    opened(house.says(1, m.Open(mode="rw", replace=True, bytes=1000)))
    assert isinstance(house.says(1, m.Create(size=1000)), m.Created)
    assert house.status.parked == {"weights": 50}, "until that is committed"


def test_a_mistake_about_where_a_layout_lies_is_seen() -> None:
    house = parked_house()
    region, newest = house.region(), house.machine.device.generations.newest
    parked = m.Parked(generation=newest, hash=house.record.hash, size=50, layout=b"")
    assert not region.broken(newest) and not region.breaks(e.Send(2, parked), house.record, newest)
    assert "is not on disk" in region.breaks(e.Send(2, parked), record.Region(m.WEIGHTS, "shared", 1), newest)
    region.weights.phase = Phase.COMMITTED
    assert "lies in host memory" in region.broken(newest)


def test_a_device_that_is_removed_takes_its_parked_weights_out_of_the_file() -> None:
    """All that used it has ended (`gms/cleanup.py`), and host memory has no other life than its descriptors."""
    found = parked_house().on_disk
    assert found.regions[0].parked and record.without_memory(found, "host:1:2:").regions == ()
