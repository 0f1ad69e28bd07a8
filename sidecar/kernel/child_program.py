"""Runs one of our modules as a program that dies with its parent. `supervisor.py` starts its children through it:

    python -I -S sidecar/kernel/child_program.py PARENT_PID MODULE ARGUMENTS...

The setting survives the exec. Without it the children would outlive a SIGKILL of their supervisor. Python looks for no
packages here (-I -S): a restart on a busy node waits for this, and the module that follows looks for them itself.
"""

import os
import sys


def words(module: str, *arguments: str) -> list[str]:
    """Which start it, as a child of this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), module, *arguments]


if __name__ == "__main__":
    sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 3)[0])
    from sidecar.kernel import process_setup

    process_setup.die_with_parent(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])
