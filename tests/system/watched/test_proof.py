"""The journals of a real cluster prove that each run was launched once, through a death; a forged line is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from coordd.core.wire.journal_line import decode_line, encode_line
from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import ROOT


def verify(cluster: Cluster) -> tuple[int, str, list[dict[str, Any]]]:
    """The exit code, the sentence and the findings of `coordd history verify`."""
    places = [str(node.state_dir) for node in cluster.nodes]
    command = [sys.executable, "-m", "coordd", "history", "verify", "-o", "jsonl", *places]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_cluster_proves_its_takeover_and_a_forged_launch_is_found() -> None:
    with cluster_of(3) as cluster:
        cluster.job("short", "sleep", 0.1, overlap="allow")
        cluster.job("long", "until", cluster.go("long"))
        cluster.start()
        for number in range(6):
            cluster.nodes[number % 3].call("run.trigger", job="short", id=str(number))
        cluster.nodes[0].call("run.trigger", job="long", id="1")
        owner = cluster.owner("long#1")
        for number in range(6):
            cluster.becomes(f"short#{number}", "success")
        owner.kill_family()
        cluster.started("long#1", 1)
        cluster.go("long").touch()
        cluster.becomes("long#1", "success")
        owner.start()
        cluster.meet()
        for node in cluster.nodes:
            node.stop()

        code, sentence, findings = verify(cluster)
        assert code == 0, findings
        assert "no run was launched twice, no attempts overlapped, every chain is whole" in sentence
        assert {finding["severity"] for finding in findings} <= {"notice"}

        place, launch = line_of(cluster, "task-started", "short#3")
        forged = {**launch, "token": launch["token"] + 1, "nonce": "another", "timestamp": launch["timestamp"] + 9}
        with place.open("ab") as file:
            file.write(encode_line(forged))
        code, _, findings = verify(cluster)
        assert code == 1
        (breach,) = [finding for finding in findings if finding["kind"] == "launched_twice"]
        assert breach["run"] == "short#3"
        assert (breach["file"], breach["line"]) == (str(place), len(place.read_bytes().splitlines()))

        place, record = line_of(cluster, "control", "")
        text = place.read_bytes().replace(encode_line(record), encode_line({**record, "uid": 4711}))
        place.write_bytes(text)
        code, _, findings = verify(cluster)
        assert any(finding["kind"] == "chain" and finding["severity"] == "breach" for finding in findings)


def line_of(cluster: Cluster, kind: str, run: str) -> tuple[Path, dict[str, Any]]:
    """The first line of this kind, of that run if one is named."""
    for node in cluster.nodes:
        for path in sorted((node.state_dir / "journal").glob("*.jsonl")):
            for line in path.read_bytes().splitlines():
                record = decode_line(line)
                if record is not None and record["type"] == kind and run in ("", record.get("run")):
                    return path, record
    raise AssertionError(f"no {kind} of {run}")
