/* Makes the disk fail on demand, for tests: an LD_PRELOAD library.
 *
 * Calls that work on files below ALLOTMENT_FAULTS_BELOW are counted; from the chosen one on they fail with a chosen
 * errno, or the process dies there by SIGKILL. All is controlled through a shared mapping of the file
 * ALLOTMENT_FAULTS_CONTROL, so that the test, or the process itself, can switch faults on and off at any time.
 * The layout of `struct control` is known to injection.py too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, RENAME = 4, TRUNCATE = 8, OPEN = 16, REMOVE = 32, ALLOCATE = 64, FOLDER = 128, READ = 256 };

struct control {
    uint32_t on;
    uint32_t calls;   /* which kinds of call are counted and fail */
    int32_t error;    /* errno, 0: SIGKILL, or -1: the call goes on once this is switched off */
    uint32_t half;    /* a write does half of its work first */
    uint64_t first;   /* the first one that fails, from 1 */
    uint64_t times;   /* how many fail; 0: all from there on */
    uint64_t seen;    /* how many were counted */
    uint64_t kill;    /* the one at which the process dies, whatever else; 0: none */
    char match[80];   /* only paths that contain this; empty: all */
};

static struct control *control;
static char below[1024];
static size_t below_length;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("ALLOTMENT_FAULTS_CONTROL"), *prefix = getenv("ALLOTMENT_FAULTS_BELOW");
    if (!path || !prefix || strlen(prefix) >= sizeof below)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (mapped == MAP_FAILED)
        return;
    strcpy(below, prefix);
    below_length = strlen(below);
    control = mapped;
}

static int concerns(const char *path) {
    return strncmp(path, below, below_length) == 0 && (path[below_length] == 0 || path[below_length] == '/') &&
           (!control->match[0] || strstr(path, control->match));
}

enum { DIE = -1, HOLD = -2 };

/* The errno to fail with, 0 to go on, or one of these. */
static int verdict_path(uint32_t call, const char *path) {
    if (!control || !control->on || !(control->calls & call) || !concerns(path))
        return 0;
    uint64_t number = __atomic_add_fetch(&control->seen, 1, __ATOMIC_SEQ_CST);
    if (control->kill && number == control->kill)
        return DIE;
    if (number < control->first || (control->times && number >= control->first + control->times))
        return 0;
    return control->error == -1 ? HOLD : control->error ? control->error : DIE;
}

static int verdict(uint32_t call, int fd) {
    char link[64], path[4096];
    if (!control || !control->on || !(control->calls & call))
        return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length <= 0)
        return 0;
    path[length] = 0;
    return verdict_path(call, path);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static int fails(int verdict) {
    if (verdict == HOLD) {
        while (__atomic_load_n(&control->on, __ATOMIC_SEQ_CST))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        return 0;
    }
    if (verdict == DIE)
        die();
    if (verdict)
        errno = verdict;
    return verdict;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define BY_FD(type, name, call, parameters, arguments) \
    type name parameters { REAL(name); return fails(verdict(call, fd)) ? -1 : real arguments; }

#define WRITES(name, parameters, half_arguments, arguments) \
    ssize_t name parameters { \
        REAL(name); \
        int v = verdict(WRITE, fd); \
        if (v && v != HOLD && control->half && size > 1) { \
            size_t half = size / 2; \
            (void)!real half_arguments; \
        } \
        return fails(v) ? -1 : real arguments; \
    }

WRITES(write, (int fd, const void *data, size_t size), (fd, data, half), (fd, data, size))
WRITES(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, half, at), (fd, data, size, at))
WRITES(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, half, at), (fd, data, size, at))
BY_FD(ssize_t, pread, READ, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
BY_FD(ssize_t, pread64, READ, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
BY_FD(int, fsync, SYNC, (int fd), (fd))
BY_FD(int, fdatasync, SYNC, (int fd), (fd))
BY_FD(int, ftruncate, TRUNCATE, (int fd, off_t size), (fd, size))
BY_FD(int, ftruncate64, TRUNCATE, (int fd, off64_t size), (fd, size))

int posix_fallocate(int fd, off_t at, off_t size) {
    REAL(posix_fallocate);
    int v = fails(verdict(ALLOCATE, fd));
    return v ? v : real(fd, at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size) {
    REAL(posix_fallocate64);
    int v = fails(verdict(ALLOCATE, fd));
    return v ? v : real(fd, at, size);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails(verdict_path(RENAME, from)) ? -1 : real(from, to);
}

int unlink(const char *path) {
    REAL(unlink);
    return fails(verdict_path(REMOVE, path)) ? -1 : real(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails(verdict_path(FOLDER, path)) ? -1 : real(path, mode);
}

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = (mode_t)va_arg(more, int); \
        va_end(more); \
        return fails(verdict_path(OPEN, path)) ? -1 : real(path, flags, mode); \
    }

OPENS(open)
OPENS(open64)
