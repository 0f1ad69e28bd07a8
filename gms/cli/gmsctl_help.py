"""What `gmsctl COMMAND --help` says beside the settings: exit codes, the fields of --json, examples.

Scripts are written from these texts, so what stands here is kept. Only words; the commands are in `gmsctl.py`.
"""

from sidecar.terminal.settings import EXIT_CODES, RUN_DIR_WORDS

MAIN = """\
commands:
  status        which weights there are, who reads, writes, sleeps and waits
  layout        the tensors, and where each lies
  ping          are the servers there? For probes
  history       what has happened
  watch         a line for every change
  put           publishes a checkpoint: safetensors files become the weights
  clear         takes the weights away, once no process reads them
  get           writes the weights to a safetensors file
  verify        are the weights still what was committed?
  save          writes a model's weights to a directory: a snapshot
  restore       reads a snapshot into the devices
  park          moves a model's weights from its devices to host memory
  unpark        brings them back
  drop          takes a region's memory away: a model's weights, or a KV pool

"""
MAIN += RUN_DIR_WORDS
MAIN += """\
So may --device; without it: all devices that `gms` was started for. Where there are several models, put, clear, get,
verify, save, restore and layout take --region KEY.

examples:
  gmsctl --run-dir DIR status
  gmsctl status --device host:0 --json | jq -r .state     (FAILOVER_RUN_DIR is set)
  gmsctl layout --device host:0 | sort -k3n | tail

"""
MAIN += EXIT_CODES

STATUS = """\
exit codes:
  0  committed        there are weights (COMMITTED, RO)
  1  empty            there are none, and no process writes any (EMPTY)
  2  no server        none answers. (Readers go on without their GMS.)
  3  not yet          a process writes (RW), a layout is to be handed back (RECOVERING), or is in host memory (PARKED)
Of several devices the worst counts: 2 before 3, 3 before 1, 1 before 0. The code answers whether there are weights, as
that of lockctl status answers whether an engine is awake. So 1 is a no and not a failure: it is what a server says
until a process has written to it. A script that only wants the state asks for --json and takes no notice of the code.

fields of --json, one object a line for each device:
  state               EMPTY, RW, COMMITTED, RO, PARKED or RECOVERING
  device, generation, hash, bytes, slabs, tensors, free, capacity
  parked              regions whose weights lie in host memory, and how many bytes of it; host_memory: how many they may
  clients             engine_id, pid, region, doing (writing, reading, asleep, waiting, watching), since, wants, holds;
                      the first hundred of them
  clients_total       how many there are
  waiting_for         why the waiters wait, for people
  pending_drops       who has memory of a layout that is gone and was asked to drop it, for people
  events              how often each thing has happened since the server started (committed, handed_back, ...)
  alarms, server_incarnation, server_pid, since
  regions             all of them. Each: key, policy (shared: weights; exclusive: a KV pool), state,
                      since, generation, hash, bytes, slabs, keepers (processes that have descriptors of it), tensors;
                      of pools also owner, token, table_bytes, blocks (which a successor would find) of blocks_total,
                      doubt (why its contents are handed on to no process), adoptions, drops. The states of a pool are
                      EMPTY, MAKING, OWNED, FREE and AWAITED. With several models, state, generation and hash above are
                      those of the one that is furthest from being there, and bytes, slabs and tensors are those of all
Without a server: state NO_SERVER, error and, where it is known, device; so no script takes it for an empty device.

examples:
  gmsctl status
  gmsctl status --json | jq -r '[.device, .state, .generation] | @tsv'
  until gmsctl status >/dev/null; do sleep 1; done        # until all weights are committed
"""

LAYOUT = """\
A line for each tensor: slab, offset in it, bytes, dtype, shape, name. With --json a line is an object: device, name,
dtype, shape, slab, offset, bytes, stride, kind.

exit codes: 0 there is a layout; 1 there is none (of several devices: of one of them); 2 no server

examples:
  gmsctl layout --device host:0 | head
  gmsctl layout --json | jq -r 'select(.dtype == "bfloat16") | .name'
"""

PING = """\
Each time a new connection and a round trip to each server, so it says what a client would find. All servers are asked
at the same time, and each has --timeout-s to answer: give a probe that runs this a second more.

exit codes: 0 all answered, each time; 2 one did not

examples:
  gmsctl ping                                 as a startup or readiness probe of the container
  gmsctl ping --device host:0 --count 10 --interval 0.5
"""

HISTORY = """\
Each server keeps its last thousand events in memory; the log has them all. With --json each line is one event
(device, at, event, detail).

examples:
  gmsctl history
  gmsctl history --device host:0 --last 20
  gmsctl history --json | jq 'select(.event == "committed")'
"""

WATCH = """\
Says when a server goes away and when it is back; ends with Ctrl-C. With --json each line is the object of
`status --json` and the time (`at`); without a server: state NO_SERVER.

examples:
  gmsctl watch
  gmsctl watch --json | jq -r '[.at, .device, .state] | @tsv'
"""

DROP = """\
On all devices that have it. Of a model: nothing may read or write its weights; processes that sleep are asked to let
go of them. Of a pool: its owner must have ended; the next engine begins with an empty one. That it is given up is on
disk before its memory goes. Then this waits until no process has the memory any more. On host memory the device itself
says so; on a GPU, which can't be asked, the processes do. With --json an object for each device: device, key, bytes,
seen, still.

exit codes: 0 given up, and gone, or there was nothing; 1 refused (it is read, written or owned, or there is no such
            region); 2 no server; 3 given up, and a process that is named has still to let go of it

examples:
  gmsctl status --json | jq -r '.regions[] | [.key, .state, .bytes] | @tsv'
  gmsctl drop kv-0 --device host:0
"""
