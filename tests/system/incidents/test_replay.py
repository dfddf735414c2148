"""A real incident, replayed from the journals that it left; and the same journals after somebody has changed them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from coordd.cli.coordd import program
from coordd.core.wire.journal_line import decode_line, encode_line
from coordd.history.replay.replay import Replayed, replay
from system.lab.cluster import Cluster, cluster_of

RUN = "night#one"


def journals(cluster: Cluster) -> list[str]:
    return [str(node.state_dir / "journal") for node in cluster.nodes]


def told(replayed: Replayed) -> list[tuple[str, str]]:
    """Who wrote which steps about the run."""
    return [(step.record.host, step.record.kind) for step in replayed.steps if step.record.run == RUN]


def changed(cluster: Cluster, to: Path, change: Callable[[dict[str, Any]], None]) -> list[str]:
    """Copies of the journals in which each record of the run went through ``change``; their checksums are right."""
    for node in cluster.nodes:
        place = to / node.name
        shutil.copytree(node.state_dir / "journal", place)
        for path in place.glob("*.jsonl"):
            records = [decode_line(line) for line in path.read_bytes().splitlines(keepends=True)]
            for record in records:
                if record is not None and record.get("run") == RUN:
                    change(record)
            path.write_bytes(b"".join([encode_line(record) for record in records if record]))
    return [str(to)]


def kinds(replayed: Replayed) -> set[str]:
    return {difference.partition(":")[0] for difference in replayed.differences}


def early(record: dict[str, Any]) -> None:
    """The heir waits for no lease."""
    if record["attempt"] == 1 or record["type"] == "task-retried":
        record["timestamp"] -= 6.0
    if record["attempt"] == 1 and "token" in record:
        record["token"] -= 6_000_000


def usurped(record: dict[str, Any]) -> None:
    """The last of the election says it was the first."""
    if record["type"] == "election-decided" and record["attempt"] == 0:
        record["succession"].reverse()


def forged(record: dict[str, Any]) -> None:
    """The heir started under a grant that nobody has given."""
    if record["type"] == "task-started" and record["attempt"] == 1:
        record["token"] += 5


def embellished(record: dict[str, Any]) -> None:
    """The first owner has succeeded after all."""
    if record["type"] == "task-retried":
        record.update(type="task-succeeded", exit_code=0, hostname=record["node"].rpartition(".")[0], reason="")
        record["pid"] = int(record["node"].rpartition(".")[2])


def look_at(replayed: Replayed, cluster: Cluster, owner: str, heir: str) -> None:
    """The whole incident agrees with the rules, and says who lost and who took over."""
    assert replayed.differences == []
    assert replayed.row is not None
    assert (replayed.recorded, replayed.row.state, replayed.row.attempt) == ("success", "success", 1)
    row = cluster.row(RUN)
    assert (replayed.row.token, replayed.row.node) == (row["token"], row["node"])
    steps = told(replayed)
    for step in ("task-received", "task-started"):
        assert [host for host, kind in steps if kind == step] == [owner, heir]
    (lapse,) = [step for step in replayed.steps if step.record.kind == "task-retried"]
    assert f"{owner} wrote its last line" in lapse.said
    assert lapse.rules == "taken: attempt 1 may start"
    elected = [step for step in replayed.steps if step.record.kind == "election-decided"]
    assert {step.record.count("attempt") for step in elected} == {0, 1}
    assert {step.rules for step in elected} <= {"the same, by load class, clock and name", "the same order"}
    assert "the same, by load class, clock and name" in {step.rules for step in elected}


def test_an_owner_that_was_killed_is_replayed_and_a_changed_record_is_named(tmp_path: Path) -> None:
    with cluster_of(3, lease=8.0) as cluster:
        cluster.job("night", "sleep", 2)
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="night", id="one")
        cluster.started(RUN)
        owner = cluster.owner(RUN)
        owner.kill_family()
        cluster.becomes(RUN, "success", limit_s=90.0)
        heir = cluster.owner(RUN, attempt=1)

        look_at(replay(journals(cluster), RUN), cluster, owner.name, heir.name)

        for change, difference in ((early, "lapse"), (usurped, "order"), (forged, "gate"), (embellished, "grant")):
            found = replay(changed(cluster, tmp_path / change.__name__, change), RUN)
            assert difference in kinds(found), (change.__doc__, found.differences)

        result = CliRunner().invoke(
            program, ["history", "replay", RUN, "--journals", str(tmp_path / "early"), "-o", "json"]
        )
        assert result.exit_code == 1, result.output
        (said,) = [one for one in json.loads(result.stdout)["differences"] if one.startswith("lapse: ")]
        assert "current.jsonl:" in said
        assert "a lease of 8.2 s" in said
