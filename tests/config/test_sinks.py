"""Addresses and commands of sinks: what is taken, and what is refused with its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.written import refused, write
from coordd.config.settings import load

BAD = [
    ('[history]\nlog_sink = "/mnt/logs"\n', "history.log_sink", "expected an address such as file:///mnt/logs"),
    ('[history]\nlog_sink = "file://mnt/logs"\n', "history.log_sink", "an absolute path"),
    ('[history]\nlog_sink = "webhdfs://u:p@nn/x"\n', "history.log_sink", "without user and password"),
    ('[history]\nlog_sink = "webhdfs://nn:x/logs"\n', "history.log_sink", "expected webhdfs://HOST[:PORT]"),
    ('[history]\nlog_sink = "webhdfs://nn/logs?op=X"\n', "history.log_sink", "expected only user.name"),
    ('[history]\njournal_sink = "s3a://x"\n', "history.journal_sink", "s3a:// needs a command"),
    ('[history]\nsink_put = ["aws", "{source}", "{target}"]\n', "history.sink_put", "with its absolute path"),
    ('[history]\nsink_put = ["/usr/bin/env", "{source}"]\n', "history.sink_put", "expected {target}"),
    ('[history]\nsink_put = ["/usr/bin/env", "{target}"]\n', "history.sink_put", "expected {source}"),
    ('[history]\nsink_get = ["/usr/bin/env"]\n', "history.sink_get", "expected {target}"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key", "said"), BAD)
def test_a_sink_that_nothing_can_write_is_refused(tmp_path: Path, text: str, key: str, said: str) -> None:
    found = refused(write(tmp_path / "coordd.toml", text))
    assert key in found
    assert said in found


@pytest.mark.parametrize(
    "text",
    [
        'log_sink = "file:///mnt/logs"',
        'log_sink = "webhdfs://nn/"',
        'journal_sink = "swebhdfs://nn1:9871,nn2/coordd?user.name=coordd"',
        'log_sink = "s3a://b/x"\nsink_put = ["/bin/cp", "{source}", "{target}"]',
        'log_sink = "file:///mnt"\nsink_get = ["/bin/cat", "x/{target}"]',
    ],
)
def test_sinks(tmp_path: Path, text: str) -> None:
    history = load(write(tmp_path / "coordd.toml", f"[history]\n{text}\n"), {}).history
    assert history.log_sink or history.journal_sink
    if "sink_put" in text:
        assert history.sink_put == ("/bin/cp", "{source}", "{target}")
