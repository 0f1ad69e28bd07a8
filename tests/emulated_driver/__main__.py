"""Runs a command with emulated GPUs, and removes them after it:

python -m tests.emulated_driver --devices 2 --capacity 1GiB -- python -m tools.vmm_refcount --memory cuda
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sidecar.terminal.settings import size_bytes
from tests import emulated_driver


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.emulated_driver", description=__doc__, formatter_class=formatter)
    parser.add_argument("--devices", type=int, default=1, help="how many (default: 1)")
    parser.add_argument("--capacity", type=size_bytes, default="1GiB", help="of each (default: 1GiB)")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="emulated-cuda-", dir="/dev/shm"))
    try:
        variables = emulated_driver.environment(directory, devices=given.devices, capacity=given.capacity)
        return subprocess.run(given.command, env={**os.environ, **variables}).returncode
    except (emulated_driver.NoCompiler, OSError) as error:
        print(f"python -m tests.emulated_driver: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
