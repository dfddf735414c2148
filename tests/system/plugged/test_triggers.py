"""Triggers of packages on real daemons: the example of deploy/plugins, installed by pip, and a bad one."""

from __future__ import annotations

import mailbox
import os
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from plugins.written import installed, written

from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import until
from system.plugged.test_plugins import says


def arrive(box: Path, subject: str) -> None:
    message = EmailMessage()
    message["From"], message["Subject"] = "anna@example", subject
    mailbox.Maildir(box).add(message)


def runs(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    up = next(node for node in cluster.nodes if node.up)
    return [dict(run) for run in up.call("run.list", job=job, limit=100)]


def test_each_arrival_is_one_run_also_if_the_poller_dies(tmp_path: Path) -> None:
    site, bad = installed(tmp_path, "trigger"), written(tmp_path / "bad", "coordd.triggers", "", "loops")
    box = tmp_path / "box"
    mailbox.Maildir(box)
    with cluster_of(2) as cluster:
        for node in cluster.nodes:
            node.env["PYTHONPATH"] = os.pathsep.join(map(str, (site, bad)))
        text = (
            '[[trigger]]\nkind = "{kind}"\npath = "{path}"\nevery = "1s"\ntimeout = "{timeout}"\n'
            'args = {{ subject = "{{trigger.body.subject}}" }}\n'
        )
        for job, kind, timeout in (("mail", "maildir", "60s"), ("stuck", "loops", "1s")):
            path = cluster.jobs_dir / f"{cluster.job(job, 'sleep', 0.1, overlap='allow', params={'subject': ''})}.toml"
            path.write_text(path.read_text() + text.format(kind=kind, path=box, timeout=timeout))
        arrive(box, "first")
        cluster.start()
        until(lambda: [run["state"] for run in runs(cluster, "mail")] == ["success"], why="the first message has a run")
        (first,) = runs(cluster, "mail")
        assert first["args"] == {"subject": "first"}
        shown = cluster.nodes[0].call("trigger.show", job="stuck")
        poller = next(node for node in cluster.nodes if shown["poller"] == node.name)
        until(lambda: "the plug-in loops did not end within 1 s" in says(poller, "trigger stuck/loops")[1])
        assert says(poller, "plug-in maildir") == ("ok", "a trigger of coordd-maildir 1.0")

        shown = cluster.nodes[0].call("trigger.show", job="mail")
        poller = next(node for node in cluster.nodes if shown["poller"] == node.name)
        for number in range(5):
            arrive(box, f"message {number}")
        poller.kill()
        until(
            lambda: (
                sorted(run["args"]["subject"] for run in runs(cluster, "mail") if run["state"] == "success")
                == ["first", *[f"message {number}" for number in range(5)]]
            ),
            why="each message has a run, and one only",
        )
        assert runs(cluster, "stuck") == []
