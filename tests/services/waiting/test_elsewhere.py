"""`why` of a job whose definition comes from elsewhere than from files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.small_cluster import Cluster, job

from coordd.services.backends.methods import RevisionMethods
from services.waiting.asking import People

WAITS = "The jobs of this node come from redis: revision 11 is in force; 12 waits (coordctl config list)."


@pytest.mark.parametrize("subject", ["sales", "newjob"])
def test_why_asks_the_source_of_the_jobs(subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    people = People(Cluster("a", jobs=[job("sales")]))
    assert "redis" not in people.why(subject)
    source: Any = SimpleNamespace(source=SimpleNamespace(told=lambda name: WAITS if name == subject else ""))
    monkeypatch.setattr(people.methods, "_jobs_from", lambda name: RevisionMethods._jobs_from(source, name))
    assert WAITS in people.why(subject)
    assert "jobs directory" not in people.why(subject)
