"""The program of every run. It records its own life, on the disk and by locks that the kernel releases.

program.py LOG NAME SECONDS_MIN SECONDS_MAX [POOL]

One line each goes to LOG by a single write and fsync: run, attempt, token, node, word, boottime, wall clock, pid.
Words: start; end (it ran to its end); overlap (another program of the run lives); crossed (another program of NAME
lives); overfull (POOL other programs live that were started with POOL).
"""

import fcntl
import os
import sys
import time

# While programs come and go one may miss the place that was just left: it looks again.
LOOKS = 3


def main() -> None:
    log, name, least, most, *pool = sys.argv[1:]
    env = os.environ

    def say(word: str) -> None:
        words = (env["COORDD_RUN"], env["COORDD_ATTEMPT"], env["COORDD_TOKEN"], env["COORDD_NODE"], word)
        at = (repr(time.clock_gettime(time.CLOCK_BOOTTIME)), repr(time.time()), str(os.getpid()))
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(fd, " ".join((*words, *at)).encode() + b"\n")
        os.fsync(fd)
        os.close(fd)

    def is_free(lock: str) -> bool:
        fd = os.open(f"{log}.d/{lock}", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        return True

    for lock, word in ((env["COORDD_RUN"], "overlap"), (name or env["COORDD_RUN"], "crossed")):
        if not is_free(f"{lock}.{word}"):
            say(word)
    places = [f"{number}.place" for number in range(int(pool[0]))] if pool else []
    if places and not any(is_free(place) for _ in range(LOOKS) for place in places):
        say("overfull")
    say("start")
    time.sleep(float(least) + (float(most) - float(least)) * int.from_bytes(os.urandom(2), "big") / 65536)
    say("end")


if __name__ == "__main__":
    main()
