"""What the ledger says to who asks whether it owns a run, and the proof of the nonce (docs/protocol.md, section 7).

Runners, their trackers and the daemon share this. The runner loads it only when its program may ask.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import OK, STALE, STARTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.rows import Row

GREETING = b"coordd-guard 1 "

# The caller is the owner, but an earlier attempt of its run has the commit.
COMMITTED = "committed"


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
