/* LD_PRELOAD: moves CLOCK_REALTIME alone, by the seconds written as text in $SKEW_FILE, which is read at every call:
   rewrite it, and the clock jumps. Monotonic clocks, sleeps and timeouts are left alone (libfaketime moves them too). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double offset(void) {
    static const char *path;
    char text[64];
    if (!path && !(path = getenv("SKEW_FILE"))) return 0;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    long size = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    if (size <= 0) return 0;
    text[size] = 0;
    return atof(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
    double by = offset();
    long seconds = (long)by, nanoseconds = now->tv_nsec + (long)((by - seconds) * 1e9);
    if (nanoseconds < 0) {
        nanoseconds += 1000000000;
        seconds--;
    } else if (nanoseconds >= 1000000000) {
        nanoseconds -= 1000000000;
        seconds++;
    }
    now->tv_sec += seconds;
    now->tv_nsec = nanoseconds;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now) *now = at.tv_sec;
    return at.tv_sec;
}
