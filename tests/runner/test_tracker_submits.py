"""When a call of spark-submit counts as one that has submitted nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.clusters.yarn import FakeYarn

from coordd.core.jobs.applications import ADOPT, Earlier, pod_name, run_mark, yarn_tags
from coordd.core.ledger.rows import AttemptRow
from coordd.core.ledger.runner_requests import Grant
from coordd.core.ledger.words import FAILURE, LOST, RESOLVED, AttemptNumber, Token
from coordd.errors import UnavailableError
from coordd.runner.cluster.link import Link
from coordd.runner.cluster.questions import History, HistoryAsker
from coordd.runner.cluster.tracker import StoppedError, Tracker

RUN = "nightly#1"
TAGS = ",".join(yarn_tags("prod", RUN, 0, 7))
SAYS = "INFO Client: Submitting application %s to ResourceManager"


class Runner:
    """Answers the tracker."""

    token = 7

    def __init__(self) -> None:
        self.lost = ""
        self.told: list[str] = []

    def over(self) -> None:
        self.told.append("over")

    def ending(self) -> str:
        return "revoked"

    def follows(self, ident: str) -> None:
        self.told.append(ident)
        raise UnavailableError("the runner was asked for follows, and it does not answer")

    def lost_sight(self, reason: str) -> None:
        self.lost = reason


@pytest.fixture
def yarn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeYarn]:
    fake = FakeYarn()
    for name, value in fake.configuration(tmp_path / "conf").items():
        monkeypatch.setenv(name, value)
    yield fake
    fake.close()


def tracker(tmp_path: Path, *says: str, code: int = 1, settle_s: float = 60.0) -> tuple[Tracker, Runner]:
    """Its spark-submit prints this, and ends so."""
    submit, conf, runner = tmp_path / "spark-submit", tmp_path / "conf.properties", Runner()
    conf.write_text("")
    submit.write_text(f"#!{sys.executable}\nprint({chr(10).join(says)!r})\nraise SystemExit({code})\n")
    submit.chmod(0o755)
    options: dict[str, Any] = {"mark": run_mark("prod", RUN), "master": "yarn", "settle_s": settle_s, "poll_max_s": 0.1}
    command = [str(submit), "--properties-file", str(conf)]
    return Tracker({**options, "submits": 2, "submit_again_s": 0.1}, command, cast(Link, runner)), runner


def test_on_yarn_an_id_that_was_printed_is_no_submission(yarn: FakeYarn, tmp_path: Path) -> None:
    one, runner = tracker(tmp_path, SAYS % yarn.new(), "Exception in thread main: no such queue", code=3)

    with pytest.raises(SystemExit) as ended:
        one._submit()

    assert (ended.value.code, runner.lost) == (3, "")
    calls = [asked.path for asked in yarn.asked if "/apps/application_" in asked.path]
    assert len(calls) >= 6, "it was asked for by its id, three times after each of two calls"


def test_an_application_that_is_there_without_its_tag_may_be_the_runs(yarn: FakeYarn, tmp_path: Path) -> None:
    ident = yarn.submit("nightly", "", "ACCEPTED")
    one, runner = tracker(tmp_path, SAYS % ident, settle_s=1.0)

    with pytest.raises(SystemExit):
        one._submit()

    assert f"{ident}, which spark-submit has named, is there without the run's tag" in runner.lost


def test_a_resource_manager_that_does_not_say_404_leaves_it_open(
    yarn: FakeYarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ident = yarn.new()
    one, runner = tracker(tmp_path, SAYS % ident, settle_s=1.0)
    answer = yarn.answer
    monkeypatch.setattr(yarn, "answer", lambda asked: (500, {}) if ident in asked.path else answer(asked))

    with pytest.raises(SystemExit):
        one._submit()

    assert "expected 200 or 404, found 500" in runner.lost


def test_a_submitter_that_was_killed_may_have_submitted(yarn: FakeYarn, tmp_path: Path) -> None:
    one, runner = tracker(tmp_path, SAYS % yarn.new(), settle_s=1.0)
    (tmp_path / "spark-submit").write_text("#!/bin/sh\nkill -9 $$\n")

    with pytest.raises(SystemExit):
        one._submit()

    assert "spark-submit ended with -9" in runner.lost


def test_an_application_that_appears_before_the_next_call_is_followed(
    yarn: FakeYarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    one, _ = tracker(tmp_path, SAYS % yarn.new())
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > 10:
            raise StoppedError
        if len(waits) == 3:  # two between the look-ups; then the one before the next call
            yarn.submit("nightly", TAGS)

    monkeypatch.setattr(one, "_wait", wait)

    assert one._submit().word == ADOPT
    assert capfd.readouterr().out.count("INFO Client") == 1


def test_the_id_is_asked_for_at_the_resource_manager(yarn: FakeYarn, tmp_path: Path) -> None:
    one, _ = tracker(tmp_path)
    way = one._way()
    ident = yarn.new()

    assert way.hidden(named=ident) == way.hidden(named="") == {}
    assert [*way.hidden(named=yarn.submit("nightly", ""))] != []
    yarn.mischief = "away"
    with pytest.raises(UnavailableError):
        way.hidden(named=ident)


def test_a_revoked_application_ends_though_the_runner_cannot_be_told_which_it_is(
    yarn: FakeYarn, tmp_path: Path
) -> None:
    one, runner = tracker(tmp_path)
    ident = yarn.submit("nightly", TAGS, "RUNNING")

    with pytest.raises(SystemExit) as ended:
        one.stopped()

    assert ended.value.code == 143
    [ending] = [asked for asked in yarn.asked if asked.method == "PUT"]
    assert f"/apps/{ident}/state" in ending.path
    assert runner.told == [ident, "over"]


def history(rows: list[AttemptRow]) -> list[Earlier]:
    """What the runner tells its tracker of these attempts, through the text that it sends."""
    asker: Any = HistoryAsker.__new__(HistoryAsker)
    asker.connect = lambda: SimpleNamespace(attempts=lambda _: rows)
    grant = Grant(run=RUN, attempt=AttemptNumber(len(rows)), token=Token(10**17), nonce="n")
    told = asker.call(History(grant=grant))
    text = json.dumps(told.rows)
    assert len(text) < 200_000, "a socket takes this much at once"
    return [Earlier(*row) for row in json.loads(text)]


def attempt(number: int, state: str = FAILURE, reason: str = "exit code 1: " + "x" * 300) -> AttemptRow:
    ident = f"coordd-0123456789abcdef0123-{number}" if state == FAILURE else ""
    return AttemptRow([RUN, number, 10**16 + number, "n", "n1", state, 0.0, 0.0, 0.0, 1, ident, reason])


@pytest.mark.parametrize("count", [3, 150, 1500])
def test_a_run_that_was_tried_often_gets_a_name_of_its_own_for_each_driver(count: int) -> None:
    """Kubernetes accepts the name of a pod once: a name that is used twice could never be submitted."""
    rows = [attempt(number) for number in range(count)]
    assert pod_name("mark", history(rows)) == f"mark-{count}"


def test_what_a_person_decided_long_ago_still_counts() -> None:
    decided = attempt(0, LOST, f"its lease lapsed; {RESOLVED}relaunch by ann; {'x' * 300}")
    rows = [decided, *[attempt(number) for number in range(1, 200)]]
    first, *others = history(rows)
    assert first.settled
    assert all(one.settled for one in others)
    assert not history([attempt(0, LOST), *rows[1:]])[0].settled
