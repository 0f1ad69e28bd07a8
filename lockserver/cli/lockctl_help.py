"""What `lockctl COMMAND --help` says beside the settings: exit codes, the fields of --json, examples.

Scripts are written from these texts, so what stands here is kept. Only words; the commands are in `lockctl.py`.
"""

from sidecar.terminal.settings import EXIT_CODES, RUN_DIR_WORDS

MAIN = """\
commands:
  status        who serves, who waits, and what for
  watch         a line for every change
  history       what has happened
  switchover    let the next engine take over, on purpose
  sleep         put the lock to rest: its engine sleeps in place
  wake          end the rest
  ping          is the lock server there, and how fast
  doctor        checks this machine, the run directory and the server
  hold          runs a command under the lock

"""
MAIN += RUN_DIR_WORDS
MAIN += """\

examples:
  lockctl --run-dir DIR status
  lockctl status --json | jq -r .holder.engine_id     (FAILOVER_RUN_DIR is set)
  lockctl hold --engine-id me -- ./train.sh

"""
MAIN += EXIT_CODES

STATUS = """\
exit codes:
  0  held             an engine is awake
  1  free             no engine holds the lock
  2  no server        none answers. (A holder serves on without its lock server.)
  3  not yet          FENCING: what the next grant needs isn't proven yet: a holder's end, or free memory;
                      RECOVERING: a new server waits for a holder to come back, or for the proof that it is gone

fields of --json:
  state               FREE, HELD, FENCING or RECOVERING
  holder              null, or engine_id, incarnation, token, granted_at, pid, members (pid, alive), endpoint,
                      kept (tokens, block: the room in the KV cache that it took over; left out where it has none);
                      while FENCING and RECOVERING it is the one who must be gone, or come back; granted_at is empty
                      where it was granted before this server began, and the file that said when is lost
  waiters             in order: engine_id, ready, needs (device: bytes), incarnation, pid, since
  fencing             null, or since, waiting_for (reasons a person can read)
  memory              verified or unverified; memory_why: why the server reads none, empty where it does
  plan                null, or the switchover that is under way: step, old, old_token, to (empty for a sleep),
                      drain_timeout_s
  resting             true: no engine is granted until the lock is waked; resting_why says why
  waiters_total       how many wait, should the list be cut
  server_incarnation, server_pid
  evidence            how the server sees the end of a process: peer pidfd, sent pidfd, end-of-file only
  permits, switchover, alarms, token (the newest)
Without a server: state NO_SERVER and error, and nothing else, so that no script takes it for a free lock.

examples:
  lockctl status
  lockctl status --json | jq -r .state
  if lockctl status >/dev/null; then echo an engine serves; fi
"""

WATCH = """\
Says when the server goes away and when it is back; ends with Ctrl-C. With --json each line is the object of
`status --json` and the time (`at`); without a server: state NO_SERVER.

examples:
  lockctl watch
  lockctl watch --json | jq -r '[.at, .state, .holder.engine_id] | @tsv'
"""

HISTORY = """\
The server keeps the last thousand events in memory; its log has them all. With --json each line is one event
(at, event, detail).

examples:
  lockctl history
  lockctl history --last 20
  lockctl history --json | jq 'select(.event == "granted")'
"""

SWITCHOVER = """\
The holder drains (finishes what it has begun), the successor looks at its engine, the holder ends, the successor is
granted. Until the holder is told to end, Ctrl-C calls it off, and the holder serves on. With --json each line is one
step (phase, detail, done, ok).

exit codes:
  0  done             the successor holds the lock
  2  no server        or it went away meanwhile: see status
  4  not done         refused, called off, or the holder ended by itself; the last line says why

examples:
  lockctl switchover
  lockctl switchover --to engine-b --drain-timeout 120
"""

SLEEP = """\
The holder drains, puts its engine to sleep in place and gives the lock back; it lives on, and waits. Without a holder
the lock is at rest at once. No engine is granted until `lockctl wake`, also by a server that is started anew. Until the
holder is told to give back, Ctrl-C calls it off, and the holder serves on. One that doesn't give back in time is
killed. With --json each line is one step (phase, detail, done, ok).

exit codes:
  0  asleep           the lock is at rest
  2  no server        or it went away meanwhile: see status
  4  not done         refused, called off, waked meanwhile, or the holder ended by itself; the last line says why

examples:
  lockctl sleep
  lockctl sleep --drain-timeout 5 --why "the nightly batch has the GPU"
"""

WAKE = """\
The first engine in the queue that is ready is granted. A sleep that is under way is called off. It returns when the
wish is on disk; `lockctl watch` shows who is granted.

exit codes: 0 the lock isn't at rest; 2 no server, or it doesn't answer

examples:
  lockctl wake
"""

PING = """\
A connection, and a round trip for each of --count. Ctrl-C ends it early; a server that goes away ends it at once.

exit codes: 0 it answered; 2 it did not, or it went away

examples:
  lockctl ping
  lockctl ping --count 3 --interval 0.2
"""

DOCTOR = """\
Looks at the kernel, limits, clocks, core dumps, /dev/shm, GPUs, the run directory and its filesystem, the server,
stale files, and at which processes hold a life lock. It disturbs nothing: no lock is taken on a live file. Run it
where the engines run (in their container, as their user); as root it sees more.

exit codes: 0 nothing FAILs (there may be warnings); 1 something does

examples:
  lockctl doctor
  lockctl doctor --json | jq '.checks[] | select(.level != "ok")'
"""

HOLD = """\
The command is killed (SIGKILL) when lockctl dies, however it dies, and when the lock is lost. In a switchover it gets
SIGTERM once the successor is ready, and SIGKILL after --grace-s; there is nothing to drain. SIGHUP, SIGINT, SIGQUIT,
SIGTERM, SIGUSR1 and SIGUSR2 are passed on to it. It writes no core dump. In its environment: FAILOVER_TOKEN, the
fencing token of this grant; FAILOVER_RUN_DIR and FAILOVER_TREE, with which its processes may join.

Between lockctl and the command stands a guard, which adopts whatever the command starts and leaves behind: workers,
daemons, grandchildren. When the command or lockctl has ended it kills them all. The lock is released when lockctl, the
command and the guard are gone, and no process has the life file's descriptor any more.

The limit: processes that the guard may not kill. A command that is set-uid or has file capabilities, a process of
another user, one that is stuck in the kernel: the lock waits for these, and `lockctl doctor` names them. Only kill -9
of the guard (ps shows lockctl-guard) together with lockctl leaves processes behind; those that have kept the life
file's descriptor are waited for.

exit codes: the command's own (128+n when signal n ended it), or
  64   wrong usage
  69   refused         the server said no: more memory is needed than there is, say; with --no-wait also: no server
  70   lost            the lock was lost, and the command was killed
  75   not in time     --timeout-s is over; with --no-wait: it isn't free
  126  can't be run    the command is there, and can't be started
  127  not found       there is no such command

examples:
  lockctl hold --engine-id trainer -- python train.py
  lockctl hold --engine-id a --needs GPU-8932f937-d72c-4106-c12f-20bd9faed9f6=40GiB -- ./serve --port 8000
  lockctl hold --engine-id try --no-wait -- sleep 60 || echo "not free"
"""
