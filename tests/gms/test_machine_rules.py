"""Every rule of GMS's machine, one promise a test. The numbers are those of the rules in `gms/rules/machine.py`."""

import pytest

from gms import layout as lay
from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import record
from gms.rules.sessions import Doing
from gms.rules.weights import Phase, begin_above, numbers_begin
from tests.gms.machine_shell import CAPACITY, FLOOR, MEMORY_WAIT_S, WINDOW_S, House, document, memory_of, restarted


def refused(answer: m.ServerMessage | None) -> m.Refused:
    assert isinstance(answer, m.Refused), answer
    return answer


def opened(answer: m.ServerMessage | None) -> m.Opened:
    assert isinstance(answer, m.Opened), answer
    return answer


def hand_back(
    house: House, *, generation: int = 0, name: str = "", reading: bool = False, **other: object
) -> m.HandBack:
    kept = house.record
    fields: dict[str, object] = {
        "generation": generation or kept.generation,
        "hash": name or kept.hash,
        "sizes": [slab.size for slab in kept.slabs],
        "layout": document(*[slab.size for slab in kept.slabs]),
        "reading": reading,
        **other,
    }
    return m.HandBack(**fields)  # type: ignore[arg-type]


# -- 1 and 2: who comes in ---------------------------------------------------------------------------------------------


def test_who_can_read_or_write_writes_when_there_is_nothing_and_reads_when_there_is() -> None:
    house = House()
    house.hello(1)
    assert opened(house.says(1, m.Open(mode="rw_or_ro"))).mode == "rw"
    house.hello(2)
    assert house.says(2, m.Open(mode="rw_or_ro")) is None
    house.says(1, m.Create(size=5))
    house.commits(1, 5)
    assert opened(house.heard(2, m.Opened)[0]).mode == "ro"


def test_a_reader_gets_the_layout_and_all_slabs_in_batches() -> None:
    house = House(batch=2)
    house.loaded(10, 20, 30)
    house.hello(2)
    house.says(2, m.Open(mode="ro"))
    told = opened(house.heard(2, m.Opened)[0])
    assert (told.sizes, told.layout) == ([10, 20, 30], document(10, 20, 30))
    slabs = [(message.first, came) for message, came in house.sent[2] if isinstance(message, m.Slabs)]
    identities = [slab.identity for slab in house.record.slabs]
    assert slabs == [(0, tuple(identities[:2])), (2, tuple(identities[2:]))]


def test_a_writer_waits_for_readers_and_their_names_are_shown() -> None:
    house = House()
    house.loaded(5)
    house.hello(2, "engine-b")
    house.says(2, m.Open(mode="ro"))
    house.hello(3)
    assert house.says(3, m.Open(mode="rw")) is None
    assert "engine-b (pid 2) reads" in house.status.waiting_for[0]
    house.leaves(2)
    assert opened(house.last(3)).mode == "rw"


def test_a_waiting_writer_keeps_no_reader_out() -> None:
    house = House()
    house.loaded(5)
    house.hello(2)
    house.says(2, m.Open(mode="ro"))
    house.hello(3)
    house.says(3, m.Open(mode="rw"))
    house.hello(4)
    assert opened(house.says(4, m.Open(mode="ro")) and house.heard(4, m.Opened)[0]).mode == "ro"


def test_those_who_wait_come_in_in_the_order_in_which_they_asked() -> None:
    house = House()
    house.writer(1)
    for conn in (4, 2, 3):
        house.hello(conn)
        house.says(conn, m.Open(mode="rw"))
    house.leaves(1)
    assert [conn for conn in (2, 3, 4) if house.heard(conn, m.Opened)] == [4]
    house.leaves(4)
    assert [conn for conn in (2, 3) if house.heard(conn, m.Opened)] == [2]


def test_a_writer_that_died_while_it_waited_clears_nothing_though_its_end_is_still_unread() -> None:
    house = House()
    committed = house.loaded(5)
    house.hello(2)
    house.says(2, m.Open(mode="ro"))
    house.hello(3)
    house.says(3, m.Open(mode="rw"))
    house.dead.add(3)
    house.leaves(2)
    assert house.state == "COMMITTED" and house.record.generation == committed.generation
    assert 3 in house.closed and not house.heard(3, m.Opened)


def test_a_wish_ends_in_time_and_says_what_it_waited_for() -> None:
    house = House()
    house.writer(1)
    house.hello(2)
    assert house.says(2, m.Open(mode="ro", timeout_s=4.0)) is None
    house.later(3.9)
    assert not house.heard(2, m.Refused)
    house.later(0.2)
    answer = refused(house.last(2))
    assert answer.reason == "time_out" and "engine-1 (pid 1) is writing" in answer.why
    house.leaves(1)
    assert not house.heard(2, m.Opened)


def test_a_wish_of_no_time_at_all_is_granted_if_it_can_be_at_once() -> None:
    house = House()
    house.hello(1)
    assert opened(house.says(1, m.Open(mode="rw", timeout_s=0))).mode == "rw"
    house.hello(2)
    assert refused(house.says(2, m.Open(mode="ro", timeout_s=0))).reason == "time_out"


def test_a_process_that_is_gone_reads_no_more_though_a_fork_of_it_keeps_the_connection() -> None:
    house = House()
    house.loaded(5)
    house.hello(2)
    house.says(2, m.Open(mode="ro"))
    process = house.machine.sessions.clients[2].process
    assert process is not None
    house.feed(e.Died(process))
    assert 2 in house.closed and house.state == "COMMITTED"


def test_what_was_withdrawn_is_acknowledged_after_all_that_was_under_way() -> None:
    house = House()
    house.loaded(5)
    house.hello(2)
    house.says(2, m.Open(mode="ro"))
    assert isinstance(house.says(2, m.Withdraw()), m.Withdrawn)
    assert house.state == "COMMITTED"


# -- 3: numbers --------------------------------------------------------------------------------------------------------


def test_each_writer_gets_a_number_of_its_own_and_the_file_knows_it_first() -> None:
    house = House()
    numbers = []
    for conn in (1, 2, 3):
        numbers.append(house.writer(conn).generation)
        assert house.on_disk.given == numbers[-1]
        house.leaves(conn)
    assert numbers == [FLOOR + 1, FLOOR + 2, FLOOR + 3]
    again = restarted(house)
    assert again.writer(1).generation == (1 << 20) + FLOOR + 1, "an older file would go on with what another one gave"


def test_servers_that_begin_in_the_same_second_have_places_of_their_own_in_it() -> None:
    one, other = (numbers_begin(7.9, incarnation) for incarnation in ("0001f0ff", "0002f0ff"))
    assert 7 << 20 < one < other < 8 << 20
    assert begin_above(one + 5, other) == other + (1 << 20), "the file is the other one's, and the clock was set back"
    assert begin_above(one, (1 << 20) + other) == (1 << 20) + other, "or it wasn't"


def test_numbers_begin_above_the_floor_where_the_file_is_lost() -> None:
    assert House(b"{").machine.device.generations.newest == House().machine.device.generations.newest == FLOOR


def test_no_layout_is_on_disk_before_the_writer_that_clears_it_hears_of_it() -> None:
    house = House()
    house.loaded(5)
    assert house.record.hash
    house.log.clear()
    house.writer(2)
    persist = next(at for at, effect in enumerate(house.log) if isinstance(effect, e.Persist))
    told = next(
        at
        for at, effect in enumerate(house.log)
        if isinstance(effect, e.Send) and effect.conn == 2 and isinstance(effect.message, m.Opened)
    )
    assert persist < told and not house.record.hash
    assert restarted(house).status.state == "EMPTY"


def test_no_client_is_let_in_to_write_when_the_disk_refuses() -> None:
    house = House()
    committed = house.loaded(5)
    house.disk_fails = True
    house.hello(2)
    assert refused(house.says(2, m.Open(mode="rw"))).reason == "disk"
    assert house.status.generation == committed.generation and house.status.alarms
    house.hello(3)
    assert opened(house.says(3, m.Open(mode="ro")) and house.heard(3, m.Opened)[0]).mode == "ro"
    house.disk_fails = False
    house.later(1.0)
    assert house.on_disk == house.machine.device.record() and not house.status.alarms


# -- 4, 5 and 8: a writer's work ---------------------------------------------------------------------------------------


def test_a_commit_makes_its_writer_a_reader_with_no_moment_between() -> None:
    house = House()
    house.writer(1, 10)
    house.hello(2)
    house.says(2, m.Open(mode="rw"))
    house.commits(1, 10)
    assert house.doing(1) is Doing.READING and not house.heard(2, m.Opened)


@pytest.mark.parametrize(
    "wrong",
    [
        document(10, 5),
        document(11),
        b"",
        b"\xff" * 50,
        lay.encode(lay.Layout((10,), (lay.Tensor("a", 0, 8, (4,), (1,), "uint8"),))),
    ],
)
def test_a_layout_that_is_not_of_these_slabs_is_refused_and_its_writer_goes_on(wrong: bytes) -> None:
    house = House()
    house.writer(1, 10)
    assert refused(house.says(1, m.Commit(layout=wrong))).reason == "bad_layout"
    house.commits(1, 10)


def test_a_commit_of_nothing_is_refused() -> None:
    house = House()
    house.writer(1)
    assert refused(house.says(1, m.Commit(layout=document()))).reason == "bad_layout"


def test_a_commit_that_the_disk_refuses_is_no_commit_and_can_be_tried_again() -> None:
    house = House()
    house.writer(1, 10)
    house.disk_fails = True
    assert refused(house.says(1, m.Commit(layout=document(10)))).reason == "disk"
    assert house.state == "RW"
    house.disk_fails = False
    house.commits(1, 10)
    assert house.record.hash and house.state == "RO"


def test_sizes_are_made_multiples_of_what_the_device_can_do() -> None:
    house = House(granularity=64)
    house.writer(1)
    created = house.says(1, m.Create(size=65))
    assert isinstance(created, m.Created) and created.size == 128


def test_on_a_full_device_a_writer_waits_and_gets_memory_when_there_is_some() -> None:
    house = House()
    house.writer(1)
    house.foreign = 950
    assert house.says(1, m.Create(size=100)) is None
    assert "100 bytes are needed, 50 are free" in house.status.waiting_for[0]
    house.later(1.0)
    house.foreign = 0
    house.later(0.1)
    assert isinstance(house.last(1), m.Created)


def test_on_a_full_device_a_writer_does_not_wait_for_ever_and_is_told_the_figures() -> None:
    house = House()
    house.writer(1)
    house.foreign = 950
    house.says(1, m.Create(size=100))
    house.later(MEMORY_WAIT_S + 0.1)
    answer = refused(house.last(1))
    assert answer.reason == "no_memory" and "100 bytes" in answer.why and "50 are free" in answer.why
    assert house.state == "RW"


def test_a_wait_for_memory_ends_with_its_writer() -> None:
    house = House()
    house.writer(1)
    house.foreign = 950
    house.says(1, m.Create(size=100))
    house.leaves(1)
    house.foreign = 0
    house.log.clear()
    house.later(MEMORY_WAIT_S)
    assert not [effect for effect in house.log if isinstance(effect, e.Allocate)]


def test_what_can_never_fit_is_refused_at_once() -> None:
    house = House()
    house.writer(1, 600)
    answer = refused(house.says(1, m.Create(size=401)))
    assert answer.reason == "too_large" and "600" in answer.why and str(CAPACITY) in answer.why


def test_a_failure_that_is_no_lack_of_memory_is_told_at_once() -> None:
    house = House()
    house.writer(1)
    house.machine.handle(e.Received(1, m.Create(size=5)), e.Time(0, 0))
    effects = house.machine.handle(e.NotAllocated(1, 5, 0, why="the driver is gone"), e.Time(0, 0))
    answers = [effect.message for effect in effects if isinstance(effect, e.Send)]
    assert len(answers) == 1 and "the driver is gone" in refused(answers[0]).why


# -- 6 and 7: replacing ------------------------------------------------------------------------------------------------


def test_a_replacement_keeps_the_old_layout_until_it_is_committed() -> None:
    house = House()
    old = house.loaded(10)
    house.writer(2, 20, replace=True, bytes=20)
    assert house.record.generation == old.generation and house.status.bytes == 30
    house.leaves(2)
    assert house.status.generation == old.generation and house.status.bytes == 10
    house.writer(3, 30, replace=True, bytes=30)
    new = house.commits(3, 30)
    assert house.record.generation == new.generation > old.generation and house.status.bytes == 30


def test_a_replacement_that_does_not_fit_beside_the_old_layout_is_refused_at_once_with_the_figures() -> None:
    house = House()
    house.loaded(600)
    house.hello(2)
    answer = refused(house.says(2, m.Open(mode="rw", replace=True, bytes=500)))
    assert answer.reason == "too_large" and "500" in answer.why and "600" in answer.why and "400" in answer.why
    house.foreign = 100
    assert refused(house.says(2, m.Open(mode="rw", replace=True, bytes=350))).reason == "no_memory"
    assert house.state == "COMMITTED"


def test_a_client_that_has_the_old_layout_is_asked_to_drop_it_and_named_until_it_has() -> None:
    house = House()
    house.loaded(10)
    house.hello(2, "sleeper")
    house.says(2, m.Open(mode="ro"))
    generation = house.status.generation
    house.says(2, m.Withdraw(keeps=generation))
    assert house.status.clients[0].doing == "asleep"
    house.hello(3, "bystander")
    house.writer(4, 20, replace=True, bytes=20)
    house.commits(4, 20)
    assert house.heard(2, m.Drop) == [m.Drop(generation=generation)] and not house.heard(3, m.Drop)
    assert "sleeper (pid 2)" in house.status.pending_drops[0] and not house.status.alarms
    house.later(6.0)
    assert "sleeper (pid 2)" in house.status.alarms[0]
    house.says(2, m.Dropped(generation=generation))
    assert not house.status.pending_drops and not house.status.alarms


def test_a_sleeper_that_dropped_wakes_on_a_new_layout_of_the_same_structure_and_on_no_other() -> None:
    house = House()
    house.loaded(10)
    house.hello(2)
    house.says(2, m.Open(mode="ro"))
    first = opened(house.heard(2, m.Opened)[0])
    house.says(2, m.Withdraw(keeps=first.generation))
    house.loaded(10, by=3)
    house.says(2, m.Open(mode="ro", have=first.generation, expect=first.hash))
    second = opened(house.heard(2, m.Opened)[1])
    assert second.generation > first.generation and second.layout, "the same structure is other memory"
    house.says(2, m.Withdraw(keeps=second.generation))
    house.loaded(20, by=4)
    assert refused(house.says(2, m.Open(mode="ro", expect=first.hash))).reason == "stale"


def test_a_sleeper_wakes_with_what_it_has_kept() -> None:
    house = House()
    generation = house.loaded(10).generation
    house.hello(2)
    house.says(2, m.Open(mode="ro"))
    house.says(2, m.Withdraw(keeps=generation))
    assert opened(house.says(2, m.Open(mode="ro", have=generation))).layout == b""
    assert not house.sent[2][-1][1]


def test_every_client_hears_of_a_new_layout_but_its_writer() -> None:
    house = House()
    house.hello(2)
    house.writer(1, 5)
    committed = house.commits(1, 5)
    assert house.heard(2, m.Changed) == [m.Changed(generation=committed.generation, hash=committed.hash)]
    assert not house.heard(1, m.Changed)


# -- 9 and 10: after a restart -----------------------------------------------------------------------------------------


def crashed(*sizes: int, **how: object) -> House:
    house = House()
    house.loaded(*sizes)
    return restarted(house, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(("sums", "known"), [(["a", "b"], ["a", "b"]), (["a"], [])])
def test_what_is_handed_back_stands_again_with_its_number_its_hash_and_a_sum_for_each_slab(
    sums: list[str], known: list[str]
) -> None:
    house = crashed(10, 20, batch=1)
    before = house.record
    assert house.state == "RECOVERING"
    welcome = house.hello(1)
    assert (welcome.generation, welcome.hash, welcome.recovering) == (before.generation, before.hash, True)
    memory = memory_of(house)
    assert house.says(1, hand_back(house, sums=sums), memory[:1]) is None
    answer = house.says(1, hand_back(house, sums=sums, first=1, layout=b""), memory[1:])
    assert answer == m.HandedBack(generation=before.generation, reading=False)
    assert house.state == "COMMITTED" and house.record == before
    house.hello(2)
    house.says(2, m.Open(mode="ro"))
    told = opened(house.heard(2, m.Opened)[0])
    assert (told.layout, told.sums) == (document(10, 20), known)


def test_who_has_come_before_the_layout_was_back_is_told_that_it_is_there() -> None:
    """He was welcomed by a server that had none: a shadow that waits for weights would wait for ever."""
    house = crashed(10)
    before = house.record
    assert house.hello(7).recovering
    house.hello(1)
    house.says(1, hand_back(house), memory_of(house))
    assert house.heard(7, m.Changed) == [m.Changed(generation=before.generation, hash=before.hash)]
    house.hello(2)
    house.says(2, hand_back(house))
    assert len(house.heard(7, m.Changed)) <= 1, "once"


def test_a_reader_that_comes_back_is_a_reader_at_once() -> None:
    house = crashed(10)
    house.hello(9)
    house.says(9, m.Open(mode="rw"))
    house.hello(1)
    house.says(1, hand_back(house, reading=True), memory_of(house))
    assert house.state == "RO"
    house.later(WINDOW_S + 1)
    assert not house.heard(9, m.Opened)


def test_the_first_hand_back_wins_and_the_others_match_without_leaving_anything_here() -> None:
    house = crashed(10)
    memory = memory_of(house)
    house.hello(1)
    house.hello(2)
    house.says(1, hand_back(house), memory)
    assert isinstance(house.says(2, hand_back(house, reading=True), memory), m.HandedBack)
    assert len(house.slabs) == 1 and house.doing(2) is Doing.READING
    house.hello(3)
    assert isinstance(house.says(3, hand_back(house)), m.HandedBack), "the word is enough now"


@pytest.mark.parametrize(
    "wrong",
    [
        {"generation": 7},
        {"name": "0" * 64},
        {"sizes": [10]},
        {"sizes": [10, 21]},
        {"sizes": [10, 20, 5]},
        {"layout": document(10, 20, name="x")},
        {"layout": b""},
    ],
)
def test_anything_but_the_persisted_layout_is_refused_as_stale(wrong: dict[str, object]) -> None:
    house = crashed(10, 20)
    house.hello(1)
    message = hand_back(house, **wrong)  # type: ignore[arg-type]
    memory = memory_of(house)
    if len(message.sizes) > len(memory):
        memory = (*memory, ("m9", 5))
    house.says(1, message, memory)
    assert refused(house.heard(1, m.Refused)[0]).reason == "stale"
    assert not house.slabs and house.state == "RECOVERING"
    assert house.heard(1, m.Drop), "it has memory of a layout that is gone"


def test_other_memory_than_the_persisted_is_let_go_of_at_once_and_refused_when_all_has_come() -> None:
    house = crashed(10, 20, 30)
    memory = memory_of(house)
    house.hello(1)
    house.says(1, hand_back(house), memory[:1])
    assert house.says(1, hand_back(house, first=1), (("another", 20),)) is None and not house.slabs
    house.says(1, hand_back(house, first=2), memory[2:])
    assert "its memory is not that in the file" in refused(house.heard(1, m.Refused)[0]).why
    assert not house.slabs and house.state == "RECOVERING"


def test_a_process_that_has_other_memory_than_the_awaited_says_so_with_a_word() -> None:
    house = crashed(10)
    house.hello(1)
    assert refused(house.says(1, hand_back(house, generation=7)) and house.heard(1, m.Refused)[0]).reason == "stale"


@pytest.mark.parametrize(("before", "first", "slabs"), [(0, 1, 1), (0, 0, 0), (1, 0, 1), (1, 2, 1), (1, 1, 0)])
def test_slabs_that_come_out_of_order_twice_or_not_at_all_cost_the_connection(
    before: int, first: int, slabs: int
) -> None:
    house = crashed(10, 20, 30)
    memory = memory_of(house)
    house.hello(1)
    if before:
        house.says(1, hand_back(house), memory[:before])
    answer = house.says(1, hand_back(house, first=first), memory[first : first + slabs])
    assert isinstance(answer, m.Problem) and 1 in house.closed and not house.slabs


@pytest.mark.parametrize("message", [m.Open(mode="ro"), m.Withdraw()])
def test_a_process_does_nothing_else_in_the_middle_of_handing_back(message: m.ClientMessage) -> None:
    house = crashed(10, 20)
    house.hello(1)
    house.says(1, hand_back(house), memory_of(house)[:1])
    assert isinstance(house.says(1, message), m.Problem) and 1 in house.closed and not house.slabs


def test_what_was_handed_back_in_part_is_gone_with_who_brought_it() -> None:
    house = crashed(10, 20, batch=1)
    house.hello(1)
    house.says(1, hand_back(house), memory_of(house)[:1])
    assert len(house.slabs) == 1
    house.leaves(1)
    assert not house.slabs and house.state == "RECOVERING"


def test_what_another_brought_in_part_is_let_go_of_and_it_matches_at_its_end() -> None:
    house = crashed(10, 20, batch=1)
    memory = memory_of(house)
    house.hello(1)
    house.hello(2)
    house.says(1, hand_back(house), memory[:1])
    house.says(2, hand_back(house), memory)
    assert len(house.slabs) == 2
    assert isinstance(house.says(1, hand_back(house, first=1), memory[1:]), m.HandedBack)
    assert len(house.slabs) == 2


def test_no_writer_comes_in_until_the_window_is_over_though_the_layout_is_back() -> None:
    house = crashed(10)
    house.hello(1)
    house.says(1, hand_back(house), memory_of(house))
    house.hello(2)
    assert house.says(2, m.Open(mode="rw")) is None
    house.later(WINDOW_S - 0.5)
    assert not house.heard(2, m.Opened)
    house.later(1.0)
    assert house.heard(2, m.Opened)


def test_who_can_read_or_write_waits_for_the_layout_and_begins_anew_when_the_window_is_over() -> None:
    house = crashed(10)
    house.hello(1)
    house.says(1, m.Open(mode="rw_or_ro"))
    house.later(WINDOW_S - 0.5)
    assert not house.heard(1, m.Opened) and house.state == "RECOVERING"
    house.later(1.0)
    assert opened(house.last(1)).mode == "rw"
    assert not house.record.hash


def test_after_the_window_a_layout_may_still_come_back_until_a_client_writes() -> None:
    house = crashed(10)
    assert house.status.regions[0].doubt == ""
    house.later(WINDOW_S * 10)
    assert house.state == "RECOVERING" and house.status.alarms
    assert house.machine.deadline == float("inf"), "the kernel is asked no more whether any process has it"
    assert "was not handed back within" in house.status.regions[0].doubt
    house.hello(1)
    assert isinstance(house.says(1, hand_back(house), memory_of(house)), m.HandedBack)
    assert house.state == "COMMITTED" and not house.status.alarms and not house.status.regions[0].doubt


def test_a_reader_that_comes_back_when_another_writes_is_sent_away() -> None:
    house = crashed(10)
    house.hello(1)
    house.says(1, hand_back(house), memory_of(house))
    house.later(WINDOW_S + 1)
    house.writer(2, replace=True)
    house.hello(3)
    house.says(3, hand_back(house, reading=True))
    assert refused(house.heard(3, m.Refused)[0]).reason == "stale"


def test_one_that_comes_back_after_another_layout_was_committed_is_stale_and_named() -> None:
    house = crashed(10)
    back = hand_back(house)
    house.later(WINDOW_S + 1)
    house.loaded(10, by=1)
    house.hello(2, "late")
    house.says(2, back)
    why = f"memory {back.generation} is gone; there is {house.record.generation} now"
    assert refused(house.heard(2, m.Refused)[0]).why == why
    assert house.heard(2, m.Drop) and "late" in house.status.pending_drops[0]


def test_a_layout_of_which_no_process_has_the_memory_is_given_up_at_once_first_on_disk() -> None:
    house = crashed(10, held=False)
    assert house.state == "EMPTY" and not house.record.hash
    house.writer(1)


def test_the_last_one_who_had_the_memory_leaves_and_it_is_given_up() -> None:
    house = crashed(10)
    house.hello(1)
    house.held.clear()
    house.leaves(1)
    assert house.state == "EMPTY"


def test_where_it_is_not_known_who_has_the_memory_the_window_is_waited_for() -> None:
    house = crashed(10, tells=False, held=False)
    house.hello(1)
    house.says(1, m.Open(mode="rw"))
    house.later(WINDOW_S - 0.5)
    assert house.state == "RECOVERING"
    house.later(1.0)
    assert house.state == "RW"


def test_one_question_at_a_time_is_asked_of_the_kernel_and_none_is_forgotten() -> None:
    house = crashed(10)
    house.hello(1)
    house.hello(2)
    house.later(WINDOW_S)
    answer = e.MemoryChecked(0, held=True)
    asked = [
        any(isinstance(each, e.CheckMemory) for each in house.machine.handle(event, e.Time(house.now, 0.0)))
        for event in (e.Closed(1), e.Closed(2), answer, answer)
    ]
    assert asked == [True, False, True, False]


def test_giving_up_waits_until_the_disk_takes_it() -> None:
    house = crashed(10)
    house.hello(1)
    house.later(WINDOW_S)
    house.disk_fails = True
    house.held.clear()
    house.leaves(1)
    house.later(2.0)
    assert house.state == "RECOVERING" and house.record.hash
    house.disk_fails = False
    house.later(1.0)
    assert house.state == "EMPTY" and not house.record.hash


def test_no_memory_outlives_a_boot() -> None:
    house = crashed(10, boot="another boot")
    assert house.state == "EMPTY" and not house.record.hash


def test_time_in_which_the_server_was_stopped_is_no_time_to_come_back() -> None:
    house = crashed(10)
    house.hello(1)
    house.says(1, m.Open(mode="rw"))
    house.later(1.0)
    house.now += 100.0
    house.feed(e.Tick())
    assert house.state == "RECOVERING" and not house.heard(1, m.Opened)
    house.later(WINDOW_S)
    assert house.heard(1, m.Opened)


def test_nor_is_it_for_a_region_of_which_an_unreadable_file_told_this_server_nothing() -> None:
    house = House(b"\xff{")
    house.now += 100.0
    house.hello(1, key="other")
    house.says(1, m.Open(mode="rw"))
    assert not house.heard(1, m.Opened)
    house.later(WINDOW_S)
    assert house.heard(1, m.Opened)


def test_a_file_that_can_not_be_read_is_alarmed_of_and_keeps_writers_out_for_the_window() -> None:
    house = House(b"\xff{")
    assert house.state == "EMPTY" and house.status.alarms
    house.hello(1)
    assert house.says(1, m.Open(mode="rw")) is None
    house.later(WINDOW_S - 0.5)
    assert not house.heard(1, m.Opened)
    house.later(1.0)
    assert house.heard(1, m.Opened) and house.on_disk.given == FLOOR + 1
    house.says(1, m.Create(size=5))
    house.commits(1, 5)
    assert not house.status.alarms, "what was lost is loaded again"


# -- at the door -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        m.Open(mode="ro"),
        m.Withdraw(),
        m.Create(size=1),
        m.Commit(layout=b""),
        m.AskStatus(),
        m.Ping(),
        m.HandBack(generation=1, hash="", sizes=[1]),
        m.Hello(protocol=99, engine_id="x", pid=1),
        m.Observe(protocol=99),
    ],
)
def test_who_does_not_introduce_itself_rightly_loses_its_connection_and_disturbs_no_other(
    message: m.ClientMessage,
) -> None:
    house = House()
    assert isinstance(house.says(1, message, (("stray", 5),)), m.Problem)
    assert 1 in house.closed and not house.slabs and house.state == "EMPTY"


@pytest.mark.parametrize(
    "message", [m.Create(size=1), m.Commit(layout=b""), m.Hello(protocol=m.PROTOCOL, engine_id="x", pid=1), m.Watch()]
)
def test_what_is_said_out_of_turn_costs_the_connection(message: m.ClientMessage) -> None:
    house = House()
    house.hello(1)
    assert isinstance(house.says(1, message), m.Problem) and 1 in house.closed


@pytest.mark.parametrize("message", [m.Open(mode="ro"), m.HandBack(generation=1, hash="", sizes=[1])])
def test_who_waits_or_reads_can_not_ask_again_nor_hand_back(message: m.ClientMessage) -> None:
    house = House()
    house.loaded(5)
    house.hello(1)
    house.says(1, m.Open(mode="ro"))
    assert isinstance(house.says(1, message), m.Problem)
    assert house.state == "COMMITTED"


def test_an_observer_sees_everything_and_changes_nothing() -> None:
    house = House()
    house.loaded(5)
    house.says(1, m.Observe(protocol=m.PROTOCOL))
    status = house.says(1, m.AskStatus())
    assert isinstance(status, m.Status) and (status.state, status.bytes, status.free) == ("COMMITTED", 5, CAPACITY - 5)
    told = house.says(1, m.AskLayout())
    assert isinstance(told, m.LayoutIs) and told.layout == document(5)
    history = house.says(1, m.AskHistory())
    assert isinstance(history, m.History) and "committed" in [event.event for event in history.events]
    assert isinstance(house.says(1, m.Ping()), m.Pong)
    house.says(1, m.Watch())
    assert list(house.machine.watchers) == [1]
    assert isinstance(house.says(1, m.Open(mode="ro")), m.Problem) and not house.machine.watchers


def test_checksums_are_kept_for_the_layout_that_they_are_of() -> None:
    house = House()
    generation = house.loaded(5).generation
    house.hello(2)
    house.says(2, m.Checksums(generation=generation - 1, sums=["old"]))
    house.says(2, m.Checksums(generation=generation, sums=["new"]))
    house.says(2, m.Open(mode="ro"))
    assert opened(house.heard(2, m.Opened)[0]).sums == ["new"]


def test_a_server_whose_directory_was_replaced_makes_room() -> None:
    house = House()
    assert [effect for effect in house.feed(e.DirectoryReplaced("gone")) if isinstance(effect, e.Stop)]


def test_a_server_at_rest_sleeps() -> None:
    house = House()
    house.loaded(5)
    assert house.machine.deadline == float("inf")


def test_a_record_is_read_as_it_was_written_and_one_wrong_bit_makes_no_other() -> None:
    house = House()
    house.loaded(5, 6)
    house.hello(2, key="kv", policy="exclusive")
    house.says(2, m.ClaimPool(digest="a", sizes=[7], table_size=4096, token=1, proven=True, timeout_s=1.0))
    data, told = house.file or b"", house.machine.device.record()
    assert record.decode(data) == told
    for bit in range(len(data) * 8):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        try:
            assert record.decode(bytes(wrong)) == told, "only what is between the words may differ"
        except record.UnreadableRecord:
            continue


# -- the contract ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"given": -1}', b'{"given": 1, "format": 9}', b"\xff", b"[" * 99999]
)
def test_garbage_is_no_record(data: bytes) -> None:
    with pytest.raises(record.UnreadableRecord):
        record.decode(data)


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\xff" * 9, b"\x93\x91\x05\x91\x97\xa1\xff\x00\x00\x90\x90\xa1a\xa1b", b"\x91" * 99999]
)
def test_garbage_is_no_layout(data: bytes) -> None:
    with pytest.raises(lay.BadLayout):
        lay.decode(data)


def test_tensors_are_counted_without_being_read() -> None:
    tensors = tuple(lay.Tensor(f"t{number}", 0, 0, (4,), (1,), "uint8") for number in range(1000))
    assert lay.count_tensors(lay.encode(lay.Layout((4,), tensors, {"a": "b"}))) == 1000
    for garbage in (b"", b"\x00", b"\x91" * 99999):
        with pytest.raises(lay.BadLayout):
            lay.count_tensors(garbage)


# -- 11: a mistake in this program -------------------------------------------------------------------------------------


def test_a_broken_rule_lets_no_client_in_any_more_and_none_loses_anything() -> None:
    house = House()
    house.loaded(10)
    house.hello(2, "reader")
    house.says(2, m.Open(mode="ro"))
    house.hello(3, "writer")
    house.says(3, m.Open(mode="rw", timeout_s=5.0))
    slabs, file = dict(house.slabs), house.file
    house.weights.readers.clear()
    house.machine.handle(e.Tick(), e.Time(house.now, 1e9))
    alarm = house.status.alarms[0]
    for words in ("the phase is RO, and 0 read", "Tick", "reader (pid 2)", "report this line"):
        assert words in alarm, "what is needed to report it"
    assert house.slabs == slabs and house.file == file and 2 not in house.closed
    house.weights.readers.add(2)
    effects = house.machine.handle(e.Tick(), e.Time(house.now + 6.0, 1e9))
    answers = [effect.message for effect in effects if isinstance(effect, e.Send) and effect.conn == 3]
    assert "mistake in its own program" in refused(answers[0]).why, "who waits is told in time"
    assert house.machine.status().generation and not [each for each in effects if isinstance(each, e.Persist)]


def test_a_step_that_no_rule_allows_is_not_taken_and_reported() -> None:
    house = House()
    house.writer(1, 10)
    house.machine.device.generations.newest -= 1
    house.machine.handle(e.Tick(), e.Time(house.now, 1e9))
    assert "generations fall" in house.status.alarms[0]
    effects = house.machine.handle(e.Received(1, m.Commit(layout=document(10))), e.Time(house.now, 1e9))
    answers = [effect.message for effect in effects if isinstance(effect, e.Send)]
    assert refused(answers[0]).reason == "not_now" and house.weights.committed is None
    assert not [effect for effect in effects if isinstance(effect, e.Persist)]


def test_a_mistake_in_the_middle_of_a_step_is_an_alarm_and_not_the_end_of_the_server() -> None:
    house = House()
    house.writer(1, 10)
    house.weights.phase = Phase.EMPTY
    effects = house.machine.handle(e.Closed(1), e.Time(house.now, 1e9))
    assert any(isinstance(effect, e.Note) and effect.event == "rule_broken" for effect in effects)
    assert house.machine.device.why_closed
    house.machine.handle(e.Received(2, m.Observe(protocol=1)), e.Time(house.now, 1e9))
    effects = house.machine.handle(e.Received(2, m.Ping()), e.Time(house.now, 1e9))
    assert any(isinstance(effect, e.Send) and isinstance(effect.message, m.Pong) for effect in effects)


def test_rules_that_go_round_in_a_circle_are_an_alarm_and_not_the_end_of_the_server() -> None:
    house = House()
    house.machine.conclusions.other_versions.plan = lambda plan: plan.do(lambda: None)  # type: ignore[method-assign]
    house.machine.handle(e.Tick(), e.Time(house.now, 1e9))
    assert "go round in a circle" in house.status.alarms[0] and house.machine.device.why_closed
