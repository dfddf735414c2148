"""Messages: each message counts once, a late message does not act, and each message needs its MAC."""

from __future__ import annotations

from typing import Any
from unittest import mock

from coordd.core.members.outcomes import Outcomes
from coordd.core.node.node import Node
from coordd.core.wire.envelope import _State
from coordd.core.wire.windows import DUPLICATE, LATE, _Window
from simulator.mutants.mutant import Mutant, instead


@instead(_Window, "_hear_late")
def _the_backlog_acts(real: Any, self: Any, seq: int) -> str:
    return "" if real(self, seq) == LATE else DUPLICATE


def _never_a_duplicate(self: Any, seq: int) -> str:
    self.high = max(self.high, seq)
    return ""


@instead(Outcomes, "recent")
def _a_newcomer_is_told_no_end(_real: Any, _self: Outcomes, _now: Any) -> list[Any]:
    return []


MUTANTS = (
    Mutant(
        "a newcomer is told no end", "§4 Mingle: recent ends and revokes", "O", _a_newcomer_is_told_no_end, ("crash",)
    ),
    Mutant(
        "what a reply tells of ends is forgotten",
        "§4 Mingle: recent ends and revokes",
        "O",
        lambda: mock.patch.object(Outcomes, "told", lambda *_: None),
        ("crash",),
    ),
    Mutant(
        "late news is a sign of life",
        "§4: liveness is what is heard now",
        "M",
        lambda: mock.patch.object(Node, "receive_late", Node.receive),
        ("broker_down", "connection_lost"),
    ),
    Mutant(
        "a backlog replays elections",
        "§3, S8: backlog messages never launch anything",
        "S6 S8",
        _the_backlog_acts,
        ("straggler", "broker_down", "forged"),
    ),
    Mutant(
        "a message counts twice",
        "§3: a window against replay",
        "S6",
        lambda: mock.patch.object(_Window, "hear", _never_a_duplicate),
        ("forged", "duplication"),
    ),
    Mutant(
        "no MAC",
        "§3 Envelope",
        "S6",
        lambda: mock.patch.object(_State, "mac", lambda self, payload: bytes(32)),
        ("forged",),
    ),
)
