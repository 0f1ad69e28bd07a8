"""All devices of a container: one server each, as children. If one dies, all end; and one that hangs is killed.

The servers stand on nothing of each other's. That they end together is for what restarts them: a container whose
one process is gone is restarted as a whole, and finds everything as it was, because the weights are held by their
readers and the state by the disk. So nothing is restarted here, and nothing waits. When a server hangs: `silence.py`.

What this file may not do: open a device or touch a socket of GMS; the driver is not loaded into this process. Settings:
`__main__.py`. The children: `device_process.py`.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from gms.memory import DeviceError
from gms.memory.host_device import create_device, device_path
from gms.rules.silence import ASK_S, Do, Silence
from gms.shell import rundir
from gms.shell.device_names import PREDECESSOR_S, DeviceNames
from gms.shell.settings import Settings
from sidecar.kernel.durable import DurableFile
from sidecar.kernel.path_watch import make_private_directory
from sidecar.kernel.process_state import state_of
from sidecar.machine.loop import Loop
from sidecar.machine.shell import STOPPED_BY_SIGNAL
from sidecar.terminal.cannot_start import CannotStart, unusable
from sidecar.terminal.logs import Log

STOP_S = 5.0
"""How long a child may take to end when it is told to."""
_ASK_DRIVER = "from gms.memory.cuda import devices; print('\\n'.join(devices()))"


def gpus() -> list[str]:
    """Every GPU by its UUID. Raises CannotStart. Asked in a process of its own: one that has loaded the driver is its
    client for as long as it lives.
    """
    asked = subprocess.run([sys.executable, "-c", _ASK_DRIVER], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        lines = asked.stderr.strip().splitlines() or ["the driver could not be asked"]
        raise CannotStart(f"--devices cuda: {lines[-1].partition(': ')[2] or lines[-1]}")
    found = asked.stdout.split()
    if not found:
        raise CannotStart("--devices cuda: the driver knows no GPU here; is one given to this container?")
    return found


def make_host_device(device: str, capacity: int | None, directory: Path) -> str:
    """It is there when this returns, and outlives every server. Returns what is the same for all that mean this
    device. Raises CannotStart.
    """
    name = device.removeprefix("host:")
    try:
        if capacity is not None:
            create_device(name, capacity, directory)
        elif not device_path(name, directory).exists():
            raise CannotStart(f"{device} isn't there yet: say how large it is to be, as with --capacity 4GiB")
        status = device_path(name, directory).stat()
    except (DeviceError, OSError) as error:
        raise CannotStart(str(error)) from None
    return f"host {status.st_dev}:{status.st_ino}"


class Supervisor:
    def __init__(self, settings: Settings, devices: list[str], log: Log, silent_s: float) -> None:
        """No other process supervises this directory from now on. Raises CannotStart and AlreadyLocked."""
        self.settings = settings
        self._silent_s = silent_s
        self.devices = devices
        self.log = log
        self.run_dir = Path(settings.run_dir)
        self.loop = Loop()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._asking: dict[str, socket.socket] = {}
        self._silence: dict[str, Silence] = {}
        self._look_at = 0.0
        here = rundir.directory(self.run_dir)
        try:
            make_private_directory(here)
            self._lock = rundir.lock(self.run_dir, rundir.SUPERVISOR_LOCK)
            DurableFile(here, rundir.DEVICES).write("".join(f"{device}\n" for device in devices).encode())
            for device in devices:
                rundir.lock(self.run_dir, f"{device}.lock", PREDECESSOR_S).close()
        except OSError as error:
            raise unusable(here, error) from None

    def take_devices(self, keys: dict[str, str], *, shared: bool) -> None:
        """No other GMS has these devices from now on. Raises CannotStart."""
        names = DeviceNames(self.run_dir, self.log, shared=shared)
        for device, key in keys.items():
            names.take(device, key)
        names.answer(self.loop)

    def run(self) -> int:
        """Until a child dies or a signal comes; returns the exit code."""
        self.loop.deliver((signal.SIGTERM, signal.SIGINT, signal.SIGCHLD), self._on_signal)
        for device in self.devices:
            self._start(device)
        self.log.info("started", run_dir=self.run_dir, devices=self.devices, pid=os.getpid())
        while not self.loop.stopping:
            self.loop.turn(max(self._look_at - time.monotonic(), 0.0))
            if time.monotonic() >= self._look_at:
                self._look_and_ask()
        self._stop_all()
        self.log.info("stopped", why=self.loop.stopping)
        self._lock.close()
        return 0 if self.loop.stopping in STOPPED_BY_SIGNAL else 1

    def _start(self, device: str) -> None:
        """In a process group of its own: Ctrl-C is for the supervisor, which then ends the others in order."""
        share = self.settings.host_memory // len(self.devices)
        told = msgspec.structs.replace(self.settings, parent_pid=os.getpid(), asked_at=0, host_memory=share)
        command = [sys.executable, "-m", "gms.shell.device_process", device, msgspec.json.encode(told).decode()]
        asking, answering = socket.socketpair()
        asking.setblocking(False)
        with answering:
            self._children[device] = subprocess.Popen(command, stdin=answering.fileno(), process_group=0)
        self._asking[device] = asking
        silence = self._silence[device] = Silence(self._silent_s, time.monotonic())

        def answered(_: int) -> None:
            try:
                said = asking.recv(64)
            except OSError:
                said = b""
            if said:
                silence.answered()
            else:
                self.loop.remove(asking.fileno())  # it ends, and SIGCHLD says how

        self.loop.add(asking.fileno(), answered)

    def _on_signal(self, number: int) -> None:
        if number != signal.SIGCHLD:
            self.loop.stopping = signal.Signals(number).name
            return
        for device, child in self._children.items():
            if child.poll() is not None and not self.loop.stopping:
                how = _how(child.returncode)
                self.log.alarm("child_died", device=device, pid=child.pid, how=how)
                self.loop.stopping = f"the server of {device} died: {how}"

    def _look_and_ask(self) -> None:
        now = time.monotonic()
        self._look_at = now + ASK_S
        for device, child in self._children.items():
            silence = self._silence[device]
            do = silence.look(now, _cpu_s(child.pid))
            said: dict[str, object] = {"device": device, "pid": child.pid, "silent_s": round(silence.silent_s)}
            if do is Do.KILL:
                self.log.alarm("silent", **said, follows="it is killed, and all servers start again")
                child.kill()
            elif do is Do.NAME:
                self.log.alarm("cannot_be_killed", **said, is_now=state_of(child.pid), follows="others are served on")
            with contextlib.suppress(OSError):  # full: it reads nothing; or it has ended
                self._asking[device].send(b"?")

    @property
    def not_well(self) -> str:
        """Which servers hang, in a sentence; empty: none."""
        hang = {device: silence.idle_s for device, silence in self._silence.items() if silence.hangs}
        return "; ".join(f"the server of {device} has not answered for {s:.0f} s" for device, s in hang.items())

    def _stop_all(self) -> None:
        living = {device: child for device, child in self._children.items() if child.poll() is None}
        for child in living.values():
            child.terminate()
        until = time.monotonic() + STOP_S
        for device, child in living.items():
            try:
                child.wait(max(until - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                self.log.warning("child_killed", device=device, pid=child.pid, why=f"it did not end in {STOP_S:g} s")
                child.kill()
                self._await_killed(device, child)

    def _await_killed(self, device: str, child: subprocess.Popen[bytes]) -> None:
        """What even SIGKILL doesn't end keeps the others from nothing."""
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.log.alarm("cannot_be_killed", device=device, pid=child.pid, is_now=state_of(child.pid))


def _cpu_s(pid: int) -> float:
    """What the process has used of the processor; 0 for one that is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # its clock's number, as clock_getcpuclockid(3) makes it
    except OSError:
        return 0.0


def _how(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
