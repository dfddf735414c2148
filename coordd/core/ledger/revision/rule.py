"""The rule that puts a revision in force: all its definitions are activated in one step, at one instant.

``Adopting`` is a part of the rules (rules.py). The runner loads this file before it starts a job, so text.py and
requests.py are imported where a request needs them.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import Fires
from coordd.core.ledger.rows import REVISION, Hold, LedgerTime
from coordd.core.ledger.words import DIFFERS, NEVER, OK, OUTDATED, RECOVERING
from coordd.errors import BadRowError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.requests import Adopt
    from coordd.core.ledger.rows import Store


class Adopting(Fires):
    """The operation ``adopt``. ``store`` is one transaction; ``now`` is the ledger's time."""

    def adopt(self, store: "Store", said: "Adopt", now: LedgerTime) -> Answer:
        """That revision is in force from now on: ok, or differs (``token``: the number of the one that stays).

        ``replaces`` is the revision that the caller found in force. So of two callers one is refused, and an older
        revision never replaces a newer one. Each definition is activated as a person would (``activate``): what has not
        changed keeps its place. A bad row of a job that it lists refuses the whole revision, before anything is
        written.

        The newest revision withdraws every other job that has a definition in the ledger, or had a schedule. The
        caller may be a new node that never had the job: the ledger forgot everything, and a node with an older revision
        restored it. An older revision withdraws only what it lists as gone: other jobs may be of a newer one. A job
        whose row is bad is left: nothing of it begins by schedule.
        """
        from coordd.core.ledger.requests import Activate
        from coordd.core.ledger.revision.text import GONE, InForce

        if now.recovering_s > 0:
            return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)
        if self._identity_from(store) == NEVER:
            return Answer(OUTDATED)
        known, new = self._revision(store, now), InForce(said.number, said.digest)
        if known == new:
            return Answer(OK, token=new.number)
        if known.number >= new.number or known.number != said.replaces:
            return Answer(DIFFERS, token=known.number)
        jobs = [line.split(" ") for line in said.jobs.splitlines()]
        listed = {name for name, _, _ in jobs}
        for name in listed:
            self._known(store, name)
        jobs += [[name, GONE, GONE] for name in self._withdrawn(store, listed, now)] if said.newest else []
        for name, digest, schedule in jobs:
            self.activate(store, Activate(job=name, digest=digest, schedule=schedule, how="person", by=said.by), now)
        self._put_hold(store, REVISION, Hold(by=said.by, uid=said.uid, at=now.wall, note=new.text()))
        return Answer(OK, token=new.number)

    def _withdrawn(self, store: "Store", listed: "set[str]", now: LedgerTime) -> "list[str]":
        """The jobs that a revision with these jobs withdraws."""
        found = []
        for name in store.job_names():
            try:
                job = None if name in listed else self._known(store, name)
            except BadRowError:
                continue
            if job is not None and (job.digest or self._was_scheduled(store, job, now)):
                found.append(name)
        return found
