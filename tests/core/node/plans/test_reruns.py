"""Re-runs with children: a node asks for the runs of a plan, and again where the ledger's word may be out of date."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.small_cluster import EPOCH, job

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.rerun.plan import Item, Runs, text_of
from coordd.core.ledger.rows import OF_RERUN, Hold
from coordd.core.ledger.words import EXISTS, FINISHED
from coordd.core.node.plans.reruns import QUIET_SWEEPS, Reruns
from coordd.core.ready import Now

ROOT = "sales#1"
PLAN = [Item(Runs(f"child#{number}"), "success", False, ((Runs(ROOT),),)) for number in (1, 2)]
NOW = Now(100.0, EPOCH)


class Asking:
    """A node, as far as plans see it."""

    def __init__(self) -> None:
        self.out: list[tuple[str, Any]] = []
        child = job("child")
        ctx: Any = SimpleNamespace(
            state="ready", braked=False, jobs={"child": child}, hostname="a", concurrency={}, identity_from=0.0,
            ask=lambda request, then: self.out.append((request.of.run, then)), note=lambda *_args, **_more: None,
        )  # fmt: skip
        self.reruns = Reruns(ctx, lambda *_args, **_more: None)
        self.answer: Any = SimpleNamespace(
            holds={OF_RERUN + ROOT: Hold(by="ann", at=EPOCH, note=text_of(PLAN))}, runs=(), recovering_s=0.0,
            identity_from=0.0, current={"child": SimpleNamespace(digest=child.digest)},
        )  # fmt: skip

    def sweep(self, word: str = EXISTS) -> list[str]:
        """The runs that are asked for after a sweep; each has this answer."""
        self.reruns.swept(self.answer)
        asked, self.out = self.out, []
        for _, then in asked:
            then(Answer(word), 0.0, NOW)
        return [run for run, _ in asked]


def test_what_the_ledger_has_decided_is_asked_again_while_the_plan_stands() -> None:
    node = Asking()
    both = ["child#1", "child#2"]
    assert node.sweep() == both
    assert [node.sweep() for _ in range(QUIET_SWEEPS)] == [[]] * QUIET_SWEEPS
    assert node.sweep() == both, "a parent may have a row now that had none"
    assert node.sweep(FINISHED) == []


def test_while_something_is_asked_the_rest_is_not_asked_again() -> None:
    node = Asking()
    node.reruns.swept(node.answer)
    (_, first), (_, second) = node.out
    node.out = []
    first(Answer(EXISTS), 0.0, NOW)
    assert [node.sweep() for _ in range(2 * QUIET_SWEEPS)] == [[]] * (2 * QUIET_SWEEPS)
    second(Answer(EXISTS), 0.0, NOW)
