"""The service of copies: what is copied once, tried again, given up, replayed, and found again after a restart."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from coordd.adapters.disk.copies import SqliteCopies
from coordd.config.sections import HistoryConfig
from coordd.core.wire.events import CopyGivenUp, TaskFailed, TaskSucceeded
from coordd.errors import RefusedError, UnavailableError
from coordd.services.logs.files import log_path
from coordd.services.sinks import service as module
from coordd.services.sinks.files import SINKS
from coordd.services.sinks.service import Sinks

LIMIT_S = 20.0


class Store:
    """A store in memory; ``fails`` is raised instead of each copy."""

    url = "fake://there"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.tries: list[str] = []
        self.fails: Exception | None = None

    def put(self, name: str, paths: Sequence[str], timeout_s: float) -> int:
        assert timeout_s > 0.0
        self.tries.append(name)
        if self.fails is not None:
            raise self.fails
        data = b"".join(Path(path).read_bytes() for path in paths if os.path.exists(path))
        self.files[name] = data
        return len(data)

    def end(self, name: str, limit: int, timeout_s: float) -> bytes:
        if timeout_s <= 0.0 or name not in self.files:
            raise RefusedError(f"there is no {name}", kind="no_copy")
        return self.files[name][-limit:]


class Lab:
    """A node with a disk. Its daemon may end and start again."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.store = Store()
        self.told: list[CopyGivenUp] = []
        self.live: list[tuple[str, int]] = []
        self.driver: Any
        self.runners: Any
        self.sinks = self.daemon()

    def daemon(self) -> Sinks:
        cluster = SimpleNamespace(cluster="prod")
        node = SimpleNamespace(hostname="edge-1", settings=cluster, stamp=lambda: 1)
        self.driver = SimpleNamespace(node=node, listeners=[], tell=self.told.append)
        handles = {
            str(number): SimpleNamespace(ended=False, launch=SimpleNamespace(run=run, attempt=attempt))
            for number, (run, attempt) in enumerate(self.live)
        }
        self.runners = SimpleNamespace(runners=handles)
        copies = SqliteCopies(f"{self.path}/copies.db")
        self.sinks = Sinks(self.driver, self.runners, copies, lambda *_: self.store, self.path)
        return self.sinks

    def log(self, run: str, text: bytes, attempt: int = 0) -> Path:
        path = Path(log_path(f"{self.path}/logs", run, attempt))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        return path

    def ends(self, run: str, *, node: str = "edge-1.3") -> None:
        for listener in self.driver.listeners:
            listener([TaskSucceeded(uuid="u", name=run.partition("#")[0], run=run, node=node)], [])

    def runs(self, *until: Callable[[], object]) -> None:
        """Let the daemon run until each of these is true. Each time trio's clock begins elsewhere, as after a boot."""

        async def main() -> None:
            self.sinks.use(HistoryConfig(log_sink="fake://there", journal_sink="fake://there"))
            # A copy that the end of an earlier run has abandoned never gives its token back.
            self.sinks._threads = {sink: trio.CapacityLimiter(1) for sink in SINKS}
            with trio.fail_after(LIMIT_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.sinks.run)
                    for true in until:
                        while not true():  # no event tells when it becomes true
                            await trio.sleep(0.005)
                    nursery.cancel_scope.cancel()

        trio.run(main)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(module, "LOOK_S", 0.005)
    monkeypatch.setattr(module, "SETTLE_S", 0.0)
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    monkeypatch.setattr(module, "PAUSE_MAX_S", 0.002)
    monkeypatch.setattr(module, "TRIES_MAX", 3)
    return Lab(tmp_path)


def test_the_log_of_an_attempt_is_copied_when_it_ends_and_that_of_a_live_one_is_not(lab: Lab) -> None:
    lab.live.append(("sales#2", 0))
    lab.daemon()
    lab.log("sales#1", b"before the start")
    lab.log("sales#2", b"lives")
    lab.runs(lambda: lab.sinks.counts["log", "copied"] == 1)
    assert lab.store.files == {"prod/edge-1/logs/sales/sales_1.0.log": b"before the start"}
    lab.runners.runners.clear()
    lab.log("sales#2", b"lives no more")
    lab.ends("sales#2")
    lab.ends("other#1", node="edge-2.3")  # what this node found out about another
    lab.runs(lambda: lab.sinks.counts["log", "copied"] == 2)
    assert lab.store.files["prod/edge-1/logs/sales/sales_2.0.log"] == b"lives no more"
    assert len(lab.store.tries) == 2


def test_an_attempt_that_ended_while_the_daemon_was_down_is_copied_and_nothing_twice(lab: Lab) -> None:
    path = lab.log("sales#1", b"one")
    lab.runs(lambda: lab.sinks.counts["log", "copied"])
    lab.log("sales#2", b"two")
    lab.daemon()
    lab.runs(lambda: lab.sinks.counts["log", "copied"])
    assert lab.store.tries == ["prod/edge-1/logs/sales/sales_1.0.log", "prod/edge-1/logs/sales/sales_2.0.log"]
    path.write_bytes(b"one and more")  # the ledger was lost, and the id was used again
    Path(f"{path}.old").write_bytes(b"the older half of ")
    lab.daemon()
    lab.runs(lambda: lab.sinks.counts["log", "copied"])
    assert lab.store.files["prod/edge-1/logs/sales/sales_1.0.log"] == b"the older half of one and more"
    path.unlink()
    Path(f"{path}.old").unlink()
    lab.daemon()
    lab.runs(lambda: lab.sinks._copies.get("log", "logs/sales/sales_1.0.log") is None)
    assert len(lab.store.tries) == 3


def test_closed_segments_are_copied_under_names_that_no_other_life_of_the_node_uses(lab: Lab) -> None:
    journal = Path(lab.path, "journal")
    journal.mkdir()
    for name in ("00000001.jsonl", "current.jsonl", "torn-00000001.bytes"):
        (journal / name).write_bytes(b"first life")
    lab.runs(lambda: lab.sinks.counts["journal", "copied"])
    (journal / "00000001.jsonl").write_bytes(b"second life, after a new disk")
    Path(lab.path, "copies.db").unlink()
    lab.daemon()
    lab.runs(lambda: lab.sinks.counts["journal", "copied"])
    assert sorted(lab.store.files.values()) == [b"first life", b"second life, after a new disk"]
    assert all(name.startswith("prod/edge-1/journal/00000001-") for name in lab.store.files)


def test_a_store_that_answers_503_is_tried_again_then_the_copy_is_given_up_told_and_replayed(lab: Lab) -> None:
    lab.log("sales#1", b"one")
    lab.store.fails = UnavailableError("s3 answered 503: Slow Down")
    lab.runs(lambda: lab.sinks.counts["log", "dead"] == 1)
    assert len(lab.store.tries) == 3
    assert [(one.sink, one.name, one.tries, one.reason) for one in lab.told] == [
        ("log", "logs/sales/sales_1.0.log", 3, "s3 answered 503: Slow Down")
    ]
    assert lab.sinks.problems == {"log": "s3 answered 503: Slow Down"}
    lab.daemon()  # a restart neither forgets it nor tries it again
    lab.runs(lambda: lab.sinks.counts["log", "dead"] == 1)
    assert len(lab.store.tries) == 3
    lab.store.fails = None

    async def replayed() -> None:
        (letter,) = await lab.sinks.letters()
        assert letter == await lab.sinks.letter("log", letter.name)
        await lab.sinks.replay(letter)
        with pytest.raises(RefusedError, match="is not a dead letter"):
            await lab.sinks.letter("log", letter.name)

    trio.run(replayed)
    lab.runs(lambda: lab.sinks.counts["log", "copied"] == 1)
    assert lab.sinks.counts["log", "dead"] == 0
    assert lab.sinks.problems == {}
    assert list(lab.store.files.values()) == [b"one"]


@pytest.mark.parametrize("fails", [TypeError("of a bug"), ValueError("of an answer")])
def test_whatever_a_store_raises_is_tried_again_and_then_a_dead_letter(lab: Lab, fails: Exception) -> None:
    lab.log("sales#1", b"one")
    lab.store.fails = fails
    lab.runs(lambda: lab.sinks.counts["log", "dead"] == 1)
    assert len(lab.store.tries) == 3
    assert f"fake://there: {type(fails).__name__}: of a" in lab.sinks.problems["log"]
    lab.store.fails = UnavailableError("nn answered 500: \ud800")
    lab.log("sales#2", b"two")
    lab.daemon()
    lab.runs(lambda: lab.sinks.counts["log", "dead"] == 2)


def test_a_list_that_fails_in_an_unknown_way_is_a_problem_of_its_sink(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.log("sales#1", b"one")

    def due(*_: object) -> None:
        raise KeyError("of a bug")

    with monkeypatch.context() as broken:
        broken.setattr(lab.sinks._copies, "due", due)
        lab.runs(lambda: lab.sinks.problems.get("log") == "the sink failed: KeyError")
    lab.runs(lambda: lab.sinks.counts["log", "copied"] == 1)


def test_a_file_that_cannot_be_copied_does_not_hold_up_the_others(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        lab.log(f"sales#{number}", b"x")
    whole = lab.store.put

    def put(name: str, paths: Sequence[str], timeout_s: float) -> int:
        if name.endswith("sales_0.0.log"):
            raise RefusedError("this name is refused", kind="refused")
        return whole(name, paths, timeout_s)

    monkeypatch.setattr(lab.store, "put", put)
    lab.runs(lambda: lab.sinks.counts["log", "copied"] == 2 and lab.sinks.counts["log", "dead"] == 1)

    async def discarded() -> None:
        (letter,) = await lab.sinks.letters()
        await lab.sinks.discard(letter)
        assert await lab.sinks.letters() == []

    trio.run(discarded)


def test_a_log_that_is_removed_before_its_copy_is_a_dead_letter_that_says_so(lab: Lab) -> None:
    path = lab.log("sales#1", b"one")
    lab.store.fails = UnavailableError("503")
    lab.runs(lambda: lab.store.tries)
    path.unlink()
    lab.store.fails = RefusedError(f"{path} is gone", kind="gone")  # as the real ones say
    lab.runs(lambda: lab.sinks.counts["log", "dead"] == 1)

    async def replayed() -> None:
        (letter,) = await lab.sinks.letters()
        with pytest.raises(RefusedError, match="nothing to copy any more"):
            await lab.sinks.replay(letter)

    trio.run(replayed)


def test_a_failed_attempt_counts_and_a_list_that_is_damaged_is_made_again(lab: Lab) -> None:
    Path(lab.path, "copies.db").write_bytes(b"not a database" * 1000)
    lab.log("sales#1", b"one")
    for listener in lab.driver.listeners:
        listener([TaskFailed(uuid="u", run="sales#1", node="edge-1.7")], [])
    lab.runs(lambda: lab.store.files)
    assert list(Path(lab.path).glob("copies.db.bad-*"))


def test_no_sink_copies_nothing_and_the_copy_of_another_node_is_read(lab: Lab) -> None:
    lab.store.files["prod/edge-2/logs/sales/sales_1.0.log"] = b"from edge-2"

    async def main() -> None:
        lab.sinks.use(HistoryConfig(log_sink="fake://there"))
        where, data = await lab.sinks.end("edge-2", "sales#1", 0, 6)
        assert (where, data) == ("fake://there: prod/edge-2/logs/sales/sales_1.0.log", b"edge-2")
        with pytest.raises(RefusedError, match="there is no"):
            await lab.sinks.end("edge-3", "sales#1", 0, 6)
        lab.sinks.use(HistoryConfig())
        with pytest.raises(RefusedError, match="no \\[history\\] log_sink"):
            await lab.sinks.end("edge-2", "sales#1", 0, 6)

    trio.run(main)
