"""`fleetctl`: leases on hosts, in the hands of a person or a script.

Exit codes are relied on by scripts and stand in each command's --help (`fleetctl_help.py`). The database decides;
fleetctl asks and shows.
"""

from sidecar.terminal import starting

if starting.is_command(__name__, "fleetctl"):
    starting.die_of_ctrl_c()

import argparse
import json
import os
import queue
import re
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from fleet.cli import fleetctl_help as words
from fleet.cli import status_text
from fleet.rules import schedule, statements
from fleet.rules import term as t
from fleet.rules.leases import DRAIN_S, TTL_S, WAIT_S, Mode, Seen, Wish, check, no_such_host, seen, utc
from fleet.shell.holding import Holding, clock, holder_name
from fleet.shell.store import ANSWER_S, Refused, Row, Store, StoreError, ask, database, default_database, open_store
from sidecar.terminal import commands
from sidecar.terminal.exit_codes import EX_LOST, EX_NOT_IN_TIME, EX_REFUSED
from sidecar.terminal.names import BadValue
from sidecar.terminal.settings import Parser, count, name, seconds, seconds_or_zero, valued
from sidecar.terminal.terminal import end_with_the_reader, say, terminal_paint

GRACE_S = 10.0


def init(options: argparse.Namespace) -> int:
    if options.print:
        say(f"BEGIN;\n{statements.for_postgres(options.grant).rstrip()}")
        for host in options.host:
            say(f"INSERT INTO {statements.SCHEMA}.hosts (name) VALUES ('{host}') ON CONFLICT (name) DO NOTHING;")
        say("COMMIT;")
        return 0
    store = open_store(options.database)
    found = store.init(options.host, options.grant)
    made = "made" if not found else "there already" if found == statements.VERSION else f"migrated from version {found}"
    hosts = ", ".join(row["name"] for row in ask(store, "hosts"))
    say(f"leases in {store.where}: {made}; hosts: {hosts or 'none yet'}")
    return 0


# -- looking -------------------------------------------------------------------------------------------------------


def look(store: Store, host: str) -> tuple[Seen, list[Row]]:
    found = seen(ask(store, "look", host=host))
    if found is None:
        raise Refused(no_such_host(host, [row["name"] for row in ask(store, "hosts")]))
    return found, ask(store, "doors", host=host)


def _hosts(store: Store, options: argparse.Namespace) -> list[str]:
    return [options.host] if options.host else [row["name"] for row in ask(store, "hosts")]


def fields(host: str, found: Seen, doors: list[Row]) -> dict[str, Any]:
    shown = [
        {key: row[key] for key in ("door", "uncovered", "seen_at")} | {"ended": bool(row["ended"])} for row in doors
    ]
    what = {"host": host, "now": found.now, "newest": found.newest}
    return what | {"leases": msgspec.to_builtins(found.rows), "doors": shown}


def status(options: argparse.Namespace) -> int:
    store = open_store(options.database)
    hosts = {host: look(store, host) for host in _hosts(store, options)}
    if options.json:
        say(json.dumps({"hosts": [fields(host, *found) for host, found in hosts.items()]}))
        return 0
    for line in status_text.lines({host: found for host, (found, _) in hosts.items()}, terminal_paint()):
        say(line)
    return 0


def watch(options: argparse.Namespace) -> int:
    store = open_store(options.database)
    last: dict[str, str] = {}
    end_with_the_reader()
    while True:
        try:
            for host in _hosts(store, options):
                found, doors = look(store, host)
                line = status_text.change_line(host, found)
                if last.get(host) != line:
                    last[host] = line
                    said = json.dumps({"at": found.now, **fields(host, found, doors)}) if options.json else line
                    say(said if options.json else f"{utc(found.now)}  {said}")
            last.pop("", None)  # the same error may come again
        except StoreError as error:
            if isinstance(error, Refused):
                raise
            if last.get("") != str(error):
                last = {"": str(error)}
                say(json.dumps({"error": str(error)}) if options.json else f"{utc(time.time())}  {error}")
        time.sleep(1.0)


def history(options: argparse.Namespace) -> int:
    store = open_store(options.database)
    look(store, options.host)
    rows = ask(store, "history", host=options.host, last=options.last)
    for row in reversed(rows):
        say(json.dumps(row) if options.json else status_text.event_line(row))
    return 0


def doctor(options: argparse.Namespace) -> int:
    from fleet.cli.doctor import examine
    from sidecar.terminal.findings import Finding, fail, report

    store = open_store(options.database)
    found: list[Finding] = []
    try:
        found += examine(store, lambda what, **values: ask(store, what, **values))
    except StoreError as error:
        found.append(fail("database", str(error), "nothing more can be looked at until then"))
    return report(found, options.json, database=store.where)


# -- leases --------------------------------------------------------------------------------------------------------


def wish_of(options: argparse.Namespace) -> Wish:
    hosts, mode = (options.exclusive, Mode.EXCLUSIVE) if options.exclusive else (options.shared, Mode.SHARED)
    if len(hosts) > 1:
        options.parser.error("one host at a time; for two: run --exclusive A -- fleetctl run --exclusive B -- COMMAND")
    wait_s = options.wait_s if getattr(options, "window", None) is None else min(options.wait_s, options.window)
    it, holder = options, options.holder or holder_name()
    wish = Wish(hosts[0], mode, holder, it.purpose, it.priority, it.ttl_s, wait_s, it.drain_s)
    try:
        check(wish)
    except BadValue as error:
        options.parser.error(str(error))
    return wish


def acquire(options: argparse.Namespace) -> int:
    wish = wish_of(options)
    if sys.stdout is None:
        options.parser.error("there is no standard output, and nothing could give back what isn't printed")
    told: queue.SimpleQueue[t.Effect] = queue.SimpleQueue()
    holding = Holding(open_store(options.database), wish, told.put)
    try:
        while True:
            effect = told.get()
            if isinstance(effect, t.Waits) and not options.quiet:
                print(f"fleetctl acquire: waiting: {effect.why}", file=sys.stderr, flush=True)
            elif isinstance(effect, t.Ended):
                print(f"fleetctl acquire: {effect.end.value}: {effect.why}", file=sys.stderr)
                holding.join(ANSWER_S)  # the database may have granted it by now: it is taken back
                return EX_NOT_IN_TIME if effect.end is t.End.NOT_IN_TIME else EX_REFUSED
            elif isinstance(effect, t.Granted):
                break
        said = {
            "host": wish.host, "lease": holding.lease, "token": effect.token, "mode": wish.mode.value,
            "relied_on_s": round(effect.until - clock(), 3), "renew_every_s": wish.ttl_s / 3,
        }  # fmt: skip
        say(json.dumps(said) if options.json else " ".join(f"{key}={value}" for key, value in said.items()))
    except BaseException:
        holding.give_back(ANSWER_S)
        raise
    return 0


def renew(options: argparse.Namespace) -> int:
    store, began = open_store(options.database), clock()
    ttl_s = {row.lease: row.ttl_s for row in look(store, options.host)[0].rows}.get(options.lease)
    row = ask(store, "renew", host=options.host, lease=options.lease, token=options.token)[0]
    if row["lease"] is None or row["token"] != options.token:
        print("fleetctl renew: it has lapsed, or never was: what runs under it has to stop", file=sys.stderr)
        return EX_LOST
    left_s = row["expires_at"] - row["now"]
    left_s -= (ttl_s or left_s) * t.MARGIN + clock() - began  # it may be too far behind to be shown
    if left_s <= 0:
        print("fleetctl renew: another waits, and has for too long: what runs under it has to stop", file=sys.stderr)
        return EX_LOST
    said = {"relied_on_s": round(left_s, 3), "wanted": bool(row["wanted"])}
    say(json.dumps(said) if options.json else " ".join(f"{key}={value}" for key, value in said.items()))
    return 0


def release(options: argparse.Namespace) -> int:
    store = open_store(options.database)
    rows = ask(store, "release", host=options.host, lease=options.lease)
    if not rows:
        look(store, options.host)  # which says if there is no such host
    if not rows or rows[0]["event"] == "lapsed":
        print("fleetctl release: it isn't there: it has lapsed, or never was", file=sys.stderr)
        return EX_LOST
    if options.json:
        say(json.dumps(rows[0]))
    return 0


def run(options: argparse.Namespace) -> int:
    from fleet.cli.run import Run

    return Run(options, wish_of(options)).run()


def every(options: argparse.Namespace) -> int:
    wish = wish_of(options)
    told = [f"--{wish.mode.value}", wish.host, "--window", f"{options.window:.15g}s", "--database", options.database]
    told += [f"--holder={options.holder}"] if options.holder else []
    for what, usual in (("wait", WAIT_S), ("ttl", TTL_S), ("drain", DRAIN_S)):
        value: float = getattr(wish, f"{what}_s")
        told += [f"--{what}-s", f"{value:.15g}"] if value != usual else []
    told += [f"--grace-s={options.grace_s:.15g}"] if options.grace_s != GRACE_S else []
    told += ["--quiet"] if options.quiet else []
    if options.kind == "cronjob" and (options.image is None or options.database.startswith("sqlite:")):
        options.parser.error("a pod needs an --image, and a --database that it reaches: postgresql://USER@HOST/NAME")
    told += [f"--purpose={wish.purpose}"] if wish.purpose else []
    told += ["--priority", str(wish.priority)] if wish.priority else []
    ours = os.path.abspath(sys.argv[0]) if options.kind == "systemd" and shutil.which(sys.argv[0]) else "fleetctl"
    command = [options.program or ours, "run", *told, "--", *options.words]
    if any("\ud800" <= each <= "\udfff" for each in "".join(command)):
        options.parser.error("a word of the command isn't UTF-8")
    unit = options.name, options.times, command, options.window + options.grace_s
    try:
        made = schedule.systemd(*unit) if options.kind == "systemd" else schedule.cron_job(*unit, options.image)
        say(made.rstrip())
    except BadValue as error:
        options.parser.error(str(error))
    return 0


# -- settings ------------------------------------------------------------------------------------------------------


def duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text, re.ASCII)
    if match is None or not float(match[1]):
        raise BadValue(f"{text!r} is no length of time; allowed: a number with s, m, h or d such as 2h or 90m")
    return min(float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]], 366.0 * 86400)


def parser() -> Parser:
    program = Parser(prog="fleetctl", usage="%(prog)s COMMAND ...", description="Leases on hosts.", epilog=words.MAIN)
    shown: dict[str, Any] = {"help": argparse.SUPPRESS, "prog": "fleetctl"}
    added = program.add_subparsers(dest="command", metavar="COMMAND", required=True, **shown)

    def add(name: str, does: Callable[..., int], what: str, epilog: str, *, prints: bool = True) -> Parser:
        command: Parser = added.add_parser(name, description=what, epilog=epilog)
        command.set_defaults(run=does, parser=command)
        command.setting(
            "--database", default=default_database(), parse=database, metavar="URL",
            shown_default="a file of this user's", help="where the leases are: sqlite:///PATH or postgresql://USER@HOST/NAME",
        )  # fmt: skip
        if prints:
            command.add_argument("--json", action="store_true", help="for programs")
        return command

    it = add("init", init, "Makes the leases in a database, and adds hosts.", words.INIT, prints=False)
    it.add_argument("--host", type=valued(name), action="append", default=[], metavar="NAME", help="may be repeated")
    it.add_argument("--grant", default="", metavar="ROLE", help="the role of the clients (PostgreSQL)")
    it.add_argument("--print", action="store_true", help="PostgreSQL's SQL, and nothing is done")
    it = add("run", run, "Runs a command under a lease.", words.RUN, prints=False)
    _wish(it)
    it.add_argument("--window", type=valued(duration), metavar="TIME", help="waiting and running take no longer: 2h")
    _grace(it)
    it.add_argument("words", nargs="*", metavar="COMMAND", help="what to run, and its arguments")
    looks = add("status", status, "Which program has which host, and which wait.", words.STATUS)
    for it in (looks, add("watch", watch, "A line for every change.", words.WATCH)):
        it.add_argument("host", nargs="?", type=valued(name), metavar="HOST")
    it = add("history", history, "What has happened on a host, oldest first.", words.HISTORY)
    it.add_argument("host", type=valued(name), metavar="HOST")
    it.add_argument("--last", type=valued(count), default=statements.KEPT_EVENTS, metavar="N", help="only the last N")
    _wish(add("acquire", acquire, "Waits for a lease, and prints it.", words.ACQUIRE))
    renews = add("renew", renew, "Renews a lease that `acquire` has printed.", words.RENEW)
    ends = add("release", release, "Gives a lease back, or takes a wish back.", words.RELEASE)
    for it in (renews, ends):
        it.add_argument("host", type=valued(name), metavar="HOST")
        it.add_argument("--lease", required=True, metavar="NAME", help="what `acquire` has printed")
    renews.add_argument("--token", required=True, type=valued(count), metavar="N", help="the same")
    it = add("every", every, "Prints what runs a command under a lease, time and again.", words.EVERY, prints=False)
    it.add_argument("times", metavar="TIMES", help="cron's five fields")
    _wish(it)
    it.add_argument("--window", type=valued(duration), required=True, metavar="TIME", help="as of `run`")
    _grace(it)
    it.add_argument("--as", dest="kind", choices=("systemd", "cronjob"), default="systemd", help="default systemd")
    it.add_argument("--name", type=valued(_unit), default="fleet-run", metavar="NAME", help="default fleet-run")
    it.add_argument("--image", metavar="IMAGE", help="of the CronJob's container")
    it.add_argument("--program", metavar="PATH", help="where fleetctl is there; default: for systemd this one")
    it.add_argument("words", nargs="*", metavar="COMMAND", help="what to run, and its arguments")
    add("doctor", doctor, "Checks the database, its clock, and what was left behind.", words.DOCTOR)
    return program


def _grace(it: Parser) -> None:
    it.add_argument(
        "--grace-s", type=valued(seconds_or_zero), default=GRACE_S, metavar="S",
        help="between SIGTERM and SIGKILL when the window is over; default 10",
    )  # fmt: skip


def _wish(it: Parser) -> None:
    mode = it.add_mutually_exclusive_group(required=True)
    for flag, what in (("--exclusive", "the host alone"), ("--shared", "the host, with others that share it")):
        mode.add_argument(flag, type=valued(name), metavar="HOST", action="append", help=what)
    it.add_argument("--purpose", default="", metavar="TEXT", help="what for: others read it while they wait")
    it.setting("--holder", metavar="NAME", help="which program this is; default: user, machine and process")
    it.add_argument("--priority", type=int, default=0, metavar="N", help="0 to 100, among exclusive ones; default 0")
    it.setting("--wait-s", default=WAIT_S, parse=seconds_or_zero, metavar="S", help="how long to wait for the lease")
    it.setting("--ttl-s", default=TTL_S, parse=seconds, metavar="S", help="a term; it is renewed every third of one")
    it.setting("--drain-s", default=DRAIN_S, parse=seconds_or_zero, metavar="S", help="how long others may finish")
    it.add_argument("--quiet", action="store_true", help="say nothing while waiting")


def _unit(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?", text):
        raise BadValue(f"{text!r} is no name; allowed: up to 52 of a-z, 0-9 and - in between")
    return text


# -- the command ---------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    return commands.run("fleetctl", lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def _run(said: list[str]) -> int:
    at = said.index("--") if "--" in said and said[0] in ("run", "every") else len(said)
    options, unknown = parser().parse_known_args(said[:at])
    if unknown:
        options.parser.error(f"not known here: {' '.join(unknown)}")
    if options.run in (run, every):
        options.words += said[at + 1 :]
        if not options.words:
            options.parser.error("which command? Put it behind --")
    try:
        return int(options.run(options))
    except StoreError as error:
        print(f"fleetctl: {error}", file=sys.stderr)
        return EX_REFUSED


if __name__ == "__main__":
    sys.exit(main())
