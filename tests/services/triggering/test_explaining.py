"""Why a file has no run: each state has its sentence."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from coordd.core.jobs.trigger import Trigger
from coordd.core.ledger.rows import OF_BREAKER
from coordd.core.triggers.files import Found
from coordd.ports import Listing
from coordd.services.triggering.explaining import explained, matches, of_job
from coordd.services.triggering.service import Watched
from coordd.services.triggering.sources import FileSource

from .test_taking import Machine, kept, with_breaker

DROP = Trigger(kind="file", name="drop", path="/in/*.csv", settle_s=1000.0, max_open=1, args={"file": "{trigger.path}"})
NOW_NS = 2**62


def watched(*paths: str, settle_s: float = 0.0, looks: int = 2) -> Watched:
    """A trigger that has looked that often at these files."""
    trigger = DROP if settle_s else Trigger(kind="file", name="drop", path="/in/*.csv", settle_s=0.0, max_open=1)
    machine: Any = Machine(trigger)
    found = [Found(path, 1, NOW_NS, NOW_NS) for path in paths]

    def files(pattern: str) -> Listing:
        assert pattern == trigger.path
        return Listing(list(found), [("/in/link.csv", "a link out of /in")], more=False)

    polling: Any = None
    made = Watched("j", trigger, machine, machine, polling, FileSource(trigger, files, lambda: 1e9))
    made.taker = machine.taker

    async def look() -> None:
        for _ in range(looks):
            await made._look()

    trio.run(look)
    return made


@pytest.mark.parametrize(
    ("made", "path", "said"),
    [
        (lambda: watched("/in/a.csv", settle_s=1000.0), "/in/a.csv", "it must be the same for 1000 s, and was so for"),
        (lambda: watched("/in/a.csv"), "/in/a.csv", "the trigger j/drop took it; its run is j#drop."),
        (lambda: watched("/in/a.csv", "/in/b.csv"), "/in/b.csv", "it waits at the trigger j/drop: the job has"),
        (lambda: watched("/in/a.csv"), "/in/link.csv", "refused it: a link out of /in"),
        (watched, "/in/z.csv", "did not find it"),
    ],
)  # fmt: skip
def test_each_state_of_a_file_has_its_sentence(made: Any, path: str, said: str) -> None:
    told = explained(made(), path)
    assert said in told["sentence"]
    assert told["sentence"].startswith(f"{path}: ")
    assert bool(told["run"]) is ("took it" in said)


def test_a_job_that_is_suspended_and_a_look_that_failed_are_named() -> None:
    made = watched("/in/a.csv", "/in/b.csv")
    driver: Any = made.driver
    driver.node.drains.suspended = frozenset(("j",))
    assert "the job is suspended" in explained(made, "/in/b.csv")["sentence"]
    made.problem = "/in cannot be read"
    assert "the last look of the trigger j/drop failed: /in cannot be read" in explained(made, "/in/z.csv")["sentence"]


@pytest.mark.parametrize(
    ("retry_in_s", "said"), [(60.0, "the job is held by its breaker"), (-60.0, "one run at a time tries")]
)
def test_a_breaker_that_is_open_is_named(retry_in_s: float, said: str) -> None:
    made = watched("/in/a.csv", "/in/b.csv")
    driver: Any = made.driver
    driver.node.jobs = {"j": with_breaker(driver.node.jobs["j"])}
    driver.node.drains.holds = {OF_BREAKER + "j": kept(retry_in_s=retry_in_s)}
    assert said in explained(made, "/in/b.csv")["sentence"]


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("/in/*.csv", "/in/a.csv", True),
        ("/in/*.csv", "/in/.a.csv", False),
        ("/in/*.csv", "/in/sub/a.csv", False),
        ("/out/*/_SUCCESS", "/out/x/_SUCCESS", True),
        ("webhdfs://nn:9870,nn2/in/*.csv?user.name=etl", "/in/a.csv", True),
    ],
)
def test_a_path_fits_a_pattern_as_in_a_look(pattern: str, path: str, fits: bool) -> None:
    assert matches(Trigger(kind="file", name="f", path=pattern), path) is fits
    assert not matches(Trigger(kind="command", name="c", argv=("/bin/ls",)), path)


def test_the_triggers_of_a_job_are_told_in_sentences() -> None:
    view = {"name": "drop", "kind": "file", "state": "polled", "poller": "n2", "waiting": 3, "dead": 0, "problem": "no"}
    assert of_job([view]) == "Trigger drop (file): polled by n2, 3 arrivals wait, problem: no."
    assert of_job([{"name": "h", "kind": "http", "state": "every node"}]) == "Trigger h (http): every node."
