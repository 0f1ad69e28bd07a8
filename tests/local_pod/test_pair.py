"""The whole pair in a pod, as an ordinary user, while clients check each byte of what they get.

k8s/dra/reference.yaml as it is shipped: lock server, GMS, gateway and two engines, each in a container of its own. What
takes longer is in `test_pair_long.py`.
"""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.k8s import queries
from tests.local_pod.client import ask, asking, page
from tests.local_pod.ordinary import PATIENCE_S, Place, Refused, running
from tests.local_pod.pair import MAIN, POD, RUN_DIR, WORKER, flips, kill_kept, lock, other, sh, whole
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]  # some are a minute long on a machine that is otherwise idle
PRE_STOP_S = 5
METRICS_PORTS = (9400, 9401, 9402, 9000, 9001)


@pytest.mark.slow
def test_ten_deaths_inside_the_engines_flip_nothing_and_no_client_sees_more_than_a_pause(here: Place) -> None:
    with running(here, *POD):
        seen = whole(here)
        assert seen["memory"] == "verified" and seen["alarms"] == []
        with asking(here) as clients:
            for death in range(10):
                active, token = seen["holder"]["engine_id"], seen["holder"]["token"]
                here.say("kill", f"engine-{active}", "--inside", WORKER if death % 3 == 2 else MAIN)
                seen = whole(here, other(active), since=token)
                assert seen["memory"] == "verified"
            clients.answered_since(2)
        assert clients.broken() == []
        assert flips(here) == [True]
        assert all(each["restarts"] == 0 for each in here.status()["containers"])
        assert queries.unserved((page(here, port) for port in METRICS_PORTS), "lock|gms|engine|door(?!_lease)") == []


@pytest.mark.slow
def test_servers_behind_their_keepers_sockets_and_a_full_run_directory_flip_nothing(here: Place) -> None:
    with running(here, *POD):
        whole(here)
        with asking(here) as clients:
            for server in ("lockserver", "gms"):
                for _ in range(3):
                    kill_kept(here, server)
                    whole(here)
            kill_kept(here, "gms", "gms.shell.device_process")
            whole(here)
            clients.answered_since(2)

            # The listener notices that its name has gone, and makes it again.
            sh(here, "engine-a", f"find {RUN_DIR} -type s -delete")
            seen = whole(here)
            clients.answered_since(2)

            # A grant that can't be on disk isn't given; it is given by itself as soon as there is room.
            sh(here, "engine-a", f"head -c 80M /dev/zero > {RUN_DIR}/filler 2>/dev/null; true")
            active, token = seen["holder"]["engine_id"], seen["holder"]["token"]
            here.say("kill", f"engine-{active}", "--inside", MAIN)
            until(lambda: (full := lock(here))["alarms"] or (full.get("holder") or {}).get("token", 0) > token, "full")
            sh(here, "engine-a", f"rm {RUN_DIR}/filler")
            whole(here, since=token)
            clients.answered_since(2)
        assert clients.broken() == []
        assert flips(here) == [True]

        # The gateway's own connections end with it; a client that asks again is served.
        kill_kept(here, "gateway")
        again = until(lambda: None if (answer := ask(here)).error else answer, "a client is served again")
        assert again.text == clients.expected
        assert all(each["restarts"] == 0 for each in here.status()["containers"])


def test_the_death_of_a_first_process_flips_it_once_and_the_other_engine_serves(here: Place) -> None:
    with running(here, *POD, "--back-off-s", "1"):
        seen = whole(here)
        first_processes = ("engine-a", "engine-b", "gms", "lockserver")
        with asking(here) as clients:
            for count, name in enumerate(first_processes, start=1):
                serves = name == f"engine-{seen['holder']['engine_id']}"
                here.say("kill", name)
                here.until_event("ready", 1 + count)
                seen = whole(here, since=seen["holder"]["token"] if serves else 0)
                assert here.container(name)["restarts"] == 1
            clients.answered_since(2)
        assert clients.broken() == []
        # The gateway's clients lose their connections with it, and nothing else happens.
        here.say("kill", "gateway")
        here.until_event("ready", 2 + len(first_processes))
        assert ask(here).text == clients.expected
        assert flips(here) == [True] + [False, True] * (len(first_processes) + 1)


def test_everything_at_once_and_it_serves_again(here: Place) -> None:
    with running(here, *POD, "--back-off-s", "1"):
        whole(here)
        expected = ask(here)
        assert not expected.error
        alive = [container["name"] for container in here.status()["containers"] if container["pid"]]
        with ThreadPoolExecutor(len(alive)) as at_once:
            list(at_once.map(lambda name: here.say("kill", name, "--all"), alive))
        here.until_event("ready", 2)
        whole(here)
        assert ask(here).text == expected.text
        seen = flips(here)  # on a busy machine it may be whole for a moment between two of the kills
        assert seen[:2] == [True, False] and seen[-1]


def test_deletion_under_load_no_request_is_refused_within_the_sleep_and_streams_finish(here: Place) -> None:
    with running(here, *POD) as process:
        whole(here)
        with asking(here, 4) as clients:
            clients.answered_since(4)
            down = time.monotonic()
            process.terminate()  # as `kubectl delete pod` and `local-pod down`
            # Services need some seconds to drop a pod; for so long every client is served.
            while time.monotonic() < down + PRE_STOP_S - 1:
                time.sleep(0.05)
        # A slow machine may bring a request so late that the engines have been told to end; never one that has begun.
        assert clients.broken(refused_after=down + PRE_STOP_S) == []
        assert any(answer.began > down and not answer.error for answer in clients.answers)
        assert process.wait(PATIENCE_S) == 0
        ended = [event["container"] for event in here.events("ended")]
        assert set(ended[1:3]) == {"engine-a", "engine-b"} and ended[3:] == ["gateway", "gms", "lockserver"]
        assert all(event["code"] == 0 for event in here.events("ended"))


def test_a_door_that_kubelet_keeps_waiting_is_an_alarm_of_failover_status_in_another_container(here: Place) -> None:
    def status() -> str:
        return sh(here, "lockserver", "failover status; echo exit code $?")

    def away() -> str:
        with contextlib.suppress(Refused):  # kubelet waits already, and for longer after each end
            here.say("kill", "gateway")
        said = status()
        return said if "alarm          the door doesn't answer" in said else ""

    with running(here, *POD):
        whole(here)
        until(lambda: status().endswith("exit code 0"), "clients reach an engine")
        assert "door           http://localhost:8000/v1  (answers)" in status()
        said = until(away, "status says so")
        assert "redundancy     yes" in said and said.endswith("exit code 1")
