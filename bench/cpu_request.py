"""How much processor a server's container has to be promised to be back within two seconds, on a node that is full.

    sudo .venv/bin/python -m bench.cpu_request              needs root and cgroups, v1 or v2

A request for processor time is what a container still gets when all others want everything. So each server is started
in a cgroup with just that as its quota, under its keeper as in a pod, and asked as kubelet asks, once a second: over
HTTP from outside, or, with `--exec`, by a command that is started in the same cgroup. What is printed is the time from
the start to the first answer. It asserts nothing.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

PERIOD_US = 100_000
TIMEOUT_S, GIVEN_UP_S = 5.0, 60.0
REQUESTS_M = (50, 100, 200, 250, 500, 1000)
PORT = 19400
SERVERS = {
    "lockserver": (["--memory", "none"], "/live", ["lockserver.cli.lockctl", "ping", "--count", "1"]),
    "gms": (["--devices", "host:0", "--capacity", "16MiB"], "/startup", ["gms.cli.gmsctl", "ping"]),
    "gateway": (["--listen", f":{PORT + 1}"], "/live", []),
}


@contextlib.contextmanager
def group(request_m: int) -> Iterator[Path]:
    """A cgroup whose processes get so many thousandths of a processor and no more."""
    quota_us = request_m * PERIOD_US // 1000
    v1 = Path("/sys/fs/cgroup/cpu")
    here = (v1 if v1.is_dir() else Path("/sys/fs/cgroup")) / f"gpu-failover-bench-{os.getpid()}"
    here.mkdir()
    try:
        if v1.is_dir():
            (here / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (here / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (here / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        yield here
    finally:
        while (here / "cgroup.procs").read_text():
            time.sleep(0.05)
        here.rmdir()


def start(here: Path, environment: dict[str, str], module: str, *arguments: str) -> "subprocess.Popen[bytes]":
    into = 'echo $$ > "$0" && exec "$@"'
    command = ["sh", "-c", into, str(here / "cgroup.procs"), sys.executable, "-m", module, *arguments]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet)


def answers(server: str, here: Path, environment: dict[str, str], by_exec: bool) -> bool:
    _, path, command = SERVERS[server]
    if not by_exec:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=2) as page:
            return bool(page.status == 200)
        return False
    probe = start(here, environment, *command)
    try:
        return probe.wait(TIMEOUT_S) == 0
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.wait()
        return False


def measure(server: str, request_m: int, by_exec: bool) -> float:
    with tempfile.TemporaryDirectory() as directory, group(request_m) as here:
        environment = {
            **os.environ,
            "FAILOVER_RUN_DIR": f"{directory}/run",
            "FAILOVER_HOST_DEVICES": f"{directory}/devices",
            "FAILOVER_RESTART": "in-place",
        }
        began = time.monotonic()
        kept = start(here, environment, server, *SERVERS[server][0], "--metrics", f":{PORT}")
        try:
            while not answers(server, here, environment, by_exec) and time.monotonic() < began + GIVEN_UP_S:
                time.sleep(max(0.0, 1.0 - (time.monotonic() - began) % 1.0) if by_exec else 0.02)
            return time.monotonic() - began
        finally:
            kept.kill()  # its child dies with it
            kept.wait()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--exec", action="store_true", help="ask by a command in the same cgroup, once a second")
    p.add_argument("--server", choices=SERVERS, action="append")
    p.add_argument("--times", type=int, default=3)
    options = p.parse_args()
    for server in options.server or SERVERS:
        if options.exec and not SERVERS[server][2]:
            continue
        for request_m in REQUESTS_M:
            took = [measure(server, request_m, options.exec) for _ in range(options.times)]
            median, most = statistics.median(took), max(took)
            print(f"{server:10} {request_m:5}m  {median:5.1f} s  at most {most:5.1f} s", flush=True)


if __name__ == "__main__":
    main()
