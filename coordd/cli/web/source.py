"""Asks the daemon for all pages. Many open ones cost no more than one: an answer is kept while it is fresh."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import trio

from coordd import client
from coordd.errors import CoorddError, RefusedError

# How long (seconds) an answer is fresh. Those that cost the daemon more are kept longer.
FRESH_S = 2.0
LONGER_S = {
    "job.list": 15.0,
    "job.fires": 30.0,
    "job.show": 15.0,
    "why": 5.0,
    "run.list": 3.0,
    "status": 3.0,
    "ping": 60.0,
}

# Answers that are kept.
ANSWERS_MAX = 200

# Timeout (seconds) of an answer, and the pause after the stream of events was lost.
ANSWER_S = 8.0
AGAIN_S = 2.0

# Timeout (seconds) of a change, as coordctl has: after a timeout nobody knows whether it took place.
CHANGE_S = 30.0

# Events that only say that a node is alive: no page changes.
HEARTBEATS = ("worker-heartbeat", "worker-beat", "worker-hello", "worker-hello-reply")


class _Kept:
    """One kept answer, or the refusal."""

    def __init__(self) -> None:
        self.at = -1e9
        self.said: Any = None
        self.refused: RefusedError | None = None
        self.asking = trio.Lock()


class Source:
    """The daemon behind one control socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._watchers = 0
        self._watched = trio.Event()
        self._news = trio.Event()
        self.changes = 0  # how often something happened

    async def ask(self, method: str, *, fresh_s: float = 0.0, **params: Any) -> Any:
        """The answer, at most as old (seconds) as FRESH_S, LONGER_S or ``fresh_s``, the longest of them. Raises
        RefusedError and UnavailableError.
        """
        key = json.dumps([method, params], sort_keys=True)
        kept = self._kept.pop(key, None) or _Kept()
        self._kept[key] = kept
        while len(self._kept) > ANSWERS_MAX:
            self._kept.popitem(last=False)
        async with kept.asking:  # a page that asks the same meanwhile waits for this answer
            if trio.current_time() - kept.at > max(LONGER_S.get(method, FRESH_S), fresh_s):
                try:
                    kept.said, kept.refused = await self.call(method, **params), None
                except RefusedError as exc:
                    kept.said, kept.refused = None, exc
                kept.at = trio.current_time()
            if kept.refused is not None:
                raise RefusedError(str(kept.refused), kind=kept.refused.kind, hint=kept.refused.hint)
            return kept.said

    async def call(self, method: str, **params: Any) -> Any:
        """Ask the daemon now. Raises RefusedError and UnavailableError."""
        return await self._call(ANSWER_S, method, params)

    async def change(self, method: str, **params: Any) -> Any:
        """Change something, with patience. Raises RefusedError and UnavailableError."""
        return await self._call(CHANGE_S, method, params)

    async def _call(self, timeout_s: float, method: str, params: dict[str, Any]) -> Any:
        async with client.connect(self._path, timeout_s=timeout_s) as coordd:
            return await coordd.call(method, **params)

    def forget(self) -> None:
        """Something was changed by a page: ask again, and draw the others again."""
        self._kept.clear()
        self._tell()

    async def watch(self, seen: int, at_most_s: float) -> None:
        """Wait until something has happened since ``changes`` was ``seen``, at most that long (seconds)."""
        self._watchers += 1
        self._watched.set()
        try:
            with trio.move_on_after(at_most_s):
                while self.changes == seen:
                    await self._news.wait()
        finally:
            self._watchers -= 1

    async def hear(self) -> None:
        """Hear the daemon's events while somebody watches. For ever."""
        while True:
            if not self._watchers:
                self._watched = trio.Event()
                await self._watched.wait()
            try:
                await self._events()
            except CoorddError:
                self._tell()  # the pages say that the daemon is away
            await trio.sleep(AGAIN_S)

    async def _events(self) -> None:
        async with (
            client.connect(self._path, timeout_s=ANSWER_S) as coordd,
            coordd.stream("events.subscribe", backlog=0, without=list(HEARTBEATS)) as events,
        ):
            async for item in events:
                if "event" in item or "lost" in item:
                    self._tell()
                elif not self._watchers:
                    return  # a sign of life, and nobody looks

    def _tell(self) -> None:
        self.changes += 1
        self._news.set()
        self._news = trio.Event()
