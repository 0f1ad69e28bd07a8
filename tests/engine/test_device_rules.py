"""What the kernel keeps of the reference engine's rules: weights can't be written, and asleep they aren't there.
Most of what an engine does to its device: `reference/test_device.py`.
"""

from collections.abc import Callable

import pytest

from reference_engine.engine import ReferenceEngine
from reference_engine.model import Floats
from tests.gms.container import Container
from tests.reference_engine.serving import SMALL
from tests.reference_engine.test_device import container, engines

__all__ = ["container", "engines"]  # fixtures


def mapped(address: int) -> str:
    """How the page there is mapped: "r--", say, and nothing where it isn't to be had."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if first <= address < last:
                return line.split()[1][:3].replace("---", "")
    return ""


def some(engine: ReferenceEngine) -> Floats:
    assert engine._crew is not None
    return next(iter(engine._crew.main.weights.values()))


def test_weights_are_read_only(container: Container, engines: Callable[..., ReferenceEngine]) -> None:
    container.serves()
    for engine in (engines("primary"), engines("shadow")):
        engine.start()
        for _ in range(2):  # as they come, and after a wake
            assert mapped(some(engine).ctypes.data) == "r--"
            engine.sleep()
            engine.wake()
    alone = ReferenceEngine(SMALL)
    alone.start()
    try:
        with pytest.raises(ValueError):
            some(alone)[...] = 0
    finally:
        alone.stop()


def test_asleep_the_weights_are_not_mapped(container: Container, engines: Callable[..., ReferenceEngine]) -> None:
    container.serves()
    engine = engines()
    engine.start()
    address = some(engine).ctypes.data
    engine.sleep()
    assert not mapped(address)
    engine.wake()
    assert some(engine).ctypes.data == address
    assert mapped(address)
