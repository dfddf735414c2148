/* What the runs under faults execute: victim DIRECTORY ends|waits

   It forks a child that wipes its environment, and one that also leaves the session and lets itself be orphaned. All
   of them hold one lock, on DIRECTORY/locks/RUN: it is free again when nothing of the attempt is alive, by the kernel's
   word. A line "RUN ATTEMPT start" goes to DIRECTORY/log; "overlap" where an earlier attempt still holds the lock.
   With "waits" the first attempt stays until it is ended. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static void say(const char *directory, const char *word) {
    char path[512], line[512];
    snprintf(path, sizeof path, "%s/log", directory);
    int length = snprintf(line, sizeof line, "%s %s %s\n", getenv("COORDD_RUN"), getenv("COORDD_ATTEMPT"), word);
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (write(fd, line, length) != length) exit(9);
    close(fd);
}

static void hide(char *self) {
    char *argv[] = {self, NULL}, *env[] = {NULL};
    execve("/proc/self/exe", argv, env);
    _exit(9);
}

int main(int argc, char **argv) {
    char path[512], byte;
    int done[2];
    if (argc < 3) { /* one of the children */
        sleep(1000);
        return 0;
    }
    snprintf(path, sizeof path, "%s/locks/%s", argv[1], getenv("COORDD_RUN"));
    int lock = open(path, O_RDWR | O_CREAT, 0644); /* inherited: that is what it is for */
    if (lock < 0) return 9;
    if (flock(lock, LOCK_EX | LOCK_NB)) say(argv[1], "overlap");
    say(argv[1], "start");
    if (pipe2(done, O_CLOEXEC)) return 9;
    if (fork() == 0) hide(argv[0]);
    if (fork() == 0) {
        setsid();
        if (fork() == 0) hide(argv[0]);
        _exit(0);
    }
    close(done[1]);
    if (read(done[0], &byte, 1)) return 9; /* both have become others: their ends of the pipe are closed */
    say(argv[1], "ready");
    if (!strcmp(argv[2], "waits") && !strcmp(getenv("COORDD_ATTEMPT"), "0")) sleep(1000);
    return 0;
}
