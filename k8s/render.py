"""`python -m k8s.render`: writes k8s/dra/*.yaml from the chart, or says which of them are not what the chart renders.
In a wheel it is `python -m gpu_failover_k8s.render`, and only renders values of your own: --values.

Each file of chart/variants is one set of values; its first comment is the file's heading. Needs Helm in a library
(the extra `helm`); no cluster and no network.

Beside what is rendered stands `rendered.sha256`: of which files of the chart it was made, and what came of them. So it
is seen without Helm that one was changed and not the other (`stale`; tests/k8s/test_rendered.py).
"""

import difflib
import hashlib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidecar.terminal.extras import how_to_get
from sidecar.terminal.settings import Parser

PROGRAM = f"python -m {__package__}.render"
NAME = f"{__package__}.render"
IN_A_CHECKOUT = __package__ == "k8s"
HERE = Path(__file__).parent
CHART = HERE / "chart"
VARIANTS = CHART / "variants"
RENDERED = HERE / "dra"
DIGESTS = "rendered.sha256"
RELEASE = "failover"
ORDER = ("claims", "models", "deployment", "container", "service", "networkpolicy", "poddisruptionbudget")
MONITORING = ("podmonitor", "alerts", "dashboard")
_COMMON = "monitoring"
"""The variant of which only the objects for monitoring are written."""
_ORIGIN = "# Rendered from k8s/chart by `python -m k8s.render`: change it there.\n"
EXAMPLES = """\
examples:
  python -m k8s.render                  writes k8s/dra
  python -m k8s.render --check          exit code 1, and a diff, where a file is not what the chart renders
  python -m k8s.render --values my.yaml --name pair-1 > pair-1.yaml
"""


class NoHelm(Exception):
    """Helm isn't installed; the text says what to do."""


class BadValues(Exception):
    """The file of values can't be used; the text says why."""


def helm() -> Any:
    """Raises NoHelm."""
    try:
        return importlib.import_module("helm_python")
    except ImportError:
        raise NoHelm(f"this needs Helm in a library: {how_to_get('helm')}") from None


def values(path: Path) -> dict[str, Any]:
    """Raises BadValues, NoHelm."""
    try:
        import yaml  # the extra has it, too
    except ImportError:
        raise NoHelm(f"this needs PyYAML: {how_to_get('helm')}") from None
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadValues(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadValues(f"{path} can't be read: it is no text in UTF-8") from None
    except yaml.YAMLError as error:
        raise BadValues(f"{path}: this is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict | None):
        raise BadValues(f"{path}: values are a mapping, such as `replicas: 2`; the chart's own: k8s/chart/values.yaml")
    return found or {}


def objects(given: Mapping[str, Any], name: str = RELEASE) -> dict[str, str]:
    """Template (its file's stem) -> what it renders. Raises NoHelm, or Helm's own errors."""
    with helm().Chart.load(str(CHART)) as chart:
        chart.validate_schema(dict(given))
        found: dict[str, str] = chart.render(dict(given), name=name, namespace="default")
    return {Path(path).stem: text.strip("\n") + "\n" for path, text in found.items() if text.strip()}


def manifest(given: Mapping[str, Any], heading: str = "", name: str = RELEASE, parts: tuple[str, ...] = ()) -> str:
    found = objects(given, name)
    return heading + "---\n".join(found[part] for part in parts or ORDER + MONITORING if part in found)


def variants() -> dict[str, str]:
    """File in k8s/dra -> what it has to say."""
    made = {}
    for path in sorted(VARIANTS.glob("*.yaml")):
        parts = MONITORING if path.stem == _COMMON else ORDER
        made[path.name] = manifest(values(path), heading(path), parts=parts)
    return made


def heading(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    first = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:first]) + _ORIGIN


def differences() -> str:
    """Empty when k8s/dra is what the chart renders, else a diff."""
    made, said = variants(), ""
    there = {path.name: path.read_text(encoding="utf-8") for path in RENDERED.glob("*.yaml")}
    there.pop("kustomization.yaml", None)
    for name in sorted({*made, *there}):
        old, new = there.get(name, ""), made.get(name, "")
        lines = difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), f"k8s/dra/{name}", "rendered"
        )
        said += "".join(lines)
    return said


def digests() -> str:
    """Sums of the chart's files and of what is rendered, as they are now, in the form that `sha256sum` can check."""
    named = {str(path.relative_to(HERE.parent)): path for path in CHART.rglob("*") if path.is_file()}
    named |= {f"k8s/dra/{path.name}": path for path in RENDERED.glob("*.yaml") if path.name != "kustomization.yaml"}
    return "".join(f"{hashlib.sha256(named[name].read_bytes()).hexdigest()}  {name}\n" for name in sorted(named))


def stale() -> list[str]:
    """Files that aren't what they were when k8s/dra was rendered: changed, new, or gone. Needs no Helm."""
    try:
        then = (RENDERED / DIGESTS).read_text(encoding="utf-8")
    except FileNotFoundError:
        then = ""
    changed = set(then.splitlines()) ^ set(digests().splitlines())
    return sorted({line.partition("  ")[2] for line in changed})


def main(argv: list[str] | None = None) -> int:
    what = "Writes k8s/dra/*.yaml from the chart." if IN_A_CHECKOUT else "Renders the chart."
    examples = EXAMPLES if IN_A_CHECKOUT else "examples:\n" + EXAMPLES.splitlines()[-1].replace("k8s", __package__, 1)
    p = Parser(prog=PROGRAM, description=what, epilog=examples)
    if IN_A_CHECKOUT:
        p.add_argument("--check", action="store_true", help="write nothing; say what differs")
    p.add_argument(
        "--values", type=Path, metavar="FILE", required=not IN_A_CHECKOUT,
        help="write what these values give to standard output",
    )  # fmt: skip
    p.add_argument("--name", default=RELEASE, help=f"what everything is called; default {RELEASE}")
    options = p.parse_args(argv)
    try:
        given = values(options.values) if options.values is not None else None
        library = helm()
    except BadValues as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    except NoHelm as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    try:
        return _render(given, options.name, check=getattr(options, "check", False))
    except library.HelmError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"{NAME}: {error.filename} can't be written: {error.strerror}", file=sys.stderr)
    return 1


def _render(given: Mapping[str, Any] | None, name: str, *, check: bool) -> int:
    """The exit code."""
    if given is not None:
        sys.stdout.write(manifest(given, name=name))
        return 0
    if check:
        said = differences() or "".join(f"{name} has changed since\n" for name in stale())
        sys.stdout.write(said or "k8s/dra is what the chart renders\n")
        return 1 if said else 0
    for file, text in variants().items():
        (RENDERED / file).write_text(text, encoding="utf-8")
        print(f"k8s/dra/{file}")
    (RENDERED / DIGESTS).write_text(digests(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
