"""The published revisions in a real Redis."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis
from support import servers
from support.servers.rights import redis_rules
from system.lab.processes import until

from coordd.adapters.backends import revisions
from coordd.adapters.backends.revisions import Revisions
from coordd.config.tables import digest_of
from coordd.errors import UnavailableError
from coordd.ports import Published, Vote

TEXTS = {"sales": '[command]\nargv = ["/bin/true"]\n'}


def opened(url: str, cluster: str = "", password: str = "") -> Revisions:
    return Revisions(url, cluster or f"t-{uuid.uuid4().hex}", password=lambda: password, timeout_s=2.0)


@pytest.fixture
def store(redis_url: str) -> Iterator[Revisions]:
    made = opened(redis_url)
    yield made
    made.close()


def publish(store: Revisions, above: int = 0, note: str = "", texts: dict[str, str] | None = None) -> Published:
    said = TEXTS if texts is None else texts
    return store.publish(
        said, digest_of(said), lambda number, _digest: ("k", f"mac{number}"), above=above, by="ann", uid=7, note=note
    )


def test_numbers_grow_and_texts_come_back(store: Revisions) -> None:
    assert (store.newest(), store.listed()) == (0, [])
    first, second = publish(store, note="why"), publish(store, texts={"stock": "x"})

    assert (first.number, second.number, store.newest()) == (1, 2, 2)
    assert [one.number for one in store.listed()] == [2, 1]
    read = store.read(1)
    assert (read.texts, read.digest, read.by, read.uid, read.note, read.jobs) == (
        TEXTS,
        digest_of(TEXTS),
        "ann",
        7,
        "why",
        1,
    )
    assert (read.key, read.mac, read.at) == ("k", "mac1", first.at)
    assert store.listed()[1] == read._replace(texts=None)


def test_a_server_that_was_emptied_gives_no_number_twice(store: Revisions) -> None:
    """The ledger may be elsewhere, and remember that revision 7 is in force."""
    assert publish(store, above=7).number == 8
    assert publish(store, above=7).number == 9


def test_many_publish_at_a_time(store: Revisions) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = sorted(one.number for one in pool.map(lambda _: publish(store, above=3), range(8)))

    assert len(set(numbers)) == 8
    assert numbers[0] > 3
    assert all(store.read(number).texts == TEXTS for number in numbers)


def test_old_revisions_are_removed_but_not_the_one_in_force(store: Revisions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "REVISIONS_MAX", 3)
    for number in range(5):
        publish(store, above=2 if number == 4 else 0)

    assert [one.number for one in store.listed()] == [5, 4, 3]
    assert store.read(2).texts == TEXTS
    with pytest.raises(UnavailableError, match=r"revision 1 is not in redis://.*found nothing.*publish it again"):
        store.read(1)


def test_votes(store: Revisions, redis_url: str) -> None:
    store.vote(4, "n1.7", Vote("", "abc"))
    store.vote(4, "n2.8", Vote("bad", ""))
    store.vote(4, "n1.7", Vote("", "def"))
    Redis.from_url(redis_url).hset(store._votes(4), mapping={"n3.9": "{", "n4.1": "[1]", "n5.1": "5"})
    deep: Any = {"n6.1": "[" * 200_000, "n7.1": '["' + "x" * 5000 + '\\ud800", 1]', "n8.1": '["\\ud800", 1]'}
    Redis.from_url(redis_url).hset(store._votes(4), mapping=deep)

    expected = {"n7.1": Vote("x" * 1000, "1"), "n8.1": Vote("?", "1")}
    assert store.votes(4) == {"n1.7": Vote("", "def"), "n2.8": Vote("bad", ""), **expected}
    assert store.votes(5) == {}


@pytest.mark.parametrize(
    ("field", "value"), [("texts", "{"), ("texts", "x" * 100), ("at", "soon"), ("jobs", "many"), ("digest", "")]
)
def test_a_damaged_revision_is_a_sentence_or_shows_in_its_digest(
    store: Revisions, redis_url: str, monkeypatch: pytest.MonkeyPatch, field: str, value: str
) -> None:
    monkeypatch.setattr(revisions, "BYTES_MAX", 99)
    publish(store)
    Redis.from_url(redis_url).hset(store._key(1), field, value)
    assert [one.number for one in store.listed()] == [1]

    if field == "texts":
        with pytest.raises(UnavailableError, match=r"damaged|more than 99"):
            store.read(1)
    else:
        assert store.read(1).texts == TEXTS


@pytest.mark.parametrize("field", ["at", "uid", "jobs"])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e400", "1e300", "-1"])
def test_a_figure_that_nobody_can_use_is_zero(store: Revisions, redis_url: str, field: str, value: str) -> None:
    publish(store)
    Redis.from_url(redis_url).hset(store._key(1), field, value)

    assert (getattr(store.read(1), field), getattr(store.listed()[0], field)) == (0, 0)


@pytest.mark.parametrize("member", ["x", "1.5", "-3", "9" * 5000, str(2**53)])
def test_a_number_that_is_none_is_named(store: Revisions, redis_url: str, member: str) -> None:
    publish(store)
    Redis.from_url(redis_url).zadd(store._prefix + "revisions", {member: 9})
    for ask in (store.newest, store.listed):
        with pytest.raises(UnavailableError, match="the revisions at redis://"):
            ask()


def test_a_server_that_goes_away_and_comes_back(own_redis: servers.Redis) -> None:
    store = opened(own_redis.url, "c", password="")
    publish(store)
    own_redis.stop()
    for ask in (store.newest, store.listed, lambda: store.read(1), lambda: publish(store), lambda: store.votes(1)):
        with pytest.raises(UnavailableError, match="the revisions at redis://"):
            ask()

    own_redis.start()

    assert store.read(1).texts == TEXTS
    store.close()


def test_a_replica_is_named_as_one(own_redis: servers.Redis) -> None:
    with servers.redis(replicaof=f"{own_redis.host} {own_redis.port}") as replica:
        store = opened(replica.url, "c")
        with pytest.raises(UnavailableError, match="it is a replica: name the primary"):
            publish(store)
        store.close()


def test_the_rights_of_deploy_acl_suffice(own_redis: servers.Redis) -> None:
    assert own_redis.cli("ACL", "SETUSER", "coordd", "on", *redis_rules("c"), ">secret") == "OK"
    url = f"redis://coordd@{own_redis.host}:{own_redis.port}/0"
    store, wrong = opened(url, "c", "secret"), opened(url, "c", "other")

    publish(store)
    store.vote(1, "n1.7", Vote("", "abc"))

    assert (store.newest(), len(store.votes(1))) == (1, 1)
    with pytest.raises(UnavailableError, match="invalid username-password"):
        wrong.newest()
    for one in (store, wrong):
        one.close()


def test_sentinels_lead_to_the_new_primary() -> None:
    with servers.sentinels(replicas=1, down_after_ms=500, failover_timeout_ms=3000) as group:
        store = opened(group.url)
        publish(store, note="before")
        assert group.primary.cli("WAIT", "1", "30000") == "1"
        before = group.master()
        before.kill()

        def published() -> int:
            try:
                return publish(store).number
            except UnavailableError:
                return 0

        after = until(published, why="the new primary takes a revision")
        assert after > 1
        until(lambda: group.master() is not before, why="the first sentinel has heard of it too")
        assert (store.newest(), store.read(1).note, store.read(after).texts) == (after, "before", TEXTS)

        for sentinel in group.sentinels:
            sentinel.kill()
        assert store.newest() == after, "a connection needs no sentinel"
        store.close()
        with pytest.raises(UnavailableError, match=r"^the revisions at redis\+sentinel://.* no sentinel names"):
            store.newest()


def test_sentinels_that_know_no_such_primary() -> None:
    with servers.sentinels(replicas=1) as group:
        store = opened(group.url.replace("/m/0", "/other/0"))
        with pytest.raises(UnavailableError, match=r"no sentinel names a primary that is up.*'other'"):
            store.newest()
