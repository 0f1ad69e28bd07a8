"""The simulated kernel agrees with the real one: the same scripts on both, compared answer by answer.

A simulator on a wrong kernel certifies wrong code. First the cases of which each killed a belief (cases_*.py), then
random scripts, the same in every run: `SIM_SEED` is the first, `SIM_SCRIPTS` says how many. Whether the scripts
would notice a wrong kernel is tested in test_kernel_mutants.py.
"""

import os
from collections.abc import Iterator

import pytest

from tests.sim import cases_files, cases_paths, cases_processes, cases_sockets
from tests.sim.cases_races import RACES
from tests.sim.kernel import ReleaseOrder
from tests.sim.linux_world import FREEZER, Actor, LinuxWorld, features, zygote
from tests.sim.random_script import random_script
from tests.sim.scripts import Race, Script
from tests.sim.sim_world import SimWorld

SCRIPTS = cases_processes.SCRIPTS + cases_sockets.SCRIPTS + cases_files.SCRIPTS + cases_paths.SCRIPTS
FIRST_SCRIPT = int(os.environ.get("SIM_SEED", "0"))
RANDOM_SCRIPTS = int(os.environ.get("SIM_SCRIPTS", "60"))
RACE_SEEDS = 60
RACE_ATTEMPTS = 10  # who looks at a death on a busy machine may blink: then it was not seen, and proves nothing
REAL = features()
IS_MODERN = REAL.has_pidfs and not REAL.peer_pidfd_of_reaped_errno  # what the scripts demand is seen from Linux 6.16 on
needs_peer_pidfd = pytest.mark.skipif(not REAL.has_peer_pidfd, reason="no SO_PEERPIDFD: needs Linux 6.5")


@pytest.fixture(scope="module")
def ancestor() -> Iterator[Actor]:
    with zygote() as actor:
        yield actor


def compare(script: Script, ancestor: Actor, seed: int) -> None:
    """Plays a script on both. The simulated kernel goes first and says whom to wait for."""
    sim = SimWorld(seed, has_pidfs=REAL.has_pidfs, peer_pidfd_of_reaped_errno=REAL.peer_pidfd_of_reaped_errno)
    told: list[str] = []
    with LinuxWorld(ancestor) as linux:
        for step in script.steps:
            simulated = sim.play(step), sim.gone()
            try:
                answer = linux.play(step)
                real = answer, linux.gone(expected=simulated[1])
            except (TimeoutError, ConnectionError) as error:
                real = str(error), ["not known"]
            told.append(f"    {step}   -> {real[0]}")
            if simulated != real:
                story = "\n".join(told)
                pytest.fail(f"{script.name}\n{story}\n  simulated: {simulated}\n  real:      {real}", pytrace=False)
            if IS_MODERN:
                assert step.expected in (None, real[0]), f"{script.name}: {step}: both kernels say {real[0]}"


def params(scripts: tuple[Script, ...] | tuple[Race, ...]) -> list[object]:
    no_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes PID namespaces: needs root")
    return [
        pytest.param(each, id=each.name.replace(" ", "-"), marks=[pytest.mark.root, no_root] if each.needs_root else [])
        for each in scripts
    ]


@needs_peer_pidfd
@pytest.mark.parametrize("script", params(SCRIPTS))
def test_both_kernels_play_the_script_alike(script: Script, ancestor: Actor) -> None:
    if not REAL.has_io_uring and any(step.verb == "pin" for step in script.steps):
        pytest.skip("io_uring is not allowed here")
    if any(step.verb == "freeze" for step in script.steps) and not os.access(FREEZER, os.W_OK):
        pytest.skip("no freezer of cgroups, version 1, that can be written here")
    compare(script, ancestor, seed=1)


@needs_peer_pidfd
def test_both_kernels_play_random_scripts_alike(ancestor: Actor) -> None:
    for seed in range(FIRST_SCRIPT, FIRST_SCRIPT + RANDOM_SCRIPTS):
        compare(Script(f"SIM_SEED={seed} SIM_SCRIPTS=1", random_script(seed)), ancestor, seed)


@needs_peer_pidfd
@pytest.mark.parametrize("race", params(RACES))
def test_a_death_releases_in_an_order_that_both_kernels_allow(race: Race, ancestor: Actor) -> None:
    orders = {SimWorld(seed).orders_of(race) for seed in range(RACE_SEEDS)}
    certain: set[tuple[str, str]] = set()
    for _ in range(RACE_ATTEMPTS):
        with LinuxWorld(ancestor) as linux:
            intervals = linux.intervals_of(race)
        certain = {
            (first, second)
            for first, (_, seen) in intervals.items()
            for second, (unchanged, _) in intervals.items()
            if first != second and seen <= unchanged
        }
        assert any(in_order(order, certain) for order in orders), f"real: {certain}, simulated: {orders}"
        if certain.issuperset(race.shown):
            break
    assert certain.issuperset(race.shown), f"not seen on the real kernel: {set(race.shown) - certain}"
    assert all(in_order(order, set(race.shown)) for order in orders)


def in_order(order: tuple[str, ...], pairs: set[tuple[str, str]]) -> bool:
    return all(order.index(first) < order.index(second) for first, second in pairs)


@pytest.mark.parametrize("race", params(RACES))
def test_a_process_with_threads_may_release_in_any_order_but_dies_last(race: Race) -> None:
    orders = {SimWorld(seed, ReleaseOrder.ANY).orders_of(race) for seed in range(RACE_SEEDS)}
    assert len(orders) > 1
    assert {order[-1] for order in orders} == {"dead"}
