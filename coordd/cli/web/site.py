"""The pages by their addresses: who may come in, what is asked, what is drawn, what is kept up to date."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import resources
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import jinja2
import trio

from coordd import __version__
from coordd.cli.show import phrases
from coordd.cli.web import actions, drawing, models
from coordd.cli.web.door import Door, Session
from coordd.cli.web.http import EVENTS, Answer, Request
from coordd.cli.web.source import Source
from coordd.core.visible import visible
from coordd.errors import CoorddError, RefusedError, UnavailableError

# A page that is seen is drawn again this soon (seconds) after something happened, and this often if nothing does.
SOON_S = 1.0
OFTEN_S = 5.0

# One stream of changes lasts this long (seconds), then the browser opens the next one; and this many at a time.
STREAM_S = 600.0
STREAMS_MAX = 40

# How soon (milliseconds) a browser opens it again.
AGAIN_MS = 3000

STATIC = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "idiomorph.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

# The status for each kind of refusal; others are 409.
STATUS = {"unknown_run": 404, "unknown_job": 404, "unknown_day": 404, "unknown_action": 404, "not_permitted": 403}


# Where a form may lead back to, below the root: an address as the pages write it, which no browser takes for another
# site's (it ignores tabs and line ends, and takes \ for /).
BACK = re.compile(r"/(?![/\\])[!-~]*")


class Page(NamedTuple):
    """One kind of page. ``pattern`` has the model's arguments as groups."""

    pattern: re.Pattern[str]
    template: str
    model: Callable[..., Awaitable[dict[str, Any]]]
    title: str


_NAME = "([^/]{1,300})"
PAGES = (
    Page(re.compile("/"), "now.html", models.now, "now"),
    Page(re.compile("/jobs"), "jobs.html", models.jobs, "jobs"),
    Page(re.compile(f"/jobs/{_NAME}"), "job.html", models.job, "{0}"),
    Page(re.compile(f"/jobs/{_NAME}/{_NAME}"), "day.html", models.day, "{0} on {1}"),
    Page(re.compile("/runs"), "runs.html", models.runs, "runs"),
    Page(re.compile(f"/runs/{_NAME}"), "run.html", models.run, "{0}"),
    Page(re.compile("/cluster"), "cluster.html", models.cluster, "cluster"),
)


class Site:
    """All pages."""

    def __init__(self, source: Source, door: Door) -> None:
        self._source = source
        self._door = door
        self._streams = 0
        self._static = _static_files()
        self._jinja = jinja2.Environment(
            loader=jinja2.PackageLoader("coordd.cli.web"),
            autoescape=True,
            undefined=jinja2.ChainableUndefined,  # an older daemon may leave a field out
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._jinja.filters.update(FILTERS)
        self._jinja.globals.update(signs=drawing.SIGNS, version=__version__, files=self._static, root=door.root)

    async def handle(self, request: Request) -> Answer:
        """The answer to one request."""
        why = self._door.foreign(request.method, request.headers)
        if why:
            return Answer(421, f"{why}\n".encode(), "text/plain; charset=utf-8")
        path = self._door.inside(request.path)
        asked = request.path if path is None else path
        if asked.startswith("/static/"):  # also outside: what strangers are told has a style
            return self._file(asked.removeprefix("/static/"))
        if path is None:
            return self._stranger("Who are you?")
        return await self._inside(request._replace(path=path), time.monotonic())

    async def _inside(self, request: Request, now: float) -> Answer:
        """The answer to a request below the root; its path is the rest."""
        if request.path == "/" and "token" in request.query:
            return self._enter(request.query["token"], now)
        session = self._door.session(request.headers.get("cookie", ""), now)
        if session is None:
            return self._stranger("Who are you?")
        if request.method == "POST":
            return await self._act(request, session)
        if request.method not in ("GET", "HEAD"):
            return Answer(405, b"GET or POST\n", "text/plain")
        if request.path == "/live":
            return self._live(request.query.get("page", "/"), session)
        try:
            return await self._page(request.path, request.query, session)
        except CoorddError as exc:
            return self._refused(exc)

    # ---- coming in

    def _enter(self, token: str, now: float) -> Answer:
        session = self._door.enter(token, now)
        if session is None:
            return self._stranger("This address was used before")
        # A page that leads on, and no redirect: a strict cookie is not sent with a redirect that another site began.
        cookie = f"{self._door.cookie}={session.key}; HttpOnly; SameSite=Strict; Path={self._door.root}/"
        body = self._jinja.get_template("entered.html").render(title="welcome")
        return Answer(200, body.encode(), headers=(("Set-Cookie", cookie),))

    # ---- pages

    async def _page(self, path: str, query: Mapping[str, str], session: Session) -> Answer:
        page, arguments = _found(path)
        values = await self._values(page, arguments, query)
        said, session.notes = session.notes, []
        here = self._here(path, query)
        text = self._jinja.get_template(page.template).render(
            title=page.title.format(*arguments), here=here, path=path, notes=said, live=here, **values
        )
        return Answer(200, text.encode())

    def _here(self, path: str, query: Mapping[str, str]) -> str:
        return f"{self._door.root}{quote(path)}{'?' + _packed(query) if query else ''}"

    async def _values(self, page: Page, arguments: tuple[str, ...], query: Mapping[str, str]) -> dict[str, Any]:
        now = time.time()
        values = await page.model(models.View(self._source, query, now), *arguments)
        you = await self._source.ask("ping")
        # The same form sent twice is the same run.
        return {
            **values,
            "fresh": secrets.token_hex(6),
            "now": now,
            "you": you,
            "node": await self._source.ask("status"),
        }

    def _live(self, target: str, session: Session) -> Answer:
        """The changes of one page, as server-sent events: the parts of it that may change, drawn again."""
        parts = urlsplit(target)
        try:
            path = unquote(parts.path)
            _found(path)
        except RefusedError as exc:
            return self._refused(exc)
        if self._streams >= STREAMS_MAX:
            return Answer(503, f"{STREAMS_MAX} pages are kept up to date already\n".encode(), "text/plain")
        changes = self._changes(path, dict(parse_qsl(parts.query)), session)
        return Answer(200, kind=EVENTS, stream=changes)

    async def _changes(self, path: str, query: Mapping[str, str], session: Session) -> AsyncIterator[bytes]:
        self._streams += 1
        page, arguments = _found(path)
        template = self._jinja.get_template(page.template)
        fixed = {"here": self._here(path, query), "fresh": secrets.token_hex(6)}  # another id would be a change
        ends_at, drawn = trio.current_time() + STREAM_S, [b""]
        try:
            yield f"retry: {AGAIN_MS}\n\n".encode()
            while trio.current_time() < ends_at and self._door.is_open(session, time.monotonic()):
                seen = self._source.changes
                try:
                    values = await self._values(page, arguments, query)
                    context = template.new_context({**values, **fixed})
                    parts = [(event, _block(template, name, context)) for event, name in PARTS]
                except CoorddError as exc:
                    parts = [("trouble", str(exc))]
                said = [f"event: {event}\ndata: {json.dumps(text)}\n\n".encode() for event, text in parts]
                digests = [hashlib.sha256(one).digest() for one in said]
                news = [one for one, digest in zip(said, digests, strict=True) if digest not in drawn]
                drawn = digests
                if news:
                    yield b"".join(news)
                else:
                    yield b": alive\n\n"  # so that a browser that is gone is noticed
                await trio.sleep(SOON_S)
                await self._source.watch(seen, OFTEN_S)
        finally:
            self._streams -= 1

    # ---- changes

    async def _act(self, request: Request, session: Session) -> Answer:
        root = self._door.root
        back = request.form.get("back", "")
        if not BACK.fullmatch(self._door.inside(back) or ""):
            back = f"{root}/"
        try:
            action, params = actions.asked(request.path.removeprefix("/do/"), request.form)
            answer = await self._source.change(action.method, **params)
            session.notes.append(actions.told(action, params, answer))
            if action.method == "run.trigger" and isinstance(answer, dict) and "id" in answer:
                back = f"{root}/runs/{quote(answer['id'], safe='')}"
        except CoorddError as exc:
            return self._refused(exc, back)
        self._source.forget()
        return Answer(303, headers=(("Location", back),))

    # ---- parts

    def _file(self, name: str) -> Answer:
        if name not in self._static:
            return Answer(404, b"there is no such file\n", "text/plain")
        data, digest = self._static[name]
        return Answer(200, data, STATIC[name], headers=(("Cache-Control", "max-age=3600"), ("ETag", f'"{digest}"')))

    def _refused(self, exc: CoorddError, back: str = "") -> Answer:
        back = back or f"{self._door.root}/"
        if isinstance(exc, RefusedError):
            return self._message(STATUS.get(exc.kind, 409), str(exc), exc.hint or "", back)
        title = "No daemon answers" if isinstance(exc, UnavailableError) else "The daemon's answer is not understood"
        return self._message(503, title, str(exc), back)

    def _message(self, status: int, title: str, text: str, back: str) -> Answer:
        body = self._jinja.get_template("message.html").render(title=title, text=text, back=back)
        return Answer(status, body.encode())

    def _stranger(self, title: str) -> Answer:
        """For somebody who is not in: the root, which is a secret, does not stand in it."""
        body = self._jinja.get_template("message.html").render(title=title, text=NOT_IN, root="")
        return Answer(403, body.encode())


# Event -> the block of a page that it brings: what is seen, and the forms, which depend on it.
PARTS = (("page", "live"), ("forms", "below"))


def _block(template: jinja2.Template, name: str, context: jinja2.runtime.Context) -> str:
    """One block of a page; "" if its template has none."""
    return "".join(template.blocks[name](context)) if name in template.blocks else ""


NOT_IN = "Type `coordctl web --print-token` on this machine: it prints an address that opens this page once."


def _found(path: str) -> tuple[Page, tuple[str, ...]]:
    """The page of a path, and its arguments. Raises RefusedError."""
    for page in PAGES:
        match = page.pattern.fullmatch(path)
        if match:
            return page, match.groups()
    raise RefusedError("There is no such page", kind="unknown_run", hint="The pages are now, jobs, runs and cluster.")


def _static_files() -> dict[str, tuple[bytes, str]]:
    """Name -> (bytes, the start of their digest)."""
    folder = resources.files("coordd.cli.web") / "static"
    found = {}
    for name in STATIC:
        place = folder / "vendor" / name if name in ("htmx.min.js", "idiomorph.min.js") else folder / name
        data = place.read_bytes()
        found[name] = (data, hashlib.sha256(data).hexdigest()[:12])
    return found


def _packed(query: Mapping[str, str]) -> str:
    return "&".join(f"{quote(key)}={quote(value)}" for key, value in query.items())


# ---- filters: how values are written


def _moment(text: str | None, now: float) -> str:
    return phrases.moment(phrases.instant(text), now)


def _word(value: Any) -> str:
    """The name of a class in the style sheet."""
    return re.sub("[^a-z_]", "", str(value).lower())


FILTERS: dict[str, Callable[..., Any]] = {
    "moment": _moment,
    "duration": phrases.duration,
    "plain": phrases.plain,
    "advanced": phrases.advanced,
    "held": phrases.held,
    "size": phrases.size,
    "word": _word,
    "host": drawing.host,
    "decided": drawing.decided,
    "seg": lambda text: quote(str(text), safe=""),
    "output": lambda text: visible(str(text), lines=True),
}
