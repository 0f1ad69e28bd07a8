"""Roots, volumes and users of a pod's containers, and the commands that start and enter them. Inside the namespaces.

All of it is done by util-linux: `mount` here, in a mount namespace that ends with the pod, so nothing has to be
cleaned up; `unshare`, `pivot_root` and `setpriv` at each start; `nsenter` for what comes later.
"""

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from . import image
from .machine import Settings
from .spec import Container, Mount, Pod, Volume

SHM_BYTES = 64 << 20  # what a container runtime gives; a volume at /dev/shm replaces it
_MODE = 0o2777  # of a volume of a pod with fsGroup


class CantMake(Exception):
    """The pod can't be made here; the text says what failed."""


@dataclass(frozen=True)
class Users:
    """As root every user can be had, without a user namespace; otherwise one, which is mapped."""

    root: bool
    uid: int
    gid: int


@dataclass(frozen=True)
class Order:
    """What the command has for the loop inside."""

    pod: Pod
    users: Users
    settings: Settings
    json_log: bool = False


def users(pod: Pod, *, root: bool) -> Users:
    """Raises CantMake."""
    wanted = {(container.run_as_user, container.run_as_group) for container in pod.containers}
    uids = {uid for uid, _ in wanted if uid is not None}
    gids = {gid for _, gid in wanted if gid is not None} | ({pod.fs_group} if pod.fs_group is not None else set())
    uid = next(iter(sorted(uids)), os.getuid())
    gid = next(iter(sorted(gids)), os.getgid())
    if not root and (len(uids) > 1 or len(gids) > 1 or 0 in uids):
        raise CantMake(
            f"the containers have users {sorted(uids)} and groups {sorted(gids)}: without root only one ordinary user "
            "and one group can be had here"
        )
    return Users(root, uid, gid)


class Sandbox:
    def __init__(self, pod: Pod, users: Users, place: Path) -> None:
        self.pod = pod
        self.users = users
        self.place = place
        """A directory of the machine; a tmpfs is mounted there."""

    def prepare(self) -> None:
        """Volumes, and the root of each container. Raises CantMake."""
        _run(f"mount -t tmpfs -o mode=755 local-pod {_q(self.place)}")
        for volume in self.pod.volumes:
            self._volume(volume)
        for container in self.pod.containers:
            self.make_root(container)

    def make_root(self, container: Container) -> None:
        """A fresh one: what a container wrote there ends with its run."""
        root = self.root(container)
        lines = []
        if root.exists():
            lines.append(f"umount -R -l {_q(root)}")
        root.mkdir(parents=True, exist_ok=True)
        lines.append(f"mount -t tmpfs -o mode=755 root {_q(root)}")
        _run("\n".join(lines))
        for directory in image.directories():
            (root / directory).mkdir(exist_ok=True)
        (root / "tmp").chmod(0o1777)
        (root / "var/tmp").chmod(0o1777)
        for where, target in image.links():
            (root / where).symlink_to(target)
        for where, text, mode in image.files():
            (root / where).write_text(text)
            (root / where).chmod(mode)
        lines = []
        for bind in image.binds():
            lines.append(f"mount --rbind {_q(bind.source)} {_q(root / bind.target)}")
            if not str(bind.target).startswith("dev"):
                lines.append(f"mount -o remount,bind,ro {_q(root / bind.target)} || true")
        # A sysfs of its own has nothing mounted in it (no cgroups); in the machine's network only the machine's is had.
        lines.append(f"mount -t sysfs -o ro sysfs {_q(root / 'sys')} || mount --rbind /sys {_q(root / 'sys')}")
        (root / "dev/shm").mkdir()
        for mount in sorted(container.mounts, key=lambda each: len(each.path)):
            lines += self._mount(root, mount)
        _run("\n".join(lines))

    def root(self, container: Container) -> Path:
        return self.place / "roots" / container.name

    # -- volumes ---------------------------------------------------------------------------------------------------

    def _volume(self, volume: Volume) -> None:
        place = self.place / "volumes" / volume.name
        place.mkdir(parents=True)
        if volume.kind == "host":
            if not Path(volume.directory).is_dir():
                raise CantMake(f"the volume {volume.name} is to be {volume.directory}, and that is no directory here")
            _run(f"mount --rbind {_q(volume.directory)} {_q(place)}")
            return
        size = f",size={volume.size_bytes}" if volume.size_bytes else ""
        _run(f"mount -t tmpfs -o mode=777{size} {_q(volume.name)} {_q(place)}")
        if self.pod.fs_group is not None:
            if self.users.root:
                os.chown(place, 0, self.pod.fs_group)
            place.chmod(_MODE)

    def _mount(self, root: Path, mount: Mount) -> list[str]:
        source = self.place / "volumes" / mount.volume
        target = root / PurePosixPath(mount.path).relative_to("/")
        if mount.sub_path:
            source = source / mount.sub_path
            source.mkdir(parents=True, exist_ok=True)
        inside = next((each for each in image.binds() if target.is_relative_to(root / each.target)), None)
        if inside is not None and not target.exists():
            raise CantMake(
                f"nothing can be mounted at {mount.path}: it is in /{inside.target}, which is this machine's"
            )
        made = "touch" if source.is_file() else "mkdir -p"
        lines = [f"[ -e {_q(target)} ] || {{ mkdir -p {_q(target.parent)} && {made} {_q(target)}; }}"]
        lines.append(f"mount --rbind {_q(source)} {_q(target)}")
        if mount.read_only:
            lines.append(f"mount -o remount,bind,ro {_q(target)}")
        return lines

    # -- commands --------------------------------------------------------------------------------------------------

    def start(self, container: Container) -> list[str]:
        """Makes the container's namespaces and becomes its first process; before, it says so on its standard input,
        which has to be the writing end of a pipe."""
        own_shm = any(mount.path == "/dev/shm" for mount in container.mounts)
        lines = [
            f"cd {_q(self.root(container))}",
            "mount -t proc proc proc",
            "" if own_shm else f"mount -t tmpfs -o mode=1777,size={SHM_BYTES} shm dev/shm",
            "mount -o remount,bind,ro ." if container.read_only_root else "",
            "pivot_root . .",
            "umount -l .",
            f"cd {_q(container.working_dir)}",
            "echo started >&0",
            "exec " + shlex.join(["setpriv", *self._privileges(container), "--", *container.command]) + " </dev/null",
        ]
        # Not `unshare --fork`: that of util-linux 2.38 forgets which signal its child died of. The outer shell gives
        # back what a container runtime would, 128 and the signal; its first child is process 1 of the namespace.
        inner = "\n".join(line for line in lines if line)
        outer = f"exec 3<&0\n(\nset -e\n{inner}\n) <&3 3<&- &\nexec 3<&- </dev/null 2>/dev/null\nwait $!"
        return [
            "setpriv", "--pdeathsig", "KILL", "--", "unshare", "--mount", "--propagation", "private", "--pid", "--ipc",
            "--", "sh", "-c", outer,
        ]  # fmt: skip

    def enter(self, container: Container, pid: int, command: tuple[str, ...] | list[str]) -> list[str]:
        """Another process in the container whose first process this is."""
        inside = ["setpriv", *self._privileges(container), "--", *command]
        target = ["nsenter", "--target", str(pid), "--mount", "--pid", "--ipc", "--"]
        if container.working_dir != "/":
            inside = ["sh", "-c", f"cd {_q(container.working_dir)} && exec {shlex.join(inside)}"]
        return target + inside

    def _privileges(self, container: Container) -> list[str]:
        words = ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--pdeathsig", "KILL"]
        if not container.new_privileges:
            words.append("--no-new-privs")
        if self.users.root:
            uid = self.users.uid if container.run_as_user is None else container.run_as_user
            gid = self.users.gid if container.run_as_group is None else container.run_as_group
            words += ["--reuid", str(uid), "--regid", str(gid)]
            words += ["--groups", str(self.pod.fs_group)] if self.pod.fs_group is not None else ["--clear-groups"]
        return words


def _q(path: Path | str) -> str:
    return shlex.quote(str(path))


def _run(script: str) -> None:
    done = subprocess.run(["sh", "-e", "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise CantMake(f"the pod's mounts can't be made: {said}")
