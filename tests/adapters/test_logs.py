"""Logs: a form for each destination, no passwords, and no lost line."""

from __future__ import annotations

import array
import io
import json
import os
import pty
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from coordd.adapters import logs
from coordd.adapters.journald import JournalSocket, field_name
from coordd.core.redaction import redact_text

REPOSITORY = str(Path(__file__).parents[2])


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    yield
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class TestJson:
    def test_one_object_a_line(self, stream: io.StringIO) -> None:
        sink = logs.configure(stream)
        log = structlog.get_logger(node="edge-1")
        log.info("election.decided", id="sales@x/0", succession=("a.1", "b.2"), took_s=0.5)
        log.warning("breaker.opened")
        first, second = lines(stream)
        assert first.pop("timestamp").endswith("Z")
        assert first == {
            "level": "info",
            "event": "election.decided",
            "node": "edge-1",
            "id": "sales@x/0",
            "succession": ["a.1", "b.2"],
            "took_s": 0.5,
        }
        assert list(second)[:3] == ["timestamp", "level", "event"]
        assert sink.lines == 2
        assert sink.fallbacks == 0

    def test_the_level_decides_what_is_shown(self, stream: io.StringIO) -> None:
        logs.configure(stream, "warning")
        log = structlog.get_logger()
        log.debug("a")
        log.info("b")
        log.warning("c")
        log.error("d")
        log.critical("e")
        log.log("info", "f")
        log.log("error", "g")
        assert [line["event"] for line in lines(stream)] == ["c", "d", "e", "g"]

    def test_a_logger_that_exists_follows_a_new_configuration(self, stream: io.StringIO) -> None:
        log = structlog.get_logger()
        logs.configure(io.StringIO())
        log.info("there")
        logs.configure(stream)
        log.info("here")
        assert [line["event"] for line in lines(stream)] == ["here"]

    def test_an_exception_is_shown_whole(self, stream: io.StringIO) -> None:
        logs.configure(stream)
        log = structlog.get_logger()
        try:
            raise ValueError("bad amqp://u:hunter2@h/")
        except ValueError as exc:
            log.exception("it.failed")
            log.warning("it.failed", error=exc)
            log.warning("it.failed", exc_info=exc)
        first, second, third = lines(stream)
        assert "Traceback" in first["exception"]
        assert "ValueError: bad amqp://u:***@h/" in first["exception"]
        assert second["error"] == "ValueError: bad amqp://u:***@h/"
        assert third["exception"] == first["exception"]

    def test_every_value_can_be_shown(self, stream: io.StringIO) -> None:
        sink = logs.configure(stream)
        loop: list[Any] = []
        loop.append(loop)
        structlog.get_logger().info(
            "odd",
            nan=float("nan"),
            inf=float("inf"),
            raw=b"\xff",
            loop=loop,
            bad=Unprintable(),
            path=Path("/x"),
            surrogate="\udc80",
            keys={1: 2},
            level="mine",
            timestamp=3,
            many={"x"},
            none=None,
        )
        (line,) = lines(stream)
        assert line["nan"] == "nan"
        assert line["inf"] == "inf"
        assert line["bad"] == "<Unprintable whose repr raised RuntimeError>"
        assert line["keys"] == {"1": 2}
        assert line["level"] == "info"
        assert line["level_"] == "mine"
        assert line["timestamp_"] == 3
        assert sink.fallbacks == 0

    def test_the_context_of_a_task_comes_along(self, stream: io.StringIO) -> None:
        logs.configure(stream)
        structlog.contextvars.bind_contextvars(run="sales#1")
        structlog.get_logger().info("claim.granted")
        assert lines(stream)[0]["run"] == "sales#1"


class TestRedaction:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("amqp://guest:s3cret@mq-1:5672/vhost", "amqp://guest:***@mq-1:5672/vhost"),
            ("redis://:s3cret@h", "redis://:***@h"),
            ("redis://:p@ss:w@rd@h:1/0", "redis://:***@h:1/0"),
            ("redis://:p/ss@h", "redis://:***@h"),
            ("amqp://a:one@h1,amqp://b:two@h2", "amqp://a:***@h1,amqp://b:***@h2"),
            (
                "tried amqp://a:one@h1 and redis://b:two@h2 without success",
                "tried amqp://a:***@h1 and redis://b:***@h2 without success",
            ),
            ("redis://h:6379/0?password=s3cret&x=1", "redis://h:6379/0?password=***&x=1"),
            ("no password=s3cret here", "no password=*** here"),
            ("http://spark-1:8080/app", "http://spark-1:8080/app"),
            ("unix:///run/coordd/bus", "unix:///run/coordd/bus"),
            ("mail to a:b@c", "mail to a:b@c"),
        ],
    )
    def test_of_text(self, text: str, expected: str) -> None:
        assert redact_text(text) == expected

    def test_wherever_it_stands(self, stream: io.StringIO) -> None:
        logs.configure(stream)
        url = "amqp://u:hunter2@h"

        class Connection:
            def __repr__(self) -> str:
                return f"<Connection {url!r}>"

        structlog.get_logger().info(
            f"connected to {url}",
            bus=url,
            tried=[url, {"deep": (url,)}],
            by=Connection(),
            password="hunter2",  # noqa: S106  # the very thing that must not be shown
            nested={"ledger_password": "hunter2"},
            key={url: 1},
            token=7,
        )
        structlog.get_logger().info("again", password="hunter2")  # noqa: S106  # what is known of a name
        assert "hunter2" not in stream.getvalue()
        assert stream.getvalue().count("amqp://u:***@h") == 6
        assert lines(stream)[0]["token"] == 7

    def test_in_the_fall_back_too(self, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
        logs.configure(stream)
        monkeypatch.setattr(logs, "_json_line", None)
        structlog.get_logger().info("connected", bus="amqp://u:hunter2@h")
        assert "hunter2" not in stream.getvalue()
        assert "amqp://u:***@h" in stream.getvalue()


class TestNoLineIsLost:
    def test_a_line_that_cannot_be_rendered_is_written_plainly(
        self, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_args: object) -> str:
            raise RuntimeError("no renderer today")

        sink = logs.configure(stream)
        monkeypatch.setattr(logs, "_json_line", broken)
        structlog.get_logger(node="edge-1").error("lease.lost", run="sales#1", odd=Unprintable())
        assert "lease.lost" in stream.getvalue()
        assert "RuntimeError: no renderer today" in stream.getvalue()
        assert sink.fallbacks == 1
        assert sink.lost == 0

    def test_a_processor_that_fails_costs_no_line(self, stream: io.StringIO) -> None:
        logs.configure(stream)

        def failing(*_args: object) -> Any:
            raise KeyError("site")

        structlog.configure(processors=[failing])
        structlog.get_logger(node="edge-1").info("claim.granted", run="sales#1")
        assert "'claim.granted' {'node': 'edge-1', 'run': 'sales#1'}" in stream.getvalue()

    def test_a_stream_that_is_gone_is_counted_and_never_raised(self) -> None:
        class Gone(io.StringIO):
            def write(self, _text: str) -> int:
                raise BrokenPipeError(32, "Broken pipe")

        sink = logs.configure(Gone())
        log = structlog.get_logger()
        log.info("into the void")
        log.error("into the void", exc_info=ValueError("x"))
        assert sink.lost == 2

    def test_journald_that_is_away_is_replaced_by_stderr(self, stream: io.StringIO, tmp_path: Path) -> None:
        sink = logs.configure(stream, detect=lambda *_: logs.JOURNAL, journal=JournalSocket(str(tmp_path / "nobody")))
        structlog.get_logger().error("lease.lost", run="sales#1")
        assert stream.getvalue().startswith("<3>error 'lease.lost' {'run': 'sales#1'}")
        assert sink.fallbacks == 1


class Journald:
    """journald's end of its socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.settimeout(10.0)
        self.sock.bind(str(path))

    def entry(self) -> dict[str, str]:
        data, ancillary, *_ = self.sock.recvmsg(1 << 20, socket.CMSG_SPACE(4))
        for _level, _kind, fds in ancillary:
            (fd,) = array.array("i", fds[:4])
            with open(fd, "rb") as file:
                file.seek(0)
                data = file.read()
                assert os.fstat(fd).st_nlink == 0
        fields = {}
        while data:
            head, _, data = data.partition(b"\n")
            name, equals, value = head.partition(b"=")
            if not equals:
                (length,) = struct.unpack_from("<Q", data)
                value, data = data[8 : 8 + length], data[8 + length + 1 :]
            fields[name.decode()] = value.decode()
        return fields


class TestJournal:
    @pytest.fixture
    def journald(self, tmp_path: Path) -> Iterator[Journald]:
        made = Journald(tmp_path / "socket")
        yield made
        made.sock.close()

    @pytest.fixture
    def sink(self, journald: Journald, stream: io.StringIO) -> Iterator[logs.Sink]:
        journal = JournalSocket(str(journald.path))
        yield logs.configure(stream, detect=lambda *_: logs.JOURNAL, journal=journal)
        journal.close()

    def test_fields_are_structured(self, journald: Journald, sink: logs.Sink) -> None:
        structlog.get_logger().warning("breaker.opened", job="nightly sales", failures=3, **{"od-d": [1]})
        assert journald.entry() == {
            "MESSAGE": 'breaker.opened job="nightly sales" failures=3 od-d=[1]',
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "coordd",
            "COORDD_EVENT": "breaker.opened",
            "COORDD_JOB": "nightly sales",
            "COORDD_FAILURES": "3",
            "COORDD_OD_D": "[1]",
        }
        assert sink.lines == 1

    def test_lines_and_large_values_pass_whole(self, journald: Journald, sink: logs.Sink) -> None:
        log = structlog.get_logger()
        log.error("x", text="one\nPRIORITY=0\ntwo")
        entry = journald.entry()
        assert entry["COORDD_TEXT"] == "one\nPRIORITY=0\ntwo"
        assert entry["PRIORITY"] == "3"
        log.error("y", text="z" * 3_000_000)
        assert journald.entry()["COORDD_TEXT"] == "z" * 3_000_000
        assert sink.fallbacks == 0

    def test_a_restarted_journald_is_found_again(self, journald: Journald, sink: logs.Sink) -> None:
        structlog.get_logger().info("before")
        journald.sock.close()
        journald.path.unlink()
        again = Journald(journald.path)
        structlog.get_logger().info("after")
        assert again.entry()["MESSAGE"] == "after"
        assert sink.fallbacks == 0
        again.sock.close()

    def test_journald_that_hangs_costs_no_line(
        self, sink: logs.Sink, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("coordd.adapters.journald.SEND_TIMEOUT_S", 0.01)
        log = structlog.get_logger()
        for n in range(300):  # more than the kernel queues; nobody reads
            log.info("line", number=f"-{n}-")
        assert sink.lines + sink.fallbacks == 300
        assert sink.fallbacks > 0
        assert "-299-" in stream.getvalue()

    @pytest.mark.parametrize(
        ("name", "expected"), [("job", "JOB"), ("_secret", "SECRET"), ("ä.b", "B"), ("", "FIELD"), ("x" * 99, "X" * 64)]
    )
    def test_field_names(self, name: str, expected: str) -> None:
        assert field_name(name) == expected


class TestDetection:
    def test_the_journal_when_its_variable_names_stderr(self, tmp_path: Path) -> None:
        with (tmp_path / "err").open("w") as stream:
            stat = os.fstat(stream.fileno())
            assert logs.detect(stream, {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}) == "journal"
            assert logs.detect(stream, {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino + 1}"}) == "json"
            assert logs.detect(stream, {}) == "json"

    def test_a_terminal(self) -> None:
        master, slave = pty.openpty()
        with open(master, "rb"), open(slave, "w") as stream:
            assert logs.detect(stream, {}) == "console"

    def test_no_file_at_all(self, stream: io.StringIO) -> None:
        assert logs.detect(stream, {}) == "json"
        stream.close()
        assert logs.detect(stream, {}) == "json"

    def test_a_site_may_detect_by_itself(self, stream: io.StringIO) -> None:
        logs.configure(stream, detect=lambda _stream, _environ: logs.CONSOLE)
        structlog.get_logger().info("hello", who="you")
        assert stream.getvalue().rstrip().endswith("hello who=you")


class TestConsole:
    def shown(self, stream: io.StringIO) -> str:
        logs.configure(stream, detect=lambda *_: logs.CONSOLE)
        structlog.get_logger().error("lease.lost", run="a b", empty="", n=0.123456789, esc="\x1b[2J")
        return stream.getvalue()

    def test_coloured_unless_told_otherwise(self, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert "\x1b[31merror" in self.shown(stream)

    def test_no_color(self, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "")
        text = self.shown(stream)
        assert "\x1b" not in text  # also not from a value: a log line must not drive the terminal
        assert 'error    lease.lost run="a b" empty="" n=0.123457' in text

    def test_a_traceback_stands_on_lines_of_its_own(self, stream: io.StringIO) -> None:
        logs.configure(stream, detect=lambda *_: logs.CONSOLE)
        structlog.get_logger().error("it.failed", exc_info=ValueError("x"))
        assert stream.getvalue().splitlines()[-1] == "ValueError: x"


def test_logging_leaves_rich_out_of_the_process() -> None:
    script = (
        "import io, sys; from coordd.adapters import logs; import structlog\n"
        "logs.configure(io.StringIO()); structlog.get_logger().info('x')\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('rich', 'pygments')]\n"
        "import rich.table\n"  # a program that needs it can still load it
    )
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": REPOSITORY}, check=True)
