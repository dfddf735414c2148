"""The rule of a re-run with children: which runs follow a run that a person has run once more, and when.

The plan (plan.py) is written in the same step as the re-run. Each node asks for each of its runs; the ledger opens it
once, after the new ends of its parents. What a run has come to is read from the rows (fate.py), so the plan does not
change; when nothing of it waits any more, it goes. ``Rerunning`` is a part of the rules (rules.py). The runner loads
this file before it starts a job, so its neighbours are imported where a request needs them.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.rule import UNSETTLED_RETRY_S, Backfilling
from coordd.core.ledger.limits.rule import LIMIT_RETRY_S
from coordd.core.ledger.rows import OF_RERUN, LedgerTime
from coordd.core.ledger.words import (
    DIFFERS,
    EXISTS,
    FINISHED,
    LIMITED,
    NEVER,
    OK,
    OUTDATED,
    RECOVERING,
    RERUN,
    RETRY,
    TERMINAL,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.requests import Rerun
    from coordd.core.ledger.rerun.fate import Fate
    from coordd.core.ledger.rows import Store


class Rerunning(Backfilling):
    """The operation of a re-run's children. ``store`` is one transaction; ``now`` is the ledger's time."""

    def rerun(self, store: "Store", said: "Rerun", now: LedgerTime) -> Answer:
        """Open one run for the re-run of ``root``: ok (``attempt``), exists (nothing to do for it; ``by``: why),
        limited (not now), finished (the plan is over), differs, outdated or recovering.
        """
        from coordd.core.groups.expand import group_of
        from coordd.core.ledger.rerun.fate import BEGUN, LEFT, Fates
        from coordd.core.ledger.rerun.plan import read

        if now.recovering_s > 0:
            return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)
        hold = self._hold(store, OF_RERUN + said.root, now)
        if hold is None:
            return Answer(FINISHED)
        items = read(hold.note)
        mark = f"{RERUN}{said.root}/{hold.version} by {hold.by}"
        fates = Fates(store, said.root, mark)
        for one in items:
            fates.judge(one)
        named = group_of(said.of.run)
        item = next((one for one in items if one.runs.run == named and said.of.run in one.runs.rows()), None)
        if item is None:
            answer = Answer(EXISTS, by="it is not in the plan")
        else:
            answer = self._rerun_one(store, said, fates.of[named], mark, now)
            if answer.word == OK:
                fates.changed(item)
        if all(fate.word in (BEGUN, LEFT) for fate in fates.of.values()):
            self._put_hold(store, OF_RERUN + said.root, None)
        return answer

    def _rerun_one(self, store: "Store", said: "Rerun", fate: "Fate", mark: str, now: LedgerTime) -> Answer:
        from coordd.core.ledger.rerun.fate import READY, WAITS, has_begun, opened_by

        of = said.of
        row = store.run(of.run)
        if fate.word == WAITS:
            return Answer(LIMITED, by=fate.because, in_s=LIMIT_RETRY_S)
        if fate.word != READY or (row is not None and has_begun(row, mark, fate.ended_at)):
            return Answer(EXISTS, state=row.state if row is not None else "", by=fate.because)
        if row is not None and row.state not in TERMINAL:
            return Answer(LIMITED, by=f"{row.run} has not ended", in_s=LIMIT_RETRY_S)
        begin = self._identity_from(store)
        if begin == NEVER or (of.scheduled and of.identity_from != begin):
            return Answer(OUTDATED)
        job = self._job(store, of.job, now)
        if job.digest != of.digest:
            return Answer(DIFFERS)
        if self._nothing_starts(store, job, now):
            return Answer(LIMITED, by="suspended", in_s=UNSETTLED_RETRY_S)
        other = self._in_the_way(store, of)
        if other is not None:
            return Answer(LIMITED, by=f"overlap with {other.run}", in_s=LIMIT_RETRY_S)
        if row is not None:
            of.args = row.args  # of a group: its value
        opened = self._open_once_more(store, row, of, opened_by(fate.parents) + mark, now)
        return Answer(OK, state=RETRY, attempt=opened.attempt)
