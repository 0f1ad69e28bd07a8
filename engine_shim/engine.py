"""What an engine must be able to do to be one of a pair, or one of many models. `reference`, `vllm` and `command` are
the three that exist.

`main_process.py` makes the calls in this order, from one thread. Whatever fails on the way ends the process:

    [await_others ->] start -> [takes ->] sleep -> wake -> [known ->] serve -> [drain -> [resume -> drain ...]]
         -> sleep (in place) -> wake -> ...
         -> [leave ->] stop

A `drain` for a switchover, or for a sleep, comes from a thread of its own. `resume` may come while that drain still
waits; the engine then takes requests again at once, whatever the drain does afterwards. `well`, `needs` and `health`
are called from other threads at any time.

A failure that another start would only repeat (wrong arguments, the weights of another model) is raised as `CannotRun`.
Until `start` has returned it also ends the shim, with its exit code. Any other failure is followed by another start.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from sidecar.terminal.exit_codes import EX_OTHER_WEIGHTS, EX_USAGE
from sidecar.wire import tcp
from sidecar.wire.sockets import ServerSocket

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What an engine is told when it is made. Making one touches no device."""

    run_dir: Path
    engine_id: str
    role: str
    """`primary`: it loads the weights if no engine has. `shadow`: it only ever reads them."""
    arguments: tuple[str, ...]
    """The arguments that stood behind `--`."""
    phase: Callable[[str, float], None] = lambda name, seconds: None
    """Reports how long a part of a step took: `setting.phase("remap", 0.003)`, `setting.phase("kv", 0.02)`."""
    adopted: Callable[[int, int, str], None] = lambda adopted, dropped, why: None
    """Reports what has come of the predecessor's KV cache: blocks that were adopted, blocks that were there and are not
    believed, and why not all of it was adopted, in a word.
    """
    kv: str = ""
    """`keep`: the KV cache outlives this engine, where the engine can do that. `drop`: it doesn't. Empty: as is right
    for the device.
    """
    kv_parked: int = 0
    """Among other models: how many bytes of host memory its KV cache may take while the engine sleeps in place."""
    host_dir: Path | None = None
    """Where GMS is, of which a host has one for all of its models. None: in the run directory, for one model."""
    weights: str = ""
    """What its weights are called there, if other models have them, too; empty: as the model."""
    health: str = "/health"
    """For a command: the path that answers with 200 once it serves."""
    needs: Mapping[str, int] = field(default_factory=dict)
    """For a command: device -> bytes that it takes."""
    snapshot: Path | None = None
    """Where its weights are on disk, for an engine whose weights are in GMS: one that may write them reads them from
    there (`gms.snapshot.from_snapshot`). Where there is no snapshot yet, one is made once they are loaded.
    """
    failing: Callable[[str], None] = lambda why: None
    """Says why the engine is about to end."""
    vouch: Callable[[int], None] = lambda pid: None
    """Makes a child one of the engine's processes that can't join by itself. It touches no device before."""

    @property
    def gms_dir(self) -> Path:
        return self.host_dir or self.run_dir

    @property
    def name(self) -> str:
        """Among all engines of a host, or of the run directory."""
        return self.engine_id if self.host_dir is None else f"{self.run_dir.name}.{self.engine_id}"

    @property
    def model(self) -> str:
        """Which of a host's models it is; empty where there is one."""
        return "" if self.host_dir is None else self.run_dir.name

    @property
    def region(self) -> str:
        """What its weights are called in GMS; empty where there is one model."""
        return self.weights or self.model


@dataclass(frozen=True)
class Listen:
    """Where the endpoint is to be: a Unix socket, or a host and a port. An empty host means every address."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def text(self) -> str:
        """As `--listen` takes it."""
        return f"unix:{self.path}" if self.path else tcp.named(self.host, self.port)

    @property
    def url(self) -> str:
        """Where clients on this machine, or in this pod, find it."""
        return f"unix:{self.path}" if self.path else tcp.url(self.host, self.port)

    def bind(self) -> tuple[socket.socket, ServerSocket | None]:
        """A listening socket that doesn't block; for a path also its owner, which takes the name away when it is
        closed. Raises CannotServe.
        """
        try:
            if not self.path:
                return tcp.listen(self.host, self.port), None
            path = Path(self.path)
            owner = ServerSocket(path.parent, path.name)
            return owner.open(), owner
        except tcp.CannotListen as error:
            raise CannotServe(f"the engine {error}; give another --listen") from None
        except OSError as error:
            raise CannotServe(f"the engine can't listen on {self.url}: {error.strerror or error}") from None


_OF_A_PAIR = (
    "Both engines of a pair have the same arguments. A new model comes in when no engine has the old weights any more: "
    "end both engines and GMS (failover down; in Kubernetes delete the pod), and start them with the new arguments"
)
_OF_SHARED = (
    "Models that share the weights {region} have the same arguments: give this one another name for its weights in "
    "models.yaml (weights: NAME). Where no other model has these: gmsctl drop {region}"
)


class CannotRun(Exception):
    """A person has to put something right before this engine can be started; another start would change nothing."""

    def __init__(self, why: str, exit_code: int = EX_USAGE) -> None:
        super().__init__(why)
        self.exit_code = exit_code


def other_weights(device: str, differs: str, region: str) -> CannotRun:
    """An engine finds other weights than its own. `region`: as in `Setting`."""
    way_out = _OF_SHARED.format(region=region) if region else _OF_A_PAIR
    return CannotRun(f"{device} has the weights of another model: {differs}. {way_out}", EX_OTHER_WEIGHTS)


class CannotServe(Exception):
    """It can't listen at this address: it is a mistake, or another program has the port. Followed by another start."""


class WokeWrong(Exception):
    """After a wake the engine answers a known question in another way than before: what it has isn't what it had."""


class NotStarted(Exception):
    """A call came before `start`, or after `stop`: the order stands above."""


class WorkerFailed(Exception):
    """Another of the engine's processes has ended, or said that it can't go on. Its own log says why."""


def started(thing: T | None) -> T:
    if thing is None:
        raise NotStarted("the engine has not been started, or was stopped")
    return thing


@dataclass(frozen=True)
class Health:
    queued: int
    """Requests that wait or are being worked on."""
    steps: int
    """Grows with every step that the engine finishes. With work queued and no step for `--stall-s` it is stalled."""
    detail: str = ""
    """Why the engine isn't well, when it says so itself."""


class Engine(Protocol):
    def start(self) -> None:
        """Init: weights according to the role, processes, sizes, everything but the endpoint's address. Blocks."""

    def sleep(self) -> None:
        """Gives the device back: the weights are unmapped, and there is no KV cache. From an engine that serves it
        takes the endpoint, too, and breaks off what its drain has left. Raises when a rank doesn't answer; the process
        ends then.
        """

    def needs(self) -> dict[str, int]:
        """Device -> bytes that must be free for `wake`. Known after `start`."""

    def well(self, fresh: bool = True) -> bool:
        """Whether a sleeping engine could wake now: its processes live and its weights are there. Answers quickly.

        It is asked about once a second while the engine waits, then with `fresh` false: an answer that was found a
        while ago will do where asking costs something.
        """

    def wake(self) -> None:
        """Maps the weights at the same addresses and allocates the KV cache. Raises when it can't; the process ends
        then.
        """

    def serve(self, listen: Listen) -> None:
        """Binds the endpoint. The application was built in `start`. Raises CannotServe.

        It is called again when the socket was removed under an engine that serves: the engine binds once more
        and lets go of the old socket. Connections that are there stay.
        """

    def health(self) -> Health: ...

    def drain(self, timeout_s: float) -> None:
        """Takes no new request and finishes those that it has. Returns when it has, or when the time is over. The
        caller has withdrawn the endpoint before.
        """

    def resume(self) -> None:
        """A switchover was called off: the engine takes requests again. May be called again."""

    def stop(self) -> None:
        """Closes the endpoint and ends the engine's other processes. The caller ends this one."""


@runtime_checkable
class WaitsForOthers(Protocol):
    """An engine that needs something from others before it can start, as a shadow needs its weights.

    An engine that waited for the other one while it holds the `init` permit, which the other needs for loading, would
    wait for ever. So it waits before it asks for the permit.
    """

    def await_others(self) -> None:
        """Blocks until `start` has what it needs. Touches no device."""


@runtime_checkable
class SaysWhatItTakes(Protocol):
    """An engine that says what decides which requests it takes, so that a standby with other arguments isn't taken for
    redundancy.
    """

    def takes(self) -> dict[str, str]:
        """Readable values by the name of the argument, such as `--max-model-len`: `8192`. Nothing secret. Known after
        `start`.
        """


@runtime_checkable
class AnswersKnown(Protocol):
    """An engine that can be asked what it always answers in the same way. A sleep that lost something (scales, an
    adapter, a part of the weights) ends an engine in rubbish that it takes for answers.
    """

    def known(self) -> Sequence[int]:
        """Called between `wake` and `serve`, when no client can ask anything: the first tokens that follow a fixed
        prompt. They are the same after each wake.
        """


@runtime_checkable
class ServesElsewhere(Protocol):
    """An engine that has an address of its own, and binds none that it is given."""

    def own_address(self) -> Listen:
        """Known after `wake`."""


@runtime_checkable
class GoesOn(Protocol):
    """An engine that goes on with what its predecessor left: a KV cache that outlives its engine."""

    def granted(self, token: int, proven: bool) -> None:
        """The lock is this engine's; `wake` comes next. `proven`: no process writes any more to what the predecessor
        left, which had to be proven and not presumed.
        """

    def leave(self) -> None:
        """It has drained, and this process ends: what a successor goes on with is given back in order. Nothing writes
        to it afterwards, and this end is no death. What can't be given back soon is left as a death leaves it. Doesn't
        raise.
        """


@runtime_checkable
class SaysWhatItKept(Protocol):
    """An engine that says what it goes on with, so that clients needn't take turns for what isn't computed again."""

    def kept(self) -> tuple[int, int] | None:
        """Known after `wake`: it has all of its predecessor's KV cache, which has room for so many tokens, in blocks of
        so many. None: it has nothing of it, or not all.
        """
