"""For one scenario, by way of PYTHONPATH: SIGUSR2 disarms EngineCore and the workers, which then outlive their parent.
In a vLLM without our plugin they do; the plugin has no switch for it.

Python loads this before anything else, in every process of the tests' engines. `DISARMED/<pid>` says that it is done.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def _disarm(*_: object) -> None:
    """In the main thread, which is the one that was armed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    (Path(os.environ["FAILOVER_TEST_DISARMED"]) / str(os.getpid())).touch()


if "FAILOVER_TEST_DISARMED" in os.environ and "--multiprocessing-fork" in sys.orig_argv:
    signal.signal(signal.SIGUSR2, _disarm)
