"""`failover k8s manifests DIR`: the files for Kubernetes that come with this software, where they can be edited. In a
wheel they are the package gpu_failover_k8s, in a checkout the folder k8s.
"""

import importlib.util
from pathlib import Path

from engine_shim.cli.pair_process import PairError

PACKAGE = "gpu_failover_k8s"
FOLDERS = ("dra", "dual_pods", "chart")
WRITTEN = """\
{0}/dra             a file for each kind of pair, for kubectl apply -f; monitoring.yaml needs the Prometheus operator
{0}/dual_pods       the controller of dual pods, its rights and policies; monitoring/ needs the operator, too
{0}/chart           the chart that dra is made of, for helm template or helm install
{0}/alerts.yaml     the alerts alone, for rule_files of a Prometheus without the operator
{0}/dashboard.json  the dashboard alone, for Grafana's import"""


def source() -> Path:
    """Raises PairError."""
    checkout = Path(__file__).resolve().parents[2] / "k8s"
    spec = None if (checkout / "chart").is_dir() else importlib.util.find_spec(PACKAGE)
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    if (checkout / "chart").is_dir():
        return checkout
    raise PairError(
        f"this installation has no package {PACKAGE}, as in an engine's container: ask where the wheel is installed"
    )


def write(target: Path) -> str:
    """What is there then. Raises PairError."""
    place = source()
    try:
        target.mkdir(parents=True, exist_ok=True)
        if taken := [name for name in (*FOLDERS, "alerts.yaml", "dashboard.json") if (target / name).exists()]:
            raise PairError(f"{target / taken[0]} exists already, and may have been edited: name another directory")
        for folder in FOLDERS:
            for file in sorted((place / folder).rglob("*")):
                if file.is_file() and file.name != "rendered.sha256":
                    _write(target / file.relative_to(place), file.read_bytes())
        _write(target / "dashboard.json", (place / "chart" / "files" / "dashboard.json").read_bytes())
        rules = (place / "chart" / "files" / "alerts.yaml").read_text(encoding="utf-8")
        _write(target / "alerts.yaml", f"groups:\n{rules}".encode())
    except OSError as error:
        raise PairError(f"{error.filename or target} can't be written: {error.strerror or error}") from None
    return WRITTEN.format(target)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
