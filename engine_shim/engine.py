"""What an engine must be able to do to be one of a pair. Two do: `reference` and `vllm`.

The calls come in this order, from one thread (`run.py`), and whatever fails on the way ends the process:

    start -> sleep -> wake -> serve -> [drain -> [resume -> drain ...]] -> stop

`well`, `needs` and `health` come from other threads at any time.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Listen:
    """Where the endpoint is to be: a Unix socket or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def url(self) -> str:
        return f"unix:{self.path}" if self.path else f"http://{self.host}:{self.port}"


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

    def well(self) -> bool:
        """Asleep: could it wake now? Its processes live, its weights are there. Quick."""
        ...

    def wake(self) -> None:
        """Weights at the same addresses, KV cache allocated. Raises when it can't; the process ends then."""
        ...

    def serve(self, listen: Listen) -> None:
        """Binds the endpoint. The application was built in `start`."""
        ...

    def health(self) -> Health: ...

    def drain(self, timeout_s: float) -> None:
        """Takes no new request and finishes those that it has; returns when it has, or when the time is over. The
        endpoint is withdrawn by the caller before."""
        ...

    def resume(self) -> None:
        """A switchover was called off: it takes requests again."""
        ...

    def stop(self) -> None:
        """Closes the endpoint and ends its other processes. The caller ends this one."""
        ...
