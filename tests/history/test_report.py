"""The page: a true summary, drawings with every attempt, and no external resources."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from coordd.history.drawing import bars, colours, timeline
from coordd.history.publishing import Owner
from coordd.history.report import Report, render

OWNER = Owner("history", "history@2026-09-21T02:00:00Z", 1, 1_790_000_000_000_123, "edge-2.77")


def attempt(
    run: str, number: int, node: str, started: float, ended: float | None, outcome: str | None
) -> dict[str, Any]:
    return {
        "run": run,
        "attempt": number,
        "hostname": node,
        "started": started,
        "ended": ended,
        "outcome": outcome,
        "reason": None,
    }


def run(name: str, state: str, **more: Any) -> dict[str, Any]:
    return {"run": name, "uuid": "u", "state": state, "timestamp": 200.0, "hostname": "a", **more}


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


def test_nothing_is_fetched_from_outside() -> None:
    html = page(
        Report(nodes=["a", "b"], launches={"a": 1, "b": 1}, attempts=TAKEN_OVER, runs=[run("sales@1", "success")])
    )
    assert not re.search(r"https?:|//[a-z]|<script|<link|<img|@import|url\((?!#)", html)


def test_what_events_say_is_text_and_never_markup() -> None:
    evil = "<script>alert(1)</script>\"'&"
    report = Report(
        nodes=[evil],
        launches={evil: 1},
        corrupt={evil: 1},
        findings=[{"severity": evil, "kind": evil, "run": evil, "attempt": 0, "at": 1.0, "detail": evil}],
        runs=[run(evil, "failure", reason=evil, application_id=evil, started=1.0, exit_code=1)],
        attempts=[{**attempt(evil, 0, evil, 1.0, 2.0, evil), "reason": evil}],
    )
    html = page(report, Owner(job=evil, run=evil, token=1, node=evil))
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 10


def test_the_footer_names_who_made_it() -> None:
    html = page(Report())
    assert OWNER.run in html
    assert str(OWNER.token) in html
    assert "by hand" in page(Report(), Owner())


def test_a_takeover_is_two_bars_in_two_colours_and_an_arrow() -> None:
    tint = colours(["a", "b"])
    drawn = svg(timeline(TAKEN_OVER, [run("sales@1", "success")], tint))
    bars_drawn = drawn.findall("./g/rect")
    assert [bar.get("stroke") for bar in bars_drawn] == [tint["a"], tint["b"]]
    assert [bar.get("class") for bar in bars_drawn] == ["open", "closed"]  # nobody knows when the first one ended
    first, second = bars_drawn
    assert float(first.get("x", 0)) + float(first.get("width", 0)) == pytest.approx(float(second.get("x", 0)), abs=0.2)
    assert len(drawn.findall("./path[@class='over']")) == 1
    titles = [title.text for title in drawn.findall("./g/title")]
    assert titles == ["sales@1 attempt 0 on a: no end known", "sales@1 attempt 1 on b: success after 50.0 s"]


def test_a_retry_on_the_same_node_is_no_takeover() -> None:
    again = [attempt("s@1", 0, "a", 1.0, 2.0, "failure"), attempt("s@1", 1, "a", 3.0, 4.0, "success")]
    assert 'class="over"' not in timeline(again, [run("s@1", "success")], colours(["a"]))


@pytest.mark.parametrize("span", [0.0, 0.5, 90.0, 86400.0 * 400, 86400.0 * 365 * 300])
def test_any_span_of_time_can_be_drawn(span: float) -> None:
    drawn = timeline([attempt("s@1", 0, "a", 100.0, 100.0 + span, "success")], [run("s@1", "success")], colours(["a"]))
    assert svg(drawn).get("viewBox")


def test_a_node_that_launched_nothing_has_its_bar_too() -> None:
    drawn = bars({"a": 4}, colours(["a", "b"]))
    assert re.findall(r">([^<]+)</text>", drawn) == ["a", "4", "b", "0"]
