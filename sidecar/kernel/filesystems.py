"""Which kind of filesystem a path is on."""

import os
from pathlib import Path

NETWORK = ("nfs", "cifs", "smb", "9p", "ceph", "lustre", "gluster", "fuse", "afs", "gpfs", "beegfs")
"""How the kinds begin whose locks go over a network."""


def filesystem(path: Path) -> tuple[str, str]:
    """The kind of filesystem that this path is on, and where that is mounted."""
    best = ("unknown", "/")
    real = os.path.realpath(path)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            words = line.split()
            mounted = words[4].replace("\\040", " ")
            inside = real == mounted or real.startswith(mounted.rstrip("/") + "/")
            if inside and len(mounted) >= len(best[1]):  # of two at one place the later one is seen
                best = (words[words.index("-") + 1], mounted)
    return best
