/* An EMULATED libcuda.so.1: what its parts share. It computes nothing and there is no GPU in it.
 *
 * It is for tests: the real cuda-bindings (and whatever stands on them) load it by its name from LD_LIBRARY_PATH and
 * run the virtual memory path of the driver's interface on host memory. The interface is as NVIDIA documents it; what
 * the documentation leaves open was chosen here and says so ("chosen"), and only a GPU can confirm it.
 *
 *   books.c     who has which bytes of a device
 *   vmm.c       cuMemCreate and its family, cuMemMap
 *   addresses.c reserving addresses
 *   copies.c    memcpy, memset
 *   libcuda.c   initialisation, devices, contexts, errors, cuGetProcAddress
 *
 * Numbers and layouts below are the binary interface of CUDA 13 on 64-bit Linux.
 */
#ifndef EMULATED_DRIVER_H
#define EMULATED_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "books.h"

#define EXPORT __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t Handle;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    SYSTEM_NOT_READY = 802,
    UNKNOWN = 999,
};

enum { PINNED = 1, LOCATION_DEVICE = 1, POSIX_DESCRIPTOR = 1, ACCESS_READ = 1, ACCESS_READ_WRITE = 3 };

struct location {
    int type, id;
};

struct allocation_properties {
    int type, handle_types;
    struct location location;
    void *windows_only;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct access {
    struct location location;
    int flags;
};

/* The primary context of a device. */
struct context {
    CUdevice device;
    unsigned retained;
    int memory; /* the descriptor of what a context itself takes of the device, or -1 */
    CUresult broken; /* after a fault every call on it says the same again, as on a GPU */
};

/* Held by every entry point that touches what follows. */
extern pthread_mutex_t driver_lock;

/* The result that every entry point begins with: SUCCESS when cuInit was called, in this process and not only in the
 * one that it was forked from. */
CUresult initialised(void);
bool known(CUdevice device);
int device_count(void);
/* The number that the device has in the books: CUDA_VISIBLE_DEVICES can give it another here. */
int physical(CUdevice device);
CUdevice ordinal_of(int physical_device); /* -1: not visible here */
/* The calling thread's context, which must be usable. */
CUresult current_context(struct context **context);

/* May [address, address + size) be read, or written, by the device? The lock is the caller's. addresses.c */
CUresult may_access(CUdeviceptr address, size_t size, bool write, bool *is_device_memory);

#endif
