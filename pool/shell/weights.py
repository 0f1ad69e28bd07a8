"""`gmsctl`, which moves a model's weights: a process of its own, with a context on the devices, that ends with ours."""

import signal
import subprocess
from functools import partial
from pathlib import Path

from sidecar.kernel import child_program

WAITS_S = 15.0
"""For a process that reads, or the end of a new GMS's window."""


def move(run_dir: Path, verb: str, name: str, most_s: float) -> str:
    """Parks or drops them. Returns why that wasn't done; empty: it was."""
    words = ("--run-dir", str(run_dir), verb, name, "--timeout-s", f"{WAITS_S:g}")
    return _run(child_program.words("gms.cli.gmsctl", *words), most_s)


def _run(words: list[str], most_s: float) -> str:
    try:
        run = partial(subprocess.run, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        done = run(words, timeout=most_s)
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return f"gmsctl hadn't done it after {most_s:g} s, and was ended: it, or GMS, hangs"
    if done.returncode < 0:
        return f"gmsctl was killed by {signal.Signals(-done.returncode).name}"
    return done.stderr.strip()[-500:] or f"gmsctl ended with {done.returncode}" if done.returncode else ""
