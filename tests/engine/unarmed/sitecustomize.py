"""For one test (`test_orphans.py`), by PYTHONPATH: the reference engine's workers don't die with their parent, as if
PR_SET_PDEATHSIG had been cleared (a set-uid exec does that, or a library). Every other process is as ever.
"""

import sys

if "reference_engine.worker" in sys.orig_argv:
    from sidecar.kernel import process_setup

    process_setup.die_with_parent = lambda *_, **__: None
