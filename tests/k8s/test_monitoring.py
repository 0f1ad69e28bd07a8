"""Alerts, dashboard and what is scraped: each metric that they name is served by one of our programs.

The rules' own tests are promtool's (`alerts.test.yaml`). Debian has it: `apt-get download prometheus`, `dpkg -x`, and
its path in PROMTOOL; nothing has to be installed.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from engine_shim.shell.metrics import registry_of
from gateway.rules.events import LeaseSeen
from gateway.shell.lease import Lease
from gateway.shell.metrics import Counts, collect
from gateway.shell.server import Gateway
from gms.shell.metrics import _Collector as GmsCollector
from lockserver.shell.metrics import Metrics
from pool.shell.metrics import Metrics as PoolMetrics
from tests.engine.machine import Harness
from tests.k8s.manifests import SHIPPED
from tests.support.processes import ROOT
from tests.support.prometheus import NO_PROMTOOL, PROMTOOL, run, write_rules
from vram.shell.metrics import Metrics as LedgerMetrics

FILES = ROOT / "k8s" / "chart" / "files"
TESTS = Path(__file__).parent / "alerts.test.yaml"
GROUPS: list[dict[str, Any]] = yaml.safe_load((FILES / "alerts.yaml").read_text())
ALERTS = [rule for group in GROUPS for rule in group["rules"]]
METRIC = re.compile(r"\b(?:failover|gateway)_[a-z]+_[a-z_]+\b")


def served() -> dict[str, str]:
    """Each metric that our programs have, and its kind, as their collectors say it."""
    door = MagicMock(pairs=[MagicMock()])
    machine = MagicMock(other=lambda now: None, intent=None)
    leased = MagicMock(_machine=machine, _host="h", _gate=LeaseSeen(), _offset_s=0.0, _uncovered=0)
    families = [
        *Metrics(Path()).registry.collect(),
        *GmsCollector(Path("nowhere"), ["host:0"]).collect(),
        *registry_of(Harness().machine).collect(),
        *collect(Counts(), Gateway._values(door)),
        *PoolMetrics().collect(),
        *LedgerMetrics().registry.collect(),
        *collect(Counts(), Lease.values(leased)),
    ]
    return {family.name: family.type for family in families}


def test_each_metric_that_is_asked_for_is_served() -> None:
    asked = set(METRIC.findall(" ".join(rule["expr"] for rule in ALERTS) + (FILES / "dashboard.json").read_text()))
    assert len(asked) > 10
    assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in asked} - set(served()) == set()


def test_all_metrics_have_one_prefix_and_what_counts_events_is_a_counter() -> None:
    kinds = served()
    assert [name for name in kinds if not re.match("failover_(lock|gms|engine|door|pool|vram)_", name)] == []
    counters = {name for name, kind in kinds.items() if kind == "counter"}
    events = r"_(failovers|severed|deaths|starts|grants|fencings|adoptions|drops|commits|aborts|refusals|requests"
    events += r"|uncovered)$"
    assert {name for name in kinds if re.search(events, name) and not name.endswith("pending_drops")} <= counters
    assert [name for name in kinds if name.endswith("_total")] == []  # the client library appends it, to counters alone


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_says_what_is_so_and_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule["annotations"]) == {"summary", "runbook"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_every_alert_is_tested() -> None:
    """By its name where it fires; that it doesn't wherever `ALERTS` is asked for as a whole."""
    named = set(re.findall(r'alertname(?:="|: )(\w+)', TESTS.read_text()))
    assert {rule["alert"] for rule in ALERTS} - named == set()


def test_what_is_scraped_is_every_port_for_metrics() -> None:
    (monitor,) = (
        each for each in yaml.safe_load_all((SHIPPED / "monitoring.yaml").read_text()) if each["kind"] == "PodMonitor"
    )
    (pod,) = (
        each for each in yaml.safe_load_all((SHIPPED / "one-gpu.yaml").read_text()) if each["kind"] == "Deployment"
    )
    spec = pod["spec"]["template"]["spec"]
    declared = [port["name"] for each in spec["initContainers"] + spec["containers"] for port in each.get("ports", ())]
    assert [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]] == [
        name for name in declared if name != "http"
    ]


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and all(target["expr"] for target in panel["targets"]) for panel in panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells
    (config,) = (
        each for each in yaml.safe_load_all((SHIPPED / "monitoring.yaml").read_text()) if each["kind"] == "ConfigMap"
    )
    assert json.loads(config["data"]["gpu-failover.json"]) == dashboard


@pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)
def test_the_rules_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    write_rules(tmp_path)
    shutil.copy(TESTS, tmp_path)
    done = run(tmp_path, "test", "rules", TESTS.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run(tmp_path, "check", "rules", "alerts.yaml").returncode == 0


@pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)
def test_promtool_can_read_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    rules = [
        {"record": f"panel:{panel['id']}:{number}", "expr": target["expr"]}
        for panel in panels
        for number, target in enumerate(panel["targets"])
    ]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = run(tmp_path, "check", "rules", "panels.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
