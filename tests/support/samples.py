"""Valid inputs that several tests start from."""

from __future__ import annotations

from typing import Any

from pamqp import commands, header
from pamqp.body import ContentBody
from pamqp.frame import marshal

from coordd.ports import Kept

# A job file with every key once.
EVERY_KEY = """
description = "several\\nlines"
owner = "data"
schedule = "30 2 * * *"
timezone = "Europe/Berlin"
start = 2026-01-01
end = 2027-01-01T00:00:00Z
jitter = "5m"
blackout = [{ from = 2026-05-01T00:00:00, to = "2026-05-02" }, { cron = "0 0 * * SUN", duration = "24h" }]
misfire = "all"
start_within = "2h"
expect_within = "3d"
overlap = "queue"
on_lost = "hold"
placement = "first"
tags = ["gpu"]
priority = -3
after = { all = ["other"], on = "done", period = "1d", within = "6h" }
timeout = 90
lease = 120
params = { region = "eu", n = 3, full = true }
[spark]
application = "hdfs:///a.jar"
args = ["{region}", "line\\nline", ""]
master = "spark://h1:7077,h2:7077"
deploy_mode = "cluster"
py_files = ["/a.zip"]
files = ["/f#alias"]
jars = ["/j.jar"]
name = "{job} {region}"
keytab = "/k"
principal = "p@R"
env = { A = 1 }
properties_file = "/p.conf"
class = "com.example.Main"
lineage = true
fast_start = false
[spark.conf]
spark.executor.memory = "4g"
"spark.executor.cores" = 2
spark.speculation = true
[retry]
attempts = 3
relaunches = 0
submits = 2
delay = "1m"
backoff = "exponential"
jitter = 0.25
never_on = [2, -9, "OutOfMemory.*"]
[breaker]
after = 2
on = ["failure", "lost", 75, "Connection refused"]
window = "2h"
open_for = "30m"
open_for_max = "12h"
growth = "exponential"
when_open = "fail"
enforce = false
loud = { after = 2, within = "1m", for = "10m" }
[[trigger]]
kind = "file"
name = "drop"
path = "/data/in/*.csv"
settle = "5s"
every = "1m"
max_open = 20
args = { region = "{trigger.name}" }
"""


def frames(*values: Any, channel: int = 1) -> bytes:
    """AMQP frames as bytes."""
    return b"".join([marshal(value, channel) for value in values])


def delivery(body: bytes, key: str = "b.2", exchange: str = "coordd.x", part: int = 100) -> bytes:
    """A message as a broker delivers it."""
    parts = [ContentBody(body[at : at + part]) for at in range(0, len(body), part)]
    return frames(
        commands.Basic.Deliver("tag", 7, False, exchange, key),
        header.ContentHeader(0, len(body), commands.Basic.Properties()),
        *parts,
    )


class KeptInMemory:
    """The copy of the definitions that came from elsewhere; ``saved``: what was written."""

    def __init__(self, kept: Kept | None) -> None:
        self.kept = kept
        self.saved: list[Kept] = []

    def load(self) -> tuple[Kept | None, str]:
        return self.kept, ""

    def save(self, kept: Kept) -> None:
        self.saved.append(kept)


def kept_file(kept: Kept | None = None) -> KeptInMemory:
    return KeptInMemory(kept)
