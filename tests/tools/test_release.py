"""What is handed out: that all of it is there, and that the wheel alone, in a Python that has nothing else, answers."""

import hashlib
import json
import re
import subprocess
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.terminal.names import VERSION
from tests.support.processes import ROOT
from tests.support.waiting import until
from tests.support.wheels import CORE, DOOR, REFERENCE, Environment
from tools import lock, release

SCRIPTS = [
    name
    for folder in (ROOT, ROOT / "tools" / "local_pod")
    for name in tomllib.loads((folder / "pyproject.toml").read_text())["project"]["scripts"]
]
Ask = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("dist")
    release.release(into)
    return into


@pytest.mark.slow
@pytest.mark.xdist_group("release")
def test_the_tests_of_a_group_stay_together(request: pytest.FixtureRequest, worker_id: str) -> None:
    """Not every pytest and pytest-xdist get along: then each worker makes for itself what takes long."""
    assert worker_id == "master" or request.node.nodeid.endswith("@release")


@pytest.mark.slow
@pytest.mark.xdist_group("release")
def test_what_is_released_names_what_it_is_made_of(released: Path) -> None:
    for line in (released / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == digest
    wheels = sorted(released.glob("*.whl"))
    assert {file.name for file in released.iterdir()} == {
        "SHA256SUMS", f"gpu_failover-{VERSION}.cdx.json", *(file.name for file in wheels),
        *(file.name.replace("-py3-none-any.whl", ".tar.gz") for file in wheels),
    }  # fmt: skip
    for wheel in wheels:
        names = zipfile.ZipFile(wheel).namelist()
        packages = {name.partition("/")[0] for name in names if name.endswith(".py")}
        assert packages and {f"{package}/py.typed" for package in packages} <= set(names)
    packages = {name.partition("/")[0] for name in zipfile.ZipFile(released / release.WHEEL).namelist()}
    ours = [package for package in packages if (ROOT / package).is_dir()]
    listed = subprocess.run(["git", "ls-files", *ours], cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(ours) > 6 and set(listed.stdout.split()) <= set(zipfile.ZipFile(released / release.WHEEL).namelist())
    bill = json.loads((released / f"gpu_failover-{VERSION}.cdx.json").read_text())
    parts = {each["name"]: each for each in bill["components"]}
    assert {name for name, each in parts.items() if each["scope"] == "required"} == set(CORE)
    assert {"numpy", "uvloop", "jsonschema"} < set(parts) and all(each["licenses"] for each in parts.values())
    (ours,) = (each for each in bill["dependencies"] if each["ref"] == bill["metadata"]["component"]["bom-ref"])
    assert {parts[name]["bom-ref"] for name in CORE} < set(ours["dependsOn"])


@pytest.mark.slow
@pytest.mark.xdist_group("release")
def test_a_wheel_alone_says_what_it_lacks_and_with_that_starts_a_pair(
    released: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = Environment(tmp_path / "venv")
    home = alone.home
    environment = {"PATH": f"{home}/bin:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    run_dir = tmp_path_factory.mktemp("r") / "run"  # a short name: sockets are in it
    environment |= {"FAILOVER_RUN_DIR": str(run_dir), "FAILOVER_HOST_DEVICES": str(tmp_path)}

    def ask(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        asked = [str(home / "bin" / command), *words]
        done = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=240)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    alone.install(released / f"gpu_failover_local_pod-{VERSION}-py3-none-any.whl")
    lacks = ask("local-pod", "--help")
    assert lacks.returncode == 1 and f"it needs gpu-failover {VERSION} beside it, and there is none" in lacks.stderr
    alone.install(released / release.WHEEL)
    alone.bring(CORE)
    for name in SCRIPTS:
        for word, says in (("--help", "usage: "), ("--version", f"{name} {VERSION} (gpu-failover)")):
            done = ask(name, word)
            assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(says), done
    completion = ask("failover", "completion", "bash").stdout
    assert completion.splitlines()[-1].endswith(f"_gpu_failover {' '.join(sorted(SCRIPTS))}")
    _writes_what_is_for_kubernetes(ask, tmp_path / "pair")
    up = ask("failover", "up")
    assert up.returncode == 64 and "lacks numpy, uvloop, prometheus_client: pip install 'gpu_failover-" in up.stderr
    alone.bring(REFERENCE)
    up = ask("failover", "up")
    assert up.returncode == 64 and "lacks uvloop, prometheus_client: " in up.stderr and "[gateway]'" in up.stderr
    assert not run_dir.exists()
    alone.bring(DOOR)
    words = [str(home / "bin" / "failover"), "up", "--listen", "127.0.0.1:0", "--capacity", "128MiB"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as pair:
        try:
            until(lambda: re.search("^redundancy +yes", ask("failover", "status").stdout, re.M), "one is ready, too")
            assert ask("failover", "down").returncode == 0
        finally:
            pair.terminate()
    assert pair.returncode == 0


def _writes_what_is_for_kubernetes(ask: Ask, target: Path) -> None:
    done = ask("failover", "k8s", "manifests", str(target))
    assert done.returncode == 0 and f"{target}/alerts.yaml" in done.stdout, done
    listed = ("git", "ls-files", "chart", "dra", "dual_pods", ":!dra/rendered.sha256")
    named = subprocess.run(listed, cwd=ROOT / "k8s", capture_output=True, text=True, check=True).stdout.split()
    written = {str(file.relative_to(target)): file.read_bytes() for file in target.rglob("*") if file.is_file()}
    assert written.pop("alerts.yaml") == b"groups:\n" + (ROOT / "k8s/chart/files/alerts.yaml").read_bytes()
    assert written.pop("dashboard.json") == written["chart/files/dashboard.json"]
    assert written == {name: (ROOT / "k8s" / name).read_bytes() for name in named}
    again = ask("failover", "k8s", "manifests", str(target))
    assert again.returncode == 1 and f"{target}/dra exists already" in again.stderr
    way = f"pip install 'gpu_failover-{VERSION}-py3-none-any.whl"
    lint = ask("k8s-lint", str(target / "dra"))
    assert (lint.returncode, lint.stderr) == (2, f"k8s-lint: it needs the package yaml: {way}[k8s]'\n")
    render = ask("python", "-m", "gpu_failover_k8s.render", "--values", str(target / "chart" / "values.yaml"))
    said = f"gpu_failover_k8s.render: this needs PyYAML: {way}[helm]'\n"
    assert (render.returncode, render.stderr) == (2, said)


@pytest.mark.parametrize("file", lock.FILES)
def test_each_pin_has_the_sums_of_its_files_and_no_address(file: str) -> None:
    text = (ROOT / file).read_text()
    assert "://" not in text
    pins = re.split(r"\n(?=\S)", text.rstrip("\n"))
    assert len(pins) == len(lock.pins(text)) > 40
    for pin in pins:
        assert re.fullmatch(r"[\w.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", pin), pin


def test_what_is_released_is_what_the_notes_say() -> None:
    release.check_the_notes((ROOT / "CHANGELOG.md").read_text())
    with pytest.raises(release.NotFit, match=rf"begins with 0\.0\.1, and this is {VERSION}"):
        release.check_the_notes("# Changes\n\n## 0.0.1\n")
