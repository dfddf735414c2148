"""Fire times: every node opens each one once, a little ahead. Missed fire times follow the policy of the job."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from support.small_cluster import EPOCH, SETTINGS, Lone, job, open_answer

from coordd.core.context import LEAD_S
from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import Job, fire_time, scheduled_run
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Register
from coordd.core.ledger.words import NEVER
from coordd.core.runs.planner import CATCH_UP_MAX, RECHECK_S, SKIP_GRACE_S

HOUR_S = 3600.0


def hourly(misfire: str = "once") -> Job:
    return job(every_s=HOUR_S, misfire=misfire)


def run_at(hours: float) -> str:
    """The hourly run, that number of hours after the epoch of these tests."""
    return scheduled_run("sales", EPOCH + hours * HOUR_S)


def begun(lone: Lone) -> list[str]:
    return list(lone.node.pursuits.pursuits)


def fires_noted(lone: Lone) -> list[tuple[str, object]]:
    return [(note.event, note.fields["count"]) for note in lone.notices if note.event.startswith("fires")]


def since(hours: float, *jobs: Job) -> Lone:
    """A node that starts that number of hours after the ledger's horizon. Earlier fire times are settled."""
    lone = Lone(*jobs)
    lone.node.start((), lone.now)
    lone.take()
    lone.pass_time(hours * HOUR_S)
    lone.forget()
    lone.answer("open", nothing_open(lone))
    return lone


def nothing_open(lone: Lone) -> OpenAnswer:
    return open_answer(jobs=lone.node.ctx.jobs)


def test_a_run_is_opened_a_second_ahead_of_its_time() -> None:
    lone = Lone(hourly()).ready()

    lone.wait(HOUR_S - LEAD_S - 0.01)
    assert begun(lone) == []
    lone.wait(0.02)

    assert begun(lone) == [run_at(1)]
    assert lone.node.planner.next_at == {"sales": EPOCH + 2 * HOUR_S}


def test_nothing_is_opened_before_the_ledger_has_said_where_the_job_stands() -> None:
    lone = Lone(hourly())
    lone.do(lone.node.start, ())

    lone.wait(2 * HOUR_S)

    assert begun(lone) == []


@pytest.mark.parametrize(("horizon", "last"), [(2, 0), (0, 2), (1, 2)])
def test_a_job_begins_where_the_ledger_stands(horizon: int, last: int) -> None:
    lone = Lone(hourly("all"))
    lone.node.start((), lone.now)
    lone.take()
    lone.pass_time(3.5 * HOUR_S)

    lone.sweep(horizon=EPOCH + horizon * HOUR_S, last=EPOCH + last * HOUR_S if last else 0.0)

    assert begun(lone) == [run_at(3)]


def test_a_job_without_a_schedule_is_left_alone() -> None:
    lone = Lone(job()).ready()

    lone.wait(2 * HOUR_S)

    assert (begun(lone), lone.node.planner.next_at) == ([], {})


# ---- fire times that were missed while all nodes were down


def test_once_runs_the_newest_and_settles_the_others() -> None:
    lone = since(3.5, hourly("once"))

    assert begun(lone) == [run_at(3)]
    assert lone.node.pursuits.pursuits[run_at(3)].settled.upto == EPOCH + 2 * HOUR_S
    assert [(n.event, n.fields["count"]) for n in lone.notices if n.event.startswith("fires")] == [
        ("fires.coalesced", 2)
    ]


@pytest.mark.parametrize("misfire", ["once", "skip"])
def test_a_member_of_a_group_settles_no_fire_time_of_which_another_member_may_run(misfire: str) -> None:
    """One that was granted first settled a member of the fire time before, and that group never ended."""
    lone = Lone(replace(hourly(misfire), expand=Expand("part", ("a", "b")))).ready()

    lone.wait(HOUR_S)
    lone.wait(HOUR_S)

    assert begun(lone) == [f"{run_at(hours)}~{member}" for hours in (1, 2) for member in (0, 1)]
    assert all(pursuit.settled.upto == 0.0 for pursuit in lone.node.pursuits.pursuits.values())


def test_of_a_group_too_once_runs_the_newest_alone() -> None:
    lone = since(3.5, replace(hourly("once"), expand=Expand("part", ("a", "b"))))

    assert begun(lone) == [f"{run_at(3)}~0", f"{run_at(3)}~1"]
    assert fires_noted(lone) == [("fires.coalesced", 2)]


def test_all_runs_every_one_and_writes_them_down_first() -> None:
    lone = since(3.5, hourly("all"))

    assert begun(lone) == [run_at(1), run_at(2), run_at(3)]
    assert [register.of.run for register in lone.waiting(Register)] == begun(lone)


def test_all_settles_no_fire_time_that_may_have_no_row_yet() -> None:
    lone = Lone(hourly("all")).ready()

    lone.wait(HOUR_S)  # the ledger is away: both requests are repeated, and the later run may be recorded first
    lone.wait(HOUR_S)

    assert begun(lone) == [run_at(1), run_at(2)]
    assert all(pursuit.settled.upto < EPOCH + HOUR_S for pursuit in lone.node.pursuits.pursuits.values())


def test_all_has_its_bound() -> None:
    lone = Lone(job(every_s=1.0, misfire="all"))
    lone.node.start((), lone.now)
    lone.take()
    lone.pass_time(2.0 * CATCH_UP_MAX)

    lone.sweep()

    assert len(lone.questions("register")) == CATCH_UP_MAX
    assert begun(lone)[-1] == scheduled_run("sales", EPOCH + 2.0 * CATCH_UP_MAX + LEAD_S)  # only the newest ones


def test_skip_runs_none_that_is_older_than_a_moment() -> None:
    lone = since(3.5, hourly("skip"))
    assert begun(lone) == []
    assert fires_noted(lone) == [("fires.skipped", 3)]

    lone = since((3 * HOUR_S + SKIP_GRACE_S - 1.0) / HOUR_S, hourly("skip"))
    assert begun(lone) == [run_at(3)]


# ---- reloads


def test_a_job_that_has_changed_is_planned_anew() -> None:
    lone = Lone(hourly()).ready()

    lone.do(lone.node.set_jobs, {"sales": job(every_s=600.0, digest="d2")})
    lone.sweep()

    assert lone.node.planner.next_at == {"sales": EPOCH + 600.0}


def test_a_job_that_is_removed_fires_no_more() -> None:
    lone = Lone(hourly()).ready()

    lone.do(lone.node.set_jobs, {})
    lone.sweep()
    lone.wait(2 * HOUR_S)

    assert (begun(lone), lone.node.planner.next_at) == ([], {})


def test_a_job_that_stays_as_it_is_keeps_its_place() -> None:
    lone = Lone(hourly()).ready()

    lone.do(lone.node.set_jobs, {"sales": hourly(), "other": job("other")})
    lone.sweep()
    lone.wait(HOUR_S)

    assert begun(lone) == [run_at(1)]


def test_a_job_that_a_reload_brings_opens_nothing_that_was_due_before_it() -> None:
    """The job may have been removed on all nodes for a while, and nodes that know it may be slower than this one."""
    lone = Lone(job("other")).ready()
    lone.wait(3.5 * HOUR_S)

    lone.do(lone.node.set_jobs, {"sales": hourly("all"), "other": job("other")})
    lone.sweep()  # the ledger says that this definition has counted from the beginning
    assert begun(lone) == []
    lone.wait(0.5 * HOUR_S)

    assert begun(lone) == [run_at(4)]


def test_a_job_that_changes_and_keeps_its_schedule_loses_no_fire_time() -> None:
    lone = Lone(hourly("all")).ready()
    lone.pass_time(3.5 * HOUR_S)

    lone.do(lone.node.set_jobs, {"sales": replace(hourly("all"), digest="d2")})
    lone.sweep()

    assert begun(lone) == [run_at(1), run_at(2), run_at(3)]


def test_a_draining_node_opens_its_runs_all_the_same() -> None:
    lone = Lone(hourly()).ready()
    lone.do(lone.node.drain, True)

    lone.wait(HOUR_S)

    assert begun(lone) == [run_at(1)]  # the other nodes may have lost their ledger, so this node abstains and waits


# ---- steps of the wall clock


def test_a_step_forward_is_seen_soon_once_the_ledger_says_the_same() -> None:
    lone = Lone(hourly()).ready()

    lone.step_wall(HOUR_S)
    lone.wait(RECHECK_S)
    assert begun(lone) == []
    answer = nothing_open(lone)
    answer.wall = lone.now.wall
    lone.answer("open", answer)
    lone.wait(2.0)

    assert begun(lone) == [run_at(1)]


def test_what_a_clock_ran_ahead_of_fires_when_its_time_comes() -> None:
    lone = Lone(hourly()).ready()
    lone.step_wall(5 * HOUR_S)
    lone.wait(RECHECK_S)
    assert begun(lone) == []  # four of them look missed, and the fifth looks due

    lone.step_wall(-5 * HOUR_S)
    while lone.questions("open"):
        lone.answer("open", nothing_open(lone))
    lone.wait(HOUR_S)

    assert run_at(1) in begun(lone)
    assert [notice.event for notice in lone.notices].count("wall_clock.set_back") == 1


def test_a_definition_that_was_to_count_later_counts_from_the_ledgers_corrected_clock() -> None:
    lone = Lone(hourly())
    lone.node.start((), lone.now)
    lone.take()
    jobs = lone.node.ctx.jobs
    lone.answer("open", open_answer(jobs=jobs, horizon=EPOCH + 5 * HOUR_S))  # the ledger's clock was ahead then
    lone.wait(2 * HOUR_S)
    assert begun(lone) == []

    while lone.questions("open"):
        lone.answer("open", open_answer(jobs=jobs, horizon=EPOCH + 0.5 * HOUR_S))
    lone.wait(HOUR_S)

    assert begun(lone) == [run_at(2), run_at(3)]


def test_a_small_correction_is_no_step() -> None:
    lone = Lone(hourly()).ready()

    for _ in range(10):
        lone.step_wall(-0.1)
        lone.wait(RECHECK_S)

    assert [notice.event for notice in lone.notices if notice.event.startswith("wall")] == []


def test_one_timer_a_job_however_often_it_is_swept() -> None:
    lone = Lone(hourly()).ready()

    for _ in range(200):
        lone.wait(SETTINGS.renew_interval_s)
        lone.answer("open", nothing_open(lone))

    assert [timer[2] for timer in lone.node.ctx.timers].count("plan") == 1


# ---- a wall clock that differs from the ledger's


@pytest.mark.parametrize("off_s", [11.0, -11.0, 3 * 3600.0])
def test_a_node_whose_clock_is_off_opens_nothing_by_schedule_until_it_is_right(off_s: float) -> None:
    lone = Lone(job(every_s=60.0)).ready()
    lone.step_wall(off_s)
    lone.sweep()
    assert lone.node.ctx.clock_off
    lone.forget()

    lone.wait(125.0)
    assert lone.questions("claim") == []
    assert lone.node.pursuits.pursuits == {}

    lone.step_wall(-off_s)
    lone.wait(2.0)
    assert not lone.node.ctx.clock_off
    assert lone.node.pursuits.pursuits
    assert [notice.event for notice in lone.notices if notice.event.startswith("wall_clock.")][-1] == "wall_clock.right"


def test_a_clock_that_is_off_by_less_goes_on() -> None:
    lone = Lone(job(every_s=60.0)).ready()
    lone.step_wall(9.0)
    lone.sweep()

    lone.wait(60.0)

    assert not lone.node.ctx.clock_off
    assert lone.node.pursuits.pursuits


def test_a_step_is_noticed_before_the_next_sweep() -> None:
    lone = Lone(job(every_s=60.0)).ready()
    lone.wait(1.0)
    lone.step_wall(3 * 3600.0)

    lone.wait(65.0)

    assert lone.node.pursuits.pursuits == {}
    assert lone.node.ctx.clock_off


def test_a_slow_answer_is_no_skew() -> None:
    lone = Lone(job(every_s=60.0)).ready()
    ctx, now = lone.node.ctx, lone.now

    ctx.compare_clocks(EPOCH, now.mono - 30.0, now)
    assert (ctx.skew_s(now), ctx.clock_off) == (0.0, False)
    ctx.compare_clocks(EPOCH - 45.0, now.mono - 30.0, now)
    assert (ctx.skew_s(now), ctx.clock_off) == pytest.approx((15.0, True))


def test_when_a_run_is_due_is_told_by_its_name_and_its_jobs_jitter() -> None:
    plain = hourly()
    assert plain.schedule is not None
    jittered = replace(plain, schedule=replace(plain.schedule, offset_s=90.0))
    ctx = Lone(jittered).ready().node.ctx
    due = EPOCH + HOUR_S + 90.0
    for identity_from in (0.0, due - 1.0, NEVER):  # under the old rules the name contains the due time
        ctx.identity_from = identity_from
        assert ctx.due_of(scheduled_run("sales", fire_time(jittered, due, identity_from))) == due
    assert ctx.due_of("sales#1") == ctx.due_of("other@2025-01-29T08:00:00Z") == ctx.due_of("sales@nonsense") == 0.0
