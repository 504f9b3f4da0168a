/* The shim with a libc that can be told to misbehave, for tests; unless told, it is the shim.
 *
 * TAMPER_LOG=FILE              append the name of each call that touches the disk
 * TAMPER_FAIL=CALL:N:ERRNO     fail the Nth CALL with ERRNO (0: the process is killed there)
 * TAMPER_SHRED=1               about every second call is interrupted, the others do one byte
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int fails(const char *call) {
    static int counts[8];
    static const char *const calls[8] = {"openat", "write", "fsync", "renameat", "mkdirat", "unlinkat", "send", "open"};
    const char *order = getenv("TAMPER_FAIL"), *log = getenv("TAMPER_LOG");
    int which = 0, number = 0, error = 0;
    char name[16] = "";
    if (log) {
        FILE *file = fopen(log, "a");
        if (file) fprintf(file, "%s\n", call), fclose(file);
    }
    while (which < 7 && strcmp(calls[which], call)) which++;
    counts[which]++;
    if (!order || sscanf(order, "%15[a-z]:%d:%d", name, &number, &error) != 3) return 0;
    if (strcmp(name, call) || counts[which] != number) return 0;
    if (!error) raise(SIGKILL);
    errno = error;
    return 1;
}

/* 0: as usual; 1: do one byte; -1: interrupted. */
static int shred(void) {
    static uint32_t dice = 1;
    if (!getenv("TAMPER_SHRED")) return 0;
    dice = dice * 1664525u + 1013904223u;
    if (dice >> 31) return 1;
    errno = EINTR;
    return -1;
}

#define SHREDDED(size, call) \
    int mood = shred();      \
    if (mood < 0) return -1; \
    if (mood && size > 1) size = 1; \
    return call

static ssize_t tampered_read(int fd, void *data, size_t size) { SHREDDED(size, read(fd, data, size)); }
static ssize_t tampered_recv(int fd, void *data, size_t size, int flags) { SHREDDED(size, recv(fd, data, size, flags)); }
static ssize_t tampered_send(int fd, const void *data, size_t size, int flags) {
    if (fails("send")) return -1;
    SHREDDED(size, send(fd, data, size, flags));
}
static ssize_t tampered_write(int fd, const void *data, size_t size) {
    if (fd > 2 && fails("write")) return -1;
    SHREDDED(size, write(fd, data, size));
}
static int tampered_poll(struct pollfd *fds, nfds_t count, int until) {
    return fds && fds->events && shred() < 0 ? -1 : poll(fds, count, until);
}
static int tampered_fsync(int fd) { return fails("fsync") ? -1 : fsync(fd); }
static int tampered_mkdirat(int fd, const char *path, mode_t mode) { return fails("mkdirat") ? -1 : mkdirat(fd, path, mode); }
static int tampered_openat(int fd, const char *path, int flags, mode_t mode) {
    return fails("openat") ? -1 : openat(fd, path, flags, mode);
}
static int tampered_renameat(int a, const char *from, int b, const char *to) {
    return fails("renameat") ? -1 : renameat(a, from, b, to);
}
static int tampered_unlinkat(int fd, const char *path, int flags) { return fails("unlinkat") ? -1 : unlinkat(fd, path, flags); }

#define MODE(fd, path, flags, mode, ...) tampered_openat(fd, path, flags, mode)
#define openat(...) MODE(__VA_ARGS__, 0, 0)
#define read tampered_read
#define recv tampered_recv
#define send tampered_send
#define write tampered_write
#define poll(a, b, c) tampered_poll(a, b, c)
#define fsync tampered_fsync
#define mkdirat tampered_mkdirat
#define renameat tampered_renameat
#define unlinkat tampered_unlinkat
#include "../../shim/main.c"
