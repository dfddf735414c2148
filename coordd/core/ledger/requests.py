"""What the ledger is asked.

The runner loads this file before it starts a job, so it imports nothing but its neighbours.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.rows import Policy


class Registration:
    """What is known of a run before anybody has claimed it; the same from every node.

    ``fire_at`` is the time that a scheduled run's id names, ``due`` when it is due (later by the job's jitter, where
    the id is made of the nominal time), and ``identity_from`` the instant from which on ids are made so, as far as
    the one who asks knows. Of a triggered run ``fire_at`` is the asking node's time, which only that node can judge:
    it tells the ledger how old the request is (``age_s``), and the ledger dates it.
    """

    __slots__ = (
        "age_s",
        "args",
        "by",
        "digest",
        "due",
        "fire_at",
        "identity_from",
        "job",
        "policy",
        "run",
        "scheduled",
    )

    def __init__(
        self,
        run: str,
        job: str,
        digest: str,
        policy: "Policy",
        fire_at: float,
        *,
        scheduled: bool,
        args: str = "{}",
        by: str = "",
        age_s: float = 0.0,
        due: float = 0.0,
        identity_from: float = 0.0,
    ) -> None:
        self.age_s = age_s
        self.due = max(fire_at, due)
        self.identity_from = identity_from
        self.run = run
        self.job = job
        self.digest = digest
        self.policy = policy
        self.fire_at = fire_at
        self.scheduled = scheduled
        self.args = args
        self.by = by


class Claim:
    """A node asks for one attempt.

    ``watched`` is what the claimant itself has seen of the holder: (token, beat, seconds on its own
    CLOCK_BOOTTIME during which it did not change), or None. ``settled_to`` is the fire time up to which older
    ones are settled under the job's misfire policy.
    """

    __slots__ = ("attempt", "lease_s", "node", "nonce", "of", "settled_to", "watched")

    def __init__(
        self,
        of: Registration,
        attempt: int,
        nonce: str,
        node: str,
        lease_s: float,
        watched: "tuple[int, int, float] | None" = None,
        settled_to: float = 0.0,
    ) -> None:
        self.of = of
        self.attempt = attempt
        self.nonce = nonce
        self.node = node
        self.lease_s = lease_s
        self.watched = watched
        self.settled_to = settled_to
