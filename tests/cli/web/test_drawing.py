"""The grid, the bars and the lanes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coordd.cli import web
from coordd.cli.web import drawing, site
from coordd.services.control import disclosure
from coordd.services.views import fires

NOW = 1_795_420_000.0  # 2026-11-23T07:46:40Z


def fire(at: str, decision: str = "launched", run: str = "") -> dict[str, Any]:
    return {"fire_time": at, "decision": decision, "run": run or f"j@{at}", "reason": ""}


def test_a_cell_shows_its_worst_fire_time_and_tells_of_all() -> None:
    found = [fire(f"2026-11-22T02:{minute}:00Z") for minute in ("00", "10", "20")]
    found += [fire("2026-11-23T02:00:00Z", "missed"), fire("2026-11-23T07:00:00Z")]
    states = {"j@2026-11-22T02:00:00Z": "success", "j@2026-11-22T02:10:00Z": "failure"}
    grid = drawing.grid(found, states, NOW)
    assert (len(grid.days), grid.days[0], grid.days[-1], grid.since) == (30, "2026-10-25", "2026-11-23", "2026-11-22")
    assert [hour for hour, _ in grid.rows] == ["02:00", "07:00"]
    (_, two), (_, seven) = grid.rows
    assert two[-2] == ("failure", "2026-11-22 02h: 1 failure, 1 launched, 1 success")
    assert two[-1] == ("missed", "2026-11-23 02h: missed")
    assert (two[-2].sign, two[0].sign, seven[-1].word) == ("✕", "", "launched")


@pytest.mark.parametrize(
    ("state", "reason", "word"),
    [
        ("pending", "", "pending"),
        (None, f"{fires.NOT_YET}it was due 5 s ago, and no node has claimed it", "pending"),
        (None, disclosure.reason(f"{fires.NOT_YET}it was due 5 s ago"), "pending"),
        (None, fires.NOT_RECORDED, "not known"),
        (None, None, "not known"),
    ],
)
def test_a_fire_time_without_a_decision_is_pending_only_if_one_will_come(
    state: str | None, reason: str | None, word: str
) -> None:
    told = {**fire("2026-11-22T02:00:00Z", ""), "decision": None, "state": state, "reason": reason}
    assert drawing.decided(told) == word
    (_, cells), *_ = drawing.grid([told], {}, NOW).rows
    assert cells[-2].title == f"2026-11-22 02h: {word}"


@pytest.mark.parametrize(
    ("node", "host"),
    [("edge-1.4711", "edge-1"), ("edge-1.example.com", "edge-1.example.com"), ("edge-1.example.com.7",
     "edge-1.example.com"), ("edge-1", "edge-1"), (None, "")],
)  # fmt: skip
def test_only_a_pid_is_cut_from_the_name_of_a_node(node: str | None, host: str) -> None:
    assert site.FILTERS["host"](node) == host


def test_a_job_without_a_fire_time_has_no_grid() -> None:
    assert drawing.grid([], {}, NOW).rows == []


def test_every_word_of_a_cell_has_a_sign() -> None:
    assert set(drawing.WORST) == set(drawing.SIGNS)


def ended(number: int, took_s: float, state: str = "success") -> dict[str, Any]:
    return {"id": f"j#{number}", "state": state, "runtime_s": took_s, "ended_at": "2026-11-23T07:00:00Z"}


def test_bars_go_from_old_to_new_up_to_the_longest() -> None:
    drawn = drawing.bars([ended(3, 5.0), {"id": "j#4", "runtime_s": None}, ended(2, 10.0, "failure"), ended(1, 0.0)])
    assert [bar.run for bar in drawn.bars] == ["j#1", "j#2", "j#3"]
    assert [bar.height for bar in drawn.bars] == [2.0, 80.0, 40.0]
    assert (drawn.top, drawn.width) == ("10 s", 30)
    assert drawn.bars[1].title == "j#2: failure after 10 s"
    assert drawing.bars([]).top == ""
    assert len(drawing.bars([ended(number, 1.0) for number in range(500)]).bars) == drawing.BARS_MAX


def test_each_node_has_a_lane_whatever_its_pid() -> None:
    steps: list[dict[str, Any]] = [
        {"at": "2026-11-23T07:00:00Z", "node": None, "what": "due", "detail": None},
        {"at": "2026-11-23T07:00:00Z", "node": "n1.4", "what": "granted", "detail": "attempt 0"},
        {"at": "2026-11-23T07:00:20Z", "node": "n2.9", "what": "granted", "detail": "attempt 1"},
        {"at": "nonsense", "node": "n1", "what": "run.trigger", "detail": "by root"},
    ]
    attempts: list[dict[str, Any]] = [
        {"attempt": 0, "state": "lost", "node": "n1.7", "started_at": "2026-11-23T07:00:05Z", "ended_at": None},
        {"attempt": 1, "state": "success", "node": "n2.9", "started_at": "2026-11-23T07:00:30Z",
         "ended_at": "2026-11-23T07:00:40Z"},
    ]  # fmt: skip
    lanes = drawing.lanes(steps, attempts, NOW)
    assert [name for name, _ in lanes.names] == ["cluster", "n1", "n2"]
    assert [(dot.what, dot.y) for dot in lanes.dots] == [("due", 13.0), ("granted", 39.0), ("granted", 65.0)]
    lost, won = lanes.stretches
    assert (lost.y, won.y, lost.width > won.width) == (39.0, 65.0, True)
    assert won.title == "attempt 1: success, 10 s"
    assert (lanes.first, lanes.last) == ("2026-11-23 07:00:00", "2026-11-23 07:46:40")
    assert all(drawing.LEFT <= dot.x <= drawing.WIDTH for dot in lanes.dots)


def test_a_run_that_has_no_step_yet_has_no_lane() -> None:
    assert drawing.lanes([], [], NOW).names == []


# ---- colours that everybody can read

STYLE = (Path(web.__file__).parent / "static" / "style.css").read_text()
PAIRS = [("ink", "paper"), ("quiet", "paper"), ("link", "paper"), ("ink", "stripe"), ("quiet", "bar"), ("link", "bar")]
PAIRS += [(name, f"{name}-back") for name in ("good", "bad", "warn", "busy", "off")]
PAIRS += [("good", "paper"), ("bad", "paper")]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG 2.2 defines it (relative luminance)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("front", "back"), PAIRS)
def test_the_contrast_is_at_least_that_of_wcag_aa(theme: int, front: str, back: str) -> None:
    colours = dict(re.findall(r"--([a-z-]+): #([0-9a-f]{6});", STYLE.split(":root {")[theme + 1].split("}")[0]))
    assert contrast(colours[front], colours[back]) >= 4.5
