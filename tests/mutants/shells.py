"""Mutants of the shells: rules that only real processes can show. Each names the tests that must fail."""

from tests.mutants.rules import Mutant

RULES = "tests/chaos/test_shell_rules.py"
LIFE_FILES = "tests/chaos/test_life_files.py"
SOCKETS = "sidecar/sockets.py"
SECCOMP = "tests/chaos/test_seccomp.py"
BOUNDS = "tests/gateway/test_bounds.py"

SHELLS = (
    Mutant(
        "hindrances-are-told",
        "what keeps callers out, or keeps a grant from them, is an alarm while it lasts",
        (("sidecar/shell.py", "                self.feed(Hindered(hindrance))\n", "                pass\n"),),
        tests=("tests/sidecar/test_shell.py", "tests/chaos/test_hindered.py"),
    ),
    Mutant(
        "descriptors-are-looked-for",
        "a server that had none left sees by itself that it has some again",
        (
            (
                "sidecar/connections.py",
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
                "sidecar/http_requests.py",
                "        self._let_go()\n        self._parser = None\n        self._ask, self._go_on = anybody, nothing\n",
                "        self._bodies.hold(self._client, -self._held)\n",
            ),
        ),
        tests=("tests/sidecar/test_http_requests.py", BOUNDS),
    ),
    Mutant(
        "keys-before-bodies",
        "only what has a key is read on",
        (("gateway/server.py", "errors.body, settings.limits, self.let_in)", "errors.body, settings.limits)"),),
        tests=(f"{BOUNDS}::test_without_a_key_nothing_of_a_body_is_read",),
    ),
    Mutant(
        "leaving-is-noticed",
        "a client that has closed its sending half is looked at until it has its answer",
        (("sidecar/http_server.py", "            self._transport.write(BEGINNING)\n", "            pass\n"),),
        tests=(f"{BOUNDS}::test_a_client_that_leaves_before_the_first_byte_is_noticed_in_each_version",),
    ),
    Mutant(
        "unread-is-cut",
        "a client that never reads is cut",
        (
            (
                "sidecar/http_server.py",
                "        return now >= self._stuck_since + self._server.limits.unread_s\n",
                "        return False\n",
            ),
        ),
        tests=(f"{BOUNDS}::test_a_client_that_never_reads_is_cut",),
    ),
    Mutant(
        "cloexec",
        "received descriptors are close-on-exec",
        (("sidecar/frames.py", "_CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)", "_CONTROL_BYTES)"),),
        tests=("tests/sidecar/test_frames.py", RULES),
    ),
    Mutant(
        "probe-takes-nothing",
        "a life lock is looked at, never taken",
        (
            (
                "sidecar/lifelock.py",
                "answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _ANY_LOCK)",
                "fd = os.open(self.path, os.O_RDWR)\n            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _ANY_LOCK)\n            answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _READ_LOCK)",
            ),
        ),
        tests=("tests/sidecar/test_lifelock.py", RULES),
    ),
    Mutant(
        "life-files-are-looked-at-first",
        "what somebody sends as a life file is opened only if it is one: a FIFO would make the server wait for ever",
        (
            (
                "sidecar/lifelock.py",
                "        if not stat.S_ISREG(os.fstat(fd).st_mode):\n            raise NoLifeFile(",
                "        if False:\n            raise NoLifeFile(",
            ),
            ("sidecar/lifelock.py", "os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK", "os.O_RDONLY | os.O_CLOEXEC"),
        ),
        tests=(LIFE_FILES,),
    ),
    Mutant(
        "life-files-that-are-not-looked-at",
        "more old life files than the server looks at: nothing proves the end of their incarnation",
        (
            (
                "lockserver/server.py",
                "            if effect.incarnation in self._unseen_lives:\n",
                "            if False:\n",
            ),
        ),
        tests=(f"{LIFE_FILES}::test_more_old_life_files_than_are_looked_at_withhold_the_proof",),
    ),
    Mutant(
        "watches-that-run-out-later",
        "where the kernel stops telling of the way to the server's directory the server looks by itself, and says so",
        (("sidecar/shell.py", "why, blind = watch.why_not, blind", 'why, blind = "", blind'),),
        tests=("tests/chaos/test_no_inotify.py::test_watches_that_run_out_while_the_server_serves_are_an_alarm_too",),
    ),
    Mutant(
        "only-its-own-life-files",
        "only a process of an incarnation shows life files of it",
        (
            (
                "lockserver/server.py",
                "            if why:\n                close_all(descriptors)",
                "            if False:\n                close_all(descriptors)",
            ),
        ),
        tests=(LIFE_FILES,),
    ),
    Mutant(
        "descriptors-that-cant-go-now-wait",
        "what the kernel refuses because too many descriptors are under way waits: here it costs the connection",
        (
            (
                "sidecar/frames.py",
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
                "sidecar/connections.py",
                "            connection.channel.flush()\n        except (PeerTooSlow, OSError) as error:",
                "            connection.channel.flush()\n        except PeerTooSlow as error:",
            ),
        ),
        tests=("tests/sidecar/test_shell.py",),
    ),
    Mutant(
        "arming-order",
        "pidfds are armed when a process joins, not at the grant",
        (
            (
                "lockserver/incarnations.py",
                "            self.context.out.append(WatchDeath(peer.process))\n",
                "            pass\n",
            ),
        ),
        tests=("tests/lockserver/test_rules.py", RULES),
    ),
    Mutant(
        "listen-before-name",
        "the socket has its name only once it listens",
        (
            (
                SOCKETS,
                "                listener.bind(address)\n",
                "                listener.bind(address)\n"
                "            os.rename(early, self.path)\n"
                "            __import__('time').sleep(0.2)\n"
                "            early = self.path\n",
            ),
            (SOCKETS, "            os.rename(early, self.path)\n        except", "        except"),
        ),
        tests=(RULES,),
    ),
    Mutant(
        "parent-check",
        "a child armed after its parent's death ends itself",
        (("sidecar/process_setup.py", "    if gone:\n", "    if False:\n"),),
        tests=(RULES,),
    ),
    Mutant(
        "rename",
        "the holder file is replaced, never written over",
        (("sidecar/durable.py", 'self._spare = f"{name}.spare"', "self._spare = name"),),
        tests=(RULES,),
    ),
    Mutant(
        "one-server",
        "one server per directory",
        (("sidecar/durable.py", "            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", "            pass\n"),),
        tests=(RULES,),
    ),
    Mutant(
        "late-event",
        "a late event of a closed connection is nobody's death",
        (("sidecar/processes.py", "            if not peers.is_dead(pidfd):\n", "            if False:\n"),),
        tests=(RULES,),
    ),
    Mutant(
        "refused-signals",
        "a profile that refuses pidfd_send_signal is told from another PID namespace, and ends no server",
        (("sidecar/peers.py", "        if _signals_are_refused():\n", "        if False:\n"),),
        tests=(SECCOMP,),
    ),
    Mutant(
        "refused-pidfd-open",
        "where pidfd_open is refused the kernel names this process as well as its peers",
        (
            (
                "sidecar/peers.py",
                "named = None if error.errno in _NO_ROOM else _named_by_the_kernel()",
                "named = None",
            ),
            ("sidecar/peers.py", "        if error.errno in _NO_ROOM:\n            raise\n", "        raise\n"),
        ),
        tests=(SECCOMP,),
    ),
    Mutant(
        "no-inotify",
        "a server without inotify looks every second",
        (("sidecar/shell.py", "LOOK_EVERY_S if why_not or blind else math.inf", "math.inf"),),
        tests=("tests/chaos/test_no_inotify.py",),
    ),
    Mutant(
        "no-inodes",
        "the old socket's inode goes first where there is none",
        ((SOCKETS, "            if error.errno not in _NO_INODES:\n", "            if True:\n"),),
        tests=("tests/chaos/test_no_inodes.py",),
    ),
    Mutant(
        "driver-in-a-thread",
        "a driver that hangs as it is loaded keeps no server from starting",
        (("lockserver/memory.py", "found.get(timeout=patience_s)", "found.get()"),),
        tests=("tests/chaos/test_driver_hangs.py",),
    ),
)
