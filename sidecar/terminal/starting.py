"""Ctrl-C while a command's modules are being loaded, a third of a second, ends it without a traceback.

The module of a command begins with this, before its other imports:

    if starting.is_command(__name__, "lockctl"):
        starting.die_of_ctrl_c()

and where its `main` answers KeyboardInterrupt, `starting.loaded()` is the first thing there. What this file may not do:
import anything that takes time.
"""

import os
import signal
import sys


def is_command(module: str, script: str) -> bool:
    """Whether this module is loaded to be run, and not only imported: with `python -m`, or by the script."""
    return module == "__main__" or os.path.basename(sys.argv[0]) == script


def die_of_ctrl_c() -> None:
    """As any program does that handles no signal. A shell that wants it ignored is obeyed."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def loaded() -> None:
    """From here on it is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
