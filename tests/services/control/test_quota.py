"""The share of each user of the machine at the control socket."""

from __future__ import annotations

import pytest
import trio

from coordd.errors import RefusedError
from coordd.services.control.lookups import Lookups, Work
from coordd.services.control.quota import ALL_VIEWERS_LIMITS, OPERATOR_LIMITS, VIEWER_LIMITS, Place, Quotas


def looker(quotas: Quotas, uid: int = 1000) -> Place | str:
    return quotas.place(uid, f"uid {uid}", limited=True, looks=True)


def places(quotas: Quotas, uid: int, count: int) -> list[Place]:
    made = [looker(quotas, uid) for _ in range(count)]
    assert all(isinstance(place, Place) for place in made)
    return [place for place in made if isinstance(place, Place)]


def test_one_user_has_so_many_connections_and_another_has_its_own() -> None:
    quotas = Quotas()
    taken = places(quotas, 1000, VIEWER_LIMITS.connections)
    assert looker(quotas) == f"uid 1000 has {VIEWER_LIMITS.connections} connections already"
    assert isinstance(looker(quotas, 1001), Place)
    taken[0].close()
    assert isinstance(looker(quotas), Place)


def test_many_users_together_leave_the_places_of_operators() -> None:
    quotas = Quotas()
    uids = ALL_VIEWERS_LIMITS.connections // VIEWER_LIMITS.connections
    for uid in range(uids):
        places(quotas, uid, VIEWER_LIMITS.connections)
    places(quotas, uids, ALL_VIEWERS_LIMITS.connections - uids * VIEWER_LIMITS.connections)
    assert "together" in str(looker(quotas, 5000))
    assert isinstance(quotas.place(5000, "ann", limited=True, looks=False), Place)
    assert isinstance(quotas.place(0, "root", limited=False, looks=False), Place)


def test_bytes_streams_and_answers_are_counted_over_all_connections_and_given_back() -> None:
    quotas = Quotas()
    first, second = places(quotas, 1000, 2)
    assert first.asks(VIEWER_LIMITS.asked) == ""
    assert "requests that are not answered" in second.asks(1)
    first.answered(10)
    assert second.asks(10) == ""
    first.close()
    assert second.asks(VIEWER_LIMITS.asked - 10) == ""
    assert second.tells(VIEWER_LIMITS.answers) == ""
    assert "did not read" in second.tells(1)
    second.told(VIEWER_LIMITS.answers)
    assert second.tells(1) == ""
    assert [second.opens_stream() for _ in range(VIEWER_LIMITS.streams)] == [""] * VIEWER_LIMITS.streams
    assert "streams open" in second.opens_stream()
    second.stream_ended()
    assert second.opens_stream() == ""


def test_a_user_who_is_gone_is_forgotten() -> None:
    quotas = Quotas()
    for place in places(quotas, 1000, 3):
        place.close()
    assert quotas._users == {}
    assert quotas._viewers.connections == quotas._viewers.asked == 0


def test_requests_beyond_the_limit_wait_and_those_of_others_do_not() -> None:
    async def main() -> None:
        quotas = Quotas()
        (mine,), (other,) = places(quotas, 1000, 1), places(quotas, 1001, 1)
        for _ in range(VIEWER_LIMITS.in_flight):
            await mine.begin()
        with trio.move_on_after(0.05) as scope:
            await mine.begin()
        assert scope.cancelled_caught
        await other.begin()
        mine.end()
        with trio.fail_after(10):
            await mine.begin()

    trio.run(main)


def test_nothing_of_root_is_counted() -> None:
    place = quotas_root()
    assert place.asks(10**12) == place.tells(10**12) == place.opens_stream() == ""
    assert place.line_max == OPERATOR_LIMITS.line


def quotas_root() -> Place:
    place = Quotas().place(0, "root", limited=False, looks=False)
    assert isinstance(place, Place)
    return place


def test_a_look_up_that_nobody_waits_for_ends() -> None:
    ended = []

    def endless(work: Work) -> None:
        try:
            while True:
                work.check()
        finally:
            ended.append(True)

    async def main() -> None:
        lookups = Lookups()
        with pytest.raises(RefusedError, match="no answer within"):
            await lookups.do(endless, looks=True, limit_s=0.1)
        with trio.fail_after(30):  # its thread is free again
            assert await lookups.do(lambda _: 7, looks=True, limit_s=30) == 7

    trio.run(main)
    assert ended == [True]
