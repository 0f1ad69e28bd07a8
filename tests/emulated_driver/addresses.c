/* An EMULATED libcuda.so.1 (see driver.h): addresses, which are reserved before anything is mapped there. */
#define _GNU_SOURCE
#include "vmm.h"

#include <stdlib.h>
#include <sys/mman.h>

struct reservation {
    struct reservation *next;
    CUdeviceptr address;
    uint64_t size;
};

static struct reservation *reservations;

bool reserved(CUdeviceptr address, uint64_t size) {
    for (struct reservation *at = reservations; at; at = at->next)
        if (inside(address, size, at->address, at->size))
            return true;
    return false;
}

static CUresult reserve(CUdeviceptr *address, uint64_t size, uint64_t alignment) {
    struct reservation *made = malloc(sizeof *made);
    if (!made)
        return UNKNOWN;
    /* More than is needed, so that an aligned part can be kept. */
    char *base = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        free(made);
        return OUT_OF_MEMORY;
    }
    char *start = (char *)(((uintptr_t)base + alignment - 1) / alignment * alignment);
    if (start > base)
        munmap(base, (size_t)(start - base));
    if (start - base < (ptrdiff_t)alignment)
        munmap(start + size, alignment - (size_t)(start - base));
    *made = (struct reservation){reservations, (CUdeviceptr)start, size};
    reservations = made;
    *address = made->address;
    return SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags) {
    (void)hint; /* only a hint */
    if (!address || !size || !aligned(size) || flags || (alignment & (alignment - 1)))
        return INVALID_VALUE;
    LOCKED(reserve(address, size, alignment > GRANULARITY ? alignment : GRANULARITY));
}

static CUresult free_address(CUdeviceptr address, uint64_t size) {
    for (struct reservation **at = &reservations; *at; at = &(*at)->next) {
        struct reservation *found = *at;
        if (found->address != address)
            continue;
        if (found->size != size || first_mapping(address, size))
            return INVALID_VALUE;
        *at = found->next;
        munmap((void *)address, size);
        free(found);
        return SUCCESS;
    }
    return INVALID_VALUE;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    LOCKED(free_address(address, size));
}

/* --- what others ask about an address ----------------------------------------------------------------------------- */

/* The lock is the caller's. */
CUresult may_access(CUdeviceptr address, size_t size, bool write, bool *is_device_memory) {
    *is_device_memory = false;
    for (struct reservation *at = reservations; at; at = at->next)
        *is_device_memory |= overlaps(address, size, at->address, at->size);
    if (!*is_device_memory)
        return SUCCESS;
    while (size) {
        struct mapping *mapping = first_mapping(address, 1);
        if (!mapping)
            return INVALID_VALUE; /* chosen */
        if (!mapping->access || (write && mapping->access != ACCESS_READ_WRITE))
            return ILLEGAL_ADDRESS;
        uint64_t there = mapping->address + mapping->size - address;
        there = there < size ? there : size;
        address += there;
        size -= there;
    }
    return SUCCESS;
}
