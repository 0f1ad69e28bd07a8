"""GMS's leases in a ledger of the host's memory: no slab of weights is made before it is leased, none is leased longer
than it is there, and a device whose ledger has no more is a full one. `House._check` sees to the first at each event.
"""

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules.sessions import Doing
from tests.gms import live
from tests.gms.live import MIB
from tests.gms.machine_shell import MEMORY_WAIT_S, House
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
