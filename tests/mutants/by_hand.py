"""The mutants that no program finds: rules of shells, which only real processes show, and of pure files what is no guard
(a number, a table's row, which of two things is counted). Each takes one rule out of the source, by replacing text.

A text that isn't found exactly once is an error, so that this list can't fall behind the source
(`tests/test_mutants_fit.py`). `seeds`: the simulator must find it within so many schedules, or else the directed tests
(`or_tests`). `tests`: the tests that must fail, for rules that the simulator doesn't run.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    without: str
    edits: tuple[tuple[str, str, str], ...]
    """(file, text, what it becomes)"""
    seeds: int = 350
    world: str = "lock"
    """Which simulator has to find it."""
    tests: tuple[str, ...] = ()
    or_tests: tuple[str, ...] = ()
    """What must fail where the simulator has found nothing: for rules that need many coincidences."""
    in_process: bool = False
    """These tests start no process: the changed module needs to be in their own memory only, which is quicker."""


OF_THE_LOCK = (
    "tests/lockserver/test_rules.py",
    "tests/lockserver/test_recovery_table.py",
    "tests/lockserver/test_client_machine.py",
    "tests/lockserver/test_memory.py",
    "tests/lockserver/test_overdue.py",
    "tests/lockserver/test_switchover.py",
    "tests/lockserver/test_found_by_the_simulator.py",
    "tests/lockserver/test_untold.py",
    "tests/lockserver/test_names.py",
    "tests/sidecar/test_disk_writes.py",
)

BY_HAND = (
    Mutant(
        "pidfds",
        "every member's pidfd is awaited: here only the main process's",
        (
            (
                "evidence/rules/incarnation.py",
                "        return all(member.dead for member in self.members.values())\n",
                "        return all(member.dead for member in self.members.values() if member.number == MAIN)\n",
            ),
            (
                "evidence/rules/incarnation.py",
                "        return any(member.seen_alive for member in self.members.values())\n",
                "        return any(member.seen_alive for member in self.members.values() if member.number == MAIN)\n",
            ),
        ),
        or_tests=OF_THE_LOCK,
    ),
    Mutant(
        "persist-before-grant",
        "first on disk, then told",
        (
            (
                "lockserver/rules/lock.py",
                "        if self.phase is not Phase.HELD or self.recorded_by is None or self.recorded_by > on_disk:",
                "        if False:",
            ),
            (
                "lockserver/rules/machine.py",
                "        self.context.out.append(e.Persist(number, record))",
                "        for lock in self.succession.locks:\n            if lock.phase is Phase.GRANTING:\n                self._granted(lock)\n        self.context.out.append(e.Persist(number, record))",
            ),
        ),
        or_tests=OF_THE_LOCK,
    ),
    Mutant(
        "claim-on-disk",
        "a claim is on disk before its holder is welcomed, also the second time",
        (
            (
                "lockserver/rules/machine.py",
                "        after = max((lock.recorded_by or 0 for lock in held), default=0)",
                "        after = 0",
            ),
            (
                "lockserver/rules/lock.py",
                "        if self.phase is not Phase.HELD or self.recorded_by is None or self.recorded_by > on_disk:",
                "        if False:",
            ),
        ),
        or_tests=OF_THE_LOCK,
    ),
    Mutant(
        "token-across-restarts",
        "tokens outlive the server",
        (
            (
                "lockserver/rules/machine.py",
                "succession.newest_token, succession.token_floor = record.token if record is not None else 0, event.token_floor",
                "succession.newest_token, succession.token_floor = 0, 0",
            ),
        ),
        or_tests=OF_THE_LOCK,
    ),
    Mutant(
        "token-floor",
        "tokens outlive a lost file",
        (
            (
                "lockserver/rules/machine.py",
                "record.token if record is not None else 0, event.token_floor",
                "record.token if record is not None else 0, 0",
            ),
        ),
        or_tests=OF_THE_LOCK,
    ),
    Mutant(
        "heard-by-copies",
        "what a waiter tells of a grant ends nobody by itself",
        (
            (
                "lockserver/rules/machine.py",
                "        self.succession.hear_of(message.mark)\n",
                "        self.succession.learn_of(message.mark)\n",
            ),
        ),
        or_tests=OF_THE_LOCK,
    ),
    Mutant(
        "names-go-with-the-grant",
        "the holder gets a copy of the names",
        (
            (
                "lockserver/rules/machine.py",
                "        self.context.out.append(e.Send(conn, granted, names=lock is self.active))",
                "        self.context.out.append(e.Send(conn, granted))",
            ),
        ),
        or_tests=OF_THE_LOCK,
    ),
    Mutant(
        "presumed-dead-ends-first",
        "who may be presumed dead ends before the window does",
        (("lockserver/rules/client_machine.py", "PRESUMED_DEAD_SHARE = 0.8", "PRESUMED_DEAD_SHARE = 8.0"),),
        or_tests=OF_THE_LOCK,
    ),
    Mutant(
        "gms-believes-sizes",
        "what a descriptor that comes back is, the memory's maker says",
        (
            (
                "gms/shell/server.py",
                "                    self.memory.release(self.memory.import_(descriptor, size))  # of this device, and of that size\n",
                "                    pass\n",
            ),
        ),
        tests=("tests/gms/test_shell.py",),
    ),
    Mutant(
        "gms-children-live-on",
        "no server outlives its supervisor",
        (("gms/shell/device_process.py", "    process_setup.die_with_parent(settings.parent_pid)\n", ""),),
        tests=("tests/gms/test_supervisor.py",),
    ),
    Mutant(
        "gms-one-dies-alone",
        "one server's death ends all",
        (
            (
                "gms/shell/supervisor.py",
                '                self.loop.stopping = f"the server of {device} died: {how}"\n',
                "",
            ),
        ),
        tests=("tests/gms/test_supervisor.py",),
    ),
    Mutant(
        "gms-one-per-device",
        "a device has one GMS at a time, whatever the run directories are",
        (("gms/shell/supervisor.py", "            names.take(device, key)\n", "            pass\n"),),
        tests=("tests/gms/test_attacks.py::test_a_device_has_one_gms_at_a_time_and_the_second_is_told_who_has_it",),
    ),
    Mutant(
        "gms-only-files-are-replaced",
        "only a regular file is replaced by `gmsctl get`",
        (("gms/shell/transfer.py", "    if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):\n", "    if False:\n"),),
        tests=("tests/gms/test_transfer.py::test_a_pipe_is_written_to",),
    ),
    Mutant(
        "gms-client-callbacks",
        "a callback that raises ends nothing",
        (
            (
                "sidecar/machine/client_shell.py",
                "            callback()\n        except BaseException:\n",
                "            callback()\n        except GeneratorExit:\n",
            ),
        ),
        tests=("tests/gms/test_client_attacks.py::test_a_callback_that_raises_ends_nothing",),
    ),
    Mutant(
        "pools-tokens-outlive-the-server",
        "a new server knows the newest token",
        (
            (
                "gms/rules/pools.py",
                "        self.token, self.dropped = record.token,",
                "        self.token, self.dropped = 0,",
            ),
        ),
        tests=("tests/gms/test_pool_machine.py",),
        in_process=True,
    ),
    Mutant(
        "pools-what-cant-be-told-is-doubted",
        "an owner of which nothing can be told leaves contents that nobody gets",
        (("gms/rules/exclusive.py", 'which owned it", "unproven"\n', 'which owned it"[:0], "unproven"\n'),),
        tests=("tests/gms/test_pool_rules.py",),
        in_process=True,
    ),
    Mutant(
        "pools-second-death-by-a-clock-that-is-not-set",
        "how long an owner lived does not go by the clock on the wall",
        (("gms/rules/exclusive.py", "doubt_of(owner, self.context.now)", "doubt_of(owner, self.context.wall)"),),
        tests=("tests/gms/test_pool_rules.py",),
        in_process=True,
    ),
    Mutant(
        "pools-late-writes-are-looked-for",
        "a process without a filter is not believed that it can't have io_uring",
        (("gms/shell/server.py", "message.writes_end and not self._finds_io_uring(pid)", "message.writes_end"),),
        tests=(
            "tests/gms/test_late_writes.py::test_who_says_that_it_cant_have_io_uring_and_has_no_filter_is_not_believed",
        ),
    ),
    Mutant(
        "gms-live-knows-the-devices",
        "`/live` says that a device's server hangs",
        (("gms/shell/metrics.py", "text(supervisor.not_well, 503) if supervisor.not_well else ", ""),),
        tests=("tests/gms/test_silence.py::test_live_says_which_server_hangs_until_it_answers",),
    ),
    Mutant(
        "pools-adopted-on-disk-first",
        "token and owner are on disk before a claim is answered",
        (
            (
                "gms/rules/exclusive.py",
                "            self.write(becomes, Adopted(client.conn, claim.number, self.pool.generation, owner))\n",
                "            self._adopted(Adopted(client.conn, claim.number, self.pool.generation, owner))\n",
            ),
        ),
        tests=("tests/gms/test_pool_machine.py",),
        in_process=True,
    ),
    Mutant(
        "pools-released-on-disk-first",
        "a release is on disk before it is answered",
        (
            (
                "gms/rules/exclusive.py",
                "        self.write(becomes, Released(client.conn))\n",
                "        self._released(Released(client.conn))\n",
            ),
        ),
        tests=("tests/gms/test_pool_machine.py",),
        in_process=True,
    ),
    Mutant(
        "gms-number-on-disk",
        "a writer's generation is on disk before it is let in",
        (
            (
                "gms/rules/shared.py",
                "        self.write(becomes, Admit(client.conn, request.number, generation, replaces))\n",
                "        self._admit(Admit(client.conn, request.number, generation, replaces))\n",
            ),
        ),
        seeds=1500,
        world="gms",
    ),
    Mutant(
        "gms-commit-on-disk",
        "a commit is on disk before it is acknowledged",
        (
            (
                "gms/rules/shared.py",
                "            self.write(self.weights.record_of(layout), Acknowledge(layout))\n",
                "            self._acknowledge(layout)\n",
            ),
        ),
        seeds=1500,
        world="gms",
    ),
    Mutant(
        "hindrances-are-told",
        "what keeps callers out, or keeps a grant from them, is an alarm while it lasts",
        (
            (
                "sidecar/machine/shell.py",
                "                self.feed(context.Hindered(hindrance))\n",
                "                pass\n",
            ),
        ),
        tests=("tests/sidecar/test_shell.py", "tests/chaos/test_hindered.py"),
    ),
    Mutant(
        "descriptors-are-looked-for",
        "a server that had none left sees by itself that it has some again",
        (
            (
                "sidecar/wire/connections.py",
                "            self._on_connect(0)  # the kernel",
                "            pass  # the kernel",
            ),
        ),
        tests=("tests/chaos/test_hindered.py",),
    ),
    Mutant(
        "bodies-go-with-their-connection",
        "what is held of a client goes with its connection",
        (
            (
                "sidecar/http/http_requests.py",
                "        self._let_go()\n        self._parser = None\n        self._ask, self._go_on = anybody, nothing\n",
                "        self._bodies.hold(self._client, -self._held)\n",
            ),
        ),
        tests=("tests/sidecar/test_http_requests.py", "tests/gateway/test_bounds.py"),
    ),
    Mutant(
        "keys-before-bodies",
        "only what has a key is read on",
        (("gateway/shell/server.py", "errors.body, settings.limits, self.let_in)", "errors.body, settings.limits)"),),
        tests=("tests/gateway/test_bounds.py::test_without_a_key_nothing_of_a_body_is_read",),
    ),
    Mutant(
        "leaving-is-noticed",
        "a client that has closed its sending half is looked at until it has its answer",
        (
            (
                "sidecar/http/http_server.py",
                "            self._transport.write(BEGINNING[self._nudged : self._nudged + 1])\n",
                "            pass\n",
            ),
        ),
        tests=(
            "tests/gateway/test_bounds.py::test_a_client_that_leaves_before_the_first_byte_is_noticed_in_each_version",
        ),
    ),
    Mutant(
        "unread-is-cut",
        "a client that never reads is cut",
        (
            (
                "sidecar/http/http_server.py",
                "        return now >= self._stuck_since + self._server.limits.unread_s\n",
                "        return False\n",
            ),
        ),
        tests=("tests/gateway/test_bounds.py::test_a_client_that_never_reads_is_cut",),
    ),
    Mutant(
        "cloexec",
        "received descriptors are close-on-exec",
        (("sidecar/wire/frames.py", "_CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)", "_CONTROL_BYTES)"),),
        tests=("tests/sidecar/test_frames.py", "tests/chaos/test_shell_rules.py"),
    ),
    Mutant(
        "probe-takes-nothing",
        "a life lock is looked at, never taken",
        (
            (
                "sidecar/kernel/lifelock.py",
                "answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _ANY_LOCK)",
                "fd = os.open(self.path, os.O_RDWR)\n            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _ANY_LOCK)\n            answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _READ_LOCK)",
            ),
        ),
        tests=("tests/sidecar/test_lifelock.py", "tests/chaos/test_shell_rules.py"),
    ),
    Mutant(
        "life-files-are-looked-at-first",
        "what somebody sends as a life file is opened only if it is one: a FIFO would make the server wait for ever",
        (
            (
                "sidecar/kernel/lifelock.py",
                "        if not stat.S_ISREG(os.fstat(fd).st_mode):\n            raise NoLifeFile(",
                "        if False:\n            raise NoLifeFile(",
            ),
            ("sidecar/kernel/lifelock.py", "os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK", "os.O_RDONLY | os.O_CLOEXEC"),
        ),
        tests=("tests/chaos/test_life_files.py",),
    ),
    Mutant(
        "life-files-that-are-not-looked-at",
        "more old life files than the server looks at: nothing proves the end of their incarnation",
        (
            (
                "evidence/shell/shell.py",
                "            if effect.incarnation in self._unseen_lives:\n",
                "            if False:\n",
            ),
        ),
        tests=("tests/chaos/test_life_files.py::test_more_old_life_files_than_are_looked_at_withhold_the_proof",),
    ),
    Mutant(
        "watches-that-run-out-later",
        "where the kernel stops telling of the way to the server's directory the server looks by itself, and says so",
        (("sidecar/machine/shell.py", "why, blind = watch.why_not, blind", 'why, blind = "", blind'),),
        tests=("tests/chaos/test_no_inotify.py::test_watches_that_run_out_while_the_server_serves_are_an_alarm_too",),
    ),
    Mutant(
        "only-its-own-life-files",
        "only a process of an incarnation shows life files of it",
        (
            (
                "evidence/shell/shell.py",
                "            if why:\n                close_all(descriptors)",
                "            if False:\n                close_all(descriptors)",
            ),
        ),
        tests=("tests/chaos/test_life_files.py",),
    ),
    Mutant(
        "descriptors-that-cant-go-now-wait",
        "what the kernel refuses because too many descriptors are under way waits: here it costs the connection",
        (
            (
                "sidecar/wire/frames.py",
                "            self.held_up = True\n            return 0\n",
                '            raise PeerTooSlow("too many descriptors") from error\n',
            ),
        ),
        tests=("tests/sidecar/test_shell.py",),
    ),
    Mutant(
        "what-cant-be-sent-costs-one",
        "a send that fails costs the connection that it was for, and not the server its life",
        (
            (
                "sidecar/wire/connections.py",
                "            connection.channel.flush()\n        except (PeerTooSlow, OSError) as error:",
                "            connection.channel.flush()\n        except PeerTooSlow as error:",
            ),
        ),
        tests=("tests/sidecar/test_shell.py",),
    ),
    Mutant(
        "listen-before-name",
        "the socket has its name only once it listens",
        (
            (
                "sidecar/wire/sockets.py",
                "                listener.bind(address)\n",
                "                listener.bind(address)\n            os.rename(early, self.path)\n            __import__('time').sleep(0.2)\n            early = self.path\n",
            ),
            ("sidecar/wire/sockets.py", "            os.rename(early, self.path)\n        except", "        except"),
        ),
        tests=("tests/chaos/test_shell_rules.py",),
    ),
    Mutant(
        "parent-check",
        "a child armed after its parent's death ends itself",
        (("sidecar/kernel/process_setup.py", "    if os.getppid() != parent_pid:\n", "    if False:\n"),),
        tests=("tests/chaos/test_shell_rules.py",),
    ),
    Mutant(
        "rename",
        "the holder file is replaced, never written over",
        (("sidecar/kernel/durable.py", 'self._spare = f"{name}.spare"', "self._spare = name"),),
        tests=("tests/chaos/test_shell_rules.py",),
    ),
    Mutant(
        "one-server",
        "one server per directory",
        (
            (
                "sidecar/kernel/durable.py",
                "            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
                "            pass\n",
            ),
        ),
        tests=("tests/chaos/test_shell_rules.py",),
    ),
    Mutant(
        "late-event",
        "a late event of a closed connection is nobody's death",
        (("sidecar/kernel/processes.py", "            if not peers.is_dead(pidfd):\n", "            if False:\n"),),
        tests=("tests/chaos/test_shell_rules.py",),
    ),
    Mutant(
        "refused-signals",
        "a profile that refuses pidfd_send_signal is told from another PID namespace, and ends no server",
        (("sidecar/kernel/peers.py", "        if _signals_are_refused():\n", "        if False:\n"),),
        tests=("tests/chaos/test_seccomp.py",),
    ),
    Mutant(
        "refused-pidfd-open",
        "where pidfd_open is refused the kernel names this process as well as its peers",
        (
            (
                "sidecar/kernel/peers.py",
                "named = None if error.errno in _NO_ROOM else _named_by_the_kernel()",
                "named = None",
            ),
            ("sidecar/kernel/peers.py", "        if error.errno in _NO_ROOM:\n            raise\n", "        raise\n"),
        ),
        tests=("tests/chaos/test_seccomp.py",),
    ),
    Mutant(
        "no-inotify",
        "a server without inotify looks every second",
        (("sidecar/machine/shell.py", "LOOK_EVERY_S if why_not or blind else math.inf", "math.inf"),),
        tests=("tests/chaos/test_no_inotify.py",),
    ),
    Mutant(
        "no-inodes",
        "the old socket's inode goes first where there is none",
        (("sidecar/wire/sockets.py", "            if error.errno not in _NO_INODES:\n", "            if True:\n"),),
        tests=("tests/chaos/test_no_inodes.py",),
    ),
    Mutant(
        "driver-in-a-thread",
        "a driver that hangs as it is loaded keeps no server from starting",
        (("lockserver/shell/memory.py", "found.get(timeout=patience_s)", "found.get()"),),
        tests=("tests/chaos/test_driver_hangs.py",),
    ),
    Mutant(
        "engine-says-that-it-may-have-io-uring",
        "a shim that can't keep its engine from io_uring says so",
        (("engine_shim/__main__.py", "        if not io_uring.why_impossible():\n", "        if False:\n"),),
        tests=(
            "tests/engine/test_orphans.py::test_an_engine_that_cant_be_kept_from_io_uring_runs_all_the_same_and_its_shim_says_so",
        ),
    ),
    Mutant(
        "engine-no-way-round-waking",
        "4: nobody serves who has not woken",
        (
            (
                "engine_shim/rules/lifecycle.py",
                "    (State.STANDBY, State.WAKING),\n",
                "    (State.STANDBY, State.WAKING),\n    (State.STANDBY, State.ACTIVE),\n",
            ),
        ),
        tests=("tests/engine/test_lifecycle.py", "tests/engine/test_lifecycle_rules.py", "tests/engine/test_probes.py"),
        in_process=True,
    ),
    Mutant(
        "shim-adopts",
        "orphans of an engine become the shim's",
        (("engine_shim/shell/shim.py", "        process_setup.adopt_orphans()\n", ""),),
        tests=(
            "tests/engine/test_shim_rules.py::test_whatever_an_engine_has_started_ends_with_it_and_only_then_comes_the_next",
        ),
    ),
    Mutant(
        "shim-descendants",
        "whatever an engine has started is killed, in whatever session",
        (
            (
                "engine_shim/shell/shim.py",
                "            process_tree.kill(process_tree.descendants(os.getpid()), 0)\n",
                "            pass\n",
            ),
        ),
        tests=(
            "tests/engine/test_shim_rules.py::test_whatever_an_engine_has_started_ends_with_it_and_only_then_comes_the_next",
        ),
    ),
    Mutant(
        "shim-no-child-left",
        "the next start waits until no child is left",
        (
            (
                "engine_shim/shell/shim.py",
                "        left = int(self._collect())\n",
                "        self._collect()\n        left = 0\n",
            ),
            (
                "engine_shim/shell/shim.py",
                "            process_tree.kill(process_tree.descendants(os.getpid()), 0)\n",
                "            pass\n",
            ),
        ),
        tests=(
            "tests/engine/test_shim_rules.py::test_whatever_an_engine_has_started_ends_with_it_and_only_then_comes_the_next",
        ),
    ),
    Mutant(
        "shim-pidfds",
        "a registered process is killed by its pidfd, whoever started it",
        (("engine_shim/shell/shim.py", "            self.processes.kill(known)\n", "            pass\n"),),
        tests=(
            "tests/engine/test_shim_rules.py::test_a_registered_process_that_nobody_here_has_started_ends_with_the_tree",
        ),
    ),
    Mutant(
        "shim-on-death",
        "the end of a registered process is seen",
        (
            (
                "engine_shim/shell/shim.py",
                "        self.processes.on_death(number, lambda: self._on_death(number))\n",
                "",
            ),
        ),
        tests=(
            "tests/engine/test_shim_rules.py::test_the_end_of_any_registered_process_is_seen_and_is_the_end_of_all",
        ),
    ),
    Mutant(
        "shim-which-start",
        "a process of another start is turned away",
        (
            (
                "engine_shim/shell/shim.py",
                "        self.feed(e.Registered(conn, number, hello.start, hello.main))\n",
                "        self.feed(e.Registered(conn, number, self.machine.number, hello.main))\n",
            ),
        ),
        tests=("tests/engine/test_shim_rules.py::test_one_hello_of_this_protocol_for_this_start_and_one_main_process",),
    ),
    Mutant(
        "presence-main-armed",
        "the main process dies with its shim",
        (
            (
                "engine_shim/membership.py",
                "def arm_main() -> None:\n",
                "def arm_main() -> None:\n    process_setup.forbid_core_dumps()\n    return\n",
            ),
        ),
        tests=(
            "tests/engine/test_shim_rules.py::test_a_shim_that_is_killed_takes_its_engine_with_it_and_leaves_no_core",
        ),
    ),
    Mutant(
        "presence-armed",
        "a worker dies with its parent",
        (
            (
                "engine_shim/membership.py",
                "    process_setup.die_with_parent(parent if parent not in (shim_pid, 1) else -1)\n",
                "",
            ),
        ),
        tests=(
            "tests/engine/test_shim_rules.py::test_a_worker_is_armed_is_known_to_the_shim_and_counts_with_the_lock_before_it_goes_on",
        ),
    ),
    Mutant(
        "presence-orphan",
        "one whose parent was gone before ends itself",
        (
            (
                "engine_shim/membership.py",
                "die_with_parent(parent if parent not in (shim_pid, 1) else -1)",
                "die_with_parent(parent)",
            ),
        ),
        tests=("tests/engine/test_shim_rules.py::test_a_process_whose_parent_ended_before_it_was_armed_ends_itself",),
    ),
    Mutant(
        "kv-not-before-the-grant",
        "no KV cache before the wake",
        (
            (
                "reference_engine/rank.py",
                "        self.part = Part(",
                "        self._cache.allocate()\n        self.part = Part(",
            ),
        ),
        tests=("tests/reference_engine/test_device.py::test_two_engines_share_one_copy_and_answer_alike",),
    ),
    Mutant(
        "weights-role",
        "a shadow never writes",
        (
            (
                "reference_engine/store.py",
                "self.client.write_or_read(timeout_s) if writes else self.client.read(timeout_s)",
                "self.client.write_or_read(timeout_s)",
            ),
        ),
        tests=("tests/reference_engine/test_device.py::test_a_shadow_waits_for_a_writer_and_never_writes",),
    ),
    Mutant(
        "weights-read-only-alone",
        "weights are read-only, alone, too",
        (("reference_engine/store.py", "            array.flags.writeable = False\n", "            pass\n"),),
        tests=("tests/engine/test_device_rules.py::test_weights_are_read_only",),
    ),
    Mutant(
        "way-registers-first",
        "it registers with the lock before anything touches a device",
        (
            ("engine_shim/shell/main_process.py", "        lock.start()\n", ""),
            (
                "engine_shim/shell/main_process.py",
                '            with self._timed("sleep"):\n',
                '            lock.start()\n            with self._timed("sleep"):\n',
            ),
        ),
        tests=("tests/engine/test_main_process_rules.py",),
        in_process=True,
    ),
    Mutant(
        "way-wakes-with-the-lock",
        "it wakes only with the lock",
        (
            (
                "engine_shim/shell/main_process.py",
                "        grant = lock.acquire(",
                "        engine.wake()\n        grant = lock.acquire(",
            ),
            (
                "engine_shim/shell/main_process.py",
                "            engine.wake()\n        at =",
                "            pass\n        at =",
            ),
        ),
        tests=("tests/engine/test_main_process_rules.py",),
        in_process=True,
    ),
    Mutant(
        "way-permit",
        "it initialises with the permit",
        (("engine_shim/shell/main_process.py", "        with lock.permit():\n", "        if True:\n"),),
        tests=("tests/engine/test_main_process_rules.py",),
        in_process=True,
    ),
    Mutant(
        "way-withdraws",
        "the endpoint is withdrawn on the way out",
        (("engine_shim/shell/main_process.py", '                self.lock.serving("")\n', ""),),
        tests=("tests/engine/test_main_process_rules.py",),
        in_process=True,
    ),
    Mutant(
        "way-lost",
        "who has lost the lock ends",
        (("engine_shim/shell/main_process.py", "        client.end_process(why)\n", "        pass\n"),),
        tests=("tests/engine/test_main_process_rules.py",),
        in_process=True,
    ),
    Mutant(
        "tree-kill-each",
        "and each that was found",
        (("sidecar/kernel/process_tree.py", "            os.kill(pid, signal.SIGKILL)\n", "            pass\n"),),
        tests=("tests/engine/test_tree_rules.py", "tests/sidecar/test_process_tree.py"),
        in_process=True,
    ),
    Mutant(
        "left-ours",
        "only what a process of our tree has is ours",
        (
            (
                "engine_shim/shell/shm_cleanup.py",
                "for inode in _files_of(pid, device, set(wanted))}",
                "for inode in wanted}",
            ),
        ),
        tests=("tests/engine/test_tree_rules.py", "tests/sidecar/test_process_tree.py"),
        in_process=True,
    ),
    Mutant(
        "left-inode",
        "another file of the same name stays",
        (
            (
                "engine_shim/shell/shm_cleanup.py",
                "os.lstat(self._directory / name).st_ino == inode",
                "os.lstat(self._directory / name).st_ino > 0",
            ),
        ),
        tests=("tests/engine/test_tree_rules.py", "tests/sidecar/test_process_tree.py"),
        in_process=True,
    ),
    Mutant(
        "way-binds-again",
        "a socket that was removed is bound again",
        (
            (
                "engine_shim/shell/main_process.py",
                '            elif order.what == "bind" and self.state == "active":\n',
                '            elif order.what == "bound" and self.state == "active":\n',
            ),
        ),
        tests=("tests/engine/test_attacks.py::test_a_socket_that_is_removed_under_an_engine_is_bound_again[toy]",),
    ),
    Mutant(
        "shim-makes-again",
        "the shim's own files are made again",
        (
            (
                "engine_shim/shell/own_files.py",
                "        if socket_is_there and self._lock.holds():\n            return made\n",
                "        return made\n",
            ),
        ),
        tests=("tests/engine/test_shim_rules.py::test_a_socket_that_was_removed_is_made_again_before_the_next_start",),
    ),
    Mutant(
        "kept-files-stay-while-it-starts",
        "files that change while the engine starts: nobody knows which of them vLLM has read",
        (("engine_shim/vllm_engine/contents.py", "    if stamps(args) != since.stamps:\n", "    if False:\n"),),
        tests=("tests/engine/test_vllm_contents.py",),
        in_process=True,
    ),
    Mutant(
        "kept-adapters-stay-until-the-wake",
        "an adapter that changes between start and wake is seen",
        (("engine_shim/vllm_engine/contents.py", " != since.adapter_stamps\n", " is None\n"),),
        tests=("tests/engine/test_vllm_contents.py",),
        in_process=True,
    ),
    Mutant(
        "kept-adapters-that-cant-be-looked-at",
        "an adapter that can't be looked at counts as changed",
        (("engine_shim/vllm_engine/contents.py", "        return True\n", "        return False\n"),),
        tests=("tests/engine/test_vllm_contents.py",),
        in_process=True,
    ),
    Mutant(
        "kept-published-last",
        "a record comes when its step has finished, not when it is planned",
        (
            (
                "engine_shim/kv/publishing.py",
                "        step.filled.append((block, self._table.generation(block), key, tokens))\n",
                "        step.filled.append((block, self._table.generation(block), key, tokens))\n        self.finished(step)\n",
            ),
        ),
        tests=("tests/kv/test_simulated.py",),
        in_process=True,
    ),
    Mutant(
        "kept-sum-covers-the-block",
        "a record is right in its own place only",
        (("engine_shim/kv/table.py", "_FIXED.pack(block, *[words", "_FIXED.pack(0, *[words"),),
        tests=("tests/kv/test_table.py",),
        in_process=True,
    ),
    Mutant(
        "kept-pools-are-a-fact",
        "a rank whose pool is new makes the digest another",
        (("engine_shim/kv/adoption.py", "dict(self.blocks), self.pools], sort_keys", "dict(self.blocks)], sort_keys"),),
        tests=("tests/kv/test_table.py",),
        in_process=True,
    ),
    Mutant(
        "kept-given-back-at-the-end",
        "an end in order gives back what a successor goes on with",
        (("engine_shim/shell/main_process.py", "            engine.leave()\n", "            pass\n"),),
        tests=("tests/engine/test_main_process_rules.py",),
        in_process=True,
    ),
    Mutant(
        "kept-says-that-it-hands-out",
        "whoever keeps records hears of a block before it is written",
        (
            (
                "reference_engine/kv_prefix.py",
                "        self.hand_out(block)\n        return block\n",
                "        return block\n",
            ),
        ),
        tests=("tests/reference_engine/test_prefixes.py",),
        in_process=True,
    ),
    Mutant(
        "kept-key-of-all-before",
        "a key stands for all tokens before its block's end",
        (("reference_engine/kv_prefix.py", "hashlib.sha256(before + text[", "hashlib.sha256(text["),),
        tests=("tests/reference_engine/test_prefixes.py",),
        in_process=True,
    ),
    Mutant(
        "kept-shared-stays",
        "a block that somebody has is not idle",
        (("reference_engine/kv_prefix.py", "            self._idle.pop(block, None)\n", "            pass\n"),),
        tests=("tests/reference_engine/test_prefixes.py",),
        in_process=True,
    ),
    Mutant(
        "kept-adopted-last",
        "what was adopted is the last to be written over",
        (
            (
                "reference_engine/kv_prefix.py",
                "        if self._blank:\n            block = self._blank.pop()\n        else:\n",
                "        if self._blank and not self._idle:\n            block = self._blank.pop()\n        else:\n",
            ),
        ),
        tests=("tests/reference_engine/test_prefixes.py",),
        in_process=True,
    ),
    Mutant(
        "gateway-cut",
        "an answer that ends with an error is cut: its body never ends as a whole one's does",
        (
            (
                "gateway/rules/delivery.py",
                "        return [*said, e.Cut(self._number)]\n",
                "        return [*said, e.End(self._number)]\n",
            ),
        ),
        tests=("tests/gateway/test_kinds.py::test_a_compared_answer_that_comes_out_otherwise_ends_with_an_error",),
        in_process=True,
    ),
    Mutant(
        "gateway-characters",
        "the engine is told how much of the text the client has in characters",
        (("gateway/rules/continuing.py", '"chars": len(text.decode("utf-8", "replace"))', '"chars": len(text)'),),
        tests=(
            "tests/gateway/test_broken_answers.py::test_a_break_anywhere_is_not_in_what_the_client_has[completion]",
        ),
        in_process=True,
    ),
    Mutant(
        "gateway-begins-where-the-client-stands",
        "an engine that goes on says nothing that the client has",
        (("reference_engine/answer.py", "        self._told = question.told\n", ""),),
        tests=(
            "tests/gateway/test_broken_answers.py::test_a_break_anywhere_is_not_in_what_the_client_has[completion]",
        ),
        in_process=True,
    ),
    Mutant(
        "gateway-goes-through",
        "an engine that goes on knows what the answer's tokens have begun",
        (
            (
                "reference_engine/answer.py",
                "            self._tail += self._detokenizer.push(token)\n",
                "            pass\n",
            ),
        ),
        tests=("tests/gateway/test_broken_answers.py::test_a_break_inside_a_character_is_mended_with_the_same_pieces",),
        in_process=True,
    ),
    Mutant(
        "gateway-the-clients-text",
        "an engine begins in the middle of an answer only if its text of the answer's tokens is the client's",
        (("reference_engine/asking.py", " or zlib.crc32(text.encode()) != begun.crc32:", ":"),),
        tests=(
            "tests/reference_engine/test_text.py::test_what_is_said_of_an_answers_beginning_is_believed_if_its_text_is_the_clients",
        ),
        in_process=True,
    ),
    Mutant(
        "gateway-choices-are-objects",
        "an answer whose choices are none is no answer",
        (("gateway/rules/answers.py", "Annotated[list[dict[str, msgspec.Raw]],", "Annotated[list[msgspec.Raw],"),),
        tests=("tests/gateway/test_kinds.py::test_what_is_no_answer_is_known_from_one",),
        in_process=True,
    ),
    Mutant(
        "gateway-byte-order-mark",
        "a stream that begins with a byte order mark keeps its first event",
        (("gateway/rules/sse.py", '    text = text.removeprefix(b"\\xef\\xbb\\xbf")  # a stream may begin so\n', ""),),
        tests=(
            "tests/gateway/test_broken_answers.py::test_an_event_is_the_same_however_its_lines_end_and_its_bytes_come",
        ),
        in_process=True,
    ),
    Mutant(
        "gateway-strangers-wait-in-a-few",
        "only so many requests that are put down to no client wait on a connection",
        (
            (
                "sidecar/http/http_requests.py",
                "            if len(self.ready) >= _MOST_UNCOUNTED:\n",
                "            if False:\n",
            ),
        ),
        tests=(
            "tests/sidecar/test_http_requests.py::test_only_so_many_requests_that_are_put_down_to_nobody_wait_on_one_connection",
        ),
        in_process=True,
    ),
)
