"""What the images are made of, and the way of gpu-failover into a stock image of vLLM.

No image is built here: there is no registry in reach. What is tried is what would go into one.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from k8s.images import add_to_python
from sidecar.terminal.names import VERSION
from tests.support.processes import ROOT
from tools.local_pod import image

IMAGES = ROOT / "k8s" / "images"
VLLM_BRINGS = {
    "msgspec",
    "prometheus_client",
    "pynvml",
    "cuda",
    "torch",
    "vllm",
    "uvicorn",
    "httptools",
    "numpy",
    "yaml",
}
"""What vLLM's own requirements, or torch's, bring into its image."""
OURS = set(image.OURS)
NOT_THERE = {"reference_engine", "gateway"}
"""Not loaded on vLLM's side; copied with the rest."""


def text(name: str) -> str:
    return (IMAGES / name).read_text()


def imported(file: Path) -> set[str]:
    """Every module that is named, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found


def file_of(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def engines_side() -> dict[Path, set[str]]:
    """Each file that an engine of vLLM's can come by, with what it imports; from its shim and its plugin on."""
    found: dict[Path, set[str]] = {}
    open_ = list((ROOT / "engine_shim").rglob("*.py"))
    while open_:
        file = open_.pop()
        if file in found:
            continue
        found[file] = imported(file)
        inner = (file_of(module) for module in found[file] if module.split(".")[0] in OURS - NOT_THERE)
        open_ += [each for each in inner if each is not None]
    return found


def test_the_engines_side_imports_nothing_but_what_vllm_brings() -> None:
    files = engines_side()
    assert len(files) > 60
    named = {module.split(".")[0] for modules in files.values() for module in modules}
    assert named - OURS - VLLM_BRINGS - set(sys.stdlib_module_names) == set()
    assert all(any(name in modules for modules in files.values()) for name in ("msgspec", "torch", "pynvml"))


CHECK = """
import importlib.util, sys
files, modules = sys.argv[1].split(":"), sys.argv[2].split(":")
for file in files:
    compile(open(file, encoding="utf-8").read(), file, "exec")
missing = [name for name in modules if importlib.util.find_spec(name) is None]
assert not missing, missing
"""


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_it_can_be_read_by_every_python_that_vllms_images_have(version: str) -> None:
    python = f"python{version}" if f"{sys.version_info[0]}.{sys.version_info[1]}" != version else sys.executable
    tried = subprocess.run([python, "-c", ""], capture_output=True, check=False) if shutil.which(python) else None
    if tried is None or tried.returncode:
        pytest.skip(f"there is no {python} here")
    files = engines_side()
    standard = {module.split(".")[0] for modules in files.values() for module in modules} - OURS - VLLM_BRINGS
    command = [python, "-I", "-c", CHECK, ":".join(map(str, files)), ":".join(sorted(standard))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def packages(place: Path) -> Path:
    """As the init container copies them."""
    made = place / "packages"
    for name in OURS:
        shutil.copytree(ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    return made


def test_an_engines_side_starts_where_nothing_is_but_what_vllm_brings(tmp_path: Path) -> None:
    """By PYTHONPATH, in a Python whose other packages are the three that are pure of torch."""
    brought = tmp_path / "brought"
    brought.mkdir()
    for name in ("msgspec", "prometheus_client", "pynvml"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            pytest.skip(f"{name} isn't installed")
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (brought / source.name).symlink_to(source)
    paths = os.pathsep.join(map(str, (packages(tmp_path), brought)))
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    modules = (
        "engine_shim.shell.shim, engine_shim.shell.main_process, engine_shim.membership, engine_shim.vllm_engine.plugin"
    )
    for words in (["-m", "engine_shim", "--version"], ["-c", f"import {modules}, gms.client, lockserver.client"]):
        command = [sys.executable, "-S", *words]
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr


def test_an_image_of_vllm_gets_the_plugin_and_the_commands(tmp_path: Path) -> None:
    venv.create(tmp_path / "vllm", symlinks=True)
    python = tmp_path / "vllm" / "bin" / "python"
    command = [str(python), str(IMAGES / "add_to_python.py"), str(packages(tmp_path))]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    code = (
        "from importlib.metadata import entry_points, version; import engine_shim, gms; "
        "print(*(each.value for each in entry_points(group='vllm.general_plugins')), version('gpu-failover'))"
    )
    done = subprocess.run([str(python), "-c", code], cwd="/", capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["engine_shim.vllm_engine.plugin:register", VERSION], done.stderr
    for name in add_to_python.COMMANDS:
        script = (tmp_path / "vllm" / "bin" / name).read_text()
        assert script.startswith(f"#!{python.parent}/") and os.access(tmp_path / "vllm" / "bin" / name, os.X_OK)


def test_the_plugin_and_the_commands_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert add_to_python.VERSION == VERSION
    assert add_to_python.PLUGIN.splitlines()[1].split(" = ")[1] in project
    for command, module in add_to_python.COMMANDS.items():
        assert f'{command} = "{module}:main"' in project


def test_the_image_is_laid_out_as_local_pod_shows_it() -> None:
    script = text("install.sh")
    (names,) = re.findall(r"for package in (.*); do", script)
    assert set(names.split()) == OURS
    sidecar = text("sidecar.Containerfile")
    assert {name for name, _ in re.findall(r"^COPY (\w+) (\w+)$", sidecar, re.M)} == {*OURS, "k8s"}
    assert str(image.HOME) in sidecar and f"PATH={image.HOME}/bin:" in sidecar
    assert f"/sidecar:{VERSION} " in sidecar


BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


def unpack(source: Path, site: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(site.parent)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False, timeout=200)
    assert built.returncode == 0, built.stderr
    shutil.unpack_archive(site.parent / built.stdout.split()[-1], site, "zip")


def test_what_the_image_copies_makes_a_wheel_without_a_package_of_a_common_name(tmp_path: Path) -> None:
    """`tools` and `k8s` are other people's names, too: the linter has a longer one, local-pod in its own wheel."""
    lines = re.findall(r"^COPY (?!--)(.+) (\S+)$", text("sidecar.Containerfile"), re.M)
    for words, target in lines:
        for name in words.split():
            copied = tmp_path / "source" / (name if target != "./" else Path(name).name)
            copied.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copied, ignore=shutil.ignore_patterns("__pycache__"))
            elif not target.startswith("/"):
                shutil.copy(ROOT / name, copied)
    site = tmp_path / "site"
    unpack(tmp_path / "source", site)
    others = {"gpu_failover_k8s", "gpu_failover_lint", f"gpu_failover-{VERSION}.dist-info"}
    assert {each.name for each in site.iterdir()} == OURS | others
    shutil.copytree(ROOT / "tools" / "local_pod", tmp_path / "local_pod")
    unpack(tmp_path / "local_pod", site)
    assert (site / f"gpu_failover_local_pod-{VERSION}.dist-info").is_dir()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    for module, words, code in (
        ("gpu_failover_lint", [str(ROOT / "k8s" / "dra")], 0),
        ("gpu_failover_local_pod", ["run", "/nowhere.yaml"], 2),
    ):
        program = f"import runpy, sys, {module}; assert {module}.__file__.startswith({str(site)!r}); "
        program += f"sys.argv = {[module, *words]!r}; runpy.run_module({module!r}, run_name='__main__')"
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200
        )
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr


def test_the_demos_image_has_all_that_the_demo_loads(tmp_path: Path) -> None:
    """Of the tests only the processes that end badly on purpose are in it, of the benchmarks and tools nothing."""
    stage = text("sidecar.Containerfile").split(" AS demo\n")[1].split("\nFROM ")[0]
    assert 'ENTRYPOINT ["python", "-m", "demo"]' in stage and "PYTHONPATH=/demo\n" in stage
    for source, target in re.findall(r"^COPY (?!--)(\S+) /demo/(\S+)$", stage, re.M):
        shutil.copytree(ROOT / source, tmp_path / "demo" / target, ignore=shutil.ignore_patterns("__pycache__"))
    names = ", ".join(f"demo.{file.stem}" for file in sorted((ROOT / "demo").glob("[a-z]*.py")))
    environment = {"PYTHONPATH": str(packages(tmp_path)), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", f"import {names}, demo.__main__"]
    done = subprocess.run(command, env=environment, cwd=tmp_path / "demo", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_no_image_is_roots_and_none_has_torch() -> None:
    for name in ("sidecar.Containerfile", "engine.Containerfile"):
        lines = text(name).splitlines()
        run = [
            stage
            for stage in text(name).split("\nFROM ")[1:]
            if " AS build" not in stage and " AS sidecar" not in stage
        ]
        assert run and all("\nUSER 2000:2000" in stage for stage in run)
        assert not any(":latest" in line for line in lines)
    extras = re.findall(r"/install\.sh \S+ \S+ (\S+)", text("sidecar.Containerfile"))[0].split(",")
    project = (ROOT / "pyproject.toml").read_text()
    assert "torch" not in extras and all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras)
    words = [line.split() for line in text("sidecar.Containerfile").splitlines() if "--from" not in line]
    copied = [word for each in words if each[:1] == ["COPY"] for word in each[1:-1]]
    assert all((ROOT / word).exists() for word in copied)
