"""Where a running pod keeps what others look at: one directory, one pod.

DIR/control.sock            what `local-pod status`, `kill`, `exec` ... speak to
DIR/lock                    one pod for each directory
DIR/pod.pickle              the pod as it was read, for the process inside the namespaces
DIR/events.jsonl            everything that happened, one JSON object a line; every flip of readiness is in it
DIR/logs/CONTAINER.RUN.log  what each run of each container wrote
DIR/mounts                  where the pod's file systems are mounted, seen from inside only
"""

import os
from pathlib import Path

CONTROL = "control.sock"
LOCK = "lock"
POD = "pod.pickle"
EVENTS = "events.jsonl"
LOGS = "logs"
MOUNTS = "mounts"


def default_directory() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "local-pod") if runtime else Path(f"/tmp/local-pod-{os.getuid()}")


def log(directory: Path, container: str, run: int) -> Path:
    return directory / LOGS / f"{container}.{run}.log"
