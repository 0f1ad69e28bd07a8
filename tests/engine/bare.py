"""A shim whose engine is a few lines of Python that the test writes: quick, and nothing else has to be there.

    python -m tests.engine.bare RUN_DIR PROGRAM

`PROGRAM` runs as the main process, behind `BEGIN`. What this file may not do: know a rule.
"""

import sys
from pathlib import Path

from engine_shim.rules.events import Config
from engine_shim.shell.shim import Options, Shim
from sidecar.terminal.logs import Log

BEGIN = """
import os, signal, subprocess, sys, threading
from engine_shim import membership
from engine_shim.rules import messages as m
membership.arm_main()
shim = membership.enter_main()
def step(to, **more): shim.say(m.Step(to=to, **more))
def child(program, **how): return subprocess.Popen([sys.executable, "-c", program], **how)
def forever(): threading.Event().wait()
def told(path, text): open(path + ".new", "w").write(str(text)); os.rename(path + ".new", path)
NAP = "import threading; threading.Event().wait()"
"""

if __name__ == "__main__":
    run_dir, program = Path(sys.argv[1]), sys.argv[2]
    command = (sys.executable, "-c", BEGIN + program)
    sys.exit(Shim(Options(Config("a", role="shadow"), run_dir, ("127.0.0.1", 0), command), Log("shim")).serve())
