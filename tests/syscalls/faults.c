/* LD_PRELOAD: lets the n-th system call of one part of coordd fail, or kills the process at it.

   Each process has a role: the daemon says its own, the first process that it starts for an attempt is "watcher", what
   that forks is "runner", what the runner forks is "program" (until it executes, after which this library is not in it
   any more); what the daemon or a runner starts after that is "burial". The daemon's warm parent is "warm"; what it
   forks for an attempt has the role of what the daemon would have started. All share one page (FAULTS names its file),
   in which the test says what is to happen, and in which the calls of each role are counted: of a runner from the
   moment at which it was forked or has read its spec, of daemon and warm parent while the test has armed it. PAGE in
   faults.py has the same fields. */

/* With FAULTS_NO_CGROUP no cgroup can be made.

   Also a tape: with TAPE every write, truncation and fsync is appended to a file, for a power cut to be played. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DAEMON, WATCHER, RUNNER, PROGRAM, BURIAL, WARM, ROLES, LATER };
enum { FAIL = 1, KILL = 2 };

struct page {
    int32_t armed;         /* the daemon's calls count while this is 1 */
    int32_t role, n;       /* whose call, and which one, counted from 1; 0: nobody's */
    int32_t action;        /* FAIL or KILL */
    int32_t pick;          /* which of a call's errors, by number modulo how many there are */
    int32_t repeat;        /* this many calls of the same kind fail, from the n-th on */
    _Atomic int32_t fired; /* how often */
    int32_t error;         /* the errno that was used */
    char call[24];         /* which call it was */
    _Atomic int32_t count[ROLES];
    _Atomic int32_t spawns; /* runners and watchers that were started since the test began */
};

static struct page *page;
static int role = -1, counting, tape = -1;
static __thread int inside;
static char kept_library[256], kept_page[256];

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS"), *who = getenv("FAULTS_ROLE"), *tapes = getenv("TAPE");
    if (tapes) tape = syscall(SYS_openat, AT_FDCWD, tapes, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (!path) return;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (at == MAP_FAILED) return;
    page = at;
    snprintf(kept_page, sizeof kept_page, "%s", path);
    snprintf(kept_library, sizeof kept_library, "%s", getenv("LD_PRELOAD"));
    role = who ? atoi(who) : WATCHER;
    counting = role == DAEMON;
}

/* 0: go on. -1: the call fails, errno is set. */
static int fault(const char *call, int n_errors, const int *errors) {
    if (!page || !counting || inside || role >= ROLES || ((role == DAEMON || role == WARM) && !page->armed)) return 0;
    int now = atomic_fetch_add(&page->count[role], 1) + 1;
    if (role != page->role || !page->n || now < page->n) return 0;
    if (now > page->n && (page->action == KILL || page->fired >= page->repeat || strcmp(page->call, call))) return 0;
    atomic_fetch_add(&page->fired, 1);
    strncpy(page->call, call, sizeof page->call - 1);
    if (page->action == KILL) {
        page->error = -SIGKILL;
        syscall(SYS_kill, (int)syscall(SYS_getpid), SIGKILL);
    }
    errno = page->error = errors[page->pick % n_errors];
    return -1;
}

#define FAULT(call, ...) \
    static const int errors_[] = {__VA_ARGS__}; \
    if (fault(call, sizeof errors_ / sizeof *errors_, errors_)) return -1

/* ---- the tape: kind, descriptor's inode and device, offset, length, bytes */

struct record { char kind; char pad[7]; uint64_t device, inode; int64_t offset; uint64_t length; };

static void play(char kind, int fd, int64_t offset, const void *data, uint64_t length) {
    struct stat of;
    if (tape < 0 || inside) return;
    inside = 1;
    int kept = errno;
    if (!fstat(fd, &of) && S_ISREG(of.st_mode)) {
        struct record head = {kind, {0}, of.st_dev, of.st_ino, offset, length};
        char *whole = malloc(sizeof head + length);
        memcpy(whole, &head, sizeof head);
        if (data) memcpy(whole + sizeof head, data, length);
        syscall(SYS_write, tape, whole, sizeof head + (data ? length : 0));
        free(whole);
    }
    errno = kept;
    inside = 0;
}

/* ---- files */

/* EAGAIN is for these alone: no kernel says it of a file. */
static int waits_never(int fd) { return syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK; }

ssize_t write(int fd, const void *data, size_t length) {
    if (waits_never(fd)) {
        FAULT("write", EAGAIN, EINTR, EIO);
    } else {
        FAULT("write", ENOSPC, EIO, EINTR);
    }
    ssize_t done = REAL(write)(fd, data, length);
    if (tape >= 0 && done > 0) play('w', fd, lseek(fd, 0, SEEK_CUR) - done, data, done);
    return done;
}
static ssize_t pwrite_(int fd, const void *data, size_t length, off64_t at) {
    FAULT("pwrite", ENOSPC, EIO, EINTR);
    ssize_t done = REAL(pwrite64)(fd, data, length, at);
    if (done > 0) play('w', fd, at, data, done);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { return pwrite_(fd, data, length, at); }
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t at) { return pwrite_(fd, data, length, at); }
ssize_t read(int fd, void *data, size_t length) {
    if (page && !counting && role != DAEMON && fd == 0) {
        ssize_t first = REAL(read)(fd, data, length);
        if (first == 0) counting = 1; /* the whole spec has been read */
        return first;
    }
    if (waits_never(fd)) {
        FAULT("read", EAGAIN, EINTR, EIO);
    } else {
        FAULT("read", EIO, EINTR);
    }
    return REAL(read)(fd, data, length);
}
static ssize_t pread_(int fd, void *data, size_t length, off64_t at) {
    FAULT("pread", EIO, EINTR);
    return REAL(pread64)(fd, data, length, at);
}
ssize_t pread(int fd, void *data, size_t length, off_t at) { return pread_(fd, data, length, at); }
ssize_t pread64(int fd, void *data, size_t length, off64_t at) { return pread_(fd, data, length, at); }
int fsync(int fd) {
    FAULT("fsync", EIO, ENOSPC);
    play('s', fd, 0, NULL, 0);
    return REAL(fsync)(fd);
}
int fdatasync(int fd) {
    FAULT("fdatasync", EIO, ENOSPC);
    play('s', fd, 0, NULL, 0);
    return REAL(fdatasync)(fd);
}
static int truncate_(int fd, off64_t length) {
    FAULT("ftruncate", EIO, ENOSPC);
    int done = REAL(ftruncate64)(fd, length);
    if (!done) play('t', fd, length, NULL, 0);
    return done;
}
int ftruncate(int fd, off_t length) { return truncate_(fd, length); }
int ftruncate64(int fd, off64_t length) { return truncate_(fd, length); }

static int open_(const char *path, int flags, mode_t mode) {
    FAULT("open", EMFILE, ENOSPC, EIO, EINTR);
    return REAL(open64)(path, flags, mode);
}
#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }
int open(const char *path, int flags, ...) { MODE(flags) return open_(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_(path, flags, mode); }
int rename(const char *from, const char *to) { FAULT("rename", EIO, ENOSPC, EROFS); return REAL(rename)(from, to); }
int unlink(const char *path) {
    FAULT("unlink", EIO, EROFS);
    int fd = tape < 0 ? -1 : syscall(SYS_openat, AT_FDCWD, path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    int done = REAL(unlink)(path);
    struct stat of;
    if (fd >= 0 && !done && !fstat(fd, &of) && !of.st_nlink) play('u', fd, 0, NULL, 0); /* its last name */
    if (fd >= 0) syscall(SYS_close, fd);
    return done;
}
int mkdir(const char *path, mode_t mode) {
    if (getenv("FAULTS_NO_CGROUP") && strstr(path, "coordd-probe-")) {
        errno = EACCES;
        return -1;
    }
    FAULT("mkdir", ENOSPC, EIO, EROFS);
    return REAL(mkdir)(path, mode);
}
int rmdir(const char *path) { FAULT("rmdir", EIO, EBUSY); return REAL(rmdir)(path); }
int chdir(const char *path) { FAULT("chdir", EIO, EACCES); return REAL(chdir)(path); }
int flock(int fd, int what) { FAULT("flock", EINTR, ENOLCK); return REAL(flock)(fd, what); }
static int lock_(int fd, int what, void *of) {
    /* Letting go of a lock does not fail: a lock that stays for good is no error that a kernel makes. */
    int takes = (what == F_SETLK || what == F_SETLKW) && ((struct flock *)of)->l_type != F_UNLCK;
    if (takes) { FAULT("fcntl", EAGAIN, EINTR, ENOLCK, EIO); }
    return REAL(fcntl64)(fd, what, of);
}
int fcntl(int fd, int what, ...) {
    va_list rest;
    va_start(rest, what);
    void *of = va_arg(rest, void *);
    va_end(rest);
    return lock_(fd, what, of);
}
int fcntl64(int fd, int what, ...) {
    va_list rest;
    va_start(rest, what);
    void *of = va_arg(rest, void *);
    va_end(rest);
    return lock_(fd, what, of);
}
int memfd_create(const char *name, unsigned flags) { FAULT("memfd_create", EMFILE, ENOMEM); return REAL(memfd_create)(name, flags); }
int dup2(int from, int to) { FAULT("dup2", EMFILE, EINTR); return REAL(dup2)(from, to); }
int pipe2(int fds[2], int flags) { FAULT("pipe2", EMFILE); return REAL(pipe2)(fds, flags); }
int pipe(int fds[2]) { FAULT("pipe", EMFILE); return REAL(pipe)(fds); }

/* ---- sockets, and waiting */

int socket(int domain, int type, int protocol) { FAULT("socket", EMFILE, ENOBUFS); return REAL(socket)(domain, type, protocol); }
int bind(int fd, const struct sockaddr *to, socklen_t length) { FAULT("bind", ENOSPC, EADDRINUSE); return REAL(bind)(fd, to, length); }
ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t of) {
    FAULT("sendto", EAGAIN, ECONNREFUSED, EINTR);
    return REAL(sendto)(fd, data, length, flags, to, of);
}
ssize_t recv(int fd, void *data, size_t length, int flags) {
    FAULT("recv", EAGAIN, EINTR);
    return REAL(recv)(fd, data, length, flags);
}
ssize_t send(int fd, const void *data, size_t length, int flags) {
    FAULT("send", ENOBUFS, EINTR);
    return REAL(send)(fd, data, length, flags);
}
ssize_t sendmsg(int fd, const struct msghdr *of, int flags) {
    FAULT("sendmsg", EAGAIN, ENOBUFS, ETOOMANYREFS, EINTR);
    return REAL(sendmsg)(fd, of, flags);
}
ssize_t recvmsg(int fd, struct msghdr *of, int flags) {
    FAULT("recvmsg", ENOMEM, EINTR);
    return REAL(recvmsg)(fd, of, flags);
}
int socketpair(int domain, int type, int protocol, int fds[2]) {
    FAULT("socketpair", EMFILE, ENFILE);
    return REAL(socketpair)(domain, type, protocol, fds);
}
int eventfd(unsigned value, int flags) { FAULT("eventfd", EMFILE, ENOMEM); return REAL(eventfd)(value, flags); }
DIR *opendir(const char *path) {
    static const int errors[] = {EMFILE, ENOMEM};
    return fault("opendir", 2, errors) ? NULL : REAL(opendir)(path);
}
int poll(struct pollfd *fds, nfds_t count, int wait) {
    if (role == WARM) counting = 1; /* its start is over: no code of ours can handle an error of an import */
    FAULT("poll", EINTR);
    return REAL(poll)(fds, count, wait);
}

/* ---- processes */

/* The role of what is started for an attempt now; the third is the next attempt, which is left alone. */
static int started(void) {
    int nth = atomic_fetch_add(&page->spawns, 1);
    return nth == 0 ? WATCHER : nth == 1 ? BURIAL : LATER;
}

pid_t fork(void) {
    FAULT("fork", EAGAIN, ENOMEM);
    pid_t pid = REAL(fork)();
    if (pid == 0 && page && role == WARM) role = started();
    else if (pid == 0 && page && role != DAEMON) role = role == WATCHER ? RUNNER : role == RUNNER ? PROGRAM : LATER;
    return pid;
}
long syscall(long number, ...) {
    va_list rest;
    long a[6];
    va_start(rest, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
    va_end(rest);
    long (*next)(long, ...) = (long (*)(long, ...))real("syscall");
    if (number == SYS_clone3) { FAULT("clone3", EAGAIN, ENOSYS, EPERM); }
    long result = next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number == SYS_clone3 && result == 0 && role == RUNNER) role = PROGRAM;
    return result;
}
int kill(pid_t pid, int number) { FAULT("kill", EPERM, ESRCH); return REAL(kill)(pid, number); }
pid_t waitpid(pid_t pid, int *status, int options) { FAULT("waitpid", EINTR, ECHILD); return REAL(waitpid)(pid, status, options); }
pid_t wait4(pid_t pid, int *status, int options, struct rusage *use) { FAULT("wait4", EINTR); return REAL(wait4)(pid, status, options, use); }
pid_t setsid(void) { FAULT("setsid", EPERM); return REAL(setsid)(); }
int execve(const char *path, char *const argv[], char *const env[]) { FAULT("execve", ENOMEM, EACCES, EIO); return REAL(execve)(path, argv, env); }

/* A runner, and a later watcher, get this library too, though their environment is a clean one. */
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *how,
                char *const argv[], char *const env[]) {
    static const int errors[] = {EAGAIN, ENOMEM, EMFILE};
    if (fault("posix_spawn", 3, errors)) return errno;
    char *more[64], library[512], file[512], who[64];
    int count = 0;
    for (; env[count] && count < 59; count++) more[count] = env[count];
    if (page) {
        snprintf(library, sizeof library, "LD_PRELOAD=%s", kept_library);
        snprintf(file, sizeof file, "FAULTS=%s", kept_page);
        int warm = 0;
        for (int i = 0; argv[i]; i++) warm |= !strcmp(argv[i], "coordd-warm");
        snprintf(who, sizeof who, "FAULTS_ROLE=%d", warm ? WARM : started());
        more[count++] = library;
        more[count++] = file;
        more[count++] = who;
    }
    more[count] = NULL;
    return REAL(posix_spawn)(pid, path, actions, how, argv, more);
}
