"""GMS's leases in a ledger of the host's memory: no slab of weights is made before it is leased, none is leased longer
than it is there, and a device whose ledger has no more is a full one. `House._check` sees to the first at each event.
"""

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules.leases import AGAIN_S
from gms.rules.sessions import Doing
from tests.gms import live
from tests.gms.live import MIB
from tests.gms.machine_shell import MEMORY_WAIT_S, WINDOW_S, House, document, memory_of, restarted
from tests.gms.test_machine_rules import hand_back
from tests.gms.test_parking_rules import SUMS, parked_house
from tests.vram.programs import house as ledger_house


def test_a_lease_grows_with_the_weights_and_ends_with_them() -> None:
    house = House(ledger=1000)
    house.writer(1, 100, 50)
    assert house.leased == {"weights": 150}
    house.leaves(1)
    assert house.leased == {"weights": 0}, "a writer that ends without a commit has written nothing"
    house.loaded(200, by=2)
    assert house.leased == {"weights": 200}
    house.hello(3)
    opened = house.says(3, m.Open(mode="rw", replace=True, bytes=60))
    assert isinstance(opened, m.Opened)
    house.says(3, m.Create(size=60))
    assert house.leased == {"weights": 260}, "the old layout stays until the new one is committed"
    house.commits(3, 60)
    assert house.leased == {"weights": 60}


def test_models_have_a_lease_each() -> None:
    house = House(ledger=300)
    house.loaded(100, by=1, key="chat")
    house.loaded(200, by=2, key="coder")
    assert house.leased == {"chat": 100, "coder": 200}
    wishes = [effect for effect in house.log if isinstance(effect, e.Lease)]
    assert [(each.key, each.bytes, each.timeout_s) for each in wishes] == [
        ("chat", 100, MEMORY_WAIT_S),
        ("coder", 200, MEMORY_WAIT_S),
    ]


def test_a_device_whose_ledger_has_no_more_is_a_full_one_and_nothing_is_made() -> None:
    house = House(ledger=100)
    house.writer(1, 60)
    refused = house.says(1, m.Create(size=60))
    assert isinstance(refused, m.Refused) and refused.reason == "no_memory"
    assert "the ledger has none" in refused.why
    assert house.leased == {"weights": 60} and house.doing(1) is Doing.WRITING
    assert isinstance(house.says(1, m.Create(size=40)), m.Created)


def test_memory_that_is_leased_and_cant_be_made_is_given_back() -> None:
    house = House(ledger=1000)
    house.foreign = 950
    house.writer(1)
    assert house.says(1, m.Create(size=100)) is None and house.leased == {"weights": 100}, "it is tried again"
    house.later(MEMORY_WAIT_S + 1)
    assert isinstance(house.last(1), m.Refused) and house.leased == {"weights": 0}


def test_a_writer_that_has_gone_while_its_wish_waits_costs_the_next_one_nothing() -> None:
    house = House(ledger=1000)
    house.writer(1)
    house.ledger_waits = True
    assert house.says(1, m.Create(size=100)) is None
    waits = next(effect for effect in house.log if isinstance(effect, e.Lease))
    house.leaves(1)
    house.ledger_waits = False
    answer = house.lease(waits)
    assert answer is not None
    house.feed(answer)
    assert house.leased == {"weights": 0}, "nothing is made for it"
    house.writer(2, 70)
    assert house.leased == {"weights": 70}


def test_a_wish_is_called_off_when_its_writer_has_gone() -> None:
    house = House(ledger=1000)
    house.writer(1)
    house.ledger_waits = True
    house.says(1, m.Create(size=100))
    assert not any(isinstance(effect, e.CallOff) for effect in house.log)
    house.leaves(1)
    house.writer(2)
    house.says(2, m.Create(size=70))
    wishes = [effect for effect in house.log if isinstance(effect, e.Lease | e.CallOff)]
    first, off, second = wishes
    assert isinstance(second, e.Lease) and off == e.CallOff(first.wish)
    house.feed(e.Leased(first.wish, "it was called off"))
    house.ledger_waits = False
    answer = house.lease(second)
    assert answer is not None
    house.feed(answer)
    assert isinstance(house.last(2), m.Created)


def test_a_writer_that_was_killed_while_its_wish_waits_holds_up_no_other() -> None:
    with ledger_house() as host:
        host.serve()
        host.holder("other").holds("one", 60 * MIB)
        house = live.House(host.host_dir.parent, devices=())
        house.ledger, house.memory_wait_s = True, 300.0
        try:
            house.start()
            first, second = house.program("a"), house.program("b")
            first.do("write")
            first.tell("create", 80 * MIB)
            host.until(lambda status: status.waiters_total, "its wish waits")
            first.kill()
            host.until(lambda status: not status.waiters_total, "its wish waits no more")
            second.do("write")
            assert second.do("create", 10 * MIB) == 0
        finally:
            house.close()


def test_what_is_handed_back_to_a_new_server_is_leased_as_found() -> None:
    before = House(ledger=1000)
    before.loaded(100, 50)
    house = restarted(before, ledger=0)
    house.hello(1)
    assert isinstance(house.says(1, hand_back(house), memory_of(before)), m.HandedBack)
    (wish,) = (effect for effect in house.log if isinstance(effect, e.Lease))
    assert (wish.key, wish.bytes, wish.found) == ("weights", 150, 150)
    assert house.leased == {"weights": 150}, "that needs no room"
    house.later(WINDOW_S + 1)
    house.ledger = 180
    house.hello(2)
    assert isinstance(house.says(2, m.Open(mode="rw", replace=True)), m.Opened)
    house.says(2, m.Create(size=30))
    assert house.leased == {"weights": 180}
    house.commits(2, 30)
    assert house.leased == {"weights": 30}


def test_a_lease_of_what_was_found_is_asked_for_until_there_is_one() -> None:
    before = House(ledger=1000)
    before.loaded(100)
    house = restarted(before, ledger=1000)
    house.ledger_refuses = True
    house.hello(1)
    house.says(1, hand_back(house), memory_of(before))
    assert house.leased == {}
    house.ledger_refuses = False
    house.later(AGAIN_S)
    assert house.leased == {"weights": 100}
    wishes = [effect for effect in house.log if isinstance(effect, e.Lease)]
    house.later(10)
    assert len(wishes) == 2 and wishes == [effect for effect in house.log if isinstance(effect, e.Lease)]


def test_a_lease_that_grows_before_what_was_found_has_one_covers_both() -> None:
    before = House(ledger=1000)
    before.loaded(100)
    house = restarted(before, ledger=1000)
    house.hello(1)
    house.ledger_refuses = True
    house.says(1, hand_back(house), memory_of(before))
    house.ledger_refuses = False
    house.later(AGAIN_S - 0.1)
    house.hello(2)
    house.machine.regions["weights"].recovery.window.end()
    house.says(2, m.Open(mode="rw", replace=True))
    assert isinstance(house.says(2, m.Create(size=30)), m.Created)
    assert [each.found for each in house.log if isinstance(each, e.Lease)] == [100, 100]
    assert house.leased == {"weights": 130}


def test_what_is_parked_and_handed_back_has_no_lease() -> None:
    before = parked_house(ledger=1000)
    house = restarted(before, ledger=1000)
    house.hello(3, parks=True)
    slabs = tuple((slab.identity, 0) for slab in house.record.slabs)
    house.says(3, hand_back(house, layout=document(30, 20), sums=SUMS, table=True), slabs)
    assert house.state == "PARKED" and house.leased == {}


def test_others_are_served_while_a_wish_waits() -> None:
    house = House(ledger=1000)
    house.loaded(50, by=9, key="coder")
    house.writer(1)
    house.ledger_waits = True
    house.says(1, m.Create(size=100))
    house.hello(2, key="coder")
    house.says(2, m.Open(mode="ro"))
    assert house.heard(2, m.Opened)
    house.later(MEMORY_WAIT_S * 2)
    assert house.heard(1, m.Refused) == [], "the ledger's answer is bounded by itself"


def test_without_a_ledger_nothing_is_leased() -> None:
    house = House()
    house.loaded(100)
    assert not [effect for effect in house.log if isinstance(effect, e.Lease)]
