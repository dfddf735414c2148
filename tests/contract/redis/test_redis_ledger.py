"""The Redis ledger when its server has a fault: killed, emptied, set back, full, slow, a replica, failed over."""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import servers
from support.ledger_calls import LEASE_S, FakeClock, Nodes, granted_as
from support.servers.rights import redis_rules

from coordd.adapters.ledger.redis_ledger import Known, RedisLedger
from coordd.adapters.ledger.redis_server import MEANING
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Activate, Cancel, Claim, ListOpen, Register
from coordd.core.ledger.runner_requests import Gate, Grant, Registration, Restore
from coordd.core.ledger.words import AttemptNumber, Policy, Token
from coordd.errors import ConfigError, RefusedError, UnavailableError

RUN = "sales#1"
QUARANTINE_S = 40.0


@pytest.fixture
def own() -> Iterator[servers.Redis]:
    with servers.redis() as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Callable[..., Nodes]]:
    made: list[RedisLedger] = []

    def make(url: str, timeout_s: float = 5.0, **options: Any) -> Nodes:
        options = {"quarantine_s": QUARANTINE_S, "short_quarantine_s": 0.0, "fresh": True, **options}
        made.append(RedisLedger(url, timeout_s, **options))
        clock = FakeClock()
        clock.wall = time.time()
        return Nodes(made[-1], clock)

    yield make
    for ledger in made:
        ledger.close()


def redis_of(nodes: Nodes) -> RedisLedger:
    assert isinstance(nodes.ledger, RedisLedger)
    return nodes.ledger


def restore(nodes: Nodes, grant: Grant, state: str = "started") -> Answer:
    of = nodes.of(grant.run)
    return nodes.ask(Restore(of=of, grant=grant, node="edge-1.10", lease_s=LEASE_S, state=state, exit_code=0))


def until(true: Callable[[], object], what: str) -> None:
    servers.wait(true, what)


# ---- the ledger's life


def test_a_new_cluster_waits_a_little_and_only_because_others_might_know_better(
    redis_url: str, connect: Callable[..., Nodes]
) -> None:
    cluster = uuid.uuid4().hex
    nodes = connect(redis_url, cluster=cluster, short_quarantine_s=30.0)
    first = nodes.claim(nodes.of())
    assert (first.word, 29.0 < first.in_s <= 30.0, first.left_s) == ("recovering", True, first.in_s)
    assert redis_of(nodes).status()["quarantine"] == "short"
    nodes.claim(nodes.of())  # the node has used this ledger now, and no other
    neutral = connect(redis_url, cluster=cluster, fresh=None, short_quarantine_s=30.0)
    assert neutral.claim(nodes.of()).in_s <= 30.0
    older = connect(redis_url, cluster=cluster, fresh=False, short_quarantine_s=30.0)
    assert 30.0 < older.claim(nodes.of()).in_s <= QUARANTINE_S
    assert redis_of(nodes).status()["quarantine"] == "full"


def test_who_has_seen_another_life_of_the_ledger_lengthens_a_quarantine_that_was_short(
    own: servers.Redis, connect: Callable[..., Nodes]
) -> None:
    old, known = connect(own.url), Known()
    old.granted(old.of())
    assert redis_of(old).known.epoch
    own.cli("FLUSHALL")
    new = connect(own.url, known=known)
    new.granted(new.of())
    assert known.epoch not in ("", redis_of(old).known.epoch)
    assert 30.0 < old.claim(old.of("sales#2")).in_s <= QUARANTINE_S
    assert new.claim(new.of("sales#3")).word == "recovering"


def test_a_grant_of_another_life_lengthens_it_too(own: servers.Redis, connect: Callable[..., Nodes]) -> None:
    old = connect(own.url)
    grant = old.started(old.of())
    own.cli("FLUSHALL")
    connect(own.url).ledger.ask(ListOpen(jobs=("sales",)))
    runner = connect(own.url, fresh=None)
    assert runner.renew(grant).word == "recovering"
    assert restore(runner, grant).word == "ok"
    assert runner.renew(grant).word == "ok"


def test_a_person_accepts_the_epoch(own: servers.Redis, connect: Callable[..., Nodes]) -> None:
    nodes = connect(own.url, fresh=False)
    assert nodes.claim(nodes.of()).word == "recovering"
    assert 30.0 < redis_of(nodes).accept_epoch() <= QUARANTINE_S
    assert redis_of(nodes).status()["recovering_s"] == 0.0
    assert nodes.claim(nodes.of()).word == "granted"


def test_a_quarantine_ends_by_itself(own: servers.Redis, connect: Callable[..., Nodes]) -> None:
    nodes = connect(own.url, fresh=False, quarantine_s=0.2)
    assert nodes.claim(nodes.of()).word == "recovering"
    until(lambda: nodes.claim(nodes.of()).word == "granted", "the quarantine is over")


def went_back(nodes: Nodes, grant: Grant) -> None:
    """Checks that the ledger has lost writes: it has forgotten a run that is active, or the start of that run."""
    other = nodes.claim(nodes.of(grant.run), nonce="b", node="edge-2.20")
    assert (other.word, other.in_s > 30.0) == ("recovering", True)
    answer = nodes.ledger.ask(ListOpen(jobs=("sales",)))
    assert isinstance(answer, OpenAnswer)
    assert answer.recovering_s > 30.0
    if nodes.renew(grant).word == "recovering":
        assert nodes.report(grant).word == "recovering"
        assert restore(nodes, grant).word == "ok"
        assert restore(nodes, grant).word == "ok"
    assert nodes.renew(grant).word == "ok"
    redis_of(nodes).accept_epoch()
    assert nodes.claim(nodes.of(grant.run), grant.attempt, nonce="b", node="edge-2.20").word == "held"
    newer = nodes.granted(nodes.of("sales#next", overlap="allow"))
    assert newer.token > grant.token
    assert nodes.report(grant).word == "ok"
    assert nodes.state(grant.run) == "success"


def test_a_newer_attempt_is_restored_over_one_that_seems_to_run(
    own: servers.Redis, connect: Callable[..., Nodes]
) -> None:
    nodes = connect(own.url)
    first = nodes.started(nodes.of())
    own.cli("HSET", redis_of(nodes).key("meta"), "epoch", "of another server")
    newer = granted_as(RUN, Answer("granted", token=first.token + 5, attempt=1), "newer")
    assert restore(nodes, newer).word == "ok"
    assert [attempt.state for attempt in nodes.ledger.attempts(RUN)] == ["lost", "started"]
    assert nodes.renew(first).word == "lost"


def test_each_time_that_it_goes_back_has_a_name_and_who_reports_meanwhile_hears_how_long_it_lasts(
    own: servers.Redis, connect: Callable[..., Nodes]
) -> None:
    nodes = connect(own.url)
    grant, other = nodes.started(nodes.of()), nodes.started(nodes.of("sales#2", overlap="allow"))
    assert nodes.report(other).left_s == 0.0
    epochs = {nodes.opened().epoch}
    for number in range(2):
        own.cli("HSET", redis_of(nodes).key("meta"), "epoch", "of another server")
        assert QUARANTINE_S - 5.0 < nodes.report(grant if not number else other).left_s <= QUARANTINE_S
        epochs.add(nodes.opened().epoch)
    assert len(epochs) == 3


def test_a_killed_server_comes_back_with_its_rows_and_a_quarantine(
    own: servers.Redis, connect: Callable[..., Nodes]
) -> None:
    own.cli("CONFIG", "SET", "appendfsync", "always")
    nodes = connect(own.url)
    grant = nodes.started(nodes.of())
    own.kill()
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1"):
        nodes.renew(grant)
    own.start()
    assert nodes.state(RUN) == "started"
    went_back(nodes, grant)


def test_an_emptied_ledger_is_told_by_the_holder(own: servers.Redis, connect: Callable[..., Nodes]) -> None:
    nodes = connect(own.url)
    grant = nodes.started(nodes.of())
    own.cli("FLUSHALL")
    went_back(nodes, grant)


def test_an_old_snapshot_restored_in_mid_run_launches_nothing_twice(connect: Callable[..., Nodes]) -> None:
    with servers.redis(appendonly="no") as own:
        nodes = connect(own.url)
        nodes.report(nodes.started(nodes.of()), "lost")
        own.cli("SAVE")
        dump = own.directory / "dump.rdb"
        shutil.copy(dump, own.directory / "old.rdb")
        grant = nodes.started(nodes.of(), 1, nonce="second")
        own.kill()
        shutil.copy(own.directory / "old.rdb", dump)
        own.start()
        assert nodes.state(RUN) == "retry"  # the run would be due now; on a new connection: the old one was closed
        went_back(nodes, grant)


def test_a_failover_by_hand_is_noticed_and_a_replica_answers_nothing(connect: Callable[..., Nodes]) -> None:
    with servers.redis() as primary, servers.redis() as replica:
        replica.replicates(primary)
        until(lambda: "master_link_status:up" in replica.cli("INFO", "replication"), "the replica is in step")
        old, new = connect(primary.url), connect(replica.url, fresh=None)
        grant = old.started(old.of())
        until(lambda: new.state(RUN) == "started", "the row has reached the replica")
        for ask in (new.opened, lambda: new.gate(grant), lambda: new.claim(new.of())):
            with pytest.raises(UnavailableError, match="replica"):
                ask()
        replica.replicates(None)
        went_back(new, grant)


def test_sentinels_lead_to_the_new_master(connect: Callable[..., Nodes]) -> None:
    with servers.sentinels(replicas=1, down_after_ms=500, failover_timeout_ms=3000) as group:
        nodes = connect(group.url, timeout_s=1.0)
        grant = nodes.started(nodes.of(on_lost="hold"))
        group.master().kill()

        def renewed() -> bool:
            try:
                return nodes.renew(grant).word in ("ok", "recovering")
            except UnavailableError:
                return False

        until(renewed, "the new master answers")
        went_back(nodes, grant)


# ---- a server in trouble


def test_a_slow_answer_is_none_and_the_next_call_is_well_again(
    own: servers.Redis, connect: Callable[..., Nodes]
) -> None:
    nodes = connect(own.url, timeout_s=0.3)
    grant = nodes.started(nodes.of())
    own.pause()
    try:
        with pytest.raises(UnavailableError, match="no answer in time"):
            nodes.renew(grant)
    finally:
        own.resume()
    until(lambda: not _fails(lambda: nodes.renew(grant)), "it answers again")
    assert nodes.report(grant).word == "ok"


def _fails(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except UnavailableError:
        return True
    return False


def test_scripts_that_were_forgotten_are_brought_again(own: servers.Redis, connect: Callable[..., Nodes]) -> None:
    nodes = connect(own.url)
    batch = [
        Register(of=nodes.of("a#1")),
        Claim(of=nodes.of("a#1"), attempt=AttemptNumber(0), nonce="n", node="e", lease_s=60.0),
    ]
    for _ in range(2):
        words = [answer.word for answer in redis_of(nodes).ask_all(batch)]
        own.cli("SCRIPT", "FLUSH")
    assert words == ["exists", "granted"]
    assert nodes.claim(nodes.of()).word == "granted"


def test_a_batch_is_done_in_its_order_also_when_no_script_is_there_yet(
    own: servers.Redis, connect: Callable[..., Nodes]
) -> None:
    nodes = connect(own.url)
    nodes.ask(Register(of=nodes.of()))  # so the server knows one of the two scripts
    other = connect(own.url, fresh=None)
    batch = [Cancel(run=RUN, by="ann"), Register(of=nodes.of())]
    assert [answer.word for answer in redis_of(other).ask_all(batch)] == ["ok", "exists"]
    assert nodes.state(RUN) == "revoked"


@pytest.mark.parametrize("word", sorted(MEANING))
def test_every_refusal_is_told_in_a_sentence(word: str) -> None:
    assert MEANING[word][0].islower()


def test_passwords_come_from_a_file_that_is_read_at_each_connection(
    connect: Callable[..., Nodes], tmp_path: Path
) -> None:
    path = tmp_path / "password"
    path.write_text("wrong\n")
    with servers.redis(requirepass="first") as own:
        nodes = connect(own.url, password_file=str(path))
        with pytest.raises(UnavailableError, match="ledger_password_file"):
            nodes.claim(nodes.of())
        path.write_text("first\n")
        assert nodes.claim(nodes.of()).word == "granted"
        with pytest.raises(UnavailableError, match="asks for a password"):
            connect(own.url).claim(nodes.of())
        own.cli("ACL", "SETUSER", "coordd", "on", ">se:cret", "~{coordd:*}*", "+@all")
        url = own.url.replace("://", "://coordd:se%3Acret@")
        by_url = connect(url)
        assert by_url.claim(nodes.of("sales#2", overlap="allow")).word == "granted"
        assert "cret" not in str(redis_of(by_url).status())
        own.cli("ACL", "SETUSER", "coordd", "-info")
        with pytest.raises(UnavailableError, match=r"deploy/acl/redis\.rules"):
            by_url.claim(nodes.of("sales#3"))


def test_a_user_with_the_advised_rights_can_do_all(own: servers.Redis, connect: Callable[..., Nodes]) -> None:
    own.cli("ACL", "SETUSER", "coordd", "on", ">pw", *redis_rules("*"), "-config|get")
    nodes = connect(own.url.replace("://", "://coordd:pw@"))
    nodes.report(nodes.started(nodes.of()))
    assert redis_of(nodes).prune(0.0) == 1
    assert redis_of(nodes).import_(list(redis_of(nodes).export()), replace=True) == 1  # the one row is that of the job
    assert redis_of(nodes).status()["persistence"]["rdb"] is None  # this user may not call CONFIG


# ---- jobs with on_lost = "hold"


def test_an_import_that_replaces_gives_back_the_slots_of_the_old_runs(
    own: servers.Redis, connect: Callable[..., Nodes]
) -> None:
    nodes = connect(own.url)
    before = list(redis_of(nodes).export())
    limited = nodes.of("sales#1", overlap="allow", limits="slots:pool/heavy=1")
    assert nodes.claim(limited).word == "granted"

    redis_of(nodes).import_(before, replace=True)

    assert redis_of(nodes).read([("EXISTS", redis_of(nodes).key("slots:pool/heavy"))]) == [0]


def test_a_hold_job_starts_only_when_a_replica_knows_of_it(connect: Callable[..., Nodes]) -> None:
    with servers.redis() as primary, servers.redis() as replica:
        replica.replicates(primary)
        until(lambda: "state=online" in primary.cli("INFO", "replication"), "the replica is in step")
        nodes = connect(primary.url, timeout_s=1.0)
        relaunched = nodes.granted(nodes.of("sales#0", overlap="allow"))
        held = nodes.granted(nodes.of(on_lost="hold", overlap="allow"))
        replica.pause()
        try:
            assert nodes.gate(relaunched).word == "ok"
            for _ in range(2):  # the second time on a new connection
                with pytest.raises(UnavailableError, match="no replica"):
                    nodes.gate(held)
                redis_of(nodes)._server.drop()
        finally:
            replica.resume()
        until(lambda: not _fails(lambda: nodes.gate(held)), "the gate opens")


# ---- versions, people


def test_another_major_version_is_refused_and_unknown_fields_stay(
    own: servers.Redis, connect: Callable[..., Nodes]
) -> None:
    nodes = connect(own.url)
    grant = nodes.started(nodes.of())
    key = redis_of(nodes).key
    own.cli("HSET", key(f"run:{RUN}"), "of_the_next_version", "x")
    own.cli("HDEL", key(f"run:{RUN}"), "boot", "commit_token")
    assert nodes.commit(grant).word == "ok"
    assert nodes.report(grant).word == "ok"
    assert own.cli("HGET", key(f"run:{RUN}"), "of_the_next_version").strip() == "x"
    own.cli("HSET", key("meta"), "schema", "2")
    with pytest.raises(ConfigError, match="schema 2"):
        nodes.claim(nodes.of("sales#2"))


def test_a_ledger_that_was_moved_remembers_which_definitions_are_over(
    own: servers.Redis, connect: Callable[..., Nodes], tmp_path: Path
) -> None:
    """A node that returns with an old job file is told so, on Redis too."""
    nodes = connect(own.url)
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="edge-1"))
    nodes.ask(Activate(job="sales", digest="d2", schedule="s2", how="changed", by="edge-1"))
    rows = list(redis_of(nodes).export())
    assert [past[:2] for past in rows[0]["activations"]] == [[1, "d1"], [2, "d2"]]
    file = SqliteLedger(f"sqlite:///{tmp_path}/ledger.db")
    file.import_(rows)
    assert list(file.export()) == rows
    redis_of(nodes).import_(file.export(), replace=True)
    redis_of(nodes).accept_epoch()
    assert list(redis_of(nodes).export()) == rows
    for ledger in (file, redis_of(nodes)):
        answer = ledger.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="edge-2"))
        assert isinstance(answer, Answer)
        assert (answer.word, answer.token) == ("differs", 2)
    for bad in ("d", [["1", "d1", "s1", 0.0, 0.0, ""]], [[1, "d1"]], [[1, "d\n1", "s1", 0.0, 0.0, ""]]):
        with pytest.raises(RefusedError, match=r"row 1: (activations|sequence)"):
            file.import_([{**rows[0], "activations": bad}], replace=True)
    # The export of an older version does not contain the activations.
    file.import_([{key: value for key, value in rows[0].items() if key != "activations"}], replace=True)
    assert [past[1:] for [row] in [list(file.export())] for past in row["activations"]] == [
        [*rows[0]["activations"][1][1:5], "import"]
    ]
    file.close()


def test_rows_go_from_one_ledger_to_another_and_back(
    own: servers.Redis, connect: Callable[..., Nodes], tmp_path: Path
) -> None:
    nodes = connect(own.url)
    nodes.report(nodes.started(nodes.of()), "failure", 3, reason="é\n")
    grant = nodes.started(nodes.of("sales#2", overlap="allow"))
    rows = list(redis_of(nodes).export())
    assert [row["kind"] for row in rows] == ["job", "run", "attempt", "run", "attempt"]
    with pytest.raises(RefusedError, match="holds 2 runs"):
        redis_of(nodes).import_(rows)
    with pytest.raises(RefusedError, match="row 2: state"):
        redis_of(nodes).import_([rows[0], {**rows[1], "state": "odd"}], replace=True)
    assert list(redis_of(nodes).export()) == rows
    file = SqliteLedger(f"sqlite:///{tmp_path}/ledger.db")
    assert file.import_(rows) == 5
    assert sorted(map(str, file.export())) == sorted(map(str, rows))
    assert redis_of(nodes).import_(file.export(), replace=True) == 5
    file.close()
    assert sorted(map(str, redis_of(nodes).export())) == sorted(map(str, rows))
    assert nodes.claim(nodes.of("sales#3")).word == "recovering"  # the rows are from an earlier time
    redis_of(nodes).accept_epoch()
    assert nodes.report(grant).word == "ok"
    assert [row.run for row in redis_of(nodes).runs(job="sales", state="success")] == ["sales#2"]


def test_status_says_what_is_weaker_than_advised(own: servers.Redis, connect: Callable[..., Nodes]) -> None:
    nodes = connect(own.url)
    nodes.granted(nodes.of())
    status = redis_of(nodes).status()
    assert (status["role"], status["schema"], status["runs"], status["jobs"]) == ("master", 1, {"received": 1}, 1)
    assert [sentence.partition(":")[0] for sentence in status["weaker"]] == ["no replica is connected"]
    for setting, value in (("maxmemory-policy", "allkeys-lru"), ("appendonly", "no"), ("save", "60 1")):
        own.cli("CONFIG", "SET", setting, value)
    assert [sentence.split(":")[0] for sentence in redis_of(nodes).status()["weaker"]] == [
        "maxmemory-policy is allkeys-lru",
        "only snapshots are written to disk",
        "no replica is connected",
    ]


def test_eight_nodes_claim_and_one_is_granted(redis_url: str, connect: Callable[..., Nodes]) -> None:
    cluster = uuid.uuid4().hex
    every = [connect(redis_url, cluster=cluster) for _ in range(8)]
    of = every[0].of()
    start = threading.Barrier(len(every))
    answers: list[str] = []

    def claim(number: int) -> None:
        start.wait(10)
        answers.append(every[number].claim(of, nonce=f"n{number}", node=f"edge-{number}").word)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(len(every))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == ["granted"] + ["held"] * 7


def test_a_burst_in_one_script_says_what_one_by_one_says(redis_url: str, connect: Callable[..., Nodes]) -> None:
    """The claims and registrations of a batch share one script. Each of them sees the writes of the earlier ones."""
    ledger = redis_of(connect(redis_url, cluster=f"burst-{uuid.uuid4().hex}"))
    now = time.time()

    def of(run: str, digest: str = "d") -> Registration:
        return Registration(run, "sales", digest, Policy(overlap="forbid"), now, scheduled=False)

    batch = [
        Register(of=of("sales#1")),
        Register(of=of("sales#1")),
        Register(of=of("sales#1", "other")),
        Claim(of=of("sales#1"), attempt=AttemptNumber(0), nonce="a", node="n1", lease_s=60.0),
        Claim(of=of("sales#1"), attempt=AttemptNumber(0), nonce="b", node="n2", lease_s=60.0),
        Claim(of=of("sales#1"), attempt=AttemptNumber(0), nonce="a", node="n1", lease_s=60.0),
        Claim(of=of("sales#2"), attempt=AttemptNumber(0), nonce="c", node="n1", lease_s=60.0),
        Gate(grant=Grant(run="sales#1", attempt=AttemptNumber(0), token=Token(1), nonce="nobody's")),
    ]

    answers = ledger.ask_all(batch)

    assert [answer.word for answer in answers] == [
        "ok",
        "exists",
        "conflict",
        "granted",
        "held",
        "granted",
        "finished",
        "stale",
    ]
    first, again = answers[3], answers[5]
    assert isinstance(first, Answer)
    assert isinstance(again, Answer)
    assert first.token == again.token > 0
    assert [answer.word for answer in ledger.ask_all([*batch[:2] * 40])] == ["exists"] * 80
