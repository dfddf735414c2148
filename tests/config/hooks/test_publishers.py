"""[publish.NAME] in coordd.toml: what is read, refused, and the job that it becomes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from config.written import refused, write
from coordd.config.hooks.publisher import EXPIRED, TIME_S, Publisher
from coordd.config.settings import load
from coordd.core.jobs.job import Command
from coordd.core.jobs.limits import claimed_policy
from coordd.core.ledger.words import BACKOFF_MAX_S

TWO = '[publish.q]\nto = ["amqps://u@mq-1/v?queue=q", "amqps://u@mq-2/v?queue=q"]\nowner = "apps"\nexpires = "1h"\n'


def test_a_destination_and_its_job(tmp_path: Path) -> None:
    config = load(write(tmp_path / "coordd.toml", TWO + 'attempts = 2\nfallback = ["/bin/page", "x"]\n'), {})

    (one,) = config.publishers
    assert (one.name, len(one.to), one.expires) == ("q", 2, "1h")
    job = one.job(60.0)
    assert (job.name, job.owner, job.retry.attempts, job.retry.never_on_codes) == (
        "hook~publish.q",
        "apps",
        2,
        (EXPIRED,),
    )
    assert job.start_within_s > TIME_S + BACKOFF_MAX_S, "a call tells that its time has passed, and the fallback"
    assert isinstance(job.launch, Command)
    assert json.loads(job.launch.env["COORDD_HOOK_SECRET"].replace("{{", "{").replace("}}", "}"))["to"] == list(one.to)
    changed = [
        msgspec.structs.replace(one, **more) for more in ({"timeout": "9s"}, {"fallback": ()}, {"to": ("events",)})
    ]
    assert len({job.digest, *[other.job(60.0).digest for other in changed]}) == 4
    assert msgspec.structs.replace(one, owner="").job(60.0, "/run/msgs.sock").digest == job.digest


def test_messages_go_one_after_the_other_unless_the_destination_says_else(tmp_path: Path) -> None:
    job = load(write(tmp_path / "coordd.toml", TWO), {}).publishers[0].job(60.0)
    assert (job.overlap, job.concurrency) == ("queue", None)
    assert "queue=1000000/first" in claimed_policy(job, "{}", "a").limits, "none that was accepted is rejected"
    job = load(write(tmp_path / "coordd.toml", TWO + "ordered = false\n"), {}).publishers[0].job(60.0)
    assert (job.overlap, job.concurrency and job.concurrency.max) == ("allow", 4)


def test_the_path_of_an_address_is_not_shown(tmp_path: Path) -> None:
    config = load(write(tmp_path / "coordd.toml", '[publish.w]\nto = "https://chat.example/s3cret"\n'), {})

    assert "s3cret" not in json.dumps(config.redacted()["publishers"]) + config.publishers[0].job(60.0).description
    assert isinstance(config.publishers[0], Publisher)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[publish]]\n", "expected [publish.NAME], a table for each destination"),
        ("[publish.a]\n", "publish.a.to: expected an address, or a list of them, found none"),
        ("[publish.a]\nto = []\n", "publish.a.to: expected 1 to 10 addresses, found 0"),
        ('[publish.a]\nto = ["events", "file:///o"]\n', "expected an address that begins with one of"),
        ('[publish.a]\nto = "parquet:///o"\n', "has room for ends of runs only"),
        ('[publish.a]\nto = "redis://localhost?hash=h"\n', "has room for ends of runs only"),
        ('[publish.a]\nto = "amqp://far.example?queue=q"\n', "is not encrypted"),
        ('[publish.a]\nto = "events"\nexpires = "8d"\n', "expected a duration up to 7d"),
        ('[publish.a]\nto = "events"\nfallback = ["page"]\n', "expected a program with its absolute path"),
        ('[publish.a]\nto = "events"\npassword_file = "/nowhere"\n', "/nowhere: it cannot be read"),
        ('[publish."a b"]\nto = "events"\n', "expected 1 to 64 of the characters"),
        ('[publish.a]\nto = "events"\nqueue = "q"\n', 'unknown key "queue"'),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in refused(write(tmp_path / "coordd.toml", text))
