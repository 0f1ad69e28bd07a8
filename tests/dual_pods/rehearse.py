"""A rehearsal of dual pods without a cluster: one node with two accelerators made of memory, and reference engines.

    python -m tests.dual_pods.rehearse

Controller, requesters and the node's pool are the real programs; API server, scheduler and kubelet are those of the
tests (`cluster.py`). What is to happen is typed; what comes of it is seen in another terminal, with `dualctl status`.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable

from lockserver.observer import Observer as Lock
from sidecar.wire.observer import ObserverError
from tests.dual_pods.cluster import Cluster, cluster
from tests.support import tmpfs

HELP = """\
request NAME [MODEL]   creates a requester; two of one MODEL have an instance each
delete NAME            deletes it: its instance goes to sleep
kill NAME              SIGKILL to the engine of its instance
kill controller        and "controller" starts another one
kill pool              deletes the node's server pod
says NAME              its status, its Events, and how its model is asked
Ctrl-D                 ends all of it
"""


class Rehearsal:
    def __init__(self, it: Cluster, listen: str) -> None:
        self._it, self._listen = it, listen
        self.words: dict[str, Callable[..., None]] = {
            "controller": self.controller, "request": self.request, "delete": self.delete, "kill": self.kill,
            "says": self.says,
        }  # fmt: skip

    def controller(self) -> None:
        self._it.kill_controllers()
        self._it.controller("--listen", self._listen)

    def request(self, name: str, model: str = "qwen") -> None:
        seed = sum(model.encode())
        self._it.request(name, model, model=f"{{engine: reference, arguments: ['--seed', '{seed}'], memory: 96MiB}}")

    def delete(self, name: str) -> None:
        self._it.delete(name)

    def kill(self, what: str) -> None:
        if what == "controller":
            self._it.kill_controllers()
        elif what == "pool":
            self._it.delete("n1-dual")
        else:
            with Lock(self._it.directory / "run-n1" / "lock" / self._it.instance_of(what)) as observer:
                holder = next(observer.watch()).holder
            if holder is not None:
                os.kill(holder.pid, signal.SIGKILL)

    def says(self, name: str) -> None:
        print(self._it.says(name), *self._it.events(name), sep="\n  ")
        ip = self._it.pod(name)["status"].get("podIP", "")
        asks = '{"model": "any", "prompt": "Hello", "max_tokens": 8}'
        print(f"  curl -s http://{ip}:8000/v1/completions -d '{asks}'")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.dual_pods.rehearse", description="Dual pods, rehearsed.")
    parser.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="where the controller is asked")
    listen = parser.parse_args().listen
    with tmpfs.directory("rehearsal") as directory, cluster(directory, {"n1": ["host:r0", "host:r1"]}) as it:
        it.real_pools = True
        rehearsal = Rehearsal(it, listen)
        rehearsal.controller()
        look = f"in another terminal: dualctl status --watch --controller http://{listen}"
        print(f"{look}\nlogs: {directory}\n\n{HELP}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            for line in sys.stdin:
                word, *more = line.split() or [""]
                try:
                    rehearsal.words[word](*more)
                except (KeyError, TypeError, ObserverError):
                    print(f"{line.strip()}: no such command, no such pod, or no engine of it yet\n\n{HELP}")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
