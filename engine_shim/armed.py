"""Runs a module of ours as a program that dies with its parent:

    python -m engine_shim.armed PARENT MODULE ARGUMENTS...

The setting outlives the exec. For `failover up`, whose children would outlive a SIGKILL otherwise.
"""

import os
import sys

from sidecar import process_setup

if __name__ == "__main__":
    process_setup.die_with_parent(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])
