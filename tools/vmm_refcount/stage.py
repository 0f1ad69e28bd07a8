"""Steps of the experiment. Each says what it does and what should become of the memory in use; it is measured before
and after, from outside.

Memory that should be free may take its time (a driver tears down behind its process), so that is waited for, up to a
bound, and the time is written down. Memory of a GPU that should not be free is looked at again after a while, so that a
driver that is merely slow isn't taken for one that keeps it; the kernel's locks are never late.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from gms.memory import DeviceError
from tools.vmm_refcount.meters import Meter
from tools.vmm_refcount.processes import Process

SETTLE_S = 5.0
LOOK_AGAIN_S = 0.2
NVML_TOLERANCE = 16 << 20  # what the driver takes beside the memory: page tables, handles


@dataclass(frozen=True)
class Step:
    """One line of the table."""

    story: str
    what: str
    expected_bytes: int | None
    """How much more should be in use after it. None: whatever it is, it is only written down."""
    seen_bytes: int
    used_bytes: int
    """In use after it, in all."""
    took_s: float
    decision_7: str | None
    """What the specification's table has in this place."""
    refused: str | None = None
    """The driver's word, when the step could not be done at all."""
    fits: bool = True

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Abandoned(Exception):
    """A step was refused, so the rest of its story makes no sense."""


class Stage:
    """One device, the processes of the story that is being told, and the steps of all stories."""

    def __init__(
        self, kind: str, device: str, size: int, half: int, meter: Meter, environment: Mapping[str, str]
    ) -> None:
        self.size = size
        self.half = half
        """A multiple of the granularity somewhere in the middle of it."""
        self.steps: list[Step] = []
        self._kind = kind
        self._device = device
        self._meter = meter
        self._environment = environment
        self._tolerance = 0 if meter.exact else NVML_TOLERANCE
        self._processes: list[Process] = []
        self._story = ""
        self._step_done: Callable[[Step], None] = lambda step: None

    def on_step(self, done: Callable[[Step], None]) -> None:
        """Is called after each step."""
        self._step_done = done

    def process(self, name: str) -> Process:
        """One more. It opens the device with its first request."""
        self._processes.append(Process(name, self._kind, self._device, self._environment))
        return self._processes[-1]

    @contextmanager
    def story(self, name: str) -> Iterator[None]:
        """Its processes are gone after it, and the device is as it was."""
        self._story = name
        before = self._meter.used()
        try:
            yield
        except Abandoned:
            pass
        finally:
            for process in self._processes:
                process.kill()
            self._processes.clear()
        if not self._wait_until(lambda: abs(self._meter.used() - before) <= self._tolerance):
            used = self._meter.used()
            what = "all its processes are gone, and not all of the memory is free"
            self._add(Step(name, what, 0, used - before, used, SETTLE_S, None, fits=False))

    def baseline(self) -> None:
        used = self._meter.used()
        self._add(Step(self._story, "nothing on the device yet", None, 0, used, 0.0, "3 MiB"))

    def context(self, *processes: Process) -> None:
        """Each gets its context now, so that it isn't counted as memory later. Host memory has no such thing."""
        if self._kind == "host":
            return
        for process in processes:
            before = self._meter.used()
            self.step(f"the {process.name} gets its context", process.warm, expected=None)
            process.context_bytes = self._meter.used() - before

    def step(self, what: str, do: Callable[[], object], *, expected: int | None, decision_7: str | None = None) -> None:
        """Does it, and compares. `expected` is in bytes: +size, 0 or -size."""
        before, started = self._meter.used(), time.monotonic()
        try:
            do()
        except DeviceError as error:
            after = self._meter.used()
            step = Step(self._story, what, expected, after - before, after, 0.0, decision_7, str(error), fits=False)
            self._add(step)
            raise Abandoned from error
        if expected == 0 and not self._meter.exact:
            time.sleep(LOOK_AGAIN_S)
        fits = expected is None or self._wait_until(
            lambda: abs(self._meter.used() - before - expected) <= self._tolerance
        )
        took, after = time.monotonic() - started, self._meter.used()
        self._add(Step(self._story, what, expected, after - before, after, took, decision_7, fits=fits))

    def kill(self, process: Process, *, expected: int, decision_7: str | None = None) -> None:
        """SIGKILL. Its context goes with it."""
        what = f"the {process.name} is killed"
        self.step(what, process.kill, expected=expected - process.context_bytes, decision_7=decision_7)

    def close(self) -> None:
        for process in self._processes:
            process.kill()

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self._step_done(step)

    def _wait_until(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + SETTLE_S
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True
