// Waits, as the first process of a pod, and takes up what its orphans leave.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    sigset_t all;
    int number;

    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    while (sigwait(&all, &number) == 0) {
        if (number == SIGTERM || number == SIGINT)
            return 0;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
    }
    return 1;
}
