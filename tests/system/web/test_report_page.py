"""The history's report in a browser: without a script, in the dark, by keyboard, on a small screen, with contrast."""

from __future__ import annotations

from pathlib import Path

import pytest
from history.reported import MORNING, sample
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from coordd.history.publishing import Owner
from coordd.history.report import render
from system.web.test_browser import browser

# The text of every element that has some of its own, with its colour and the first background behind it.
COLOURS = """
const found = [];
for (const one of document.querySelectorAll("main *, header *, nav *")) {
  const own = [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  if (!own || one.closest("svg")) continue;
  let under = one;
  while (under && getComputedStyle(under).backgroundColor === "rgba(0, 0, 0, 0)") under = under.parentElement;
  if (!under) continue;
  const style = getComputedStyle(one);
  found.push([one.textContent.trim().slice(0, 30), style.color, getComputedStyle(under).backgroundColor]);
}
return found;
"""

# What a keyboard stops at: not what lies in a closed list.
REACHED = """
return [...document.querySelectorAll("a[href], [tabindex='0'], summary")].filter(
  one => one.tagName === "SUMMARY" || !one.closest("details:not([open])"));
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    page = render(sample(), Owner("history", "history@1", 0, 7, "a.1"), made_at=MORNING + 300, took_s=9.0)
    path.write_text(page, encoding="utf-8")
    return path.as_uri()


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def low_contrast(driver: webdriver.Chrome) -> list[str]:
    """Texts below 4.5 : 1, which WCAG 2 asks of small text."""
    low = []
    for text, ink, paper in driver.execute_script(COLOURS):
        bright, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
        if (bright + 0.05) / (dark + 0.05) < 4.5:
            low.append(f"{text}: {ink} on {paper}")
    return low


def test_the_page_is_whole_in_light_and_dark_and_every_text_has_contrast(address: str) -> None:
    papers = set()
    for dark in (False, True):
        with browser() as driver:
            value = "dark" if dark else "light"
            driver.execute_cdp_cmd(
                "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": value}]}
            )
            driver.get(address)
            assert low_contrast(driver) == [], value
            papers.add(driver.find_element(By.TAG_NAME, "body").value_of_css_property("background-color"))
            log = driver.get_log("browser")  # type: ignore[no-untyped-call]  # of selenium
            assert not [entry for entry in log if entry["level"] == "SEVERE"]
            assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert len(papers) == 2


def test_it_reads_without_a_script_and_drawings_have_their_size(address: str) -> None:
    with browser(script=False) as driver:
        driver.get(address)
        drawings = driver.find_elements(By.CSS_SELECTOR, "svg[role=img]")
        assert len(drawings) >= 6
        for drawing in drawings:
            assert drawing.get_attribute("aria-label")
            assert drawing.size["width"] > 50
            assert drawing.size["height"] > 15
        assert driver.find_element(By.ID, "takeovers").text.count("→") == 1


@pytest.mark.parametrize("width", [1280, 420])
def test_nothing_is_wider_than_the_window(address: str, width: int) -> None:
    with browser() as driver:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        driver.get(address)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_keyboard_reaches_every_link_table_and_list(address: str) -> None:
    with browser() as driver:
        driver.get(address)
        for expected in driver.execute_script(REACHED):
            driver.switch_to.active_element.send_keys(Keys.TAB)
            assert driver.switch_to.active_element.id == expected.id, expected.get_attribute("outerHTML")
        job = driver.find_element(By.LINK_TEXT, "nightly-sales")
        job.send_keys(Keys.ENTER)
        section = driver.find_element(By.ID, "job-1")
        top = driver.execute_script("return arguments[0].getBoundingClientRect().top", section)
        assert 0 <= top < 200, "its section is in view, and not below the bar of links"
        section.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
        assert section.find_element(By.TAG_NAME, "table").is_displayed()


def test_the_finished_attempt_is_a_closed_bar_and_the_handover_an_arrow(address: str, tmp_path: Path) -> None:
    with browser() as driver:
        driver.get(address)
        attempts = driver.find_element(By.ID, "attempts")
        closed, lost, running = (
            attempts.find_elements(By.CSS_SELECTOR, f"rect.{word}") for word in ("closed", "lost", "open")
        )
        assert (len(closed), len(lost), len(running)) == (1, 1, 1)
        arrow = attempts.find_element(By.CSS_SELECTOR, "path.over")
        assert arrow.rect["height"] > 10, "it leads from one row to the next"
        assert lost[0].rect["y"] < closed[0].rect["y"]
        assert attempts.screenshot(str(tmp_path / "attempts.png"))
