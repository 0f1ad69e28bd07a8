"""Lock server and GMS with `--restart in-place`, as a pod has them: PID 1 of their container isn't the process that
crashes. A crash is followed by a new server, and the pair doesn't notice.
"""

import os
import signal
from dataclasses import replace

import pytest

from lockserver.observer import Observer, ObserverError
from sidecar.kernel import process_tree
from tests.engine.kinds import REFERENCE, there
from tests.engine.shims import House, Program
from tests.engine.test_scenarios import settled
from tests.support.processes import Process, cmdline
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(REFERENCE not in there(), reason="there is no reference engine")]
IN_PLACE = ("--restart", "in-place")
KEPT = replace(REFERENCE, gms=(*REFERENCE.gms, *IN_PLACE), lock=(*REFERENCE.lock, *IN_PLACE))


def server_below(keeper: Program, module: str) -> Process:
    def found() -> list[int]:
        children = process_tree.descendants(keeper.pid)
        return [pid for pid in children if f"\0{module}\0".encode() in cmdline(pid)]

    return Process(until(found, f"{module} runs below its keeper")[0])


def incarnation(house: House) -> str:
    try:
        with Observer(house.run_dir) as observer:
            return next(observer.watch()).server_incarnation
    except ObserverError:
        return ""


def test_a_lock_server_and_a_gms_that_crash_are_there_again_and_the_pair_goes_on(house: House) -> None:
    a, b = house.pair(KEPT)
    assert house.lock is not None and house.gms is not None
    keepers = (house.lock, house.gms)
    for gms in ("gms", "gms.shell.device_process"):
        before = incarnation(house)
        weights = house.weights()
        assert weights is not None
        for keeper, module in zip(keepers, ("lockserver", gms), strict=True):
            server_below(keeper, module).kill()
        until(lambda before=before: incarnation(house) not in ("", before), "another lock server")  # type: ignore[misc]
        until(
            lambda old=weights.server_incarnation: (  # type: ignore[misc]
                (s := house.weights()) is not None and s.server_incarnation != old and s.state == "RO"
            ),
            "another GMS, with the weights",
        )
        assert not any(keeper.dead for keeper in keepers), gms
    assert a.state()["deaths"] == b.state()["deaths"] == 0
    a.main().kill()
    settled(house, KEPT, b, a)


def test_a_gms_that_hangs_is_no_outage_without_an_end(house: House) -> None:
    """Its process lives, and answers none: no engine could wake."""
    a, b = house.pair(replace(KEPT, gms=(*KEPT.gms, "--silent-s", "5")))
    weights = house.weights()
    assert weights is not None
    os.kill(weights.server_pid, signal.SIGSTOP)
    a.main().kill()
    b.until("Active", ready=True)
    settled(house, KEPT, b, a)
