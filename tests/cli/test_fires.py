"""What became of fire times, as people see it: the real command line and a daemon with a SQLite ledger."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from support.fake_daemon import DAEMON, open_directory, write_job

from cli.test_daemon import HELLO, Node, running

SECONDLY = 'schedule = "every 1s"\nstart_within = "2s"\noverlap = "allow"\n' + HELLO
TIMING = "renew_interval = 0.5\nledger_timeout = 0.5\nkill_grace = 1.0\nlease = 30.0"


def decisions(node: Node) -> Counter[str]:
    fires: list[dict[str, Any]] = node.json("job", "fires", "tick")
    times = [fire["fire_time"] for fire in fires]
    assert times == sorted(set(times)), "one line for each fire time"
    return Counter(fire["decision"] for fire in fires)


def test_each_fire_time_has_one_line_and_a_suspension_is_one_span() -> None:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        write_job(directory, "tick", SECONDLY)
        with running(directory, DAEMON, cluster=TIMING) as node:
            node.wait_until(lambda: decisions(node)["launched"] >= 2)
            node.ctl("job", "suspend", "tick")
            node.wait_until(lambda: decisions(node)["suspended"] >= 3)
            table = node.ctl("job", "fires", "tick").stdout
            node.ctl("job", "resume", "tick")
            launched = decisions(node)["launched"]
            node.wait_until(lambda: decisions(node)["launched"] > launched)

            (fire, *_) = [one for one in node.json("job", "fires", "tick") if one["decision"] == "suspended"]
            answer = node.ctl("why", f"tick@{fire['fire_time']}").stdout
            assert "was suspended: the job was suspended until its start_within had passed" in answer.replace("\n", " ")
            run = next(one["run"] for one in node.json("job", "fires", "tick") if one["decision"] == "launched")
            timeline = node.ctl("why", run).stdout
            assert "AT (UTC)" in timeline
            assert "granted" in timeline

            spans = [line for line in table.splitlines() if "the job was suspended" in line]
            assert len(spans) == 1
            assert " to 2" in spans[0]
            missed = node.json("run", "list", "--state", "missed")
            assert missed == []
