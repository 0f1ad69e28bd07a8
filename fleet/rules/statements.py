"""What the database does, in SQL that SQLite and PostgreSQL both take: here stand the rules of which waiter has a host.

1. The order of waiters is that of their asking. An exclusive one may pass others of a lower priority, but none that
   asked before a shared waiter did: so priorities starve no traffic, and there are no circles.
2. A shared lease is granted while no exclusive one is held or was asked for before. An exclusive one is granted when no
   other lease is held, and it is the first in the order. The wish itself is a row, and stops new shared ones at once.
3. Each grant has a token, which grows for ever, host by host.
4. What isn't renewed in time has lapsed, and is deleted before anything else happens. So no renewal revives it.
5. A renewal never shortens what was promised. While an exclusive one waits, that of a shared lease goes no further than
   the drain that the waiter allows, or one whole term where that is longer, counted from its asking, or from the grant
   if that came later. So a holder that doesn't look can't keep a waiter out.
6. Whatever changes a host's leases changes the host's own row first. So one comes after the other, each sees what
   the one before has done, and under a stricter isolation than PostgreSQL's default the later one fails.
7. All times are the database's, read when it is this statement's turn, and a host's never go backwards.
8. All of it may be said twice: a question whose answer was lost is asked again, and has the same answer. A lease that
   has ended doesn't begin again, however late a question comes, while the history has its end (a thousand events).
9. What a door let through without a lease is counted in the door's own row, before it has its next lease.

Each of these is one statement for the client: in PostgreSQL a function, in SQLite a transaction that has locked the
file before it reads (`store.py`). `{now}`, `{later}` and `{earlier}` are how the two spell a thing; `:name` is a
parameter. What this file may not do: touch a database. Pure.
"""

import re

VERSION = 1
SCHEMA = "failover_fleet"
"""PostgreSQL's; in SQLite the file has nothing else in it."""
KEPT_EVENTS = 1000
"""As many of each host, for `fleetctl history`."""
SHOWN = 100
"""Leases of one host that are read at once: those that matter come first."""

TABLES = """
CREATE TABLE IF NOT EXISTS meta (version integer NOT NULL);
CREATE TABLE IF NOT EXISTS hosts (
    name text PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),
    token bigint NOT NULL DEFAULT 0,
    clock double precision NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS leases (
    id {serial},
    lease text NOT NULL UNIQUE CHECK (length(lease) BETWEEN 16 AND 64),
    host text NOT NULL REFERENCES hosts (name),
    mode text NOT NULL CHECK (mode IN ('shared', 'exclusive')),
    priority integer NOT NULL CHECK (priority BETWEEN 0 AND 100 AND (mode = 'exclusive' OR priority = 0)),
    holder text NOT NULL CHECK (length(holder) BETWEEN 1 AND 200),
    purpose text NOT NULL CHECK (length(purpose) <= 200),
    token bigint,
    asked_at double precision NOT NULL,
    granted_at double precision,
    renewed_at double precision NOT NULL,
    expires_at double precision NOT NULL,
    wait_until double precision NOT NULL,
    ttl_s double precision NOT NULL CHECK (ttl_s BETWEEN 0.1 AND 86400),
    drain_s double precision NOT NULL CHECK (drain_s BETWEEN 0 AND 86400)
);
CREATE INDEX IF NOT EXISTS leases_of_host ON leases (host, id);
CREATE TABLE IF NOT EXISTS history (
    id {serial},
    at double precision NOT NULL,
    host text NOT NULL,
    event text NOT NULL,
    lease text NOT NULL,
    mode text NOT NULL,
    token bigint,
    holder text NOT NULL,
    purpose text NOT NULL,
    UNIQUE (lease, event)
);
CREATE INDEX IF NOT EXISTS history_of_host ON history (host, id);
CREATE TABLE IF NOT EXISTS doors (
    host text NOT NULL REFERENCES hosts (name),
    door text NOT NULL CHECK (length(door) BETWEEN 1 AND 200),
    incarnation text NOT NULL,
    uncovered bigint NOT NULL,
    seen_at double precision NOT NULL,
    knows bigint NOT NULL,
    ended boolean NOT NULL,
    PRIMARY KEY (host, door)
);
"""
ADD_HOST = "INSERT INTO hosts (name) VALUES (:host) ON CONFLICT (name) DO NOTHING"

_MINE = "lease = :lease AND host = :host"
_CLOCK = "(SELECT clock FROM hosts WHERE name = :host)"
_TURN = "UPDATE hosts SET clock = {later}(clock, {now}) WHERE name = :host"
_LAPSED = f"""host = :host AND (expires_at <= {_CLOCK}
    OR (token IS NULL AND wait_until <= {_CLOCK}))"""


def _note(event: str, which: str) -> str:
    return f"""INSERT INTO history (at, host, event, lease, mode, token, holder, purpose)
SELECT {_CLOCK}, host, {event}, lease, mode, token, holder, purpose FROM leases WHERE {which} ORDER BY leases.id
ON CONFLICT (lease, event) DO NOTHING"""


_CLEAN = (
    _TURN,
    _note("CASE WHEN token IS NULL THEN 'left' ELSE 'lapsed' END", _LAPSED),
    f"DELETE FROM leases WHERE {_LAPSED}",
)
_DRAINED = """(SELECT min({later}(x.asked_at, leases.granted_at) + {later}(x.drain_s, leases.ttl_s)) FROM leases x
    WHERE x.host = :host AND x.mode = 'exclusive' AND x.token IS NULL AND leases.mode = 'shared')"""
_WANTED = """EXISTS (SELECT 1 FROM leases x WHERE x.host = :host AND x.mode = 'exclusive' AND x.token IS NULL
    AND x.lease <> :lease)"""
_ANSWER = f"""SELECT h.clock AS now, l.lease AS lease, l.token AS token, l.expires_at AS expires_at, {_WANTED} AS wanted
FROM hosts h LEFT JOIN leases l ON l.lease = :lease AND l.host = h.name WHERE h.name = :host"""

ASK = (
    *_CLEAN,
    """INSERT INTO leases (lease, host, mode, priority, holder, purpose,
    asked_at, renewed_at, expires_at, wait_until, ttl_s, drain_s)
SELECT :lease, name, :mode, :priority, :holder, :purpose, clock, clock, clock + :ttl, clock + :wait, :ttl, :drain
FROM hosts WHERE name = :host AND NOT EXISTS (SELECT 1 FROM history
    WHERE lease = :lease AND event IN ('released', 'left', 'lapsed'))
ON CONFLICT (lease) DO UPDATE SET expires_at = excluded.expires_at, renewed_at = excluded.renewed_at
    WHERE leases.token IS NULL AND leases.host = excluded.host""",
    _note("'asked'", _MINE),
    f"""UPDATE leases SET token = (SELECT token + 1 FROM hosts WHERE name = :host), granted_at = {_CLOCK}
WHERE {_MINE} AND token IS NULL
    AND NOT EXISTS (SELECT 1 FROM leases x WHERE x.host = :host AND x.token IS NOT NULL
        AND (x.mode = 'exclusive' OR leases.mode = 'exclusive'))
    AND NOT EXISTS (SELECT 1 FROM leases x WHERE x.host = :host AND x.token IS NULL AND x.id < leases.id
        AND (x.mode = 'exclusive' OR leases.mode = 'exclusive')
        AND (x.mode = 'shared' OR x.priority >= leases.priority
            OR EXISTS (SELECT 1 FROM leases s WHERE s.host = :host AND s.mode = 'shared' AND s.token IS NULL
                AND s.id > x.id AND s.id < leases.id)))
    AND NOT EXISTS (SELECT 1 FROM leases x WHERE x.host = :host AND x.token IS NULL
        AND x.mode = 'exclusive' AND leases.mode = 'exclusive' AND x.priority > leases.priority
        AND NOT EXISTS (SELECT 1 FROM leases s WHERE s.host = :host AND s.mode = 'shared' AND s.token IS NULL
            AND s.id > leases.id AND s.id < x.id))""",
    f"""UPDATE hosts SET token = (SELECT token FROM leases WHERE {_MINE})
WHERE name = :host AND token < (SELECT token FROM leases WHERE {_MINE})""",
    _note("'granted'", f"{_MINE} AND token IS NOT NULL"),
    f"""DELETE FROM history WHERE host = :host
    AND id <= (SELECT id FROM history WHERE host = :host ORDER BY id DESC LIMIT 1 OFFSET {KEPT_EVENTS})""",
    _ANSWER,
)
"""A wish, and whatever can be granted of it by now. Asked again it keeps the waiter's place."""

RENEW = (
    *_CLEAN,
    f"""UPDATE leases SET renewed_at = {_CLOCK}, expires_at = {{later}}(expires_at,
    {{earlier}}({_CLOCK} + ttl_s, coalesce({_DRAINED}, {_CLOCK} + ttl_s)))
WHERE {_MINE} AND token = :token""",
    _ANSWER,
)

RELEASE = (
    *_CLEAN,
    _note("CASE WHEN token IS NULL THEN 'left' ELSE 'released' END", _MINE),
    f"DELETE FROM leases WHERE {_MINE}",
    f"""SELECT event FROM history WHERE {_MINE} AND event IN ('released', 'left', 'lapsed')
ORDER BY id DESC LIMIT 1""",
)
"""Held or waited for. The answer is how it ended."""

REPORT = (
    _TURN,
    """INSERT INTO doors (host, door, incarnation, uncovered, seen_at, knows, ended)
SELECT name, :door, :incarnation, :uncovered, clock, :knows, :ended FROM hosts WHERE name = :host
ON CONFLICT (host, door) DO UPDATE SET
    uncovered = doors.uncovered + excluded.uncovered
        + CASE WHEN doors.incarnation <> excluded.incarnation AND NOT doors.ended THEN 1 ELSE 0 END,
    incarnation = excluded.incarnation, seen_at = excluded.seen_at,
    knows = excluded.knows, ended = excluded.ended""",
    f"DELETE FROM doors WHERE host = :host AND seen_at < {_CLOCK} - 604800",
    "SELECT clock AS now FROM hosts WHERE name = :host",
)
"""A door says that it is there, and how many requests it has let through that no lease of its own covered; and up to
which token it knew that no lease excludes it any more when it counted, since a report may be under way for long. A door
that ended without a word may have let any through: that counts as one."""

LOOK = f"""SELECT {{later}}(h.clock, {{now}}) AS now, h.token AS newest, l.lease AS lease, l.mode AS mode,
    l.priority AS priority, l.holder AS holder, l.purpose AS purpose, l.token AS token, l.asked_at AS asked_at,
    l.granted_at AS granted_at, l.renewed_at AS renewed_at, l.expires_at AS expires_at, l.ttl_s AS ttl_s,
    l.drain_s AS drain_s, l.id AS id
FROM hosts h LEFT JOIN leases l ON l.host = h.name
    AND l.expires_at > {{later}}(h.clock, {{now}})
    AND (l.token IS NOT NULL OR l.wait_until > {{later}}(h.clock, {{now}}))
WHERE h.name = :host ORDER BY l.mode = 'shared', l.token IS NULL, l.id LIMIT {SHOWN}"""
"""Changes nothing, and waits for nothing."""
HOSTS = "SELECT name FROM hosts ORDER BY name"
DOORS = """SELECT d.door AS door, d.incarnation AS incarnation, d.uncovered AS uncovered, d.seen_at AS seen_at,
    d.knows AS knows, d.ended AS ended, {later}(h.clock, {now}) AS now
FROM doors d JOIN hosts h ON h.name = d.host WHERE d.host = :host
    AND d.seen_at >= {later}(h.clock, {now}) - 604800 ORDER BY d.door"""
HISTORY = """SELECT at, event, mode, token, holder, purpose, lease FROM history WHERE host = :host
ORDER BY id DESC LIMIT :last"""

_TIMES = "asked_at {f}, granted_at {f}, renewed_at {f}, expires_at {f}, ttl_s {f}, drain_s {f}"
_WISH = "mode text, priority integer, holder text, purpose text"
_COUNT = "door text, incarnation text, uncovered bigint"
_EVENT = "at {f}, event text, mode text, token bigint, holder text, purpose text, lease text"
_TERM = "now {f}, lease text, token bigint, expires_at {f}, wanted boolean"
STATEMENTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "ask": (ASK, f"lease text, host text, {_WISH}, ttl {{f}}, wait {{f}}, drain {{f}}", _TERM),
    "renew": (RENEW, "host text, lease text, token bigint", _TERM),
    "release": (RELEASE, "host text, lease text", "event text"),
    "report": (REPORT, f"host text, {_COUNT}, knows bigint, ended boolean", "now {f}"),
    "look": ((LOOK,), "host text", f"now {{f}}, newest bigint, lease text, {_WISH}, token bigint, {_TIMES}, id bigint"),
    "hosts": ((HOSTS,), "", "name text"),
    "doors": ((DOORS,), "host text", f"{_COUNT}, seen_at {{f}}, knows bigint, ended boolean, now {{f}}"),
    "history": ((HISTORY,), "host text, last integer", _EVENT),
}
"""What a client may say: its statements, its parameters, and the columns of the answer, which the last one gives."""


def parameters(name: str) -> list[str]:
    return [each.split()[0] for each in STATEMENTS[name][1].split(", ") if each]


# -- the two dialects ----------------------------------------------------------------------------------------------

_SQLITE = {"now": "((julianday('now') - 2440587.5) * 86400.0)", "later": "max", "earlier": "min"}
_SQLITE["serial"] = "INTEGER PRIMARY KEY AUTOINCREMENT"
_POSTGRES = {"now": f"{SCHEMA}.clock()", "later": "greatest", "earlier": "least"}
_POSTGRES["serial"] = "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"


def for_sqlite(text: str, now: str = "") -> str:
    return text.format(**(_SQLITE | ({"now": now} if now else {})))


def for_postgres(grant_to: str = "") -> str:
    """All that the schema is made of, for `fleetctl init`, which a role runs that may create it. What is there stays;
    `grant_to`: the role of the clients, which gets the functions and no table but the version's.
    """
    parts = [
        f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};\nSET LOCAL search_path = {SCHEMA};",
        TABLES.format(**_POSTGRES),
        f"CREATE OR REPLACE FUNCTION {SCHEMA}.clock() RETURNS double precision LANGUAGE sql VOLATILE\n"
        "AS $$ SELECT extract(epoch FROM clock_timestamp())::double precision $$;",
        *(_function(name) for name in STATEMENTS),
        f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {SCHEMA} FROM PUBLIC;",
        f"INSERT INTO meta SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM meta);\nUPDATE meta SET version = {VERSION};",
    ]
    if grant_to:
        role = '"' + grant_to.replace('"', '""') + '"'
        parts.append(
            f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role};\n"
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {SCHEMA} TO {role};\nGRANT SELECT ON meta TO {role};"
        )
    return "\n".join(parts)


def _function(name: str) -> str:
    """Its rights are its owner's, so that no client can write what no statement here would."""
    body, takes, gives = STATEMENTS[name]
    double = {"f": "double precision"}
    declared = ", ".join(f"p_{each}" for each in takes.format(**double).split(", ") if each)
    said = [re.sub(r"(?<!:):(\w+)", r"p_\1", each.format(**_POSTGRES)) for each in body]
    said[-1] = f"RETURN QUERY {said[-1]}"
    return (
        f"CREATE OR REPLACE FUNCTION {SCHEMA}.{name}({declared}) RETURNS TABLE ({gives.format(**double)})\n"
        f"LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = {SCHEMA}, pg_temp SET lock_timeout = '5s'\n"
        "AS $$\n#variable_conflict use_column\nBEGIN\n" + ";\n".join(said) + ";\nEND $$;"
    )
