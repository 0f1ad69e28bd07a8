"""First on disk, then told: built alone. What the servers do with it is tested with their machines."""

import math

from sidecar.machine.disk_writes import RETRY_S, DiskWrites


def test_writes_are_numbered_and_what_is_owed_waits_for_the_newest() -> None:
    disk: DiskWrites[str] = DiskWrites()
    assert not disk.failing and not disk.under_way
    assert disk.ask() == 1 and disk.under_way
    disk.owe("first")
    assert disk.ask() == 2
    disk.owe("second")
    disk.owe("also in the first", to=1)
    assert disk.owed == ["first", "second", "also in the first"]
    assert disk.persisted(1) == ["first", "also in the first"] and disk.under_way
    assert disk.persisted(2) == ["second"] and not disk.under_way and disk.done == 2
    assert disk.persisted(2) == [] and disk.owed == []


def test_a_write_contains_all_that_was_asked_for_before() -> None:
    disk: DiskWrites[str] = DiskWrites()
    disk.ask()
    disk.owe("first")
    disk.ask()
    assert disk.persisted(2) == ["first"]
    assert disk.persisted(1) == [] and disk.done == 2, "what is on disk stays there"


def test_after_a_failure_what_is_owed_stays_owed_and_the_write_is_due_again() -> None:
    disk: DiskWrites[str] = DiskWrites()
    disk.ask()
    disk.owe("first")
    disk.failed(1, "no space", 10.0)
    assert disk.failing == "no space" and disk.due_at == 10.0 + RETRY_S and not disk.under_way
    assert disk.owed == ["first"] and disk.done == 0
    assert disk.ask() == 2 and not disk.failing and disk.due_at == math.inf
    assert disk.persisted(2) == ["first"]


def test_a_failure_without_a_reason_is_a_failure() -> None:
    disk: DiskWrites[str] = DiskWrites()
    disk.ask()
    disk.failed(1, "", 0.0)
    assert disk.failing


def test_what_became_of_an_older_write_says_nothing_of_the_newest() -> None:
    disk: DiskWrites[str] = DiskWrites()
    disk.ask()
    disk.ask()
    assert not disk.failed(1, "no space", 0.0)
    assert not disk.failing and disk.under_way and disk.due_at == math.inf
    assert disk.failed(2, "no space", 0.0)
    disk.persisted(1)
    assert disk.failing, "the newest one still isn't there"
    disk.persisted(2)
    assert not disk.failing, "it came after all"


def test_what_is_taken_back_is_not_told() -> None:
    disk: DiskWrites[str] = DiskWrites()
    disk.ask()
    disk.owe("stays")
    disk.owe("goes")
    disk.take_back(lambda what: what == "goes")
    assert disk.persisted(1) == ["stays"]


def test_a_write_that_is_not_urgent_is_due_at_the_earliest_wish() -> None:
    disk: DiskWrites[str] = DiskWrites()
    assert disk.due_at == math.inf
    disk.soon(5.0)
    disk.soon(3.0)
    disk.soon(4.0)
    assert disk.due_at == 3.0
    disk.ask()
    assert disk.due_at == math.inf, "a write came before"
