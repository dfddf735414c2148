"""What `job fires` says of a fire time whose run is a group."""

from __future__ import annotations

import pytest

from coordd.cli.web import drawing
from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import Command, Job
from coordd.core.jobs.schedule import parse_schedule
from coordd.core.ledger.fires import GIVEN_UP, Decided
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import FAILURE, MISSED, STARTED, SUCCESS
from coordd.services.views import fires
from coordd.services.views.fires import Due, Fire, Known
from services.control.test_why_answers import row

AT = 1_795_420_800.0  # 2026-11-23T08:00:00Z
GROUP = "parts@2026-11-23T08:00:00Z"
JOB = Job(
    name="parts",
    digest="d",
    launch=Command(argv=("/bin/true",)),
    schedule=parse_schedule("@hourly"),
    expand=Expand(key="part", values=("a", "b", "c")),
)


def told(*states: str, job: Job | None = JOB) -> Fire:
    rows: dict[str, Row] = {}
    for number, state in enumerate(states):
        token = 0 if state == MISSED else 7
        ident = f"{GROUP}~{number}"
        rows[ident] = row(state, run=ident, job="parts", token=token, fire_at=AT, due=AT, reason="too late")
    known = Known(Decided(AT, [], []), rows, "")
    (found,) = fires.fires([Due(AT, job, blackout=False)] if job else [], known, AT - 60, AT + 60, 0.0, AT + 60)
    assert (found.fire_at, found.due, found.run) == (AT, AT, GROUP)
    return found


@pytest.mark.parametrize("job", [JOB, None])
def test_a_group_of_which_one_member_failed_is_a_failure(job: Job | None) -> None:
    """It said that its run is success: that of the first member."""
    found = told(SUCCESS, SUCCESS, FAILURE, job=job)
    assert (found.decision, found.state) == (fires.LAUNCHED, FAILURE)
    assert found.reason == "its group is failure: 1 failure, 2 success"
    assert found.view()["state"] == FAILURE
    cells = [cell for _, row in drawing.grid([found.view()], {}, AT + 60).rows for cell in row if cell.word]
    assert [cell.title for cell in cells] == ["2026-11-23 08h: failure"]


def test_a_group_that_has_not_ended_says_how_far_it_is() -> None:
    assert told(SUCCESS, STARTED, SUCCESS).reason == "its group is started: 1 started, 2 success"
    assert told(SUCCESS, SUCCESS).reason == "its group is started: 2 success, 1 not recorded yet"


def test_a_group_is_launched_if_one_of_its_members_was() -> None:
    found = told(MISSED, SUCCESS, SUCCESS)
    assert (found.decision, found.state) == (fires.LAUNCHED, MISSED)
    missed = told(MISSED, MISSED, MISSED)
    assert (missed.decision, missed.state, missed.reason) == (GIVEN_UP, MISSED, "too late")
