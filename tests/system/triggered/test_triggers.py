"""Triggers of a real cluster on RabbitMQ and Redis: each arrival is one run, also if the node that polls is killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

from system.lab.cluster import Cluster, Node, cluster_of
from system.lab.processes import until

FILES = 12
WORD = "let-me-in"


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in socks]


def appears(directory: Path, *names: str) -> None:
    """Files that are written in place, as many programs do."""
    for name in names:
        (directory / name).write_text(name)


def args_of(cluster: Cluster, job: str) -> Counter[str]:
    """How many runs of the job have ended well with each argument."""
    rows = [row for row in cluster.rows() if row["job"] == job and row["state"] == "success"]
    return Counter(json.loads(row["args"])["what"] for row in rows)


def shown(node: Node, job: str) -> dict[str, Any]:
    found = node.call("trigger.list", job=job)
    assert len(found) == 1
    return dict(found[0])


def called(port: int, key: str) -> dict[str, Any]:
    """POST to a node's route until it answers; the node may have started a moment ago."""

    def post() -> Any:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as made:
            try:
                made.request(
                    "POST",
                    "/call",
                    json.dumps({"what": key}),
                    {"Authorization": f"Bearer {WORD}", "Idempotency-Key": key},
                )
                answer = made.getresponse()
            except OSError:
                return None
            return json.loads(answer.read()) if answer.status == 202 else None

    return dict(until(post, why=f"port {port} takes the call"))


def told_why(node: Node, inbox: Path) -> None:
    """Wait until a node that does not poll says why files have a run or have none."""
    for name, said in (
        (f"{inbox}/link.csv", f"refused it: a link out of {inbox}"),
        (f"{inbox}/0.csv", "the trigger load/file took it; its run is load#file."),
        (f"{inbox}/absent.csv", "did not find it"),
        ("load", "Trigger file (file): polled by "),
    ):
        until(lambda name=name, said=said: said in node.call("why", id=name)["sentence"], why=f"{name}: {said}")  # type: ignore[misc]  # defaults bind the loop's variables


def test_each_file_and_each_end_of_a_run_is_one_run_in_production_also_if_the_poller_dies() -> None:
    with cluster_of(3, backend="production") as cluster:
        inbox = cluster.path / "inbox"
        inbox.mkdir()
        outside = cluster.path / "outside.csv"
        outside.write_text("not yours")
        (inbox / "link.csv").symlink_to(outside)
        appears(inbox, *[f"{number}.csv" for number in range(FILES)])
        cluster.job("load", "sleep", 0.1, overlap="allow", params={"what": ""})
        with (cluster.jobs_dir / "load.toml").open("a") as file:
            file.write(
                f'[[trigger]]\nkind = "file"\npath = "{inbox}/*.csv"\nevery = "1s"\nsettle = "0s"\nmax_open = 50\n'
                'args = { what = "{trigger.name}" }\n'
            )
        cluster.job("then", "sleep", 0.1, overlap="allow", params={"what": ""})
        with (cluster.jobs_dir / "then.toml").open("a") as file:
            file.write(
                '[[trigger]]\nkind = "event"\non = "run.success"\njobs = ["load"]\nargs = { what = "{trigger.run}" }\n'
            )
        secret = cluster.path / "token"
        secret.write_text(f"{WORD}\n")
        secret.chmod(0o600)
        cluster.job("called", "sleep", 0.1, overlap="allow", params={"what": ""})
        with (cluster.jobs_dir / "called.toml").open("a") as file:
            file.write(
                f'[[trigger]]\nkind = "http"\nroute = "/call"\nsecret_file = "{secret}"\n'
                'args = { what = "{trigger.body.what}" }\n'
            )
        ports = dict(zip([node.name for node in cluster.nodes], free_ports(3), strict=True))
        for node in cluster.nodes:
            node.settings = f'[triggers]\nlisten = "127.0.0.1:{ports[node.name]}"\n'
        cluster.start()
        told = [called(ports[node.name], key) for key in ("k1", "k2") for node in cluster.nodes]
        assert [one["durable"] for one in told] == ["ledger"] * 6
        assert len({one["id"] for one in told}) == 2

        first = {f"{number}.csv": 1 for number in range(FILES)}
        until(lambda: args_of(cluster, "load") == first, why="the files that were there are taken")
        poller = until(lambda: shown(cluster.nodes[0], "load")["poller"], why="somebody polls")
        assert {shown(node, "load")["poller"] for node in cluster.nodes} == {poller}
        seen = cluster.nodes[0].call("trigger.show", job="load")
        assert [(one["arrival"], one["reason"]) for one in seen["refused_now"]] == [
            (f"{inbox}/link.csv", f"a link out of {inbox}")
        ]

        other = cluster.others(cluster.node(poller))[0]
        told_why(other, inbox)

        cluster.node(poller).kill()
        second = {f"{number}.csv": 1 for number in range(FILES, 2 * FILES)}
        appears(inbox, *second)
        until(lambda: args_of(cluster, "load") == {**first, **second}, why="another node polls")
        left = cluster.others(cluster.node(poller))
        assert shown(left[0], "load")["poller"] in [node.name for node in left]
        runs = {row["run"]: 1 for row in cluster.rows() if row["job"] == "load"}
        assert len(runs) == 2 * FILES
        assert args_of(cluster, "called") == {"k1": 1, "k2": 1}
        until(lambda: args_of(cluster, "then") == runs, why="each end of load is one run of then")
        assert len([row for row in cluster.rows() if row["job"] == "then"]) == 2 * FILES


def test_each_id_of_a_program_and_of_a_query_is_one_run_also_if_the_poller_dies() -> None:
    with cluster_of(3, backend="production") as cluster:
        printed, database = cluster.path / "printed", cluster.path / "orders.db"
        printed.write_text("")
        db = sqlite3.connect(database)
        db.execute("CREATE TABLE orders (id TEXT)")
        asked = {"by_program": f'kind = "command"\nargv = ["/bin/cat", "{printed}"]\n'}
        query = "SELECT id FROM orders"
        asked["by_query"] = f'kind = "sql"\nurl = "sqlite:///{database}"\nquery = "{query}"\n'
        for job, how in asked.items():
            cluster.job(job, "sleep", 0.1, overlap="allow", params={"what": ""})
            with (cluster.jobs_dir / f"{job}.toml").open("a") as file:
                file.write(f'[[trigger]]\n{how}every = "1s"\nmax_open = 50\nargs = {{ what = "{{trigger.key}}" }}\n')

        def comes(idents: list[str]) -> None:
            with printed.open("a") as file:
                file.writelines(f"{ident}\n" for ident in idents)
            with db:
                db.executemany("INSERT INTO orders VALUES (?)", [(ident,) for ident in idents])

        came = [f"order-{number}" for number in range(2 * FILES)]
        comes(came[:FILES])
        cluster.start()
        for job in asked:
            until(lambda job=job: args_of(cluster, job) == Counter(came[:FILES]), why=f"{job}: what was there is taken")  # type: ignore[misc]  # a default binds the loop's variable
        for job in asked:
            left = [node for node in cluster.nodes if node.up]
            poller = until(lambda job=job, node=left[0]: shown(node, job)["poller"], why="somebody polls")  # type: ignore[misc]  # as above
            if len(left) > 1 and cluster.node(poller) in left:
                cluster.node(poller).kill()
        comes(came[FILES:])
        for job in asked:
            until(lambda job=job: args_of(cluster, job) == Counter(came), why=f"{job}: another node polls")  # type: ignore[misc]  # as above
            assert len([row for row in cluster.rows() if row["job"] == job]) == len(came)
        db.close()
