/* Runs the CNI plugin that its own name has behind "timed-", from the same folder, and writes down how long that took:
 * a line "VERB MICROSECONDS" in a file of the plugin's name below /run/timed. */

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "timed-"
#define FOLDER "/run/timed"

static long now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000L + at.tv_nsec / 1000;
}

static void note(const char *plugin, long microseconds)
{
    char path[256], line[64];
    const char *verb = getenv("CNI_COMMAND");
    snprintf(path, sizeof path, FOLDER "/%s", plugin);
    mkdir(FOLDER, 0755);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    int length = snprintf(line, sizeof line, "%.20s %ld\n", verb ? verb : "-", microseconds);
    if (write(file, line, (size_t)length) != length)
        fprintf(stderr, "timed: %s: %s\n", path, strerror(errno));
    close(file);
}

int main(int count, char **arguments)
{
    char path[4096], copy[4096];
    (void)count;
    snprintf(copy, sizeof copy, "%s", arguments[0]);
    char *own = strrchr(arguments[0], '/');
    own = own ? own + 1 : arguments[0];
    if (strncmp(own, PREFIX, strlen(PREFIX)) != 0) {
        fprintf(stderr, "timed: my name must be " PREFIX "PLUGIN\n");
        return 2;
    }
    const char *plugin = own + strlen(PREFIX);
    snprintf(path, sizeof path, "%s/%s", dirname(copy), plugin);
    long begin = now();
    pid_t child = vfork();
    if (child == 0) {
        execl(path, path, (char *)0);
        _exit(127);
    }
    int status = 0;
    if (child < 0)
        return 2;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    note(plugin, now() - begin);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}
