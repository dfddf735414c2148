"""coordd dev, without what only a running cluster needs."""

from __future__ import annotations

import os

import click

from coordd.cli.options import EXIT_FAILED, EXIT_UNAVAILABLE, Failed, failed, say
from coordd.errors import CoorddError

NODES_MAX = 9  # a key of the keyboard for each


@click.command("dev")
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), default=3, show_default=True, help="How many nodes.")
@click.option(
    "--bus",
    type=click.Choice(["unix", "amqp"]),
    default="unix",
    show_default=True,
    help="unix: nothing else is needed, the ledger is a file. amqp: a RabbitMQ and a Redis of its own, with TLS.",
)
@click.option("--dir", "directory", metavar="DIR", help="Where everything is [default: a temporary directory].")
@click.option("--jobs", metavar="DIR", help="Your job files, which stay where they are [default: two examples].")
def dev(nodes: int, bus: str, directory: str | None, jobs: str | None) -> None:
    """A cluster on this machine, until ^C: its nodes, runs and events in a table. Then everything is removed.

    Each node has its socket at DIR/n1/coordd.sock, and its log at DIR/n1/coordd.log. Leases are short (8 s). At a
    terminal the keys 1 to 9 cut the power of a node (its daemon, runners and programs are killed), or start it again.
    """
    from coordd.cli.dev.cluster import Cluster, Ending
    from coordd.cli.dev.screen import show

    if jobs is not None and not os.path.isdir(jobs):
        raise click.BadParameter(f"expected a directory with job files, found none at {jobs}", param_hint="--jobs")
    ending = Ending()
    try:
        cluster = Cluster(nodes, bus, directory, jobs, ending)
    except CoorddError as exc:
        raise failed(exc) from exc
    say(f"coordd dev: everything is in {cluster.place}, and is removed at ^C")
    try:
        cluster.prepare(say)
        cluster.start()
        if not ending.asked():
            say(f"ready: {nodes} nodes; export COORDD_SOCKET={cluster.nodes[0].socket}")
            show(cluster)
    except CoorddError as exc:
        raise failed(exc) from exc
    except OSError as exc:
        raise Failed(f"{exc.filename or cluster.place}: {exc.strerror or exc}", EXIT_UNAVAILABLE) from exc
    finally:
        say("ending all nodes and their runs …")
        left = cluster.close()
        if left:
            raise Failed(f"these processes could not be ended: {sorted(left)}", EXIT_FAILED)
    say("removed")
