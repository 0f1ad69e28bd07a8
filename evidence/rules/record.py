"""What a server must remember of processes across its own crash: which incarnations are proven gone, and of the others
which processes they have. Shapes only; a server writes them into its own file.
"""

import msgspec

from sidecar.terminal.names import incarnation_name


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of an incarnation."""

    number: int
    identity: str = ""
    """`pidfs:<inode>` where the kernel has it; empty elsewhere."""
    pid: int = 0
    """Its number as it says itself, where the server has none for it. For people; on kernels that give pidfds no inode
    it also tells who a process is.
    """
    local_pid: int = 0
    """Its number in the PID namespace of the server that wrote this; 0 where it had none."""
    mapped: bool = False
    """While it lives it can't let go of its life lock."""


class Known(msgspec.Struct, frozen=True):
    """An incarnation whose end the server must see proven."""

    engine_id: str
    incarnation: str
    members: list[Member]
    """The first is the main process. None: it was only heard of."""
    secret: str = ""

    @property
    def name(self) -> str:
        return incarnation_name(self.engine_id, self.incarnation)


class Processes(msgspec.Struct, frozen=True):
    boot_id: str
    known: list[Known] = []
    gone: list[str] = []
    """Life files of incarnations that are proven gone: to be unlinked, never to be joined again."""
    pid_namespace: str = ""
