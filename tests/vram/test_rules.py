"""The ledger's rules, one after the other (V1 to V11 of `vram/rules/machine.py`)."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from evidence.rules import events as e
from evidence.rules import messages as em
from evidence.rules.record import Member
from sidecar.machine.context import DirectoryReplaced, Stop, Tick, Time
from sidecar.wire.frames import MAX_FRAME_BYTES
from tests.vram.harness import GPU, Tree, World
from vram.cli.status_text import status_lines
from vram.rules import messages as m
from vram.rules.requests import MOST_OF_ONE


@pytest.fixture
def world() -> World:
    return World()


# -- V1, V2: what counts, and what fits --------------------------------------------------------------------------------


def test_what_was_promised_counts_though_it_is_not_used(world: World) -> None:
    a, b = world.tree("a"), world.tree("b")
    a.reserve(60)
    b.reserve(50, evictable=False)
    assert a.has == 60 and b.has == 0 and world.device().available == 40
    b.reserve(40, name="other")
    assert b.has == 0, "those before it go first"


def test_all_devices_or_none(world: World) -> None:
    world.totals["second"] = 50
    world.advance(5)
    a, b, c = world.tree("a"), world.tree("b"), world.tree("c")
    a.reserve(needs={"second": 30}, evictable=False)
    b.reserve(needs={GPU: 10, "second": 30})
    assert b.leases == {} and world.machine.leases.leased[GPU] == 0
    c.reserve(95)
    assert c.leases == {}, "what it would take keeps b waiting longer"
    a.resize(a.lease, 0)
    assert b.leases[b.lease] == {GPU: 10, "second": 30} and c.leases == {}


def test_what_is_kept_free_is_not_leased() -> None:
    world = World(keep_free=10)
    a = world.tree("a")
    a.reserve(95)
    assert "100 bytes in all, of which 10 bytes are kept free" in a.all(m.Denied)[0].why
    a.reserve(90)
    assert a.has == 90


def test_what_is_promised_must_be_seen_to_be_free_in_that_moment(world: World) -> None:
    a = world.tree("a")
    world.reader_answers = False
    a.reserve(60)
    assert a.has == 0
    world.used["training"] = 50
    world.answer_readings()
    assert a.has == 0 and world.device().foreign == 50
    del world.used["training"]
    world.advance(0.5)
    assert a.has == 60


def test_two_grants_of_one_reading_share_what_it_shows(world: World) -> None:
    """The first one's lease isn't in use yet, and the books know of it; so does the reading, which is as old."""
    a, b = world.tree("a"), world.tree("b")
    world.reader_answers = False
    a.reserve(60)
    b.reserve(40)
    world.answer_readings()
    assert a.has == 60 and b.has == 40
    world.used |= {a.name: 60, b.name: 40}
    a.resize(a.lease, 0)
    assert a.has == 0 and world.machine.leases.sum_returning[GPU] == 60


def test_a_reading_that_began_before_something_was_given_back_proves_nothing(world: World) -> None:
    a, b = world.tree("a"), world.tree("b")
    a.reserve(80)
    world.reader_answers = False
    b.reserve(10)
    old = world.reading()
    world.used[a.name] = 80
    a.resize(a.lease, 0)
    world.unanswered -= 1
    world.feed(old)
    assert world.machine.leases.sum_returning[GPU] == 80 and b.has == 0


def test_one_holder_of_a_name_at_a_time(world: World) -> None:
    a, b = world.holder("a", 10, name="chat"), world.tree("b")
    b.reserve(10, name="chat", evictable=False)
    a.reserve(5, name="chat")
    assert b.has == 0 and "resize it" in a.all(m.Denied)[0].why
    assert "a holds it" in world.status.waiters[0].waits_for
    a.resize(a.lease, 0)
    assert b.has == 10, "what is returning isn't the name's any more"


def test_a_wish_for_nothing_is_denied(world: World) -> None:
    a = world.tree("a")
    a.reserve(needs={GPU: 0})
    a.reserve(needs={})
    assert len(a.all(m.Denied)) == 2 and a.leases == {}


def test_a_lease_grows_by_what_is_more_and_shrinks_at_once(world: World) -> None:
    a, b = world.holder("a", 60, evictable=False), world.tree("b")
    a.resize(a.lease, 80)
    assert a.has == 80 and world.device().available == 20
    b.reserve(30, evictable=False)
    a.resize(a.lease, 85)
    assert a.has == 85, "b waits for what this one has, perhaps: it doesn't wait for b"
    a.resize(a.lease, 105)
    a.resize(a.lease, 100, waited_s=1.0)
    c = world.tree("c")
    c.reserve(5)
    a.resize(a.lease, 50)
    assert a.has == 50 and b.has == 30 and c.has == 5


def test_no_tree_changes_anothers_lease(world: World) -> None:
    a, b = world.holder("a", 60), world.tree("b")
    b.resize(a.lease, 0)
    b.says(m.Set(lease=a.lease, priority=900))
    assert "not this tree's" in b.all(m.Denied)[0].why
    assert world.status.leases[0].priority == 0 and world.device().leased == 60


# -- V3: first on disk, then told --------------------------------------------------------------------------------------


def test_what_is_told_is_on_disk(world: World) -> None:
    a = world.tree("a")
    a.reserve(60)
    assert world.file is not None and world.file.leases[0].bytes == {GPU: 60}
    world.disk_fails = "No space left on device"
    a.resize(a.lease, 80)
    a.reserve(10, name="more")
    assert a.has == 60 and "can't be written" in world.alarms and world.device().leased == 80
    a.resize(a.lease, 50)
    assert a.has == 60, "what is given back is told when it is written"
    world.disk_fails = ""
    world.advance(1)
    assert a.has == 60 and "can't be written" not in world.alarms and world.device().leased == 60


def test_one_that_gives_up_what_is_being_written_has_it(world: World) -> None:
    a = world.tree("a")
    world.disk_answers = False
    a.reserve(60)
    a.says(m.Withdraw(number=a.numbers))
    assert a.has == 0 and not a.all(m.Withdrawn)
    world.disk_has_answered()
    assert a.has == 60


def test_one_that_comes_anew_while_its_grant_is_written_is_not_told_of_it_and_others_are(world: World) -> None:
    a, b = world.tree("a"), world.tree("b")
    world.disk_answers = False
    a.reserve(60)
    b.reserve(20)
    a.hangs_up()
    a.comes_back()
    world.disk_has_answered()
    assert (a.all(m.Granted), b.has, world.device().leased) == ([], 20, 20)


def test_a_waiter_is_told_what_it_waits_for(world: World) -> None:
    a, b, other = world.holder("a", 60, name="chat"), world.tree("b"), world.tree("other")
    b.says(m.Heir(name="chat"))
    b.reserve(60, name="chat")
    assert world.status.waiters[0].waits_for == "chat: a holds it"
    world.used["driver"] = 60
    a.dies()
    world.advance(0.3)
    assert world.status.waiters[0].waits_for == "60 bytes of gpu to be seen free"
    world.reader_answers = False
    other.reserve(10)
    assert world.status.waiters[1].waits_for == "", "it is read in this moment"
    unread = World(reads=False, totals={GPU: 100})
    unread.holder("a", 60)
    unread.tree("b").reserve(50)
    assert unread.status.waiters[0].waits_for == "lacks 10 bytes of gpu"


# -- V4, V7: ends, and heirs -------------------------------------------------------------------------------------------


def test_what_a_dead_tree_had_is_free_with_the_proof_and_not_before(world: World) -> None:
    a, b = world.holder("a", 80), world.tree("b")
    b.reserve(80)
    a.hangs_up()
    assert b.has == 0, "an end of file proves nothing"
    a.comes_back(a.claims())
    a.dies(proven=False)
    world.advance(1)
    assert b.has == 0 and world.status.leases[0].state == "ending"
    a.life = False
    world.used.clear()
    world.advance(0.2)
    assert b.has == 80 and a.name in world.unlinked


def test_a_dead_process_whose_tree_lives_holds_on_and_a_person_hears_of_it(world: World) -> None:
    a = world.holder("a", 80)
    a.dies(proven=False)
    world.advance(world.config.window_s - 1)
    assert world.alarms == ""
    world.advance(2)
    assert f"{a.name} is not proven gone, and its leases count: life lock" in world.alarms
    a.life = False
    world.advance(1)
    assert world.alarms == "" and world.status.leases == []


def test_a_tree_that_has_leases_is_bound_and_one_that_has_none_is_forgotten(world: World) -> None:
    a = world.holder("a", 10)
    assert world.machine.incarnations.known[a.name].bound
    a.resize(a.lease, 0)
    world.used.clear()
    world.advance(1)
    assert not world.machine.incarnations.known[a.name].bound
    a.hangs_up()
    a.life = False
    world.advance(5)
    assert a.name not in world.machine.incarnations.known and world.unlinked == [a.name]


def test_an_heir_has_the_bytes_of_the_dead_holder_before_all_that_wait(world: World) -> None:
    a, b, other = world.holder("a", 60, name="chat", evictable=False), world.tree("b"), world.tree("other")
    b.says(m.Heir(name="chat"))
    assert b.all(m.Named) and world.file is not None and world.file.heirs == {"chat": [b.name]}
    other.reserve(60, evictable=False)
    b.reserve(60, name="chat")
    assert b.has == other.has == 0
    a.dies()
    assert b.has == 60 and other.has == 0 and world.device().leased == 60


@pytest.mark.parametrize("comes_first", [True, False])
def test_an_older_file_that_names_the_last_holder_costs_its_heir_nothing(world: World, comes_first: bool) -> None:
    """Found by the simulator (seed 2036): the lease was another tree's by its number."""
    a, b = world.holder("a", 60, name="chat"), world.tree("b")
    b.says(m.Heir(name="chat"))
    older = world.file
    a.dies(proven=False)
    a.life = False
    world.used = {}
    world.advance(0.2)
    b.reserve(60, name="chat")
    assert b.has == 60 and b.lease not in a.leases
    world.used[b.name], world.file = 60, older
    world.restart()
    world.advance(0 if comes_first else 0.5)
    b.comes_back([m.Claim(b.lease, "chat", {GPU: 60})], heirs=["chat"])
    world.advance(3)
    assert not b.all(em.Refused) and [(one.lease, one.bytes) for one in world.status.leases] == [(b.lease, {GPU: 60})]


def test_the_bytes_wait_for_an_heir_that_has_not_asked_and_are_free_with_its_end(world: World) -> None:
    a, b, other = world.holder("a", 60, name="chat", evictable=False), world.tree("b"), world.tree("other")
    b.says(m.Heir(name="chat"))
    other.reserve(60)
    a.dies()
    assert other.has == 0 and [lease.state for lease in world.status.leases] == ["kept"]
    other.reserve(10, name="chat")
    assert "kept for an heir" in world.status.waiters[-1].waits_for
    b.hangs_up()
    assert other.has == 0, "it lives"
    b.dies()
    assert other.has == 70


def test_an_heir_that_does_not_ask_keeps_an_estate_from_none_for_long(world: World) -> None:
    """An engine of a model at rest is the heir of its other one, and never asks: no other model could wake any more."""
    a, b, other = world.holder("a", 60, name="chat", evictable=False), world.tree("b"), world.tree("other")
    b.says(m.Heir(name="chat"))
    other.reserve(60)
    world.tree("c").reserve(10, name="chat")  # no heir of it
    a.dies()
    world.advance(world.config.patience_s - 1)
    assert other.has == 0
    world.advance(2)
    assert other.has == 60 and [lease.name for lease in world.status.leases] == ["other", "chat"]


def test_an_estate_that_a_new_server_finds_waits_for_its_heirs_return(world: World) -> None:
    a, b, other = world.holder("a", 60, name="chat", evictable=False), world.tree("b"), world.tree("other")
    b.says(m.Heir(name="chat"))
    a.dies()
    world.restart()
    other.comes_back([])
    other.reserve(60)
    world.advance(world.config.window_s - 1)
    assert other.has == 0
    b.comes_back([], heirs=["chat"])
    b.reserve(60, name="chat")
    assert b.has == 60 and other.has == 0
    world.advance(world.config.window_s)
    assert b.has == 60 and other.has == 0


def test_an_heir_that_needs_more_waits_for_the_rest_and_one_that_needs_less_leaves_the_rest(world: World) -> None:
    a, b, other = world.holder("a", 60, name="chat"), world.tree("b"), world.holder("other", 30, evictable=False)
    b.says(m.Heir(name="chat"))
    a.dies()
    b.reserve(80, name="chat")
    assert b.has == 0 and world.status.waiters[0].needs == {GPU: 20}
    other.resize(other.lease, 20)
    world.used[other.name] = 20
    world.advance(0.1)
    assert b.has == 80
    b.dies()
    c = world.tree("c")
    c.says(m.Heir(name="other"))
    other.dies()
    c.reserve(15, name="other")
    assert c.has == 15 and world.device().leased == 15


def test_an_heir_that_needs_more_of_another_device_waits_for_none_that_wait_for_its_estate(world: World) -> None:
    """Found by the simulator: each waited for the other."""
    world.totals["second"] = 50
    a, heir, other = world.tree("a"), world.tree("heir"), world.tree("other")
    heir.says(m.Heir(name="a"))
    a.reserve(needs={GPU: 100, "second": 10}, evictable=False)
    other.reserve(needs={GPU: 50, "second": 40})
    a.dies()
    heir.reserve(name="a", needs={GPU: 50, "second": 20})
    assert heir.leases[heir.lease] == {GPU: 50, "second": 20}


def crossed(world: World) -> tuple[Tree, Tree]:
    """Two heirs, each of which inherits all of a device."""
    world.totals["second"] = 100
    one, two = world.tree("one"), world.tree("two")
    for heir, name, device in ((one, "chat", GPU), (two, "code", "second")):
        holder = world.tree(f"holder of {name}")
        holder.reserve(name=name, needs={device: 100})
        heir.says(m.Heir(name=name))
        holder.dies()
    return one, two


def test_of_two_heirs_that_want_what_the_other_inherits_the_first_has_it(world: World) -> None:
    """Found by the simulator: each waited for the other's estate (seed 1008301)."""
    one, two = crossed(world)
    one.reserve(name="chat", needs={GPU: 100, "second": 50})
    assert one.has == 0  # the other may come for its estate alone
    two.reserve(name="code", needs={GPU: 50, "second": 100})
    assert one.leases[one.lease] == {GPU: 100, "second": 50}
    one.resize(one.lease, 0)
    world.used.clear()
    world.advance(0.1)
    assert two.leases[two.lease] == {GPU: 50, "second": 100}


def test_an_estate_is_an_heirs_that_wants_no_more_than_it(world: World) -> None:
    one, two = crossed(world)
    one.reserve(name="chat", needs={GPU: 100, "second": 50})
    two.reserve(name="code", needs={"second": 80})
    assert two.has == 0 and two.leases[two.lease] == {"second": 80} and one.has == 0


@pytest.mark.parametrize("grows", [True, False])
def test_an_heir_that_waits_in_vain_keeps_its_estate_from_none_that_it_may_not_keep_waiting(
    world: World, grows: bool
) -> None:
    """From what has something and grows, and from what is more urgent."""
    world.totals["second"] = 100
    holder, _ = world.holder("holder", 60, name="chat"), world.holder("bystander", 40, evictable=False)
    heir, other, one = world.tree("heir"), world.tree("other"), world.tree("one")
    (one if grows else other).reserve(needs={"second": 100}, evictable=False)
    heir.says(m.Heir(name="chat"))
    holder.dies()
    heir.reserve(name="chat", needs={GPU: 80, "second": 50}, priority=0 if grows else 1)
    world.advance(0 if grows else 100)
    if grows:
        one.resize(one.lease, 0, bytes={GPU: 50, "second": 100})
    else:
        one.reserve(50)
    assert one.has == 50 and world.status.waiters[0].needs[GPU] == 80


def test_an_heir_that_waits_in_vain_keeps_its_estate_from_none_that_has_found_something(world: World) -> None:
    world.totals["second"] = 100
    holder, heir, gms = world.holder("holder", 60, name="chat"), world.tree("heir"), world.tree("gms")
    world.tree("bystander").reserve(needs={GPU: 30, "second": 100}, evictable=False)
    heir.says(m.Heir(name="chat"))
    holder.dies()
    world.used["engine"] = 10
    heir.reserve(name="chat", needs={GPU: 60, "second": 50})
    world.advance(2)
    gms.reserve(50, "gms/gpu/a", outlives=True, found={GPU: 10})
    assert gms.has == 50 and heir.has == 0


def test_an_heir_that_waits_in_vain_keeps_its_estate_from_the_likes_of_it(world: World) -> None:
    world.totals["second"] = 100
    holder, heir, other = world.holder("holder", 60, name="chat"), world.tree("heir"), world.tree("other")
    world.tree("bystander").reserve(needs={GPU: 40, "second": 100}, evictable=False)
    heir.says(m.Heir(name="chat"))
    holder.dies()
    heir.reserve(name="chat", needs={GPU: 60, "second": 50})
    other.reserve(10)
    assert other.has == 0 and world.status.waiters[0].needs == {"second": 50}


def test_an_estate_is_left_to_others_only_where_no_asking_leads_to_enough(world: World) -> None:
    one, two = crossed(world)
    world.totals["second"] = 150
    world.advance(3)
    other = world.tree("other")
    other.reserve(needs={"second": 50})
    two.reserve(name="code", needs={GPU: 50, "second": 100}, priority=1)
    one.reserve(name="chat", needs={GPU: 100, "second": 50})
    assert other.all(m.Asked) and not world.noted("left_to_others")


def test_an_estate_for_which_two_wait_is_left_to_others_once(world: World) -> None:
    bystander, holder = world.holder("bystander", 50, evictable=False), world.holder("holder", 40, name="chat")
    other, heir = world.tree("other"), world.tree("heir")
    heir.says(m.Heir(name="chat"))
    holder.dies()
    other.reserve(60)
    for _ in range(2):
        heir.reserve(55, name="chat")
    assert other.has == 0 and world.device().leased == 90 and not world.noted("left_to_others"), "twice 40 isn't 80"
    bystander.resize(bystander.lease, 40)
    world.used[bystander.name] = 40
    world.advance(0.1)
    assert other.has == 60 or heir.has == 55


def test_what_moves_to_another_device_is_known_as_before(world: World) -> None:
    """Its leases were counted for ever, and were in no file."""
    world.totals["second"] = 100
    a = world.tree("a")
    a.reserve(needs={GPU: 50})
    a.resize(a.lease, 0, bytes={"second": 50})
    world.advance(0.1)
    assert a.leases[a.lease] == {"second": 50}
    assert world.file is not None and [one.bytes for one in world.file.leases] == [{"second": 50}]
    a.dies()
    world.advance(0.1)
    assert world.device("second").leased == 0


@pytest.mark.parametrize("seen_before_the_proof", [True, False])
def test_what_a_dead_holder_had_that_has_an_heir_is_not_taken_off_what_others_have(
    world: World, seen_before_the_proof: bool
) -> None:
    """So much was promised then as wasn't there."""
    world.used["training"] = 30
    a, b, c = world.holder("a", 60, name="chat"), world.tree("b"), world.tree("c")
    world.advance(3)
    b.says(m.Heir(name="chat"))
    if seen_before_the_proof:
        a.dies(proven=False)
        del world.used[a.name]
        world.advance(3)
        a.life = False
    else:
        a.dies()
    world.advance(3)
    c.reserve(40, evictable=False)
    b.reserve(60, name="chat")
    assert (b.has, c.has, world.device().foreign) == (60, 0, 30)


def test_an_heir_sees_all_of_it_free_before_it_wakes(world: World) -> None:
    """A driver may keep what a dead process had a little longer."""
    a, b = world.holder("a", 60, name="chat"), world.tree("b")
    b.says(m.Heir(name="chat"))
    b.reserve(60, name="chat")
    world.used["driver"] = 60
    a.dies()
    world.advance(0.3)
    assert b.has == 0
    del world.used["driver"]
    world.advance(0.3)
    assert b.has == 60


def test_what_was_to_be_given_back_is_no_heirs(world: World) -> None:
    a, b, other = world.holder("a", 60, name="chat"), world.tree("b"), world.tree("other")
    b.says(m.Heir(name="chat"))
    other.reserve(60)
    assert a.all(m.Asked)
    a.dies()
    assert other.has == 60


def test_what_was_given_back_on_purpose_is_no_heirs(world: World) -> None:
    a, b, other = world.holder("a", 60, name="chat"), world.tree("b"), world.tree("other")
    b.says(m.Heir(name="chat"))
    a.resize(a.lease, 0)
    world.used.clear()
    other.reserve(60)
    assert other.has == 60


# -- V5: what is given back --------------------------------------------------------------------------------------------


def test_what_is_given_back_counts_until_it_is_seen_to_be_free(world: World) -> None:
    a, b = world.holder("a", 80), world.tree("b")
    a.resize(a.lease, 0)
    b.reserve(80)
    world.advance(1)
    assert b.has == 0 and world.device().returning == 80 and world.alarms == ""
    del world.used[a.name]
    world.advance(0.5)
    assert b.has == 80 and world.device().returning == 0


def test_less_than_was_said_is_named_and_what_is_back_is_leased(world: World) -> None:
    a, b = world.holder("a", 80, name="chat"), world.tree("b")
    a.resize(a.lease, 0)
    world.used[a.name] = 30
    b.reserve(80)
    world.advance(world.config.patience_s + 1)
    assert world.alarms == "a (process 1) said that it has given back chat, and 30 bytes of gpu are still in use"
    assert b.has == 0
    b.says(m.Withdraw(number=1))
    b.reserve(70)
    assert b.has == 70
    a.dies()
    assert world.alarms == "" and world.device().returning == 0


def test_what_it_still_has_though_it_was_given_back_is_its_own_again_and_no_other_trees(world: World) -> None:
    a, b = world.holder("a", 80, name="chat"), world.tree("b")
    a.resize(a.lease, 0)
    world.used[a.name] = 50
    a.reserve(80, name="chat")
    assert a.has == 0, "it may be on its way"
    world.advance(world.config.patience_s + 1)
    assert a.has == 80 and world.alarms == "" and (world.device().leased, world.device().returning) == (80, 0)
    assert not any("more are taken" in str(note.detail) for note in world.notes), "none counts twice"
    b.reserve(30, name="chat.other")
    assert b.has == 0
    world.used[a.name] = 80
    a.resize(a.lease, 0)
    del world.used[a.name]
    world.advance(1)
    assert b.has == 30 and world.device().leased == 30


def test_a_lease_that_is_all_returning_says_nothing_of_bytes_that_it_has(world: World) -> None:
    a = world.holder("a", 80, name="chat")
    a.resize(a.lease, 0)
    (row,) = (line for line in status_lines(world.status, datetime.now(UTC)) if "chat" in line)
    assert "  80 bytes of gpu returning" in row and ", and" not in row


def test_of_what_it_still_has_it_gets_no_more_than_it_asks_for_and_what_is_more_it_awaits(world: World) -> None:
    a, b = world.holder("a", 80, name="chat"), world.holder("b", 20)
    a.resize(a.lease, 0)
    world.used[a.name] = 50
    world.advance(world.config.patience_s + 1)
    a.reserve(30, name="chat")
    assert a.has == 30 and world.device().returning == 20 and "20 bytes of gpu" in world.alarms
    a.reserve(50, name="other")
    assert a.has == 30
    a.says(m.Withdraw(number=a.numbers))
    b.resize(b.lease, 0)
    del world.used[b.name]
    world.advance(1)
    assert a.has == 30 and world.device().available == 50, "of another name it is lacking to its own tree, too"


def test_it_has_no_more_again_than_it_still_has(world: World) -> None:
    a, b = world.holder("a", 60), world.holder("b", 40, evictable=False)
    a.resize(a.lease, 0)
    world.used[a.name] = 10
    world.advance(world.config.patience_s + 1)
    a.reserve(61)
    assert a.has == 0 and "10 bytes of gpu" in world.alarms
    a.says(m.Withdraw(number=a.numbers))
    a.reserve(60)
    assert a.has == 60 and world.alarms == "" and b.has == 40


def test_what_is_given_back_besides_what_is_overdue_may_be_on_its_way(world: World) -> None:
    a, b, c = world.holder("a", 60), world.holder("b", 40), world.tree("c")
    a.resize(a.lease, 40)
    world.advance(world.config.patience_s + 1)
    assert "20 bytes of gpu are still in use" in world.alarms
    a.resize(a.lease, 20)
    c.reserve(30)
    assert b.all(m.Asked) == []


def test_what_it_was_to_have_again_and_could_not_be_written_is_no_others(world: World) -> None:
    a, b = world.holder("a", 80, name="chat"), world.tree("b")
    a.resize(a.lease, 0)
    world.used[a.name] = 50
    world.advance(world.config.patience_s + 1)
    world.disk_fails = "no space"
    a.reserve(80, name="chat")
    b.reserve(60)
    assert a.has == b.has == 0
    world.disk_fails = ""
    world.advance(10)
    assert a.has == 80 and b.has == 0 and world.device().returning == 0


def test_what_should_be_back_long_since_is_awaited_no_more_and_others_are_asked(world: World) -> None:
    a, b, c = world.holder("a", 40), world.holder("b", 40), world.tree("c")
    a.resize(a.lease, 0)
    c.reserve(50)
    assert b.all(m.Asked) == []
    world.advance(world.config.patience_s + 1)
    assert b.all(m.Asked)[0].bytes == {GPU: 30}


def test_what_is_missing_is_the_oldest_ones(world: World) -> None:
    a, b = world.holder("a", 30), world.holder("b", 40)
    a.resize(a.lease, 0)
    world.used[a.name] = 20
    world.advance(6)
    b.resize(b.lease, 0)
    world.used[b.name] = 10
    world.advance(6)
    states = {lease.holder: lease.returning for lease in world.status.leases}
    assert states == {"a": {GPU: 20}, "b": {GPU: 10}}
    del world.used[b.name]
    world.advance(1)
    assert {lease.holder: lease.returning for lease in world.status.leases} == {"a": {GPU: 20}}


def test_part_of_a_lease_is_given_back_in_the_same_way(world: World) -> None:
    a = world.holder("a", 80)
    a.resize(a.lease, 30)
    assert a.has == 30 and world.device().returning == 50
    world.used[a.name] = 30
    world.advance(1)
    assert world.device().returning == 0 and world.device().leased == 30


def test_where_no_process_reads_memory_a_word_is_enough() -> None:
    world = World(reads=False, totals={GPU: 100}, memory_why="no reader")
    a, b = world.tree("a"), world.tree("b")
    a.reserve(80)
    b.reserve(80)
    a.resize(a.lease, 0)
    assert b.has == 80 and world.device().free is None and world.status.memory_why == "no reader"


def test_while_the_reader_fails_nothing_is_leased_and_nothing_is_back(world: World) -> None:
    a, b = world.holder("a", 80), world.tree("b")
    world.reader_problem = "NVML: driver not loaded"
    a.resize(a.lease, 0)
    world.used.clear()
    b.reserve(10)
    world.advance(5)
    assert b.has == 0 and world.device().returning == 80 and "memory can't be read: NVML" in world.alarms
    world.reader_problem = ""
    world.advance(2)
    assert b.has == 10 and "can't be read" not in world.alarms


def test_a_reader_that_hangs_is_named_and_what_comes_too_late_counts_for_nothing(world: World) -> None:
    a = world.tree("a")
    world.reader_answers = False
    a.reserve(10)
    world.advance(3)
    assert a.has == 0 and "does the driver hang?" in world.alarms
    world.answer_readings()
    world.advance(0.1)
    assert a.has == 10 and world.alarms == ""


# -- V6: what others have ----------------------------------------------------------------------------------------------


def test_what_others_have_is_taken_off(world: World) -> None:
    world.used["training"] = 50
    a = world.tree("a")
    a.reserve(60)
    assert a.has == 0 and world.device().foreign == 50 and "lacks 10 bytes of gpu" in world.status.waiters[0].waits_for
    a.reserve(50, name="less", priority=-1)
    assert a.has == 50
    del world.used["training"]
    world.advance(5)
    assert world.device().foreign == 0


def test_what_others_have_stays_known_while_a_new_lease_is_not_used_yet(world: World) -> None:
    """What is in use is less than what is leased, and yet a part of it isn't leased."""
    world.used["training"] = 30
    a, b = world.tree("a"), world.tree("b")
    a.reserve(60)
    b.reserve(40, evictable=False)
    world.advance(5)
    assert a.has == 60 and b.has == 0 and world.device().foreign == 30
    world.used[a.name] = 60
    world.advance(5)
    assert world.device().foreign == 30 and b.has == 0


def test_what_others_have_falls_when_they_end(world: World) -> None:
    a = world.holder("a", 40)
    world.used["training"] = 50
    world.advance(5)
    assert world.device().foreign == 50
    world.used["training"] = 10
    world.advance(5)
    assert world.device().foreign == 10 and a.has == 40


def test_more_than_there_is_is_an_alarm(world: World) -> None:
    """A claim is true, whatever else is."""
    world.restart(lost=True)
    a, b = world.tree("a"), world.tree("b")
    a.comes_back([m.Claim(7, "a", {GPU: 60})])
    b.comes_back([m.Claim(8, "b", {GPU: 60})])
    world.advance(5)
    assert world.alarms == "of gpu 20 bytes more are taken than there are"
    a.resize(7, 30)
    assert world.alarms == ""


# -- V4, V6: what outlives its holder, and is found by the next one ----------------------------------------------------


def server_of_weights(world: World, count: int, **more: Any) -> Tree:
    """It has made memory that another process keeps."""
    gms = world.tree("gms")
    gms.reserve(count, "gms/gpu/a", evictable=False, outlives=True, **more)
    assert gms.has == count
    world.used["engine"] = count
    world.advance(3)
    return gms


def two_servers_die(world: World, a: int, b: int, *, given_back: int, kept: int) -> None:
    """Of what they have made other processes keep so much. The first has said that it gives some back."""
    first, second = world.tree("gms"), world.tree("other")
    first.reserve(a, "gms/gpu/a", outlives=True)
    second.reserve(b, "gms/gpu/b", outlives=True)
    world.used["engine"] = a + b
    if given_back:
        first.resize(first.lease, a - given_back)
    world.advance(3)
    first.dies()
    second.dies()
    world.used["engine"] = kept
    world.advance(1)


def test_what_outlives_its_holder_is_the_next_ones_that_has_found_it_without_room_for_it(world: World) -> None:
    server_of_weights(world, 60).dies()
    other = world.tree("b")
    other.reserve(60, evictable=False)
    world.advance(3)
    assert other.has == 0 and world.device().returning == 60 and world.device().foreign == 0
    assert [lease.state for lease in world.status.leases] == ["kept"]
    assert "kept for the next one" in "".join(status_lines(world.status, datetime.now(UTC))), "no tree is its heir"
    after = world.tree("gms")
    after.reserve(60, "gms/gpu/a", outlives=True, found={GPU: 60}, evictable=False)
    assert after.has == 60
    device = world.device()
    assert (device.leased, device.returning, device.foreign, device.available) == (60, 0, 0, 40)
    world.advance(60)
    assert other.has == 0 and world.alarms == ""
    del world.used["engine"]
    after.resize(after.lease, 0)
    assert other.has == 60


def test_foreign_is_what_was_parked_no_more_though_another_came_into_use_with_it(world: World) -> None:
    """The fault: between two readings the one fell as the other rose, and a third was refused for ever."""
    server_of_weights(world, 60).dies()
    after, b, c = world.tree("gms"), world.tree("b"), world.tree("c")
    after.reserve(60, "gms/gpu/a", outlives=True, found={GPU: 60})
    b.reserve(40, evictable=False)
    world.used[b.name] = 40
    del world.used["engine"]
    after.resize(after.lease, 0)
    world.advance(3)
    c.reserve(60)
    assert c.has == 60 and world.device().foreign == 0


def test_what_others_had_is_foreign_no_more_once_no_reading_has_shown_it_for_long(world: World) -> None:
    world.used["training"] = 60
    a, b = world.tree("a"), world.tree("b")
    a.reserve(40, evictable=False)
    world.advance(3)
    world.used[a.name] = 40
    del world.used["training"]
    world.advance(3)
    b.reserve(60)
    world.advance(world.config.foreign_s - 10)
    assert b.has == 0 and world.device().foreign == 40
    world.advance(15)
    assert b.has == 60 and world.device().foreign == 0


def test_what_outlives_its_holder_counts_though_other_leases_are_not_used_yet(world: World) -> None:
    """Less is in use than what is leased: that says nothing of what is kept, before the next holder had its time."""
    gms = server_of_weights(world, 60)
    a, b = world.tree("a"), world.tree("b")
    a.reserve(30, evictable=False)
    gms.dies()
    b.reserve(20)
    world.advance(world.config.window_s - 1)
    assert b.has == 0 and world.device().returning == 60


def test_what_outlives_its_holder_and_is_not_in_use_is_free(world: World) -> None:
    gms = server_of_weights(world, 60)
    del world.used["engine"]
    gms.dies()
    b = world.tree("b")
    b.reserve(100)
    assert b.has == 100 and world.alarms == ""


def test_what_outlives_its_holder_and_is_found_by_none_is_an_alarm_and_free_when_that_is_seen(world: World) -> None:
    server_of_weights(world, 60).dies()
    world.advance(world.config.patience_s + 1)
    assert world.alarms == ""
    world.advance(world.config.window_s)
    assert "60 bytes of gpu of gms/gpu/a are in use still: its holder is gone" in world.alarms
    del world.used["engine"]
    world.advance(3)
    assert world.alarms == "" and world.device().available == 100


def test_where_no_process_reads_memory_the_next_holder_has_the_window_to_find_it() -> None:
    world = World(reads=False, totals={GPU: 100})
    world.reader_answers = False
    gms, b = world.tree("gms"), world.tree("b")
    gms.reserve(60, "gms/gpu/a", outlives=True)
    gms.dies()
    b.reserve(60, evictable=False)
    world.advance(world.config.window_s - 1)
    assert b.has == 0 and world.alarms == "" and not world.unanswered, "none is asked that isn't there"
    world.advance(2)
    assert b.has == 60


def test_what_outlives_its_holder_is_awaited_by_none_and_others_are_asked(world: World) -> None:
    gms, a, b = server_of_weights(world, 60), world.holder("a", 40), world.tree("b")
    gms.dies()
    b.reserve(40)
    assert a.all(m.Asked)


def test_what_the_next_holder_has_found_within_the_window_is_its_own_also_where_it_waits_for_longer() -> None:
    world = World(reads=False, totals={GPU: 100})
    gms, b, c = world.tree("gms"), world.tree("b"), world.holder("c", 10)
    gms.reserve(60, "gms/gpu/a", outlives=True)
    gms.dies()
    b.reserve(60, evictable=False)
    world.advance(world.config.window_s - 1)
    after = world.tree("gms")
    world.disk_fails = "no space"
    c.resize(c.lease, 0)
    after.reserve(60, "gms/gpu/a", outlives=True, found={GPU: 60})
    world.advance(3)
    assert "can't be written" in world.alarms
    world.disk_fails = ""
    world.advance(3)
    assert (after.has, b.has) == (60, 0)


def test_what_is_found_is_known_to_the_next_server_and_was_outlived_before_it(world: World) -> None:
    server_of_weights(world, 60).dies()
    world.restart()
    world.advance(3)
    assert world.device().returning == 60
    after = world.tree("gms")
    after.reserve(60, "gms/gpu/a", outlives=True, found={GPU: 60})
    claims = [m.Claim(after.lease, "gms/gpu/a", {GPU: 60}, outlives=True)]
    world.restart(lost=True)
    after.comes_back(claims)
    world.advance(3)
    after.dies()
    assert (world.device().leased, world.device().returning) == (0, 60)


def test_what_is_found_and_was_foreign_is_that_no_more(world: World) -> None:
    """No file tells of the lease before."""
    server_of_weights(world, 60).dies()
    world.used["training"] = 10
    world.restart(lost=True)
    world.advance(3)
    assert world.device().foreign == 70
    world.restart()
    after = world.tree("gms")
    after.reserve(60, "gms/gpu/a", outlives=True, found={GPU: 60})
    world.advance(3)
    assert (world.device().leased, world.device().foreign) == (60, 10)


def test_a_holder_that_never_heard_that_it_has_what_it_found_finds_it_again(world: World) -> None:
    server_of_weights(world, 60).dies()
    after, b = world.tree("gms"), world.tree("b")
    after.reserve(60, "gms/gpu/a", outlives=True, found={GPU: 60})
    number = after.lease
    world.restart()
    after.comes_back([])
    b.reserve(60)
    world.advance(3)
    assert b.has == 0 and world.device().returning == 60
    after.heard.clear()
    after.reserve(60, "gms/gpu/a", outlives=True, found={GPU: 60})
    assert after.has == 60 and after.lease != number
    after.resize(after.lease, 0, unused=True)  # the wish was given up before it was granted
    assert b.has == 0 and world.device().returning == 60


def test_a_lease_that_outlives_its_holder_is_no_heirs(world: World) -> None:
    gms, heir = server_of_weights(world, 60), world.tree("b")
    heir.says(m.Heir(name="gms/gpu/a"))
    gms.dies()
    assert world.device().leased == 0 and world.device().returning == 60


def test_what_was_found_and_has_been_freed_since_needs_room_as_all_does(world: World) -> None:
    """(The simulator's seed 1296.)"""
    gms, b = server_of_weights(world, 30), world.tree("b")
    b.reserve(100, evictable=False)
    del world.used["engine"]
    gms.dies()
    after = world.tree("the next")
    after.reserve(30, "gms/gpu/a", outlives=True, found={GPU: 30})
    world.advance(3)
    assert (b.has, after.has) == (100, 0) and world.alarms == ""


def test_only_what_was_kept_under_its_name_is_found_and_each_byte_once(world: World) -> None:
    two_servers_die(world, 20, 30, given_back=10, kept=50)
    assert world.device().returning == 50
    after = world.tree("gms")
    after.reserve(30, "gms/gpu/b", outlives=True, found={GPU: 30})
    assert after.has == 30
    assert [lease.returning for lease in world.status.leases if lease.name == "gms/gpu/a"] == [{GPU: 20}]


def test_what_is_found_may_be_what_counts_as_another_names_and_no_next_holder_of_that_finds(world: World) -> None:
    """An older file knew nothing of it, and the next holder waited for ever. (The simulator's seed 1004763.)"""
    server_of_weights(world, 30).dies()
    world.used["engine"] = 100
    world.advance(world.config.window_s + 1)
    assert "30 bytes of gpu of gms/gpu/a are in use still" in world.alarms and world.device().foreign == 70
    after = world.tree("gms")
    after.reserve(100, "gms/gpu/b", outlives=True, found={GPU: 100})
    assert after.has == 100 and world.alarms == ""
    assert (world.device().leased, world.device().returning, world.device().foreign) == (100, 0, 0)


def test_what_is_found_of_an_overdue_one_of_its_name_is_each_byte_once(world: World) -> None:
    server_of_weights(world, 30).dies()
    world.used["engine"] = 30
    world.advance(world.config.window_s + 1)
    after = world.tree("gms")
    after.reserve(60, "gms/gpu/a", outlives=True, found={GPU: 60})
    assert after.has == 60 and (world.device().leased, world.device().returning) == (60, 0)


def test_what_is_found_of_two_earlier_holders_is_no_more_than_that(world: World) -> None:
    server_of_weights(world, 20).dies()
    world.used["engine"] = 20
    again = world.tree("gms")
    again.reserve(30, "gms/gpu/a", outlives=True)
    world.used["engine"] = 50
    again.dies()
    world.used["engine"] = 50
    world.advance(1)
    assert world.device().returning == 50
    after = world.tree("gms")
    after.reserve(30, "gms/gpu/a", outlives=True, found={GPU: 30})
    assert after.has == 30 and (world.device().returning, world.device().available) == (20, 50)


def test_what_was_asked_for_and_what_was_late_is_an_alarm_no_more_once_it_outlives_its_holder(world: World) -> None:
    gms = world.tree("gms")
    gms.reserve(60, "gms/gpu/a", outlives=True)
    world.used["engine"] = 60
    gms.resize(gms.lease, 40)
    b = world.tree("b")
    b.reserve(50)
    world.advance(world.config.ask_s + 5)
    assert "said that it has given back" in world.alarms and "was asked to give back" in world.alarms
    gms.dies()
    assert world.alarms == ""


def test_kept_bytes_of_several_names_are_together_no_more_than_what_is_in_use(world: World) -> None:
    two_servers_die(world, 40, 40, given_back=0, kept=50)
    assert world.device().returning == 50


def test_what_others_have_is_forgotten_only_as_far_as_no_reading_shows_it(world: World) -> None:
    world.used["training"] = 40
    a, b = world.tree("a"), world.tree("b")
    a.reserve(20, evictable=False)
    world.advance(world.config.foreign_s - 10)
    world.used[a.name] = 20  # from here on all of it is shown again
    world.advance(20)
    b.reserve(30)
    world.advance(world.config.foreign_s - 10)
    assert world.device().foreign == 40
    seen = set()
    for _ in range(200):
        world.advance(0.1)
        seen.add(world.device().foreign)
    assert seen == {40, 10}, "of what is left it is certain"


def test_what_a_living_tree_gives_back_is_found_by_no_other(world: World) -> None:
    a, b = world.holder("a", 30, name="x"), world.tree("b")
    a.resize(a.lease, 0)
    b.reserve(80, "x", outlives=True, found={GPU: 30})
    world.advance(1)
    assert b.has == 0 and world.device().returning == 30


def test_what_another_seems_to_have_still_is_found_where_no_file_told_whose_it_is(world: World) -> None:
    """Found by the simulator (seed 1102870045): what c never used was taken for a part of what the engine keeps."""
    b, c = world.holder("b", 30, evictable=False), world.tree("c")
    c.reserve(20)
    world.used["engine"] = 50
    world.restart(unreadable="torn")
    for tree in (b, c):
        tree.comes_back(tree.claims())
    world.advance(world.config.window_s + 1)
    c.resize(c.lease, 0)
    world.tree("d").reserve(50)  # which waits in vain, and before it
    gms = world.tree("gms")
    gms.reserve(50, "gms/gpu/a", outlives=True, found={GPU: 50})
    assert (gms.has, world.device().returning, world.device().foreign) == (0, 20, 30)
    world.advance(world.config.patience_s)
    assert (gms.has, world.device().returning, world.device().foreign) == (50, 0, 0) and world.alarms == ""


def test_what_is_foreign_is_found_before_what_another_seems_to_have_still(world: World) -> None:
    a, gms = world.holder("a", 20), world.tree("gms")
    world.used["engine"] = 50
    a.resize(a.lease, 0)
    world.advance(world.config.patience_s + 1)
    gms.reserve(50, "gms/gpu/a", outlives=True, found={GPU: 50})
    assert (gms.has, world.device().returning, world.device().foreign) == (50, 20, 0)


def test_what_its_own_tree_seems_to_have_still_is_not_found_too(world: World) -> None:
    gms, _ = world.holder("gms", 30, name="a"), world.holder("b", 60, evictable=False)
    gms.resize(gms.lease, 0)
    world.advance(world.config.patience_s + 1)
    gms.reserve(70, "a", outlives=True, found={GPU: 30})
    assert gms.has == 0


def test_what_was_kept_for_longer_than_the_window_is_found_once(world: World) -> None:
    server_of_weights(world, 20).dies()
    world.holder("b", 50, evictable=False)
    world.advance(world.config.window_s + 1)
    gms = world.tree("gms")
    gms.reserve(60, "gms/gpu/a", outlives=True, found={GPU: 60})
    assert gms.has == 0 and world.status.waiters[0].needs == {GPU: 40}


def test_what_was_kept_and_is_found_is_not_taken_out_of_what_is_foreign(world: World) -> None:
    world.used["training"] = 30
    gms, a = server_of_weights(world, 30), world.tree("a")
    a.reserve(20)
    gms.dies()
    after = world.tree("gms")
    after.reserve(30, "gms/gpu/a", outlives=True, found={GPU: 30})
    assert after.has == 30 and world.device().foreign == 30


def test_what_outlives_a_holder_whose_end_is_not_proven_yet_is_on_its_way_to_none(world: World) -> None:
    gms, a, b = server_of_weights(world, 60), world.holder("a", 40), world.tree("b")
    gms.dies(proven=False)
    b.reserve(40)
    assert a.all(m.Asked)


def test_a_reading_that_began_before_its_holders_end_says_nothing_of_what_outlives_it(world: World) -> None:
    gms = server_of_weights(world, 60)
    world.reader_answers = False
    world.advance(2.01)
    del world.used["engine"]
    older = world.reading()
    gms.dies()
    assert world.unanswered == 1
    world.used["engine"] = 60
    world.reader_answers, world.unanswered = True, 0
    world.feed(older)
    world.advance(1)
    assert world.device().returning == 60


def test_what_is_back_is_not_missing_for_what_is_kept_is_in_use(world: World) -> None:
    gms, a, b = server_of_weights(world, 60), world.tree("a"), world.holder("b", 20)
    a.reserve(20)
    world.reader_answers = False
    world.advance(2.01)
    del world.used[b.name]
    b.resize(b.lease, 0)
    gms.dies()
    assert world.device().returning == 80
    world.reader_answers, world.unanswered = True, 0
    world.feed(world.reading())
    world.advance(0.1)
    assert world.device().returning == 60


# -- V8: who is next ---------------------------------------------------------------------------------------------------


def test_the_first_of_a_priority_goes_first_and_a_more_urgent_one_before_it(world: World) -> None:
    holder, a, b, c = world.holder("h", 100, evictable=False), world.tree("a"), world.tree("b"), world.tree("c")
    a.reserve(60, evictable=False)
    b.reserve(60, evictable=False)
    c.reserve(60, priority=-1, evictable=False)
    assert [waiter.holder for waiter in world.status.waiters] == ["c", "a", "b"]
    for expected in (c, a, b):
        holder.dies()
        assert expected.has == 60
        holder = expected


def test_a_waiter_ages(world: World) -> None:
    world.holder("h", 100, evictable=False)
    a, b = world.tree("a"), world.tree("b")
    a.reserve(60, priority=3)
    world.advance(3 * world.config.age_s + 1)
    b.reserve(60)
    assert [waiter.holder for waiter in world.status.waiters] == ["a", "b"]


def test_a_waiter_of_an_earlier_connection_has_its_place_back(world: World) -> None:
    world.holder("h", 100, evictable=False)
    a, b = world.tree("a"), world.tree("b")
    b.reserve(60)
    a.reserve(60, waited_s=100.0)
    assert [waiter.holder for waiter in world.status.waiters] == ["a", "b"]


def test_a_large_one_is_not_starved_by_small_ones(world: World) -> None:
    h = world.holder("h", 50, evictable=False)
    large, small = world.tree("large"), world.tree("small")
    large.reserve(80)
    small.reserve(10)
    assert small.has == 0
    h.dies()
    assert large.has == 80 and small.has == 10


def test_one_that_waits_in_vain_keeps_no_more_urgent_one_waiting(world: World) -> None:
    world.holder("h", 50, evictable=False)
    large, small, urgent = world.tree("large"), world.tree("small"), world.tree("urgent")
    large.reserve(80, priority=5)
    world.advance(200)
    urgent.reserve(10, priority=1)
    small.reserve(10, priority=5)
    assert [waiter.holder for waiter in world.status.waiters] == ["large", "small"]
    assert urgent.has == 10 and small.has == 0 and "may ask no lease" in world.status.waiters[0].waits_for


def test_none_that_waits_in_vain_keeps_one_waiting_that_has_found_what_it_waits_for(world: World) -> None:
    world.holder("h", 10, evictable=False)
    world.used["engine"] = 60
    world.advance(2)
    assert world.device().foreign == 60
    large, gms = world.tree("large"), world.tree("gms")
    large.reserve(50)
    world.advance(200)
    assert "may ask no lease" in world.status.waiters[0].waits_for
    gms.reserve(70, "gms/gpu/a", outlives=True, found={GPU: 70})
    assert gms.has == 70 and large.has == 0


def test_a_waiter_of_another_device_waits_for_no_one(world: World) -> None:
    world.totals["second"] = 50
    world.holder("h", 100, evictable=False)
    a, b = world.tree("a"), world.tree("b")
    a.reserve(60)
    b.reserve(needs={"second": 10})
    assert b.leases and not a.leases


def test_a_waiter_that_hung_up_is_passed_over_and_one_that_died_is_forgotten(world: World) -> None:
    h, a, b = world.holder("h", 100, evictable=False), world.tree("a"), world.tree("b")
    a.reserve(60)
    b.reserve(60)
    a.hangs_up()
    h.dies()
    assert b.has == 60
    a.comes_back()
    a.reserve(40)
    assert a.has == 40


# -- V9: asking --------------------------------------------------------------------------------------------------------


def test_the_least_urgent_and_least_recently_used_is_asked_and_no_more_than_it_takes(world: World) -> None:
    old, new, low = world.holder("old", 30), world.holder("new", 30), world.holder("low", 20, priority=5)
    kept = world.holder("kept", 10, evictable=False)
    world.advance(1)
    old.says(m.Set(lease=old.lease, used=True))
    world.advance(1)
    new.says(m.Set(lease=new.lease, used=True))
    a = world.tree("a")
    a.reserve(25)
    assert [tree.engine_id for tree in (old, new, low, kept) if tree.all(m.Asked)] == ["low"]
    assert low.all(m.Asked)[0].bytes == {GPU: 15} and "a waits for it" in low.all(m.Asked)[0].why
    b = world.tree("b")
    b.reserve(20)
    assert [tree.engine_id for tree in (old, new, low, kept) if tree.all(m.Asked)] == ["old", "low"]
    low.resize(low.lease, 0)
    del world.used[low.name]
    world.advance(0.1)
    assert a.has == 25 and b.has == 0
    old.resize(old.lease, 0)
    del world.used[old.name]
    world.advance(0.1)
    assert b.has == 20


def test_a_smaller_one_is_spared_where_a_larger_one_has_to_be_asked_anyway(world: World) -> None:
    small, large = world.holder("small", 20), world.holder("large", 70)
    world.advance(1)
    large.says(m.Set(lease=large.lease, used=True))
    world.tree("a").reserve(80)
    assert large.all(m.Asked) and not small.all(m.Asked)


def test_none_is_asked_where_that_leads_to_nothing(world: World) -> None:
    b = world.holder("b", 40)
    world.holder("kept", 50, evictable=False)
    world.tree("a").reserve(60)
    assert not b.all(m.Asked)


def test_none_more_urgent_than_the_waiter_is_asked(world: World) -> None:
    urgent = world.holder("urgent", 80, priority=-1)
    a = world.tree("a")
    a.reserve(60)
    assert not urgent.all(m.Asked)
    urgent.says(m.Set(lease=urgent.lease, priority=0))
    assert urgent.all(m.Asked)


def test_one_that_may_not_be_asked_any_more_is_not(world: World) -> None:
    h = world.holder("h", 80)
    h.says(m.Set(lease=h.lease, evictable=False))
    world.tree("a").reserve(60)
    assert not h.all(m.Asked)


def test_one_that_was_just_granted_is_asked_after_its_first_use_or_a_while() -> None:
    world = World(least_held_s=10.0)
    h, a = world.holder("h", 80), world.tree("a")
    a.reserve(60)
    assert not h.all(m.Asked)
    world.advance(9)
    assert not h.all(m.Asked)
    world.advance(2)
    assert h.all(m.Asked)
    world = World(least_held_s=10.0)
    h, a = world.holder("h", 80), world.tree("a")
    h.says(m.Set(lease=h.lease, used=True))
    a.reserve(60)
    assert h.all(m.Asked)


def test_one_that_does_not_give_back_in_time_is_named_and_the_next_is_asked(world: World) -> None:
    deaf, next_one = world.holder("deaf", 50, name="chat"), world.holder("next", 50)
    world.advance(1)
    next_one.says(m.Set(lease=next_one.lease, used=True))
    a = world.tree("a")
    a.reserve(50)
    assert deaf.all(m.Asked)[0].timeout_s == 30 and not next_one.all(m.Asked)
    world.advance(31)
    assert "deaf (process 1) was asked to give back chat for a, and has not within 30 s" in world.alarms
    assert next_one.all(m.Asked) and deaf.has == 50
    next_one.resize(next_one.lease, 0)
    del world.used[next_one.name]
    world.advance(1)
    assert a.has == 50
    world.advance(world.config.ask_again_s)
    assert world.alarms == "", "no waiter wants it any more"


def test_one_that_was_late_is_asked_again_after_a_while(world: World) -> None:
    deaf, a = world.holder("deaf", 50), world.tree("a")
    a.reserve(80)
    world.advance(31 + world.config.ask_again_s)
    assert len(deaf.all(m.Asked)) == 2
    deaf.resize(deaf.lease, 0)
    del world.used[deaf.name]
    world.advance(1)
    assert a.has == 80 and world.alarms == ""


def test_one_that_gives_back_a_part_has_still_to_give_the_rest(world: World) -> None:
    h, a = world.holder("h", 80), world.tree("a")
    a.reserve(60)
    h.resize(h.lease, 60)
    world.used[h.name] = 60
    world.advance(1)
    assert a.has == 0 and world.machine.leases.all[h.lease].asked is not None
    h.resize(h.lease, 40)
    world.used[h.name] = 40
    world.advance(1)
    assert a.has == 60 and world.machine.leases.all[h.lease].asked is None


def test_who_was_asked_hears_it_again_when_it_comes_back(world: World) -> None:
    h, a = world.holder("h", 80), world.tree("a")
    a.reserve(60)
    world.advance(10)
    h.hangs_up()
    h.comes_back(h.claims())
    assert [round(asked.timeout_s) for asked in h.all(m.Asked)] == [30, 20]


def test_who_was_late_hears_when_it_comes_back_that_it_has_no_time_left(world: World) -> None:
    h, a = world.holder("h", 80), world.tree("a")
    a.reserve(60)
    world.advance(31)
    h.hangs_up()
    h.comes_back(h.claims())
    assert h.all(m.Asked)[-1].timeout_s == 0


def test_a_tree_that_wants_more_is_not_asked_for_what_it_has(world: World) -> None:
    a, _ = world.holder("a", 60), world.holder("b", 40, evictable=False)
    a.resize(a.lease, 80)
    assert not a.all(m.Asked) and "may ask no lease" in world.status.waiters[0].waits_for


def test_none_is_asked_before_all_may_be_that_are_needed() -> None:
    world = World(least_held_s=5)
    used, fresh = world.holder("used", 50), world.holder("fresh", 50)
    used.says(m.Set(lease=used.lease, used=True))
    world.tree("a").reserve(80)
    world.advance(4)
    assert not used.all(m.Asked) and not fresh.all(m.Asked)
    world.advance(1)
    assert used.all(m.Asked) and fresh.all(m.Asked)


def test_what_was_asked_for_is_there_for_one_waiter(world: World) -> None:
    h, _ = world.holder("h", 40), world.holder("other", 60, evictable=False)
    a, b = world.tree("a"), world.tree("b")
    a.reserve(30)
    b.reserve(35)
    assert [asked.bytes for asked in h.all(m.Asked)] == [{GPU: 30}]
    assert ["may ask no lease" in waiter.waits_for for waiter in world.status.waiters] == [False, True]


def test_that_a_lease_is_asked_for_is_published_and_noted() -> None:
    world = World(reads=False, totals={GPU: 100}, least_held_s=5)
    world.holder("h", 100)
    world.tree("a").reserve(50)
    world.advance(5)
    assert world.published is not None and world.published.leases[0].state == "asked" and world.noted("asked")


def test_none_is_asked_while_a_dead_tree_has_only_to_be_proven_gone(world: World) -> None:
    dying, h, a = world.holder("dying", 60), world.holder("h", 40), world.tree("a")
    dying.dies(proven=False)
    a.reserve(60)
    assert not h.all(m.Asked)


# -- V10: after a restart ----------------------------------------------------------------------------------------------


def test_leases_count_after_a_restart_and_come_back_with_their_holders(world: World) -> None:
    a = world.holder("a", 60, name="chat")
    world.restart()
    b = world.tree("b")
    b.reserve(60, evictable=False)
    world.advance(5)
    assert b.has == 0
    a.comes_back([m.Claim(a.lease, "chat", {GPU: 60}, priority=3, evictable=True, unused_s=7.0)])
    world.advance(0.1)
    (lease,) = world.status.leases
    assert (lease.holder, lease.bytes, lease.priority) == ("a", {GPU: 60}, 3) and lease.unused_s >= 7
    assert a.all(m.Asked), "b waits"
    a.dies()
    assert b.has == 60


def died_with_the_server(world: World) -> Tree:
    """The one that has 60 has; the one that is returned has come back, and waits for 80."""
    a, b = world.holder("a", 60), world.tree("b")
    a.alive = a.life = False
    world.restart()
    b.comes_back()
    b.reserve(80)
    return b


def test_one_that_died_with_the_server_is_proven_gone_by_its_processes(world: World) -> None:
    b = died_with_the_server(world)
    world.used.clear()
    world.advance(0.5)
    assert b.has == 80


def test_where_processes_cant_be_looked_up_a_free_life_lock_and_memory_that_is_back_prove_it() -> None:
    world = World(pid_namespace="")
    b = died_with_the_server(world)
    world.advance(3)
    assert b.has == 0 and world.machine.leases.leased[GPU] == 60, "its memory is in use"
    world.used.clear()
    world.advance(1.5)
    assert b.has == 80


def test_where_no_reader_tells_of_memory_a_free_life_lock_alone_proves_no_end() -> None:
    world = World(pid_namespace="", reads=False, totals={GPU: 100})
    b = died_with_the_server(world)
    world.advance(60)
    assert b.has == 0 and "nothing proves the end of process" in world.alarms


def test_a_lease_that_its_holder_was_never_told_of_ends(world: World) -> None:
    a, b = world.holder("a", 60), world.tree("b")
    world.restart()
    a.comes_back([])
    b.comes_back()
    b.reserve(100)
    world.used.clear()
    world.advance(1)
    assert b.has == 100 and not world.status.leases[1:]


def test_a_growth_that_its_holder_was_never_told_of_ends(world: World) -> None:
    a = world.holder("a", 60)
    before = a.claims()
    a.resize(a.lease, 90)
    world.restart()
    a.comes_back(before)
    assert world.machine.leases.leased[GPU] == 60 and world.machine.leases.sum_returning[GPU] == 0


def test_what_was_given_back_and_not_acknowledged_is_given_back_again_and_counted_once(world: World) -> None:
    a = world.holder("a", 60)
    before = a.claims()
    a.resize(a.lease, 20)
    world.restart()
    a.comes_back(before)
    assert world.machine.leases.leased[GPU] == 60 and world.machine.leases.sum_returning[GPU] == 0
    a.resize(before[0].lease, 20)
    assert world.machine.leases.leased[GPU] == 20 and world.machine.leases.sum_returning[GPU] == 40


def test_a_claim_that_no_file_knows_is_true(world: World) -> None:
    a = world.holder("a", 60, name="chat")
    claims = [m.Claim(a.lease, "chat", {GPU: 60})]
    world.restart(lost=True)
    a.comes_back(claims)
    world.advance(3)
    assert world.machine.leases.leased[GPU] == 60
    b = world.tree("b")
    b.reserve(60, evictable=False)
    assert b.has == 0
    assert world.file is not None and world.file.leases[0].name == "chat"


def test_what_is_held_counts_once_after_the_file_was_lost(world: World) -> None:
    """It was in use before its holder came back, and no lease was known then."""
    world.used["training"] = 10
    a = world.holder("a", 60)
    world.restart(lost=True)
    world.advance(0.5)
    assert world.device().foreign == 70
    a.comes_back(a.claims())
    assert world.device().foreign == 10
    b = world.tree("b")
    b.reserve(40, evictable=False)
    world.advance(3)
    assert b.has == 0 and world.alarms == ""
    b.reserve(30, name="less", evictable=False)
    b.says(m.Withdraw(number=1))
    assert b.has == 30


def test_what_grew_after_the_file_was_copied_counts_once(world: World) -> None:
    world.used["training"] = 10
    a = world.holder("a", 30)
    old = world.file
    a.resize(a.lease, 60)
    world.used[a.name] = 60
    world.file = old
    world.restart()
    world.advance(0.5)
    assert world.device().foreign == 40
    a.comes_back(a.claims())
    assert world.device().foreign == 10


def test_what_was_known_to_be_others_is_not_taken_for_a_claimed_leases(world: World) -> None:
    """Its holder hasn't used it yet."""
    world.used["training"] = 30
    world.advance(5)
    a = world.tree("a")
    a.reserve(60)
    assert world.file is not None and world.file.foreign == {GPU: 30}
    world.file = replace(world.file, leases=[])
    world.restart()
    a.comes_back(a.claims())
    assert world.device().foreign == 30


def test_a_claim_of_anothers_lease_is_refused(world: World) -> None:
    a, b = world.holder("a", 60), world.tree("b")
    b.hangs_up()
    b.comes_back(a.claims())
    assert "another tree's" in b.all(em.Refused)[0].why
    b.register()
    assert b.all(em.Refused)[1:], "and it stays so"


def test_a_new_number_is_no_claimed_ones(world: World) -> None:
    a = world.holder("a", 10)
    world.restart(lost=True)
    a.comes_back([m.Claim(world.machine.grants.newest + 1, "x", {GPU: 10})])
    world.advance(3)
    b = world.tree("b")
    b.reserve(10)
    assert b.lease == world.machine.grants.newest and len(world.status.leases) == 2


def test_without_a_file_nothing_is_leased_before_a_holder_had_the_time_to_come(world: World) -> None:
    world.restart(lost=True)
    b = world.tree("b")
    b.reserve(10)
    world.advance(1.9)
    assert b.has == 0 and world.status.settled == "there is no vram.json"
    world.advance(0.3)
    assert b.has == 10 and world.status.settled == ""


def test_without_a_file_nothing_is_leased_while_a_stranger_has_a_life_lock(world: World) -> None:
    world.restart(lost=True)
    world.strangers["x.00000000"] = True
    b = world.tree("b")
    b.reserve(10)
    world.advance(11)
    assert b.has == 0 and world.alarms == "", "it may be starting"
    world.advance(2)
    assert b.has == 0 and "the life lock of x.00000000 is held" in world.alarms
    world.strangers["x.00000000"] = False
    world.advance(1.0)
    assert b.has == 0, "it may be dying"
    world.advance(1.5)
    assert b.has == 10 and world.alarms == "" and "x.00000000" in world.unlinked


def test_that_a_file_was_lost_is_not_forgotten_by_writing_a_new_one(world: World) -> None:
    a = world.holder("a", 10)
    world.restart(lost=True)
    world.strangers["x.00000000"] = True
    a.comes_back(a.claims())
    world.advance(5)
    assert world.file is not None and world.file.unsettled
    world.restart()
    a.comes_back(a.claims())
    b = world.tree("b")
    b.reserve(10)
    world.advance(20)
    assert b.has == 0


def test_an_unreadable_file_takes_the_whole_window(world: World) -> None:
    world.restart(unreadable="its checksum is wrong")
    b = world.tree("b")
    b.reserve(10)
    world.advance(9)
    assert b.has == 0 and "checksum" in world.status.settled
    world.advance(2)
    assert b.has == 10


def test_with_a_file_a_stranger_has_the_settling_time(world: World) -> None:
    """The file may be an older copy of itself."""
    world.holder("a", 10)
    world.restart()
    world.strangers["x.00000000"] = True
    b = world.tree("b")
    b.reserve(10)
    world.advance(1.5)
    assert b.has == 0
    world.advance(1)
    assert b.has == 10


def test_what_was_booted_since_has_no_leases(world: World) -> None:
    a = world.holder("a", 60)
    world.used.clear()
    del world.trees["a"]
    world.restart(boot_id="another")
    b = world.tree("b")
    b.reserve(100)
    assert b.has == 100 and a.name in world.unlinked


def test_heirs_are_known_after_a_restart(world: World) -> None:
    a, b, other = world.holder("a", 60, name="chat"), world.tree("b"), world.tree("other")
    b.says(m.Heir(name="chat"))
    a.alive = a.life = False
    world.used.clear()
    world.restart()
    other.comes_back()
    other.reserve(60, evictable=False)
    world.advance(3)
    assert other.has == 0 and world.status.leases[0].state == "kept"
    b.comes_back(heirs=["chat"])
    b.reserve(60, name="chat")
    assert b.has == 60


def test_what_others_have_is_known_after_a_restart(world: World) -> None:
    world.used["training"] = 30
    a = world.tree("a")
    a.reserve(60)
    world.restart()
    a.comes_back(a.claims())
    b = world.tree("b")
    b.reserve(30, evictable=False)
    world.advance(3)
    assert b.has == 0 and world.device().foreign == 30


def test_a_holder_of_another_version_keeps_its_leases(world: World) -> None:
    a, b = world.holder("a", 60), world.tree("b")
    claims = a.claims()
    world.restart()
    a.comes_back(claims, protocol=99, newest=99)
    b.comes_back()
    b.reserve(60)
    world.advance(20)
    assert a.all(em.Incompatible) and b.has == 0 and "finish the upgrade" in world.alarms
    a.dies()
    assert b.has == 60


def test_a_server_whose_directory_was_replaced_grants_nothing_more(world: World) -> None:
    effects = world.machine.handle(DirectoryReplaced("replaced"), Time(world.now, 0.0))
    assert Stop("replaced") in effects
    a = world.tree("a")
    a.reserve(10)
    world.advance(5)
    assert a.has == 0


def test_an_unsettled_file_of_another_boot_leaves_nothing_unsettled(world: World) -> None:
    world.restart(lost=True)
    world.strangers["x.00000000"] = True
    world.advance(5)
    world.tree("a").says(m.Heir(name="chat"))
    assert world.file is not None and world.file.unsettled
    world.trees.clear()
    world.strangers.clear()
    world.restart(boot_id="another")
    b = world.tree("b")
    b.reserve(10)
    assert b.has == 10 and world.status.settled == ""


@pytest.mark.parametrize(("may_come", "waits"), [("stranger", True), ("holder", True), ("", False)])
def test_with_a_file_what_may_come_back_has_the_settling_time_and_nothing_else_is_awaited(
    world: World, may_come: str, waits: bool
) -> None:
    a = world.holder("a", 10)
    world.strangers["x.00000000"] = may_come == "stranger"
    world.restart()
    if may_come == "holder":
        a.alive = False
    else:
        a.comes_back(a.claims())
    b = world.tree("b")
    b.reserve(10)
    world.advance(1)
    assert b.has == (0 if waits else 10)
    world.advance(1.5)
    assert b.has == 10


def test_life_files_that_cant_be_read_may_be_any_trees(world: World) -> None:
    world.restart(lost=True)
    b = world.tree("b")
    b.reserve(10)
    world.advance(1)
    assert b.has == 0 and world.alarms == "", "it isn't late yet"
    world.feed(e.StrangersProbed((), (), unreadable="no permission"))
    world.advance(1.95)
    assert b.has == 0


def test_heirs_say_so_to_a_server_without_a_file(world: World) -> None:
    a, b = world.holder("a", 60, name="chat"), world.tree("b")
    b.says(m.Heir(name="chat"))
    world.restart(lost=True)
    a.comes_back([m.Claim(a.lease, "chat", {GPU: 60})])
    b.comes_back(heirs=["chat"])
    assert world.file is not None and world.file.heirs == {"chat": [b.name]}
    a.dies()
    assert [lease.state for lease in world.status.leases] == ["kept"]


def test_a_claim_of_no_bytes_that_no_file_knows_is_none(world: World) -> None:
    a = world.tree("a")
    a.comes_back([m.Claim(77, "x", {GPU: 0})])
    assert world.status.leases == [] and world.noted("claimed") == []


@pytest.mark.parametrize("what", ["nothing", "another's"])
def test_one_of_another_version_that_claims_nothing_of_its_own_keeps_nothing(world: World, what: str) -> None:
    a, b = world.holder("a", 60), world.tree("b")
    b.comes_back(a.claims() if what == "another's" else [], protocol=99, newest=99)
    assert b.all(em.Incompatible) and world.alarms == ""


def test_a_living_process_whose_connection_broke_is_no_alarm(world: World) -> None:
    world.holder("a", 60).hangs_up()
    world.advance(world.config.window_s + 1)
    assert world.alarms == "" and world.device().leased == 60


def test_a_process_that_was_never_seen_is_an_alarm_once_its_main_process_runs_another_program() -> None:
    world = World(pid_namespace="")
    a = world.holder("a", 60)
    assert world.file is not None
    world.file.processes.known[0].members.append(Member(2, "pidfs:77", 77, 0, mapped=False))
    world.restart()
    a.comes_back(a.claims())
    a.hangs_up()
    a.life = False
    world.advance(world.config.window_s + 1)
    assert world.alarms == "", "it may come back"
    again = world.trees["again"] = Tree(world, "again", 50, a.process)
    again.register()
    world.advance(world.config.window_s + 1)
    assert "nothing proves the end of process 77" in world.alarms


def test_the_life_file_of_a_holder_goes_when_its_end_is_on_disk_and_that_of_an_heir_too(world: World) -> None:
    a, b = world.holder("a", 60), world.tree("b")
    b.says(m.Heir(name="chat"))
    world.disk_answers = False
    for tree in (a, b):
        tree.dies()
    assert world.unlinked == [] and world.file is not None and world.file.heirs == {}
    world.disk_has_answered()
    assert sorted(world.unlinked) == [a.name, b.name] and world.device().leased == 0


# -- V11, and the rest -------------------------------------------------------------------------------------------------


def test_what_can_never_fit_is_denied_with_the_figures(world: World) -> None:
    a = world.tree("a")
    a.reserve(101)
    a.reserve(1, device="none")
    said = [denied.why for denied in a.all(m.Denied)]
    assert said == [
        "101 bytes of gpu are needed, and it has 100 bytes in all",
        "no device 'none' is known here; there are: gpu",
    ]
    assert "start vram with --total" in _denied(World(reads=False))


def _denied(world: World) -> str:
    a = world.tree("a")
    a.reserve(1)
    return str(a.all(m.Denied)[0].why)


def test_a_total_that_was_given_bounds_a_device_that_is_read() -> None:
    world = World(totals={GPU: 50})
    a = world.tree("a")
    a.reserve(60)
    a.reserve(50)
    assert len(a.all(m.Denied)) == 1 and a.has == 50


def test_who_gives_up_is_not_granted_unless_the_grant_came_first(world: World) -> None:
    h, a = world.holder("h", 80, evictable=False), world.tree("a")
    number = a.reserve(60)
    a.says(m.Withdraw(number=number))
    h.dies()
    assert a.has == 0 and a.all(m.Withdrawn)[0].number == number
    number = a.reserve(60)
    a.says(m.Withdraw(number=number))
    assert a.has == 60


def test_what_was_never_used_is_free_at_once(world: World) -> None:
    a = world.holder("a", 60)
    a.resize(a.lease, 0, unused=True)
    assert world.device().returning == 0


def test_what_a_tree_may_ask_for_is_bounded(world: World) -> None:
    world.holder("h", 100, evictable=False)
    a = world.tree("a")
    for _ in range(MOST_OF_ONE + 5):
        a.reserve(1, name=f"n{a.numbers}")
    assert len(a.all(m.Denied)) == 5 and len(world.machine.queue.waiters) == MOST_OF_ONE
    for number in range(m.MOST_HEIRED + 1):
        a.says(m.Heir(name=f"n{number}"))
    assert len(a.all(m.Named)) == m.MOST_HEIRED and a.all(em.Problem)


def test_a_tree_with_as_many_leases_as_it_may_have_can_let_one_grow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(m, "MOST_LEASES_OF_ONE", 50)
    a = world.tree("a")
    for number in range(m.MOST_LEASES_OF_ONE):
        a.reserve(1, name=f"n{number}")
    a.reserve(1, name="one more")
    assert len(a.all(m.Denied)) == 1
    lease = a.all(m.Granted)[0].lease
    a.resize(lease, 2)
    assert a.leases[lease] == {GPU: 2} and len(a.all(m.Denied)) == 1


def test_only_a_main_process_asks_for_memory(world: World) -> None:
    a = world.tree("a")
    a.conn = 500
    a.says(m.AskStatus())
    assert "introduce yourself" in a.all(em.Problem)[0].why
    a.says(em.Observe(protocol=1))
    a.says(m.Watch())
    a.says(m.AskHistory())
    assert a.all(m.History)
    a.reserve(10)
    assert "for the registered main process" in a.all(em.Problem)[1].why


def test_a_server_at_rest_with_no_lease_sleeps(world: World) -> None:
    a = world.holder("a", 10)
    assert world.machine.deadline < float("inf"), "what others take is to be known"
    a.dies()
    world.advance(10)
    assert world.machine.deadline == float("inf")


def test_a_plan_is_only_a_question(world: World) -> None:
    a, b = world.holder("a", 80), world.tree("b")
    b.reserve(60)
    a.resize(a.lease, 0)
    before = len(world.machine.context.out)
    first = world.machine.plan()
    assert first == world.machine.plan() and len(world.machine.context.out) == before
    assert not [effect for effect in world.machine.context.out if isinstance(effect, e.Persist)][1:]


def test_the_status_of_very_many_leases_fits_into_a_frame_and_says_what_is_left_out() -> None:
    world = World(patience_s=0.1)
    devices = [f"{number:02}".ljust(128, "d") for number in range(60)]
    each = dict.fromkeys(devices, 2)
    world.totals = dict.fromkeys(devices, 2 * 55)
    a, b = Tree(world, "a", 500, 500), world.tree("b")
    world.trees["a"] = a
    world.used[a.name] = dict(world.totals)
    a.register([m.Claim(n, f"{n}".ljust(200, "n"), each, evictable=False) for n in range(1, 56)])
    for number in range(13):
        b.reserve(needs=each, name=f"{number}".ljust(200, "b"))
        a.resize(number + 1, 0, bytes=dict.fromkeys(devices, 1))
    world.advance(0.2)
    seen = world.status
    assert len(msgspec.msgpack.encode(seen)) <= MAX_FRAME_BYTES
    assert (seen.leases_total, seen.waiters_total) == (55, 13)
    more = [seen.leases_total - len(seen.leases), seen.waiters_total - len(seen.waiters)]
    said = status_lines(seen, datetime.now(UTC))
    assert [line for line in said if "which don't fit" in line] == [
        f"and {count} more, which don't fit into the answer" for count in more
    ]
    shown = len(seen.alarms) - 1
    assert f"{len(world.machine.context.alarms) - shown} more alarms don't fit into the answer" in seen.alarms[-1]


def test_rules_that_go_round_in_a_circle_are_an_alarm_and_nothing_is_granted_any_more(world: World) -> None:
    a = world.holder("a", 60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.machine.returns, "plan", lambda plan, found: plan.do(lambda: None))
        world.feed(Tick())
    assert "go round in a circle" in world.status.alarms[0]
    b = world.tree("b")
    b.reserve(10)
    assert (a.has, b.has) == (60, 0)
