"""Searches the end of the output for a job's patterns, in a child process of a second or two.

Python's regular expressions can need quadratic or exponential time: `(a+)+$` on thirty letters takes minutes, during
which nothing renews the lease. They cannot be interrupted, so they run in a child, which the kernel ends when its time
is used. The runner waits no longer than that.
"""

import os
import select

from coordd.runner.kernel import SIGKILL, boottime, complain

# Processor time and timeout (seconds) for all patterns of a job together: normal ones take microseconds. Far below a
# lease.
CPU_S = 1
PATIENCE_S = 2.0

_FOUND, _NOT_FOUND, _BAD = 10, 11, 12


def found(patterns: "tuple[str, ...]", text: str, key: str) -> bool:
    """True if one of the patterns matches; ``key`` names them. A bad or too slow one does not match, and is logged."""
    import re  # before the fork: the child imports nothing
    import resource

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = _BAD
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))  # in case nobody is left to end it
            code = _FOUND if any(re.search(pattern, text) for pattern in patterns) else _NOT_FOUND
        finally:
            os._exit(code)
    os.close(writing)
    try:
        give_up_at = boottime() + PATIENCE_S
        poll = select.poll()
        poll.register(reading, 0)  # only the end of the pipe matters: the child has ended
        while (left_s := give_up_at - boottime()) > 0:
            if poll.poll(left_s * 1000):
                break
    finally:
        os.close(reading)
        os.kill(child, SIGKILL)
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (_FOUND, _NOT_FOUND):
        why = "one of them is not a regular expression" if code == _BAD else "they took too long and were given up"
        complain(f"{key}: {why}; the failure counts as one that none of them matches: {', '.join(patterns)}")
    return code == _FOUND
