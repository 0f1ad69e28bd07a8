/* An EMULATED libcuda.so.1 (see driver.h): memcpy and memset.
 *
 * A write through a read-only mapping breaks the context for good (CUDA_ERROR_ILLEGAL_ADDRESS from then on), as a GPU's
 * fault does. That a copy by the driver is answered so, and not refused beforehand, is chosen.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

static CUresult checked(CUdeviceptr address, size_t size, bool write, bool *is_device_memory, struct context *context) {
    pthread_mutex_lock(&driver_lock);
    CUresult result = may_access(address, size, write, is_device_memory);
    if (result == ILLEGAL_ADDRESS)
        context->broken = result;
    pthread_mutex_unlock(&driver_lock);
    return result;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t size, bool to_device, bool from_device) {
    struct context *context;
    bool is_device_memory;
    CUresult result = current_context(&context);
    if (result || !size)
        return result;
    if (!to || !from)
        return INVALID_VALUE;
    result = checked(from, size, false, &is_device_memory, context);
    if (!result && from_device && !is_device_memory)
        result = INVALID_VALUE;
    if (result)
        return result;
    result = checked(to, size, true, &is_device_memory, context);
    if (!result && to_device && !is_device_memory)
        result = INVALID_VALUE;
    if (!result)
        memmove((void *)to, (void *)from, size);
    return result;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    return copy(to, (CUdeviceptr)from, size, true, false);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    return copy((CUdeviceptr)to, from, size, false, true);
}

static CUresult fill(CUdeviceptr to, const void *pattern, size_t width, size_t count) {
    struct context *context;
    bool is_device_memory;
    CUresult result = current_context(&context);
    if (result || !count)
        return result;
    if (to % width)
        return INVALID_VALUE;
    result = checked(to, width * count, true, &is_device_memory, context);
    if (!result && !is_device_memory)
        result = INVALID_VALUE;
    for (size_t i = 0; !result && i < count; i++)
        memcpy((char *)to + i * width, pattern, width);
    return result;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return fill(to, &value, 1, count);
}
