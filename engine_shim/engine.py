"""What an engine must be able to do to be one of a pair. Two do: `reference` and `vllm`.

The calls come in this order, from one thread (`run.py`), and whatever fails on the way ends the process:

    [await_others ->] start -> sleep -> wake -> serve -> [drain -> [resume -> drain ...]] -> stop

A `drain` for a switchover comes from a thread of its own, and `resume` while it still waits: the engine takes requests
again at once then, whatever the drain does afterwards. `well`, `needs` and `health` come from others at any time.

What can only fail again (arguments that are wrong, weights of another model) is an `engines.CantRun`: up to the end of
`start` it ends the shim, too, with exit code 64. Anything else is tried again.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Listen:
    """Where the endpoint is to be: a Unix socket or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def url(self) -> str:
        return f"unix:{self.path}" if self.path else f"http://{self.host}:{self.port}"


class CannotServe(Exception):
    """Nobody can listen there: a person's mistake, or a port that somebody else has. Tried again like any failure."""


class WorkerFailed(Exception):
    """Another of the engine's processes is gone, or said that it can't. Why, its own log tells."""


@dataclass(frozen=True)
class Health:
    queued: int
    """Requests that wait or are being worked on."""
    steps: int
    """Grows with every step that the engine finishes; with work queued and no step for `--stall-s` it is stalled."""
    detail: str = ""
    """Why it isn't well, when it says so itself."""


class Engine(Protocol):
    def start(self) -> None:
        """Init: weights by the engine's role, processes, sizes, everything but the endpoint's address. Blocks."""
        ...

    def sleep(self) -> None:
        """Gives the device back: weights unmapped, no KV cache."""
        ...

    def needs(self) -> dict[str, int]:
        """Device -> bytes that must be free for `wake`. Known after `start`."""
        ...

    def well(self, fresh: bool = True) -> bool:
        """Asleep: could it wake now? Its processes live, its weights are there. Quick. Not `fresh`, about every second
        while it waits: what was found a while ago will do, where to ask costs something.
        """
        ...

    def wake(self) -> None:
        """Weights at the same addresses, KV cache allocated. Raises when it can't; the process ends then."""
        ...

    def serve(self, listen: Listen) -> None:
        """Binds the endpoint. The application was built in `start`. Raises CannotServe."""
        ...

    def health(self) -> Health: ...

    def drain(self, timeout_s: float) -> None:
        """Takes no new request and finishes those that it has; returns when it has, or when the time is over. The
        endpoint is withdrawn by the caller before."""
        ...

    def resume(self) -> None:
        """A switchover was called off: it takes requests again. May be called again."""
        ...

    def stop(self) -> None:
        """Closes the endpoint and ends its other processes. The caller ends this one."""
        ...


@runtime_checkable
class Patient(Protocol):
    """An engine that needs something from others before it can start: a shadow its weights. Who waits for the other
    engine while it has the `init` permit, which the other needs for loading, would wait for ever.
    """

    def await_others(self) -> None:
        """Blocks until `start` won't. Touches no device."""
        ...
