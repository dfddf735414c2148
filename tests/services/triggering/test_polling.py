"""Who polls a trigger within one term, as one node sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordd.core.jobs.job import Command, Job
from coordd.core.members.membership import ALIVE, LOST
from coordd.core.ready import Now
from coordd.services.triggering.polling import Polling

OF = "trigger/drop/files"
JOB = Job(name="drop", digest="d", launch=Command(("true",)))


class OneNode:
    """n3, in a term whose election has this succession."""

    def __init__(self, *succession: str, me: str = "n3.1") -> None:
        self.members = {name: self.member(name) for name in ("n3.1", "n4.1", "n5.1") if name != me}
        elections = SimpleNamespace(
            stands={},
            known=lambda _ident, _topic, _now: SimpleNamespace(succession=succession),
            forget=lambda _of: None,
        )
        node = SimpleNamespace(
            topics=set(),
            elections=elections,
            members=self.members,
            full_hostname=me,
            state="ready",
            jobs_digest="same",
            settings=SimpleNamespace(tags=()),
            ledger_wall=lambda now: now.wall,
        )
        driver: Any = SimpleNamespace(node=node, now=lambda: Now(100.0, 1_700_000_010.0))
        self.polling = Polling(driver)

    @staticmethod
    def member(name: str) -> Any:
        return SimpleNamespace(name=name, state=ALIVE, says="ready", tags=(), jobs_digest="same")

    def poller(self) -> str:
        self.polling.look(OF, JOB, failed=False)
        return self.polling.poller(OF)


def test_a_node_that_was_draining_does_not_get_the_trigger_back_within_the_term() -> None:
    """It was elected, and has another result of that election itself: once it was back, nobody looked for the rest of
    the term.
    """
    here = OneNode("n4.1", "n3.1", "n5.1")
    assert here.poller() == "n4.1"
    here.members["n4.1"].says = "draining"
    assert here.poller() == "n3.1"
    here.members["n4.1"].says = "ready"
    assert here.poller() == "n3.1"

    there = OneNode("n3.1", "n5.1", me="n4.1")
    assert there.poller() == "n3.1", "as the node that was draining sees it"


def test_a_node_that_was_lost_gets_it_back() -> None:
    here = OneNode("n4.1", "n3.1", "n5.1")
    here.members["n4.1"].state = LOST
    assert here.poller() == "n3.1"
    here.members["n4.1"].state = ALIVE
    assert here.poller() == "n4.1"
