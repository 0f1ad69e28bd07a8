"""Runs everything that needs a GPU, on the first one (or --device), and writes what it saw to DIR/gpu.json.

Without a GPU it says so and is done. Exit codes: 0 all passed, or skipped; 1 something failed; 64 wrong usage.

    python -m tests.gpu --out results
    python -m tests.emulated_driver --capacity 1GiB -- python -m tests.gpu --out results     (proves the script alone)
"""

import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gms.memory import DeviceError
from gms.memory.cuda import devices
from sidecar.settings import Parser
from tests.gpu.memory import CHECKS
from tools.vmm_refcount.meters import nvml_meter

ROOT = Path(__file__).resolve().parents[2]
CHECK_TIMEOUT_S = 180


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
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        device = options.device or devices()[0]
        meter = nvml_meter(device)
    except DeviceError as error:
        print(f"skipped, there is no GPU to be had: {error}")
        _write(options.out, {"skipped": str(error)})
        return 0
    report: dict[str, Any] = {
        "device": device,
        "measured_by": meter.how,
        "emulated": meter.emulated,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("cuda-bindings", "nvidia-ml-py", "msgspec", "torch")},
        "used_at_start": meter.used(),
        "checks": {},
    }
    print(f"{device}, {meter.how}")
    for name in CHECKS:
        report["checks"][name] = _check(name, device)
        _write(options.out, report)  # a machine can be taken away at any time
    report["vmm_refcount"] = _vmm_refcount(device, options.size)
    report["used_at_end"] = meter.used()
    _write(options.out, report)
    passed = report["vmm_refcount"].get("as_expected") and all(check["passed"] for check in report["checks"].values())
    print(f"{'all passed' if passed else 'something failed'}; the figures are in {options.out / 'gpu.json'}")
    return 0 if passed else 1


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


def _run(command: list[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CHECK_TIMEOUT_S)
        result: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"why": f"not done after {CHECK_TIMEOUT_S} s"}
    except ValueError:
        return {"why": f"ended with {done.returncode}: {done.stderr[-2000:]}"}
    return result


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _write(directory: Path, report: dict[str, Any]) -> None:
    (directory / "gpu.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
