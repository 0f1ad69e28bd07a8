/* An EMULATED libcuda.so.1 (see driver.h): memcpy, memset, streams and events. Everything is done when the call returns,
 * which every order that a stream may ask for allows.
 *
 * A write through a read-only mapping breaks the context for good (CUDA_ERROR_ILLEGAL_ADDRESS from then on), as a GPU's
 * fault does. That a copy by the driver is answered so, and not refused beforehand, is chosen.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

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

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
    return copy(to, from, size, true, true);
}

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
    return copy(to, from, size, false, false);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *stream) {
    (void)stream;
    return copy(to, (CUdeviceptr)from, size, true, false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *stream) {
    (void)stream;
    return copy((CUdeviceptr)to, from, size, false, true);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream) {
    (void)stream;
    return copy(to, from, size, true, true);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream) {
    (void)stream;
    return copy(to, from, size, false, false);
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

EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
    return fill(to, &value, 2, count);
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    return fill(to, &value, 4, count);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, void *stream) {
    (void)stream;
    return fill(to, &value, 1, count);
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, void *stream) {
    (void)stream;
    return fill(to, &value, 4, count);
}

/* --- streams and events ------------------------------------------------------------------------------------------- */

struct stream {
    unsigned flags;
};

struct event {
    struct timespec recorded;
    bool has;
};

EXPORT CUresult cuStreamCreateWithPriority(struct stream **stream, unsigned flags, int priority) {
    CUresult result = current_context(NULL);
    (void)priority;
    if (result || !stream)
        return result ? result : INVALID_VALUE;
    *stream = calloc(1, sizeof **stream);
    if (!*stream)
        return OUT_OF_MEMORY;
    (*stream)->flags = flags;
    return SUCCESS;
}

EXPORT CUresult cuStreamCreate(struct stream **stream, unsigned flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

EXPORT CUresult cuStreamDestroy_v2(struct stream *stream) {
    CUresult result = current_context(NULL);
    if (result || !stream)
        return result ? result : INVALID_HANDLE;
    free(stream);
    return SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(struct stream *stream) {
    (void)stream;
    return current_context(NULL);
}

EXPORT CUresult cuStreamQuery(struct stream *stream) {
    (void)stream;
    return current_context(NULL);
}

EXPORT CUresult cuStreamWaitEvent(struct stream *stream, struct event *event, unsigned flags) {
    (void)stream, (void)flags;
    return event ? current_context(NULL) : INVALID_HANDLE;
}

EXPORT CUresult cuEventCreate(struct event **event, unsigned flags) {
    CUresult result = current_context(NULL);
    (void)flags;
    if (result || !event)
        return result ? result : INVALID_VALUE;
    *event = calloc(1, sizeof **event);
    return *event ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuEventRecord(struct event *event, struct stream *stream) {
    CUresult result = current_context(NULL);
    (void)stream;
    if (result || !event)
        return result ? result : INVALID_HANDLE;
    clock_gettime(CLOCK_MONOTONIC, &event->recorded);
    event->has = true;
    return SUCCESS;
}

EXPORT CUresult cuEventSynchronize(struct event *event) {
    return event ? current_context(NULL) : INVALID_HANDLE;
}

EXPORT CUresult cuEventQuery(struct event *event) {
    return event ? current_context(NULL) : INVALID_HANDLE;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, struct event *from, struct event *to) {
    CUresult result = current_context(NULL);
    if (result || !milliseconds || !from || !to || !from->has || !to->has)
        return result ? result : INVALID_HANDLE;
    *milliseconds = (float)(to->recorded.tv_sec - from->recorded.tv_sec) * 1e3f +
                    (float)(to->recorded.tv_nsec - from->recorded.tv_nsec) / 1e6f;
    return SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(struct event *event) {
    CUresult result = current_context(NULL);
    if (result || !event)
        return result ? result : INVALID_HANDLE;
    free(event);
    return SUCCESS;
}
