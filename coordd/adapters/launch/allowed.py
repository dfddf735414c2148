"""Root's file of the users that jobs may run as (run_as), and the most that each may have.

    # USER [memory=4G] [cpu_weight=200] [tasks=512]
    etl   memory=8G
    report

One user a line; never root itself, under whatever name. A limit is the most that a job of this user gets, and what a
job without that limit of its own gets. Everybody may read the file; only root may own and write it. The supervisor in
the unit, which is root, decides by it; the daemon reads it only to say in advance what will be refused.
"""

import os
import pwd
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = "/etc/coordd/run_as.allow"

# Where a program in a unit finds its file of secrets. Its /tmp is its unit's own.
SECRETS_PATH = "/tmp/coordd-secrets"  # noqa: S108 - in a /tmp that no other unit sees
BYTES_MAX = 64 * 1024

# The limits: the name in the job file and in root's file -> the property of the unit, and its greatest value. A
# request to the supervisor has them in this order.
LIMITS = {"memory": ("MemoryMax", 2**62), "cpu_weight": ("CPUWeight", 10_000), "tasks": ("TasksMax", 2**22)}

# To the kernel this number says "keep what you are", which is root; pwd shows it as -1.
NO_ID = (-1, 2**32 - 1)

SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def number(name: str, text: str) -> int:
    """The value of a limit: a whole number above 0, of memory also with K, M, G or T. Raises ValueError."""
    size = SIZES.get(text[-1:], 0) if name == "memory" else 0
    digits = text[:-1] if size else text
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 19:
        raise ValueError(f'expected a whole number for {name}, found "{text:.40}"')
    value = int(digits) * (size or 1)
    if not 1 <= value <= LIMITS[name][1]:
        raise ValueError(f"expected 1 to {LIMITS[name][1]} for {name}, found {value}")
    return value


def parse(text: str) -> "dict[str, dict[str, int]]":
    """The users, each with its limits. Raises ValueError, which names the line."""
    users: dict[str, dict[str, int]] = {}
    for count, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        limits = {}
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if not equals or name not in LIMITS:
                raise ValueError(f'line {count}: expected {"=, ".join(LIMITS)}=, found "{word:.40}"')
            try:
                limits[name] = number(name, value)
            except ValueError as exc:
                raise ValueError(f"line {count}: {exc}") from exc
        users[words[0]] = limits
    return users


def read(path: str = PATH) -> "dict[str, dict[str, int]]":
    """Root's file; without one nobody is allowed. Raises ValueError when it cannot be trusted or understood."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise ValueError(f"{path} cannot be read: {exc.strerror}") from exc
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
            raise ValueError(f"{path} must be a file that root owns and nobody else may write: chmod 0644, chown root")
        data = os.read(fd, BYTES_MAX + 1)
    finally:
        os.close(fd)
    if len(data) > BYTES_MAX:
        raise ValueError(f"{path}: expected at most {BYTES_MAX} bytes")
    try:
        return parse(data.decode())
    except ValueError as exc:
        raise ValueError(f"{path}: {exc}") from exc


def decide(
    user: str, asked: "Mapping[str, int]", users: "Mapping[str, Mapping[str, int]]", path: str = PATH
) -> "tuple[pwd.struct_passwd, dict[str, int]]":
    """The account of an allowed user, and its limits (those that it has). Raises ValueError, which says why not."""
    if user not in users:
        raise ValueError(f'"{user}" is not in {path}, where root names the users that jobs may run as')
    account = account_of(user)
    if account.pw_uid == 0:
        raise ValueError(f'"{user}" is root, and no job runs as root by run_as')
    if account.pw_uid in NO_ID or account.pw_gid in NO_ID:
        raise ValueError(f'"{user}" has the uid or gid {NO_ID[1]}, which is not a number of a user or group')
    limits = dict(users[user])
    for name, value in asked.items():
        most = limits.get(name, value)
        if value > most:
            raise ValueError(f'limits.{name} is {value}, and {path} allows "{user}" at most {most}')
        if value:
            limits[name] = value
    return account, limits


def account_of(user: str) -> pwd.struct_passwd:
    """Raises ValueError when this machine has no such user."""
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise ValueError(f'there is no user "{user}" on this machine') from None
