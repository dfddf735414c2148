"""Who may come in: one-time tokens, the sessions that they open, the headers of a request that is meant for us. Pure.

The page listens on 127.0.0.1, where every user of the machine, and every site that a browser has open, can send
requests. A session's cookie keeps the users out. A browser sends a cookie to every port of a host, also to one where
another user listens; so all pages lie below a path that nobody can guess, and the cookie is for that path alone. Host
and Origin keep the sites out: a site whose name was pointed at 127.0.0.1 (DNS rebinding) sends its own as the host.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# A session ends this long (seconds) after its last request. A page that is seen asks at least every few minutes.
SESSION_S = 12 * 3600.0

# Sessions and unused tokens at a time; the oldest makes room.
SESSIONS_MAX = 32
TOKENS_MAX = 16


@dataclass
class Session:
    """One browser."""

    key: str
    seen_at: float  # seconds, monotonic
    notes: list[str] = field(default_factory=list)  # what the next page says once


class Door:
    """Tokens and sessions. ``make`` returns a new random word, ``now`` are seconds of a monotonic clock."""

    def __init__(self, port: int, make: Callable[[], str]) -> None:
        self.hosts = frozenset((f"127.0.0.1:{port}", f"localhost:{port}"))
        self.cookie = f"coordctl-web-{port}"
        self.root = f"/{make()}"  # the path of the pages, without its last slash
        self._make = make
        self._tokens: list[str] = []
        self._sessions: dict[str, Session] = {}

    def inside(self, path: str) -> str | None:
        """The rest of a path below the root; None if it is not below it."""
        head, rest = path[: len(self.root)], path[len(self.root) :]
        found = hmac.compare_digest(head.encode(), self.root.encode()) and rest.startswith("/")
        return rest if found else None

    def token(self) -> str:
        """A token that opens one session."""
        self._tokens = [*self._tokens[-TOKENS_MAX + 1 :], self._make()]
        return self._tokens[-1]

    def enter(self, token: str, now: float) -> Session | None:
        """The session that this token opens; None if it is not one, or was used before."""
        found = [one for one in self._tokens if hmac.compare_digest(one.encode(), token.encode())]
        if not found:
            return None
        self._tokens.remove(found[0])
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].seen_at)]
        session = Session(self._make(), now)
        self._sessions[session.key] = session
        return session

    def session(self, cookies: str, now: float) -> Session | None:
        """The session that a Cookie header names; None if there is none."""
        for item in cookies.split(";"):
            name, _, value = item.strip().partition("=")
            session = self._sessions.get(value) if name == self.cookie else None
            if session is not None:
                if now - session.seen_at > SESSION_S:
                    del self._sessions[session.key]
                    continue
                session.seen_at = now
                return session
        return None

    def is_open(self, session: Session, now: float) -> bool:
        """True until the session ends."""
        return self._sessions.get(session.key) is session and now - session.seen_at <= SESSION_S

    def foreign(self, method: str, headers: Mapping[str, str]) -> str:
        """Why a request is not meant for this page; "" if it is."""
        host = headers.get("host", "")
        if host not in self.hosts:
            return f"the request is for {host[:80]!r}; this is {' or '.join(sorted(self.hosts))}"
        if method in ("GET", "HEAD"):
            return ""
        origin = headers.get("origin", "")
        if origin.removeprefix("http://") not in self.hosts or not origin.startswith("http://"):
            return f"a change must come from a page of this address, not from {origin[:80]!r}"
        return ""
