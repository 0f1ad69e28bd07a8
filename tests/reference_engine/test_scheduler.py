"""Who is worked on, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_engine.kv_prefix import Blocks
from reference_engine.places import BLOCK
from reference_engine.scheduler import MAX_WAITING, Job, NotNow, Scheduler, TooLong


def scheduler(blocks: int = 8, max_batch: int = 4, period_s: float = 0.0) -> Scheduler:
    it = Scheduler(Blocks(blocks), max_batch=max_batch, period_s=period_s)
    it.open()
    return it


def test_requests_are_let_in_as_they_came_up_to_the_batch() -> None:
    it, jobs = scheduler(max_batch=2), [Job(BLOCK) for _ in range(3)]
    for job in jobs:
        it.add(job)
    assert it.step(0.0) == jobs[:2]
    it.end(jobs[0])
    assert it.step(0.0) == jobs[1:]


def test_who_does_not_fit_waits_and_none_passes() -> None:
    it = scheduler(blocks=4)
    first, large, small = Job(3 * BLOCK), Job(2 * BLOCK), Job(BLOCK)
    for job in (first, large, small):
        it.add(job)
    assert it.step(0.0) == [first]
    assert it.next_at() == 0.0, "the one that is in is due"
    it.end(first)
    assert it.step(0.0) == [large, small]


def test_who_would_never_fit_is_told_so() -> None:
    with pytest.raises(TooLong):
        scheduler(blocks=2).add(Job(2 * BLOCK + 1))


def test_a_waiter_that_goes_leaves_the_queue() -> None:
    it, jobs = scheduler(max_batch=1), [Job(BLOCK) for _ in range(3)]
    for job in jobs:
        it.add(job)
    it.step(0.0)
    it.end(jobs[1])
    it.end(jobs[1])
    it.end(jobs[0])
    assert it.step(0.0) == [jobs[2]]
    assert it.queued == 1


def test_closed_it_takes_none_and_finishes_those_that_it_has() -> None:
    it, jobs = scheduler(max_batch=1), [Job(BLOCK), Job(BLOCK)]
    for job in jobs:
        it.add(job)
    it.close("draining")
    with pytest.raises(NotNow, match="draining"):
        it.add(Job(BLOCK))
    it.step(0.0)
    it.end(jobs[0])
    assert it.step(0.0) == [jobs[1]]
    it.end(jobs[1])
    assert (it.queued, it.next_at()) == (0, None)
    it.open()
    it.add(Job(BLOCK))


def test_a_paced_request_is_due_once_a_period_and_does_not_catch_up_in_a_burst() -> None:
    it, job = scheduler(period_s=0.1), Job(BLOCK)
    it.add(job)
    assert it.step(5.0) == [job]
    it.told(job, 5.01)
    assert it.next_at() == pytest.approx(5.1)
    assert it.step(5.05) == []
    it.told(job, 6.0)
    assert it.next_at() == 6.0
    it.told(job, 6.0)
    assert it.next_at() == pytest.approx(6.1)


def test_the_queue_has_an_end() -> None:
    it = scheduler(max_batch=1)
    for _ in range(MAX_WAITING):
        it.add(Job(1))
    with pytest.raises(NotNow):
        it.add(Job(1))


@given(st.lists(st.tuples(st.sampled_from(["add", "step", "end"]), st.integers(1, 10 * BLOCK)), max_size=80))
def test_a_block_has_one_owner_and_comes_back(story: list[tuple[str, int]]) -> None:
    blocks = Blocks(10)
    it = Scheduler(blocks, max_batch=3)
    it.open()
    for what, number in story:
        if what == "add":
            it.add(Job(number))
        elif what == "end" and it.jobs:
            it.end(it.jobs[number % len(it.jobs)])
        else:
            it.step(0.0)
        taken = [block for job in it.jobs for block in job.blocks]
        assert len(taken) == len(set(taken))
        assert len(taken) + blocks.free == 10
        assert it.running <= 3
    while it.jobs:
        it.end(it.jobs[0])
    assert blocks.free == 10
