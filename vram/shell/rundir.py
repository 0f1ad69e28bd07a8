"""What lies where in a host directory.

DIR/vram/vram.sock     the ledger's socket
DIR/vram/vram.json     what the server must not forget (`rules/record.py`)
DIR/vram/server.lock   one server per directory
DIR/vram/life/         one file for each start of a tree, `<name>.<incarnation>`
"""

import os
from pathlib import Path

SOCKET = "vram.sock"
FILE = "vram.json"


def ledger_of(host_dir: Path | str) -> Path:
    """What it means now, wherever this process goes later."""
    return Path(os.path.abspath(host_dir)) / "vram"
