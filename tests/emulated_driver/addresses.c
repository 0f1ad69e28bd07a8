/* An EMULATED libcuda.so.1 (see driver.h): addresses, which are reserved before anything is mapped there, and what can be
 * asked about one.
 */
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

static CUresult pointer_attribute(void *value, int attribute, CUdeviceptr address) {
    struct mapping *mapping = first_mapping(address, 1);
    struct reservation *reservation = reservations;
    while (reservation && !inside(address, 1, reservation->address, reservation->size))
        reservation = reservation->next;
    if (!reservation)
        return INVALID_VALUE;
    switch (attribute) {
    case 2: /* memory type: device */ *(unsigned *)value = 2; return SUCCESS;
    case 3: /* device pointer */ *(CUdeviceptr *)value = address; return SUCCESS;
    case 8: /* managed */ *(bool *)value = false; return SUCCESS;
    case 9: /* device */
        if (!mapping)
            return INVALID_VALUE;
        *(int *)value = ordinal_of(mapping->memory->device);
        return SUCCESS;
    case 11: /* start of the range */ *(CUdeviceptr *)value = reservation->address; return SUCCESS;
    case 12: /* its size */ *(size_t *)value = reservation->size; return SUCCESS;
    case 13: /* mapped */ *(bool *)value = mapping != NULL; return SUCCESS;
    case 14: /* handle types */ *(uint64_t *)value = mapping ? (uint64_t)mapping->memory->shareable : 0; return SUCCESS;
    case 16: /* access */ *(unsigned *)value = mapping ? (unsigned)mapping->access : 0; return SUCCESS;
    default: return NOT_SUPPORTED;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
    if (!value)
        return INVALID_VALUE;
    LOCKED(pointer_attribute(value, attribute, address));
}

static CUresult get_access(unsigned long long *flags, CUdeviceptr address) {
    struct mapping *mapping = first_mapping(address, 1);
    if (!mapping)
        return INVALID_VALUE;
    *flags = (unsigned long long)mapping->access;
    return SUCCESS;
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const struct location *location, CUdeviceptr address) {
    if (!flags || !location || location->type != LOCATION_DEVICE || !known(location->id))
        return INVALID_VALUE;
    LOCKED(get_access(flags, address));
}
