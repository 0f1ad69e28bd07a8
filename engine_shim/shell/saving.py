"""A snapshot of an engine's weights, where there is none yet: made once they are loaded, in a process of its own beside
the engine. The main process needs no device for it, its start takes no longer, and what goes wrong is said and costs it
nothing: the next start tries again.

What this file may not do: replace a snapshot that is there (`gmsctl save` does, when a person says so).
"""

import subprocess
import threading

from engine_shim.engine import Setting
from gms.client import WEIGHTS
from gms.snapshot import BadSnapshot, find
from sidecar.kernel import child_program
from sidecar.terminal.logs import complain


def save_if_missing(setting: Setting) -> None:
    """The process ends with the engine: a save that is cut short leaves nothing."""
    place = setting.snapshot
    if place is None or setting.role != "primary":
        return
    try:
        if find(place) is not None:
            return
    except BadSnapshot:
        return  # where it was to be read that was said
    what = ("save", str(place), "--region", setting.region or WEIGHTS)
    words = child_program.words("gms.cli.gmsctl", "--run-dir", str(setting.gms_dir), *what)

    def work() -> None:
        """The thread stays until that process has ended, which dies with it."""
        done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        said = (done.stderr if done.returncode else done.stdout).strip().rpartition("\n")[2]
        complain(f"engine: no snapshot was made: {said}" if done.returncode else f"engine: a snapshot: {said}")

    threading.Thread(target=work, name="saving", daemon=True).start()
