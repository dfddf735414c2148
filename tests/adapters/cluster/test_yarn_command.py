"""`yarn application` as a way to applications: what it prints is read, and what it cannot tell is said.

The texts are those of Hadoop 3.5; tests/system/applications/test_spark_yarn.py runs the command itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordd.adapters.cluster import yarn_command as module
from coordd.adapters.cluster.opening import open_manager
from coordd.adapters.cluster.yarn_command import YarnCommand
from coordd.core.jobs.applications import ALIVE, ENDED, KILLED, SUCCEEDED, run_mark
from coordd.errors import UnavailableError

MARK = run_mark("prod", "nightly#1")
IDS = tuple([f"application_1793380478783_{number:04d}" for number in (1, 2, 10000)])

HEAD = """Total number of applications (application-types: [], states: [] and tags: [x]):3
                Application-Id\t    Application-Name\t    Application-Type\t      User\t     Queue\t\
             State\t       Final-State\t       Progress\t                       Tracking-URL
"""
STATUS = """Application Report :\x20
\tApplication-Id : {ident}
\tApplication-Name : x
\tStart-Time : {start}
\tFinish-Time : {finish}
\tState : {state}
\tFinal-State : UNDEFINED
\tTracking-URL : http://rm:8088/proxy/{ident}/
\tDiagnostics : {detail}
\tUnmanaged Application : false

"""
# Answers with the file that is named as the question, and counts the questions. Without that file it fails.
COMMAND = """#!/bin/sh
cd "$(dirname "$0")"
echo "$@" >> asked
name="$(echo "$@" | tr ' ' '_')"
cat "out/$name" && exit 0
echo "Application with id '$3' doesn't exist in RM or Timeline Server."
exit 255
"""


class Fake:
    """A stand-in for the command. ``says``: what it prints to a question."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.command = directory / "yarn"
        self.command.write_text(COMMAND)
        self.command.chmod(0o755)
        (directory / "out").mkdir()

    def says(self, text: str, *words: str) -> None:
        (self.directory / "out" / "_".join(("application", *words))).write_text(text)

    def lists(self, tag: str, *rows: str, states: str = "ALL") -> None:
        self.says(HEAD + "".join(rows), "-list", "-appStates", states, *(("-appTags", tag) if tag else ()))

    def shows(self, ident: str, state: str, start: str = "1000", finish: str = "0", detail: str = "") -> None:
        text = STATUS.format(ident=ident, state=state, start=start, finish=finish, detail=detail)
        self.says(text, "-status", ident)

    def asked(self) -> list[str]:
        return (self.directory / "asked").read_text().splitlines()

    def way(self, **conf: str) -> YarnCommand:
        found = open_manager("yarn", conf, {"PATH": os.environ["PATH"]}, yarn_command=str(self.command))
        assert isinstance(found, YarnCommand)
        return found


def line(ident: str, state: str = "RUNNING", final: str = "UNDEFINED", name: str = "nightly") -> str:
    words = (ident, name, "SPARK", "etl", "default", state, final, "0%", f"http://rm:8088/proxy/{ident}/")
    return "\t".join([word.rjust(20) for word in words]) + "\n"


@pytest.fixture
def yarn(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def test_applications_of_a_run_are_found_with_the_tokens_that_are_known(yarn: Fake) -> None:
    yarn.lists(MARK, *[line(ident) for ident in IDS])
    yarn.lists("coordd-token-7", line(IDS[0]), line("application_1_0001"))
    yarn.lists("coordd-token-9", line(IDS[1]))
    for ident in IDS:
        yarn.shows(ident, "RUNNING")
    way = yarn.way()

    found = {one.id: one for one in way.find(MARK, tokens=[7, 9])}

    assert {ident: one.token for ident, one in found.items()} == dict(zip(IDS, (7, 9, 0), strict=True))
    assert {one.run_mark for one in found.values()} == {MARK}
    assert (found[IDS[0]].state, found[IDS[0]].started_at, found[IDS[0]].name) == (ALIVE, 1.0, "nightly")
    assert found[IDS[0]].ui == f"http://rm:8088/proxy/{IDS[0]}/"


def test_what_is_known_is_not_asked_again(yarn: Fake) -> None:
    yarn.lists(MARK, line(IDS[0]))
    yarn.lists("coordd-token-7", line(IDS[0]))
    yarn.shows(IDS[0], "RUNNING")
    way = yarn.way()
    way.find(MARK, tokens=[7])
    way.find(MARK, tokens=[7])
    assert len(yarn.asked()) == 4

    yarn.lists(MARK, line(IDS[0], "FINISHED", "SUCCEEDED"))
    yarn.shows(IDS[0], "FINISHED", finish="2000")
    (found,) = way.find(MARK, tokens=[7])

    assert (found.state, found.ended_at, len(yarn.asked())) == (SUCCEEDED, 2.0, 6)


@pytest.mark.parametrize(
    ("state", "final", "expected"),
    [("FINISHED", "SUCCEEDED", SUCCEEDED), ("KILLED", "KILLED", KILLED), ("FINISHED", "UNDEFINED", ENDED)],
)
def test_an_end_has_its_diagnostics(yarn: Fake, state: str, final: str, expected: str) -> None:
    yarn.lists(MARK, line(IDS[0], state, final, name="a\tname : of\ttabs"))
    yarn.shows(IDS[0], state, finish="5000", detail="boom\n at x\nState : boom\npassword=hunter2")

    (found,) = yarn.way().find(MARK)

    assert (found.state, found.name, found.ended_at) == (expected, "a\tname : of\ttabs", 5.0)
    assert found.detail.startswith("boom at x State : boom password=")
    assert "hunter2" not in found.detail


def test_nothing_found_is_an_answer(yarn: Fake) -> None:
    yarn.lists(MARK)

    assert yarn.way().find(MARK, tokens=[7]) == []
    assert len(yarn.asked()) == 1


@pytest.mark.parametrize("text", ["", "Usage: yarn application\n", "{}"])
def test_another_text_than_a_table_is_no_answer(yarn: Fake, text: str) -> None:
    yarn.says(text, "-list", "-appStates", "ALL", "-appTags", MARK)

    with pytest.raises(UnavailableError, match="expected a table"):
        yarn.way().find(MARK)


def test_a_command_that_fails_or_is_not_there_is_no_answer(yarn: Fake) -> None:
    with pytest.raises(UnavailableError, match="-list ended with 255"):
        yarn.way().find(MARK)
    with pytest.raises(UnavailableError, match="-kill ended with 255"):
        yarn.way().end(IDS[0])
    yarn.command.unlink()
    with pytest.raises(UnavailableError, match="No such file"):
        yarn.way().find(MARK)


def test_a_command_that_hangs_is_no_answer_but_an_end_was_asked_for(
    yarn: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    yarn.command.write_text("#!/bin/sh\necho retrying >&2\nexec sleep 60\n")
    monkeypatch.setattr(module, "COMMAND_S", 0.2)

    with pytest.raises(UnavailableError, match=r"an answer within 0\.2 s;.*klist.*retrying"):
        yarn.way().find(MARK)
    yarn.way().end(IDS[0])


def test_an_id_that_spark_has_named_is_looked_up(yarn: Fake) -> None:
    assert yarn.way().hidden() == {}
    assert yarn.way().hidden(named=IDS[0]) == {}
    yarn.shows(IDS[0], "RUNNING")
    assert yarn.way().hidden(named=IDS[0]).keys() == {IDS[0]}
    yarn.shows(IDS[0], "RUNNING")
    yarn.says("what?", "-status", IDS[0])
    with pytest.raises(UnavailableError, match=f"expected {IDS[0]}"):
        yarn.way().hidden(named=IDS[0])


@pytest.mark.parametrize(("finished_s", "remembers"), [(600.0, True), (800.0, False), (0.0, False)])
def test_it_remembers_while_it_shows_an_application_that_ended_before(
    yarn: Fake, finished_s: float, remembers: bool
) -> None:
    rows = [line(ident, "FINISHED", "SUCCEEDED") for ident in reversed(IDS)]
    yarn.lists("", *rows, states="FINISHED,FAILED,KILLED")
    yarn.shows(IDS[0], "FINISHED", finish=str(int(finished_s * 1000)))
    yarn.shows(IDS[1], "FINISHED", finish="N/A")
    yarn.shows(IDS[2], "FINISHED", finish="900000")

    said = yarn.way().keeps_since(1000.0)

    assert (said == "") is remembers
    assert yarn.asked()[1].endswith(IDS[0]), "the oldest is asked first"


def test_what_the_command_cannot_tell_is_said(yarn: Fake) -> None:
    with pytest.raises(UnavailableError, match="shows no tags"):
        yarn.way().of_cluster("mark")
    with pytest.raises(UnavailableError, match=r"and not spark\.hadoop\.yarn\.resourcemanager\.address"):
        yarn.way(**{"spark.hadoop.yarn.resourcemanager.address": "rm:8032"})
