"""A node with a cursor asks only for what has changed, and by name for what silence says nothing about."""

from __future__ import annotations

import pytest
from support.small_cluster import EPOCH, SETTINGS, Lone, job, open_answer, open_run

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import JobState, OpenAnswer, OpenRun
from coordd.core.ledger.requests import ListOpen, Page, Settle
from coordd.core.ledger.rows import OF_JOB, Cursor, Hold
from coordd.core.ledger.runner_requests import Report
from coordd.core.ledger.words import FEED, OPEN_PAGE, RETRY, UNAVAILABLE, UNKNOWN
from coordd.core.runs.pursued import HELD_BY_OTHER, SLEEPING
from coordd.core.runs.sweep import WHOLE_EVERY, WHOLE_SPREAD, Heads
from coordd.core.wire.events import TaskReceived, TaskSucceeded, WorkerHeartbeat
from core.runs.claims import RUN, hears_an_elect, of_b, pursued, started

RENEW_S = SETTINGS.renew_interval_s
LIFE = "7"


def whole(lone: Lone, *rows: OpenRun, number: int = 10, **fields: object) -> OpenAnswer:
    """The first page of all open rows, with a cursor."""
    answer = open_answer(*rows, jobs=lone.node.ctx.jobs)
    answer.epoch, answer.cursor = LIFE, f"{LIFE} {number}"
    for name, value in fields.items():
        setattr(answer, name, value)
    return answer


def fed(*rows: OpenRun, gone: tuple[str, ...] = (), number: int = 11, **fields: object) -> OpenAnswer:
    """The changes since the cursor."""
    answer = OpenAnswer(list(rows), {}, EPOCH, 0.0, LIFE, cursor=f"{LIFE} {number}", gone=list(gone))
    for name, value in fields.items():
        setattr(answer, name, value)
    return answer


def following(*rows: OpenRun, lone: Lone | None = None) -> Lone:
    """A node that has read everything: its next sweep asks what has changed."""
    lone = lone or Lone(job()).ready()
    lone.do(lone.node.look_again)
    lone.answer("open", whole(lone, *rows))
    return lone


def asks(lone: Lone) -> ListOpen:
    """The question of the next sweep, a moment later."""
    if not lone.questions("open"):
        lone.pass_time(0.01)
        lone.do(lone.node.look_again)
    (asked,) = lone.waiting(ListOpen)
    return asked


def told(lone: Lone, answer: OpenAnswer | Answer) -> None:
    """The next sweep is answered so."""
    asks(lone)
    lone.answer("open", answer)


def is_whole(lone: Lone) -> bool:
    """True if the next sweep asks for everything."""
    asked = asks(lone)
    assert asked.since or asked.jobs == tuple(lone.node.ctx.jobs)
    return not asked.since


def waiting(run: str = RUN) -> OpenRun:
    """A row that waits for its retry."""
    return open_run(run, RETRY, attempt=1, due_in_s=60.0)


def test_after_a_whole_pass_it_asks_for_what_has_changed_and_says_who_it_is() -> None:
    lone = following(waiting())
    assert asks(lone).named == RUN  # it was heard of by the last answer, which could not say that it is over
    told(lone, fed())

    asked = asks(lone)

    assert (asked.since, asked.jobs, asked.named) == (f"{LIFE} 11", (), "")
    assert asked.host == "a"
    assert asked.silence_s >= 2 * RENEW_S


def test_the_cursor_is_that_of_the_first_page_and_counts_when_all_pages_have_come() -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.look_again)
    lone.answer("open", whole(lone, after=Cursor(not_before=1.0, run="x#1")))
    assert lone.waiting(Page)
    lone.do(lone.node.look_again)
    assert not lone.questions("open")

    lone.answer("page", OpenAnswer([], {}, EPOCH, 0.0, LIFE))
    lone.wait(0.2)

    assert asks(lone).since == f"{LIFE} 10"


@pytest.mark.parametrize("last", [Answer(UNAVAILABLE), OpenAnswer([], {}, EPOCH, 0.0, "8")])
def test_a_pass_that_was_cut_off_leaves_no_cursor(last: Answer | OpenAnswer) -> None:
    lone = Lone(job()).ready()
    lone.do(lone.node.look_again)
    lone.answer("open", whole(lone, after=Cursor(not_before=1.0, run="x#1")))
    lone.answer("page", last)

    assert is_whole(lone)


def test_a_row_that_the_feed_does_not_mention_is_not_over_and_one_that_is_named_as_gone_is() -> None:
    lone = following(waiting())
    told(lone, fed(waiting()))
    told(lone, fed())
    assert pursued(lone).phase == SLEEPING

    told(lone, fed(gone=(RUN,)))

    assert RUN not in lone.node.pursuits.pursuits
    assert RUN in lone.node.pursuits.epitaphs


def test_a_row_that_it_has_heard_of_since_it_asked_is_asked_for_by_name() -> None:
    lone = following()
    hears_an_elect(lone)
    told(lone, fed())
    asks(lone)
    lone.pass_time(0.01)
    lone.hear("b.1", WorkerHeartbeat(state="ready", rules=FEED), of_b(TaskSucceeded))
    lone.answer("open", fed(gone=(RUN,)), sent_at=lone.now.mono - 0.01)
    assert RUN in lone.node.pursuits.pursuits  # this answer may be older than the row

    assert asks(lone).named == RUN
    lone.answer("open", fed(gone=(RUN,)))

    assert RUN not in lone.node.pursuits.pursuits


def test_the_rows_of_holders_are_asked_for_by_name_and_their_watch_continues() -> None:
    lone = following(started(left_s=60.0))
    watch = pursued(lone).watch
    lone.wait(RENEW_S)
    assert asks(lone).named == RUN

    told(lone, fed(started(left_s=55.0)))

    assert pursued(lone).phase == HELD_BY_OTHER
    assert pursued(lone).watch is watch
    assert asks(lone).named == RUN


def test_what_a_late_message_calls_held_is_asked_for_by_name_and_goes_on() -> None:
    lone = following(waiting())
    told(lone, fed(waiting()))
    lone.hear("b.1", WorkerHeartbeat(state="ready", rules=FEED), of_b(TaskReceived, attempt=1))
    assert pursued(lone).phase == HELD_BY_OTHER
    told(lone, fed())
    assert asks(lone).named == RUN

    told(lone, fed(waiting()))

    assert pursued(lone).phase == SLEEPING


def test_the_row_of_a_holder_whose_job_is_not_known_here_is_asked_for_also_after_an_answer_was_lost() -> None:
    held = open_run("other#1", "started", token=7, nonce="n", node="b.1", beat=1, left_s=-1.0)
    lone = following(held)
    lone.wait(RENEW_S)
    told(lone, Answer(UNAVAILABLE))
    lone.wait(RENEW_S)

    assert asks(lone).since == f"{LIFE} 10"
    assert asks(lone).named == "other#1"


def test_a_lost_answer_leaves_the_cursor_where_it_was() -> None:
    lone = following()
    told(lone, fed(number=15))
    told(lone, Answer(UNAVAILABLE))

    assert asks(lone).since == f"{LIFE} 15"


def test_a_cursor_that_is_refused_is_followed_by_a_whole_pass_at_once() -> None:
    lone = following(waiting())
    told(lone, whole(lone, epoch="8", cursor="8 3"))

    (asked,) = lone.waiting(ListOpen)  # nobody had to look again
    assert (asked.since, asked.jobs) == ("", ("sales",))
    assert RUN in lone.node.pursuits.pursuits  # the refusal itself says nothing about rows

    lone.answer("open", whole(lone, epoch="8", cursor="8 3"))
    assert RUN not in lone.node.pursuits.pursuits
    assert asks(lone).since == "8 3"


@pytest.mark.parametrize(("whose", "other"), [("identity", "other"), ("epoch", "8")])
def test_what_another_ledger_tells_to_its_cursor_is_not_believed(whose: str, other: str) -> None:
    lone = following(waiting())
    answer = fed(gone=(RUN,))
    setattr(answer, whose, other)
    told(lone, answer)

    assert RUN in lone.node.pursuits.pursuits
    assert is_whole(lone)


def test_more_changes_than_one_answer_has_are_asked_for_soon() -> None:
    lone = following()
    told(lone, fed(number=1010, more=True))
    assert not lone.questions("open")

    lone.wait(0.2)

    assert [asked.since for asked in lone.waiting(ListOpen)] == [f"{LIFE} 1010"]


def test_more_names_than_a_page_has_rows_make_a_whole_pass() -> None:
    held = [open_run(f"other#{n}", "started", token=7, nonce="n", node="b.1", beat=1) for n in range(OPEN_PAGE + 1)]
    lone = following(*held)

    assert is_whole(lone)


@pytest.mark.parametrize(("rules", "reads_all"), [(FEED, False), (FEED - 1, True)])
@pytest.mark.parametrize("dies", [False, True])
def test_while_a_member_is_known_that_numbers_nothing_everything_is_read(
    rules: int, dies: bool, reads_all: bool
) -> None:
    lone = following()
    lone.hear("b.1", WorkerHeartbeat(state="ready", rules=rules))
    if dies:
        lone.do(lone.node.peer_dead, "b.1")

    assert is_whole(lone) == reads_all


def test_in_a_quarantine_and_after_it_everything_is_read() -> None:
    lone = following()
    told(lone, whole(lone))
    lone.answer("open", whole(lone, recovering_s=30.0))
    lone.answer("vouch", Answer(UNAVAILABLE))
    assert is_whole(lone)
    lone.answer("open", whole(lone))

    assert asks(lone).since == f"{LIFE} 10"


@pytest.mark.parametrize(("step_s", "reads_all"), [(0.5, False), (1.5, True), (-1.5, True)])
def test_a_step_of_the_ledgers_clock_makes_a_whole_pass(step_s: float, reads_all: bool) -> None:
    lone = following(waiting())
    lone.wait(1.0)
    asks(lone)
    wall = EPOCH + lone.now.mono - 1000.0 + step_s
    lone.answer("open", fed(wall=wall))
    lone.wait(0.2)

    assert is_whole(lone) == reads_all


def test_now_and_then_everything_is_read() -> None:
    lone = following()
    seconds = 0.0
    while not is_whole(lone):
        told(lone, fed())
        lone.wait(RENEW_S)
        seconds += RENEW_S

    every_s = WHOLE_EVERY * RENEW_S
    assert (1 - WHOLE_SPREAD) * every_s <= seconds <= (1 + WHOLE_SPREAD) * every_s + RENEW_S


@pytest.mark.parametrize("shown", ["whole", "fed"])
def test_when_a_waiting_row_comes_too_late_everything_is_read_and_it_is_settled(shown: str) -> None:
    row = open_run("gone#1", due_in_s=-3590.0)  # its start_within of an hour ends in 10 s
    lone = following(*([row] if shown == "whole" else []))
    told(lone, fed(*([row] if shown == "fed" else [])))
    lone.pass_time(9.0)
    assert not is_whole(lone)
    told(lone, fed())
    lone.pass_time(1.0)
    assert is_whole(lone)

    lone.answer("open", whole(lone, open_run("gone#1", due_in_s=-3601.0)))

    assert [settle.run for settle in lone.waiting(Settle)] == ["gone#1"]


def test_a_job_that_is_new_here_makes_a_whole_pass_for_its_rows_were_told_before() -> None:
    row = waiting("late#1")
    lone = following(row)
    assert "late#1" not in lone.node.pursuits.pursuits
    lone.do(lone.node.set_jobs, {one.name: one for one in (job(), job("late"))})

    assert is_whole(lone)
    lone.answer("open", whole(lone, row))

    assert "late#1" in lone.node.pursuits.pursuits
    assert not is_whole(lone)


def test_the_states_of_jobs_are_kept_and_only_what_is_not_known_is_asked_for() -> None:
    lone = following(lone=Lone(job(), job("b")).ready())
    told(lone, fed(jobs={"b": JobState(horizon=EPOCH, last_fire_at=0.0, suspended=True, fence=0)}))
    assert lone.node.drains.suspended == {"b"}
    told(lone, fed(bad={"sales": "its row is bad"}))

    assert asks(lone).jobs == ("sales",)


def test_the_states_of_jobs_that_are_not_known_here_are_not_kept() -> None:
    heads = Heads()
    stands = JobState(horizon=EPOCH, last_fire_at=0.0, suspended=False, fence=0)
    heads.take(fed(jobs={"sales": stands, "elsewhere": stands}), ("sales",))

    assert heads.missing(("sales", "elsewhere"), EPOCH) == ("elsewhere",)


def test_a_suspension_that_ends_by_itself_is_asked_for_by_name() -> None:
    lone = following()
    hold = Hold(by="ann", until=EPOCH + 8.0)
    stands = JobState(horizon=EPOCH, last_fire_at=0.0, suspended=True, fence=0)
    told(lone, fed(jobs={"sales": stands}, holds={OF_JOB + "sales": hold}))
    lone.wait(7.0)
    assert asks(lone).jobs == ()
    told(lone, fed())
    assert lone.node.drains.of_job("sales") == hold
    lone.wait(1.1)

    assert asks(lone).jobs == ("sales",)


def test_an_end_that_was_heard_is_asked_for_until_the_ledger_has_it() -> None:
    lone = following()
    end = of_b(TaskSucceeded, run="other#1")
    lone.hear("b.1", WorkerHeartbeat(state="ready", rules=FEED), end)
    lone.wait(0.2)
    assert asks(lone).named == "other#1"

    told(lone, fed(open_run("other#1", UNKNOWN, token=7, nonce="theirs", node="b.1")))
    assert [report.grant.run for report in lone.waiting(Report)] == ["other#1"]
    assert asks(lone).named == "other#1"

    told(lone, fed(gone=("other#1",)))
    assert asks(lone).named == ""


def test_an_end_that_was_heard_while_it_asked_is_asked_for_again() -> None:
    lone = following()
    asks(lone)
    lone.hear("b.1", WorkerHeartbeat(state="ready", rules=FEED), of_b(TaskSucceeded, run="other#1"))
    lone.answer("open", fed(gone=("other#1",)))
    lone.wait(0.2)

    assert asks(lone).named == "other#1"


def test_a_whole_pass_shows_too_which_ends_the_ledger_has() -> None:
    lone = following()
    lone.hear("b.1", WorkerHeartbeat(state="ready", rules=FEED - 1), of_b(TaskSucceeded, run="other#1"))
    lone.wait(0.2)
    assert is_whole(lone)
    lone.answer("open", whole(lone))
    lone.hear("b.1", WorkerHeartbeat(state="ready", rules=FEED), clock=2)

    asked = asks(lone)
    assert (asked.since, asked.named) == (f"{LIFE} 10", "")
    told(lone, fed(waiting("other#1")))  # it comes back
    assert asks(lone).named == ""


@pytest.mark.parametrize("hinted", [True, False])
def test_a_sweep_without_an_answer_is_made_up_for(hinted: bool) -> None:
    """Its next regular time passed while it was out. A ledger that is back in quarantine waits for what nodes know."""
    lone = following()
    asks(lone)
    lone.wait(RENEW_S - 0.1 if hinted else RENEW_S + 0.1)
    if hinted:
        lone.do(lone.node.look_again)
    assert len(lone.questions("open")) == 1
    lone.answer("open", Answer(UNAVAILABLE))
    lone.wait(0.01)

    assert len(lone.questions("open")) == 1


def test_a_ledger_that_is_away_is_asked_once_per_interval() -> None:
    lone = following()
    lone.wait(RENEW_S + 0.01)
    for _ in range(5):
        assert len(lone.questions("open")) == 1
        lone.pass_time(0.05)
        lone.answer("open", Answer(UNAVAILABLE))
        lone.wait(RENEW_S - 0.2)
        assert lone.questions("open") == []
        lone.wait(0.15)
