"""The elections of a node: it opens them, states once, decides, and remembers the result."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from coordd.core.context import Context
from coordd.core.election import DECIDED_MAX, ELECTION_MEMBERS_MAX, Election, rendezvous
from coordd.core.members.membership import ALIVE, SUSPECT
from coordd.core.ready import Now
from coordd.core.triggers import polling
from coordd.core.wire.events import Action, Candidacy, ElectionDecided, WorkerBeat, WorkerElect, WorkerElectAck

# Maximum number of undecided elections. Further ones of peers get no answer (they decide at the timeout).
OPEN_MAX = 20_000

# Acks can arrive before the elect that they answer (another sender, another path): maximum number of ids for such acks.
EARLY_MAX = 1024


# If a node's statement is missing after this time (seconds), it is asked by unicast, at most once in LACKING_APART_S.
# If the node is gone, the transport reports it, and the election need not wait for its timeout.
LACKING_S = 0.025
LACKING_APART_S = 1.0


# The topics of elections about runs.
LAUNCHES = frozenset(("spark", "command"))

# Why a statement under another ledger does not count.
OTHER_LEDGER = "it uses another ledger"


class Elections:
    """All elections of one node, by id. A method returns the elections that it has decided; the node acts on them."""

    __slots__ = (
        "_asked_at",
        "_candidacy",
        "_ctx",
        "_early",
        "_latest",
        "_looks",
        "bus_up",
        "by_id",
        "on_decided",
        "open_ids",
        "stands",
    )

    def __init__(self, ctx: Context, candidacy: Callable[[str, Action | None, int], Candidacy]) -> None:
        """``candidacy`` says what this node states in an election of that topic."""
        self._ctx = ctx
        self._candidacy = candidacy
        self.by_id: dict[str, Election] = {}
        self.open_ids: dict[str, None] = {}  # in order of insertion, which is the order of their deadlines
        self.bus_up = True
        # Of topics that are about subjects: topic -> subject -> (load, why this node abstains). An election's id is
        # SUBJECT/TERM, and a node that is not listed abstains.
        self.stands: dict[str, dict[str, tuple[int, str]]] = {}
        self.on_decided: Callable[[Election], None] = lambda _: None  # for those who count
        self._early: dict[str, dict[str, tuple[float, Candidacy]]] = {}  # with when they were heard (mono)
        self._latest: dict[str, Election] = {}  # of each subject of this node; ``by_id`` forgets the oldest
        self._looks = False  # a timer for ``look`` is set
        self._asked_at: dict[str, float] = {}  # full_hostname -> when it was last asked

    def known(self, ident: str, topic: str, now: Now) -> Election | None:
        """The election with this id; of a subject of this node the latest one, although many were decided since.

        None if its term begins only now, long after it was decided.
        """
        election = self.by_id.get(ident)
        if topic not in self.stands:
            return election
        subject, _ = polling.parts_of(ident)
        if election is None:
            election = self._latest.get(subject)
        if election is None or election.id != ident:
            return None
        if election.succession is None:
            return election
        wall = self._ctx.ledger_wall(now)
        if polling.is_outdated(ident, wall - (now.mono - election.decided_at), wall):
            self.by_id.pop(ident, None)
            self.forget(subject)
            return None
        return election

    def forget(self, subject: str) -> None:
        """This node has the subject no more."""
        self._latest.pop(subject, None)

    def open(self, ident: str, topic: str, action: Action | None, now: Now) -> Election:
        """Open an election, or join the existing one; without messages if there is no bus or the cluster is large.

        The election may be decided already; it has a succession then.
        """
        election = self.known(ident, topic, now)
        if election is not None:
            if action is None or election.is_about(action):
                return election
            # A peer has used this id for something else: what it brought decides nothing about this run.
            return self._without_messages(ident, topic, action, now)
        ctx = self._ctx
        view = ctx.membership.view()
        if not self.bus_up or len(view) > ELECTION_MEMBERS_MAX:
            return self._without_messages(ident, topic, action, now)
        election = self._begin(ident, topic, action, ctx.full_hostname, view, now)
        mine = self._mine(ident, topic, action, ctx.clock.value + 1)
        ctx.publish(WorkerElect(id=ident, topic=topic, candidacy=mine, view=view, action=action), now)
        if election.state(ctx.full_hostname, mine):
            self._close(election, now)
        return election

    def elect_heard(self, event: WorkerElect, sender: str, now: Now) -> tuple[Election | None, bool]:
        """A peer has opened an election, or repeats its message.

        Returns the election (None if too many are open, or if a message about a run has another id), and
        whether this message has decided it.
        """
        if event.topic in LAUNCHES and not _is_named(event.id, event.action):
            return None, False
        election = self.known(event.id, event.topic, now)
        ctx = self._ctx
        if election is None:
            if len(self.open_ids) >= OPEN_MAX:
                return None, False
            view = event.view if ctx.full_hostname in event.view else (*event.view, ctx.full_hostname)
            election = self._begin(event.id, event.topic, event.action, sender, view, now)
            self._leave_out_the_lost(election)
            mine = self._mine(event.id, event.topic, event.action, ctx.clock.value + 1)
            ctx.publish(WorkerElectAck(id=event.id, candidacy=mine, acks=sender), now)
            election.state(ctx.full_hostname, mine)
        elif sender in election.statements:
            self._repeat(election, sender, now)  # our one answer may have been lost
        if self._stated(election, sender, event.candidacy) or (not election.missing and election.succession is None):
            self._close(election, now)
            return election, True
        return election, False

    def ack_heard(self, event: WorkerElectAck, sender: str, now: Now) -> Election | None:
        """A peer's statement; kept for a while if its election is not known yet. Returns the election if decided."""
        election = self.by_id.get(event.id)
        if election is not None:
            election = self.known(event.id, election.topic, now)
        if election is not None:
            if not self._stated(election, sender, event.candidacy):
                return None
            self._close(election, now)
            return election
        if event.id not in self._early and len(self._early) >= EARLY_MAX:
            del self._early[next(iter(self._early))]
        self._early.setdefault(event.id, {})[sender] = now.mono, event.candidacy
        return None

    def lost(self, name: str, now: Now) -> list[Election]:
        """A member was lost or has left: remove it from every view."""
        decided = [self.by_id[ident] for ident in self.open_ids if self.by_id[ident].lose(name)]
        for election in decided:
            self._close(election, now)
        return decided

    def timer(self, now: Now) -> list[Election]:
        """Decide elections that have waited for ``election_timeout``, with the statements they have."""
        timeout = self._ctx.settings.election_timeout_s
        decided = []
        for ident in self.open_ids:
            election = self.by_id[ident]
            if now.mono < election.opened_at + timeout:
                self._ctx.arm(election.opened_at + timeout, "election")
                break
            decided.append(election)
        for election in decided:
            self._close(election, now)
        return decided

    def look(self, now: Now) -> None:
        """Ask the nodes whose statements are missing whether they are still alive."""
        ctx = self._ctx
        self._looks = False
        self._asked_at = {name: at for name, at in self._asked_at.items() if now.mono - at < LACKING_APART_S}
        lacking: set[str] = set()
        for ident in self.open_ids:  # in the order of opening
            election = self.by_id[ident]
            if now.mono < election.opened_at + LACKING_S:
                self._look_at(election.opened_at + LACKING_S)
                break
            lacking |= election.missing
        for name in sorted(lacking - self._asked_at.keys() - {ctx.full_hostname}):
            self._asked_at[name] = now.mono
            ctx.send(name, WorkerBeat(ask=True), now)

    def _look_at(self, at: float) -> None:
        if not self._looks:
            self._looks = True
            self._ctx.arm(at, "lacking")

    def bus_changed(self, up: bool, now: Now) -> list[Election]:
        """Without a bus no further statement arrives: open elections are decided by hash."""
        self.bus_up = up
        decided = [] if up else [self.by_id[ident] for ident in self.open_ids]
        for election in decided:
            self._rank_by_hash(election, now)
        return decided

    def _begin(
        self, ident: str, topic: str, action: Action | None, opener: str, view: tuple[str, ...], now: Now
    ) -> Election:
        election = self.by_id[ident] = Election(ident, topic, action, opener, view, now.mono)
        self._ctx.arm(now.mono + self._ctx.settings.election_timeout_s, "election")
        self._look_at(now.mono + LACKING_S)
        self.open_ids[ident] = None
        if self._early:
            for sender, (at, candidacy) in self._early.pop(ident, {}).items():
                # An older one answers another elect with this id: its sender answers this one, too.
                if now.mono - at <= self._ctx.settings.election_timeout_s:
                    self._stated(election, sender, candidacy)
        return election

    def _mine(self, ident: str, topic: str, action: Action | None, clock: int) -> Candidacy:
        """What this node states."""
        mine = self._candidacy(topic, action, clock)
        subjects = self.stands.get(topic)
        if subjects is None or mine.abstains:
            return mine
        load, abstains = subjects.get(polling.parts_of(ident)[0], (0, "it has no such subject"))
        return structs.replace(mine, load=load, abstains=abstains)

    def _counted(self, candidacy: Candidacy) -> Candidacy:
        """A statement as it counts here: a node with another ledger is not a candidate."""
        ours = self._ctx.ledger
        if candidacy.ledger and ours and candidacy.ledger != ours and not candidacy.abstains:
            return structs.replace(candidacy, abstains=OTHER_LEDGER)
        return candidacy

    def _stated(self, election: Election, sender: str, candidacy: Candidacy) -> bool:
        """Take a statement; True if it was the last missing one.

        A node that holds an election about a subject once more (``known``) states again. Its newest statement counts,
        also if the election was decided with an older one: otherwise two nodes may each leave it to the other.
        """
        counted, before = self._counted(candidacy), election.statements.get(sender)
        if before is None or election.topic not in self.stands or counted.clock <= before.clock:
            return election.state(sender, counted)
        election.statements[sender] = counted
        if election.succession is not None:
            election.decide(election.decided_at)
        return False

    def _leave_out_the_lost(self, election: Election) -> None:
        """Remove members from the opener's view that we know to be lost."""
        if len(election.missing) > 1:
            for member in self._ctx.membership.members.values():
                if member.state not in (ALIVE, SUSPECT):
                    election.missing.discard(member.name)

    def _repeat(self, election: Election, sender: str, now: Now) -> None:
        mine = election.statements.get(self._ctx.full_hostname)
        if mine is not None:
            self._ctx.publish(WorkerElectAck(id=election.id, candidacy=mine, acks=sender), now)

    def _close(self, election: Election, now: Now) -> None:
        election.decide(now.mono)
        self._settled(election, now)

    def _settled(self, election: Election, now: Now) -> None:  # for those who watch this class
        self.on_decided(election)
        self.by_id[election.id] = election
        self.open_ids.pop(election.id, None)
        if election.topic in self.stands:  # most are about runs
            subject, _ = polling.parts_of(election.id)
            if subject in self.stands[election.topic]:
                self._latest[subject] = election
        self._note_down(election, now)
        while len(self.by_id) - len(self.open_ids) > DECIDED_MAX:
            oldest = next(ident for ident in self.by_id if ident not in self.open_ids)
            del self.by_id[oldest]

    def _note_down(self, election: Election, now: Now) -> None:
        """The journal of two nodes says who stood, who did not and why: that is enough for people who ask later."""
        ctx, action = self._ctx, election.action
        if action is None or ctx.full_hostname not in (election.opened_by, *(election.succession or ())[:1]):
            return
        ctx.note_down(
            ElectionDecided(
                id=election.id,
                topic=election.topic,
                run=action.run,
                attempt=action.attempt,
                opened_by=election.opened_by,
                succession=election.succession or (),
                abstained={name: said.abstains for name, said in election.statements.items() if said.abstains},
                silent=tuple(sorted(election.missing)),
                stamps={
                    name: (said.load, said.clock) for name, said in election.statements.items() if not said.abstains
                },
                duration=max(0.0, election.decided_at - election.opened_at),
            ),
            now,
        )

    def _without_messages(self, ident: str, topic: str, action: Action | None, now: Now) -> Election:
        election = Election(ident, topic, action, self._ctx.full_hostname, (), now.mono)
        self._rank_by_hash(election, now)
        return election

    def _rank_by_hash(self, election: Election, now: Now) -> None:
        """Ranks that every node can compute, among nodes with the same jobs and matching tags.

        Nodes that have already abstained are left out.
        """
        ctx, action, stated = self._ctx, election.action, election.statements
        job = ctx.definition_for(action) if action else None
        tags = set(job.tags) if job else set()
        names = [
            m.name
            for m in ctx.membership.members.values()
            if m.state in (ALIVE, SUSPECT) and m.jobs_digest == ctx.jobs_digest and tags <= set(m.tags)
            if not (m.ledger and ctx.ledger) or m.ledger == ctx.ledger
            if m.name not in stated or not stated[m.name].abstains
        ]
        mine = stated.get(ctx.full_hostname) or self._mine(election.id, election.topic, action, ctx.clock.value)
        if not mine.abstains or self._cannot_be_left(election):
            names.append(ctx.full_hostname)
        stated[ctx.full_hostname] = mine
        election.missing.clear()
        election.succession = rendezvous(election.id, tuple(names))
        election.decided_at = now.mono
        self._settled(election, now)

    def _cannot_be_left(self, election: Election) -> bool:
        """True if it is about a subject of this node. A node that it leaves the subject to does not hear why, and may
        leave it to this one.
        """
        subject, _ = polling.parts_of(election.id)
        has_it = subject in self.stands.get(election.topic, ())
        return has_it and not self._candidacy(election.topic, election.action, self._ctx.clock.value).abstains


def _is_named(ident: str, action: Action | None) -> bool:
    """True if an election about this run has this id. Without an action it is about no run."""
    return action is None or ident == f"{action.run}/{action.attempt}"
