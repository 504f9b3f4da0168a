/* Allotment's shim: the program that a container runtime starts for each CNI call.
 *
 * It hands the CNI_* variables and standard input to the agent over a unix socket, prints what comes back, and
 * exits with the code that comes back (docs/reference/protocol.md). It parses no JSON, keeps nothing, and waits for
 * an agent that is away; a DEL that the agent cannot take is kept in the spool beside the socket, so that pods can
 * always terminate. Whatever happens, standard output has a CNI result or a CNI error, unless success says nothing.
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

#ifndef ALLOTMENT_VERSION
#define ALLOTMENT_VERSION "unreleased"
#endif

enum { HEADER = 16, ENTRY = 52, LIMIT = 1 << 20, FIRST_WAIT = 5, LONGEST_WAIT = 250 }; /* bytes, milliseconds */
enum { ACKNOWLEDGED = 0x06, WITHDRAWN = 0x15, SPOOL = 1 };
enum { CODE_ENVIRONMENT = 4, CODE_IO = 5, CODE_DECODE = 6, CODE_TRY_AGAIN = 11 }; /* CNI spec 1.1.0, "Error" */
enum verb { ADD, DEL, CHECK, GC, STATUS, VERSION, UNKNOWN };
enum outcome { AWAY, BROKEN, ANSWERED };

static const struct { const char *name; int budget; } verbs[] = {
    [ADD] = {"ADD", 20000}, [DEL] = {"DEL", 10000}, [CHECK] = {"CHECK", 20000},
    [GC] = {"GC", 20000}, [STATUS] = {"STATUS", 15000}, [VERSION] = {"VERSION", 5000},
};
static const char versions[] = "{\"cniVersion\":\"1.1.0\","
    "\"supportedVersions\":[\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n";
static const char usage[] =
    "This is the CNI plugin of Allotment, version " ALLOTMENT_VERSION ".\n\n"
    "A container runtime starts it with the call in CNI_* variables and the configuration on standard input;\n"
    "by hand it does nothing. It asks the agent at /run/allotment/cni.sock, or where ALLOTMENT_SOCKET says, and\n"
    "waits for it for 10 to 20 s, or for ALLOTMENT_TIMEOUT_MS milliseconds if that is less. To look inside:\n"
    "`allotment status`, `allotment leases`, `allotment doctor`. To try a call by hand: cnitool.\n";

static enum verb verb = UNKNOWN;
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static int64_t begin, deadline;
static const char *why = ""; /* what the last attempt failed of … */
static int denied;           /* … and whether asking again can't help */
static unsigned char entry[ENTRY + LIMIT + 1], reply[HEADER + LIMIT + 1]; /* pages that stay untouched cost nothing */
static unsigned char *const request = entry + ENTRY; /* a spool entry is its header and the request */
static size_t request_size = HEADER, reply_size;

static void put(unsigned char *at, uint64_t value, int bytes) {
    for (; bytes--; value >>= 8) at[bytes] = (unsigned char)value;
}

static uint32_t get(const unsigned char *at, int bytes) {
    uint32_t value = 0;
    while (bytes--) value = value << 8 | *at++;
    return value;
}

/* Decimal, at least `width` digits, in the room that ends before `end`. */
static char *decimal(char *end, uint64_t value, int width) {
    *--end = 0;
    for (; value || width > 0; value /= 10, width--) *--end = (char)('0' + value % 10);
    return end;
}

static uint64_t nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int64_t milliseconds(void) { /* like poll, this neither jumps with the wall clock nor counts time suspended */
    return (int64_t)(nanoseconds(CLOCK_MONOTONIC) / 1000000);
}

/* The events that are there, 0 once the deadline has passed. */
static int ready(int fd, short events) {
    for (;;) {
        int64_t left = deadline - milliseconds();
        struct pollfd one = {.fd = fd, .events = events};
        int count = poll(&one, 1, left > 0 ? (int)left : 0);
        if (count > 0) return one.revents;
        if (count == 0 || errno != EINTR) return 0;
    }
}

static int write_all(int fd, const void *data, size_t size) {
    const char *at = data;
    while (size) {
        ssize_t count = write(fd, at, size);
        if (count > 0) at += count, size -= (size_t)count;
        else if (count < 0 && errno == EINTR) continue;
        else if (count == 0 || errno != EAGAIN || !ready(fd, POLLOUT)) return 0;
    }
    return 1;
}

/* Print a CNI error whose message is `parts`, up to a NULL, in a row. libcni reads code, msg and details of an error
 * and no cniVersion, so ours need not be the caller's, which could only be had by parsing JSON. */
static int fail(int code, const char *const parts[]) {
    static char text[8192];
    char digits[24];
    char *at = stpcpy(text, "{\"cniVersion\":\"1.1.0\",\"code\":"), *end = text + sizeof text - 8;
    at = stpcpy(stpcpy(at, decimal(digits + sizeof digits, (uint64_t)code, 1)), ",\"msg\":\"");
    for (; *parts; parts++) {
        for (const char *from = *parts; *from && at < end; from++) {
            if (*from == '"' || *from == '\\') *at++ = '\\';
            *at++ = *from >= ' ' && *from <= '~' ? *from : '?';
        }
    }
    at = stpcpy(at, "\"}\n");
    (void)write_all(STDOUT_FILENO, text, (size_t)(at - text));
    return 1;
}
#define FAIL(code, ...) fail(code, (const char *const[]){__VA_ARGS__, NULL})

/* A closed standard stream must not become the socket, nor look like a working one: give it the wrong direction. */
static void guard_streams(void) {
    struct pollfd streams[3] = {{.fd = 0}, {.fd = 1}, {.fd = 2}};
    if (poll(streams, 3, 0) <= 0) return;
    for (int fd = 0; fd < 3; fd++) {
        if (streams[fd].revents & POLLNVAL) (void)open("/dev/null", fd ? O_RDONLY : O_WRONLY);
    }
}

/* The request, all but its header's numbers, from environment and standard input; 0 or the exit code. */
static int read_request(void) {
    char digits[24];
    size_t body;
    /* What is given from now on isn't in a GC's list, and an agent in a PID namespace can't see since when we run. */
    if (verb == GC) {
        char *at = stpcpy((char *)request + HEADER, "CNI_ALLOTMENT_STARTED=");
        at = stpcpy(at, decimal(digits + sizeof digits, nanoseconds(CLOCK_BOOTTIME), 1));
        request_size = (size_t)(at + 1 - (char *)request);
    }
    for (char **variable = environ; *variable; variable++) {
        if (strncmp(*variable, "CNI_", 4) || !strchr(*variable, '=')) continue;
        if (!strncmp(*variable, "CNI_ALLOTMENT_", 14)) continue; /* only ours to say */
        size_t size = strlen(*variable) + 1;
        if (size > LIMIT - request_size) return FAIL(CODE_ENVIRONMENT, "the CNI_* variables take more than 1 MiB");
        memcpy(request + request_size, *variable, size);
        request_size += size;
    }
    for (body = request_size;;) {
        if (!ready(STDIN_FILENO, POLLIN)) {
            return FAIL(CODE_IO, "standard input does not end: the caller keeps its network configuration open");
        }
        ssize_t count = read(STDIN_FILENO, request + request_size, LIMIT + 1 - request_size);
        if (count == 0) break;
        if (count < 0 && errno != EINTR && errno != EAGAIN) {
            return FAIL(CODE_IO, "cannot read the network configuration from standard input: ", strerror(errno));
        }
        if (count > 0 && (request_size += (size_t)count) > LIMIT) {
            return FAIL(CODE_DECODE, "the network configuration and the CNI_* variables take more than 1 MiB");
        }
    }
    memcpy(request, "ALQ1\0\1\0\0", 8);
    put(request + 8, body - HEADER, 4);
    put(request + 12, request_size - body, 4);
    return 0;
}

/* What is wrong with the reply as far as it is here, NULL if nothing; `*size` is of the whole. */
static const char *judge_reply(size_t *size) {
    static const unsigned char start[6] = {'A', 'L', 'R', '1', 0, 1};
    uint32_t flags = get(reply + 6, 2), code = get(reply + 8, 4), body = get(reply + 12, 4);
    if (memcmp(reply, start, reply_size < sizeof start ? reply_size : sizeof start)) {
        return "it is no reply frame of protocol version 1";
    }
    if (reply_size < HEADER) return NULL;
    *size = HEADER + (size_t)body;
    if (body > LIMIT - HEADER) return "it is longer than 1 MiB";
    if (code > 255 || (flags && (flags != SPOOL || verb != DEL))) return "its header makes no sense";
    if (!body && !flags && (code || verb == ADD)) return "it is empty";
    return reply_size > *size ? "something follows its end" : NULL;
}

/* One connection, one request, one reply. */
static enum outcome receive(int fd) {
    size_t size = HEADER;
    for (reply_size = 0; reply_size < size;) {
        ssize_t count = ready(fd, POLLIN) ? recv(fd, reply + reply_size, sizeof reply - reply_size, 0) : -2;
        if (count == -1 && (errno == EINTR || errno == EAGAIN)) continue;
        if (count <= 0) {
            why = count == -2 ? "it did not answer in time" : "it closed the connection before all of its answer";
            return reply_size ? BROKEN : AWAY;
        }
        reply_size += (size_t)count;
        if (reply_size > HEADER && reply[reply_size - 1] == WITHDRAWN && reply_size - 1 == HEADER + get(reply + 12, 4)) {
            why = "it took its answer back"; /* we were held up for long, and it has undone what it had done */
            return AWAY;
        }
        if ((why = judge_reply(&size))) return BROKEN;
    }
    return ANSWERED;
}

static enum outcome attempt(int *connection) {
    int fd = *connection = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) {
        why = errno == ENOENT ? "there is no such socket" : errno == ECONNREFUSED ? "nobody listens there"
            : errno == EAGAIN ? "its queue of callers is full" : strerror(errno);
        denied = errno == EACCES || errno == EPERM;
        return AWAY;
    }
    for (size_t sent = 0; sent < request_size;) {
        ssize_t count = send(fd, request + sent, request_size - sent, MSG_NOSIGNAL);
        if (count >= 0) sent += (size_t)count;
        else if (errno != EINTR && errno != EAGAIN) break; /* it closed, and may have said why before */
        else if (errno == EAGAIN && (ready(fd, POLLIN | POLLOUT) & (POLLIN | POLLOUT)) != POLLOUT) break;
    }
    return receive(fd);
}

/* The spool entry, as `final` in the folder or not at all; whether it is there for good. */
static int store(int folder, const char *temporary, const char *final) {
    int file = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), error;
    if (file < 0) return 0;
    if (write_all(file, entry, ENTRY + request_size) && !fsync(file) && !renameat(folder, temporary, folder, final)) {
        return !fsync(folder);
    }
    error = errno;
    (void)unlinkat(folder, temporary, 0);
    return errno = error, 0;
}

/* Keep the request, a DEL, for the agent to find: NULL, or why it cannot be kept. */
static const char *spool(void) {
    char path[sizeof address.sun_path], stamp[24], process[24], temporary[64], final[64];
    int above, below, boot = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    memcpy(entry, "ALS1\0\1\0\0", 8);
    if (boot < 0 || read(boot, entry + 8, 36) != 36) return "the boot ID cannot be read";
    /* The stamp is of now, not of our start: a lease given while we waited is one that this DEL means, too. */
    uint64_t now = nanoseconds(CLOCK_BOOTTIME);
    put(entry + 44, now, 8);
    const char *when = decimal(stamp + sizeof stamp, now, 20);
    const char *who = decimal(process + sizeof process, (uint64_t)getpid(), 1);
    stpcpy(stpcpy(stpcpy(stpcpy(temporary, ".tmp-"), who), "-"), when);
    stpcpy(stpcpy(stpcpy(stpcpy(final, when), "-"), who), ".del");
    strcpy(path, address.sun_path);
    strrchr(path, '/')[1] = 0;
    (void)mkdir(path, 0700); /* missing after a reboot, before the agent; what fails here fails in open as well */
    if ((above = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) return strerror(errno);
    if (!mkdirat(above, "spool", 0700)) (void)fsync(above);
    else if (errno != EEXIST) return strerror(errno);
    below = openat(above, "spool", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return below < 0 || !store(below, temporary, final) ? strerror(errno) : NULL;
}

static int keep(const char *told) {
    const char *failure = spool();
    return !failure ? 0 : FAIL(CODE_TRY_AGAIN, told, "; and this DEL cannot be kept in the spool beside the socket ",
                               address.sun_path, ": ", failure);
}

/* Print the reply and acknowledge it; the exit code. */
static int pass_on(int fd) {
    static const unsigned char acknowledged = ACKNOWLEDGED;
    unsigned char last = 0;
    int code = (int)get(reply + 8, 4), failure;
    if (get(reply + 6, 2) == SPOOL) {
        if ((failure = keep("the agent cannot write this DEL down"))) return failure;
        code = 0;
    } else if (!write_all(STDOUT_FILENO, reply + HEADER, reply_size - HEADER)) {
        return 1; /* nobody has heard it: without an acknowledgement the agent takes it back */
    }
    if (send(fd, &acknowledged, 1, MSG_NOSIGNAL) == 1 || verb != ADD || code) return code;
    /* An agent that has died since leaves its answer on disk, where it holds. One that lives has grown tired of
     * waiting for us and says next that it has taken its answer back. */
    deadline = milliseconds() + 2000;
    if (ready(fd, POLLIN) && (recv(fd, &last, 1, 0) != 1 || last != WITHDRAWN)) return code;
    return FAIL(CODE_TRY_AGAIN, "the result above was printed too late, the agent has taken it back; try again");
}

static int serve(void) {
    int64_t left;
    char digits[24];
    const char *path = address.sun_path, *waited;
    for (int pause = FIRST_WAIT;; pause = pause * 2 < LONGEST_WAIT ? pause * 2 : LONGEST_WAIT) {
        int fd = -1;
        enum outcome outcome = attempt(&fd);
        if (outcome == ANSWERED) return pass_on(fd);
        if (outcome == BROKEN) {
            return FAIL(CODE_TRY_AGAIN, "the agent at ", path, " gave a broken answer: ", why, "; its log may say more");
        }
        if (fd >= 0) close(fd);
        if (denied || (left = deadline - milliseconds()) <= 0) break;
        (void)poll(NULL, 0, left < pause ? (int)left : pause);
        if (deadline <= milliseconds()) break;
    }
    if (verb == DEL) return keep("the agent is away");
    waited = decimal(digits + sizeof digits, (uint64_t)(milliseconds() - begin), 1);
    return FAIL(CODE_TRY_AGAIN, "no answer from the agent at ", path, " in ", waited, " ms: ", why,
                "; see that it runs on this node and has this socket (allotment doctor), then try again");
}

/* The socket's path and the deadline, from the environment; 0 or the exit code. */
static int configure(void) {
    const char *path = getenv("ALLOTMENT_SOCKET"), *limit = getenv("ALLOTMENT_TIMEOUT_MS");
    int budget = verbs[verb].budget, shorter = 0;
    if (!path || !*path) path = "/run/allotment/cni.sock";
    if (*path != '/' || strlen(path) >= sizeof address.sun_path) {
        return FAIL(CODE_ENVIRONMENT, "ALLOTMENT_SOCKET must be an absolute path of at most 107 bytes, not ", path);
    }
    strcpy(address.sun_path, path);
    /* Only ever less, and what is no number is not there: an operator's slip must not cost a pod. */
    for (; limit && *limit >= '0' && *limit <= '9' && shorter < budget; limit++) shorter = shorter * 10 + *limit - '0';
    if (limit && !*limit && shorter > 0 && shorter < budget) budget = shorter;
    begin = milliseconds();
    deadline = begin + budget;
    return 0;
}

int main(int argc, char **argv) {
    const char *command = getenv("CNI_COMMAND");
    int failure;
    (void)argv;
    guard_streams();
    (void)signal(SIGPIPE, SIG_IGN);
    if (!command || !*command) {
        if (argc > 1 || isatty(STDIN_FILENO) || isatty(STDOUT_FILENO)) {
            return write_all(STDOUT_FILENO, usage, sizeof usage - 1), 1;
        }
        return FAIL(CODE_ENVIRONMENT, "CNI_COMMAND is not set: this is a CNI plugin, for a container runtime to start");
    }
    for (verb = ADD; verb < UNKNOWN && strcmp(command, verbs[verb].name); verb++) continue;
    if (verb == UNKNOWN) {
        return FAIL(CODE_ENVIRONMENT, "CNI_COMMAND must be ADD, DEL, CHECK, GC, STATUS or VERSION, not ", command);
    }
    if ((failure = configure())) return failure;
    if (verb == VERSION) { /* nothing in it matters, but a caller may mind that nobody read it */
        while (ready(STDIN_FILENO, POLLIN) && read(STDIN_FILENO, request, LIMIT) > 0) continue;
        return !write_all(STDOUT_FILENO, versions, sizeof versions - 1);
    }
    return (failure = read_request()) ? failure : serve();
}
