"""Messages of a real Redis start runs of a real cluster, each one once, also if the node that polls is killed."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from typing import Any

from redis import Redis

from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import until

MESSAGES = 12


def args_of(cluster: Cluster, job: str) -> Counter[str]:
    """How many runs of the job have ended well with each argument."""
    rows = [row for row in cluster.rows() if row["job"] == job and row["state"] == "success"]
    return Counter(json.loads(row["args"])["what"] for row in rows)


def add_job(cluster: Cluster, name: str, trigger: str) -> None:
    cluster.job(name, "sleep", 0.1, overlap="allow", params={"what": ""})
    with (cluster.jobs_dir / f"{name}.toml").open("a") as file:
        file.write(f'[[trigger]]\n{trigger}\nargs = {{ what = "{{trigger.body.what}}" }}\n')


def shown(cluster: Cluster, job: str) -> dict[str, Any]:
    node = next(one for one in cluster.nodes if one.up)
    return dict(node.call("trigger.show", job=job))


def test_each_message_is_one_run_in_production_also_if_the_poller_dies() -> None:
    with cluster_of(3, backend="production") as cluster:
        url = cluster.backend.settings()["ledger"]
        add_job(cluster, "entry", f'kind = "redis"\nurl = "{url}"\nstream = "orders"')
        with contextlib.closing(Redis.from_url(url)) as client:

            def send(first: int, last: int) -> None:
                for number in range(first, last):
                    client.xadd("orders", {"what": str(number)})

            send(0, MESSAGES)
            client.xadd("orders", {"nothing": "useful"})
            cluster.start()
            first = {str(number): 1 for number in range(MESSAGES)}
            until(lambda: args_of(cluster, "entry") == first, why="the entries that were there are taken")
            poller = until(lambda: shown(cluster, "entry")["poller"], why="somebody polls")
            seen = until(lambda: (said := shown(cluster, "entry"))["dead"] == 1 and said, why="the bad entry is shown")
            assert "{trigger.body.what}" in seen["dead_last"][0]["reason"]

            cluster.node(poller).kill()
            send(MESSAGES, 2 * MESSAGES)
            both = {str(number): 1 for number in range(2 * MESSAGES)}
            until(lambda: args_of(cluster, "entry") == both, why="another node polls")
            until(
                lambda: (
                    client.xpending("orders", f"coordd:{cluster.backend.settings()['name']}:entry:redis")["pending"]
                    == 0
                ),
                why="all are acknowledged",
            )
        assert len([row for row in cluster.rows() if row["job"] == "entry"]) == 2 * MESSAGES
        assert shown(cluster, "entry")["waiting"] == 0
