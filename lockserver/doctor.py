"""`lockctl doctor`: what the lock stands on, looked at one by one, and what to do where it is shaky. `failover doctor`
adds the rest of the pair (`engine_shim/cli/pair_doctor.py`).

It disturbs nothing: no lock is taken on a live file (that the filesystem keeps locks is tried in a scratch directory),
nothing is removed, and the server is asked for its status as by any observer. What it can't see it says so, and it
guesses nothing. Who holds which life file: `lifefiles.py`.
"""

import contextlib
import os
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, Queue

from evidence.shell.lifefiles import LifeFile, life_files
from lockserver.cli.status_text import size, why_unverified
from lockserver.observer import NoServer, Observer, ObserverError, ServerSilent
from lockserver.rules import messages as m
from lockserver.rules import record
from lockserver.shell.rundir import GUARD, HOLDER, LIFE, SOCKET, absolute
from sidecar.kernel import durable, io_uring, peers, process_state
from sidecar.kernel.filesystems import NETWORK, filesystem
from sidecar.kernel.lifelock import LifeLockError, LocksUnsupported, check_directory
from sidecar.kernel.path_watch import CannotWatch, PathWatch
from sidecar.terminal.extras import how_to_get
from sidecar.terminal.findings import Finding, Level, fail, ok, warn
from sidecar.terminal.names import incarnation_name

DRIVER_S = 5.0
DESCRIPTORS_FEW, DESCRIPTORS_TOO_FEW = 4096, 256
SPACE_LITTLE, SPACE_TOO_LITTLE = 16 << 20, 1 << 20
SHM_SMALL = 64 << 20
"""What a container gets from most runtimes unless it asks for more."""


@dataclass(frozen=True)
class Patient:
    run_dir: Path
    status: m.Status | None
    error: ObserverError | None


def examine(run_dir: Path, timeout_s: float) -> list[Finding]:
    """A lock, and what it stands on."""
    status: m.Status | None = None
    error: ObserverError | None = None
    try:
        with Observer(run_dir, timeout_s) as observer:
            status = observer.ask(m.AskStatus(), m.Status)
    except ObserverError as why:
        error = why
    patient = Patient(run_dir, status, error)
    return [finding for check in (*OF_THE_MACHINE, *OF_THE_LOCK) for finding in check(patient)]


def examine_machine(directory: Path) -> list[Finding]:
    """What locks below it, or servers in it, would stand on."""
    return [finding for check in OF_THE_MACHINE for finding in check(Patient(directory, None, None))]


# -- the kernel and the machine ------------------------------------------------------------------------------------


def _kernel(patient: Patient) -> Iterator[Finding]:
    if sys.platform != "linux":
        yield fail("kernel", f"this is {sys.platform}", "run it on Linux: pidfds and OFD locks exist nowhere else")
        return
    yield ok("kernel", f"Linux {os.uname().release}")
    try:
        pidfd = peers.own_pidfd()
    except OSError as error:
        do = "Linux 5.3 or newer is needed, and a seccomp profile that allows pidfd_open"
        yield fail("pidfds", f"pidfd_open: {error.strerror}", do)
        return
    yield from _refused_calls(pidfd)
    try:
        own_inodes = peers.pidfd_inode(pidfd) is not None
    finally:
        os.close(pidfd)
    if peers.kernel_evidence() is peers.Evidence.PEER:
        yield ok("pidfds", "the kernel names the peer of a connection (SO_PEERPIDFD)")
    else:
        do = "nothing: that works; Linux 6.5 and newer take them from the connection"
        yield warn("pidfds", "no SO_PEERPIDFD here: processes send their own", do)
    if own_inodes:
        yield ok("identity", "pidfds have inodes (pidfs): a process is known again by the kernel's own name for it")
    else:
        do = "nothing: that works; Linux 6.9 and newer need no secret"
        yield warn("identity", "no pidfs here: a process is known again by a secret", do)


def _refused_calls(pidfd: int) -> Iterator[Finding]:
    """What a seccomp profile refuses here, and what the lock lacks by that."""
    refused = False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        do = "allow it in the seccomp profile: else lockctl hold, vouch_for, and the look-up after a restart don't work"
        refused = True
        yield warn("pidfd_open", f"refused here ({error.strerror})", do)
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except OSError as error:
        do = "allow it in the seccomp profile: else what outlives an engine's main process has to be killed by hand"
        refused = True
        yield fail("pidfd_send_signal", f"refused here ({error.strerror})", do)
    if not refused:
        yield ok("seccomp", "pidfd_open and pidfd_send_signal are allowed")


def _descriptors(patient: Patient) -> Iterator[Finding]:
    limit, whose = resource.getrlimit(resource.RLIMIT_NOFILE)[1], "this user"
    if patient.status is not None:
        of_server = _limit_of(patient.status.server_pid, "Max open files")
        if of_server is not None:
            limit, whose = of_server, "the lock server"
    if limit == resource.RLIM_INFINITY or limit >= DESCRIPTORS_FEW:
        amount = "any number" if limit == resource.RLIM_INFINITY else str(limit)
        yield ok("descriptors", f"{whose} may have {amount} open")
        return
    level = Level.FAIL if limit < DESCRIPTORS_TOO_FEW else Level.WARN
    found = f"{whose} may have {limit} open; each process of an engine takes two or three"
    yield Finding("descriptors", level, found, f"raise the hard limit to {DESCRIPTORS_FEW} (ulimit -Hn, LimitNOFILE=)")


def _inotify(patient: Patient) -> Iterator[Finding]:
    """All containers of one user on a node share what there is of it."""
    try:
        PathWatch(absolute(patient.run_dir)).close()
        yield ok("inotify", "the kernel tells when the run directory's path leads elsewhere")
    except CannotWatch as error:
        why, _, do = str(error).partition("; ")
        yield warn("inotify", f"{why}: the run directory's path is looked at each second instead", do)


def _clock(patient: Patient) -> Iterator[Finding]:
    now, up_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
    granted = _granted_at(patient.run_dir)
    if up_s <= 0 or datetime.fromtimestamp(now - up_s, UTC).year < 2020:
        do = "set it: times in status and logs mean nothing (the lock itself goes by another clock)"
        yield warn("clock", f"the wall clock says {_stamp(now)}, and up for {up_s:.0f} s", do)
    elif granted is not None and granted.timestamp() > now + 1:
        do = "the clock was set back: times in status mislead (the lock itself goes by another clock)"
        yield warn("clock", f"it is {_stamp(now)}, before the holder's grant ({granted.isoformat()})", do)
    else:
        yield ok("clock", f"{_stamp(now)}, up since {_stamp(now - up_s)}")


def _granted_at(run_dir: Path) -> datetime | None:
    try:
        tenure = record.decode(durable.read(run_dir / HOLDER)).active
        return datetime.fromisoformat(tenure.granted_at) if tenure is not None else None
    except (OSError, ValueError):  # no holder file, or none that can be read: other checks speak of that
        return None


def _core_dumps(patient: Patient) -> Iterator[Finding]:
    try:
        pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    except OSError as error:
        do = "make sure that engines write none: a dump delays a process's death"
        yield warn("core dumps", f"core_pattern can't be read: {error.strerror}", do)
        return
    piped = pattern.startswith("|")
    where = f"piped into {pattern[1:].split()[0]}" if len(pattern) > 1 and piped else "written to files"
    harmless = (1,) if piped else (0, 1)  # a limit of 0 doesn't keep the kernel from a pipe
    seen = _seen_of_the_holder(patient)
    dumping = [str(pid) for pid in seen if _limit_of(pid, "Max core file size") not in (None, *harmless)]
    if dumping:
        found = f"{where}, and of the holder process {', '.join(dumping)} may: it keeps its memory until that is done"
        yield warn(
            "core dumps",
            found,
            "forbid it there (sidecar.kernel.process_setup.forbid_core_dumps; the lock's client does it)",
        )
    else:
        also = ", and the holder's processes do" if seen else ""
        yield ok("core dumps", f"{where}; the lock's clients forbid their own{also}")


def _late_writes(patient: Patient) -> Iterator[Finding]:
    """What io_uring reads for a process arrives after its end."""
    if why := io_uring.kernel_refuses():
        yield ok("io_uring", why)
        return
    seen = _seen_of_the_holder(patient)
    may = [str(pid) for pid in seen if io_uring.is_filtered(pid) is False]
    if may:
        found = f"of the holder process {', '.join(may)} may have it: what it reads arrives after the process's end"
        do = "start engines by the engine-shim, or set kernel.io_uring_disabled to 2: no successor gets its KV cache"
        yield warn("io_uring", found, do)
    elif any(io_uring.is_filtered(pid) for pid in seen):
        yield ok("io_uring", "the holder's processes have a seccomp filter, as the engine-shim sets it")
    else:
        yield ok("io_uring", "to be had (kernel.io_uring_disabled isn't 2); the engine-shim forbids it to engines")


def _seen_of_the_holder(patient: Patient) -> list[int]:
    """Those of its processes that lock its life file, as seen from here: in another container their numbers are other
    processes'.
    """
    if patient.status is None or (holder := patient.status.holder) is None:
        return []
    name = incarnation_name(holder.engine_id, holder.incarnation)
    with contextlib.suppress(OSError):
        locked = [one.locked_by for one in life_files(patient.run_dir / LIFE)[0] if one.name == name]
        return [member.pid for member in holder.members if any(member.pid in pids for pids in locked)]
    return []


def _shared_memory(patient: Patient) -> Iterator[Finding]:
    try:
        space = os.statvfs("/dev/shm")
    except OSError as error:
        yield warn("/dev/shm", f"can't be used: {error.strerror}", "mount a tmpfs there: engines share memory in it")
        return
    in_all, free = space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail
    found = f"{size(in_all)}, {size(free)} free"
    if patient.status is not None and patient.status.holder is not None and not _seen_of_the_holder(patient):
        yield ok("/dev/shm", f"{found}; no process of the holder is seen from here, and it may have another one")
    elif in_all <= SHM_SMALL:
        do = "too small where an engine has several processes: docker run --shm-size, or an emptyDir of medium Memory"
        yield warn("/dev/shm", found, do)
    elif free < SHM_SMALL:
        yield warn("/dev/shm", found, "nearly full: see what lies there")
    else:
        yield ok("/dev/shm", found)


def _gpus(patient: Patient) -> Iterator[Finding]:
    """Asked in a thread of its own: a driver may hang."""
    found: Queue[list[Finding]] = Queue()
    threading.Thread(target=lambda: found.put(list(_gpus_that_nvml_sees())), daemon=True).start()
    try:
        yield from found.get(timeout=DRIVER_S)
    except Empty:
        do = "see nvidia-smi and the kernel's log; until it does no engine is granted device memory"
        yield fail("GPUs", f"the driver doesn't answer within {DRIVER_S:g} s", do)


def _gpus_that_nvml_sees() -> Iterator[Finding]:
    try:
        import pynvml
    except ImportError:
        yield ok("GPUs", f"not looked at: nvidia-ml-py is not installed ({how_to_get('nvml')})")
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield ok("GPUs", f"none to be seen here ({error})")
        return
    try:
        count = pynvml.nvmlDeviceGetCount()
        for index in range(count):
            mode = pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByIndex(index))
            if mode != pynvml.NVML_COMPUTEMODE_DEFAULT:
                exclusive = mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
                what = f"compute mode {'exclusive-process' if exclusive else 'prohibited'}"
                found = f"GPU {index} is in {what}: two engines can't both have it open"
                yield fail("GPUs", found, f"nvidia-smi -i {index} -c DEFAULT")
        yield ok("GPUs", f"{count} seen by NVML")
    except pynvml.NVMLError as error:
        yield warn("GPUs", f"NVML fails: {error}", "see nvidia-smi; without NVML memory can't be verified")
    finally:
        pynvml.nvmlShutdown()


# -- the run directory ---------------------------------------------------------------------------------------------


def _directory(patient: Patient) -> Iterator[Finding]:
    path = patient.run_dir
    try:
        status = os.stat(path)
    except OSError as error:
        do = "give the --run-dir of the lock server; it makes the directory when it starts"
        yield fail("directory", f"{path}: {error.strerror}", do)
        return
    if not stat.S_ISDIR(status.st_mode):
        yield fail("directory", f"{path} is not a directory", "give the --run-dir of the lock server")
        return
    found = f"{path}, mode {stat.S_IMODE(status.st_mode):o}, user {status.st_uid}"
    if status.st_mode & stat.S_ISVTX:
        yield fail(
            "directory", f"{found}: shared by all users", f"give the lock a directory of its own: {path}/failover"
        )
    elif os.path.ismount(path) and status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        found += ": a volume's mount point, which others may write to"
        yield fail("directory", found, f"use a directory below it, as --run-dir {path}/run")
    elif status.st_mode & stat.S_IWOTH:
        yield fail("directory", f"{found}: any user may replace the lock's files", f"chmod 700 {path}")
    elif not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        do = f"be user {status.st_uid}; engines make their life files there"
        yield fail("directory", f"{found}: closed to user {os.getuid()}", do)
    elif status.st_mode & stat.S_IWGRP:
        yield warn("directory", f"{found}: its group may replace the lock's files", f"chmod g-w {path}, unless meant")
    else:
        yield ok("directory", found)
    yield from _filesystem(path)
    yield _locks(path)


def _filesystem(path: Path) -> Iterator[Finding]:
    kind, mounted = filesystem(path)
    where = f"{kind} mounted at {mounted}"
    if kind.startswith(NETWORK):
        yield warn("filesystem", f"{where}: over a network", "put the run directory on tmpfs or a local disk")
    elif kind == "tmpfs":
        yield ok("filesystem", where)
    else:
        yield ok("filesystem", f"{where}: every grant waits for that disk; on tmpfs it doesn't")
    yield room(path)


def room(path: Path) -> Finding:
    """What is free where the run directory is."""
    space = os.statvfs(path)
    free = space.f_frsize * space.f_bavail
    no_inode = space.f_files > 0 and space.f_favail == 0
    if free >= SPACE_LITTLE and not no_inode:
        return ok("space", f"{size(free)} free")
    level = Level.FAIL if free < SPACE_TOO_LITTLE or no_inode else Level.WARN
    found = f"{size(free)} free{', and no inode' if no_inode else ''}"
    when = "until then" if not free or no_inode else "with nothing free"
    do = f"make room in {filesystem(path)[1]}; {when} a takeover depends on one spare file"
    return Finding("space", level, found, do)


def _locks(path: Path) -> Finding:
    life = path / LIFE
    try:
        check_directory(life if os.path.isdir(life) else path)
    except LocksUnsupported as error:
        return fail("OFD locks", str(error), "without them there is no proof: use tmpfs or a local disk")
    except (OSError, LifeLockError) as error:
        return warn("OFD locks", f"could not be tried: {error}", "run this as the lock server's user")
    return ok("OFD locks", "kept by this filesystem")


# -- the server, and what lies about -------------------------------------------------------------------------------


def server_findings(patient: Patient) -> Iterator[Finding]:
    status, error = patient.status, patient.error
    if status is None:
        start, look = f"lockserver --run-dir {patient.run_dir}", "look at that process: is it stopped (kill -CONT)?"
        do = start if isinstance(error, NoServer) else look if isinstance(error, ServerSilent) else "be its user"
        yield fail("server", str(error), do)
        return
    yield ok("server", f"process {status.server_pid}; the lock is {status.state}")
    if status.evidence == "end-of-file only":
        found = "ends are seen by end of file alone: a process may be gone and its memory not"
        yield fail("evidence", found, "see pidfds above")
    else:
        yield ok("evidence", f"ends are seen by {status.evidence}")
    if status.holder is not None and status.memory != "verified":
        do = "nothing, unless the engine says no needs: the server has a reader, and looks at the next grant"
        if status.memory_why:
            do = "give the server a reader (--memory nvml), and say what the engine needs"
        yield warn("memory", f"unverified: {why_unverified(status)}", do)
    else:
        yield ok("memory", status.memory)
    for alarm in status.alarms:
        yield fail("alarm", alarm, "see what `lockctl status` says about it")


def _life_files(patient: Patient) -> Iterator[Finding]:
    try:
        files, unreadable = life_files(patient.run_dir / LIFE)
    except FileNotFoundError:
        if patient.status is None:
            yield ok("life files", "none")
        else:
            found = f"{patient.run_dir / LIFE} was removed: after a restart of the server nothing tells who is gone"
            yield fail("life files", found, f"mkdir -m 700 {patient.run_dir / LIFE} (engines that start do it, too)")
        return
    except OSError as error:
        yield warn("life files", f"can't be looked into: {error.strerror}", "run this as the lock server's user")
        return
    if unreadable:
        found = f"{len(unreadable)} can't be looked into: {', '.join(unreadable[:3])}"
        yield warn("life files", found, "run this as the lock server's user")
    stale = [file.name for file in files if not file.held]
    if stale:
        by_server = "nothing: the next lock server removes them when no process can come back for them"
        by_hand = "should they still be there in a few seconds, rm them: no process is alive in them"
        found = f"no process locks {', '.join(stale[:5])}{' ...' if len(stale) > 5 else ''}"
        yield warn("life files", found, by_server if patient.status is None else by_hand)
    known, fenced = _known(patient.status), _fenced(patient.status)
    held = [file for file in files if file.held]
    for file in held:
        yield _held(file, known if patient.status is not None else None, ended=file.name == fenced)
        yield from _halted(file)
    if not (unreadable or stale or held):
        yield ok("life files", "none")


def _known(status: m.Status | None) -> dict[str, set[int] | None]:
    """Life files that the server knows -> their processes; None where it doesn't name them all."""
    if status is None:
        return {}
    known: dict[str, set[int] | None] = {
        incarnation_name(waiter.engine_id, waiter.incarnation): None for waiter in status.waiters
    }
    if (holder := status.holder) is not None:
        known[incarnation_name(holder.engine_id, holder.incarnation)] = {member.pid for member in holder.members}
    return known


def _fenced(status: m.Status | None) -> str:
    """The life file of the holder whose end is to be proven; empty if there is none."""
    if status is None or status.state != "FENCING" or status.holder is None:
        return ""
    return incarnation_name(status.holder.engine_id, status.holder.incarnation)


def _held(file: LifeFile, known: dict[str, set[int] | None] | None, *, ended: bool) -> Finding:
    """`known`: None where the server can't be asked. `ended`: that engine is being fenced."""
    if known is None:
        return ok("life lock", f"{file.name}: held by a process; the server can't be asked, so leave it alone")
    if not file.locked_by:
        found = f"{file.name}: held by processes that can't be seen from here"
        if file.name in known:
            return ok("life lock", f"{found} (another container's, in a pod)")
        return warn("life lock", found, "look again on the node, as root")
    found = f"{file.name}: held by " + "; ".join(f"{pid} ({words})" for pid, words in sorted(file.locked_by.items()))
    if file.name not in known:
        found += "; the server doesn't know it as holder or waiter"
        return warn("life lock", found, "nothing, if that engine is just starting; else end it")
    members = known[file.name]
    strange = " ".join(
        str(pid) for pid in sorted(file.locked_by) if members is not None and pid not in members and not _is_guard(pid)
    )
    if not strange:
        return ok("life lock", found)
    when = "this engine is to be gone, and no engine is granted before they are" if ended else "they must end with it"
    do = f"{when}: kill -9 {strange} if they should be gone"
    return warn("life lock", f"{found}; never joined: {strange}", do)


def _halted(file: LifeFile) -> Iterator[Finding]:
    """The lock never hears of it, and its clients wait. A process under a debugger, or in a disk's hands, goes on."""
    for pid in sorted(file.locked_by):
        state, _, do = process_state.state_of(pid).partition(": ")
        if state.startswith(("is stopped", "is frozen")):
            yield warn("processes", f"{file.name}: process {pid} {state}, and its engine does nothing meanwhile", do)


def _is_guard(pid: int) -> bool:
    """The guard of a `lockctl hold` belongs there, and doesn't join."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == GUARD
    return False


def _leftovers(patient: Patient) -> Iterator[Finding]:
    try:
        names = sorted(os.listdir(patient.run_dir))
    except OSError:
        return  # what is wrong with the directory has been said
    asides = [name for name in names if name.startswith(HOLDER + ".unreadable-")]
    for name in asides:
        do = "find out what spoilt it (a full disk? a hand?), then rm it"
        yield warn("leftovers", f"{name}: a holder file that could not be read was kept", do)
    if isinstance(patient.error, NoServer) and SOCKET in names:
        yield warn("leftovers", f"{SOCKET} without a server: it was killed", "nothing: the next server replaces it")
    if not asides:
        yield ok("leftovers", "no holder file was set aside")


OF_THE_MACHINE: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    _kernel,
    _descriptors,
    _inotify,
    _clock,
    _core_dumps,
    _late_writes,
    _shared_memory,
    _gpus,
    _directory,
)
OF_THE_LOCK = (server_findings, _life_files, _leftovers)


def _limit_of(pid: int, name: str) -> int | None:
    """A process's limit (the soft one of core files, else the hard one); None where it can't be seen."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            soft, hard = line.removeprefix(name).split()[:2]
            value = soft if "core" in name else hard
            return resource.RLIM_INFINITY if value == "unlimited" else int(value)
    return None


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
