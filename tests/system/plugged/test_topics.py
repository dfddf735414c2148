"""Topics of packages on a real daemon: the example of deploy/plugins, installed by pip, and bad ones."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from plugins.written import installed, written

from system.lab.cluster import cluster_of
from system.plugged.test_plugins import says
from system.test_policies import trigger

TOPICS = """
def raises(of):
    raise ValueError("it is Friday")

def loops(of):
    while True:
        pass
"""


def test_a_run_does_what_a_package_brings_in_its_own_process(tmp_path: Path) -> None:
    site, bad = installed(tmp_path, "topic"), written(tmp_path / "bad", "coordd.topics", TOPICS, "raises", "loops")
    data, to = tmp_path / "data", tmp_path / "to"
    data.mkdir()
    to.mkdir()
    (data / "orders.csv").write_text("1,2\n")
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        node.env["PYTHONPATH"] = os.pathsep.join(map(str, (site, bad)))
        args = f'args = {{ path = "{{path}}", to = "{to}" }}\n'
        cluster.job_file("pack", f'params = {{ path = "{data}" }}\n[topic]\nname = "tarball"\n{args}')
        cluster.job_file("raises", '[topic]\nname = "raises"\n')
        cluster.job_file("loops", 'timeout = "1s"\n[topic]\nname = "loops"\n')
        cluster.start()
        cluster.becomes(trigger(node, "pack", "one"), "success")
        (path,) = to.iterdir()
        with tarfile.open(path) as file:
            assert "./orders.csv" in file.getnames()
        cluster.becomes(trigger(node, "raises", "one"), "failure")
        assert "ValueError: it is Friday" in "".join(node.call("run.show", id="raises#one")["log_tail"])
        cluster.becomes(trigger(node, "loops", "one"), "failure")
        assert "timeout" in cluster.row("loops#one")["reason"]
        assert says(node, "plug-in tarball") == ("ok", "a topic of coordd-tarball 1.0")
        assert node.call("job.show", job="pack")["command"]["topic"] is True
