"""Which GMS has which device: a name in the network namespace for each, taken by the supervisor of its GMS.

Two pairs that share a device without knowing of each other would each miss the memory that the other one takes. So a
second GMS for the same device is refused, and told which has it, whatever their run directories are. Pairs that are to
share a device say so everywhere (`--share-devices`).

A process that connects to the name is told the run directory. What this file may not do: open a device. The names
themselves: `sidecar/kernel/exclusive_names.py`.
"""

import contextlib
import os
import socket
import time
from pathlib import Path

from sidecar.kernel import exclusive_names
from sidecar.kernel.exclusive_names import Owner
from sidecar.machine.loop import Loop
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.logs import Log

MOST_SHARERS = 16
PREDECESSOR_S = 5.0
"""The predecessor on the same run directory was killed, and the kernel kills its children: they end within that."""
_ANSWER_S = 0.5


class DeviceNames:
    def __init__(self, run_dir: Path, log: Log, *, shared: bool) -> None:
        self._run_dir = run_dir
        self._log = log
        self._shared = shared
        self._taken: list[socket.socket] = []

    def take(self, device: str, key: str) -> None:
        """`key` is the same for every GMS that means this device. Raises CannotStart when another has it."""
        until = time.monotonic() + PREDECESSOR_S
        mine = _shared_names(key) if self._shared else [_alone_name(key)]
        others = [_alone_name(key)] if self._shared else _shared_names(key)
        while True:
            sock = next((sock for name in mine if (sock := exclusive_names.take(name)) is not None), None)
            whose = [*(mine[:1] if sock is None else []), *others]
            who = next((owner for name in whose if (owner := self._other(device, name)) is not None), None)
            if who is None and sock is not None:
                self._taken.append(sock)
                return
            if sock is not None:
                sock.close()
            if who is not None and (who != str(self._run_dir) or time.monotonic() >= until):
                raise CannotStart(_refusal(device, who, shared=self._shared))
            time.sleep(0.01)

    def _other(self, device: str, name: str) -> str | None:
        """Who has it, in words, or its run directory if that is ours. None: no process that this user has to mind."""
        owner = exclusive_names.owner(name)
        if owner is None:
            return None
        if owner.uid not in (os.getuid(), -1):
            self._log.warning("device_name_is_another_users", device=device, owner=str(owner))
            return None
        run_dir = _ask(name)
        return run_dir if run_dir == str(self._run_dir) else _in_words(owner, run_dir)

    def answer(self, loop: Loop) -> None:
        """From now on, a process that asks is told the run directory."""
        for sock in self._taken:
            loop.add(sock.fileno(), lambda _, sock=sock: self._tell(sock))  # type: ignore[misc]

    def _tell(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = sock.accept()
                with caller:
                    caller.setblocking(False)
                    caller.send(os.fsencode(self._run_dir)[:4096])


def take_unused(key: str) -> socket.socket | None:
    """The device, until the socket is closed; None when a GMS has it. Raises OSError."""
    if any(exclusive_names.owner(name) is not None for name in _shared_names(key)):
        return None
    return exclusive_names.take(_alone_name(key))


def _alone_name(key: str) -> str:
    return f"gms-device {key}"


def _shared_names(key: str) -> list[str]:
    return [f"gms-device {key} shared {number}" for number in range(MOST_SHARERS)]


def _ask(name: str) -> str:
    """The run directory of the GMS that has that name; empty if it doesn't say."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_ANSWER_S)
        sock.connect(exclusive_names.address(name))
        return os.fsdecode(sock.recv(4096)).encode("utf-8", "backslashreplace").decode()
    return ""


def _in_words(owner: Owner, run_dir: str) -> str:
    return f"the GMS of {run_dir} ({owner})" if run_dir else str(owner)


def _refusal(device: str, who: str, *, shared: bool) -> str:
    if shared:
        return f"{device}: {who} has this device for itself. To share it, start both with --share-devices"
    return (
        f"{device}: {who} has this device. Give this pair another one (--devices), or, if both fit, start the GMS of "
        "both with --share-devices"
    )
