/* See books.h. */
#define _GNU_SOURCE
#include "books.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ranges {
    struct range *list;
    int count, room;
};

static int add(struct ranges *ranges, uint64_t start, uint64_t length) {
    if (ranges->count == ranges->room) {
        int room = ranges->room ? 2 * ranges->room : 16;
        struct range *list = realloc(ranges->list, (size_t)room * sizeof *list);
        if (!list)
            return ENOMEM;
        ranges->list = list;
        ranges->room = room;
    }
    ranges->list[ranges->count++] = (struct range){start, length};
    return 0;
}

static int directory(char *path, size_t room) {
    const char *given = getenv("EMULATED_CUDA_DIR");
    int length = given && *given ? snprintf(path, room, "%s", given)
                                 : snprintf(path, room, "/dev/shm/emulated-cuda-%u", (unsigned)getuid());
    return length > 0 && (size_t)length < room ? 0 : ENAMETOOLONG;
}

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *given = getenv(name);
    char *end;
    if (!given || !*given)
        return otherwise;
    errno = 0;
    unsigned long long value = strtoull(given, &end, 10);
    return *end || errno ? UINT64_MAX : value;
}

int books_devices(void) {
    char path[4000];
    uint64_t devices = number("EMULATED_CUDA_DEVICES", 1), bytes = number("EMULATED_CUDA_BYTES", (uint64_t)1 << 30);
    if (devices > MAX_DEVICES || bytes == UINT64_MAX || bytes % GRANULARITY)
        return -1;
    if (directory(path, sizeof path) || (mkdir(path, 0700) && errno != EEXIST))
        return -1;
    return (int)devices;
}

/* The first eight bytes say "emulated" to whoever reads hexadecimal; the last is the device's number. */
void books_uuid(int device, unsigned char uuid[16]) {
    memcpy(uuid, "emulated", 8);
    memset(uuid + 8, 0, 8);
    uuid[15] = (unsigned char)device;
}

void books_uuid_text(int device, char text[41]) {
    unsigned char u[16];
    books_uuid(device, u);
    snprintf(text, 41, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
             u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

static int device_path(int device, char *path, size_t room) {
    char uuid[41];
    int error = directory(path, room - sizeof uuid - 1);
    if (error)
        return error;
    books_uuid_text(device, uuid);
    strcat(path, "/");
    strcat(path, uuid);
    return 0;
}

/* A description of its own, each time. */
static int open_device(int device, int *fd, uint64_t *capacity) {
    char path[4096];
    struct stat status;
    int error = device_path(device, path, sizeof path);
    if (error)
        return error;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (*fd < 0)
        return errno;
    if (fstat(*fd, &status) == 0 && status.st_size == 0) {
        /* Whoever comes second sets the same size. */
        if (ftruncate(*fd, (off_t)number("EMULATED_CUDA_BYTES", (uint64_t)1 << 30)) == 0)
            fstat(*fd, &status);
    }
    if (status.st_size == 0) {
        close(*fd);
        return EIO;
    }
    *capacity = (uint64_t)status.st_size;
    return 0;
}

static int lock(int fd, int command, short type, uint64_t start, uint64_t length) {
    struct flock ask = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)length};
    return fcntl(fd, command, &ask) ? errno : 0;
}

/* What is free between the two, in order. The kernel names any one lock in the way, so both its sides are asked
 * again. */
static int free_ranges(int fd, uint64_t at, uint64_t end, struct ranges *found) {
    while (at < end) {
        struct flock ask = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = (off_t)(end - at)};
        if (fcntl(fd, F_OFD_GETLK, &ask))
            return errno;
        if (ask.l_type == F_UNLCK)
            return add(found, at, end - at);
        uint64_t start = (uint64_t)ask.l_start;
        if (start > at) {
            int error = free_ranges(fd, at, start, found);
            if (error)
                return error;
        }
        if (ask.l_len == 0)
            return 0;
        at = start + (uint64_t)ask.l_len;
    }
    return 0;
}

int books_state(int device, uint64_t *capacity, uint64_t *used) {
    struct ranges free_now = {0};
    int fd, error = open_device(device, &fd, capacity);
    if (error)
        return error;
    error = free_ranges(fd, 0, *capacity, &free_now);
    *used = *capacity;
    for (int i = 0; i < free_now.count; i++)
        *used -= free_now.list[i].length;
    free(free_now.list);
    close(fd);
    return error;
}

static int take(int fd, const struct ranges *free_now, uint64_t size) {
    uint64_t there = 0;
    for (int i = 0; i < free_now->count; i++)
        there += free_now->list[i].length;
    if (there < size)
        return ENOMEM;
    for (int i = 0; size; i++) {
        uint64_t start = free_now->list[i].start, length = free_now->list[i].length;
        length = length < size ? length : size;
        int error = lock(fd, F_OFD_SETLK, F_WRLCK, start, length);
        if (error)
            return error;
        /* Who had it before left its pages and their contents. Pages are taken now: a machine that has none left
         * shows it here, as an error, and not later as a SIGBUS. */
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)length) ||
            fallocate(fd, 0, (off_t)start, (off_t)length))
            return errno == ENOSPC ? ENOMEM : errno;
        size -= length;
    }
    return 0;
}

int books_take(int device, uint64_t size, int *fd) {
    struct ranges free_now = {0};
    uint64_t capacity;
    int turn, error = open_device(device, &turn, &capacity);
    if (error)
        return error;
    error = open_device(device, fd, &capacity);
    if (error) {
        close(turn);
        return error;
    }
    /* One allocates at a time: the byte after the device is the turn. A process that dies gives it back. */
    do
        error = lock(turn, F_OFD_SETLKW, F_WRLCK, capacity, 1);
    while (error == EINTR);
    if (!error)
        error = free_ranges(*fd, 0, capacity, &free_now);
    if (!error)
        error = take(*fd, &free_now, size);
    lock(turn, F_OFD_SETLK, F_UNLCK, capacity, 1);
    close(turn);
    free(free_now.list);
    if (error)
        close(*fd);
    return error;
}

static int by_start(const void *a, const void *b) {
    uint64_t left = ((const struct range *)a)->start, right = ((const struct range *)b)->start;
    return left < right ? -1 : left > right;
}

/* A description's own locks are in its fdinfo, and nowhere else. */
int books_ranges(int fd, int *device, struct range **ranges) {
    struct ranges held = {0};
    struct stat here, there;
    char path[4096], line[512];
    int devices = books_devices();
    if (fstat(fd, &here))
        return -1;
    for (*device = 0; *device < devices; ++*device)
        if (!device_path(*device, path, sizeof path) && !stat(path, &there) && here.st_dev == there.st_dev &&
            here.st_ino == there.st_ino)
            break;
    if (*device >= devices)
        return -1;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *info = fopen(path, "re");
    if (!info)
        return -1;
    while (fgets(line, sizeof line, info)) {
        unsigned long long first, last;
        if (sscanf(line, "lock: %*d: OFDLCK ADVISORY WRITE %*d %*s %llu %llu", &first, &last) == 2 &&
            add(&held, first, last - first + 1))
            break;
    }
    fclose(info);
    if (!held.count) {
        free(held.list);
        return -1;
    }
    qsort(held.list, (size_t)held.count, sizeof *held.list, by_start);
    *ranges = held.list;
    return held.count;
}
