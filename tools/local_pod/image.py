"""What every container finds as its root: this machine's system, and gpu-failover in a place of its own.

There are no images here. /usr and /etc are the machine's, read-only. /opt/gpu-failover is laid out as in our image
(k8s/images/sidecar.Containerfile): an environment with an interpreter and what the commands need, and our own packages
in /opt/gpu-failover/packages. They are bound there from wherever they are, because a manifest's volumes may hide that
(a checkout in /tmp), and because it may be below /root, which other users can't enter.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HOME = Path("/opt/gpu-failover")
OURS = (
    "sidecar", "evidence", "lockserver", "gms", "engine_shim", "reference_engine", "gateway", "pool", "fleet",
    "dual_pods", "vram",
)  # fmt: skip
DISTRIBUTION = "gpu-failover"
_EMPTY = ("proc", "sys", "tmp", "run", "var", "var/tmp", "home", "root", "mnt", "srv", "media", "opt", "dev")
_SYSTEM = ("usr", "etc")
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LEFT_OUT = ("__pycache__", "__editable__", "_virtualenv", "distutils-precedence")


@dataclass(frozen=True)
class Bind:
    """A directory or file of the machine, and where it appears below the root."""

    source: Path
    target: Path


def directories() -> Iterator[Path]:
    """What has to be made below a root before anything is bound, each after its parent."""
    for name in _EMPTY:
        yield Path(name)
    for name in _SYSTEM:
        yield Path(name)
    for name in _LINKS:
        if not Path("/", name).is_symlink() and Path("/", name).is_dir():
            yield Path(name)
    home = HOME.relative_to("/")
    for name in ("", "bin", "python", "site", "packages", *(f"packages/{each}" for each in _packages())):
        yield home / name
    for number, _ in enumerate(_site_packages()):
        yield home / "site" / str(number)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for part in ("lib", f"lib/{version}", f"lib/{version}/site-packages"):
        yield home / part


def binds() -> Iterator[Bind]:
    for name in _SYSTEM:
        yield Bind(Path("/", name), Path(name))
    for name in _LINKS:
        if not Path("/", name).is_symlink() and Path("/", name).is_dir():
            yield Bind(Path("/", name), Path(name))
    for name in _DEVICES:
        if Path("/dev", name).exists():
            yield Bind(Path("/dev", name), Path("dev", name))
    home = HOME.relative_to("/")
    yield Bind(Path(sys.base_prefix), home / "python")
    for number, place in enumerate(_site_packages()):
        yield Bind(place, home / "site" / str(number))
    for name, place in _packages().items():
        yield Bind(place, home / "packages" / name)


def links() -> Iterator[tuple[Path, str]]:
    """(where, to what) of each symbolic link below the root."""
    for name in _LINKS:
        if Path("/", name).is_symlink():
            yield Path(name), os.readlink(Path("/", name))
    yield Path("dev/fd"), "/proc/self/fd"
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        yield Path("dev", name), f"/proc/self/fd/{number}"
    home = HOME.relative_to("/")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for name in ("python", "python3", version):
        yield home / "bin" / name, f"../python/bin/{_interpreter()}"
    packages = home / "lib" / version / "site-packages"
    seen = set(_packages())
    for name in sorted(seen):
        yield packages / name, str(HOME / "packages" / name)
    for number, place in enumerate(_site_packages()):
        for entry in sorted(place.iterdir()):
            if not entry.name.startswith(_LEFT_OUT) and entry.suffix != ".pth" and entry.name not in seen:
                seen.add(entry.name)
                yield packages / entry.name, str(HOME / "site" / str(number) / entry.name)


def files() -> Iterator[tuple[Path, str, int]]:
    """(where, what stands in it, mode) of each file that is written below the root."""
    home = HOME.relative_to("/")
    yield home / "pyvenv.cfg", f"home = {HOME}/python/bin\ninclude-system-site-packages = false\n", 0o644
    for name, target in sorted(_commands().items()):
        module, _, function = target.partition(":")
        text = f"#!{HOME}/bin/python\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        yield home / "bin" / name, text, 0o755
    for name in _DEVICES:
        yield Path("dev", name), "", 0o666


def _site_packages() -> list[Path]:
    """Wherever this interpreter has packages from, in its order."""
    found = [Path(each) for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
    return [place for place in dict.fromkeys(found) if place.is_dir()]


def _interpreter() -> str:
    """Its file's name in the bin directory of the interpreter that this one was made from."""
    names = (f"python{sys.version_info[0]}.{sys.version_info[1]}", "python3", "python")
    return next(name for name in names if Path(sys.base_prefix, "bin", name).exists())


def _packages() -> dict[str, Path]:
    """Ours, as far as they are there."""
    found = {}
    for name in OURS:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            found[name] = Path(spec.origin).parent
    return found


def _commands() -> dict[str, str]:
    try:
        entries = importlib.metadata.distribution(DISTRIBUTION).entry_points
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {entry.name: entry.value for entry in entries if entry.group == "console_scripts"}


def environment() -> dict[str, str]:
    """What the image would set. An interpreter that was built with a shared library looks for it where it was built."""
    if sysconfig.get_config_var("Py_ENABLE_SHARED") and Path(sys.base_prefix) != Path("/usr"):
        return {"LD_LIBRARY_PATH": str(HOME / "python" / "lib")}
    return {}


def missing_tools() -> list[str]:
    """What of util-linux this needs and isn't there."""
    return [name for name in ("unshare", "nsenter", "setpriv", "mount", "umount", "pivot_root") if not find(name)]


def find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin")
