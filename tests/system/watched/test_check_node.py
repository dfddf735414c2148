"""`coordctl check-node` against real daemons: what a monitoring system sees while a cluster breaks."""

from __future__ import annotations

import signal

from system.lab.cluster import Node, cluster_of
from system.lab.processes import until


def check(node: Node, timeout: str = "10") -> tuple[int, str]:
    done = node.coordctl("check-node", "--timeout", timeout, check=False)
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    return done.returncode, done.stdout


def becomes(node: Node, code: int, text: str) -> None:
    until(lambda: check(node)[0] == code and text in check(node)[1], why=f"{code}: {text}")


def test_the_codes_follow_the_state_of_the_cluster() -> None:
    with cluster_of(2) as cluster:
        cluster.start()
        one, two = cluster.nodes
        becomes(one, 1, "COORDD WARNING - no job is loaded")
        cluster.job_file("quiet", '[command]\nargv = ["/bin/true"]\n')
        for node in cluster.nodes:
            node.call("reload")
        becomes(one, 0, "COORDD OK - ready, 2 nodes alive, 0 runs active | alive=2;;;0 ")
        one.call("node.drain", note="new disks")
        becomes(one, 1, "drained by root: new disks")
        one.call("node.resume")
        becomes(one, 0, "COORDD OK")
        two.kill()
        becomes(one, 2, "it hears none of the other nodes; lost: 1 of the nodes")
        assert check(two)[0] == 2, "nobody answers there"
        one.signal(signal.SIGSTOP)
        code, text = check(one, "0.5")
        one.signal(signal.SIGCONT)
        assert code == 2
        assert "did not answer status within 0.5 s" in text or "no answer within 0.5 s" in text
