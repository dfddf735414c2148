"""Any sequence of calls to a ledger and to the rules in memory: the answers must be equal. A subclass for each ledger.

Most calls come from the holder of the attempt. Otherwise the search would seldom see an accepted call.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import initialize, precondition, rule
from support.ledger_calls import LEASE_S, FakeClock, Nodes, grant_of, watched_of
from support.memory import MemoryLedger

from contract.ledger.feed.mirror import Follows
from contract.ledger.ledger_coverage import Seen, fields, states
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.plan import Plan
from coordd.core.ledger.fires import STRETCH_WORDS
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.people import is_dead_letter, is_over
from coordd.core.ledger.requests import (
    NOTHING_SETTLED,
    Activate,
    Adopt,
    Cancel,
    Claim,
    Discard,
    Fill,
    Keep,
    ListEnded,
    ListOpen,
    NewRules,
    Page,
    PassOver,
    PlanBackfill,
    Register,
    Replay,
    Rerun,
    Resolve,
    Revoke,
    Settle,
    Settled,
    Suspend,
)
from coordd.core.ledger.rerun.plan import Item, Runs, text_of
from coordd.core.ledger.rows import ALL, JobRow
from coordd.core.ledger.runner_requests import Commit, Gate, Grant, Registration, Renew, Report, Request
from coordd.core.ledger.words import ACTIVE, NEVER, UNKNOWN, AttemptNumber
from coordd.ports import Ledger

FIRE_AT = {"a@2025-01-29T08:00:01Z": 1.0, "a@2025-01-29T08:01:00Z": 60.0}
JITTER_S = {"a@2025-01-29T08:01:00Z": 7.25}
RUNS = ("a#1", "a#2", *FIRE_AT, "b#1", "b#é")
NODES = ("edge-1.10", "edge-2.20")
FITTING = ("success", "done", "failure")

A = TypeVar("A", bound=Answer | OpenAnswer)

runs = st.sampled_from(RUNS)
attempts = st.integers(0, 2)
nonces = st.sampled_from(("x", "y"))
policies = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from(("forbid", "allow", "replace", "queue")),
        "on_lost": st.sampled_from(("relaunch", "hold")),
        "attempts": st.integers(1, 3),
        "relaunches": st.integers(0, 2),
        "delay_s": st.sampled_from((0.0, 0.1, 30.0)),
        "backoff": st.sampled_from(("fixed", "linear", "exponential")),
        "start_within_s": st.sampled_from((50.0, 1234567.0, 3600.5)),
    }
)
ordinary = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from(("allow", "allow", "allow", "forbid", "queue")),
        "on_lost": st.sampled_from(("relaunch", "hold")),
        "attempts": st.integers(1, 2),
        "relaunches": st.integers(0, 1),
        "start_within_s": st.sampled_from((50.0, 3600.0)),
    }
)
# A claimant's observation: difference from the row's token, difference from its beat, and the silence in leases.
watches = st.sampled_from((None, (0, 0, 1.03), (0, 0, 1.03), (1, 0, 1.03), (0, 1, 1.03), (0, 0, 1.02), (0, 0, 1.01)))
ends = st.sampled_from(("success", "failure", "revoked", "lost"))


class LedgerMachine(Follows):
    """Requests of nodes and people in any order. ``ledger`` and ``memory`` have the same clock."""

    seen: ClassVar[Seen]
    ledger: Ledger

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.start = clock.wall
        self.memory = MemoryLedger(clock)
        self.nodes = Nodes(self.memory, clock)
        self.grants: dict[tuple[str, int], tuple[int, str]] = {}  # the grants that each node believes to hold
        self.moved = False
        self.turns = 0
        self.claims = 0

    # ---- hooks for a test that examines more

    def ask(self, request: Request[A]) -> A:
        """Ask both; the answers must be equal."""
        self.before_call()
        before = states(self.memory)
        answer = self.memory.ask(request)
        assert fields(self.ledger.ask(request)) == fields(answer), request
        if request.op in ("claim", "register", "activate", "adopt", "pass_over"):
            self.same_fires()
        self.seen.note(request.op, answer, before, states(self.memory))
        return answer

    def same_fires(self) -> None:
        """Both have decided the same about fire times without a row, and nothing twice."""
        for job in ("a", "b"):
            known = self.memory.fires(job)
            assert fields(self.ledger.fires(job)) == fields(known)
            ends = [at for one in known.stretches for at in (one.after, one.upto)]
            assert ends == sorted(ends), f"{job}: two stretches overlap"
            assert all(one.after < one.upto for one in known.stretches)
        assert self.ledger.succeeded(("a", "b", "c")) == self.memory.succeeded(("a", "b", "c"))
        fired = [
            [row.run for row in ledger.fired("a", self.start, self.start + 60.0)]
            for ledger in (self.memory, self.ledger)
        ]
        assert fired[0] == fired[1]

    def granted(self, claim: Claim, answer: Answer) -> None:
        """A claim was granted, for the first time or again. ``grants`` does not contain the grant yet."""

    def forgotten(self, gone: set[str]) -> None:
        """Retention has forgotten these runs."""

    def ask_gate(self, grant: Grant, ahead_s: float = 0.0) -> None:
        self.ask(Gate(grant=grant, ahead_s=ahead_s))

    def ask_commit(self, grant: Grant) -> None:
        self.ask(Commit(grant=grant))

    def ask_report(self, report: Report) -> None:
        self.ask(report)

    def an_older_version_was_there(self, row: JobRow) -> None:
        """Put this row of a job into the ledger as an older version writes it, and nothing else."""
        raise NotImplementedError

    @initialize(old=st.booleans())
    def the_rules_that_are_in_force(self, old: bool) -> None:
        if old:
            row = JobRow("a", fence=7, horizon=self.start)
            self.memory._store.put_job(row)
            self.memory._store.commit()
            self.an_older_version_was_there(row)

    # ---- what the requests contain

    def identity_from(self) -> float:
        kept = self.memory._store.meta("identity_from")
        return float(kept) if kept else NEVER if self.memory._store.jobs else 0.0

    def of(self, run: str, policy: dict[str, Any], digest: str = "d1", **more: Any) -> Any:
        fire_at = self.start + FIRE_AT.get(run, 0.0)
        more = {"due": fire_at + JITTER_S.get(run, 0.0), "identity_from": self.identity_from(), **more}
        return self.nodes.of(run, fire_at=fire_at, digest=digest, **policy, **more)

    def held(self, data: st.DataObject) -> Grant:
        """A grant, in most cases an unchanged one of an attempt that is not over."""
        rows = {row.run: row for row in self.memory.runs()}
        current = [key for key in self.grants if key[0] in rows and rows[key[0]].attempt == key[1]]
        live = [key for key in current if rows[key[0]].state in ACTIVE]
        unknown = [key for key in live if rows[key[0]].state == UNKNOWN]
        key = data.draw(st.sampled_from([*sorted(self.grants), *sorted(live) * 4, *sorted(unknown) * 8]))
        token, nonce = self.grants[key]
        wrong = data.draw(st.sampled_from((*[(0, nonce)] * 8, (1, nonce), (-1, nonce), (0, "z"))))
        return grant_of(*key, token + wrong[0], wrong[1])

    def settles(self, job: str, upto: float) -> Settled:
        """Older fire times, by turns with each word, and counted rightly, wrongly or not at all."""
        self.turns += 1
        known = self.memory.fires(job)
        begin = max([known.horizon, *[one.upto for one in known.stretches]])
        after, count = ((begin, 1), (begin, 0), (begin - 1.0, 0), (-1.0, -1), (begin, 2))[self.turns % 5]
        return Settled(upto, ("", *STRETCH_WORDS)[self.turns % 6], after, count)

    def ask_claim(self, of: Registration, attempt: int, nonce: str, node: str, watched: Any) -> None:
        """A node that claims a fire time has already settled all earlier ones."""
        claim = Claim(
            of=of,
            attempt=AttemptNumber(attempt),
            nonce=nonce,
            node=node,
            lease_s=LEASE_S,
            watched=watched,
            settled=self.settles(of.job, of.due) if of.scheduled else NOTHING_SETTLED,
            opens=self.claims % 4 != 3,  # one of four by a node that knows a triggered run only from its election
        )
        self.claims += 1
        answer = self.ask(claim)
        if answer.word == "granted":
            self.granted(claim, answer)
            self.grants[of.run, attempt] = (answer.token, nonce)

    # ---- nodes

    @rule(
        run=runs,
        policy=policies,
        args=st.sampled_from(("{}", '{"k":"v"}')),
        age_s=st.sampled_from((0.0, 0.3)),
        digest=st.sampled_from(("d1", "d1", "d2")),
    )
    def register(self, run: str, policy: dict[str, Any], args: str, age_s: float, digest: str) -> None:
        self.ask(Register(of=self.of(run, policy, digest, args=args, age_s=age_s, by="ann")))

    @rule(
        run=runs,
        policy=policies,
        nonce=nonces,
        node=st.sampled_from(NODES),
        watch=watches,
        digest=st.sampled_from(("d1", "d1", "d2")),
        other=st.sampled_from((0, 0, 0, 0, 1, -1)),
    )
    def claim(
        self, run: str, policy: dict[str, Any], nonce: str, node: str, watch: Any, digest: str, other: int
    ) -> None:
        row = self.memory.run(run)
        attempt = max(0, (row.attempt if row else 0) + other)
        watched = watched_of(row.token + watch[0], row.beat + watch[1], LEASE_S * watch[2]) if row and watch else None
        self.ask_claim(self.of(run, policy, digest), attempt, nonce, node, watched)

    @rule(run=st.sampled_from(sorted(FIRE_AT)), known=st.sampled_from((0.0, 1.5e9, NEVER)))
    def a_node_claims_by_other_rules(self, run: str, known: float) -> None:
        self.ask_claim(self.of(run, {}, identity_from=known), 0, "x", NODES[0], None)

    @rule(known=st.sampled_from((-1.0, -1.0, 0.0, 1738137650.5)))
    def nobody_speaks_the_old_rules_any_more(self, known: float) -> None:
        self.ask(NewRules(known=known))

    @rule(
        job=st.sampled_from(("a", "a", "b", "c")),
        digest=st.sampled_from(("d1", "d1", "d2", "d3")),
        schedule=st.sampled_from(("s1", "s2")),
        how=st.sampled_from(("new", "changed", "returned", "restored", "person")),
        sequence=st.integers(0, 9),
        ago_s=st.sampled_from((0.0, 100.25)),
        revision=st.sampled_from((0, 0, 1, 2, 3)),
    )
    def activate(self, ago_s: float, **said: Any) -> None:
        before = "d3 d1 d4" if ago_s else ""
        self.ask(Activate(by="ann\nb", counts_from=self.clock.wall - ago_s, before=before, **said))

    @rule(
        number=st.integers(1, 4),
        digest=st.sampled_from(("r1", "r1", "r2")),
        replaces=st.integers(0, 3),
        jobs=st.sampled_from(("", "a d1 s1", "a d2 s2\nb d1 s1", "a gone gone\nc d3 s1")),
        newest=st.booleans(),
    )
    def adopt(self, **said: Any) -> None:
        self.ask(Adopt(by="ann", uid=7, **said))

    @rule(
        digest=st.sampled_from(("d1", "d1", "d2")),
        known=st.sampled_from((None, None, None, NEVER)),
        start_within_s=st.sampled_from((0.0, 50.0)),
        upto=st.sampled_from((0.0, 1.0, 67.25, 3000.0)),
    )
    def fire_times_are_passed_over(self, digest: str, known: float | None, start_within_s: float, upto: float) -> None:
        self.ask(
            PassOver(
                job="a",
                digest=digest,
                identity_from=self.identity_from() if known is None else known,
                start_within_s=start_within_s,
                settled=self.settles("a", self.start + upto),
            )
        )

    @rule(
        run=st.sampled_from(sorted(FIRE_AT)),
        policy=ordinary,
        redo=st.sampled_from(("none", "failed", "all", "all", "all")),
        late=st.sampled_from((False, False, True)),
        ended=st.sampled_from((False, True, True)),
        how=st.integers(0, 9),
    )
    def a_fire_time_is_backfilled(
        self, run: str, policy: dict[str, Any], redo: str, late: bool, ended: bool, how: int
    ) -> None:
        """In most cases of a job whose definition counts; the plan may have ended, and may be of somebody else."""
        if ended:
            self.ask(PlanBackfill(job="a", text="", by="ann"))
        self.ask(Activate(job="a", digest="d1", schedule="s1", how="person", by="ann"))
        if late:
            self.clock.step(130.0)
            settled, identity_from = self.settles("a", self.start + 100.0), self.identity_from()
            pass_over = PassOver(job="a", digest="d1", identity_from=identity_from, start_within_s=0.0, settled=settled)
            self.ask(pass_over)
        self.turns += 1
        order, at_most = ("oldest", "newest")[how % 2], how % 3 + 1
        plan = Plan(f"p{self.turns}", self.start, self.start + 100.0, order, at_most, redo, how % 4)
        self.ask(PlanBackfill(job="a", text=plan.text(), by="ann", uid=7))
        of = self.of(run, policy, "d2" if how == 9 else "d1")
        self.ask(Fill(plan=plan.id, of=of))
        self.ask(Fill(plan=plan.id, left=int(how == 5), of=of))

    @rule(run=st.sampled_from(RUNS[:2]), child=st.sampled_from(RUNS[1:4]), policy=ordinary, how=st.integers(0, 9))
    def a_child_runs_once_more(self, run: str, child: str, policy: dict[str, Any], how: int) -> None:
        """After a run that was given up and replayed; that one may have failed again, or may not have ended."""
        self.ask(Activate(job="a", digest="d1", schedule="s1", how="person", by="ann"))
        self.a_run_ends(run, policy, "failure")
        row, plan = self.memory.run(run), [Item(Runs(child), FITTING[how % 3], False, ((Runs(run),),))]
        packed, attempt = self.of(run, policy).policy.pack(), row.attempt if row else AttemptNumber(0)
        again = Replay(run=run, attempt=attempt, digest="d1", policy=packed, by="ann", children=text_of(plan))
        self.ask(again)
        if how:
            self.a_run_ends(run, policy, "failure" if how == 1 else "success")
        other = {"identity_from": 1.5} if how == 8 else {}
        for _ in range(2):
            self.ask(Rerun(root=run, of=self.of(child, policy, "d2" if how in (7, 9) else "d1", **other)))

    def a_run_ends(self, run: str, policy: dict[str, Any], state: str) -> None:
        self.a_run_is_let_in(run, policy, go=True, silent=False)
        row = self.memory.run(run)
        if row is not None and (run, row.attempt) in self.grants:
            grant = grant_of(run, row.attempt, *self.grants[run, row.attempt])
            self.ask_report(Report(grant=grant, state=state, exit_code=int(state != "success"), final=True))

    @rule(run=st.sampled_from(sorted(FIRE_AT)), claims=st.booleans())
    def a_fire_time_passes_while_its_job_is_suspended(self, run: str, claims: bool) -> None:
        self.ask(Suspend(job="a", suspended=True, by="ann"))
        self.clock.step(130.0)
        of = self.of(run, {"start_within_s": 50.0})
        if claims:
            self.ask_claim(of, 0, "x", NODES[0], None)
        else:
            self.ask(Register(of=of))
        self.ask(Suspend(job="a", suspended=False, by="ann"))

    @rule(run=runs, policy=ordinary, go=st.booleans(), silent=st.booleans())
    def a_run_is_let_in(self, run: str, policy: dict[str, Any], go: bool, silent: bool) -> None:
        """The normal case, so that the search often gets further than a grant; also after silence of the holder."""
        if silent:
            self.clock.step(LEASE_S * 1.03)
        row = self.memory.run(run)
        attempt = row.attempt if row else 0
        watched = watched_of(row.token, row.beat, LEASE_S * 1.03) if row and silent else None
        self.ask_claim(self.of(run, policy), attempt, "x", NODES[0], watched)
        if go and (run, attempt) in self.grants:
            self.ask_gate(grant_of(run, attempt, *self.grants[run, attempt]))

    @rule(run=runs, policy=ordinary, go=st.booleans())
    def a_holder_falls_silent(self, run: str, policy: dict[str, Any], go: bool) -> None:
        self.a_run_is_let_in(run, policy, go, silent=False)
        self.a_run_is_let_in(run, policy, go=False, silent=True)

    @rule(policy=ordinary, overlap=st.sampled_from(("forbid", "queue", "replace")))
    def a_run_waits_while_another_is_let_in(self, policy: dict[str, Any], overlap: str) -> None:
        self.ask(Register(of=self.of(RUNS[1], policy)))
        self.a_run_is_let_in(RUNS[0], {**policy, "overlap": "allow"}, go=True, silent=False)
        self.a_run_is_let_in(RUNS[1], {**policy, "overlap": overlap}, go=False, silent=False)

    @rule(run=runs, attempt=attempts)
    def claim_another_attempt(self, run: str, attempt: int) -> None:
        row = self.memory.run(run)
        if row is None or row.attempt != attempt:
            answer = self.ask(
                Claim(
                    of=self.of(run, {}),
                    attempt=AttemptNumber(attempt + (row is None)),
                    nonce="z",
                    node=NODES[0],
                    lease_s=LEASE_S,
                )
            )
            assert answer.word != "granted"

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def gate(self, data: st.DataObject) -> None:
        self.ask_gate(self.held(data))

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), ahead_s=st.sampled_from((0.01, 0.25, 100.0)), short_s=st.sampled_from((0.2, 0.005, 0.3)))
    def gate_shortly_before_the_fire_time(self, data: st.DataObject, ahead_s: float, short_s: float) -> None:
        """Shortly before a fire time, or at any other time. Then a person may suspend the job."""
        held = self.held(data)
        row = self.memory.run(held.run)
        if row is not None and (wait_s := row.not_before - self.clock.wall - short_s) > 0:
            self.clock.step(wait_s)
        self.ask_gate(held, ahead_s)
        if data.draw(st.booleans()):
            self.ask(Suspend(job=held.run.partition("@")[0].partition("#")[0], suspended=True, by="ann"))

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.ask_commit(self.held(data))

    @precondition(lambda self: self.grants)
    @rule(
        data=st.data(),
        application=st.sampled_from(("", "application_1")),
        lease_s=st.sampled_from((LEASE_S, 0.7)),
        launched=st.booleans(),
    )
    def renew(self, data: st.DataObject, application: str, lease_s: float, launched: bool) -> None:
        self.ask(Renew(grant=self.held(data), lease_s=lease_s, application_id=application, launched=launched))

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), state=ends | st.just("retry"), final=st.booleans(), code=st.sampled_from((None, 0, 1, -9)))
    def report(self, data: st.DataObject, state: str, final: bool, code: int | None) -> None:
        self.ask_report(Report(grant=self.held(data), state=state, exit_code=code, reason="why\n✓", final=final))

    @rule(run=runs, watch=watches, late=st.booleans(), silent=st.booleans())
    def settle(self, run: str, watch: Any, late: bool, silent: bool) -> None:
        """A node that may not run the job asks the ledger to settle the run."""
        if late or silent:
            self.clock.step(3700.0 if late else LEASE_S * 1.03)
        row = self.memory.run(run)
        watched = watched_of(row.token + watch[0], row.beat + watch[1], LEASE_S * watch[2]) if row and watch else None
        self.ask(Settle(run=run, attempt=AttemptNumber(row.attempt if row else 0), watched=watched))

    @rule(run=runs, back=st.sampled_from(("", "", "success", "retry", "revoked")))
    def an_attempt_on_hold_is_lost(self, run: str, back: str) -> None:
        """It was started, and its lease runs out: nobody knows how it ended, until its holder is back and says so. By
        chance this is rare.
        """
        row = self.memory.run(run)
        key = run, row.attempt if row else 0
        self.ask_claim(self.of(run, {"on_lost": "hold", "relaunches": 0}), key[1], "x", NODES[0], None)
        if key not in self.grants:
            return
        held = grant_of(*key, *self.grants[key])
        self.ask_gate(held)
        self.ask_commit(held)
        if (row := self.memory.run(run)) is not None:
            self.clock.step(LEASE_S * 1.03)
            lease = watched_of(row.token, row.beat, LEASE_S * 1.1)
            self.ask(Settle(run=run, attempt=AttemptNumber(key[1]), watched=lease))
            if back == "revoked":
                self.ask(Cancel(run=run, by="ann"))
            if back:
                self.ask_report(Report(grant=held, state=back))

    def sweep(self) -> None:
        """Read all open rows page by page. Each row must come exactly once."""
        answer = self.ask(ListOpen(jobs=("a", "b")))
        shown = list(answer.runs)
        while answer.after is not None:
            answer = self.ask(Page(after=answer.after))
            shown += answer.runs
        assert [row.run for row in shown] == [row.run for row in self.memory._store.open_runs(1000)[0]]

    @rule(ago_s=st.sampled_from((0.0, 0.5, 100.0)), jobs=st.sampled_from((("a",), ("b", "a"), ())))
    def follow(self, ago_s: float, jobs: tuple[str, ...]) -> None:
        """Read all ends since an instant, page by page. Each must come, in order."""
        since, shown = self.clock.wall - ago_s, []
        for limit in range(2, 200):  # many runs may end at one instant; a page that is longer gets past it
            answer = self.ask(ListEnded(since=since, jobs=jobs, limit=limit))
            shown += [row.run for row in answer.runs if row.run not in shown]
            if answer.after is None:
                break
            since = answer.after.not_before
        rows = self.memory._store.ended_since(self.clock.wall - ago_s, 1000)
        assert shown == [row.run for row in rows if row.job in jobs]

    # ---- people and time

    @rule(seconds=st.sampled_from((0.000001, 0.1, 0.5, 4.0, 20.3, 70.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.step(seconds)

    @rule(run=runs, what=st.sampled_from(("revoke", "cancel")))
    def a_person_acts(self, run: str, what: str) -> None:
        self.ask(Revoke(run=run, by="ann", due=self.of(run, {}).due) if what == "revoke" else Cancel(run=run, by="ann"))

    @rule(data=st.data(), outcome=st.sampled_from(("success", "failed", "relaunch", "cancelled")))
    def resolve(self, data: st.DataObject, outcome: str) -> None:
        unknown = {row.run: row.attempt for row in self.memory.runs() if row.state == UNKNOWN}
        run = data.draw(st.sampled_from([RUNS[0], *unknown]))
        if outcome != "cancelled":
            self.ask(Resolve(run=run, outcome=outcome, by="ann"))
            return
        self.ask(Cancel(run=run, by="ann"))
        key = (run, unknown.get(run, 0))
        if key in self.grants:  # its holder is back, and obeys
            self.ask_report(Report(grant=grant_of(*key, *self.grants[key]), state="revoked"))

    @rule(
        data=st.data(),
        other=st.sampled_from((0, 0, 0, -1, 1)),
        replays=st.booleans(),
        policy=ordinary,
        fails=st.booleans(),
    )
    def dead_letter(self, data: st.DataObject, other: int, replays: bool, policy: dict[str, Any], fails: bool) -> None:
        if fails:
            run = RUNS[4]
            self.a_run_is_let_in(run, policy, go=True, silent=False)
            row = self.memory.run(run)
            if row is not None and (run, row.attempt) in self.grants:
                grant = grant_of(run, row.attempt, *self.grants[run, row.attempt])
                self.ask_report(Report(grant=grant, state="failure", exit_code=1, final=True))
        whole = replays and data.draw(st.booleans())
        dead = [row for row in self.memory.runs() if (is_over(row) if whole else is_dead_letter(row))]
        past = [row for row in self.memory.runs() if row.attempt]
        run, attempt = RUNS[0], 0
        if dead or past:
            row = data.draw(st.sampled_from([*dead * 6, *past]))
            run, attempt = row.run, max(0, row.attempt + other)
        if not replays:
            self.ask(Discard(run=run, attempt=AttemptNumber(attempt), by="ann", note="é\n2"))
            return
        packed = self.of(run, policy).policy.pack()
        again = Replay(run=run, attempt=AttemptNumber(attempt), digest="d1", policy=packed, by="ann", whole=whole)
        if self.ask(again).word == "ok":
            assert self.ask(again).word == "exists"

    @rule(
        key=st.sampled_from(("job:a", "job:b", "job:c", ALL, "node:edge-1")),
        on=st.sampled_from((True, False, False)),
        left_s=st.sampled_from((-1.0, 0.0, 0.5, 20.3)),
        run=st.sampled_from(RUNS[:4]),
    )
    def hold(self, key: str, on: bool, left_s: float, run: str) -> None:
        """A job may stay suspended. The other holds end here: otherwise the search would see few other things."""
        until = self.clock.wall + left_s
        if key in ("job:b", "job:c") or (key == "job:a" and left_s < 0.0):
            self.ask(Suspend(job=key[4:], suspended=on, by="ann"))
            return
        if key == "job:a":
            self.ask(Suspend(job="a", suspended=True, by="ann", uid=7, until=until, note="two\nlines é"))
        else:
            given: dict[str, Any] = {} if on else {"given": key, "noted": "é" if left_s < 0.0 else "", "until": until}
            self.ask(Keep(key=key, held=True, by="ann", uid=7, note="é", **given))
        of = self.of(run, {"overlap": "allow"})
        self.ask(Claim(of=of, attempt=AttemptNumber(0), nonce="h", node=NODES[0], lease_s=LEASE_S))
        self.sweep()
        if key == "job:a" or not on:
            self.clock.step(max(0.0, left_s))
        else:
            self.ask(Keep(key=key, held=False, by="ann"))

    @rule(keep_s=st.sampled_from((0.0, 60.0, -1.0)), limit=st.integers(0, 3))
    def prune(self, keep_s: float, limit: int) -> None:
        self.before_call()
        known = states(self.memory)
        assert self.ledger.prune(keep_s, limit) == self.memory.prune(keep_s, limit)
        self.same_fires()
        left = states(self.memory)
        self.seen.move(known, left)
        self.forgotten(known.keys() - left.keys())
