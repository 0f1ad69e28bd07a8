"""A random walk with a real pool: requesters come and go, and controllers, the pool and whatever it runs are killed."""

import contextlib
import json
import os
import random
import signal
import threading
from collections import Counter
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.request import urlopen

import pytest

from dual_pods.rules import names
from sidecar.kernel import process_tree
from tests.dual_pods.cluster import Cluster, cluster
from tests.dual_pods.test_real_pool import _text
from tests.support import tmpfs
from tests.support.chance import seeded
from tests.support.waiting import until

STEPS = 20
MODELS = {"qwen": (1, "200MiB"), "llama": (1, "120MiB"), "phi": (1, "110MiB"), "wide": (2, "100MiB")}
"""How many accelerators it has, and what it takes of each, of 256 MiB."""
HOT = ("waking", "awake", "draining")
"""One that loads may do so again after a kill, unasked; the controller sees to it."""
pytestmark = pytest.mark.chaos


def _watch(it: Cluster, broken: list[str], stop: threading.Event) -> None:
    """The claims, from outside: by each change that the pool tells, and what is written on its pod."""
    while not stop.wait(0.05):
        with contextlib.suppress(OSError, HTTPException, LookupError):  # the pool was killed, or isn't there yet
            url = f"http://{it.servers()[0]['status']['podIP']}:8000/failover/models?watch=1"
            with urlopen(url, timeout=0.5) as lines:
                for line in lines:
                    if line.startswith(b"data:"):
                        _look(it, broken, json.loads(line[5:])["models"])


def _look(it: Cluster, broken: list[str], shown: list[dict[str, Any]]) -> None:
    hot = Counter(device for one in shown if one["state"] in HOT for device in one["devices"])
    pods = it.servers()
    bound = json.loads(pods[0]["metadata"]["annotations"].get(names.BINDINGS, "{}")) if pods else {}
    promised = Counter(device for uid in bound.values() for device in it.given[uid])
    where = {one["name"]: one["devices"] for one in shown}
    elsewhere = [name for name, uid in bound.items() if where.get(name, it.given[uid]) != it.given[uid]]
    if elsewhere or max((hot | promised).values(), default=0) > 1:
        broken.append(
            f"promised {dict(promised)}, elsewhere {elsewhere}: {[(one['name'], one['state']) for one in shown]}"
        )


def _kill(it: Cluster, draw: random.Random) -> None:
    pools = [it.running[uid].process.pid for pod in it.servers() if (uid := pod["metadata"]["uid"]) in it.running]
    parts = [pid for pool in pools for pid in (pool, *process_tree.descendants(pool))]
    if not parts or draw.random() < 0.4:
        it.kill_controllers()
        it.controller()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(parts), signal.SIGKILL)
    if draw.random() < 0.3:
        it.server.cut_watches()


def _answers(it: Cluster, name: str, texts: dict[str, str]) -> bool:
    """False: something on the way to its engine was killed, and isn't back yet."""
    model = name.partition("-")[0]
    with contextlib.suppress(OSError, ValueError, AssertionError):
        text = _text(it, name, model)
        return texts.setdefault(model, text) == text
    return False


def _rests(it: Cluster) -> bool:
    """Nothing is awake, and nothing promised."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return {*it.states()} <= {"asleep"} and not any(names.BINDINGS in json.dumps(pod) for pod in it.servers())
    return False


def test_whatever_is_killed_no_accelerator_has_two_and_each_requester_answers() -> None:
    draw, broken, stop, texts, there = seeded(), list[str](), threading.Event(), dict[str, str](), list[str]()
    with tmpfs.directory("walk") as directory, cluster(directory, {"n1": ["host:d0", "host:d1"]}) as it:
        it.real_pools = True
        it.controller()
        watcher = threading.Thread(target=_watch, args=(it, broken, stop))
        watcher.start()
        try:
            for step in range(STEPS + 2):  # and in the end all of them go
                if draw.random() < 0.4:
                    _kill(it, draw)
                gpus, memory = MODELS[model := draw.choice(list(MODELS))]
                has_room = gpus + sum(MODELS[name.partition("-")[0]][0] for name in there) <= 2
                if has_room and step < STEPS and draw.random() < 0.7:
                    seed = list(MODELS).index(model)
                    entry = {"engine": "reference", "arguments": ["--seed", f"{seed}"], "memory": memory}
                    it.request(name := f"{model}-{step}", model, gpus, model=json.dumps(entry))
                    there.append(name)
                elif there:
                    name = there.pop(draw.randrange(len(there)))
                    if draw.random() < 0.6:
                        it.until_ready(name)
                        until(partial(_answers, it, name, texts), f"{name} answers as its model did before")
                    it.delete(name, gracePeriodSeconds="0")
                assert not broken, broken[:3]
            until(partial(_rests, it), "all that there was sleeps, and is promised to none")
            assert watcher.is_alive(), "what is claimed was looked at all the while"
        finally:
            stop.set()
            watcher.join()
        assert not broken and {pod["metadata"]["name"] for pod in it.pods()} <= {"n1-dual"}, broken[:3]
