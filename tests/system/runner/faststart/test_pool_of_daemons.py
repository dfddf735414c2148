"""Daemons prepare servers of Spark Connect ahead of a fire time, and the run of the node that is first takes its own.

A stand-in plays Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path

from system.lab.cluster import cluster_of, fire_time
from system.lab.processes import exists, until

# In place of spark-submit: it says when it started, and for whom it listens.
SERVER = """#!{python}
import os, socket, sys, time
port = int(sys.argv[2].partition("spark.connect.grpc.binding.port=")[2])
listener = socket.create_server(("127.0.0.1", port))
with open({place!r} + "/server-" + str(os.getpid()), "w") as file:
    print(port, time.time(), file=file)
while True:
    listener.accept()[0].close()
"""

APPLICATION = """
import os, socket, sys
port = int(os.environ["SPARK_REMOTE"].removeprefix("sc://localhost:").rstrip("/"))
socket.create_connection(("127.0.0.1", port)).close()
with open({place!r} + "/clients", "a") as file:
    print(os.environ["COORDD_RUN"], port, file=file)
"""


def test_the_run_of_an_elected_node_takes_the_server_that_it_prepared(tmp_path: Path) -> None:
    place = tmp_path / "place"
    home = tmp_path / "spark"
    for directory in (place, home / "bin", home / "jars"):
        directory.mkdir(parents=True)
    (home / "jars" / "spark-connect_2.13-0.jar").touch()
    submit = home / "bin" / "spark-submit"
    submit.write_text(SERVER.format(python=sys.executable, place=str(place)))
    submit.chmod(0o755)
    application = tmp_path / "application.py"
    application.write_text(APPLICATION.format(place=str(place)))

    def servers() -> dict[int, tuple[int, float]]:
        """pid -> (port, when it started, Unix seconds)."""
        found = {}
        for path in place.glob("server-*"):
            if len(words := path.read_text().split()) == 2:
                found[int(path.name.partition("-")[2])] = (int(words[0]), float(words[1]))
        return found

    def prepared() -> tuple[str, int] | None:
        """The first run that had a server which started before its fire time, and that server's pid."""
        for line in (place / "clients").read_text().splitlines() if (place / "clients").exists() else []:
            run, port = line.split()
            for pid, (its, started) in servers().items():
                if its == int(port) and started < fire_time(run):
                    return run, pid
        return None

    with cluster_of(2) as cluster:
        for node in cluster.nodes:
            node.env["SPARK_HOME"] = str(home)
        cluster.job_file(
            "pooled", f'schedule = "every 10s"\n[spark]\napplication = "{application}"\nconnect = "pool"\n'
        )
        cluster.start()
        found = until(prepared, why="a run has a server that was prepared ahead")
        assert found is not None
        run, pid = found
        cluster.becomes(run, "success")
        until(lambda: not exists(pid), why="the server ends with the run")
    until(lambda: not any(exists(pid) for pid in servers()), why="what nobody took ends with the daemons")
