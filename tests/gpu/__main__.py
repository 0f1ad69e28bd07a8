"""Runs everything that needs a GPU, on the first one (or --device), and writes what it saw to DIR: the maker of memory
to gpu.json, the engine to engine.json and, beside other people's figures, to engine.txt.

Without a GPU it says so and is done; without vLLM it leaves out what needs that, and says so. One call takes no longer
than --limit-s, and what there was no time for is left to another (--parts), which adds to DIR. Exit codes: 0 all
passed, or skipped; 1 something failed; 64 wrong usage.

    python -m tests.gpu --out results                            all of it, as far as ten minutes go
    python -m tests.gpu --out results --parts pair               a small model: takeovers, memory of a standby
    python -m tests.gpu --out results --parts wake               8, 32 and 64 GiB of weights: does a wake stay flat?
    python -m tests.emulated_driver --capacity 1GiB -- python -m tests.gpu --out results     (proves the script alone)
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gms.memory import DeviceError
from gms.memory.cuda import devices
from sidecar.terminal.settings import BadValue, Parser, seconds
from tests.gpu import plan
from tests.gpu.memory import CHECKS
from tools.vmm_refcount.meters import nvml_meter

ROOT = Path(__file__).resolve().parents[2]
CHECK_TIMEOUT_S = 180
STOPPING_S = 30
"""An engine part ends so long before its time is over, to put its processes away."""
PACKAGES = ("cuda-bindings", "nvidia-ml-py", "msgspec", "torch", "vllm")


def main() -> int:
    parser = Parser(prog="python -m tests.gpu", description=__doc__)
    parser.setting("--out", env="GPU_TESTS_OUT", required=True, parse=Path, metavar="DIR", help="where the figures go")
    parser.setting(
        "--device",
        env="GPU_TESTS_DEVICE",
        metavar="GPU-...",
        help="which GPU, by UUID; default: the first that CUDA shows",
    )
    parser.setting(
        "--size", env="GPU_TESTS_SIZE", default="512MiB", metavar="SIZE", help="of the memory in vmm_refcount"
    )
    parser.setting("--parts", default=",".join(plan.PARTS), parse=_parts, metavar="PARTS", help="which, by name")
    parser.setting("--limit-s", default=570, parse=seconds, metavar="S", help="how long it may take altogether")
    options = parser.parse_args()
    end = time.monotonic() + options.limit_s
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        device = options.device or devices()[0]
        meter = nvml_meter(device)
    except DeviceError as error:
        print(f"skipped, there is no GPU to be had: {error}")
        _write(options.out, "gpu.json", {"skipped": str(error)})
        return 0
    about = {
        "device": device,
        "measured_by": meter.how,
        "emulated": meter.emulated,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "used_at_start": meter.used(),
    }
    print(f"{device}, {meter.how}")
    passed = True
    for part in options.parts:
        if part == "memory":
            passed &= _memory(options.out, {**about, "checks": {}}, device, options.size, meter.used)
        else:
            passed &= _engine(options.out, about, part, device, meter.emulated, end - time.monotonic())
    print(f"{'all passed' if passed else 'something failed'}; the figures are in {options.out}")
    return 0 if passed else 1


def _parts(text: str) -> list[str]:
    try:
        return plan.parts(text)
    except plan.BadParts as error:
        raise BadValue(str(error)) from None


def _memory(out: Path, report: dict[str, Any], device: str, size: str, used: Callable[[], int]) -> bool:
    for name in CHECKS:
        report["checks"][name] = _check(name, device)
        _write(out, "gpu.json", report)  # a machine can be taken away at any time
    report["vmm_refcount"] = _vmm_refcount(device, size)
    report["used_at_end"] = used()
    _write(out, "gpu.json", report)
    return bool(report["vmm_refcount"].get("as_expected")) and all(
        check["passed"] for check in report["checks"].values()
    )


def _engine(out: Path, about: dict[str, Any], part: str, device: str, emulated: bool, left_s: float) -> bool:
    """What was measured before, in another call on the same GPU, stays."""
    report = dict(about)
    with contextlib.suppress(OSError, ValueError):
        earlier = json.loads((out / "engine.json").read_text(encoding="utf-8"))
        if earlier.get("device") == device:
            report |= {name: earlier[name] for name in plan.PARTS if name in earlier}
    if emulated:
        result: dict[str, Any] = {"skipped": "an emulated GPU computes nothing"}
    elif missing := [name for name in plan.NEEDED if importlib.util.find_spec(name) is None]:
        result = {"skipped": f"{', '.join(missing)} isn't there: install it, or put it into PYTHONPATH"}
    elif left_s < plan.LEAST_S:
        result = {"skipped": f"no time was left: call it again with --parts {part}"}
    else:
        words = ["-m", "tests.gpu.engine", part, device, f"{left_s - STOPPING_S:.0f}"]
        result = _run([sys.executable, *words], left_s)
    if "skipped" not in result or part not in report:
        report[part] = result
    _write(out, "engine.json", report)
    lines = plan.table(report)
    (out / "engine.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    if "skipped" in result:
        print(f"  skipped  {part}  {result['skipped']}")
        return True
    done = result.get("passed", False)
    print(
        f"  {'passed' if done else 'FAILED'}  {part}  {result.get('why', '')}".rstrip(),
        *lines,
        sep="\n    ",
        flush=True,
    )
    return bool(done)


def _check(name: str, device: str) -> dict[str, Any]:
    started = time.monotonic()
    result = _run([sys.executable, "-m", "tests.gpu.memory", name, device])
    result.setdefault("passed", False)
    result["took_s"] = round(time.monotonic() - started, 3)
    print(f"  {'passed' if result['passed'] else 'FAILED'}  {name}  {result.get('why', '')}".rstrip(), flush=True)
    return result


def _vmm_refcount(device: str, size: str) -> dict[str, Any]:
    words = ["--memory", "cuda", "--device", device, "--size", size, "--json"]
    result = _run([sys.executable, "-m", "tools.vmm_refcount", *words])
    differs = [f"{step['story']}: {step['what']}" for step in result.get("steps", []) if not step["fits"]]
    print(f"  {'passed' if result.get('as_expected') else 'FAILED'}  vmm_refcount  {'; '.join(differs)}".rstrip())
    return result


def _run(command: list[str], timeout_s: float = CHECK_TIMEOUT_S) -> dict[str, Any]:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
        result: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"why": f"not done after {timeout_s:.0f} s"}
    except ValueError:
        return {"why": f"ended with {done.returncode}: {done.stderr[-2000:]}"}
    return result


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _write(directory: Path, name: str, report: dict[str, Any]) -> None:
    (directory / name).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
