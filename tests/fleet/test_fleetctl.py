"""`fleetctl` as a person and a script use it: what runs a command, holds or waits is a real process, with real signals;
what only asks and says runs here. A file of SQLite's; terms are short.
"""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fleet
from fleet.cli import doctor, fleetctl
from fleet.cli.clean import DoorsSeen
from fleet.rules.leases import Mode, Wish
from fleet.rules.schedule import calendar
from fleet.shell.store import Row, SqliteStore, Store, StoreError, database, default_database, open_store
from sidecar.kernel import process_tree
from sidecar.terminal.findings import Level
from tests.fleet.postgres import Postgres
from tests.support.processes import Process, Program, run_here, run_to_end
from tests.support.root import needs_root
from tests.support.waiting import until

FLEETCTL = (sys.executable, "-m", "fleet.cli.fleetctl")
TTL = ("--ttl-s", "3")
STAYS = ("sh", "-c", "echo started $$ $FAILOVER_LEASE; exec sleep 1000")
LEAVES = ("sh", "-c", "setsid sleep 1000 & echo started $$ $!; exec sleep 1000")


def says(url: str, *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `fleetctl`, in this process."""
    return run_here(fleetctl.main, *words, environment={"FAILOVER_DATABASE": url})


def ends(url: str, *words: str) -> tuple[int, str, str]:
    """The same of a process of its own."""
    return run_to_end(*FLEETCTL, *words, environment={"FAILOVER_DATABASE": url})


class Desk:
    def __init__(self, directory: Path) -> None:
        self.file = directory / "fleet.db"
        self.url = f"sqlite://{self.file}"
        self.store = open_store(self.url)
        self.store.init(["box"])
        self._programs: list[Program] = []

    def starts(self, *words: str) -> Program:
        self._programs.append(Program(*FLEETCTL, *words, environment={"FAILOVER_DATABASE": self.url}))
        return self._programs[-1]

    def run(self, *words: str, command: tuple[str, ...] = STAYS, mode: str = "--exclusive") -> Program:
        return self.starts("run", mode, "box", *TTL, *words, "--", *command)

    def says(self, *words: str) -> tuple[int, str, str]:
        return says(self.url, *words)

    def ends(self, *words: str) -> tuple[int, str, str]:
        return ends(self.url, *words)

    def token(self) -> int | None:
        """Of the exclusive lease that is held."""
        rows = self.store.call("look", host="box")
        return next((row["token"] for row in rows if row["mode"] == "exclusive" and row["token"] is not None), None)

    def events(self) -> list[str]:
        return [row["event"] for row in reversed(self.store.call("history", host="box", last=100))]

    def close(self) -> None:
        for program in self._programs:
            program.close()
        self.store.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with contextlib.closing(Desk(tmp_path)) as desk:
        yield desk


def started(program: Program) -> list[Process]:
    """The command, and what it says that it has started."""
    return [Process(int(word)) for word in program.out.with_words("started").split()[1:] if len(word) > 1]


def test_a_command_runs_under_its_lease_and_gives_it_back(desk: Desk) -> None:
    assert desk.ends("run", "--exclusive", "box", "--", "sh", "-c", "echo $FAILOVER_LEASE; exit 3")[:2] == (3, "1\n")
    code, _, said = desk.ends("run", "--exclusive", "box", "--", "sh", "-c", "kill -TERM $$")
    assert code == 128 + signal.SIGTERM and "not checked: no door enforces this lease" in said
    assert desk.events() == ["asked", "granted", "released"] * 2


def test_the_next_one_runs_when_nothing_of_the_one_before_is_left(desk: Desk) -> None:
    first = desk.run(command=LEAVES)
    left = started(first)
    second = desk.run("--purpose", "next")
    second.err.with_words("waiting: ")
    first.send(signal.SIGTERM)
    assert started(second) and all(process.dead for process in left)
    assert first.ends() == 128 + signal.SIGTERM


def test_a_sharer_and_its_like_run_together_and_one_alone_waits(desk: Desk) -> None:
    sharers = [desk.run(mode="--shared") for _ in range(2)]
    for sharer in sharers:
        started(sharer)
    alone = desk.run("--purpose", "bench")
    alone.err.with_words("waiting: ")
    assert desk.token() is None
    for sharer in sharers:
        sharer.send(signal.SIGTERM)
    started(alone)


@pytest.mark.parametrize("how", ["stopped", "killed", "guard killed", "guard and holder killed"])
def test_its_tree_is_dead_before_another_is_granted(desk: Desk, how: str) -> None:
    """SIGSTOP for longer than a term, or SIGKILL."""
    holder = desk.run(command=LEAVES)
    command, left = started(holder)
    (guard,) = (Process(pid) for pid in process_tree.children(holder.pid))
    if how == "stopped":
        Process(holder.pid).stop()
    if "guard" in how:
        guard.signal(signal.SIGKILL)
    if how in ("killed", "guard and holder killed"):
        holder.kill()
    until(lambda: command.dead or desk.token() not in (1, None), "the command is killed")
    second = desk.run()
    started(second)
    assert command.dead and desk.token() == 2
    if how == "guard and holder killed":
        left.signal(signal.SIGKILL)  # as of `lockctl hold`: it has to have a process that knows of it
    assert left.dead or how == "guard and holder killed"
    if how == "stopped":
        holder.send(signal.SIGCONT)
        said = (holder.ends(), holder.err.rest())
        assert said[0] == 70 and "lease lost" in said[1] and "guard" not in said[1]


def test_a_database_that_goes_away_costs_the_lease_and_the_command(desk: Desk) -> None:
    holder = desk.run()
    (command,) = started(holder)
    with contextlib.closing(sqlite3.connect(desk.file, isolation_level=None)) as locked:
        locked.execute("BEGIN EXCLUSIVE")
        assert holder.ends() == 70 and command.dead
    assert re.search("lease lost: .*(no answer within|is locked by another process)", holder.err.rest())


def test_a_signal_while_it_waits_takes_the_wish_back(desk: Desk) -> None:
    holder = desk.run()
    started(holder)
    waiter = desk.run()
    waiter.err.with_words("waiting: ")
    waiter.send(signal.SIGINT)
    assert waiter.ends() == 128 + signal.SIGINT
    assert desk.events() == ["asked", "granted", "asked", "left"]


def test_waiting_and_a_window_have_an_end(desk: Desk) -> None:
    holder = desk.run()
    started(holder)
    code, _, said = desk.ends("run", "--exclusive", "box", "--wait-s", "0.5", "--", "true")
    assert code == 75 and re.search(r"not granted within 0.5 s: .* holds it \(exclusive, token 1, until .*Z\)", said)
    code, _, said = desk.ends("run", "--exclusive", "box", "--window", "0.5s", "--", "true")
    assert code == 75
    holder.send(signal.SIGTERM)
    holder = desk.run("--window", "4s", "--grace-s", "60")
    (command,) = started(holder)
    assert holder.ends() == 128 + signal.SIGTERM and command.dead
    code, _, said = desk.ends("run", "--exclusive", "box", "--window", "1d", "--", "true")
    assert code == 0, said  # and at once


def test_what_cant_be_printed_isnt_acquired(desk: Desk) -> None:
    closed = ("sh", "-c", '"$@" >&-', "sh", *FLEETCTL, "acquire", "--exclusive", "box")
    code, _, why = run_to_end(*closed, environment={"FAILOVER_DATABASE": desk.url})
    assert code == 64 and "there is no standard output" in why and not desk.events()


def test_by_hand_it_is_acquired_renewed_and_released(desk: Desk) -> None:
    code, out, _ = desk.says("acquire", "--exclusive", "box", "--json", "--purpose", "by hand")
    lease = json.loads(out)
    assert code == 0 and lease["token"] == 1 and 35 < lease["relied_on_s"] <= 40 and lease["renew_every_s"] == 20
    code, out, _ = desk.says("renew", "box", "--lease", lease["lease"], "--token", "1", "--json")
    assert code == 0 and 35 < json.loads(out)["relied_on_s"] <= 40
    assert desk.says("renew", "box", "--lease", lease["lease"], "--token", "2")[0] == 70
    assert desk.says("release", "box", "--lease", lease["lease"])[0] == 0
    assert desk.says("renew", "box", "--lease", lease["lease"], "--token", "1")[0] == 70
    assert desk.says("release", "box", "--lease", "f" * 32)[0] == 70
    assert desk.says("release", "bix", "--lease", "f" * 32)[0] == 69
    code, _, said = desk.says("renew", "box", "--lease", lease["lease"], "--token", "9" * 20)
    assert code == 69 and "Traceback" not in said


def test_status_watch_and_history_say_who_has_what_for_what(desk: Desk) -> None:
    watch = desk.starts("watch", "box")
    watch.out.with_words("box  free")
    holder = desk.run("--purpose", "bench qwen3", "--holder", "me")
    started(holder)
    watch.out.with_words("box  exclusive me for bench qwen3 (token 1)")
    waiter = desk.run("--holder", "you", mode="--shared")
    waiter.err.with_words("waiting: me for bench qwen3 holds it")
    watch.out.with_words("; waiting: shared you")
    _, out, _ = desk.says("status")
    assert re.search(r"box  exclusive +me for bench qwen3  token 1, for \ds, until \S+Z unless renewed\n", out)
    assert re.search(r"waits, shared  you", out)
    said = json.loads(desk.says("status", "box", "--json")[1])["hosts"][0]
    assert [(row["holder"], row["token"]) for row in said["leases"]] == [("me", 1), ("you", None)]
    _, out, _ = desk.says("history", "box", "--last", "2")
    assert re.fullmatch(
        r"\S+Z  granted   exclusive  token 1     me for bench qwen3\n\S+Z  asked     shared +you\n", out
    )


def test_doctor_names_what_no_holder_renews_and_what_waits_too_long(desk: Desk) -> None:
    holder = desk.run("--holder", "me", "--ttl-s", "3000")
    started(holder)
    with contextlib.closing(sqlite3.connect(desk.file, isolation_level=None)) as file:
        file.execute("UPDATE leases SET renewed_at = renewed_at - 2000")
        file.execute(
            "INSERT INTO leases (lease, host, mode, priority, holder, purpose, asked_at, renewed_at, expires_at,"
            " wait_until, ttl_s, drain_s) SELECT lease || 'x', host, mode, 0, 'you', '', asked_at - 900, asked_at,"
            " expires_at, 1e12, ttl_s, 0 FROM leases"
        )
        file.execute("INSERT INTO doors SELECT name, 'door d', 'i', 0, clock - 900, 0, 0 FROM hosts")
    code, out, _ = desk.says("doctor", "--json")
    found = [check["found"] for check in json.loads(out)["checks"] if check["level"] == "warn"]
    assert code == 0 and len(found) == 3
    assert "me was renewed last" in found[0] and "you has waited since" in found[1] and "door d hasn't" in found[2]
    with contextlib.closing(sqlite3.connect(desk.file, isolation_level=None)) as file:
        file.execute("UPDATE doors SET seen_at = seen_at - 7 * 86400")
    assert "door d" not in desk.says("doctor")[1], "a week later it is forgotten, though no other door reports"


@pytest.mark.parametrize("ahead_s", [100.0, -100.0, 0.0])
def test_doctor_says_by_how_much_the_databases_clock_is_ahead(ahead_s: float) -> None:
    def ask(what: str, **_: object) -> list[dict[str, Any]]:
        if what == "look":
            return [{"now": time.time() + ahead_s, "newest": 0, "lease": None}]
        return [{"name": "box"}] if what == "hosts" else []

    found = [one.found for one in doctor.examine(open_store("postgresql://nowhere/x"), ask) if one.level is Level.WARN]
    assert found == ([f"the database's clock is {ahead_s:+.0f} s from this machine's"] if ahead_s else [])


# -- what goes wrong: a sentence each, and nothing is lost ---------------------------------------------------------


def _no_file(desk: Desk) -> None:
    for each in desk.file.parent.iterdir():
        each.unlink()


def _no_database(desk: Desk) -> None:
    _no_file(desk)
    desk.file.write_text("this is no database at all" * 100)


def _version(number: int) -> Callable[[Desk], None]:
    def change(desk: Desk) -> None:
        with contextlib.closing(sqlite3.connect(desk.file, isolation_level=None)) as file:
            file.execute("UPDATE meta SET version = ?", (number,))

    return change


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (_no_file, r"there is no database at sqlite:///\S+: fleetctl init --host NAME makes it"),
        (_no_database, r"\S+ is no database of SQLite's, or a damaged one \(file is not a database\)"),
        (_version(0), r"\S+ has leases of version 0, and this is for version 1: fleetctl init --host NAME migrates it"),
        (_version(2), r"\S+ has leases of version 2, and this is for version 1: use a newer fleetctl"),
    ],
)
def test_a_database_that_wont_do_is_one_sentence(desk: Desk, wrong: Callable[[Desk], None], sentence: str) -> None:
    wrong(desk)
    for words in (("status",), ("acquire", "--shared", "box")):
        code, out, said = desk.says(*words)
        assert (code, out) == (69, "") and re.fullmatch(rf"fleetctl( acquire)?: (refused: )?{sentence}\n", said)


def test_a_host_that_isnt_there_is_one_sentence(desk: Desk) -> None:
    sentence = "there is no host bix here; there are: box; fleetctl init --host bix adds it\n"
    asked = [desk.says("status", "bix"), desk.says("history", "bix")]
    asked.append(desk.ends("run", "--exclusive", "bix", "--", "true"))
    for code, _, said in asked:
        assert code == 69 and said.endswith(sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "--exclusive", "box"), "which command? Put it behind --"),
        (("run", "box", "--", "true"), "one of the arguments --exclusive --shared is required"),
        (("run", "--exclusive", "box", "--window", "2", "--", "true"), "'2' is no length of time"),
        (("run", "--exclusive", "a b", "--", "true"), "'a b' is no name"),
        (("run", "--exclusive", "", "--", "true"), "'' is no name"),
        (("run", "--exclusive", "box", "--purpose", os.fsdecode(b"a\xff"), "--", "true"), "in UTF-8"),
        (
            (*("every", "0 3 * * *", "--exclusive", "box", "--window", "1h"), *("--as", "cronjob", "--", "x")),
            "a pod needs an --image, and a --database that it reaches",
        ),
        (("run", "--shared", "box", "--priority", "1", "--", "true"), "1 is no priority"),
        (("status", "--database", "mysql://x"), "'mysql://x' is no database"),
        (("every", "0 3 * *", "--exclusive", "box", "--window", "1h", "--", "true"), "'0 3 * *' is no time"),
        (("stats",), "did you mean status?"),
        (("status", "--database", "sqlite:///tmp/q?x.db"), "is no database"),
        (("status", "--database", "sqlite:///tmp/nul%00.db"), "is no database"),
        (("run", "--shared", "box", "--purpose", "a\x9b", "--", "true"), "the purpose has to be one line"),
        (("run", "--exlusive", "box", "--", "true"), "did you mean --exclusive?"),
        (("run", "--exclusive", "box", "--exclusive", "other", "--", "true"), "one host at a time; for two: "),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(desk: Desk, words: tuple[str, ...], sentence: str) -> None:
    code, out, said = desk.says(*words)
    assert (code, out) == (64, "") and sentence in said and "Traceback" not in said


def test_without_a_home_there_is_a_default_database_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the gateway in a container whose user has no entry: it needs none, and has to start."""
    for variable in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert database(default_database()) == "sqlite:///var/lib/gpu-failover/fleet.db"
    monkeypatch.setenv("HOME", "/home/user")
    assert database(default_database()) == "sqlite:///home/user/.local/state/gpu-failover/fleet.db"


@needs_root
@pytest.mark.root
def test_a_file_that_this_user_may_only_read_is_one_sentence() -> None:
    with tempfile.TemporaryDirectory(prefix="fleet-readonly-") as place:
        open_store(f"sqlite://{place}/f.db").init(["box"])
        os.chmod(place, 0o755)
        values = "host='box', mode='shared', priority=0, holder='i', purpose='', ttl=9.0, wait=9.0, drain=0.0"
        script = "import os; from fleet.shell.store import database, default_database, open_store; os.setuid(65534); "
        script += f"open_store('sqlite://{place}/f.db').call('ask', lease='x' * 32, {values})"
        _, _, said = run_to_end(sys.executable, "-c", script)
        assert re.search(rf"Refused: sqlite://{place}/f.db can't be (written|opened) by this user", said), said


@needs_root
@pytest.mark.root
def test_a_full_disk_is_one_sentence_and_loses_nothing() -> None:
    script = """
set -e; mount -t tmpfs -o size=160k none /mnt; export FAILOVER_DATABASE=sqlite:///mnt/f.db
F="$1 -m fleet.cli.fleetctl"; $F init --host box
$F acquire --exclusive box --ttl-s 3600 --holder first
head -c 1000000 /dev/zero > /mnt/full 2>/dev/null || true
for n in 1 2 3 4 5 6 7 8 9; do $F acquire --exclusive box --wait-s 0 --quiet 2>> /tmp/said.$$ || true; done
sort -u /tmp/said.$$; rm /tmp/said.$$ /mnt/full
$F status
"""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable], capture_output=True, text=True, check=False
    )
    assert re.search(r"the disk is full, or can't be written; nothing has changed", done.stdout), done
    assert re.search(r"box +exclusive +first +token 1", done.stdout), done


def test_a_role_gets_what_it_is_given_and_no_more(packaged: Postgres) -> None:
    import psycopg

    with psycopg.connect(packaged.url(), autocommit=True) as owner:
        owner.execute("CREATE ROLE client LOGIN")
        owner.execute("CREATE DATABASE rights")
    admin, client = (packaged.url(user).replace("/postgres", "/rights") for user in ("owner", "client"))

    code, _, said = says(client, "status")
    assert code == 69 and "has no leases in it yet: fleetctl init" in said
    assert says(admin, "init", "--host", "box")[0] == 0
    code, _, said = ends(client, "run", "--exclusive", "box", "--", "true")
    assert code == 69 and "this role has no right to the leases in" in said and "fleetctl init --grant ROLE" in said
    assert says(admin, "init", "--grant", "client")[0] == 0
    assert ends(client, "run", "--exclusive", "box", "--", "true")[0] == 0
    with psycopg.connect(client, autocommit=True) as connection:
        for wrong in ("DELETE FROM failover_fleet.leases", "SELECT * FROM failover_fleet.leases",
                      "INSERT INTO failover_fleet.hosts (name) VALUES ('x')"):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(wrong.encode())
    _, sql, _ = says(admin, "init", "--print", "--grant", "client", "--host", "second")
    with psycopg.connect(admin, autocommit=True) as owner:
        for statement in re.findall(r"(?:\$\$.*?\$\$|[^;])+;", sql, re.DOTALL):  # one by one, as psql does
            owner.execute(statement.encode())
    assert says(client, "status", "second")[0] == 0


def test_a_database_that_only_reads_is_one_sentence(packaged: Postgres) -> None:
    store: Store = open_store(packaged.url())
    store.init(["readonly"])
    url = f"{packaged.url()}?options=-c%20default_transaction_read_only%3Don"
    code, _, said = ends(url, "run", "--exclusive", "readonly", "--", "true")
    assert code == 69 and "is read-only: a replica, or told to be; leases need the primary" in said


# -- schedules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "times"),
    [
        ("0 3 * * *", ["*-*-* 03:00:00"]),
        ("*/15 8-10 1,15 */6 *", ["*-01,07-01,15 08,09,10:00,15,30,45:00"]),
        ("30 4 * * mon-fri", ["Mon,Tue,Wed,Thu,Fri *-*-* 04:30:00"]),
        ("0 0 13 * 5", ["*-*-13 00:00:00", "Fri *-*-* 00:00:00"]),
        ("5/20 * * dec 7", ["Sun *-12-* *:05,25,45:00"]),
    ],
)
def test_a_cron_line_is_the_same_time_for_systemd(cron: str, times: list[str]) -> None:
    assert calendar(cron) == times


def test_what_every_prints_is_what_systemd_and_kubernetes_take(desk: Desk) -> None:
    import yaml

    words = ("every", "0 3 * * *", "--exclusive", "box", "--window", "2h", "--name", "nightly", "--database", desk.url)
    odd = ["run me", "100%", "$HOME", 'it\'s "this"', "back\\slash"]
    _, unit, _ = desk.says(*words, "--", *odd)
    assert "OnCalendar=*-*-* 03:00:00" in unit and '-- "run me" 100%% $$HOME' not in unit
    (line,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert line.endswith(r'-- "run me" "100%%" "$$HOME" "it' + r"'s \"this\"" + r'" "back\\slash"')
    _, unit, _ = desk.says(*words[:5], "12d", "--ttl-s", "90", "--holder", "me", "--quiet", "--", "true")
    assert "--window 1036800s" in unit and "--holder=me --ttl-s 90 --quiet" in unit and "=1036870\n" in unit
    _, unit, _ = desk.says(*words, "--purpose=-x", "--grace-s", "5", "--", "sh", "-c", "a\nb")
    assert '"--purpose=-x"' in unit or "--purpose=-x" in unit
    assert "--grace-s=5 " in unit and unit.count("\n") == len(unit.splitlines()) and '"a\\x0ab"' in unit
    assert 'sh -c "a\\x0d\\x1bb"' in desk.says(*words, "--", "sh", "-c", "a\r\x1bb")[1]
    code, _, why = desk.says(*words, "--", "sh", "-c", os.fsdecode(b"a\xff"))
    assert code == 64 and "a word of the command isn't UTF-8" in why
    words, odd = (*words[:-1], "postgresql://db/fleet"), [*odd, "a\nb"]
    _, job, _ = desk.says(*words[:1], "0 3 * * 5-7", *words[2:], "--as", "cronjob", "--image", "bench:1", "--", *odd)
    spec = yaml.safe_load(job)["spec"]
    container = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    assert spec["schedule"] == "0 3 * * 0,5,6" and spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] == 7270
    assert container["command"] == ["fleetctl", "run", "--exclusive", "box", "--window", "7200s", "--database",
                                    "postgresql://db/fleet", "--", *(it.replace("$", "$$") for it in odd)]  # fmt: skip


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_deleted_or_replaced_under_a_lease_ends_it(desk: Desk, replaced: bool) -> None:
    holder = desk.run()
    started(holder)
    for path in desk.file.parent.glob("fleet.db*"):
        path.rename(path.with_name(f"old-{path.name}"))
    if replaced:
        open_store(desk.url).init(["box"])
    said = (holder.ends(), holder.err.rest())
    assert said[0] == 70 and ("has lapsed" if replaced else "there is no database") in said[1]


def test_the_files_beside_a_database_are_a_part_of_it(desk: Desk) -> None:
    """Without them there are two locks, and two that have the host alone: until the next renewal."""
    holder = desk.run()
    started(holder)
    desk.store.close()
    for end in ("-wal", "-shm"):
        desk.file.with_name(f"fleet.db{end}").unlink()
    code, _, why = desk.says("acquire", "--exclusive", "box")  # before the renewal comes, which a process may not be
    assert (code, holder.ends(), "has lapsed" in holder.err.rest()) == (0, 70, True), why


def test_a_file_with_two_paths_is_refused(desk: Desk, tmp_path: Path) -> None:
    os.link(desk.file, tmp_path / "other.db")
    code, _, said = desk.says("status", "--database", f"sqlite://{tmp_path}/other.db")
    assert code == 69 and "has another path, and another lock there" in said


@needs_root
@pytest.mark.root
def test_a_file_that_is_mounted_by_itself_is_refused_and_its_directory_isnt(desk: Desk, tmp_path: Path) -> None:
    """As two containers may have it."""
    (tmp_path / "file.db").touch()
    (tmp_path / "whole").mkdir()
    script = """
set -e; cd "$2"; mount --bind fleet.db file.db; mount --bind . whole
"$1" -m fleet.cli.fleetctl status --database "sqlite://$2/whole/fleet.db"
"$1" -m fleet.cli.fleetctl status --database "sqlite://$2/file.db"
"""
    command = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "box  free" in done.stdout and done.returncode == 69, done
    assert "has another path, and another lock there" in done.stderr, done


def test_a_guard_that_is_stopped_doesnt_keep_what_the_command_has_started(desk: Desk) -> None:
    holder = desk.run(command=LEAVES)
    left = started(holder)
    (guard,) = (Process(pid) for pid in process_tree.children(holder.pid))
    guard.signal(signal.SIGSTOP)
    desk.file.rename(desk.file.with_name("moved.db"))
    assert holder.ends() == 70 and all(process.dead for process in left)


def test_under_a_shared_lease_nothing_is_told_to_the_door(desk: Desk) -> None:
    said = desk.ends("run", "--shared", "box", "--", "sh", "-c", "echo $FAILOVER_LEASE. $FAILOVER_SHARED_LEASE")
    assert said[:2] == (0, ". 1\n")
    with fleet.shared("box", purpose="p", database=desk.url) as lease:
        assert lease.headers == {}


def test_a_clock_that_was_ahead_once_is_a_finding(desk: Desk) -> None:
    desk.store.call("ask", host="box", lease="x" * 32, mode="exclusive", priority=0, holder="h", purpose="", ttl=60.0,
                    wait=60.0, drain=0.0)  # fmt: skip
    desk.store.close()
    with contextlib.closing(sqlite3.connect(desk.file)) as database:
        database.execute("UPDATE hosts SET clock = clock + 3600")
        database.commit()
    code, said, _ = desk.says("doctor")
    ahead = re.search(r"this machine's clock was (\d+) s ahead once", said)
    assert code == 1 and ahead is not None and 3000 < int(ahead[1]) <= 3600  # less by what has passed since


def test_a_watch_says_the_same_outage_again_when_it_comes_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The database is played: it answers, and is away, twice, and then a person ends it."""
    looks, look = iter((True, False, True, False)), fleetctl.look

    def played(store: Store, host: str) -> Any:
        if (answers := next(looks, None)) is None:
            raise KeyboardInterrupt
        if not answers:
            raise StoreError("it is away")
        return look(store, host)

    monkeypatch.setattr(fleetctl, "look", played)
    monkeypatch.setattr(fleetctl, "end_with_the_reader", lambda: None)
    monkeypatch.setattr(fleetctl, "time", SimpleNamespace(time=time.time, sleep=lambda _: None))
    assert fleetctl.main(["watch", "box", "--database", desk.url]) == 130
    assert capsys.readouterr().out.count("it is away") == 2


def test_a_signal_that_a_shell_wants_ignored_ends_no_waiter(desk: Desk) -> None:
    started(desk.run())
    words = [*FLEETCTL, "run", "--exclusive", "box", "--", "true"]
    waiter = Program("sh", "-c", 'trap "" HUP; exec "$@"', "sh", *words, environment={"FAILOVER_DATABASE": desk.url})
    with contextlib.closing(waiter):
        waiter.err.with_words("waiting: ")
        waiter.send(signal.SIGHUP)
        waiter.send(signal.SIGTERM)
        assert waiter.ends() == 128 + signal.SIGTERM


def test_a_doctor_that_loses_the_database_on_the_way_says_what_it_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(store: Store, what: str, **values: object) -> list[Row]:
        if what == "look":
            raise StoreError("it is away")
        return store.call(what, **values)

    monkeypatch.setattr(fleetctl, "ask", ask)
    assert fleetctl.main(["doctor", "--database", desk.url]) == 1
    said = capsys.readouterr().out
    assert "1 hosts" in said and "it is away" in said


def test_a_door_with_a_term_or_a_name_that_no_database_takes_doesnt_start(tmp_path: Path) -> None:
    for more in (("--lease-ttl-s", "0.05"), ("--lease-name", "x" * 201)):
        words = ("--run-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--lease-host", "box", *more)
        code, _, said = run_to_end(sys.executable, "-m", "gateway", *words)
        assert code == 64 and "--lease-name, --lease-ttl-s" in said


def test_a_window_has_an_end() -> None:
    assert fleetctl.duration("99999999d") == 366 * 86400


def test_the_doors_are_looked_at_with_a_connection_of_their_own_each_time(desk: Desk) -> None:
    """One that is idle for a long run may be cut on the way, and no client hears of it."""
    seen = DoorsSeen(desk.url, Wish("box", Mode.EXCLUSIVE, "i"))
    assert isinstance(seen._store, SqliteStore) and seen._store._connection is None


def test_a_renewal_that_is_no_longer_to_be_relied_on_says_so_with_its_code(desk: Desk) -> None:
    said = json.loads(desk.says("acquire", "--shared", "box", "--ttl-s", "3", "--json")[1])
    desk.store.call("ask", lease="x" * 32, host="box", mode="exclusive", priority=0, holder="o", purpose="", ttl=60.0,
                    wait=60.0, drain=0.0)  # fmt: skip
    codes: list[int] = []
    while not codes or codes[-1] == 0:
        codes.append(desk.says("renew", "box", "--lease", said["lease"], "--token", str(said["token"]))[0])
        assert codes[-1] in (0, 70)
    assert codes[-1] == 70 and {row["lease"] for row in desk.store.call("look", host="box")} >= {said["lease"]}
