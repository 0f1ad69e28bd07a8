"""`dualctl`: requesters, server pods and their instances, and what each waits for."""

from sidecar.terminal import starting

if starting.is_command(__name__, "dualctl"):
    starting.die_of_ctrl_c()

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sidecar.http.http_client import HttpClient, Unanswered
from sidecar.terminal import commands, table
from sidecar.terminal.formatting import length, printable, size
from sidecar.terminal.settings import Parser, seconds, url
from sidecar.terminal.terminal import say
from sidecar.wire.observer import ObserverError

EXAMPLES = """\
examples:
  dualctl status                                 asks the controller through kubectl, as its user
  dualctl status --controller http://localhost:8080     straight, say through kubectl port-forward
  dualctl status --watch
  dualctl status --json | jq '.requesters[] | select(.phase != "ready")'

fields of --json: leads, blind (why it doesn't see the cluster), token; requesters: name, node, phase, says,
accelerators, instance, server, created; servers: name, node, how, why, instances: id, state, why, accelerators, bytes,
asleep_bytes, weights, parked, last_used, port, weights_name, wanted, requester

exit codes: 0, each requester is ready; 1, one isn't, or this controller doesn't lead, or doesn't see the
cluster; 2, no controller answers; 64, wrong usage
"""
NOT_READY = 1


class NoController(ObserverError):
    """A sentence."""


def parser(environment: Mapping[str, str] | None = None) -> Parser:
    it = Parser(prog="dualctl", description="Looks at dual pods.", epilog=EXAMPLES, environment=environment)
    commands = it.add_subparsers(dest="command", metavar="status", required=True)
    status = commands.add_parser(
        "status", help=(what := "Show requesters, server pods and their instances, and what each waits for."),
        description=what, epilog=EXAMPLES,
    )  # fmt: skip
    status.set_defaults(parser=status)
    status.setting("--controller", default="", parse=url, metavar="URL", shown_default="through kubectl",
                   help="where the controller is asked")  # fmt: skip
    status.setting("--namespace", default="dual-pods", metavar="NAME", help="its namespace, for kubectl")
    status.setting("--answer-timeout-s", default="10", parse=seconds, metavar="S", help="how long it may take")
    status.setting("--every-s", default="2", parse=seconds, metavar="S", help="how often --watch looks")
    status.add_argument("--watch", action="store_true", help="again and again, until Ctrl-C")
    status.add_argument("--json", action="store_true", help="one object on a line, for programs")
    return it


def _look(options: argparse.Namespace) -> dict[str, Any]:
    """Kubernetes asks any of the replicas, and one of them leads."""
    found: dict[str, Any] = {}
    for _ in range(8):
        body = _straight(options) if options.controller else _through_kubectl(options)
        try:
            found = json.loads(body)
            if not isinstance(found, dict) or "requesters" not in found:
                raise ValueError("it is no status")
        except ValueError as error:
            raise NoController(f"the controller's answer isn't understood: {error}") from None
        if options.controller or found["leads"]:
            break
    return found


def _straight(options: argparse.Namespace) -> bytes:
    at = options.controller + "/dual-pods"
    try:
        answer = asyncio.run(HttpClient().ask("GET", at, timeout_s=options.answer_timeout_s))
    except Unanswered as error:
        raise NoController(f"no controller answers: {error}") from None
    if answer.status != 200:
        raise NoController(f"{at} says {answer.status}; is that the controller's --listen?")
    return answer.body


def _through_kubectl(options: argparse.Namespace) -> bytes:
    """With its user's own rights, and whatever its configuration needs to log in."""
    if shutil.which("kubectl") is None:
        raise NoController("there is no kubectl here; give --controller URL, such as that of a port-forward")
    path = f"/api/v1/namespaces/{options.namespace}/services/http:dual-pods:http/proxy/dual-pods"
    try:
        done = subprocess.run(["kubectl", "get", "--raw", path], capture_output=True, timeout=options.answer_timeout_s)
    except subprocess.TimeoutExpired:
        raise NoController(f"kubectl hasn't answered within {options.answer_timeout_s:g} s") from None
    if done.returncode:
        raise NoController(f"kubectl says: {done.stderr.decode(errors='replace').strip()[:500]}")
    return done.stdout


def lines(status: dict[str, Any], now: float) -> list[str]:
    if not status["leads"]:
        why = status.get("blind") or "the other replica does, or none yet"
        return [printable(f"this controller doesn't lead: {why}", " ")]
    blind = [f"the controller that leads doesn't see the cluster: {status['blind']}", ""] if status.get("blind") else []
    asks = [["REQUESTER", "NODE", "ACCELERATORS", "PHASE", "AGE", "SAYS"]]
    for it in status["requesters"]:
        has = ",".join(it["accelerators"]) or "-"
        asks.append([it["name"], it["node"] or "-", has, it["phase"], length(now - it["created"]), it["says"]])
    runs = [["SERVER POD", "NODE", "INSTANCE", "STATE", "ACCELERATORS", "HOLDS", "FOR"]]
    for server in status["servers"]:
        where, how = [server["name"], server["node"]], f"{server['how']}: {server['why']}".removesuffix(": ")
        its = "" if how == "running" else f"; its pod is {how}"
        if not server["instances"]:
            runs.append([*where, "-", how])
        for it in server["instances"]:
            beside = {"asleep": it["asleep_bytes"], "off": {}}.get(it["state"], it["bytes"])  # of its host as well
            held = [part[name] for part in (beside, it["weights"]) for name in it["accelerators"] if name in part]
            state = (f"{it['state']}: {it['why']}" if it["why"] else it["state"]) + its
            holds = size(sum(held)) if held else "-"
            runs.append([*where, it["id"], state, ",".join(it["accelerators"]), holds, it["requester"] or "-"])
    shown = [*blind, *table.lines(asks), "", *table.lines(runs)]
    return [printable(line, " ") for line in shown]  # pods say what they like


def _show(options: argparse.Namespace) -> int:
    """For as long as it is watched, also while no controller answers any more."""
    status = _look(options)
    while True:
        for line in [json.dumps(status)] if options.json else lines(status, datetime.now(UTC).timestamp()):
            say(line)
        if not options.watch:
            ready = all(it["phase"] in ("ready", "leaving") for it in status["requesters"])
            return 0 if status["leads"] and ready and not status.get("blind") else NOT_READY
        time.sleep(options.every_s)
        while True:
            try:
                status = _look(options)
                break
            except NoController as error:
                print(f"dualctl: {error}", file=sys.stderr)
                time.sleep(options.every_s)
        if not options.json:
            say("")


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    return commands.run("dualctl", lambda: _show(options))


if __name__ == "__main__":
    raise SystemExit(main())
