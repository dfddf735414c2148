"""The runner's spec is made from the granted definition, and from no other."""

from __future__ import annotations

from typing import Any, cast

import pytest
from support.small_cluster import EPOCH, MONO, Lone, job

from coordd.config.sections import Config, LineageConfig
from coordd.core.jobs.job import Job, SparkSubmit
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.lineage import parent_properties
from coordd.core.ready import Launch
from coordd.errors import UnavailableError
from coordd.launching import LaunchBuilder


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ((job(digest="d2", on_lost="hold"),), "was changed .* expected digest d1, found d2"),
        ((), "was removed .* expected digest d1, found no such job"),
    ],
)
def test_a_definition_that_was_changed_since_the_grant_is_not_launched(jobs: tuple[Any, ...], said: str) -> None:
    builder = LaunchBuilder(Config(), Lone(*jobs).node, lambda *_: "/nowhere", cast(Any, None))
    launch = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "n7", EPOCH, "{}", MONO + 58.0, 60.0, digest="d1")

    with pytest.raises(UnavailableError, match=said):
        builder.spec(launch)


@pytest.mark.parametrize(
    ("site", "of_job", "wanted"), [(False, None, False), (True, None, True), (True, False, False), (False, True, True)]
)
def test_a_spark_job_is_told_of_its_parent_if_the_site_or_the_job_says_so(
    site: bool, of_job: bool | None, wanted: bool
) -> None:
    config = Config(lineage=LineageConfig(namespace="prod", spark=site))
    builder = LaunchBuilder(config, Lone().node, lambda *_: "/nowhere", cast(Any, None))
    launch = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "n7", EPOCH, "{}", MONO + 58.0, 60.0, digest="d1")
    spark = Job(name="sales", digest="d1", launch=SparkSubmit("/a.py", lineage=of_job))

    assert builder._parent(spark, launch) == (parent_properties("prod", "sales#1") if wanted else {})
    assert builder._parent(job(), launch) == {}, "no Spark job"
    assert builder._traceparent(launch) == "", "no traces"
