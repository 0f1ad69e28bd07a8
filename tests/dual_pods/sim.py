"""Schedules of the controller's machine: arrivals, departures, failures, restarts. One seed is one schedule.

python -m tests.dual_pods.sim --seeds 200              small clusters, each with many faults
python -m tests.dual_pods.sim --day                    200 requesters, 50 nodes, a day of arrivals
"""

import argparse
import random
import sys
import time

from dual_pods.rules.events import Tells
from dual_pods.rules.facts import Node, Requester, Server
from dual_pods.rules.place import Mode, Settings
from pool.entries import State
from tests.dual_pods.world import GIB, Chances, Violation, World


def _arrive(it: World, wishes: int, busy: dict[str, str], most: int) -> None:
    """As Kubernetes would: accelerators that no other requester has that is there."""
    free = {node: [a for a in names if a not in busy] for node, names in it.nodes.items()}
    node = it.random.choice(sorted(free))
    count = min(it.random.choice([1, 1, 1, 2]), most)
    if len(free[node]) < count:
        return
    accelerators = tuple(sorted(it.random.sample(free[node], count)))
    wish = f"m{it.random.randrange(wishes)}" + it.random.choice(["", "+"])
    there = [en for pod in it.here[node].values() for en in pod.engines.values() if en.state is State.ASLEEP]
    known = [en for en in there if en.accelerators <= set(free[node]) and en.id in it.wishes]
    if known and it.random.random() < 0.5:
        engine = it.random.choice(known)
        accelerators, wish = tuple(sorted(engine.accelerators)), it.wishes[engine.id]
        if it.random.random() < 0.5:  # the same model, for more requests at a time, or for fewer
            wish = wish.rstrip("+") if wish.endswith("+") else wish + "+"
    model = int(wish.strip("m+")) % 6
    weights = (10 + 8 * model) * GIB if model and it.settings.mode is Mode.SWAP else 0
    needs = (20 + 8 * model + (14 if wish.endswith("+") else 0)) * GIB
    uid = it.request(wish, node, accelerators, wish, needs, it.random.uniform(0.1, 3), weights)
    for name in accelerators:
        busy[name] = uid


def _depart(it: World, busy: dict[str, str]) -> None:
    here = sorted(uid for uid, p in it.pods.items() if isinstance(p.fact, Requester) and not p.fact.leaving)
    if not here:
        return
    uid = it.random.choice(here)

    def free() -> None:
        """A device is given out again when its pod has ended, about."""
        for name in [name for name, who in busy.items() if who == uid]:
            del busy[name]

    if it.random.random() < 0.2:
        it.vanish(uid)  # by force
        free()
    else:
        it.leave(uid, it.random.uniform(0.1, 5))
        it.later(5, free)


def _fault(it: World) -> None:
    kind = it.random.randrange(9)
    servers = [p for p in it.pods.values() if isinstance(p.fact, Server) and p.fact.running]
    if kind == 0:
        it.restart()
    elif kind == 1 and servers:
        it.delete_server(it.random.choice(servers).fact.uid, it.random.uniform(0.5, 5))
    elif kind == 2 and servers:
        pod = it.random.choice(servers)
        awake = [engine for engine in pod.engines.values() if engine.state is State.AWAKE]
        if awake:
            it.dies(pod, it.random.choice(awake))
    elif kind == 3 and servers:
        it.restart_server(it.random.choice(servers).fact.uid, it.random.uniform(0.1, 5))
    elif kind == 4:
        it.cut_watches(it.random.uniform(0.5, 30))
    elif kind == 5:
        it.node_goes(it.random.choice(sorted(it.nodes)), it.random.uniform(0.1, 50))
    elif kind == 6:
        name = it.random.choice(sorted(set(it.nodes) - it.away) or [""])
        if not name:
            return
        it.feed(Node(f"uid-{name}", name, True, False))  # its taint is taken off for a while
        back = Node(f"uid-{name}", name, True, True)
        it.later(it.random.uniform(1, 30), lambda: it.feed(back) if name not in it.away else None)
    elif kind == 7:
        uids = [f"uid-{name}" for name in it.nodes] + [pod.fact.uid for pod in servers]
        it.unread(it.random.choice(sorted(uids)), it.random.uniform(0.1, 100))
    elif servers:
        pod = it.random.choice(servers)
        it.feed(Tells(pod.fact.uid, None))
        it.later(it.random.uniform(0.1, 3), lambda: it._tell(pod))


def schedule(seed: int) -> World:
    """A small cluster on which much goes wrong; at its end all faults end, and it comes to rest."""
    draw = random.Random(seed)
    mode = draw.choice(list(Mode))
    nodes = {f"n{number}": draw.choice([1, 2, 4]) for number in range(draw.choice([1, 2, 3]))}
    chances = Chances(*(draw.choice([0, 0, 20, 100]) for _ in range(8)))
    most, taint = draw.choice([None, 0, 4 * GIB, 30 * GIB]), draw.choice(["", "t"])
    if mode is Mode.SLEEP and chances.frees_half:  # nothing but this rule makes room there
        most = 0 if most == 0 else 4 * GIB
    settings = Settings(mode=mode, sleepers_bytes=most, bound_s=60, tries=2, taint=taint)
    it = World(settings, nodes, seed, chances)
    it.start()
    busy: dict[str, str] = {}
    for _ in range(draw.choice([20, 60])):
        it.run(it.now + draw.expovariate(0.3))
        what = draw.random()
        if what < 0.45:
            _arrive(it, draw.choice([2, 6]), busy, max(nodes.values()))
        elif what < 0.85:
            _depart(it, busy)
        else:
            _fault(it)
    it.chances = Chances()
    it.run(it.now + 600)
    it.quiet()
    stuck = [it.machine.waits[u] for u, p in it.pods.items() if isinstance(p.fact, Requester) and not it.ready(u)]
    if stuck:
        raise Violation(f"not ready after ten quiet minutes: {stuck}")
    return it


def day(seed: int, events: int) -> World:
    """200 requesters at a time, 50 nodes of 8, some 400 instances; arrivals go on until so many events have come."""
    it = World(Settings(sleepers_bytes=GIB // 2), {f"n{number}": 8 for number in range(50)}, seed)
    it.start()
    busy: dict[str, str] = {}
    while it.events < events:
        it.run(it.now + it.random.expovariate(0.5))
        there = sum(isinstance(p.fact, Requester) and not p.fact.leaving for p in it.pods.values())
        if it.random.random() < (0.75 if there < 200 else 0.25):
            _arrive(it, 40, busy, 2)
        else:
            _depart(it, busy)
        if it.random.random() < 0.002:
            _fault(it)
    it.run(it.now + 600)
    it.quiet()
    return it


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.dual_pods.sim")
    parser.add_argument("--seeds", default="100", help="how many, or FIRST:LAST")
    parser.add_argument("--day", action="store_true")
    parser.add_argument("--events", type=int, default=1_000_000)
    options = parser.parse_args()
    began = time.monotonic()
    if options.day:
        first = int(options.seeds.partition(":")[0])
        it = day(first, options.events)
        print(f"seed {first}: {it.events} events, {dict(it.machine.counts)}, {len(it._engines())} instances", end="")
        print(f", {it.now / 3600:.1f} h simulated, 0 violations, {time.monotonic() - began:.0f} s")
        return
    low, _, high = options.seeds.rpartition(":")
    events = 0
    for seed in range(int(low or 0), int(high)):
        try:
            events += schedule(seed).events
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
            raise
    print(f"{int(high) - int(low or 0)} schedules, {events} events, 0 violations, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
