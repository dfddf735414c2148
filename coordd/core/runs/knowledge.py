"""What counts as knowledge that an attempt is over: recorded and observed facts in, a verdict out.

A node that knows says so to the ledger, and nobody waits for the lease. A wrong verdict would start a second copy of a
job that runs. So everything that is not listed here is "cannot tell", and the lease decides. docs/protocol.md, section
6, *Testimony*, has the argument. The watcher loads this file, so it imports nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Where the processes of an attempt live, as recorded at launch and as observed now; each value is a text ("": unknown).
# machine: /etc/machine-id; host: the kernel's host name; boot: the boot id; pid_ns: the inode of the PID namespace;
# container: why this counts as a container, "" outside.
PLACE = ("machine", "host", "boot", "pid_ns", "container")

# The result of a look at the attempt's processes.
NOTHING = ""  # nobody could look, or the look proves nothing
GUARDED = "guarded"  # a watcher that has lived throughout has ended everything, and has no child left
CGROUP = "cgroup"  # the cgroup that the runner used is empty
ALL = "all"  # no cgroup; /proc hides nothing, and shows no process of the attempt

# What an attempt may have on other machines.
EXECUTORS = "executors"  # Spark in client mode with a master elsewhere
DRIVER = "driver"  # Spark in cluster mode


def is_over(then: "Mapping[str, str]", now: "Mapping[str, str]", seen: str, elsewhere: str) -> str:
    """Why the attempt is certainly over; "" if that cannot be told.

    ``then`` and ``now`` are places, ``seen`` is one of the words above, and so is ``elsewhere`` ("": nothing).
    """
    if seen == GUARDED:
        return "its watcher has ended everything"
    if elsewhere == DRIVER or not _known("boot", then, now):
        return ""
    if then["boot"] != now["boot"]:
        return "its machine has restarted" if _is_same_machine(then, now) and not elsewhere else ""
    if not _known("pid_ns", then, now) or then["pid_ns"] != now["pid_ns"]:
        return ""
    return {CGROUP: "its cgroup is empty", ALL: "none of its processes is left"}.get(seen, "")


def _is_same_machine(then: "Mapping[str, str]", now: "Mapping[str, str]") -> bool:
    """True outside containers, on the same machine. An image gives all its containers the same machine-id."""
    if then.get("container", "?") or now.get("container", "?"):
        return False
    return all(_known(key, then, now) and then[key] == now[key] for key in ("machine", "host"))


def _known(key: str, *places: "Mapping[str, str]") -> bool:
    return all(place.get(key) for place in places)
