"""The table, line by line while it comes about, and the same as JSON."""

import sys
from typing import Any

from tools.vmm_refcount.stage import Step

MIB = 1 << 20
_WIDTH = 70


def mib(count: int) -> str:
    return f"{count / MIB:.0f} MiB" if count % MIB == 0 else f"{count / MIB:.1f} MiB"


def signed(count: int) -> str:
    return f"{'-' if count < 0 else '+'}{mib(abs(count))}"


class Table:
    """Prints each step as soon as it is done: on a GPU one can take seconds."""

    def __init__(self) -> None:
        self._story = ""

    def head(self, lines: list[str]) -> None:
        print("\n".join(lines), end="\n\n")
        print(f"{'':{_WIDTH}}{'expected':>11}{'seen':>11}{'in use':>11}   Decision 7 saw")

    def step(self, step: Step) -> None:
        if step.story != self._story:
            self._story = step.story
            print(f"\n{step.story}")
        expected = "" if step.expected_bytes is None else signed(step.expected_bytes)
        mark = "   " if step.fits else " ! "
        line = f"{mark}{step.what:{_WIDTH - 3}}{expected:>11}{signed(step.seen_bytes):>11}{mib(step.used_bytes):>11}"
        print(f"{line}   {step.decision_7 or ''}".rstrip())
        if step.refused:
            print(f"      refused: {step.refused}")
        sys.stdout.flush()

    def end(self, steps: list[Step]) -> None:
        wrong = [step for step in steps if not step.fits]
        print()
        for step in wrong:
            print(f"differs: {step.story}: {step.what}")
        checked = sum(step.expected_bytes is not None for step in steps)
        if not wrong:
            print(
                f"All {checked} expectations hold: memory lives exactly as long as a handle, a descriptor or a mapping."
            )


def as_json(steps: list[Step], about: dict[str, object]) -> dict[str, Any]:
    return {**about, "as_expected": all(step.fits for step in steps), "steps": [step.as_json() for step in steps]}
