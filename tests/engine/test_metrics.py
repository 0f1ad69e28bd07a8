"""The shim's metrics, as a scrape has them, and what it says of a life. Their names: tests/test_docs.py."""

import pytest

from engine_shim.rules import events as e
from engine_shim.rules.events import State
from engine_shim.shell.metrics import prepare, registry_of
from sidecar.http import metrics
from tests.engine.machine import WALL, Harness

pytest.importorskip("prometheus_client")
BEHIND = e.LockSeen("engine-b.0123456789abcdef", serves=True)


def scrape(harness: Harness) -> dict[str, float]:
    page = metrics.page_of(registry_of(harness.machine, lambda: harness.now))()
    assert page.status == 200
    lines = [line.rpartition(" ") for line in page.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


@pytest.mark.parametrize("state", list(State))
def test_the_state_is_one_hot_and_has_the_time_when_it_was_entered(state: State) -> None:
    harness = Harness().begin().to(state)
    seen = scrape(harness)
    hot = {name: value for name, value in seen.items() if name.startswith("failover_engine_state{")}
    assert len(hot) == len(State) and sum(hot.values()) == 1
    assert hot[f'failover_engine_state{{state="{state.value}"}}'] == 1
    assert seen[f'failover_engine_state_entered_timestamp_seconds{{state="{state.value}"}}'] == WALL + harness.now


def test_a_life_in_figures() -> None:
    harness = Harness().begin()
    harness.feed(e.LockSeen(BEHIND.holder, fencing=True))
    harness.feed(e.Phase("init", 0.2))
    harness.step(State.STANDBY)
    harness.feed(e.LockSeen(BEHIND.holder, serves=True, redundant=True))
    seen = scrape(harness)
    assert seen["failover_engine_standby_ready"] == seen["failover_engine_redundant"] == 1
    assert seen["failover_engine_live"] == seen["failover_engine_ready"] == 1
    assert seen["failover_engine_failovers_total"] == 0
    harness.feed(e.LockSeen(BEHIND.holder, fencing=True))
    harness.now += 0.04
    harness.step(State.WAKING)
    harness.feed(e.Phase("kv", 0.003))
    harness.feed(e.Adopted(7, 2, "broken_record"))
    harness.step(State.ACTIVE)
    harness.feed(e.Beat(True, queued=3, steps=9))
    seen = scrape(harness)
    assert seen["failover_engine_failovers_total"] == 1 and seen["failover_engine_token"] == 5
    assert seen["failover_engine_standby_ready"] == 0 and seen["failover_engine_ready"] == 1
    assert seen["failover_engine_queued"] == 3 and seen["failover_engine_processes"] == 2
    assert seen['failover_engine_phase_duration_seconds_sum{phase="fence_wait"}'] == pytest.approx(0.04)
    assert seen['failover_engine_phase_duration_seconds_bucket{le="0.005",phase="kv"}'] == 1
    assert seen['failover_engine_phase_duration_seconds_bucket{le="0.0025",phase="kv"}'] == 0
    assert seen['failover_engine_transitions_total{after="Active",before="Waking"}'] == 1
    assert seen["failover_engine_kv_blocks_adopted_total"] == 7
    assert seen['failover_engine_kv_blocks_dropped_total{why="broken_record"}'] == 2
    assert seen['failover_engine_kv_wakes_total{why="broken_record"}'] == 1
    harness.feed(e.Ended(-9))
    harness.gone()
    harness.wait(1.0)
    harness.register()
    harness.step(State.STANDBY)
    seen = scrape(harness)
    assert seen["failover_engine_starts_total"] == 2 and seen["failover_engine_deaths_total"] == 1
    assert seen["failover_engine_redundancy_restore_seconds_count"] == 1
    assert seen["failover_engine_redundancy_restore_seconds_sum"] == pytest.approx(1.0, abs=0.1)


def test_every_phase_is_shown_from_the_beginning() -> None:
    seen = scrape(Harness())
    for phase in ("permit", "init", "sleep", "fence_wait", "wake", "remap", "kv", "serve"):
        assert seen[f'failover_engine_phase_duration_seconds_count{{phase="{phase}"}}'] == 0


def test_the_library_is_loaded_beforehand_or_its_absence_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare()

    def none() -> None:
        raise metrics.MetricsUnavailable("not here")

    monkeypatch.setattr(metrics, "new_registry", none)
    prepare()
