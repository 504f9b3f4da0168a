/* Prints the path of a network namespace of its own, which lives until standard input ends, or its parent does: a
 * benchmark that is killed leaves nothing running. */

#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(void)
{
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Without root, a user namespace of its own gives the right to make the other. */
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) {
        fprintf(stderr, "namespace: a network namespace: %s\n", strerror(errno));
        return 2;
    }
    printf("/proc/%d/ns/net\n", (int)getpid());
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        continue;
    return 0;
}
