"""Programs that meet an input that fails each time: a later attempt, on any node, skips it until a person says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from coordd import guard
from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import until
from system.test_exec import Exec
from system.test_policies import trigger

# Processes three inputs, and writes which ones it began.
PROGRAM = """
import os, sys
sys.path.insert(0, {root!r})
from coordd.resilience import poisonous
@poisonous(key="{{name}}", attempts=2, skip=True)
def load(name):
    with open({out!r}, "a") as file:
        print(os.environ["COORDD_RUN"], os.environ["COORDD_ATTEMPT"], os.environ["COORDD_NODE"], name, file=file)
    if name == "bad":
        raise ValueError("a spoilt line")
for name in ("a", "bad", "c"):
    load(name)
"""


def begun(cluster: Cluster, run: str) -> list[str]:
    """Attempt and input, in order."""
    lines = [line.split() for line in (cluster.path / "out").read_text().splitlines()]
    return [f"{attempt} {name}" for of, attempt, _, name in lines if of == run]


def nodes_of(cluster: Cluster, run: str) -> list[str]:
    lines = [line.split() for line in (cluster.path / "out").read_text().splitlines()]
    return [node for of, _, node, name in lines if (of, name) == (run, "bad")]


def test_an_input_that_fails_on_two_nodes_is_skipped_by_the_third_attempt_until_it_is_discarded() -> None:
    with cluster_of(2, backend="production") as cluster:
        root, out = str(Path(guard.__file__).parents[1]), str(cluster.path / "out")
        program = cluster.path / "loads.py"
        program.write_text(PROGRAM.format(root=root, out=out))
        argv = [sys.executable, "-I", str(program)]
        table = f'[command]\nargv = {json.dumps(argv)}\n[retry]\nattempts = 3\ndelay = "0s"\n'
        cluster.job_file("loads", 'overlap = "allow"\n' + table)
        one, two = cluster.start().nodes

        first = trigger(one, "loads", "first")
        cluster.becomes(first, "success")
        assert begun(cluster, first) == ["0 a", "0 bad", "1 a", "1 bad", "2 a", "2 c"]
        assert len(set(nodes_of(cluster, first))) == 2, "a retry is on another node"

        (letter,) = two.call("deadletter.list", job="loads")
        assert (letter["kind"], letter["attempts"], letter["run"]) == ("input", 2, first)
        assert letter["reason"] == "bad: ValueError('a spoilt line')"
        assert one.call("deadletter.list") == [letter]
        assert any(
            found["check"] == "poisonous inputs" and "1 of loads" in found["text"] for found in one.call("doctor")
        )

        second = trigger(two, "loads", "second")
        cluster.becomes(second, "success")
        assert begun(cluster, second) == ["0 a", "0 c"]

        two.call("deadletter.discard", id=letter["id"], note="the file is mended")
        until(lambda: not one.call("deadletter.list"))
        third = trigger(one, "loads", "third")
        cluster.becomes(third, "success")
        assert begun(cluster, third) == ["0 a", "0 bad", "1 a", "1 bad", "2 a", "2 c"]

        codes = [Exec(one, "--job", "adhoc", command=argv).code() for _ in range(3)]
        assert codes == [1, 1, 0]
        assert [found["job"] for found in one.call("deadletter.list", job="adhoc")] == ["adhoc"]
