/* An EMULATED libcuda.so.1 (see driver.h): what vmm.c and addresses.c share. All of it is guarded by driver_lock. */
#ifndef EMULATED_VMM_H
#define EMULATED_VMM_H

#include "driver.h"

struct memory {
    struct memory *next;
    Handle handle;
    int descriptor, device, shareable;
    uint64_t size;
    struct range *ranges;
    int range_count;
    unsigned handles, mappings; /* the handle's references in this process, and how often it is mapped here */
};

struct mapping {
    struct mapping *next;
    CUdeviceptr address;
    uint64_t size;
    struct memory *memory;
    int access;
};

extern struct mapping *mappings;
struct mapping *first_mapping(CUdeviceptr address, uint64_t size);
/* The whole of it is within one reservation. addresses.c */
bool reserved(CUdeviceptr address, uint64_t size);

static inline bool aligned(uint64_t value) {
    return value % GRANULARITY == 0;
}

static inline bool inside(CUdeviceptr address, uint64_t size, CUdeviceptr outer, uint64_t outer_size) {
    return address >= outer && address - outer <= outer_size && size <= outer_size - (address - outer);
}

static inline bool overlaps(CUdeviceptr address, uint64_t size, CUdeviceptr other, uint64_t other_size) {
    return address < other + other_size && other < address + size;
}

/* An entry point: cuInit was called, and nobody else is at it. */
#define LOCKED(body)                                                                                                   \
    CUresult result = initialised();                                                                                   \
    if (result)                                                                                                        \
        return result;                                                                                                 \
    pthread_mutex_lock(&driver_lock);                                                                                  \
    result = (body);                                                                                                   \
    pthread_mutex_unlock(&driver_lock);                                                                                \
    return result

#endif
