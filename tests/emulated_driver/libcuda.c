/* An EMULATED libcuda.so.1 (see driver.h): initialisation, devices, contexts, errors, cuGetProcAddress.
 *
 * EMULATED_CUDA_CONTEXT_BYTES   what a context takes of its device (default 0), so that a test sees who has one
 * CUDA_VISIBLE_DEVICES          as in the real driver: ordinals or UUIDs, up to the first that isn't there
 */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 13000, STACK = 32 };

pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialised_in;
static int visible[MAX_DEVICES], visible_count;
static struct context contexts[MAX_DEVICES];
static _Thread_local struct context *stack[STACK];
static _Thread_local int depth;

CUresult initialised(void) {
    /* A context doesn't survive a fork; the real driver says the same of the child. */
    return initialised_in == getpid() ? SUCCESS : NOT_INITIALIZED;
}

int device_count(void) {
    return visible_count;
}

bool known(CUdevice device) {
    return device >= 0 && device < visible_count;
}

int physical(CUdevice device) {
    return visible[device];
}

CUdevice ordinal_of(int physical_device) {
    for (int i = 0; i < visible_count; i++)
        if (visible[i] == physical_device)
            return i;
    return -1;
}

/* One entry of CUDA_VISIBLE_DEVICES; -1 when there is no such device. */
static int named(const char *name, int devices) {
    char uuid[41], *end;
    for (int i = 0; i < devices; i++) {
        books_uuid_text(i, uuid);
        if (!strncmp(name, "GPU-", 4) && !strncmp(uuid, name, strlen(name)))
            return i;
    }
    long ordinal = strtol(name, &end, 10);
    return *name && !*end && ordinal >= 0 && ordinal < devices ? (int)ordinal : -1;
}

EXPORT CUresult cuInit(unsigned flags) {
    if (flags)
        return INVALID_VALUE;
    int devices = books_devices();
    if (devices < 0)
        return SYSTEM_NOT_READY;
    pthread_mutex_lock(&driver_lock);
    if (initialised_in != getpid()) {
        const char *listed = getenv("CUDA_VISIBLE_DEVICES");
        visible_count = 0;
        if (listed) {
            char *copy = strdup(listed), *rest = copy, *name;
            while (copy && (name = strsep(&rest, ",")) && visible_count < MAX_DEVICES) {
                int device = named(name, devices);
                if (device < 0 || ordinal_of(device) >= 0)
                    break;
                visible[visible_count++] = device;
            }
            free(copy);
        } else {
            for (; visible_count < devices; visible_count++)
                visible[visible_count] = visible_count;
        }
        for (int i = 0; i < MAX_DEVICES; i++)
            contexts[i] = (struct context){.device = i, .memory = -1};
        depth = 0;
        initialised_in = getpid();
    }
    CUresult result = visible_count ? SUCCESS : NO_DEVICE;
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    if (!version)
        return INVALID_VALUE;
    *version = VERSION;
    return SUCCESS;
}

/* --- devices ------------------------------------------------------------------------------------------------------ */

static CUresult checked(CUdevice device, const void *result) {
    CUresult ready = initialised();
    if (ready)
        return ready;
    if (!result)
        return INVALID_VALUE;
    return known(device) ? SUCCESS : INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    CUresult ready = initialised();
    if (ready || !count)
        return ready ? ready : INVALID_VALUE;
    *count = visible_count;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    CUresult result = checked(ordinal, device);
    if (!result)
        *device = ordinal;
    return result;
}

EXPORT CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
    CUresult result = checked(device, name);
    if (!result)
        snprintf(name, (size_t)room, "Emulated GPU %d (host memory)", physical(device));
    return result;
}

EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) {
    CUresult result = checked(device, uuid);
    if (!result)
        books_uuid(physical(device), uuid);
    return result;
}

EXPORT CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    uint64_t capacity, used;
    CUresult result = checked(device, bytes);
    if (result)
        return result;
    if (books_state(physical(device), &capacity, &used))
        return UNKNOWN;
    *bytes = capacity;
    return SUCCESS;
}

/* The few attributes that memory's users ask for; the rest is 0, which says "no" to every question for a feature. */
EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    CUresult result = checked(device, value);
    if (result)
        return result;
    if (attribute < 1 || attribute > 200)
        return INVALID_VALUE;
    switch (attribute) {
    case 1: /* threads per block */ *value = 1024; break;
    case 10: /* warp size */ *value = 32; break;
    case 16: /* multiprocessors */ *value = 1; break;
    case 33: /* PCI bus */ *value = physical(device) + 1; break;
    case 41: /* unified addressing */ *value = 1; break;
    case 75: /* compute capability 9.0 */ *value = 9; break;
    case 102: /* virtual memory management */ *value = 1; break;
    case 103: /* handles that are descriptors */ *value = 1; break;
    default: *value = 0;
    }
    return SUCCESS;
}

/* --- contexts ----------------------------------------------------------------------------------------------------- */

CUresult current_context(struct context **context) {
    CUresult ready = initialised();
    if (ready)
        return ready;
    struct context *top = depth ? stack[depth - 1] : NULL;
    if (!top || !top->retained)
        return INVALID_CONTEXT;
    if (context)
        *context = top;
    return top->broken;
}

static void destroy(struct context *context) {
    if (context->memory >= 0)
        close(context->memory);
    context->memory = -1;
    context->retained = 0;
    context->broken = SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(struct context **result_context, CUdevice device) {
    CUresult result = checked(device, result_context);
    if (result)
        return result;
    pthread_mutex_lock(&driver_lock);
    struct context *context = &contexts[device];
    if (!context->retained) {
        const char *given = getenv("EMULATED_CUDA_CONTEXT_BYTES");
        uint64_t bytes = given ? strtoull(given, NULL, 10) / GRANULARITY * GRANULARITY : 0;
        int error = bytes ? books_take(physical(device), bytes, &context->memory) : 0;
        if (error) {
            context->memory = -1;
            result = error == ENOMEM ? OUT_OF_MEMORY : UNKNOWN;
        }
    }
    if (!result) {
        context->retained++;
        *result_context = context;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    CUresult result = checked(device, contexts);
    if (result)
        return result;
    pthread_mutex_lock(&driver_lock);
    struct context *context = &contexts[device];
    if (!context->retained)
        result = INVALID_CONTEXT;
    else if (--context->retained == 0)
        destroy(context);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuCtxSetCurrent(struct context *context) {
    CUresult ready = initialised();
    if (ready)
        return ready;
    if (depth)
        depth--;
    if (context)
        stack[depth++] = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(struct context *context) {
    CUresult ready = initialised();
    if (ready)
        return ready;
    if (!context || depth == STACK)
        return context ? INVALID_VALUE : INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(struct context **context) {
    CUresult ready = initialised();
    if (ready)
        return ready;
    if (!depth)
        return INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void) {
    return current_context(NULL);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    struct context *context;
    uint64_t capacity, used;
    CUresult result = current_context(&context);
    if (result || !free_bytes || !total)
        return result ? result : INVALID_VALUE;
    if (books_state(physical(context->device), &capacity, &used))
        return UNKNOWN;
    *free_bytes = capacity - used;
    *total = capacity;
    return SUCCESS;
}

/* --- errors, and how everybody finds the functions ---------------------------------------------------------------- */

static const struct {
    CUresult result;
    const char *name, *text;
} errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult describe(CUresult result, const char **said, bool name) {
    if (!said)
        return INVALID_VALUE;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].result == result) {
            *said = name ? errors[i].name : errors[i].text;
            return SUCCESS;
        }
    *said = NULL;
    return INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult result, const char **name) {
    return describe(result, name, true);
}

EXPORT CUresult cuGetErrorString(CUresult result, const char **text) {
    return describe(result, text, false);
}

/* Callers ask for "cuMemcpyHtoD" and mean its newest version. What isn't emulated isn't found, and the caller says by
 * name what it missed. */
EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    static const char *const newest_first[] = {"_v4", "_v3", "_v2", ""};
    Dl_info self;
    char name[128];
    (void)version, (void)flags;
    if (!symbol || !function)
        return INVALID_VALUE;
    *function = NULL;
    if (dladdr((void *)cuInit, &self)) {
        void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        for (int i = 0; library && !*function && i < 4; i++) {
            snprintf(name, sizeof name, "%s%s", symbol, newest_first[i]);
            *function = dlsym(library, name);
        }
        if (library)
            dlclose(library);
    }
    if (status)
        *status = *function ? 0 : 1;
    return *function ? SUCCESS : NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
