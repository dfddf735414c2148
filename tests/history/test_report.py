"""The page: a true summary, drawings with every attempt, and no external resources."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from coordd.history.figures.learning import NOTHING, RUNNING_SHOWN, Limits, warnings
from coordd.history.pages.charts import fence, over_time, trend as trend_chart, week
from coordd.history.pages.parts import percent, span
from coordd.history.pages.timeline import LIGHT, PALETTE, colours, timeline
from coordd.history.publishing import Owner
from coordd.history.report import Report, render
from history.reported import MORNING, attempt, job, run, sample, trend

OWNER = Owner("history", "history@2026-09-21T02:00:00Z", 1, 1_790_000_000_000_123, "edge-2.77")

TAKEN_OVER = [attempt("sales@1", 0, "a", 100.0, None, None), attempt("sales@1", 1, "b", 150.0, 200.0, "success")]


def svg(html: str) -> ET.Element:
    """The drawing without its legend; parsing it proves that it is well-formed."""
    return ET.fromstring(html.partition('<p class="keys')[0])  # noqa: S314 - our own output


def page(report: Report, owner: Owner = OWNER) -> str:
    return render(report, owner, made_at=1_790_000_000.0, took_s=3.0)


@pytest.mark.parametrize(
    ("report", "judgement", "says"),
    [
        (Report(), "good", "Nothing was launched: 0 runs"),
        (Report(states={"success": 1}, launches={"a": 1}), "good", "In 1 launch of 1 run no journal shows"),
        (Report(states={"success": 1}, launches={"a": 2}, severities={"notice": 2}), "fair", "(2 notices)"),
        (
            Report(states={"success": 1}, launches={"a": 1}, corrupt={"torn": 1}),
            "fair",
            "(1 unreadable line kept aside)",
        ),
        (
            Report(states={"success": 1}, launches={"a": 2}, severities={"violation": 1, "notice": 1}),
            "bad",
            "1 violation found in 2 launches of 1 run (1 notice).",
        ),
    ],
)
def test_the_verdict(report: Report, judgement: str, says: str) -> None:
    assert (report.judgement, says in report.verdict) == (judgement, True)
    assert f'<div class="verdict {judgement}">' in page(report)


def test_nothing_is_fetched_from_outside_and_there_is_no_script() -> None:
    assert not re.search(r"https?:|//[a-z]|<script|<link|<img|@import|url\((?!#)|\son\w+=", page(sample()))


def test_what_events_say_is_text_and_never_markup() -> None:
    evil = "<script>alert(1)</script>\"'&"
    report = replace(
        sample(evil),
        nodes=[evil],
        launches={evil: 1},
        corrupt={evil: 1},
        findings=[{"severity": evil, "kind": evil, "run": evil, "attempt": 0, "at": 1.0, "detail": evil}],
        runs=[run(evil, "failure", reason=evil, application_id=evil, started=1.0, exit_code=1)],
        attempts=[attempt(evil, 0, evil, 1.0, 2.0, evil, reason=evil)],
        placed=[{"job": evil, "hostname": evil, "launches": 1}],
    )
    html = page(report, Owner(job=evil, run=evil, token=1, node=evil))
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 30


def test_the_footer_names_who_made_it() -> None:
    html = page(Report())
    assert OWNER.run in html
    assert str(OWNER.token) in html
    assert "by hand" in page(Report(), Owner())


def test_every_link_leads_to_a_part_of_the_page() -> None:
    html = page(sample())
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(re.findall(r'\bid="([^"]+)"', html))
    assert html.count('<section class="job"') == 3


def test_a_page_about_nothing_says_so_in_each_section() -> None:
    html = page(Report())
    assert html.count('class="none"') >= 9
    assert "Not enough data" in html


# ---- attempts


def test_a_takeover_is_an_arrow_from_an_open_bar_to_a_closed_one_below() -> None:
    tint = colours(["a", "b"])
    drawn = svg(timeline(TAKEN_OVER, [run("sales@1", "success", timestamp=200.0)], tint))
    bars_drawn = drawn.findall("./g/rect")
    assert [bar.get("stroke") for bar in bars_drawn] == [tint["a"], tint["b"]]
    assert [bar.get("class") for bar in bars_drawn] == ["lost", "closed"]  # nobody knows when the first one ended
    first, second = bars_drawn
    assert float(first.get("x", 0)) + float(first.get("width", 0)) == pytest.approx(float(second.get("x", 0)), abs=0.2)
    assert float(first.get("y", 0)) < float(second.get("y", 0))
    assert len(drawn.findall("./g/path[@class='over']")) == 1
    titles = [title.text for title in drawn.findall("./g/title")]
    assert titles == [
        "sales@1 attempt 0 on a: given up after 50 s; nobody saw its end",
        "sales@1 attempt 1 on b: success after 50 s",
        "b took over from a",
    ]
    assert [mark.text for mark in drawn.findall("./g/text[@class='mark m-success']")] == ["✓"]


def test_a_retry_on_the_same_node_is_no_takeover() -> None:
    again = [attempt("s@1", 0, "a", 1.0, 2.0, "failure"), attempt("s@1", 1, "a", 3.0, 4.0, "success")]
    assert 'class="over"' not in timeline(again, [run("s@1", "success")], colours(["a"]))


def test_the_attempt_that_makes_the_page_is_drawn_as_finished_and_another_one_as_running() -> None:
    alive = [attempt(OWNER.run, 1, "b", MORNING, None, None), attempt("other#1", 0, "a", MORNING, None, None)]
    html = page(replace(sample(), attempts=alive))
    assert html.count('<rect class="closed"') == 1
    assert html.count('<rect class="open"') == 1
    assert "it made this report" in html


@pytest.mark.parametrize("span_s", [0.0, 0.5, 90.0, 86400.0 * 400, 86400.0 * 365 * 300])
def test_any_span_of_time_can_be_drawn(span_s: float) -> None:
    one = attempt("s@1", 0, "a", 100.0, 100.0 + span_s, "success")
    assert svg(timeline([one], [run("s@1", "success")], colours(["a"]))).get("viewBox")


def contrast(one: str, other: str) -> float:
    """The contrast of two colours (#rrggbb), as WCAG 2 defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((light(one), light(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_the_text_in_a_bar_can_be_read_on_each_colour() -> None:
    for colour in PALETTE:
        assert contrast(colour, "#14181e" if colour in LIGHT else "#ffffff") >= 3.0, colour


# ---- charts


def test_the_runs_over_time_stand_on_each_other_and_their_numbers_are_titles() -> None:
    buckets = [{"at": 0.0, "state": "success", "runs": 3}, {"at": 0.0, "state": "failure", "runs": 1}]
    drawn = svg(over_time([*buckets, {"at": 7200.0, "state": "odd", "runs": 1}], 3600))
    (first, second) = list(drawn.findall("./g"))
    assert [rect.get("class") for rect in first.findall("rect")] == ["s-success", "s-failure"]
    success, failure = first.findall("rect")
    assert float(failure.get("y", 0)) < float(success.get("y", 0)), "a failure is on top"
    assert first.findtext("title") == "00:00 UTC: 3 success, 1 failure" or "3 success" in (
        first.findtext("title") or ""
    )
    assert second.find("rect").get("class") == "s-other"  # type: ignore[union-attr]  # it is there


def test_an_outlier_has_a_ring_and_a_failure_a_cross() -> None:
    runs = trend("j", 24)
    drawn = svg(trend_chart(runs, [58.0, 60.0, 61.0, 62.0, 66.0], 23))
    assert len(drawn.findall("./g/circle[@class='odd']")) == 1
    assert len(drawn.findall("./g/path[@class='cross']")) == 1
    assert len(drawn.findall("./g/circle[@class='again']")) == 1
    assert fence([58.0, 60.0, 61.0, 62.0, 66.0], 23) == pytest.approx(91.5)
    assert fence([58.0, 60.0, 61.0, 62.0, 66.0], 9) is None, "too few to tell"


@pytest.mark.parametrize("state", ["started", "received", "retry", "pending", "unknown"])
def test_a_run_whose_second_attempt_runs_is_drawn_as_open(state: str) -> None:
    """Its first attempt is over; the run has not failed."""
    runs = trend("j", 24)
    runs[5]["state"] = state
    drawn = svg(trend_chart(runs, [58.0, 60.0, 61.0, 62.0, 66.0], 23))
    assert len(drawn.findall("./g/circle[@class='open-mark']")) == 1
    assert drawn.findall("./g/path[@class='cross']") == []


def test_the_hours_of_the_week_name_failures() -> None:
    drawn = svg(week([{"weekday": 0, "hour": 2, "starts": 4, "failed": 1, "delay_s": 0.5}]))
    assert drawn.findtext("./g/title") == "Mon 02:00 UTC: 4 starts, 1 failed, 95 % within 0.5 s of their time"
    assert drawn.find("./g/circle") is not None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.44, "0.4 s"), (12.2, "12 s"), (150.0, "2.5 min"), (7200.0, "2.0 h"), (864000.0, "10 d"), (None, "")],
)
def test_spans(seconds: float | None, said: str) -> None:
    assert span(seconds) == said


def test_shares() -> None:
    assert [percent(share) for share in (0.0, 0.004, 0.12, 1.0, None)] == ["0 %", "< 1 %", "12 %", "100 %", ""]


# ---- what it has learned


def warned(limits: Limits, **running: Any) -> list[str]:
    known = {"j": {"p10": 50.0, "p50": 60.0, "p90": 80.0, "n": 30, "mean": 60.0}}
    alive = [{"job": "j", "run": "j#9", "last_begun": 1000.0, "p50": 60.0, "p90": 80.0, **running}] if running else []
    row = job("j", 11, first_at=0.0, last_at=1000.0, succeeded_at=960.0)
    found = warnings(NOTHING._replace(quantiles=known, running=alive), [row], {"j": limits}, now=1001.0)
    return [one["why"].partition(":")[0] for one in found]


def test_a_warning_comes_before_a_timeout_or_a_missed_success() -> None:
    assert warned(Limits(timeout_s=90.0, expect_within_s=600.0), run="j#9") == []
    assert warned(Limits(timeout_s=70.0), run="j#9") == ["may reach its timeout of 70 s"]
    assert warned(Limits(timeout_s=50.0), run="j#9") == ["will probably reach its timeout of 50 s"]
    assert warned(Limits(timeout_s=85.0)) == ["1 of 10 runs takes 80 s or longer, and its timeout is 85 s"]
    assert warned(Limits(expect_within_s=110.0), run="j#9") == ["may have no success within 110 s"]
    assert warned(Limits(expect_within_s=90.0), run="j#9") == ["will probably have no success within 90 s"]
    assert warned(Limits(expect_within_s=150.0)) == ["will probably have no success within 2 min"]
    assert warned(Limits(expect_within_s=300.0)) == []


def test_the_report_says_how_good_its_expectations_were_or_that_there_is_not_enough_data() -> None:
    html = page(sample())
    assert "Measured on the last 2 days with only the days before: half of 7 runs were off by 5 % or less" in html
    assert "86 % lay between the 10 % and the 90 % quantile, where 80 % should." in html
    assert "1 run had not enough data." in html
    assert "not enough data (fewer than 8 successes)" in html
    assert "3 days with successes, and 4 are needed" in page(Report(learned=NOTHING._replace(days=3)))


def test_what_is_left_out_of_the_expectations_is_said() -> None:
    assert "The first 50 of" not in page(sample())
    found = [{"job": f"j{n}", "run": "", "at": MORNING - n if n else None, "why": "may"} for n in range(70)]
    alive = sample().learned.running[:1] * RUNNING_SHOWN
    html = page(replace(sample(), warnings=found, learned=sample().learned._replace(running=alive)))
    assert "The first 50 of 70 warnings." in html
    assert "<b>j69</b>" in html, "the most urgent one is there"
    assert "<b>j0</b>" not in html
    assert "The 20 runs that have run the longest; there may be more." in html


def test_tried_again_is_shown_as_it_was_counted() -> None:
    report = replace(sample(), jobs=[job("j", 10, again=7, rejected=3)], trends={"j": []})
    assert re.search(r"<td[^>]*>7</td>", page(report))


def test_many_jobs_make_no_large_page() -> None:
    names = [f"job-{number:03d}" for number in range(40)]
    report = replace(
        sample(),
        jobs=[job(name, 100) for name in names],
        all_jobs=5000,
        trends={name: trend(name, 60) for name in names[:20]},
    )
    html = page(report)
    assert len(html) < 700_000
    assert "The 40 jobs with the most runs, of 5,000." in html
