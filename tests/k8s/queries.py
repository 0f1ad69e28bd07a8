"""What alerts and dashboard ask of Prometheus, and whether our programs serve it: names, labels, and their values."""

import json
import re
from collections.abc import Iterable, Iterator

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import ROOT

FILES = ROOT / "k8s" / "chart" / "files"
_PROMETHEUS_OWN = {"namespace", "pod", "container", "job", "le"}
_SELECTOR = re.compile(r"\b(failover_[a-z_]+)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)(=~|=)"([^"]*)"')
_BY = re.compile(r"\bby \(([^)]*)\)")


def expressions() -> Iterator[str]:
    for group in yaml.safe_load((FILES / "alerts.yaml").read_text(encoding="utf-8")):
        yield from (rule["expr"] for rule in group["rules"])
    for panel in json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def unserved(pages: Iterable[str], programs: str) -> list[str]:
    """What is asked of these programs (`lock|gms`), and none of their pages of metrics has, in sentences."""
    of_theirs = re.compile(rf"\bfailover_({programs})_")
    served: dict[str, list[dict[str, str]]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                served.setdefault(sample.name, []).append(sample.labels)
    theirs = (expression for expression in expressions() if of_theirs.search(expression))
    return sorted({sentence for expression in theirs for sentence in _missing(expression, served)})


def _missing(expression: str, served: dict[str, list[dict[str, str]]]) -> Iterator[str]:
    grouped = {label.strip() for labels in _BY.findall(expression) for label in labels.split(",")} - _PROMETHEUS_OWN
    asked = _SELECTOR.findall(expression)
    for name, selector in asked:
        samples = served.get(name, [])
        if not samples:
            yield f"no exporter serves {name}"
        for label, operator, value in _MATCHER.findall(selector):
            allowed = set(value.split("|")) if operator == "=~" else {value}
            if label not in _PROMETHEUS_OWN and not allowed <= {each.get(label) for each in samples}:
                yield f"{name} has no {label} {value}"
    for label in grouped:
        if not any(label in each for name, _ in asked for each in served.get(name, [])):
            yield f"no metric of {expression} has the label {label}"
