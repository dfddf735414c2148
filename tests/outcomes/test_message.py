"""The program of a publisher's run: addresses in turn, expiry, and the fallback after the last call."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from coordd.config.hooks.publisher import EXPIRED, TIME_S, Publisher
from coordd.core.jobs.arguments import fill_launch
from coordd.core.jobs.job import Command, iso
from outcomes.test_files import LIMIT_S, ROOT

IDENT = "hook~publish.p#1"


def environment(
    *to: str,
    attempt: int = 0,
    expires_s: float = 0.0,
    body: str = "hello",
    age_s: float = 0.0,
    socket: str = "",
    **more: Any,
) -> tuple[list[str], dict[str, str]]:
    """The real program and its environment, as the job of a publisher has them."""
    job = Publisher(name="p", to=to, attempts=3, timeout="20s", **more).job(60.0, socket)
    told = json.dumps({"body": body, "kind": "text/plain", "expires_s": expires_s})
    filled = fill_launch(job.launch, {**job.params, "event0": told[:9], "event1": told[9:]})
    assert isinstance(filled, Command)
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COORDD_RUN": IDENT, "COORDD_ATTEMPT": str(attempt)}
    return [sys.executable, *filled.argv[1:]], {**env, **filled.env, "COORDD_FIRE_TIME": iso(time.time() - age_s)}


def published(*to: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """The real program, to its end."""
    argv, env = environment(*to, **more)
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_the_next_address_takes_what_the_first_one_does_not(tmp_path: Path) -> None:
    done = published(
        "amqp://127.0.0.1:1/?queue=q", "redis://127.0.0.1:1?stream=s", f"file://{tmp_path}/lines", body="a\nb"
    )

    assert done.returncode == 0, done.stderr
    assert "amqp://127.0.0.1:1/?queue=q cannot be used" in done.stderr
    assert json.loads((tmp_path / "lines").read_text()) == {"id": IDENT, "body": "a\nb"}


def test_the_fallback_gets_the_message_after_the_last_call_only(tmp_path: Path) -> None:
    fallback = ("/bin/sh", "-c", f"cat > {tmp_path}/kept; echo $COORDD_RUN >> {tmp_path}/kept; exit $1", "x", "0")

    assert published("file:///proc/no/x", attempt=1, fallback=fallback).returncode == 1
    assert not (tmp_path / "kept").exists()
    assert published("file:///proc/no/x", attempt=2, fallback=fallback).returncode == 0
    assert (tmp_path / "kept").read_text() == f"hello\n{IDENT}\n"
    assert published("file:///proc/no/x", attempt=2, fallback=(*fallback[:-1], "4")).returncode == 4


def test_an_expired_message_is_not_sent(tmp_path: Path) -> None:
    to = f"file://{tmp_path}/lines"
    for late in (published(to, age_s=61.0, expires_s=60.0), published(to, age_s=61.0, expires="1m")):
        assert (late.returncode, "has expired: nobody took it within 60 s" in late.stderr) == (EXPIRED, True)
    assert not (tmp_path / "lines").exists()
    assert published(to, age_s=61.0, expires_s=60.0, fallback=("/bin/true",)).returncode == 0
    assert published(to, age_s=61.0, expires="1m", expires_s=6e9).returncode == 0, "the sender's time counts"
    assert "events see" in published("events").stdout


def test_a_message_that_waited_its_whole_time_is_given_up_and_the_fallback_gets_it(tmp_path: Path) -> None:
    to, kept = f"file://{tmp_path}/lines", tmp_path / "kept"
    given_up = published(to, age_s=TIME_S + 1)
    assert (given_up.returncode, given_up.stderr) == (
        EXPIRED,
        "error: it has expired: nobody took it within 604800 s\n",
    )
    assert published(to, age_s=TIME_S + 1, fallback=("/bin/sh", "-c", f"cat > {kept}")).returncode == 0
    assert (kept.read_text(), (tmp_path / "lines").exists()) == ("hello\n", False)
