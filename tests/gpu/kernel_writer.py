"""A process whose kernel writes for ever, for `memory.py`: python -m tests.gpu.kernel_writer UUID DESCRIPTOR SIZE.

It maps the memory behind the descriptor, launches one kernel that never ends, says so on standard output, and waits to
be killed. What it can't do it says, and ends.
"""

import sys
import time
from typing import Any

from gms.memory import DeviceError
from gms.memory.cuda import CudaMemory, devices

BLOCKS = 64
"""Each counts up in eight bytes of its own, one after the other."""
_PTX = b"""
.version 6.4
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 where)
{
    .reg .u64 %at, %slot, %number;
    .reg .u32 %block;
    ld.param.u64 %at, [where];
    cvta.to.global.u64 %at, %at;
    mov.u32 %block, %ctaid.x;
    mul.wide.u32 %slot, %block, 8;
    add.u64 %at, %at, %slot;
    mov.u64 %number, 0;
again:
    add.u64 %number, %number, 1;
    st.volatile.global.u64 [%at], %number;
    bra again;
}
\0"""


def main(uuid: str, descriptor: int, size: int) -> None:
    from cuda.bindings import driver

    def call(name: str, *arguments: object) -> Any:
        result, *given = getattr(driver, name)(*arguments)
        if result != driver.CUresult.CUDA_SUCCESS:
            raise DeviceError(f"{name} says {result.name}")
        return given[0] if given else None

    memory = CudaMemory(uuid)
    address = memory.reserve(size)
    memory.map(address, memory.import_(descriptor, size), size=size, writable=True)
    try:
        context = call("cuDevicePrimaryCtxRetain", devices().index(uuid))
        call("cuCtxSetCurrent", context)
        kernel = call("cuModuleGetFunction", call("cuModuleLoadData", _PTX), b"spin")
        import ctypes

        call("cuLaunchKernel", kernel, BLOCKS, 1, 1, 1, 1, 1, 0, 0, ((address,), (ctypes.c_uint64,)), 0)
    except (DeviceError, RuntimeError) as error:
        print(f"cannot: {error}", flush=True)
        return
    print("writes", flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
