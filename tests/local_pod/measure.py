"""`python -m tests.local_pod.measure [KILLS]`: the figures of docs/kubernetes.md, on this machine, as an ordinary user.

The reference pod comes up; an engine is killed inside its container so many times while clients read a stream; the pod
rests for a while, and is deleted. What this file may not do: judge.
"""

import os
import sys
import time

from tests.local_pod.client import asking
from tests.local_pod.ordinary import place, running, why_not
from tests.local_pod.pair import MAIN, POD, flips, other, whole

REST_S = 20


def processor_s(of: int) -> float:
    """Of all processes below this one, so far."""
    total, wanted = 0.0, {of}
    tick = os.sysconf("SC_CLK_TCK")
    for _ in range(6):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) in wanted:
                wanted.add(int(entry))
    for pid in wanted:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / tick
        except OSError:
            continue
    return total


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    if why := why_not():
        print(f"measure: {why}", file=sys.stderr)
        return 2
    with place() as here:
        began = time.monotonic()
        with running(here, POD[0]) as process:  # kubelet's own times
            print(f"run until Ready: {time.monotonic() - began:.1f} s (load {os.getloadavg()[0]:.1f})")
            seen = whole(here)
            print(f"until somebody could take over: {time.monotonic() - began:.1f} s")
            pauses = []
            with asking(here) as clients:
                for _ in range(kills):
                    active, token = seen["holder"]["engine_id"], seen["holder"]["token"]
                    clients.answered_since(1)
                    killed = time.monotonic()
                    here.say("kill", f"engine-{active}", "--inside", MAIN)
                    seen = whole(here, other(active), since=token)
                    clients.answered_since(2)
                    pauses += [answer.pause_s for answer in clients.answers if answer.ended > killed > answer.began]
            pauses.sort()
            middle, most = pauses[len(pauses) // 2] * 1000, pauses[-1] * 1000
            print(f"{kills} kills inside, the longest pause in a stream: median {middle:.0f} ms, max {most:.0f} ms")
            print(f"  {len(clients.broken())} answers not whole, flips {flips(here)} (load {os.getloadavg()[0]:.1f})")
            before, at = processor_s(process.pid), time.monotonic()
            time.sleep(REST_S)
            used = (processor_s(process.pid) - before) / (time.monotonic() - at)
            print(f"at rest, probes and all programs together: {used * 100:.1f} % of a core")
            down = time.monotonic()
            here.say("down")
            process.wait()
            print(f"down, with 5 s of preStop: {time.monotonic() - down:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
