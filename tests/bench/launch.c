/* Starts a process the way a service manager would, for the benchmarks.
 *
 *   launch [--listen FD] -- PROGRAM [ARGUMENT]...   becomes PROGRAM; FD is passed on as a listening socket
 *                                                   (sd_listen_fds(3): descriptor 3, LISTEN_FDS, LISTEN_PID)
 *   launch --namespace                              prints the path of a network namespace of its own, which lives
 *                                                   until standard input ends
 *
 * Either dies with its parent, so that a benchmark that is killed leaves nothing running. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static int die(const char *what)
{
    fprintf(stderr, "launch: %s: %s\n", what, strerror(errno));
    return 2;
}

static int hold_namespace(void)
{
    char byte;
    /* Without root, a user namespace of its own gives the right to make the other. */
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
        return die("a network namespace");
    printf("/proc/%d/ns/net\n", (int)getpid());
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        continue;
    return 0;
}

static int pass_on(const char *text)
{
    char number[24];
    int fd = atoi(text);
    if (fd == 3 ? fcntl(fd, F_SETFD, 0) : dup2(fd, 3) != 3)
        return -1;
    snprintf(number, sizeof number, "%d", (int)getpid());
    return setenv("LISTEN_FDS", "1", 1) || setenv("LISTEN_PID", number, 1) || setenv("LISTEN_FDNAMES", "cni", 1);
}

int main(int argc, char **argv)
{
    int at = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc > 1 && strcmp(argv[1], "--namespace") == 0)
        return hold_namespace();
    if (argc > 2 && strcmp(argv[1], "--listen") == 0) {
        if (pass_on(argv[2]))
            return die("the listening socket");
        at = 3;
    }
    if (at + 1 >= argc || strcmp(argv[at], "--")) {
        fprintf(stderr, "launch: the head of launch.c says how it is called\n");
        return 2;
    }
    execvp(argv[at + 1], argv + at + 1);
    return die(argv[at + 1]);
}
