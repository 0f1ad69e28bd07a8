"""A pod as kubelet needs it: read once from the manifest (`manifest.py`), then never changed. Pure."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Role(enum.Enum):
    """How a container is run."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class Kind(enum.Enum):
    """What a probe is asked for."""

    STARTUP = "startup"
    LIVENESS = "liveness"
    READINESS = "readiness"


@dataclass(frozen=True)
class Http:
    port: int
    path: str = "/"


@dataclass(frozen=True)
class Tcp:
    port: int


@dataclass(frozen=True)
class Exec:
    command: tuple[str, ...]


@dataclass(frozen=True)
class Sleep:
    seconds: int


Handler = Http | Tcp | Exec | Sleep


@dataclass(frozen=True)
class Probe:
    kind: Kind
    handler: Handler
    initial_delay_s: int = 0
    timeout_s: int = 1
    period_s: float = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    grace_s: int | None = None
    """How long a container that fails it may take to end; None: as long as the pod."""


@dataclass(frozen=True)
class Mount:
    volume: str
    path: str
    read_only: bool = False
    sub_path: str = ""


@dataclass(frozen=True)
class Container:
    name: str
    role: Role
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = "/"
    probes: Mapping[Kind, Probe] = field(default_factory=dict)
    pre_stop: Handler | None = None
    mounts: tuple[Mount, ...] = ()
    run_as_user: int | None = None
    run_as_group: int | None = None
    read_only_root: bool = False
    new_privileges: bool = True


@dataclass(frozen=True)
class Volume:
    name: str
    kind: str
    """memory, disk, or host (a directory of this machine)."""
    size_bytes: int | None = None
    directory: str = ""


@dataclass(frozen=True)
class Pod:
    name: str
    containers: tuple[Container, ...]
    """Init containers and sidecars in their order, then the main ones."""
    volumes: tuple[Volume, ...] = ()
    grace_s: int = 30
    fs_group: int | None = None
    hostname: str = ""
    address: str = ""
    host_network: bool = False
    ignored: tuple[str, ...] = ()
    """What stands in the manifest and has no meaning here."""

    def container(self, name: str) -> Container:
        return next(container for container in self.containers if container.name == name)

    @property
    def init(self) -> tuple[Container, ...]:
        return tuple(container for container in self.containers if container.role is not Role.MAIN)

    @property
    def mains(self) -> tuple[Container, ...]:
        return tuple(container for container in self.containers if container.role is Role.MAIN)
