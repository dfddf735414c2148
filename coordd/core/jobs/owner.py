"""What the ledger says to who asks whether it owns a run, and the proof of the nonce (docs/protocol.md, section 7).

Runners, their trackers and the daemon share this. The runner loads it only when its program may ask.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import OK, STALE, STARTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.rows import Row

GREETING = b"coordd-guard 1 "

# For programs that cannot reach the runner's socket themselves (Java cannot): a command, words with a space between
# them, to which they add their question.
GUARD_COMMAND = "COORDD_GUARD_COMMAND"

# The caller is the owner, but an earlier attempt of its run has the commit.
COMMITTED = "committed"


def guard_command(python: str, coordd: str) -> "dict[str, str]":
    """GUARD_COMMAND for the environment of a program: this Python, and guard.py in the directory ``coordd``.

    {} if a path has a space: then the words could not be told apart.
    """
    words = (python, "-I", "-S", f"{coordd}/guard.py")
    return {} if any(word.split() != [word] for word in words) else {GUARD_COMMAND: " ".join(words)}


def standing(row: "Row | None", token: int, nonce: str) -> Answer:
    """What a run's row says of a grant: ok, committed (by ``token``), or stale with what is there instead."""
    if row is None:
        return Answer(STALE)
    if (row.token, row.nonce, row.state) != (token, nonce, STARTED):
        return Answer(STALE, by=row.node, attempt=row.attempt, state=row.state, token=row.token)
    if row.commit_token not in (0, token):
        return Answer(COMMITTED, token=row.commit_token)
    return Answer(OK)


def mac(nonce: str, purpose: bytes, body: bytes) -> bytes:
    """The proof that the sender of ``body`` knows the nonce."""
    import hashlib  # several megabytes, which only a runner needs whose program asks
    import hmac

    return hmac.new(nonce.encode(), purpose + b"\0" + body, hashlib.sha256).hexdigest().encode()
