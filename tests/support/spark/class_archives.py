"""Real class archives, for tests and benchmarks that start real Spark drivers."""

from __future__ import annotations

import os

import trio

from coordd.adapters.faststart.archive import Archive, archive_of, make_directory
from coordd.adapters.spark import AttemptInfo, SparkDefaults, build, find_java
from coordd.core.jobs.job import Job, SparkSubmit
from coordd.services.faststart.archives import Archives


def real_archive(directory: str) -> Archive:
    """The archive of the Spark of this Python and this machine's Java, made the way a daemon makes it."""
    launch = SparkSubmit("/none.py", fast_start=True)
    attempt = AttemptInfo("j#1", 0, 1, "nonce", "edge-1", 0.0, "", directory)
    program = build(Job(name="j", digest="d", launch=launch), launch, SparkDefaults(), attempt)
    make_directory(directory)
    archive = archive_of(directory, program.argv[0], find_java(program.env), program.env)
    archives = Archives(directory, lambda: [archive])
    trio.run(archives.look)
    assert archives.checks()[0]["state"] == "ok", archives.checks()
    assert os.listdir(directory) == [os.path.basename(archive.path)]
    return archive
