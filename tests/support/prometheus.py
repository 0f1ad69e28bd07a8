"""What Prometheus would make of what is scraped from real programs: promtool goes through the alerts with it."""

import http.client
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from tests.support.processes import ROOT

ALERTS = ROOT / "k8s" / "chart" / "files" / "alerts.yaml"
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
NO_PROMTOOL = "there is no promtool: apt-get download prometheus, dpkg -x, PROMTOOL=its path"
APART_S = 15
"""Between two scrapes."""
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)

Samples = dict[str, float]
"""Series -> value."""


def scrape(ports: Mapping[str, int]) -> Samples:
    """What all containers say now, by their ports; of one that doesn't answer, that it is not up."""
    asked = set(re.findall(r"\bfailover_\w+", ALERTS.read_text()))
    found: Samples = {}
    for container, port in ports.items():
        own = f'namespace="n", pod="p", container="{container}"'
        own += ', endpoint="door-metrics", job="n/failover"' if container == "gateway" else ""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3)
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
            connection.close()
        except OSError:
            page = ""
        found[f"up{{{own}}}"] = float(bool(page))
        for name, labels, value in _SAMPLE.findall(page):
            if name in asked:
                found[f"{name}{{{', '.join(filter(None, (labels, own)))}}}"] = float(value)
    return found


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROMTOOL), *words]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)


def write_rules(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump({"groups": yaml.safe_load(ALERTS.read_text())}))


def not_as_expected(tmp_path: Path, moments: Iterable[tuple[int, Samples]], expected: Iterable[str]) -> str:
    """What promtool says where other alerts fire at the end than expected (`NAME severity container`); empty if not.
    `moments`: for how many seconds it was how.
    """
    moments = list(moments)
    series = dict.fromkeys(name for _, samples in moments for name in samples)
    inputs = []
    for name in series:
        parts = [
            f"{samples[name]!r}x{for_s // APART_S - 1}" if name in samples else f"_x{for_s // APART_S}"
            for for_s, samples in moments
        ]
        inputs.append({"series": name, "values": " ".join(parts)})
    wanted = []
    for one in expected:
        alert, severity, *container = one.split()
        named = "".join(f', container="{word}"' for word in container)
        wanted.append({"labels": f'{{alertname="{alert}", severity="{severity}"{named}}}', "value": 1})
    unverified = 'alertname!="FailoverMemoryUnverified"'  # a toy has no memory that could be read
    question = {
        "expr": f'count by (alertname, severity, container) (ALERTS{{alertstate="firing", {unverified}}})',
        "eval_time": f"{sum(for_s for for_s, _ in moments) - APART_S}s",
        "exp_samples": wanted,
    }
    test = {"interval": f"{APART_S}s", "input_series": inputs, "promql_expr_test": [question]}
    document = {"rule_files": ["alerts.yaml"], "evaluation_interval": f"{APART_S}s", "tests": [test]}
    (tmp_path / "scraped.yaml").write_text(yaml.safe_dump(document))
    write_rules(tmp_path)
    done = run(tmp_path, "test", "rules", "scraped.yaml")
    return "" if done.returncode == 0 else done.stdout + done.stderr
