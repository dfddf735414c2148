"""One attempt on a cluster: submitted, followed, adopted, ended; and every case in which nobody can tell."""

from __future__ import annotations

import os
import signal

import pytest
from support.clusters.yarn import FakeYarn

from coordd.core.ledger.requests import Cancel
from coordd.core.ledger.runner_requests import Grant, Report
from coordd.core.ledger.words import OK, RETRY, AttemptNumber, Token
from system.applications.tracked import Cluster
from system.lab.processes import until
from system.lab.runner_lab import SHORT, Attempt

pytestmark = pytest.mark.paired
RUN = "nightly#1"


def ended(attempt: Attempt) -> tuple[str, int | None, str]:
    row = attempt.over()
    return str(row.state), row.exit_code, str(row.reason)


def lost_with_a_hint(cluster: Cluster, ident: str = "") -> None:
    """The run's attempt is lost, and a look-up has shown ``ident`` alive ("": nothing, and that is certain)."""
    row = cluster.world.ledger.run(RUN)
    assert row is not None
    grant = Grant(run=RUN, attempt=AttemptNumber(row.attempt), token=Token(row.token), nonce=row.nonce)
    report = Report(grant=grant, state=RETRY, reason="looked up", application_id=ident)
    assert cluster.world.ledger.ask(report).word == OK


def killed(attempt: Attempt) -> None:
    """The runner dies; its watcher ends what it has started, and reports."""
    os.kill(attempt.runner(), signal.SIGKILL)
    assert attempt.over().state == "unknown"


def test_an_application_that_succeeds(cluster: Cluster) -> None:
    attempt = cluster.start()
    ident = cluster.one()
    until(lambda: attempt.row().application_id == ident)
    assert attempt.row().state == "started"

    cluster.place.fake.finish(ident)

    assert ended(attempt) == ("success", 0, "")
    assert attempt.row().application_id == ident
    assert f"{ident} succeeded" in cluster.log(attempt)


def test_an_application_that_fails(cluster: Cluster) -> None:
    attempt = cluster.start()
    ident = cluster.one()

    cluster.place.fail(ident)

    until(lambda: attempt.row().state == "retry")
    code = 1 if cluster.place.kind == "yarn" else 7
    (row,) = cluster.world.ledger.attempts(RUN)
    assert (row.state, row.exit_code, row.application_id) == ("failure", code, ident)
    assert f"exit code {code}: coordd: error: {ident} failed" in row.reason
    assert "boom" in row.reason


def test_a_retry_after_a_failure_submits_again(cluster: Cluster) -> None:
    first = cluster.start()
    cluster.place.fail(cluster.one())
    until(lambda: first.row().state == "retry")
    first.over()

    second = cluster.start()
    (ident,) = until(cluster.alive)
    cluster.place.fake.finish(ident)

    assert ended(second)[0] == "success"
    assert second.row().application_id == ident


def test_a_submission_that_fails_is_a_failure_when_nothing_appears(cluster: Cluster) -> None:
    attempt = cluster.start(env={"SUBMIT_TO_EXIT": "3"})

    until(lambda: attempt.row().state == "retry")
    (row,) = cluster.world.ledger.attempts(RUN)
    assert (row.state, row.exit_code, row.application_id) == ("failure", 3, "")
    assert "nothing was submitted" in cluster.log(attempt)
    assert cluster.alive() == []


def test_a_submission_that_fails_is_repeated_and_counted_apart(cluster: Cluster) -> None:
    cluster.place.submits = 3
    attempt = cluster.start(env={"SUBMIT_TO_EXIT": "3", "SUBMIT_TO_FAIL": "2"})
    cluster.place.fake.finish(cluster.one())

    assert ended(attempt)[0] == "success"
    assert attempt.row().failures == 0
    said = [line for line in cluster.log(attempt).splitlines() if "submission" in line]
    assert [line.split(" failed")[0] for line in said] == ["coordd: submission 1 of 3", "coordd: submission 2 of 3"]


def test_submissions_that_all_fail_are_one_failure(cluster: Cluster) -> None:
    cluster.place.submits = 2
    attempt = cluster.start(env={"SUBMIT_TO_EXIT": "3"})

    until(lambda: attempt.row().state == "retry")
    assert (attempt.row().failures, attempt.row().exit_code) == (1, 3)
    assert "submission 2 of 2 failed: spark-submit ended with exit code 3" in attempt.attempt().reason


def test_an_application_that_appears_late_is_waited_for(cluster: Cluster) -> None:
    fake = cluster.place.fake
    cluster.place.go.with_suffix(".hidden").touch()
    fake.on_ask = lambda asked: fake.hidden.update(fake.apps if isinstance(fake, FakeYarn) else fake.pods)
    attempt = cluster.start(env={"SUBMIT_QUIET": "1"})
    ident = cluster.one()
    until(lambda: "spark-submit ended with 0" in cluster.log(attempt))
    asked = len(fake.asked)
    until(lambda: len(fake.asked) > asked + 5)
    assert attempt.row().state == "started"

    fake.on_ask = lambda asked: fake.hidden.clear()
    fake.finish(ident)

    assert ended(attempt)[0] == "success"


def test_an_application_that_never_appears_is_unknown(cluster: Cluster) -> None:
    cluster.place.settle_s = 1.0
    fake = cluster.place.fake
    fake.on_ask = lambda asked: fake.hidden.update(fake.apps if isinstance(fake, FakeYarn) else fake.pods)
    attempt = cluster.start()

    state, _, reason = ended(attempt)

    assert state == "unknown"
    assert "no application with the tag coordd-" in reason
    assert "was shown within 1 s" in reason


def test_an_application_that_is_purged_while_it_is_followed_is_unknown(cluster: Cluster) -> None:
    attempt = cluster.start()
    ident = cluster.one()
    until(lambda: attempt.row().application_id == ident)

    cluster.place.fake.purge(ident)

    state, _, reason = ended(attempt)
    assert (state, attempt.row().application_id) == ("unknown", ident)
    assert f"does not show {ident} any more" in reason


def test_a_cluster_manager_that_goes_away_does_not_end_the_run(cluster: Cluster) -> None:
    attempt = cluster.start()
    ident = cluster.one()
    until(lambda: attempt.row().application_id == ident)
    cluster.place.fake.mischief = "failing"
    until(lambda: "asked again and again" in cluster.log(attempt))

    cluster.place.fake.mischief = ""
    cluster.place.fake.finish(ident)

    assert ended(attempt)[0] == "success"


# ---- adoption


def test_a_living_application_is_adopted_and_nothing_is_submitted(cluster: Cluster) -> None:
    first = cluster.start()
    ident = cluster.one()
    until(lambda: first.row().application_id == ident)
    killed(first)
    lost_with_a_hint(cluster, ident)

    second = cluster.start()
    until(lambda: f"{ident} is there already, of attempt 0" in cluster.log(second))
    until(lambda: second.row().application_id == ident)
    cluster.place.fake.finish(ident)

    assert ended(second)[0] == "success"
    assert "spark-submit ended" not in cluster.log(second)


def test_the_end_of_an_application_that_ended_meanwhile_is_reported(cluster: Cluster) -> None:
    first = cluster.start()
    ident = cluster.one()
    until(lambda: first.row().application_id == ident)
    killed(first)
    lost_with_a_hint(cluster, ident)
    cluster.place.fail(ident)

    second = cluster.start()

    until(lambda: second.row().state == "retry")
    assert [row.state for row in cluster.world.ledger.attempts(RUN)] == ["lost", "failure"]
    assert cluster.alive() == []


def test_an_application_that_was_to_be_adopted_and_is_gone_is_unknown(cluster: Cluster) -> None:
    first = cluster.start()
    ident = cluster.one()
    until(lambda: first.row().application_id == ident)
    killed(first)
    lost_with_a_hint(cluster, ident)
    cluster.place.fake.purge(ident)

    second = cluster.start()

    assert ended(second)[0] == "unknown"
    assert cluster.alive() == []


def test_when_nothing_was_submitted_for_certain_the_next_attempt_submits(cluster: Cluster) -> None:
    first = cluster.start(env={"SUBMIT_STOPS": "before"})
    until(lambda: cluster.place.stopped("before"))
    killed(first)
    lost_with_a_hint(cluster)

    second = cluster.start()
    cluster.place.fake.finish(cluster.one())

    assert ended(second)[0] == "success"


def test_of_two_the_newest_is_adopted_and_the_other_is_ended(cluster: Cluster) -> None:
    old = cluster.place.submitted_by_another(RUN, 0, 5)
    new = cluster.place.submitted_by_another(RUN, 1, 6)

    attempt = cluster.start()
    until(lambda: attempt.row().application_id == new)
    until(lambda: cluster.alive() == [new])
    cluster.place.fake.finish(new)

    assert ended(attempt)[0] == "success"
    assert f"{old} is ended: {new} is newer" in cluster.log(attempt)


def test_without_a_look_up_nothing_is_launched(cluster: Cluster) -> None:
    cluster.place.fake.mischief = "failing"

    attempt = cluster.start()

    until(lambda: attempt.row().state == "retry", 60)
    (row,) = cluster.world.ledger.attempts(RUN)
    assert (row.state, row.exit_code) == ("failure", 69)
    assert "nothing was launched, because the look-up of earlier applications failed" in row.reason
    assert cluster.alive() == []


# ---- the end


def test_a_cancel_ends_the_application(cluster: Cluster) -> None:
    attempt = cluster.start()
    ident = cluster.one()
    until(lambda: attempt.row().application_id == ident)

    assert cluster.world.ledger.ask(Cancel(run=RUN, by="alice")).word == OK
    cluster.world.launcher.command(attempt.directory, "cancel", "cancelled by alice")

    state, _, reason = ended(attempt)
    assert (state, reason) == ("revoked", "cancelled by alice")
    assert cluster.alive() == []


def test_a_cancel_that_cannot_be_confirmed_is_unknown(cluster: Cluster) -> None:
    cluster.place.fake.dies_slowly = True
    attempt = cluster.start(**SHORT | {"lease_s": 30.0})
    ident = cluster.one()
    until(lambda: attempt.row().application_id == ident)

    cluster.world.launcher.command(attempt.directory, "cancel", "cancelled by alice")

    state, _, reason = ended(attempt)
    assert state == "unknown"
    assert reason == "cancelled by alice; whether its application has ended is unknown"
    assert cluster.alive() == [ident]


def test_a_timeout_ends_the_application(cluster: Cluster) -> None:
    attempt = cluster.start(timeout_s=2.0)

    until(lambda: attempt.row().state == "retry")
    (row,) = cluster.world.ledger.attempts(RUN)
    assert (row.state, row.reason) == ("failure", "timeout after 2 s")
    assert cluster.alive() == []


def test_the_loss_of_the_lease_ends_the_submitter_and_never_the_application(cluster: Cluster) -> None:
    attempt = cluster.start(**SHORT | {"on_lost": "relaunch"})
    ident = cluster.one()
    until(lambda: attempt.row().application_id == ident)
    cluster.world.path.joinpath("ledger.db").rename(cluster.world.path / "away.db")
    try:
        until(lambda: not attempt.pids())
    finally:
        cluster.world.path.joinpath("away.db").rename(cluster.world.path / "ledger.db")

    assert cluster.alive() == [ident]
    assert f"{ident} is left to the next owner of the run" in cluster.log(attempt)


def test_a_tracker_that_is_killed_is_no_end_of_the_run(cluster: Cluster) -> None:
    attempt = cluster.start()
    ident = cluster.one()
    until(lambda: attempt.row().application_id == ident)

    os.kill(int(attempt.fact("started")["program"]), signal.SIGKILL)

    state, _, reason = ended(attempt)
    assert state == "unknown"
    assert reason.startswith("ended by signal 9")
    assert reason.endswith("; whether its application has ended is unknown")
    assert cluster.alive() == [ident]
