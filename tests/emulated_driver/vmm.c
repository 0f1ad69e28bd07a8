/* An EMULATED libcuda.so.1 (see driver.h): virtual memory management, that is cuMemCreate and its family.
 *
 * A handle is this process's name for a piece of memory; the memory is the open file description in `descriptor`, and
 * every mapping holds that description too. None of these calls needs a context (none is documented to).
 *
 * EMULATED_CUDA_OFFSETS=no   mapping from the middle of a handle is refused (CUDA_ERROR_NOT_SUPPORTED), as one peer
 *                            saw it on a GPU
 * EMULATED_CUDA_LEAKS=yes    what was released stays until its process ends: for tests of what should notice that
 */
#define _GNU_SOURCE
#include "vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct memory *memories;
struct mapping *mappings;
static Handle next_handle = 0x454d00000001; /* never given out twice, so that a stale one is known as such */

/* --- memory and its handles --------------------------------------------------------------------------------------- */

static struct memory *held(Handle handle) {
    for (struct memory *memory = memories; memory; memory = memory->next)
        if (memory->handle == handle && memory->handles)
            return memory;
    return NULL;
}

/* Takes over the descriptor. */
static CUresult remember(int descriptor, int shareable, Handle *handle) {
    struct memory *memory = calloc(1, sizeof *memory);
    if (!memory) {
        close(descriptor);
        return UNKNOWN;
    }
    memory->range_count = books_ranges(descriptor, &memory->device, &memory->ranges);
    if (memory->range_count < 0 || ordinal_of(memory->device) < 0) {
        close(descriptor);
        free(memory->ranges);
        free(memory);
        return INVALID_VALUE; /* chosen, for a descriptor that is no memory */
    }
    for (int i = 0; i < memory->range_count; i++)
        memory->size += memory->ranges[i].length;
    memory->descriptor = descriptor;
    memory->shareable = shareable;
    memory->handles = 1;
    memory->handle = *handle = next_handle++;
    memory->next = memories;
    memories = memory;
    return SUCCESS;
}

static void forget_unused(struct memory *unused) {
    if (unused->handles || unused->mappings)
        return;
    for (struct memory **at = &memories; *at; at = &(*at)->next)
        if (*at == unused) {
            *at = unused->next;
            break;
        }
    if (!getenv("EMULATED_CUDA_LEAKS"))
        close(unused->descriptor);
    free(unused->ranges);
    free(unused);
}

static CUresult acceptable(const struct allocation_properties *properties) {
    if (!properties || properties->type != PINNED)
        return INVALID_VALUE;
    if (properties->location.type != LOCATION_DEVICE)
        return NOT_SUPPORTED; /* host allocations aren't emulated */
    if (properties->handle_types & ~POSIX_DESCRIPTOR)
        return NOT_SUPPORTED;
    return known(properties->location.id) ? SUCCESS : INVALID_DEVICE;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const struct allocation_properties *properties,
                                              int option) {
    CUresult result = initialised();
    if (!result)
        result = granularity && (option == 0 || option == 1) ? acceptable(properties) : INVALID_VALUE;
    if (!result)
        *granularity = GRANULARITY;
    return result;
}

static CUresult create(Handle *handle, uint64_t size, const struct allocation_properties *properties) {
    int descriptor, error = books_take(physical(properties->location.id), size, &descriptor);
    if (error)
        return error == ENOMEM ? OUT_OF_MEMORY : UNKNOWN;
    return remember(descriptor, properties->handle_types & POSIX_DESCRIPTOR, handle);
}

EXPORT CUresult cuMemCreate(Handle *handle, size_t size, const struct allocation_properties *properties,
                            unsigned long long flags) {
    CUresult wrong = initialised();
    if (!wrong)
        wrong = acceptable(properties);
    if (wrong)
        return wrong;
    if (!handle || flags || !size || !aligned(size))
        return INVALID_VALUE;
    LOCKED(create(handle, size, properties));
}

static CUresult release(Handle handle) {
    struct memory *memory = held(handle);
    if (!memory)
        return INVALID_VALUE;
    memory->handles--;
    forget_unused(memory);
    return SUCCESS;
}

EXPORT CUresult cuMemRelease(Handle handle) {
    LOCKED(release(handle));
}

static CUresult export_descriptor(int *descriptor, Handle handle) {
    struct memory *memory = held(handle);
    if (!memory)
        return INVALID_VALUE;
    if (!memory->shareable)
        return NOT_PERMITTED; /* chosen */
    /* Chosen: not close-on-exec, because nobody promises that it is. */
    *descriptor = fcntl(memory->descriptor, F_DUPFD, 3);
    return *descriptor < 0 ? UNKNOWN : SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, Handle handle, int type, unsigned long long flags) {
    if (!shareable || flags || type != POSIX_DESCRIPTOR)
        return INVALID_VALUE;
    LOCKED(export_descriptor(shareable, handle));
}

static CUresult import_descriptor(Handle *handle, int foreign) {
    int descriptor = fcntl(foreign, F_DUPFD_CLOEXEC, 3);
    return descriptor < 0 ? INVALID_VALUE : remember(descriptor, POSIX_DESCRIPTOR, handle);
}

/* What can be exported again: chosen; no documentation says whether imported memory can. */
EXPORT CUresult cuMemImportFromShareableHandle(Handle *handle, void *shareable, int type) {
    if (!handle || type != POSIX_DESCRIPTOR)
        return INVALID_VALUE;
    LOCKED(import_descriptor(handle, (int)(intptr_t)shareable));
}

static CUresult describe(struct allocation_properties *properties, Handle handle) {
    struct memory *memory = held(handle);
    if (!memory)
        return INVALID_VALUE;
    *properties = (struct allocation_properties){.type = PINNED, .handle_types = memory->shareable};
    properties->location = (struct location){LOCATION_DEVICE, ordinal_of(memory->device)};
    return SUCCESS;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(struct allocation_properties *properties, Handle handle) {
    if (!properties)
        return INVALID_VALUE;
    LOCKED(describe(properties, handle));
}

struct mapping *first_mapping(CUdeviceptr address, uint64_t size) {
    for (struct mapping *mapping = mappings; mapping; mapping = mapping->next)
        if (overlaps(address, size, mapping->address, mapping->size))
            return mapping;
    return NULL;
}

/* --- mappings ----------------------------------------------------------------------------------------------------- */

static int back_to_reserved(CUdeviceptr address, uint64_t size) {
    void *there = mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return there == MAP_FAILED ? -1 : 0;
}

/* Maps size bytes of the memory from offset on, range by range; nothing may be read or written yet. */
static int map_ranges(CUdeviceptr address, uint64_t size, uint64_t offset, const struct memory *memory) {
    for (int i = 0; i < memory->range_count && size; i++) {
        struct range range = memory->ranges[i];
        if (offset >= range.length) {
            offset -= range.length;
            continue;
        }
        uint64_t length = range.length - offset < size ? range.length - offset : size;
        void *there = mmap((void *)address, length, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->descriptor,
                           (off_t)(range.start + offset));
        /* A GPU's mappings don't go to a forked child either. */
        if (there == MAP_FAILED || madvise(there, length, MADV_DONTFORK))
            return -1;
        address += length;
        size -= length;
        offset = 0;
    }
    return 0;
}

static CUresult map(CUdeviceptr address, uint64_t size, uint64_t offset, Handle handle) {
    struct memory *memory = held(handle);
    const char *offsets = getenv("EMULATED_CUDA_OFFSETS");
    if (!memory || !reserved(address, size) || first_mapping(address, size))
        return INVALID_VALUE;
    if (offset > memory->size || size > memory->size - offset)
        return INVALID_VALUE;
    if (offset && offsets && !strcmp(offsets, "no"))
        return NOT_SUPPORTED;
    struct mapping *made = malloc(sizeof *made);
    if (!made || map_ranges(address, size, offset, memory)) {
        back_to_reserved(address, size);
        free(made);
        return OUT_OF_MEMORY;
    }
    *made = (struct mapping){mappings, address, size, memory, 0};
    mappings = made;
    memory->mappings++;
    return SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, Handle handle, unsigned long long flags) {
    if (flags || !size || !aligned(address) || !aligned(size) || !aligned(offset))
        return INVALID_VALUE;
    LOCKED(map(address, size, offset, handle));
}

/* The range is made of whole mappings and nothing else: no gap, no half. */
static bool whole_mappings(CUdeviceptr address, uint64_t size) {
    uint64_t covered = 0;
    for (struct mapping *at = mappings; at; at = at->next) {
        if (!overlaps(address, size, at->address, at->size))
            continue;
        if (!inside(at->address, at->size, address, size))
            return false;
        covered += at->size;
    }
    return size && covered == size;
}

static CUresult unmap(CUdeviceptr address, uint64_t size) {
    if (!whole_mappings(address, size))
        return INVALID_VALUE;
    if (back_to_reserved(address, size))
        return UNKNOWN;
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *found = *at;
        if (!inside(found->address, found->size, address, size)) {
            at = &found->next;
            continue;
        }
        *at = found->next;
        found->memory->mappings--;
        forget_unused(found->memory);
        free(found);
    }
    return SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    LOCKED(unmap(address, size));
}

static CUresult set_access(CUdeviceptr address, uint64_t size, int flags) {
    if (!whole_mappings(address, size))
        return INVALID_VALUE;
    int protection = flags == ACCESS_READ_WRITE ? PROT_READ | PROT_WRITE : flags == ACCESS_READ ? PROT_READ : PROT_NONE;
    if (mprotect((void *)address, size, protection))
        return UNKNOWN;
    for (struct mapping *at = mappings; at; at = at->next)
        if (inside(at->address, at->size, address, size))
            at->access = flags;
    return SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const struct access *access, size_t count) {
    if (!access || count != 1 || access->location.type != LOCATION_DEVICE)
        return INVALID_VALUE; /* one device's access; peers' aren't emulated */
    if (!known(access->location.id))
        return INVALID_DEVICE;
    if (access->flags != 0 && access->flags != ACCESS_READ && access->flags != ACCESS_READ_WRITE)
        return INVALID_VALUE;
    LOCKED(set_access(address, size, access->flags));
}

static CUresult retain(Handle *handle, CUdeviceptr address) {
    struct mapping *mapping = first_mapping(address, 1);
    if (!mapping)
        return INVALID_VALUE;
    mapping->memory->handles++;
    *handle = mapping->memory->handle;
    return SUCCESS;
}

EXPORT CUresult cuMemRetainAllocationHandle(Handle *handle, void *address) {
    if (!handle)
        return INVALID_VALUE;
    LOCKED(retain(handle, (CUdeviceptr)address));
}

