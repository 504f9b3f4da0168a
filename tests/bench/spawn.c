/* Load for one CNI plugin: N callers run its binary M times and measure each run from fork to exit.
 *
 *   spawn load --callers N --count M [--first F] [--until-eof] --verbs ADD,DEL --stdin FILE
 *              [--env NAME=VALUE]... [--answers FILE] -- PLUGIN
 *   spawn sync --count M [--pace NANOSECONDS] FILE
 *
 * `load` gives each operation a number, from F on, and runs the verbs in turn for it; "@N@" in a value of the
 * environment and in the standard input is the operation's number. With --until-eof it goes on until its own standard
 * input ends. A run has succeeded when the exit code is 0 and, for ADD, something was printed. What ADD printed goes to
 * --answers, a line each.
 *
 * `sync` overwrites 4 KiB blocks of FILE, which it makes, each followed by fdatasync, and waits between two of them for
 * as long as --pace says: a disk that had nothing to do for a moment takes longer.
 *
 * Both print one JSON object; times are nanoseconds of CLOCK_MONOTONIC. The pipes a runtime would have are made before
 * a run's time begins and read after it ends, so what is measured is the plugin. vfork, because it is the cheapest way
 * there is to start a process, and so the fairest floor to compare with. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CALLERS = 256, MAX_ENV = 64, MAX_VERBS = 4, ANSWER = 1 << 16, EXPANDED = 1 << 15, BLOCK = 4096 };

struct times {
    long long *of;
    size_t count, room;
};

struct caller {
    pthread_t thread;
    struct times times[MAX_VERBS];
    long failures;
    char first_failure[400];
    long long children_cpu; /* user and system time of the plugins, ns */
    char expanded[EXPANDED], answer[ANSWER + 1]; /* a thread's stack is too small for them */
};

static struct {
    long callers, count, first, pace;
    bool until_eof;
    const char *plugin;
    const char *verbs[MAX_VERBS];
    int verb_count;
    const char *env[MAX_ENV];
    int env_count;
    char stdin_text[EXPANDED];
    int answers;
} plan = {.callers = 1, .count = 1, .answers = -1};

static atomic_long next_operation;
static atomic_bool over;
static pthread_barrier_t start;
static pthread_mutex_t answers_lock = PTHREAD_MUTEX_INITIALIZER;
static int nowhere;

static void die(const char *what)
{
    fprintf(stderr, "spawn: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void usage(const char *what)
{
    fprintf(stderr, "spawn: %s; the head of spawn.c says how it is called\n", what);
    exit(2);
}

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long cpu(const struct rusage *used)
{
    return (used->ru_utime.tv_sec + used->ru_stime.tv_sec) * 1000000000LL +
           (used->ru_utime.tv_usec + used->ru_stime.tv_usec) * 1000LL;
}

static void note(struct times *times, long long value)
{
    if (times->count == times->room) {
        times->room = times->room ? 2 * times->room : 1024;
        times->of = realloc(times->of, times->room * sizeof *times->of);
        if (!times->of)
            die("memory");
    }
    times->of[times->count++] = value;
}

/* Writes `text` with each "@N@" replaced into the `room` bytes at `to`; returns the length without the final NUL. */
static size_t expand(const char *text, long number, char *to, size_t room)
{
    size_t used = 0;
    while (*text) {
        char digits[24] = {*text, 0};
        size_t length = 1;
        if (strncmp(text, "@N@", 3) == 0) {
            length = (size_t)snprintf(digits, sizeof digits, "%ld", number);
            text += 3;
        } else {
            text++;
        }
        if (used + length >= room)
            usage("a text is too long");
        memcpy(to + used, digits, length);
        used += length;
    }
    to[used] = 0;
    return used;
}

static pid_t run(char *const argv[], char *const envp[], int in, int out)
{
    pid_t pid = vfork();
    if (pid == 0) { /* on the parent's memory: nothing here but system calls */
        dup2(in, 0);
        dup2(out, 1);
        dup2(nowhere, 2);
        execve(argv[0], argv, envp);
        _exit(127);
    }
    return pid;
}

static void keep_answer(char *answer, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (answer[i] == '\n')
            answer[i] = ' ';
    answer[length] = '\n';
    pthread_mutex_lock(&answers_lock);
    if (write(plan.answers, answer, length + 1) != (ssize_t)(length + 1))
        die("writing the answers");
    pthread_mutex_unlock(&answers_lock);
}

static void fail(struct caller *me, const char *verb, long number, int status, const char *answer)
{
    if (me->failures++)
        return;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    snprintf(me->first_failure, sizeof me->first_failure, "%s %ld: exit %d, printed: %s", verb, number, code, answer);
}

static void call(struct caller *me, int verb, long number)
{
    char command[32], *answer = me->answer, *expanded = me->expanded;
    char *envp[MAX_ENV + 2], *argv[] = {(char *)plan.plugin, NULL};
    size_t used = 0;
    snprintf(command, sizeof command, "CNI_COMMAND=%s", plan.verbs[verb]);
    envp[0] = command;
    for (int i = 0; i < plan.env_count; i++) {
        envp[i + 1] = expanded + used;
        used += expand(plan.env[i], number, expanded + used, EXPANDED - used) + 1;
    }
    envp[plan.env_count + 1] = NULL;

    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        die("pipe");
    size_t length = expand(plan.stdin_text, number, answer, ANSWER);
    if (write(in[1], answer, length) != (ssize_t)length)
        die("writing standard input");
    close(in[1]);

    int status;
    struct rusage used_by_it;
    long long begin = now();
    pid_t pid = run(argv, envp, in[0], out[1]);
    if (pid < 0 || wait4(pid, &status, 0, &used_by_it) != pid)
        die("starting the plugin");
    long long end = now();

    close(in[0]);
    close(out[1]);
    size_t got = 0;
    for (ssize_t n; got < ANSWER && (n = read(out[0], answer + got, ANSWER - got)) > 0;)
        got += (size_t)n;
    close(out[0]);
    answer[got] = 0;
    me->children_cpu += cpu(&used_by_it);
    bool adds = strcmp(plan.verbs[verb], "ADD") == 0;
    if (status || (adds && !got)) {
        fail(me, plan.verbs[verb], number, status, answer);
        return;
    }
    note(&me->times[verb], end - begin);
    if (adds && plan.answers >= 0)
        keep_answer(answer, got);
}

static void *work(void *argument)
{
    struct caller *me = argument;
    pthread_barrier_wait(&start);
    while (!atomic_load(&over)) {
        long number = atomic_fetch_add(&next_operation, 1);
        if (!plan.until_eof && number >= plan.first + plan.count)
            break;
        for (int verb = 0; verb < plan.verb_count; verb++)
            call(me, verb, number);
    }
    return NULL;
}

static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            putchar('\\');
        if (c >= 0x20 && c < 0x7f)
            putchar(c);
        else
            printf("\\u%04x", c); /* a message is ASCII or, at worst, shown as Latin-1 */
    }
    putchar('"');
}

static void report(struct caller *callers, long long wall)
{
    struct rusage own;
    long failures = 0;
    long long children = 0;
    const char *first = "";
    getrusage(RUSAGE_SELF, &own);
    for (long i = 0; i < plan.callers; i++) {
        failures += callers[i].failures;
        children += callers[i].children_cpu;
        if (callers[i].failures && !*first)
            first = callers[i].first_failure;
    }
    printf("{\"wall_ns\": %lld, \"failures\": %ld, \"first_failure\": ", wall, failures);
    print_text(first);
    printf(", \"plugin_cpu_ns\": %lld, \"driver_cpu_ns\": %lld, \"latency_ns\": {", children, cpu(&own));
    for (int verb = 0; verb < plan.verb_count; verb++) {
        printf("%s\"%s\": [", verb ? ", " : "", plan.verbs[verb]);
        const char *comma = "";
        for (long i = 0; i < plan.callers; i++)
            for (size_t j = 0; j < callers[i].times[verb].count; j++, comma = ",")
                printf("%s%lld", comma, callers[i].times[verb].of[j]);
        printf("]");
    }
    printf("}}\n");
}

static void load(void)
{
    static struct caller callers[MAX_CALLERS];
    atomic_store(&next_operation, plan.first);
    pthread_barrier_init(&start, NULL, (unsigned)plan.callers + 1);
    for (long i = 0; i < plan.callers; i++)
        if ((errno = pthread_create(&callers[i].thread, NULL, work, &callers[i])))
            die("starting a caller");
    long long begin = now();
    pthread_barrier_wait(&start);
    if (plan.until_eof) {
        char byte;
        while (read(0, &byte, 1) > 0)
            continue;
        atomic_store(&over, true);
    }
    for (long i = 0; i < plan.callers; i++)
        pthread_join(callers[i].thread, NULL);
    report(callers, now() - begin);
}

static void sync_file(const char *path)
{
    enum { BLOCKS = 64 };
    static char block[BLOCK];
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        die(path);
    for (int i = 0; i < BLOCKS; i++)
        if (write(fd, block, BLOCK) != BLOCK)
            die(path);
    if (fsync(fd))
        die(path);
    printf("{\"latency_ns\": {\"SYNC\": [");
    for (long i = 0; i < plan.count; i++) {
        struct timespec pause = {plan.pace / 1000000000, plan.pace % 1000000000};
        memset(block, (int)(i & 0xff), BLOCK);
        nanosleep(&pause, NULL);
        long long begin = now();
        if (pwrite(fd, block, BLOCK, i % BLOCKS * BLOCK) != BLOCK || fdatasync(fd))
            die(path);
        printf("%s%lld", i ? "," : "", now() - begin);
    }
    printf("]}}\n");
    close(fd);
}

static long number_of(const char *text, long low, long high)
{
    char *end;
    errno = 0;
    long value = text ? strtol(text, &end, 10) : 0;
    if (!text || errno || end == text || *end || value < low || value > high)
        usage("a number is missing or out of its range");
    return value;
}

static void read_stdin_text(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, plan.stdin_text, sizeof plan.stdin_text - 1);
    if (got < 0)
        die(path);
    plan.stdin_text[got] = 0;
    close(fd);
}

static void read_verbs(char *list)
{
    for (char *verb = strtok(list, ","); verb; verb = strtok(NULL, ",")) {
        if (plan.verb_count == MAX_VERBS || strlen(verb) > 15)
            usage("too many verbs, or too long ones");
        plan.verbs[plan.verb_count++] = verb;
    }
}

static bool take(char **argument, const char *name, char ***next)
{
    if (strcmp(*argument, name))
        return false;
    *next = argument + 1;
    return true;
}

int main(int argc, char **argv)
{
    char **at = argv + 2, **value = NULL;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (; argc > 2 && *at && (*at)[0] == '-'; at = value + 1) {
        if (take(at, "--", &value)) {
            at++;
            break;
        }
        if (take(at, "--until-eof", &value)) {
            plan.until_eof = true;
            value = at;
        } else if (take(at, "--callers", &value)) {
            plan.callers = number_of(*value, 1, MAX_CALLERS);
        } else if (take(at, "--count", &value)) {
            plan.count = number_of(*value, 1, 10000000);
        } else if (take(at, "--first", &value)) {
            plan.first = number_of(*value, 0, LONG_MAX / 2);
        } else if (take(at, "--pace", &value)) {
            plan.pace = number_of(*value, 0, 1000000000);
        } else if (take(at, "--verbs", &value) && *value) {
            read_verbs(*value);
        } else if (take(at, "--stdin", &value) && *value) {
            read_stdin_text(*value);
        } else if (take(at, "--answers", &value) && *value) {
            plan.answers = open(*value, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600);
            if (plan.answers < 0)
                die(*value);
        } else if (take(at, "--env", &value) && *value && plan.env_count < MAX_ENV) {
            plan.env[plan.env_count++] = *value;
        } else {
            usage("an argument is not known or has no value");
        }
    }
    if (argc < 3 || !*at)
        usage("something is missing");
    if (strcmp(argv[1], "sync") == 0) {
        sync_file(*at);
    } else if (strcmp(argv[1], "load") == 0 && plan.verb_count) {
        plan.plugin = *at;
        load();
    } else {
        usage("the first argument is `load` or `sync`, and `load` needs --verbs");
    }
    return fflush(stdout) ? 2 : 0;
}
