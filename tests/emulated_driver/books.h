/* An EMULATED device: who has which bytes of it, with books that the kernel keeps.
 *
 * A device is a sparse file on tmpfs. An allocation is one open file description of it that holds OFD write locks on
 * its ranges (several, so that nothing fragments, as in a GPU's physical memory). The ranges are free again when the
 * last descriptor and the last mapping of that description are gone, in whatever process and however they ended: the
 * rule that NVIDIA documents for cuMemRelease. No process keeps a count that its own death could falsify.
 *
 * Both emulated libraries stand on this (libcuda.c, libnvidia_ml.c). What it may not do: know CUDA.
 *
 * EMULATED_CUDA_DIR       where the devices' files are (default: /dev/shm/emulated-cuda-<uid>)
 * EMULATED_CUDA_DEVICES   how many there are (default: 1)
 * EMULATED_CUDA_BYTES     the capacity of each in bytes (default: 1 GiB); a file that exists keeps its size
 */
#ifndef EMULATED_BOOKS_H
#define EMULATED_BOOKS_H

#include <stddef.h>
#include <stdint.h>

#define GRANULARITY ((uint64_t)2 << 20)
#define MAX_DEVICES 64

struct range {
    uint64_t start, length;
};

/* How many devices there are; -1 when the environment makes no sense or the directory can't be made. */
int books_devices(void);
void books_uuid(int device, unsigned char uuid[16]);
/* "GPU-..." and its end; 41 bytes. */
void books_uuid_text(int device, char text[41]);
/* 0 or an errno. */
int books_state(int device, uint64_t *capacity, uint64_t *used);
/* Takes size bytes, which read as zeros, and gives the descriptor that holds them. 0 or an errno: ENOMEM when the
 * device hasn't that much. */
int books_take(int device, uint64_t size, int *fd);
/* The ranges that the description behind fd holds, in order, in memory to free(); -1 when fd is no such memory. */
int books_ranges(int fd, int *device, struct range **ranges);

#endif
