"""What the pool's shell has others do, alone."""

import sys

from pool.shell.server import _run


def test_a_program_that_parks_and_hangs_fails_or_is_killed_is_told_in_a_sentence() -> None:
    python = [sys.executable, "-c"]
    assert _run([*python, "pass"], 60.0) == ""
    assert "hadn't done it after 0.2 s" in _run([*python, "import time; time.sleep(600)"], 0.2)
    assert _run([*python, "import os; os.kill(os.getpid(), 9)"], 60.0) == "gmsctl was killed by SIGKILL"
    assert _run([*python, "exit('no room')"], 60.0) == "no room"
    assert _run([*python, "exit(3)"], 60.0) == "gmsctl ended with 3"
    assert "No such file" in _run(["/there/is/none"], 60.0)
