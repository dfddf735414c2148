"""Which node polls a trigger now: elections in terms, held by the usual election of the nodes."""

from __future__ import annotations

from typing import NamedTuple

from coordd.core.jobs.job import Job
from coordd.core.members.membership import ALIVE, SUSPECT
from coordd.core.triggers import polling
from coordd.services.driver import Driver

# A node that did not poll in the term before waits this long (seconds) before it opens the term's election: the one
# that did has usually opened it by then.
OTHERS_WAIT_S = 1.0


class _Term(NamedTuple):
    """``since``: when this node has noticed it (monotonic seconds); ``succession``: None while it is not decided.

    ``passed``: the other nodes of it that were alive and not ready. What they know of this election may differ, so they
    are passed over for all of the term, also once they are ready.
    """

    number: int
    since: float
    succession: tuple[str, ...] | None
    passed: frozenset[str] = frozenset()


class Polling:
    """The pollers of this node's triggers, by the subject of their elections."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._terms: dict[str, _Term] = {}
        self._pollers: dict[str, str] = {}
        self._stands: dict[str, tuple[int, str]] = {}
        driver.node.topics.add(polling.TOPIC)
        driver.node.elections.stands[polling.TOPIC] = self._stands

    def poller(self, of: str) -> str:
        """The node that polls (full_hostname); "" while nobody does."""
        return self._pollers.get(of, "")

    def forget(self, of: str) -> None:
        """This node has the trigger no more."""
        for known in (self._terms, self._pollers, self._stands):
            known.pop(of, None)
        self._driver.node.elections.forget(of)

    def look(self, of: str, job: Job, *, failed: bool) -> bool:
        """Take part in the present term; True if this node polls. ``failed``: its own last look did, not long ago."""
        driver = self._driver
        node, now = driver.node, driver.now()
        mine = self.poller(of) == node.full_hostname
        self._stands[of] = (0 if mine else 1, "its last look failed" if failed else "")
        number = polling.term(of, node.ledger_wall(now))
        term = self._terms.get(of)
        if term is None or term.number != number:
            term = _Term(number, now.mono, None)
        ident = polling.election_of(of, number)
        election = node.elections.known(ident, polling.TOPIC, now)
        turn = mine or now.mono - term.since >= OTHERS_WAIT_S
        if term.succession is None and election is None and turn and node.state == "ready":
            election = driver.feed(node.open_election, ident, polling.TOPIC, None)
        if election is not None and election.succession is not None:
            term = term._replace(succession=election.succession)
        there = self._there(job)
        if term.succession is not None:
            passed = term.passed | self._unready().intersection(term.succession)
            alike = [name for name, digest in there.items() if digest == node.jobs_digest]
            stand = [name for name in term.succession if name not in passed]
            term = term._replace(passed=passed)
            self._pollers[of] = polling.poller(ident, stand, there, alike)
        elif self.poller(of) not in there:
            self._pollers[of] = ""  # until the term's election is decided
        self._terms[of] = term
        return self._pollers.get(of) == node.full_hostname

    def _unready(self) -> set[str]:
        """The other nodes that are alive, and take nothing: draining, or starting."""
        members = self._driver.node.members.values()
        return {member.name for member in members if member.state in (ALIVE, SUSPECT) and member.says != "ready"}

    def _there(self, job: Job) -> dict[str, str]:
        """The nodes that can poll, and the digests of their jobs."""
        node, tags = self._driver.node, set(job.tags)
        names = {
            member.name: member.jobs_digest
            for member in node.members.values()
            if member.state in (ALIVE, SUSPECT) and member.says == "ready" and tags <= set(member.tags)
        }
        if node.state == "ready" and tags <= set(node.settings.tags):
            names[node.full_hostname] = node.jobs_digest
        return names
