"""Engines that `failover up` has given up, and why, for `failover status`.

DIR/engine/<engine_id>.given_up      why, in a sentence; there is no such file of an engine that is kept running

Only the `failover up` of this directory writes them, so they mean nothing while it doesn't run.
"""

import contextlib
from pathlib import Path

from engine_shim.shell import paths

SUFFIX = ".given_up"


def note(run_dir: Path, engine_id: str, why: str) -> None:
    """Where it can't be written, the log of `failover up` has it."""
    with contextlib.suppress(OSError):
        (run_dir / paths.ENGINES / f"{engine_id}{SUFFIX}").write_text(f"{why}\n", encoding="utf-8")


def forget(run_dir: Path) -> None:
    """All of them: another try, or the end."""
    with contextlib.suppress(OSError):
        for path in (run_dir / paths.ENGINES).glob(f"*{SUFFIX}"):
            path.unlink(missing_ok=True)


def read(run_dir: Path) -> dict[str, str]:
    """Why, by engine."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for path in (run_dir / paths.ENGINES).glob(f"*{SUFFIX}"):
            found[path.name.removesuffix(SUFFIX)] = path.read_text(encoding="utf-8", errors="replace").strip()
    return found
