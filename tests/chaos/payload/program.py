"""The program of every chaos job. It records its own launches: on the disk, and by locks that the kernel releases.

program.py DIRECTORY JOB LONGEST_S FAILS_PERCENT DEAF_PERCENT CHILD_PERCENT

One line each goes to DIRECTORY/launches by a single write and fsync: run, attempt, token, node, word, boottime, wall
clock, pid. Words: start; end (exit 0), fail (exit 3), term (ended by TERM); overlap (an earlier attempt of the run
holds the run's lock: it lives); crossed (another run of a job that allows one at a time holds the job's). A program
that is killed writes nothing more: DIRECTORY/beats has the last instant of its life, to a tenth of a second.

Some programs leave a child behind that detaches as a daemon does: it forks twice, has its own session and an empty
environment, and lives a minute longer than its program if nobody ends it. Its beats are in DIRECTORY/children.
"""

import fcntl
import os
import signal
import sys
import time

BEAT_S = 0.1
CHILD_S = 60.0


def main() -> None:
    if sys.argv[1] == "--child":
        directory, _, name = sys.argv[2:]
        beats(f"{directory}/children/{name}-{os.getpid()}", CHILD_S)
        return
    directory, job, longest, fails, deaf, child = sys.argv[1:]
    env = os.environ
    names = (env["COORDD_RUN"], env["COORDD_ATTEMPT"], env["COORDD_TOKEN"], env["COORDD_NODE"])

    def say(word: str) -> None:
        now = (repr(time.clock_gettime(time.CLOCK_BOOTTIME)), repr(time.time()), str(os.getpid()))
        fd = os.open(f"{directory}/launches", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, " ".join((*names, word, *now)).encode() + b"\n")
        os.fsync(fd)
        os.close(fd)

    def is_free(name: str) -> bool:
        lock = os.open(f"{directory}/locks/{name}", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def told_to_end(_number: int, _frame: object) -> None:
        say("term")
        os._exit(143)

    chance = int.from_bytes(os.urandom(6), "big")
    chance, deafness = divmod(chance, 100)
    chance, failure = divmod(chance, 100)
    chance, parenthood = divmod(chance, 100)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if deafness < int(deaf) else told_to_end)
    free, alone = is_free(names[0]), not job or is_free(job)
    say("start")
    if not free:
        say("overlap")
    if not alone:
        say("crossed")
    seconds = 0.2 + (float(longest) - 0.2) * (chance % 1000 / 1000)
    if parenthood < int(child):
        daemonise(directory, names[3], f"{names[2]}-{os.getpid()}")
    beats(f"{directory}/beats/{names[2]}-{os.getpid()}", seconds)
    failed = failure < int(fails)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one last word, not two
    say("fail" if failed else "end")
    sys.exit(3 if failed else 0)


def beats(path: str, seconds: float) -> None:
    """Live for that time, and keep the last instant in a file."""
    beat = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    began = now = time.clock_gettime(time.CLOCK_BOOTTIME)
    while now < began + seconds:
        os.pwrite(beat, f"{now:020.3f}".encode(), 0)
        time.sleep(min(BEAT_S, began + seconds - now))
        now = time.clock_gettime(time.CLOCK_BOOTTIME)


def daemonise(directory: str, node: str, name: str) -> None:
    """Start a child as daemons are started; its command line names the node only for the power cut of the test."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, 1024)
    argv = [sys.executable, "-I", "-S", "-E", __file__, "--child", directory, f"chaos-child-of-{node}", name]
    os.execve(argv[0], argv, {})


main()
