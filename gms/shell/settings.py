"""What one device's server is told at its start. Only data; `__main__.py` asks people.

A file of its own, so that the supervisor, which only passes it on, needn't load a server.
"""

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    run_dir: str
    window_s: float = 10.0
    memory_wait_s: float = 30.0
    socket_mode: int = 0o600
    allow_uids: tuple[int, ...] = ()
    pidfds: str = "auto"
    host_memory: int = 0
    """Bytes of it that this device's parked weights may take."""
    pools_on_gpu: bool = False
    ledger: bool = False
    """There is a ledger of the host's memory in the run directory."""


class Settings(Options, frozen=True, kw_only=True):
    """What a server is told that is a process of a supervisor."""

    parent_pid: int
    host_devices: str
    log_json: bool = False
    asked_at: int = -1
    """The descriptor on which the supervisor asks whether its loop turns; -1: it doesn't ask."""
