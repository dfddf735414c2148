"""A person's way through the pages: see, find, read, change, by keyboard, in the dark, without a script."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from support.fake_daemon import environment

from system.lab.cluster import Cluster, Node, cluster_of
from system.lab.processes import until

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
WIDTH, HEIGHT = 1280, 900

# What a keyboard stops at.
REACHED = "a[href], input:not([type=hidden]), button, select, pre"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes, a run that ended, one that failed, one that runs."""
    with cluster_of(2) as found:
        found.job("good", "sleep", 0.1, schedule="0 2 * * *", description="Aggregate the sales")
        found.job("bad", "sleep", 0.1, code=3)
        found.job("long", "until", found.go("long"))
        found.start()
        for name in ("good", "bad", "long"):
            found.nodes[0].call("run.trigger", job=name, id="1")
        found.becomes("good#1", "success")
        found.becomes("bad#1", "failure")
        found.becomes("long#1", "started")
        yield found
        found.go("long").touch()


@contextlib.contextmanager
def pages(node: Node) -> Iterator[str]:
    """coordctl web on a node, as a process; yields the address that it prints."""
    command = [sys.executable, "-c", "from coordd.cli.coordctl import main; main()"]
    process = subprocess.Popen(
        [*command, "--socket", str(node.socket), "web"], stdout=subprocess.PIPE, env=environment(), text=True
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        assert process.wait(30) is not None
        process.stdout.close()


@contextlib.contextmanager
def browser(*, script: bool = True, dark: bool = False) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={WIDTH},{HEIGHT}"):
        options.add_argument(word)
    if dark:
        options.add_argument("--force-dark-mode")
    if not script:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(60)
    driver.implicitly_wait(20)  # an element of a page that is still being read comes
    try:
        yield driver
    finally:
        driver.quit()


def text(driver: webdriver.Chrome, by: str, what: str) -> str:
    """The text of an element now; empty while the page gives way to another one."""
    try:
        return driver.find_element(by, what).text
    except (NoSuchElementException, StaleElementReferenceException):
        return ""


def body(driver: webdriver.Chrome) -> str:
    return text(driver, By.TAG_NAME, "body")


def keep_picture(driver: webdriver.Chrome, name: str) -> None:
    """With COORDD_PICTURES the pictures of the documents are made again."""
    if folder := os.environ.get("COORDD_PICTURES"):
        driver.save_screenshot(str(Path(folder) / f"web-{name}.png"))


def test_a_person_sees_finds_reads_and_changes(cluster: Cluster) -> None:
    with pages(cluster.nodes[1]) as address, browser() as driver:
        driver.get(address)
        until(lambda: "Nothing runs now" not in body(driver) and "long#1" in body(driver), why="the first page")
        assert "bad#1 was given up" in body(driver)
        keep_picture(driver, "now")
        home = driver.current_url
        assert "token" not in home

        driver.get(f"{home}jobs")
        field = driver.find_element(By.NAME, "q")
        field.send_keys("goo")
        until(lambda: "1 job with" in body(driver), why="the list follows what is typed")
        assert driver.current_url.endswith("q=goo")
        driver.find_element(By.LINK_TEXT, "good").click()
        until(lambda: "Aggregate the sales" in body(driver), why="the page of the job")

        note = driver.find_element(By.CSS_SELECTOR, 'form[action$="/do/suspend"] input[name="note"]')
        note.send_keys("the source is late", Keys.ENTER)
        until(lambda: "good is suspended on every node" in body(driver), 20, why="the change is told")
        listed = {job["name"]: job for job in cluster.nodes[0].call("job.list")}
        assert listed["good"]["suspended"]["note"] == "the source is late"
        keep_picture(driver, "job")

        driver.get(f"{home}runs/bad%231")
        assert "exit code 3" in body(driver)
        assert driver.find_elements(By.CSS_SELECTOR, "svg.lanes rect.s-failure")
        keep_picture(driver, "run")

        driver.get(f"{home}cluster")
        assert "n1" in body(driver)
        assert "n2 (this one)" in body(driver)
        keep_picture(driver, "cluster")
        said = driver.get_log("browser")  # type: ignore[no-untyped-call]  # selenium's own
        assert [entry for entry in said if entry["level"] == "SEVERE"] == []


def test_the_page_follows_a_run_to_its_end_and_keeps_what_a_person_types(cluster: Cluster) -> None:
    cluster.nodes[0].call("run.trigger", job="long", id="2")
    cluster.becomes("long#2", "rejected")  # the first still runs
    with pages(cluster.nodes[0]) as address, browser() as driver:
        driver.get(address)
        until(lambda: "Running now" in body(driver), why="the first page")
        driver.get(f"{driver.current_url}runs/long%231")
        until(lambda: text(driver, By.ID, "connection") == "live", why="the stream of changes")
        note = driver.find_element(By.NAME, "note")
        note.send_keys("half a rea")
        cluster.go("long").touch()
        until(lambda: "success" in text(driver, By.ID, "live"), why="the end is shown without a reload")
        assert note.get_attribute("value") == "half a rea"
        assert driver.switch_to.active_element == note


def test_every_link_and_form_is_reached_by_the_keyboard_in_its_order(cluster: Cluster) -> None:
    with pages(cluster.nodes[0]) as address, browser() as driver:
        driver.get(address)
        until(lambda: "Needs somebody" in body(driver), why="the first page")
        driver.get(f"{driver.current_url}jobs/good")
        wanted = [
            element
            for element in driver.find_elements(
                By.CSS_SELECTOR, "a[href], input:not([type=hidden]), button, select, pre"
            )
            if element.is_displayed() or element.get_attribute("class") == "skip"
        ]
        reached = []
        for _ in wanted:
            driver.switch_to.active_element.send_keys(Keys.TAB)
            reached.append(driver.switch_to.active_element)
        assert reached[0].get_attribute("textContent") == "Skip to the content"
        assert [one.get_attribute("outerHTML") for one in reached] == [one.get_attribute("outerHTML") for one in wanted]
        unnamed = driver.execute_script(
            "return [...document.querySelectorAll('a, button, input:not([type=hidden]), select')]"
            ".filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length)))"
            ".map(e => e.outerHTML)"
        )
        assert unnamed == []
        outside = driver.execute_script("return document.documentElement.scrollWidth > window.innerWidth")
        assert not outside, "the page is wider than the window"


def test_it_is_readable_in_the_dark_and_without_a_script(cluster: Cluster) -> None:
    with pages(cluster.nodes[0]) as address, browser(script=False, dark=True) as driver:
        driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        )
        driver.get(address)
        until(lambda: "Needs somebody" in body(driver), why="the first page")
        assert "as of the last load" in body(driver)
        colour = driver.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
        assert colour.startswith("rgba(20, 24, 29")
        driver.find_element(By.LINK_TEXT, "bad#1").click()
        until(lambda: "exit code 3" in body(driver), why="the page of the run")


def test_another_user_of_the_machine_and_a_used_address_see_nothing(cluster: Cluster) -> None:
    with pages(cluster.nodes[0]) as address, browser() as driver:
        driver.get(address)
        until(lambda: "Needs somebody" in body(driver), why="the first page")
        with browser() as other:
            other.get(address)
            assert "was used before" in body(other)
            other.get(driver.current_url)
            assert "Who are you?" in body(other)
            printed = subprocess.run(
                [sys.executable, "-c", "from coordd.cli.coordctl import main; main()", "--socket",
                 str(cluster.nodes[0].socket), "web", "--print-token", "--port", address.split(":")[2].split("/")[0]],
                env=environment(), capture_output=True, text=True, timeout=60, check=True,
            )  # fmt: skip
            other.get(printed.stdout.strip())
            until(lambda: "Needs somebody" in body(other), why="another address lets in")


def test_a_daemon_that_goes_away_and_comes_back_is_told(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    with pages(node) as address, browser() as driver:
        driver.get(address)
        until(lambda: "Needs somebody" in body(driver), why="the first page")
        until(lambda: text(driver, By.ID, "connection") == "live", why="the stream of changes")
        node.kill()
        until(lambda: "no daemon answers" in body(driver).lower(), why="the page says that it is old")
        node.launch()
        node.ready()
        until(lambda: text(driver, By.ID, "connection") == "live", why="it follows again")
