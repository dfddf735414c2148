"""The definition of a job that counts, as people see it: the real command line, and a daemon that lost its memory."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fake_daemon import DAEMON, open_directory, write_job

from cli.test_daemon import HELLO, Node, running

FIRST = 'schedule = "0 2 * * *"\n' + HELLO
SECOND = 'schedule = "0 3 * * *"\n' + HELLO

# Sweeps, and so the news of definitions, come soon.
TIMING = "renew_interval = 0.5\nledger_timeout = 0.5\nkill_grace = 1.0\nlease = 30.0"


def kept(directory: str) -> dict[str, Any]:
    """What the node remembers of its definitions."""
    try:
        found: dict[str, Any] = json.loads(Path(directory, "state/definitions.json").read_bytes())["jobs"]
    except (OSError, ValueError):
        return {}
    return found


def number(node: Node) -> int:
    """The place of the definition that this node had last; 0: it remembers none."""
    return int(kept(node.directory).get("nightly", ("", 0))[1])


def logged(directory: str, event: str) -> list[dict[str, Any]]:
    with open(f"{directory}/log") as file:
        lines = [json.loads(line) for line in file if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def problems(node: Node) -> list[str]:
    return list({job["name"]: job for job in node.json("job", "list")}["nightly"]["problems"])


def counts(node: Node) -> bool:
    status = node.json("status")
    return not status["stale_jobs"] and number(node) > 0


def test_a_definition_is_stale_after_the_memory_was_lost_and_a_person_activates_it() -> None:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "nightly", FIRST)
        with running(directory, DAEMON, cluster=TIMING) as node:
            node.wait_until(lambda: number(node) == 1)
            write_job(directory, "nightly", SECOND)
            node.ctl("reload")
            node.wait_until(lambda: number(node) == 2)
            assert problems(node) == []

        os.unlink(f"{directory}/state/definitions.json")
        write_job(directory, "nightly", FIRST)  # as a backup of the machine has it
        with running(directory, DAEMON, cluster=TIMING) as node:
            node.wait_until(lambda: node.json("status")["stale_jobs"] == ["nightly"])
            node.wait_until(lambda: "number 2" in " ".join(problems(node)))
            advice = "coordctl job activate nightly"
            assert "another definition of it counts since (number 2)" in node.ctl("job", "list").stdout
            assert advice in node.ctl("job", "list").stdout
            assert advice in node.ctl("why", "nightly").stdout
            assert "stale here: nightly" in node.ctl("status").stdout

            told = node.ctl("job", "activate", "nightly").stdout
            assert told.startswith("nightly: the definition ")
            assert told.endswith(" counts (number 3)\n")

            node.wait_until(lambda: counts(node))
            assert number(node) == 3
            assert problems(node) == []
            assert "stale" not in node.ctl("status").stdout
            assert advice not in node.ctl("why", "nightly").stdout
            assert node.json("job", "activate", "nightly")["sequence"] == 3  # once more changes nothing

        with running(directory, DAEMON, cluster=TIMING) as node:  # and it is remembered
            node.wait_until(lambda: node.json("ledger", "status")["rules"] == {"in_force": 2, "held_back_by": []})
            assert counts(node)
            assert {check["check"]: check["state"] for check in node.json("doctor")}["rules"] == "ok"


@pytest.mark.parametrize(
    "content",
    [
        b'{"jobs": {"nigh',
        b'{"jobs": {"nightly": ["d", Infinity, 0]}}',
        b'{"jobs": {"nightly": ["d", 1000000000000000000000000000000, 0]}}',
        b'{"jobs": {"nightly": ["d", 7, NaN]}}',
        b'{"jobs": {"nightly": 1}}',
        b'{"jobs": {"nightly": ["d", 7, 1' + b"0" * 400 + b"]}}",
    ],
)
def test_a_memory_that_is_broken_stops_no_start_and_is_kept_for_people(content: bytes) -> None:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "nightly", FIRST)
        with running(directory, DAEMON, cluster=TIMING) as node:
            node.wait_until(lambda: number(node) == 1)
        Path(directory, "state/definitions.json").write_bytes(content)

        with running(directory, DAEMON, cluster=TIMING) as node:
            node.wait_until(lambda: counts(node))  # the ledger knows it
            assert number(node) == 1
            assert problems(node) == []
        (line,) = logged(directory, "definitions.not_readable")
        assert f"{directory}/state/definitions.json is not readable" in line["reason"]
        assert "this node has forgotten its definitions" in line["reason"]
        aside = Path(directory, "state/definitions.json.bad-1")
        assert f"kept as {aside}" in line["reason"]
        assert aside.read_bytes() == content


def test_a_memory_that_is_no_file_at_all_stops_no_start() -> None:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        os.makedirs(f"{directory}/state/definitions.json")
        write_job(directory, "nightly", FIRST)
        with running(directory, DAEMON, cluster=TIMING) as node:
            node.wait_until(lambda: bool(logged(directory, "job.activated")))
            assert node.json("status")["stale_jobs"] == []
        assert [line["reason"].split(";")[0] for line in logged(directory, "definitions.not_readable")] == [
            f"{directory}/state/definitions.json is not readable (Is a directory)"
        ]
        assert len(logged(directory, "state.not_saved")) == 1


def full_once(directory: str) -> Callable[[], None]:
    """The disk is full at the first write of the node's memory, and has room later."""
    os.symlink("/dev/full", f"{directory}/state/definitions.json.new")
    return lambda: None


def full_until_mended(directory: str) -> Callable[[], None]:
    os.mkdir(f"{directory}/state/definitions.json.new")
    return lambda: os.rmdir(f"{directory}/state/definitions.json.new")


@pytest.mark.parametrize(("fill", "words"), [(full_once, "No space left"), (full_until_mended, "Is a directory")])
def test_a_memory_that_the_disk_does_not_take_is_told_and_written_once_it_does(
    fill: Callable[[str], Callable[[], None]], words: str
) -> None:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        os.makedirs(f"{directory}/state")
        write_job(directory, "nightly", FIRST)
        mend = fill(directory)
        with running(directory, DAEMON, cluster=TIMING) as node:
            node.wait_until(lambda: bool(logged(directory, "state.not_saved")))
            assert node.json("status")["stale_jobs"] == []
            assert problems(node) == []
            mend()
            node.wait_until(lambda: number(node) == 1)  # though nothing has changed since
        (line,) = logged(directory, "state.not_saved")
        assert f"cannot write {directory}/state/definitions.json: {words}" in line["reason"]


def test_a_plan_reads_the_configuration_of_the_node_and_says_what_it_cannot_judge(tmp_path: Path) -> None:
    """A job that names a pool of coordd.toml was shown as removed."""
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "pooled", 'schedule = "0 2 * * *"\npool = "etl"\n' + HELLO)
        write_job(directory, "plain", HELLO)
        with running(directory, DAEMON, control="[pools]\netl = 1\n") as node:
            new = tmp_path / "new"
            shutil.copytree(f"{directory}/jobs.d", new)
            file = f"{directory}/coordd.toml"
            same = node.ctl("plan", str(new), "--config", file, "-o", "json")
            assert {one["job"]: one["change"] for one in json.loads(same.stdout)} == {"plain": "same", "pooled": "same"}
            assert same.stderr == ""

            (new / "plain.toml").write_text('pool = "none"\n' + HELLO)
            wrong = node.ctl("plan", str(new), "--config", file, code=65)
            assert re.search(r"^plain +wrong ", wrong.stdout, re.MULTILINE)
            assert wrong.stderr.count('there is no pool "none"') == 1
            assert "0 jobs of 2 would change; 1 file cannot be judged" in wrong.stderr

            without = node.ctl("plan", str(new), "--config", f"{directory}/absent.toml", code=65)
            assert re.search(r"^pooled +wrong ", without.stdout, re.MULTILINE)
            assert f"{directory}/absent.toml: it cannot be read" in without.stderr
            assert "the node's configuration cannot be read" in without.stderr

            other = tmp_path / "other.toml"
            other.write_text(Path(file).read_text().replace(node.socket, f"{tmp_path}/another.sock"))
            assert "is of another node" in node.ctl("plan", str(new), "--config", str(other), code=65).stderr
