"""The methods of published revisions, in a real daemon with a real Redis: what they refuse, and what they answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.fake_daemon import DAEMON, ROOT, environment, open_directory, write_job

from cli import test_daemon
from cli.test_daemon import running
from coordd.daemon import STOP_S

JOB = 'schedule = "every 1h"\n[command]\nargv = ["/bin/true"]\n'


def test_a_node_with_job_files_has_no_revisions() -> None:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "j", JOB)
        with running(directory, DAEMON) as node:
            assert node.json("status")["jobs_from"] == {"backend": "files", "problem": None}
            done = node.ctl("config", "list", code=1)
            assert (
                "this node does not take its jobs from published revisions: its [jobs] backend is files" in done.stderr
            )
            assert '[jobs] backend = "redis" on every node' in done.stderr


def test_publish_show_and_roll_back(redis_url: str) -> None:
    with open_directory() as directory:
        section = f'[jobs]\nbackend = "redis"\nurl = "{redis_url}"\n'
        cluster = f'name = "t-{Path(directory).name}"'
        files = Path(directory) / "new"
        files.mkdir()
        (files / "sales.toml").write_text(JOB)
        with running(directory, DAEMON, cluster=cluster, control=section) as node:
            assert node.json("config", "list") == []
            assert "there is no earlier revision" in node.ctl("config", "rollback", code=1).stderr
            made = node.json("config", "publish", str(files), "--note", "first")
            assert (made["number"], made["jobs"], made["added"], made["in_force"]) == (1, 1, ["sales"], 0)
            (files / "stock.toml").write_text(JOB)
            assert node.json("config", "publish", str(files))["added"] == ["stock"]
            assert sorted(node.json("config", "show")["files"]) == ["sales", "stock"]
            assert node.json("config", "show", "1")["files"] == {"sales": JOB}
            assert [job["name"] for job in node.json("job", "list")] == ["sales", "stock"]

            back = node.json("config", "rollback")
            assert (back["number"], back["removed"]) == (3, ["stock"])

            listed = node.json("config", "list")
            assert [(one["number"], one["state"], one["note"]) for one in listed] == [
                (3, "in force", "as revision 1"), (2, "earlier", None), (1, "earlier", "first")
            ]  # fmt: skip
            assert "there is no revision 9" in node.ctl("config", "rollback", "9", code=1).stderr
            (files / "bad.toml").write_text("shedule = 5\n")
            assert "bad.toml:1: shedule" in node.ctl("config", "publish", str(files), code=65).stderr
            told: list[dict[str, Any]] = node.json("audit", "--since", "1h")["records"]
            done = [one["subject"] for one in told if one["method"].startswith("config.") and one["subject"]]
            assert [subject.partition(",")[0] for subject in done] == [
                "revision 1: 1 jobs", "revision 2: 2 jobs", "revision 3: 1 jobs"
            ]  # fmt: skip
            assert "revision 3 is in force" in node.ctl("status").stdout


def test_a_daemon_whose_function_fails_says_so_and_keeps_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_directory() as directory:
        site = Path(directory) / "site_jobs.py"
        section = '[jobs]\nbackend = "python"\ncall = "site_jobs:jobs"\nrefresh = 1.0\n'
        found = {**environment(), "PYTHONPATH": f"{ROOT}:{directory}"}
        monkeypatch.setattr(test_daemon, "environment", lambda: found)
        site.write_text(f"def jobs():\n    return {{'sales': {JOB!r}}}\n")
        with running(directory, DAEMON, control=section) as node:
            assert [job["name"] for job in node.json("job", "list")] == ["sales"]
            site.write_text("def jobs():\n    raise OSError('the table is locked')\n")
            node.wait_until(lambda: bool(node.json("status")["jobs_from"]["problem"]))
            assert "the table is locked; the 1 jobs from before stay" in node.ctl("status").stdout
            (check,) = [one for one in node.json("doctor", code=1) if one["check"] == "jobs"]
            assert check["state"] == "fail"
            assert [job["name"] for job in node.json("job", "list")] == ["sales"]
        with running(directory, DAEMON, control=section) as node:  # the copy
            assert [job["name"] for job in node.json("job", "list")] == ["sales"]


def test_a_daemon_stops_while_its_function_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_directory() as directory:
        site, pid = Path(directory) / "site_jobs.py", Path(directory) / "pid"
        section = '[jobs]\nbackend = "python"\ncall = "site_jobs:jobs"\nrefresh = 1.0\ntimeout = 60.0\n'
        found = {**environment(), "PYTHONPATH": f"{ROOT}:{directory}"}
        monkeypatch.setattr(test_daemon, "environment", lambda: found)
        site.write_text(f"def jobs():\n    return {{'sales': {JOB!r}}}\n")
        with running(directory, DAEMON, control=section) as node:
            lines = ["import os, time", f"open({str(pid)!r}, 'w').write(str(os.getpid()))", "time.sleep(300)"]
            site.write_text("def jobs():\n" + "".join([f"    {line}\n" for line in lines]))
            node.wait_until(lambda: pid.exists() and bool(pid.read_text()))
            node.process.terminate()
            assert node.process.wait(STOP_S + 5.0) == 0
            node.wait_until(lambda: not Path(f"/proc/{pid.read_text()}").exists())
