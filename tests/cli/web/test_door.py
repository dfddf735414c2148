"""Tokens, sessions, and requests that are not meant for the page."""

from __future__ import annotations

from itertools import count

import pytest

from coordd.cli.web.door import SESSION_S, SESSIONS_MAX, TOKENS_MAX, Door, Session
from coordd.cli.web.serving import address


def door() -> Door:
    numbers = count(1)
    return Door(8080, lambda: f"word-{next(numbers)}")


def entered(at: Door, now: float = 0.0) -> Session:
    session = at.enter(at.token(), now)
    assert session is not None
    return session


def test_a_token_opens_one_session_once() -> None:
    at = door()
    token = at.token()
    assert at.enter("word-", 0.0) is None
    session = at.enter(token, 0.0)
    assert session is not None
    assert at.enter(token, 0.0) is None
    assert at.session(f"other=1; {at.cookie}={session.key}", 1.0) is session


@pytest.mark.parametrize("cookies", ["", "coordctl-web-8081=word-3", "coordctl-web-8080=", "coordctl-web-8080=word-9"])
def test_without_its_cookie_nobody_is_known(cookies: str) -> None:
    at = door()
    entered(at)
    assert at.session(cookies, 1.0) is None


def test_only_what_lies_below_the_root_is_inside() -> None:
    at = door()
    assert at.root == "/word-1"
    assert [at.inside(path) for path in ("/word-1/", "/word-1/jobs/j")] == ["/", "/jobs/j"]
    for path in ("", "/", "/word-1", "/word-10/", "/jobs", "/word-2/", "//word-1/", "/wörd-1/"):
        assert at.inside(path) is None, path


def test_the_address_that_opens_a_session_lies_below_the_root() -> None:
    assert address(8080, door()) == "http://127.0.0.1:8080/word-1/?token=word-2"


def test_a_session_ends_after_its_last_request() -> None:
    at = door()
    session = entered(at)
    cookie = f"{at.cookie}={session.key}"
    assert at.session(cookie, SESSION_S - 1) is session
    assert at.is_open(session, 2 * SESSION_S - 2)
    assert not at.is_open(session, 2 * SESSION_S)
    assert at.session(cookie, 2 * SESSION_S) is None
    assert not at.is_open(session, 2 * SESSION_S)


def test_sessions_and_tokens_are_bounded_and_the_oldest_makes_room() -> None:
    at = door()
    first = entered(at, 0.0)
    second = entered(at, 1.0)
    at.session(f"{at.cookie}={first.key}", 2.0)
    for number in range(SESSIONS_MAX - 1):
        entered(at, 3.0 + number)
    assert at.session(f"{at.cookie}={first.key}", 90.0) is first
    assert at.session(f"{at.cookie}={second.key}", 90.0) is None
    tokens = [at.token() for _ in range(TOKENS_MAX + 1)]
    assert at.enter(tokens[0], 91.0) is None
    assert at.enter(tokens[1], 91.0) is not None


@pytest.mark.parametrize(
    "host", ["", "evil.example:8080", "127.0.0.1", "127.0.0.1:8081", "127.0.0.1:8080.evil.example"]
)
def test_a_name_that_was_pointed_at_this_machine_gets_nothing(host: str) -> None:
    assert "the request is for" in door().foreign("GET", {"host": host})


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example", "http://127.0.0.1:8081", "https://127.0.0.1:8080", "127.0.0.1:8080"]
)
def test_a_change_comes_from_this_address_only(origin: str) -> None:
    headers = {"host": "127.0.0.1:8080", "origin": origin}
    assert "a change must come from" in door().foreign("POST", headers)
    assert door().foreign("GET", headers) == ""


def test_a_request_of_the_page_is_let_in() -> None:
    for host in ("127.0.0.1:8080", "localhost:8080"):
        assert door().foreign("POST", {"host": host, "origin": f"http://{host}"}) == ""
