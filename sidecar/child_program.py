"""Runs one of our modules as a program that dies with its parent. `supervisor.py` starts its children through it:

    python -m sidecar.child_program PARENT_PID MODULE ARGUMENTS...

The setting survives the exec. Without it the children would outlive a SIGKILL of their supervisor.
"""

import os
import sys

from sidecar import process_setup

if __name__ == "__main__":
    process_setup.die_with_parent(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])
