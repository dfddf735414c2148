"""What a holder asks of the supervisor in a unit. As root, the supervisor reads only this: texts, separated by NULs."""

from coordd.adapters.launch.allowed import LIMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "1"

# The holder listens under this abstract name and the key of the attempt's unit.
ADDRESS = b"\0coordd-run/"

REQUEST_BYTES_MAX = 16 * 1024 * 1024
MESSAGE_BYTES_MAX = 4096


class Request:
    """One program. ``user``: "" for the holder's own. A limit of 0: none. ``secrets``: the text of its file, or ""."""

    __slots__ = ("argv", "cwd", "env", "label", "limits", "secrets", "user")

    def __init__(
        self,
        argv: "list[str]",
        env: "Mapping[str, str]",
        cwd: str,
        *,
        user: str = "",
        label: int = 0,
        limits: "Mapping[str, int] | None" = None,
        secrets: str = "",
    ) -> None:
        self.argv = argv
        self.env = dict(env)
        self.cwd = cwd
        self.user = user
        self.label = label
        self.limits = {name: int((limits or {}).get(name, 0)) for name in LIMITS}
        self.secrets = secrets


def pack(request: Request) -> bytes:
    """Raises ValueError when a text has a NUL in it."""
    numbers = [str(number) for number in (request.label, *request.limits.values(), len(request.argv))]
    environment = [f"{name}={value}" for name, value in request.env.items()]
    texts = [VERSION, request.user, request.cwd, request.secrets, *numbers, *request.argv, *environment]
    if any("\0" in text for text in texts):
        raise ValueError("a text for the program has a NUL in it")
    return "\0".join(texts).encode("utf-8", "surrogateescape")


def unpack(data: bytes) -> Request:
    """Raises ValueError when it is not a request of this version."""
    version, *texts = data.decode("utf-8", "surrogateescape").split("\0")
    if version != VERSION or len(texts) < 8:
        raise ValueError(f"expected a request of version {VERSION}, found version {version:.20} of {len(texts)} texts")
    user, cwd, secrets = texts[:3]
    if not all(number.isdecimal() and len(number) < 20 for number in texts[3:8]):
        raise ValueError("expected the label, three limits and the number of arguments")
    label, *limits, count = [int(number) for number in texts[3:8]]
    argv, environment = texts[8 : 8 + count], texts[8 + count :]
    if not argv or len(argv) != count or not argv[0]:
        raise ValueError(f"expected {count} arguments, found {len(argv)}")
    env = {}
    for text in environment:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError("expected NAME=value for each variable")
        env[name] = value
    return Request(
        argv, env, cwd, user=user, label=label, limits=dict(zip(LIMITS, limits, strict=True)), secrets=secrets
    )
