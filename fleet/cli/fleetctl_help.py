"""What `fleetctl COMMAND --help` says beside the settings: exit codes, the fields of --json, examples.

Scripts are written from these texts, so what stands here is kept. Only words; the commands are in `fleetctl.py`.
"""

MAIN = """\
commands:
  init       makes the leases in a database, and adds hosts
  run        runs a command under a lease
  status     which program has which host, for what, until when; which wait
  watch      a line for every change
  history    what has happened on a host
  acquire, renew, release    the same by hand, for scripts and other languages
  every      prints a systemd timer, or a CronJob, that runs a command under a lease
  doctor     checks the database, its clock, and what was left behind

A lease ends by time, and proves nothing: what runs under it has to stop when it is lost. `run` sees to that.
--database is sqlite:///PATH (an absolute one), for the programs of one machine, or postgresql://USER@HOST/NAME, for a
fleet; a password stands in ~/.pgpass or PGPASSWORD. Without it: ~/.local/state/gpu-failover/fleet.db, and for root
/var/lib/gpu-failover/fleet.db, which are two.

examples:
  fleetctl init --host gpu-box-1
  fleetctl run --exclusive gpu-box-1 --purpose "bench qwen3" -- python bench.py
  fleetctl status

exit codes of all commands (each has more: COMMAND --help):
  64   wrong usage
  69   refused         the database isn't reached or says no, or there is no such host
  74   what it prints can't be written
  130  interrupted
  141  its output is no longer read
"""

INIT = """\
Needs a user who may create a schema (failover_fleet); the clients' role needs only what --grant gives it: it calls
functions, and reads and writes no table itself but the schema's version. May be run again, to add hosts or to migrate.

examples:
  fleetctl init --host gpu-box-1 --host gpu-box-2
  fleetctl init --database postgresql://admin@db/fleet --grant fleet_clients --host gpu-box-1
  fleetctl init --database postgresql://db/fleet --grant fleet_clients --print     the SQL, and nothing is done
"""

RUN = """\
Waits for the lease, runs the command, and gives the lease back when nothing of the command is left. Without a renewal
for two thirds of --ttl-s the command is killed, and with it whatever it has started: by a guard of its own, also when
fleetctl is stopped or killed. Under --exclusive, requests to a door need the header x-failover-lease: $FAILOVER_LEASE.

An exclusive lease stops new traffic at once. What is there may finish within --drain-s, and is then paused.
A signal to fleetctl is passed on to the command, and the lease is held until nothing of it is left; kill -9 of
fleetctl kills it. A wish for the host alone kills a command under --shared, without SIGTERM, within the longer of its
term and --drain-s. Its token is FAILOVER_SHARED_LEASE: no request needs it.
At the end fleetctl says whether the time was clean: whether every door that enforces the lease was there, and let
through no request but the lease's own.

exit codes: the command's own (128+n when signal n ended it), or
  69   refused         the database isn't reached, or there is no such host
  70   lost            the lease was lost, and the command was killed
  71   tainted         the command ended with 0, and its time wasn't clean (another code of its own hides that)
  75   not in time     --wait-s is over, or --window was before it could run
  126  can't be run    the command is there, and can't be started
  127  not found       there is no such command

examples:
  fleetctl run --exclusive gpu-box-1 --purpose "bench qwen3" -- python bench.py
  fleetctl run --exclusive gpu-box-1 --purpose nightly --window 2h -- ./eval.sh
  fleetctl run --shared gpu-box-1 --purpose agents -- ./agent
"""

ACQUIRE = """\
Prints lease, token, and for how long it may be relied on: two thirds of a term. It has to be renewed until then, and to
be given back. `run` does all of that.

exit codes: 0 granted; 69 refused; 75 not in time

fields of --json: host, lease, token, mode, relied_on_s, renew_every_s

examples:
  fleetctl acquire --exclusive gpu-box-1 --purpose bench --json > lease.json
  fleetctl renew gpu-box-1 --lease "$(jq -r .lease lease.json)" --token "$(jq -r .token lease.json)"
  fleetctl release gpu-box-1 --lease "$(jq -r .lease lease.json)"
"""

RENEW = """\
exit codes: 0 renewed; 70 what runs under it has to stop: it has lapsed (a renewal never brings it back), or there is no
such lease, or another waits and it is renewed no further

fields of --json: relied_on_s, wanted (an exclusive lease waits for this shared one)
"""

RELEASE = """\
exit codes: 0 given back; 70 it had lapsed before, or never was

fields of --json: event (how it ended: released, or left where it was only waited for)
"""

STATUS = """\
fields of --json: hosts, a list of host, now (the database's), newest (token), leases (id, lease, mode, holder,
  purpose, priority, token (null: it waits), asked_at, granted_at, renewed_at, expires_at, ttl_s, drain_s), and
  doors (door, uncovered: how often requests were seen that no lease covered, seen_at, ended). Times are seconds since
  1970.

examples:
  fleetctl status
  fleetctl status gpu-box-1 --json | jq '.hosts[0].leases[] | select(.token != null) | .holder'
"""

WATCH = """\
Looks every second; ends with Ctrl-C. With --json a line is one host as in `status --json` and `at`, or `error`.

examples:
  fleetctl watch gpu-box-1
"""

HISTORY = """\
Of each host the last thousand events are kept: asked, granted, released, left (it wished no longer), lapsed (written
when the next program asks). With --json a line each: at, event, mode, token, holder, purpose, lease.

examples:
  fleetctl history gpu-box-1 --last 20
"""

DOCTOR = """\
exit codes: 0 nothing FAILs (there may be warnings); 1 something does
"""

EVERY = """\
Prints the files (for systemd two, a service and its timer), and changes nothing: systemd or Kubernetes starts the
command. A password in --database would stand in them: ~/.pgpass or PGPASSWORD has it, in a pod from a Secret.

examples:
  fleetctl every "0 3 * * *" --exclusive gpu-box-1 --window 2h --purpose nightly -- /opt/bench/run.sh
  fleetctl every "0 3 * * 1-5" --exclusive gpu-box-1 --window 2h --as cronjob --image bench:1 -- /opt/bench/run.sh
"""
