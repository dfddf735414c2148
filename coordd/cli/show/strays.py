"""`coordctl orphans`: the columns of applications without a run, and of runs without an application."""

from __future__ import annotations

from coordd.cli.show.tables import Column, node, state, text

STRAYS = (
    Column("APPLICATION", text("id"), whole=True),
    Column("RUN", text("run")),
    Column("NAME", text("name"), spare=2),
    Column("ATTEMPT", text("attempt"), right=True, spare=3),
    Column("ON", text("place"), spare=1),
    Column("PROBLEM", text("problem")),
)

LONELY = (
    Column("RUN", text("id"), whole=True),
    Column("STATE", state(), whole=True),
    Column("NODE", node, spare=1),
    Column("APPLICATION", text("application_id")),
    Column("PROBLEM", text("problem")),
)
