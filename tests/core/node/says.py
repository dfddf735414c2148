"""Messages from nodes, for the tests of one node."""

from __future__ import annotations

from support.small_cluster import MONO

from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.ready import Launch
from coordd.core.wire.events import Action, Candidacy, Event, WorkerElect, event_type

LAUNCH = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "nonce", 0.0, "{}", MONO + 58.0, 60.0, digest="d1")
STANDS = Candidacy(0, 5, "b.1")


def types(events: list[Event]) -> list[str]:
    return [event_type(event) for event in events]


def elect(run: str = "sales#1", sender: str = "b.1", view: tuple[str, ...] = ("a.1", "b.1")) -> WorkerElect:
    action = Action("sales", run, digest="d1")
    return WorkerElect(id=f"{run}/0", topic="command", candidacy=Candidacy(0, 5, sender), view=view, action=action)
