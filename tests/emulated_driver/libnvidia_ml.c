#define _DEFAULT_SOURCE
/* An EMULATED libnvidia-ml.so.1, beside the emulated libcuda.so.1: what NVML tells of the emulated devices' memory, read
 * from their files and from nothing that a process says (books.h).
 *
 * NVML counts the devices in the opposite order of CUDA, and knows nothing of CUDA_VISIBLE_DEVICES. On real machines
 * the orders differ too; here a test notices whoever takes one's number for the other's.
 */
#include "books.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef int Result;
typedef uintptr_t Device; /* the device's number in the books, and one more, so that none is NULL */

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, UNKNOWN = 999 };

static int starts;

EXPORT Result nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    const char *hangs = getenv("EMULATED_NVML_HANGS"); /* the driver hangs for as long as this file is there */
    while (hangs && access(hangs, F_OK) == 0)
        usleep(10000);
    if (books_devices() < 0)
        return UNKNOWN;
    starts++;
    return SUCCESS;
}

EXPORT Result nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

EXPORT Result nvmlShutdown(void) {
    if (!starts)
        return UNINITIALIZED;
    starts--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(Result result) {
    switch (result) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case TOO_SMALL: return "Insufficient Size";
    default: return "Unknown Error";
    }
}

static Result say(char *text, unsigned room, const char *said) {
    return snprintf(text, room, "%s", said) < (int)room ? SUCCESS : TOO_SMALL;
}

EXPORT Result nvmlSystemGetDriverVersion(char *text, unsigned room) {
    return starts ? say(text, room, "emulated") : UNINITIALIZED;
}

EXPORT Result nvmlDeviceGetCount_v2(unsigned *count) {
    if (!starts)
        return UNINITIALIZED;
    *count = (unsigned)books_devices();
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    int count = books_devices();
    if (!starts)
        return UNINITIALIZED;
    if (index >= (unsigned)count)
        return INVALID_ARGUMENT;
    *device = (Device)(count - (int)index);
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    char text[41];
    if (!starts)
        return UNINITIALIZED;
    for (int i = 0; i < books_devices(); i++) {
        books_uuid_text(i, text);
        if (!strcmp(text, uuid)) {
            *device = (Device)i + 1;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

static bool known(Device device) {
    return device >= 1 && device <= (Device)books_devices();
}

EXPORT Result nvmlDeviceGetUUID(Device device, char *text, unsigned room) {
    char uuid[41];
    if (!starts || !known(device))
        return starts ? INVALID_ARGUMENT : UNINITIALIZED;
    books_uuid_text((int)device - 1, uuid);
    return say(text, room, uuid);
}

EXPORT Result nvmlDeviceGetName(Device device, char *text, unsigned room) {
    char name[64];
    if (!starts || !known(device))
        return starts ? INVALID_ARGUMENT : UNINITIALIZED;
    snprintf(name, sizeof name, "Emulated GPU %d (host memory)", (int)device - 1);
    return say(text, room, name);
}

/* The same as the other library's: vLLM asks it before it chooses its kernels. */
EXPORT Result nvmlDeviceGetComputeMode(Device device, int *mode) {
    if (!starts || !known(device))
        return starts ? INVALID_ARGUMENT : UNINITIALIZED;
    *mode = 0;
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetMemoryInfo(Device device, unsigned long long memory[3]) {
    uint64_t capacity, used;
    if (!starts || !known(device))
        return starts ? INVALID_ARGUMENT : UNINITIALIZED;
    if (books_state((int)device - 1, &capacity, &used))
        return UNKNOWN;
    memory[0] = capacity; /* total, free, used: the order of the first version of this structure */
    memory[1] = capacity - used;
    memory[2] = used;
    return SUCCESS;
}
