"""`python -m k8s.lint`: what it prints, and its exit codes; asked in this process, which has loaded the schemas."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from k8s.lint.__main__ import main
from sidecar.terminal.extras import how_to_get
from tests.k8s.manifests import GOOD, HERE, POD, SHIPPED, edited, recorded
from tests.support.processes import ROOT, run_here


def lint(*words: str, stdin: str | bytes = "", code: int = 0) -> tuple[str, str]:
    data = stdin.encode() if isinstance(stdin, str) else stdin
    with mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(data))):
        ended, out, err = run_here(main, *words)
    assert ended == code, (ended, out, err)
    return out, err


def test_a_good_file_ends_with_0() -> None:
    out, err = lint(str(SHIPPED / "one-gpu.yaml"))
    assert out == "1 file: 0 errors, 0 warnings\n" and err == ""


def test_an_error_ends_with_1_and_says_where(tmp_path: Path) -> None:
    path = tmp_path / "memory-limit-bad.yaml"
    path.write_text(recorded()["memory-limit-bad"])
    out, _ = lint(str(path), "--errors-only", code=1)
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "8GG" in text)
    first = (
        f"{path}:{line}: error: Deployment/llm: spec.template.spec.containers[0].resources.limits.memory: '8GG' is no"
    )
    assert out.startswith(first) and out.endswith("1 file: 1 error, 0 warnings\n")


def test_json_has_every_finding(tmp_path: Path) -> None:
    path = tmp_path / "image-empty.yaml"
    path.write_text(recorded()["image-empty"])
    out, _ = lint("--json", CASE, str(path), code=1)
    said = json.loads(out)
    assert (said["ok"], said["errors"], said["schemas"], len(said["files"])) == (False, 1, True, 2)
    (error,) = [found for found in said["findings"] if found["level"] == "error"]
    assert error["object"] == "Deployment/llm" and error["path"] == "spec.template.spec.containers[0].image"
    assert error["line"] > 1 and error["file"].endswith("image-empty.yaml")


def test_standard_input_and_directories(tmp_path: Path) -> None:
    out, _ = lint("-", stdin=POD)
    assert out.startswith("1 file: 0 errors")
    (tmp_path / "a.yaml").write_text(POD)
    (tmp_path / "b.yml").write_text(POD)
    (tmp_path / "c.txt").write_text("nothing")
    (tmp_path / "d.json").write_text(edited(POD, {}).partition("\n---\n")[0])
    out, _ = lint(str(tmp_path))
    assert out.startswith("3 files: 0 errors")


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POD)
    (tmp_path / "b.yaml").write_bytes(b"# caf\xe9\n")
    _, err = lint(str(tmp_path), code=2)
    assert err == f"k8s.lint: {tmp_path}/b.yaml is no text in UTF-8: byte 5 is 0xe9\n"
    assert "standard input is no text in UTF-8" in lint("-", stdin=b"# caf\xe9\n", code=2)[1]


@pytest.mark.parametrize(
    "text", ["", "\n", "# nothing but words\n", "---\n---\n", "apiVersion: v1\nkind: List\nitems: []\n"]
)
def test_a_file_without_an_object_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(text)
    out, _ = lint(str(path), str(SHIPPED / "one-gpu.yaml"), code=1)
    assert out == f"{path}:1: error: there is nothing in it\n2 files: 1 error, 0 warnings\n"


def test_what_one_file_lacks_may_be_in_another(tmp_path: Path) -> None:
    claim, rest = GOOD.split("---", 1)
    (tmp_path / "claim.yaml").write_text(claim)
    (tmp_path / "rest.yaml").write_text(rest)
    lint(str(tmp_path / "rest.yaml"), code=1)
    lint(str(tmp_path / "rest.yaml"), str(tmp_path / "claim.yaml"))


def test_have_names_what_the_cluster_has(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(edited(GOOD, {"Deployment.spec.template.spec.serviceAccountName": "me"}))
    out, _ = lint(str(path), code=1)
    assert "--have ServiceAccount/me" in out
    lint(str(path), "--have", "ServiceAccount/me")


@pytest.mark.parametrize("version", ["1.34", "1.35", "v1.36", "1.37.2"])
def test_every_version_that_serves_the_claims_takes_the_example(version: str) -> None:
    lint("--kubernetes", version, str(SHIPPED / "one-gpu.yaml"))


def test_what_is_right_in_v1_says_so_in_an_older_version() -> None:
    claim = edited(POD, {"ResourceClaimTemplate.apiVersion": "resource.k8s.io/v1beta1"})
    out, _ = lint("-", stdin=claim, code=1)
    assert "there is no field exactly; use resource.k8s.io/v1, where this is right\n" in out
    out, _ = lint("-", stdin=edited(claim, {"ResourceClaimTemplate.spec.more": 1}), code=1)
    assert "there is no field exactly; use resource.k8s.io/v1" in out and "there is no field more\n" in out


def test_a_version_before_the_claims_says_so() -> None:
    out, _ = lint("--kubernetes", "1.30", str(SHIPPED / "one-gpu.yaml"), code=1)
    assert "has no ResourceClaimTemplate in version resource.k8s.io/v1" in out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 64, "FILE"),
        (("--nope", "x"), 64, "unrecognized arguments: --nope"),
        (("--kubernetes", "1.99", str(SHIPPED / "one-gpu.yaml")), 64, "no schemas of Kubernetes 1.99; there are:"),
        (("--have", "x", "y"), 64, "'x' is no object; allowed: KIND/NAME"),
        (("/nowhere/x.yaml",), 2, "/nowhere/x.yaml can't be read: No such file"),
        ((str(ROOT / "docs"),), 2, f"there is no .yaml in {ROOT}/docs"),
        ((sys.executable,), 2, "no text in UTF-8"),
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], code: int, says: str) -> None:
    _, err = lint(*words, code=code)
    assert says in err


def test_help_has_examples_and_exit_codes() -> None:
    out, _ = lint("--help")
    assert "examples:" in out and "exit codes:" in out


def test_without_the_schemas_it_says_so_and_keeps_its_own_rules(tmp_path: Path) -> None:
    (tmp_path / "kubernetes_validate").mkdir()
    (tmp_path / "kubernetes_validate" / "__init__.py").write_text("raise ImportError")
    done = subprocess.run(
        [sys.executable, "-m", "k8s.lint", "-"], input=recorded()["image-empty"],
        capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 1 and "image: it is missing" in done.stdout
    assert how_to_get("k8s") in done.stderr


def test_a_chart_is_to_be_rendered_first() -> None:
    _, err = lint(str(ROOT / "k8s" / "chart"), code=2)
    assert "is a Helm chart: helm template" in err


KUBECTL = """#!/bin/sh
cat > "$0.input"; echo "$@" > "$0.words"; printf '%s\\n' "$SAYS" >&2; exit "$CODE"
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], Path]:
    """What kubectl says of it, and its exit code. What kubectl was told is beside this path."""

    def says(said: str, code: int) -> Path:
        kubectl = tmp_path / "kubectl"
        kubectl.write_text(KUBECTL)
        kubectl.chmod(0o755)
        for name, value in {"PATH": f"{tmp_path}:/usr/bin:/bin", "SAYS": said, "CODE": str(code)}.items():
            monkeypatch.setenv(name, value)
        return kubectl

    return says


Cluster = Callable[[str, int], Path]
CASE = str(HERE / "good.yaml")


def test_the_api_server_is_asked_without_anything_being_made(cluster: Cluster) -> None:
    kubectl = cluster("The Deployment llm is invalid: spec.replicas: Invalid value: -1", 1)
    out, _ = lint("--server", CASE, code=1)
    assert "good.yaml:1: error: the API server says: The Deployment llm is invalid: spec.replicas" in out
    words = kubectl.with_suffix(".words").read_text().split()
    assert words[0] == "apply" and "--dry-run=server" in words and "--validate=strict" in words
    assert kubectl.with_suffix(".input").read_text() == Path(CASE).read_text()


def test_what_the_api_server_warns_of_is_a_warning_and_what_it_takes_is_nothing(cluster: Cluster) -> None:
    cluster("Warning: spec.x: deprecated", 0)
    assert "good.yaml:1: warning: the API server says: Warning: spec.x" in lint("--server", CASE)[0]
    assert lint("--server", "--errors-only", CASE)[0] == "1 file: 0 errors, 0 warnings\n"


def test_a_server_that_cant_be_asked_is_said(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster("The connection to the server localhost:8080 was refused", 1)
    out, err = lint("--server", CASE, code=2)
    assert out == "" and "can't ask its server: The connection to the server localhost:8080 was refused" in err
    openapi = "error validating data: failed to download openapi: Get http://localhost:8080: connection refused"
    cluster(f"error: {openapi}; if you choose to ignore these errors, turn validation off with --validate=false", 1)
    out, err = lint("--server", CASE, code=2)
    assert out == "" and err.endswith(f"can't ask its server: error: {openapi}\n"), err
    monkeypatch.setenv("PATH", "/nowhere")
    assert "--server needs kubectl, and there is none in PATH" in lint("--server", CASE, code=2)[1]


def test_without_yaml_it_says_how_to_get_it() -> None:
    program = "import runpy, sys; sys.modules['yaml'] = None; runpy.run_module('k8s.lint', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program, "a.yaml"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"k8s.lint: it needs the package yaml: {how_to_get('k8s')}\n"
