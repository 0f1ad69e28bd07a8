"""Whether this user may make the namespaces of a pod, and if not, which setting of the machine forbids it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from . import image

# setting -> (the value that forbids, what to do)
SETTINGS = {
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=15000"),
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl kernel.unprivileged_userns_clone=1"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
}
_TRY_S = 10


def flags(uid: int, gid: int, *, root: bool, network: bool = True) -> list[str]:
    """What `unshare` is told, so that the pod gets its own namespaces."""
    words = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--uts"]
    if network:
        words.append("--net")
    if not root:
        words += ["--user", f"--map-user={uid}", f"--map-group={gid}", "--keep-caps"]
    return words


def forbidden(*, root: bool | None = None, attempt: Callable[[list[str]], str] | None = None,
              read: Callable[[str], str | None] | None = None) -> str:  # fmt: skip
    """ "" if it works here, else why not and what to do: it is tried, not guessed."""
    root = os.geteuid() == 0 if root is None else root
    missing = image.missing_tools()
    if missing:
        return f"{', '.join(missing)} of util-linux isn't there: apt install util-linux mount"
    said = (attempt or _attempt)(flags(os.getuid(), os.getgid(), root=root))
    if not said:
        return ""
    if root:
        return f"root may not make namespaces here: {said}; a container needs --privileged or CAP_SYS_ADMIN for it"
    for path, (value, remedy) in SETTINGS.items():
        if (read or _read)(path) == value:
            return f"user namespaces are forbidden by {path} = {value}: as root, {remedy}; or run this as root"
    return (
        f"user namespaces are refused here: {said}. No sysctl says so, so it is a seccomp profile (containers have "
        "one by default) or a security module; run it outside the container, or as root"
    )


def _attempt(words: list[str]) -> str:
    """ "" if it works."""
    script = "mount -t tmpfs tmpfs /mnt || mount -t tmpfs tmpfs /tmp"
    try:
        done = subprocess.run(
            [image.find("unshare") or "unshare", *words, "--", "sh", "-c", script],
            capture_output=True, text=True, timeout=_TRY_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if not done.returncode:
        return ""
    return " ".join(done.stderr.split()) or f"unshare ended with {done.returncode}"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
