"""When a published revision comes into force, and what a node says while it does not."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from support.samples import kept_file

from coordd.config import tables
from coordd.config.jobfile import JobSet
from coordd.config.sections import Config, JobsConfig
from coordd.core.jobs.job import jobs_digest
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Adopt
from coordd.core.ledger.revision.text import GONE, InForce
from coordd.core.ledger.rows import REVISION, Hold
from coordd.core.ledger.words import BAD
from coordd.core.members.membership import ALIVE, LEFT, LOST, SUSPECT
from coordd.core.node.definitions import Had
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Kept, Published, Vote
from coordd.services.backends import published
from coordd.services.backends.methods import RevisionMethods
from coordd.services.backends.published import PublishedSource
from coordd.services.control.lookups import Lookups

SALES = 'schedule = "every 1h"\n[command]\nargv = ["/bin/true"]\n'
STOCK = 'schedule = "every 2h"\n[command]\nargv = ["/bin/true"]\n'
OF_ANOTHER_POOL = 'schedule = "every 2h"\npool = "none-here"\n[command]\nargv = ["/bin/true"]\n'
WRONG = "its MAC is wrong"
CONFIG = Config(jobs=JobsConfig(backend="redis"))


class Store:
    """The store in memory; ``away``: why it does not answer, or what it raises."""

    url = "redis://h/0"

    def __init__(self) -> None:
        self.revisions: dict[int, Published] = {}
        self.said: dict[int, dict[str, Vote]] = {}
        self.away: str | Exception = ""

    def _look(self) -> None:
        if isinstance(self.away, Exception):
            raise self.away
        if self.away:
            raise UnavailableError(self.away)

    def listed(self) -> list[Published]:
        self._look()
        return [self.revisions[number]._replace(texts=None) for number in sorted(self.revisions, reverse=True)]

    def newest(self) -> int:
        self._look()
        return max(self.revisions, default=0)

    def read(self, number: int) -> Published:
        self._look()
        return self.revisions[number]

    def vote(self, number: int, member: str, said: Vote) -> None:
        self._look()
        self.said.setdefault(number, {})[member] = said

    def votes(self, number: int) -> dict[str, Vote]:
        return dict(self.said.get(number, {}))

    def publish(self, texts: dict[str, str], digest: str, seal: Any, *, above: int, **who: Any) -> Published:
        number = max(above, self.newest()) + 1
        self.revisions[number] = Published(number, digest, at=0.0, jobs=len(texts), texts=texts, **who)
        return self.revisions[number]


class Lab:
    """One node with a store and a ledger that only counts revisions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kept: Kept | None = None) -> None:
        self.now = 1000.0
        monkeypatch.setattr(published, "boottime", lambda: self.now)
        self.store, self.file = Store(), kept_file(kept)
        self.used: list[JobSet] = []
        self.asked: list[Adopt] = []
        self.node = SimpleNamespace(
            state="ready", full_hostname="n1.1", hostname="n1", members={}, braked="", look_again="look_again",
            drains=SimpleNamespace(holds={}), settings=SimpleNamespace(heartbeat_interval_s=1.0),
            rulebook=SimpleNamespace(definitions=SimpleNamespace(had={})),
        )  # fmt: skip
        self.driver: Any = SimpleNamespace(node=self.node, bus=SimpleNamespace(state="connected"), feed=lambda *_: None)
        self.verdict = self.refuses = ""
        self.source = PublishedSource(CONFIG, self.file, self.store, lambda *_: ("", ""), self.verify)  # type: ignore[arg-type]  # the store has what the source calls
        self.source.attach(self.used.append, self.driver, self)  # type: ignore[arg-type]  # a ledger that can write
        self.source.start()

    def verify(self, _: Published, named: bool) -> str:
        """``verdict`` and, if it is not "wrong", only as long as nobody names the number."""
        return "" if named and self.verdict != WRONG else self.verdict

    async def write(self, request: Adopt) -> Answer:
        self.asked.append(request)
        if self.refuses:
            return Answer(BAD, by=self.refuses)
        self.in_force(request.number, request.digest)
        return Answer("ok", token=request.number)

    def in_force(self, number: int, digest: str) -> None:
        self.node.drains.holds = {REVISION: Hold(by="ann", note=InForce(number, digest).text())}

    def member(self, name: str, state: str = ALIVE) -> None:
        self.node.members[name] = SimpleNamespace(name=f"{name}.1", hostname=name, state=state)

    def publish(self, **texts: str) -> Published:
        made, _ = trio.run(lambda: self.source.publish(texts, by="ann", uid=7, note=""))
        return made

    def look(self, times: int = 3) -> None:
        for _ in range(times):
            trio.run(self.source.look)
            self.now += published.LOOK_S

    def agrees(self, number: int, name: str, problem: str = "") -> None:
        jobs = tables.read(self.store.revisions[number].texts, "x", CONFIG).jobs
        self.store.vote(number, f"{name}.1", Vote(problem, "" if problem else jobs_digest(jobs)))


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(monkeypatch)


def test_a_lone_node_puts_a_revision_in_force_and_takes_it(lab: Lab) -> None:
    lab.publish(sales=SALES)
    lab.look()

    (asked,) = lab.asked
    assert (asked.number, asked.replaces, asked.by, asked.uid) == (1, 0, "ann", 7)
    assert asked.jobs.startswith("sales ")
    assert [set(jobs.jobs) for jobs in lab.used] == [{"sales"}]
    assert lab.file.saved[-1].number == 1
    assert lab.source.problem == ""


def test_a_job_that_the_next_revision_lacks_is_gone(lab: Lab) -> None:
    lab.publish(sales=SALES, stock=STOCK)
    lab.look()
    lab.publish(sales=SALES)
    lab.look()

    assert [line.split()[0] for line in lab.asked[-1].jobs.splitlines()] == ["sales"]  # the ledger withdraws the rest
    assert set(lab.used[-1].jobs) == {"sales"}


def test_every_member_that_is_there_must_agree(lab: Lab) -> None:
    for name, state in (("n2", ALIVE), ("n3", SUSPECT), ("n4", LOST), ("n5", LEFT)):
        lab.member(name, state)
    number = lab.publish(sales=SALES).number
    lab.agrees(number, "n2")
    lab.look()
    assert lab.asked == []
    assert lab.source.problem == ""  # n3 has time to say it
    assert 'n3 has not said that it can use it (is its [jobs] backend "redis"?)' in lab.source.waits

    lab.look(10)
    assert "revision 1 is not put in force: n3 has not said" in lab.source.problem
    lab.agrees(number, "n3")
    lab.look()

    assert len(lab.asked) == 1
    assert lab.source.problem == ""


def test_a_member_that_cannot_read_it_keeps_the_old_one_in_force(lab: Lab) -> None:
    lab.publish(sales=SALES)
    lab.look()
    lab.member("n2")
    number = lab.publish(sales=STOCK).number
    lab.agrees(number, "n2", problem="sales.toml:3: no such pool")
    lab.look()

    assert len(lab.asked) == 1
    assert "revision 2 is not put in force: n2 cannot use it: sales.toml:3: no such pool" in lab.source.problem
    assert "revision 1 stays in force; correct it and publish again, or coordctl config rollback" in lab.source.problem
    (check,) = lab.source.checks()
    assert (check["state"], check["text"]) == ("fail", lab.source.problem)
    lab.publish(sales=SALES)
    lab.agrees(3, "n2")
    lab.look()
    assert lab.source.problem == ""


def test_why_tells_which_revision_is_in_force_and_what_the_next_one_would_do(lab: Lab) -> None:
    """It spoke of a jobs directory, or of the old definition as if nothing was to come."""
    none = "The jobs of this node come from redis: no revision is in force (coordctl config list)."
    assert lab.source.told("sales") == none
    lab.publish(sales=SALES, rates=SALES)
    lab.look()
    in_force = "The jobs of this node come from redis: revision 1 is in force"
    assert lab.source.told("sales") == ""
    assert lab.source.told("stock") == f"{in_force} (coordctl config list)."
    lab.member("n2")
    number = lab.publish(sales=STOCK, stock=STOCK, gone=SALES, same=SALES).number
    lab.agrees(number, "n2", problem="no such pool")
    lab.look()
    why = "n2 cannot use it: no such pool (coordctl config list)."
    assert lab.source.told("sales") == f"{in_force}; 2 waits, which changes sales: {why}"
    assert lab.source.told("stock") == f"{in_force}; 2 waits, which has stock: {why}"
    assert lab.source.told("rates") == f"{in_force}; 2 waits, which has no rates: {why}"
    texts = {"sales": SALES, "rates": OF_ANOTHER_POOL}
    lab.store.publish(texts, tables.digest_of(texts), None, above=0, by="ann", uid=7, note="")
    lab.look()
    assert lab.source.told("sales") == "", "it does not change it"
    assert lab.source.told("rates").startswith(f"{in_force}; 3 waits, in which rates is wrong: n1 cannot use it: ")


def test_why_tells_that_the_store_is_away_or_that_another_revision_is_in_force(lab: Lab) -> None:
    lab.publish(sales=SALES)
    lab.look()
    lab.store.away = "redis://h/0: refused"
    lab.look()
    assert lab.source.told("sales") == ""
    assert "revision 1 is in force; redis://h/0: refused; revision 1 stays (" in lab.source.told("stock")
    lab.in_force(2, "other")
    assert "revision 2 is in force, and this node has revision 1; " in lab.source.told("sales")


def test_members_that_read_other_definitions_do_not_agree(lab: Lab) -> None:
    lab.member("n2")
    number = lab.publish(sales=SALES).number
    lab.store.vote(number, "n2.1", Vote("", "other"))
    lab.look()

    assert lab.asked == []
    assert "n2 reads other definitions from it than n1: are coordd and tzdata the same on both?" in lab.source.problem


@pytest.mark.parametrize("what", ["braked", "disconnected"])
def test_a_node_that_may_not_know_all_members_puts_nothing_in_force(lab: Lab, what: str) -> None:
    lab.node.braked = "first start" * (what == "braked")
    lab.driver.bus.state = "disconnected" if what == "disconnected" else "connected"
    lab.publish(sales=SALES)
    lab.look(5)
    assert lab.asked == []

    lab.node.braked, lab.driver.bus.state = "", "connected"
    lab.look()

    assert len(lab.asked) == 1


def test_a_node_that_is_behind_takes_the_one_in_force_before_it_asks_for_the_next(lab: Lab) -> None:
    lab.publish(sales=SALES)
    lab.store.publish({"stock": STOCK}, tables.digest_of({"stock": STOCK}), None, above=1, by="b", uid=0, note="")
    lab.in_force(1, lab.store.revisions[1].digest)
    lab.look()

    assert [set(jobs.jobs) for jobs in lab.used] == [{"sales"}, {"stock"}]
    assert (lab.asked[0].number, lab.asked[0].replaces) == (2, 1)


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_node_that_cannot_use_the_one_in_force_puts_the_next_one_in_force(lab: Lab, spoilt: bool) -> None:
    """The nodes that could use it are gone. The ledger withdraws its jobs."""
    lab.publish(sales=SALES)
    lab.look()
    texts = {"sales": SALES, "stock": STOCK, "other": OF_ANOTHER_POOL}
    lab.store.publish(texts, tables.digest_of(texts), None, above=1, by="b", uid=0, note="")
    lab.in_force(2, lab.store.revisions[2].digest)
    if spoilt:
        lab.store.revisions[2] = lab.store.revisions[2]._replace(digest="0123456789abcdef")
    lab.look()
    assert "revision 2 is in force, and this node cannot use it" in lab.source.problem
    lab.publish(sales=SALES)
    lab.look()

    assert (lab.asked[-1].number, lab.asked[-1].replaces) == (3, 2)
    assert lab.file.saved[-1].number == 3
    assert lab.source.problem == ""


def test_a_revision_with_a_wrong_digest_is_not_taken(lab: Lab) -> None:
    lab.publish(sales=SALES)
    lab.in_force(1, "0123456789abcdef")
    lab.look()

    assert lab.used == []
    assert "the ledger names the digest 0123456789ab, and the store has" in lab.source.problem
    assert "it keeps nothing, and opens no changed job by schedule" in lab.source.problem


def test_texts_that_were_changed_in_the_store_are_not_taken(lab: Lab) -> None:
    lab.publish(sales=SALES)
    lab.store.revisions[1] = lab.store.revisions[1]._replace(texts={"sales": STOCK})
    lab.look()

    assert lab.asked == []
    assert "its texts do not have its digest" in lab.source.problem


def test_a_revision_that_nobody_of_the_cluster_sealed_is_not_taken(lab: Lab) -> None:
    lab.publish(sales=SALES)
    lab.verdict = WRONG
    lab.look()

    assert lab.asked == []
    assert "n1 cannot use it: its MAC is wrong" in lab.source.problem


def test_a_store_that_is_away_leaves_what_is_there(lab: Lab) -> None:
    lab.publish(sales=SALES)
    lab.look()
    lab.store.away = "the revisions at redis://h/0: timed out"
    lab.look()

    assert lab.source.problem == "the revisions at redis://h/0: timed out; revision 1 stays"
    assert set(lab.source.jobs.jobs) == {"sales"}
    lab.store.away = ""
    lab.look()
    assert lab.source.problem == ""


def test_what_nobody_thought_of_is_named_and_the_daemon_goes_on(lab: Lab) -> None:
    lab.publish(sales=SALES)
    lab.look()
    lab.store.away = OverflowError("cannot convert float infinity to integer")
    lab.look()

    assert lab.source.problem.startswith("redis://h/0: cannot use what it holds: OverflowError('cannot convert")
    assert set(lab.source.jobs.jobs) == {"sales"}
    lab.store.away = ""
    lab.look()
    assert lab.source.problem == ""


def test_a_start_without_the_store_uses_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch, Kept("redis://h/0", {"sales": SALES}, 4, "d4"))
    lab.store.away = "the revisions at redis://h/0: refused"
    lab.in_force(4, "d4")
    lab.look()

    assert set(lab.source.jobs.jobs) == {"sales"}
    assert lab.source.view()["revision"] == 4
    assert lab.source.problem == "the revisions at redis://h/0: refused; revision 4 stays"


def test_a_ledger_that_forgot_is_told_the_newest_revision_again(lab: Lab) -> None:
    digest = lab.publish(sales=SALES).digest
    lab.look()
    lab.node.drains.holds = {}
    lab.look()

    assert [(one.number, one.digest, one.replaces) for one in lab.asked] == [(1, digest, 0)] * 2
    assert len(lab.used) == 1


@pytest.mark.parametrize("how", ["refused", "emptied", "away"])
def test_a_ledger_that_forgot_is_told_what_this_node_has_if_nothing_newer_comes(lab: Lab, how: str) -> None:
    digest = lab.publish(sales=SALES).digest
    lab.look()
    lab.member("n2")
    if how == "refused":
        lab.agrees(lab.publish(sales=STOCK).number, "n2", problem="no")
    elif how == "emptied":
        lab.store.revisions.clear()
    else:
        lab.store.away = "timed out"
    lab.node.drains.holds = {}
    lab.look(2)
    assert len(lab.asked) == 1  # perhaps it was only not swept yet

    lab.node.rulebook.definitions.had["stock"] = Had("d7", 2)
    lab.look(8)

    assert [(one.number, one.digest, one.replaces) for one in lab.asked] == [(1, digest, 0)] * 2
    assert [one.newest for one in lab.asked] == [True, False]
    assert f"stock {GONE} {GONE}" in lab.asked[1].jobs.splitlines()
    assert len(lab.used) == 1


@pytest.mark.parametrize("how", ["its own", "the ledger's"])
def test_a_revision_that_cannot_be_brought_back_is_said(lab: Lab, how: str) -> None:
    lab.publish(sales=SALES)
    lab.look()
    lab.store.revisions.clear()
    lab.node.drains.holds = {}
    if how == "its own":
        lab.source.jobs = tables.read({"sales": SALES, "wrong": "x = 1\n"}, "revision 1", CONFIG)
    else:
        lab.refuses = "the job sales: version: expected a number"
    lab.look(11)

    said = "the ledger has forgotten revision 1, and this node cannot bring it back: "
    assert lab.source.problem.startswith(said)
    assert ("the job sales: version" in lab.source.problem) == (how == "the ledger's")
    assert len(lab.asked) == (1 if how == "its own" else 2)

    lab.in_force(1, lab.asked[0].digest)  # another node has brought it back
    lab.look()
    assert lab.source.problem == ""


def test_a_reload_judges_a_revision_again(lab: Lab) -> None:
    """It names a pool that the configuration did not have."""
    pools = Config(jobs=CONFIG.jobs, pools={"heavy": 1})
    lab.store.publish(
        {"sales": 'pool = "heavy"\n' + SALES},
        tables.digest_of({"sales": 'pool = "heavy"\n' + SALES}),
        None, above=0, by="b", uid=0, note="",
    )  # fmt: skip
    lab.look()
    assert "there is no pool" in lab.source.problem

    lab.source.taken(pools, lab.source.reload(pools))
    lab.look()

    assert set(lab.used[-1].jobs) == {"sales"}


def roll_back(lab: Lab, **params: Any) -> dict[str, Any]:
    methods = RevisionMethods.__new__(RevisionMethods)
    methods._lookups = Lookups()
    methods.source = lab.source
    methods._audit = lambda *_: None  # type: ignore[method-assign]  # the audit is not what is tried here
    caller: Any = SimpleNamespace(name="ann", uid=7)
    return trio.run(methods.config_rollback, params, caller)


@pytest.mark.parametrize("params", [{}, {"number": 1}])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"texts": {"sales": STOCK}}, "revision 1: its texts do not have its digest"),
        ({"texts": {"sales": 5}}, "revision 1: expected TOML texts by the names of their jobs"),
        ({}, "revision 1: its MAC is wrong"),
    ],
)
def test_a_rollback_seals_only_what_was_published(
    lab: Lab, params: dict[str, int], changes: dict[str, Any], says: str
) -> None:
    """Else who can write to Redis gets the cluster's seal on commands of their own."""
    lab.publish(sales=SALES)
    lab.look()
    lab.publish(stock=STOCK)
    lab.look()
    lab.store.revisions[1] = lab.store.revisions[1]._replace(**changes)
    lab.verdict = "" if changes else WRONG
    with pytest.raises(RefusedError, match=says) as info:
        roll_back(lab, **params)

    assert info.value.kind == "not_sealed"
    assert sorted(lab.store.revisions) == [1, 2]


def test_a_revision_of_a_retired_key_comes_back_only_by_its_number(lab: Lab) -> None:
    lab.publish(sales=SALES)
    lab.look()
    lab.publish(stock=STOCK)
    lab.look()
    lab.verdict = "its key is retired"
    with pytest.raises(RefusedError, match="its key is retired"):
        roll_back(lab)

    assert roll_back(lab, number=1)["number"] == 3
    assert lab.store.revisions[3].texts == {"sales": SALES}


def test_bad_job_files_are_not_published(lab: Lab) -> None:
    with pytest.raises(RefusedError, match=r"nothing was published: revision/sales\.toml:1: shedule") as info:
        lab.publish(sales="shedule = 5\n" + SALES)

    assert info.value.kind == "bad_job"
    assert lab.store.revisions == {}


def test_a_store_that_hangs_takes_no_thread_that_the_daemon_needs() -> None:
    """A viewer had all threads of the daemon by asking again and again."""
    methods = RevisionMethods.__new__(RevisionMethods)
    methods._lookups = Lookups()
    hanging = threading.Event()

    async def asks() -> None:
        with contextlib.suppress(RefusedError):
            await methods._stored(hanging.wait, looks=True)

    async def play() -> int:
        async with trio.open_nursery() as nursery:
            for _ in range(60):
                nursery.start_soon(asks)
            await trio.testing.wait_all_tasks_blocked(0.1)
            taken = trio.to_thread.current_default_thread_limiter().borrowed_tokens
            hanging.set()
        return int(taken)

    assert trio.run(play) == 0
