"""What only the cuda maker has: devices by UUID, a driver that may be missing, contexts, the driver's own words.

On the emulated driver; the common promises are in `test_memory.py`, the same on a real GPU in `tests/gpu`.
"""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gms.memory import DeviceError
from sidecar.terminal.extras import how_to_get
from tests import emulated_driver
from tests.gms.memory.remote import Died, Remote
from tests.support.processes import ROOT
from tests.support.waiting import DEADLINE_S

MAKER = "cuda on the emulated driver"
MIB = 1 << 20
UUIDS = [f"GPU-656d756c-6174-6564-0000-00000000000{number}" for number in range(3)]


def ask(script: str, environment: Mapping[str, str]) -> Any:
    """What a process in that environment gives as `answer`."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script) + "\nimport json; print(json.dumps(answer))"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=True,
    )
    return json.loads(done.stdout)


def refused(expression: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """The error's type and its words."""
    kind, words = ask(
        f"""
        from gms.memory.cuda import CudaMemory, devices
        from gms.memory import DeviceError
        try:
            {expression}
        except DeviceError as error:
            answer = type(error).__name__, str(error)
        """,
        environment,
    )
    return kind, words


@pytest.fixture
def gpus(tmpfs: Path) -> Mapping[str, str]:
    """The variables with which a process sees three emulated GPUs of 32 MiB."""
    missing = emulated_driver.why_not()
    if missing:
        pytest.skip(missing)
    return emulated_driver.environment(tmpfs, devices=3, capacity=32 * MIB)


Start = Callable[..., Remote]


@pytest.fixture
def start(gpus: Mapping[str, str]) -> Iterator[Start]:
    """One more process, which works on the first GPU that it sees."""
    remotes: list[Remote] = []

    def one_more(**environment: str) -> Remote:
        remotes.append(Remote(MAKER, {**gpus, **environment}))
        return remotes[-1]

    yield one_more
    for remote in remotes:
        remote.kill()


# --- which device


def test_devices_are_named_by_uuid_in_the_text_that_nvml_gives(gpus: Mapping[str, str]) -> None:
    script = """
    import pynvml
    from gms.memory.cuda import devices
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    answer = devices(), [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    """
    by_cuda, by_nvml = ask(script, gpus)
    assert by_cuda == UUIDS
    assert by_nvml == UUIDS[::-1]  # the other order, as on real machines: only the names can be trusted


def test_free_memory_is_that_of_the_device_that_was_named_whatever_its_number(start: Start) -> None:
    first, last = start(), start(CUDA_VISIBLE_DEVICES=f"{UUIDS[2]},{UUIDS[0]}")
    assert (first.ask("device"), last.ask("device")) == (UUIDS[0], UUIDS[2])
    last.create(8 * MIB)
    assert (first.free(), last.free()) == (32 * MIB, 24 * MIB)


def test_a_process_sees_only_what_is_visible_to_it(gpus: Mapping[str, str]) -> None:
    assert ask("from gms.memory.cuda import devices\nanswer = devices()", {**gpus, "CUDA_VISIBLE_DEVICES": "2,1"}) == [
        UUIDS[2],
        UUIDS[1],
    ]
    kind, words = refused(f"CudaMemory('{UUIDS[0]}')", {**gpus, "CUDA_VISIBLE_DEVICES": "2,1"})
    assert kind == "DeviceError" and UUIDS[0] in words and UUIDS[2] in words


def test_memory_of_another_gpu_is_refused(start: Start) -> None:
    here, there = start(), start(CUDA_VISIBLE_DEVICES="1,0")
    fd = here.export(here.create(2 * MIB))
    for refuse in (lambda: there.import_(fd, 2 * MIB), lambda: there.identity(fd)):
        with pytest.raises(DeviceError, match=UUIDS[1]):
            refuse()
    os.close(fd)
    assert there.free() == 32 * MIB


def test_an_identity_tells_the_gpu_and_held_tells_nothing(start: Start) -> None:
    owner = start()
    fd = owner.export(owner.create(2 * MIB))
    assert owner.identity(fd) == f"cuda:{UUIDS[0]}"
    assert owner.held(f"cuda:{UUIDS[0]}") is None
    with pytest.raises(DeviceError):
        owner.held(f"cuda:{UUIDS[1]}")
    os.close(fd)


# --- contexts


def test_a_server_takes_no_context_and_a_client_one_until_it_closes(start: Start) -> None:
    context = {"EMULATED_CUDA_CONTEXT_BYTES": str(4 * MIB)}
    server, client, observer = start(**context), start(**context), start(**context)
    fd = server.export(server.create(2 * MIB))
    server.identity(fd)
    client.import_(fd, 2 * MIB)
    os.close(fd)
    assert observer.free() == 30 * MIB
    handle = client.create(2 * MIB)
    address = client.mapped(handle, 2 * MIB)
    assert observer.free() == 24 * MIB
    client.unmap(address, 2 * MIB)
    client.mapped(handle, 2 * MIB)
    assert observer.free() == 24 * MIB  # the same context
    client.close_memory()
    assert observer.free() == 30 * MIB


def test_a_client_that_finds_no_room_for_its_context_is_told(start: Start) -> None:
    client = start(EMULATED_CUDA_CONTEXT_BYTES=str(4 * MIB))
    handle = client.create(30 * MIB)
    address = client.reserve(30 * MIB)
    with pytest.raises(DeviceError, match=r"context.*CUDA_ERROR_OUT_OF_MEMORY"):
        client.map(address, handle, size=30 * MIB, writable=True)
    client.free_address(address, 30 * MIB)


# --- the driver's own words


def test_an_error_has_the_drivers_name_and_text_and_the_device(start: Start) -> None:
    memory = start(EMULATED_CUDA_OFFSETS="no")
    handle, address = memory.create(4 * MIB), memory.reserve(4 * MIB)
    with pytest.raises(DeviceError) as error:
        memory.map(address, handle, size=2 * MIB, offset=2 * MIB, writable=True)
    for said in (UUIDS[0], "cuMemMap", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"):
        assert said in str(error.value)


def test_a_store_through_a_read_only_mapping_kills_its_process(start: Start, gpus: Mapping[str, str]) -> None:
    script = """
    import ctypes
    from gms.memory.cuda import CudaMemory, devices
    memory = CudaMemory(devices()[0])
    handle, address = memory.create(memory.granularity), memory.reserve(memory.granularity)
    memory.map(address, handle, size=memory.granularity, writable=False)
    ctypes.memset(address, 1, 1)
    answer = None
    """
    with pytest.raises(subprocess.CalledProcessError) as error:
        ask(script, gpus)
    assert error.value.returncode == -11


def test_a_write_by_the_driver_through_a_read_only_mapping_ends_the_context_for_good(start: Start) -> None:
    offender = start()
    handle = offender.create(2 * MIB)
    good, bad = offender.mapped(handle, 2 * MIB), offender.mapped(handle, 2 * MIB, writable=False)
    with pytest.raises((DeviceError, Died)):
        offender.poke(bad, b"oops")
    with pytest.raises((DeviceError, Died)):
        offender.peek(good, 4)


# --- what may be missing


def test_nothing_of_cuda_is_loaded_before_a_device_is_asked_for() -> None:
    script = "import sys\nimport gms.memory.cuda\nanswer = [name for name in sys.modules if name in ('cuda', 'pynvml')]"
    assert ask(script, {}) == []


WITHOUT = "import sys; sys.modules['{}'] = None; "


@pytest.mark.parametrize(
    ("expression", "changes", "said"),
    [
        (WITHOUT.format("cuda.bindings") + "devices()", {}, how_to_get("cuda")),
        (WITHOUT.format("pynvml") + f"CudaMemory('{UUIDS[0]}')", {}, "nvidia-ml-py"),
        ("devices()", {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_ERROR_NO_DEVICE"),
        ("devices()", {"EMULATED_CUDA_BYTES": "nonsense"}, "CUDA_ERROR_SYSTEM_NOT_READY"),
    ],
)
def test_what_is_missing_is_said_with_the_way_out(
    gpus: Mapping[str, str], expression: str, changes: Mapping[str, str], said: str
) -> None:
    kind, words = refused(expression, {**gpus, **changes})
    assert kind == "Unusable"
    assert said in words


def test_a_machine_without_the_driver_is_told_so() -> None:
    # Where there is a driver after all, it shows no GPU.
    kind, words = refused("devices()", {"LD_LIBRARY_PATH": "", "CUDA_VISIBLE_DEVICES": ""})
    assert kind == "Unusable" and "driver" in words
