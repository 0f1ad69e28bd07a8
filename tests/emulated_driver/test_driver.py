"""The emulated driver itself, called as a stranger would: by the real bindings, without our maker in between."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping

import pytest

from tests import emulated_driver

BEGIN = """
from cuda.bindings import driver as d

def call(name, *arguments):
    result, *given = getattr(d, name)(*arguments)
    return result.name if result else given[0] if given else None

MIB = 1 << 20
call("cuInit", 0)
kind = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
prop = d.CUmemAllocationProp()
prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.requestedHandleTypes = kind
access = d.CUmemAccessDesc()
access.location.type = prop.location.type
access.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE

def create(size):
    got = call("cuMemCreate", size, prop, 0)
    return got if isinstance(got, str) else int(got)

def reserve(size):
    return int(call("cuMemAddressReserve", size, 0, 0, 0))
"""


@pytest.fixture
def gpu() -> Iterator[Mapping[str, str]]:
    yield from emulated_driver.one_gpu(capacity=16 << 20)


def run(script: str, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_says_that_it_is_emulated(gpu: Mapping[str, str]) -> None:
    assert emulated_driver.NAME in run("print(call('cuDeviceGetName', 64, 0).decode())", gpu)


def test_bad_use_gives_the_drivers_error_codes(gpu: Mapping[str, str]) -> None:
    script = """
    handle, address = create(4 * MIB), reserve(8 * MIB)
    print(create(MIB), create(0), create(64 * MIB))
    for at, size, offset in ((0, 6 * MIB, 0), (0, MIB, 0), (8 * MIB, 2 * MIB, 0), (0, 4 * MIB, 2 * MIB)):
        print(call("cuMemMap", address + at, size, offset, handle, 0))
    print(call("cuMemSetAccess", address, 4 * MIB, [access], 1))
    print(call("cuMemMap", address, 4 * MIB, 0, handle, 0), call("cuMemMap", address, 2 * MIB, 0, handle, 0))
    print(call("cuMemUnmap", address, 2 * MIB), call("cuMemAddressFree", address, 8 * MIB))
    print(call("cuMemUnmap", address, 4 * MIB), call("cuMemUnmap", address, 4 * MIB))
    print(call("cuMemAddressFree", address, 4 * MIB), call("cuMemAddressFree", address, 8 * MIB))
    print(call("cuMemRelease", handle), call("cuMemRelease", handle))
    print(call("cuMemExportToShareableHandle", handle, kind, 0), call("cuMemImportFromShareableHandle", 0, kind))
    print(call("cuMemGetInfo"), call("cuMemcpyHtoD", address, b"x", 1), call("cuDeviceGet", 1))
    """
    bad, full, no_context = "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_INVALID_CONTEXT"
    assert run(script, gpu).splitlines() == [
        f"{bad} {bad} {full}",
        *[bad] * 4,
        bad,
        f"None {bad}",
        f"{bad} {bad}",
        f"None {bad}",
        f"{bad} None",
        f"None {bad}",
        f"{bad} {bad}",
        f"{no_context} {no_context} CUDA_ERROR_INVALID_DEVICE",
    ]


def test_free_memory_in_pieces_is_still_one_allocation(gpu: Mapping[str, str]) -> None:
    script = """
    pieces = [create(2 * MIB) for _ in range(8)]
    for at in (1, 3, 6):
        call("cuMemRelease", pieces[at])
    handle, address = create(6 * MIB), reserve(6 * MIB)
    context = call("cuDevicePrimaryCtxRetain", 0)
    call("cuCtxSetCurrent", context)
    print(call("cuMemMap", address, 6 * MIB, 0, handle, 0), call("cuMemSetAccess", address, 6 * MIB, [access], 1))
    data, back = bytes(range(256)) * (6 * MIB // 256), bytearray(6 * MIB)
    print(call("cuMemcpyHtoD", address, data, len(data)), call("cuMemcpyDtoH", back, address, len(back)), back == data)
    part = reserve(2 * MIB)
    print(call("cuMemMap", part, 2 * MIB, 4 * MIB, handle, 0), call("cuMemSetAccess", part, 2 * MIB, [access], 1))
    call("cuMemsetD8", part, 7, 2 * MIB)
    call("cuMemcpyDtoH", back, address, len(back))
    print(back == data[: 4 * MIB] + bytes([7]) * (2 * MIB))
    """
    assert run(script, gpu).splitlines() == ["None None", "None None True", "None None", "True"]


def test_a_mapping_gives_its_handle_back_and_keeps_it_alive(gpu: Mapping[str, str]) -> None:
    script = """
    handle, address = create(2 * MIB), reserve(2 * MIB)
    call("cuMemMap", address, 2 * MIB, 0, handle, 0)
    call("cuMemRelease", handle)
    print(call("cuMemRelease", handle))
    again = int(call("cuMemRetainAllocationHandle", address))
    print(again == handle, call("cuMemUnmap", address, 2 * MIB), create(16 * MIB))
    print(call("cuMemRelease", again), isinstance(create(16 * MIB), int))
    """
    full = "CUDA_ERROR_OUT_OF_MEMORY"
    assert run(script, gpu).splitlines() == ["CUDA_ERROR_INVALID_VALUE", f"True None {full}", "None True"]


def test_a_forked_child_has_no_driver_as_with_the_real_one(gpu: Mapping[str, str]) -> None:
    script = """
    import os
    create(2 * MIB)
    pid = os.fork()
    if pid == 0:
        print(call("cuDeviceGetCount"), call("cuMemCreate", 2 * MIB, prop, 0), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    """
    assert run(script, gpu).split() == ["CUDA_ERROR_NOT_INITIALIZED"] * 2
