"""coordctl shows texts of strangers: a job's output, arguments, names. No escape sequence reaches the terminal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_daemon import CTL, DEADLINE_S, EVENT, ROOT, RUN, FakeDaemon, Stream, environment, open_directory

EVIL = "a\x1b]0;owned\x07b\x9b2Jc\u202etxt\r\x08"


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with open_directory() as directory:
        made = FakeDaemon(f"{directory}/sock")
        text = f"one\r\ntwo {EVIL}\n"
        evil = {**RUN, "reason": EVIL, "args": {"k": EVIL}, "attempts": []}
        made.answers |= {
            "run.logs": lambda params: (
                Stream({"text": text}, {"end": True}) if params.get("follow") else {"text": text}
            ),
            "run.list": [evil],
            "run.show": evil,
            "events.subscribe": Stream({"event": {**EVENT, "reason": EVIL}}, {"end": True}),
            "run.trigger": {"id": "j#1", "argv": ["/bin/echo", EVIL], "dry_run": True},
            "why": {"why": EVIL},
            "status": EVIL,
            "audit": {"records": [{"n": 1, "subject": EVIL}], "chain": {"intact": True, "breaks": []}},
        }
        yield made
        made.close()


def ctl(daemon: FakeDaemon, *args: str) -> str:
    done = subprocess.run(
        [*CTL, *args, "--socket", daemon.path],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return done.stdout.decode()


COMMANDS = (
    ("run", "logs", "j#1"),
    ("run", "logs", "-f", "j#1"),
    ("run", "list"),
    ("run", "show", "j#1"),
    ("events",),
    ("run", "trigger", "j", "--dry-run"),
    ("why", "j#1"),
    ("call", "status"),
    ("call", "run.logs"),
    ("audit",),
)


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_people_see_escape_sequences_written_out(daemon: FakeDaemon, args: tuple[str, ...]) -> None:
    said = ctl(daemon, *args)
    assert [c for c in said if not c.isprintable() and c != "\n"] == []
    assert "owned" in said


@pytest.mark.parametrize("args", [args for args in COMMANDS if args[0] != "call"], ids=" ".join)
def test_programs_get_the_exact_values(daemon: FakeDaemon, args: tuple[str, ...]) -> None:
    said = ctl(daemon, *args, "--output", "jsonl")
    assert [c for c in said if not c.isprintable() and c != "\n"] == []

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from texts(inner)

    found = [text for line in said.splitlines() for text in texts(json.loads(line))]
    assert any(EVIL in text for text in found)


def test_lines_of_a_log_stay_lines(daemon: FakeDaemon) -> None:
    assert ctl(daemon, "run", "logs", "j#1").splitlines()[0] == "one"
