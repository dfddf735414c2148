"""`coordctl job backfill` follows its plan, and says so where that one is gone."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result
from support.fake_daemon import FakeDaemon

from coordd.cli import coordctl
from coordd.cli.show import backfilling


def plan(ident: str, state: str = "running") -> dict[str, object]:
    counts = {"fire_times": 2, "passed": 1, "opened": 1, "succeeded": 1, "failed": 0}
    return {"job": "sales", "plan": ident, "state": state, "open": [], **counts}


def backfill(daemon: FakeDaemon, *answers: object) -> Result:
    left = list(answers)
    told = {"plan": "one", "runs": 2, "job": "sales", "first": "2026-03-01", "last": "2026-03-02", "order": "oldest"}
    told |= {"overlap": "forbid", "at_most": 1, "takes_s": None, "stop_after_failures": 0}
    daemon.answers["job.backfill"] = {**told, "from": "2026-03-01", "to": "2026-04-01"}
    daemon.answers["job.backfills"] = lambda _params: left.pop(0) if left else None
    asked = ["job", "backfill", "sales", "--from", "2026-03-01", "--to", "2026-04-01", "--yes"]
    return CliRunner().invoke(coordctl.program, [f"--socket={daemon.path}", *asked])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfilling, "POLL_S", 0.01)
    monkeypatch.setattr(backfilling, "AWAY_S", 2.0)


def test_a_plan_that_has_ended_is_success(daemon: FakeDaemon) -> None:
    done = backfill(daemon, [plan("one")], [plan("one", "done")])
    assert done.exit_code == 0, done.stderr
    assert "sales: done: 1 of 2 ended, 0 failed" in done.stderr


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ([plan("two")], "the backfill one of sales was replaced by plan two"),
        ([plan("two", "done")], "the backfill one of sales was replaced by plan two"),
        ([], "the backfill one of sales is no longer there"),
    ],
)
def test_a_plan_that_is_gone_is_not_waited_for(daemon: FakeDaemon, then: list[object], said: str) -> None:
    """Each of the answers counted as one about the plan: the command waited for ever."""
    done = backfill(daemon, [plan("one")], *[then] * 500)
    assert done.exit_code == 1
    assert said in done.stderr
    assert "coordctl job fires sales --from 2026-03-01 --to 2026-04-01" in done.stderr
    assert len([method for method, _ in daemon.asked if method == "job.backfills"]) == 2


def test_no_answer_is_no_news(daemon: FakeDaemon) -> None:
    done = backfill(daemon)
    assert done.exit_code == 69
    assert "the backfill goes on" in done.stderr
