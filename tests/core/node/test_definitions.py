"""A node and the definitions of its jobs: which definitions it activates, and which runs it opens meanwhile."""

from __future__ import annotations

from typing import Any

from msgspec import structs
from support.ledger_calls import EPOCH
from support.small_cluster import SETTINGS, Cluster, Lone, job, open_answer

from coordd.core.jobs.job import Job, Schedule, scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import Current
from coordd.core.ledger.requests import Activate
from coordd.core.ledger.words import NEVER
from coordd.core.node.definitions import Had

HOUR_S = 3600.0
MINUTE_S = 60.0
DAY_S = 24 * HOUR_S

# A day passes in these tests. They do not depend on the heartbeat interval, so it is long.
CALM = structs.replace(SETTINGS, heartbeat_interval_s=30.0, renew_interval_s=20.0)


def swept(lone: Lone, current: tuple[int, str, float] | None, **more: Any) -> None:
    answer = open_answer(jobs=lone.node.ctx.jobs, **more)
    if current is None:
        answer.current = {}
    else:
        sequence, digest, counts_from = current
        answer.current = {"sales": Current(sequence=sequence, digest=digest, counts_from=counts_from)}
    if not lone.questions("open"):
        lone.do(lone.node.look_again)
    lone.answer("open", answer)


def begun(lone: Lone) -> list[str]:
    return sorted(lone.node.pursuits.pursuits)


def hourly(digest: str = "d1", offset_s: float = 0.0) -> Job:
    schedule = Schedule(kind="every", every_s=HOUR_S, offset_s=offset_s)
    return structs.replace(job(digest=digest), schedule=schedule)


def daily(cron: str, digest: str) -> Job:
    """EPOCH is midnight in this time zone."""
    schedule = Schedule(kind="cron", cron=cron, timezone="America/Los_Angeles")
    return structs.replace(job(digest=digest), schedule=schedule)


def started(*jobs: Any) -> Lone:
    lone = Lone(*jobs)
    lone.node.start((), lone.now)
    lone.take()
    return lone


def test_a_node_with_another_definition_opens_nothing_and_says_so() -> None:
    lone = started(hourly("d1"))
    lone.node.rulebook.definitions.had = {"sales": Had("d1", 1)}
    swept(lone, (2, "d2", EPOCH))
    lone.wait(2 * HOUR_S)

    assert begun(lone) == []
    assert "another definition" in lone.node.rulebook.definitions.stale["sales"]
    assert lone.questions("activate") == []


def test_a_node_whose_file_was_changed_activates_it_and_opens_what_is_due_afterwards() -> None:
    lone = started(hourly("d2"))
    lone.node.rulebook.definitions.had = {"sales": Had("d1", 1)}
    swept(lone, (1, "d1", EPOCH))

    (asked,) = lone.waiting(Activate)
    said = (asked.job, asked.digest, asked.schedule, asked.how)
    assert said == ("sales", "d2", hourly("d2").schedule_digest, "changed")
    assert begun(lone) == []
    lone.answer("activate", Answer("ok", token=2))
    lone.pass_time(HOUR_S + 40 * MINUTE_S)
    swept(lone, (2, "d2", lone.now.wall))

    assert begun(lone) == []  # runs that were due before the definition counted are not opened
    lone.wait(HOUR_S)
    assert begun(lone) == [scheduled_run("sales", EPOCH + 2 * HOUR_S)]


def test_a_node_that_had_this_very_definition_before_does_not_activate_it_again() -> None:
    """The node was down while the others changed to the next definition."""
    lone = started(hourly("d1"))
    lone.node.rulebook.definitions.had = {"sales": Had("d1", 3)}

    swept(lone, (4, "d2", EPOCH))

    assert lone.questions("activate") == []


def test_what_the_ledger_forgot_is_brought_back_as_it_was() -> None:
    lone = started(hourly("d1"))
    lone.node.rulebook.definitions.had = {"sales": Had("d1", 3, EPOCH)}

    swept(lone, (2, "d0", EPOCH))

    (asked,) = lone.waiting(Activate)
    assert (asked.how, asked.by, asked.sequence, asked.counts_from) == ("restored", "a.1", 3, EPOCH)


def test_a_return_that_the_ledger_forgot_is_brought_back() -> None:
    """The job was away for an hour; the ledger went back to the time before. No fire time of that hour may run."""
    lone = started(hourly("d1"))
    lone.node.rulebook.definitions.had = {"sales": Had("d1", 2, EPOCH + HOUR_S)}

    swept(lone, (1, "d1", EPOCH))

    (asked,) = lone.waiting(Activate)
    assert (asked.how, asked.sequence, asked.counts_from) == ("restored", 2, EPOCH + HOUR_S)
    assert begun(lone) == []


def test_a_number_that_a_ledger_forgot_is_not_missed_where_the_job_counts_from_the_same_instant() -> None:
    lone = started(hourly("d1"))
    lone.node.rulebook.definitions.had = {"sales": Had("d1", 2, EPOCH)}

    swept(lone, (1, "d1", EPOCH))

    assert lone.questions("activate") == []
    assert lone.node.rulebook.definitions.had["sales"].sequence == 1


def test_a_node_names_the_older_definitions_that_it_had() -> None:
    """The ledger was emptied, and remembers none. Another node may still have one of them."""
    lone = started(hourly("d1"))
    lone.do(lone.node.set_jobs, {"sales": hourly("d2")})
    lone.take()
    lone.node.rulebook.definitions.had = {"sales": Had("d1", 3)}
    swept(lone, None)

    (asked,) = lone.waiting(Activate)
    assert (asked.how, asked.sequence, asked.before) == ("changed", 3, "d1")


def test_a_run_is_named_by_its_nominal_time() -> None:
    lone = started(hourly("d1", offset_s=420.0))
    swept(lone, (1, "d1", EPOCH))
    lone.wait(HOUR_S + 421.0)

    (pursuit,) = [one for one in lone.node.pursuits.pursuits.values() if one.action.fire_at == EPOCH + HOUR_S]
    assert pursuit.action.run == scheduled_run("sales", EPOCH + HOUR_S)
    assert pursuit.action.due == EPOCH + HOUR_S + 420.0


def test_under_the_old_rules_it_is_named_by_when_it_is_due() -> None:
    lone = started(hourly("d1", offset_s=420.0))
    answer = open_answer(jobs=lone.node.ctx.jobs)
    answer.identity_from = NEVER
    lone.answer("open", answer)
    lone.wait(HOUR_S + 421.0)

    assert scheduled_run("sales", EPOCH + HOUR_S + 420.0) in begun(lone)


def test_a_job_that_ran_and_is_moved_to_a_time_that_is_past_launches_nothing_until_the_next_day() -> None:
    """The job ran at 01:15. At 02:40 it is moved to 02:15. The node uses the real rules of the ledger."""
    before = structs.replace(daily("15 1 * * *", "d1"), misfire="all")
    after = structs.replace(daily("15 2 * * *", "d2"), misfire="all")
    cluster = Cluster("a", jobs=(before,), settings=CALM)
    node, shell = cluster["a"], cluster.shells["a"]
    cluster.wait(75 * MINUTE_S + 1.0)
    (ran,) = [launch.run for launch in shell.launches]
    assert ran == scheduled_run("sales", EPOCH + 75 * MINUTE_S)
    cluster.end("a", ran)

    cluster.wait(85 * MINUTE_S)
    shell.do(node.set_jobs, {"sales": after})
    cluster.wait(20 * MINUTE_S)

    assert node.rulebook.definitions.stale == {}
    assert [launch.run for launch in shell.launches] == [ran]
    assert [row.run for row in cluster.ledger.runs(limit=10)] == [ran]

    cluster.wait(DAY_S - 30 * MINUTE_S)  # past 02:15 of the next day
    tomorrow = scheduled_run("sales", EPOCH + DAY_S + 135 * MINUTE_S)
    assert [launch.run for launch in shell.launches] == [ran, tomorrow]


def test_a_jitter_that_is_added_does_not_open_the_run_again_in_the_core() -> None:
    """The 01:00 run is in the ledger. The jitter is added at 01:05."""
    lone = started(hourly("d2", offset_s=420.0))
    lone.pass_time(HOUR_S + 5 * MINUTE_S)
    ran_at = EPOCH + HOUR_S
    swept(lone, (2, "d2", lone.now.wall), last=ran_at)
    lone.wait(5 * MINUTE_S)

    assert begun(lone) == [scheduled_run("sales", ran_at)]  # the same name: the ledger has this run, and it is over


def test_a_definition_that_is_not_activated_yet_opens_nothing() -> None:
    """The job may have had no schedule until now. So no past fire time is opened before the ledger has answered."""
    lone = started(hourly("d1"))
    lone.pass_time(2 * HOUR_S)
    swept(lone, None)
    lone.wait(1.0)

    assert lone.waiting(Activate)[0].how == "new"
    assert begun(lone) == []


def test_a_job_that_returns_is_activated_again_although_its_definition_is_the_same() -> None:
    lone = started(hourly("d1"))
    swept(lone, (3, "d1", EPOCH))
    lone.do(lone.node.set_jobs, {})
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    lone.pass_time(2 * HOUR_S)
    swept(lone, (3, "d1", EPOCH))

    (asked,) = lone.waiting(Activate)
    assert (asked.digest, asked.how, asked.sequence) == ("d1", "returned", 3)
    assert begun(lone) == []
    lone.answer("activate", Answer("ok", token=4))
    swept(lone, (4, "d1", lone.now.wall))
    assert begun(lone) == []
    lone.wait(HOUR_S)
    assert begun(lone) == [scheduled_run("sales", EPOCH + 3 * HOUR_S)]


def test_a_job_that_another_node_has_brought_back_is_not_activated_once_more() -> None:
    lone = started(hourly("d1"))
    swept(lone, (3, "d1", EPOCH))
    lone.do(lone.node.set_jobs, {})
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    swept(lone, (4, "d1", EPOCH + MINUTE_S))

    assert lone.questions("activate") == []
    assert lone.node.rulebook.definitions.stale == {}


def test_a_job_that_another_node_has_brought_back_runs_although_this_node_hears_of_it_late() -> None:
    """That node has died since, and this one stood still while the run was due."""
    lone = started(hourly("d1"))
    swept(lone, (3, "d1", EPOCH))
    lone.pass_time(MINUTE_S)
    lone.do(lone.node.set_jobs, {})
    lone.pass_time(2.5 * HOUR_S)
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    swept(lone, (4, "d1", EPOCH + 1.5 * HOUR_S))

    assert begun(lone) == [scheduled_run("sales", EPOCH + 2 * HOUR_S)]


def test_a_job_that_counts_since_before_it_was_removed_here_opens_nothing_that_is_past() -> None:
    """It was changed elsewhere, and then it may have been removed on all nodes."""
    lone = started(hourly("d1"))
    swept(lone, (3, "d1", EPOCH))
    lone.pass_time(MINUTE_S)
    lone.do(lone.node.set_jobs, {})
    lone.pass_time(2.5 * HOUR_S)
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    swept(lone, (4, "d1", EPOCH))

    assert begun(lone) == []


def test_a_job_that_was_back_for_less_than_a_sweep_counts_from_its_last_return() -> None:
    """Another node had brought it back meanwhile, before it was removed everywhere for the second time."""
    lone = started(hourly("d1"))
    swept(lone, (3, "d1", EPOCH))
    lone.pass_time(MINUTE_S)
    lone.do(lone.node.set_jobs, {})
    lone.pass_time(HOUR_S)
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    lone.pass_time(MINUTE_S)
    lone.do(lone.node.set_jobs, {})
    lone.pass_time(2 * HOUR_S)
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    swept(lone, (4, "d1", EPOCH + HOUR_S + 1.5 * MINUTE_S))

    (asked,) = lone.waiting(Activate)
    assert (asked.digest, asked.how, asked.sequence) == ("d1", "returned", 4)
    assert begun(lone) == []
    lone.answer("activate", Answer("ok", token=5))
    swept(lone, (5, "d1", lone.now.wall))
    assert begun(lone) == []
    lone.wait(HOUR_S)
    assert begun(lone) == [scheduled_run("sales", EPOCH + 4 * HOUR_S)]


def test_a_job_that_comes_back_at_a_restart_after_a_second_absence_opens_nothing_of_it() -> None:
    """No reload says when its file came."""
    lone = started(hourly("d1"))
    lone.node.rulebook.definitions.had = {"sales": Had("", 3, EPOCH + 2 * MINUTE_S)}
    lone.pass_time(2.5 * HOUR_S)
    swept(lone, (4, "d1", EPOCH + MINUTE_S))

    assert lone.waiting(Activate)[0].how == "returned"
    assert begun(lone) == []


def test_a_first_schedule_that_was_here_for_less_than_a_sweep_counts_from_its_last_return() -> None:
    lone = started(structs.replace(job(digest="d0"), schedule=None))
    swept(lone, None)
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    lone.pass_time(HOUR_S)
    lone.do(lone.node.set_jobs, {})
    lone.pass_time(2 * HOUR_S)
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    swept(lone, (1, "d1", EPOCH + MINUTE_S))

    (asked,) = lone.waiting(Activate)
    assert (asked.how, asked.sequence) == ("returned", 1)
    assert begun(lone) == []


def test_a_job_that_returns_with_an_old_definition_replaces_no_newer_one() -> None:
    """A node that was away has the file of before. Which one counts says the ledger."""
    lone = started(hourly("d1"))
    swept(lone, (3, "d1", EPOCH))
    lone.pass_time(MINUTE_S)
    lone.do(lone.node.set_jobs, {})
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    swept(lone, (4, "d2", EPOCH))

    (asked,) = lone.waiting(Activate)
    assert (asked.how, asked.sequence) == ("returned", 3)  # below 4: the ledger refuses a digest that it knows


def test_a_job_that_is_removed_while_it_is_activated_returns_all_the_same() -> None:
    lone = started(hourly("d1"))
    swept(lone, None)
    lone.do(lone.node.set_jobs, {})
    lone.answer("activate", Answer("ok", token=1))
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    swept(lone, (1, "d1", EPOCH))

    assert lone.waiting(Activate)[0].how == "returned"


def test_a_schedule_that_a_known_job_is_given_counts_from_then() -> None:
    lone = started(structs.replace(job(digest="d0"), schedule=None))
    swept(lone, None)
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    swept(lone, None)

    assert lone.waiting(Activate)[0].how == "returned"
    assert begun(lone) == []


def test_a_node_activates_no_definition_of_a_published_revision() -> None:
    """The ledger activates all of them in one step. A late node would bring an older revision back."""
    for known in ({}, {"sales": Had("d1", 1)}, {"sales": Had("", 3)}):
        lone = started(hourly("d2"))
        lone.node.rulebook.definitions.published = True
        lone.node.rulebook.definitions.had = dict(known)
        swept(lone, (3, "d3", EPOCH))
        lone.wait(2 * HOUR_S)

        assert lone.questions("activate") == []
        assert begun(lone) == []
        assert "not in force" in lone.node.rulebook.definitions.stale["sales"]


def test_a_node_takes_a_published_definition_once_it_counts() -> None:
    lone = started(hourly("d2"))
    lone.node.rulebook.definitions.published = True
    swept(lone, (3, "d2", EPOCH))
    lone.wait(HOUR_S + MINUTE_S)

    assert lone.questions("activate") == []
    assert begun(lone) != []


def test_a_published_job_that_was_away_here_alone_is_opened_again() -> None:
    """The store was away and this node had lost its copy: it had no jobs for a while. The revision stayed in force."""
    lone = started(hourly("d1"))
    lone.node.rulebook.definitions.published = True
    swept(lone, (3, "d1", EPOCH))
    lone.do(lone.node.set_jobs, {})
    lone.wait(HOUR_S + MINUTE_S)
    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    swept(lone, (3, "d1", EPOCH))
    lone.wait(MINUTE_S)

    assert lone.node.rulebook.definitions.stale == {}
    assert begun(lone) == [scheduled_run("sales", EPOCH + HOUR_S)]


def test_a_published_definition_that_the_ledger_has_forgotten_is_restored() -> None:
    lone = started(hourly("d1"))
    lone.node.rulebook.definitions.published = True
    lone.node.rulebook.definitions.revision = 7
    lone.node.rulebook.definitions.had = {"sales": Had("d1", 4, EPOCH - HOUR_S)}
    swept(lone, None)

    (asked,) = lone.waiting(Activate)
    assert (asked.how, asked.sequence, asked.counts_from, asked.revision) == ("restored", 4, EPOCH - HOUR_S, 7)


def test_a_job_that_is_new_in_a_published_revision_opens_what_was_due_before_this_node_took_it() -> None:
    """The ledger says from when it counts. No other node had it before, so nobody else opens that."""
    lone = started()
    lone.node.rulebook.definitions.published = True
    swept(lone, None)
    lone.wait(HOUR_S + MINUTE_S)

    lone.do(lone.node.set_jobs, {"sales": hourly("d1")})
    swept(lone, (1, "d1", EPOCH + MINUTE_S))
    lone.wait(MINUTE_S)

    assert begun(lone) == [scheduled_run("sales", EPOCH + HOUR_S)]
