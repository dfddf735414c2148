"""The control methods of the ledger as a whole: how it is, its rows as a file and back, the end of a quarantine."""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any, NamedTuple, TypeVar

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import AcceptEpoch, Close, ListOpen
from coordd.core.ledger.runner_requests import Request
from coordd.core.ledger.words import HELD, RECOVERING, UNAVAILABLE
from coordd.errors import CoorddError, LedgerClosedError, RefusedError, UnavailableError
from coordd.ports import Ledger, Portable, Quarantined
from coordd.services.audit import DONE
from coordd.services.control.callers import ADMIN, OPERATOR, Caller, Method
from coordd.services.control.rpc import take
from coordd.services.driver import Driver
from coordd.services.ledger import CONNECTED, LedgerService, boottime
from coordd.services.views import objects

T = TypeVar("T")

# An export goes out in pieces of about this size: a client sees that it goes on, and no line grows with the ledger.
PIECE_BYTES = 256 * 1024

# The rows of one import, as text. They are held compressed, in about a tenth of that, until the last piece is there.
IMPORT_BYTES_MAX = 256 * 2**20

# An import whose next piece does not come within this makes way for another one.
IMPORT_IDLE_S = 60.0

# Writing an import takes longer than any question of a run; no longer than this.
IMPORT_S = 120.0


class Upload(NamedTuple):
    """An import that comes in pieces."""

    id: str
    pieces: list[bytes]
    size: int
    rows: int
    touched_at: float


class LedgerMethods:
    """The methods about the ledger itself; the base of all methods, for most of them change it."""

    def __init__(self, driver: Driver, ledger: LedgerService, ledger_url: str) -> None:
        self._driver = driver
        self._ledger = ledger
        self._ledger_url = ledger_url
        self._upload: Upload | None = None

    def table(self) -> dict[str, Method]:
        """Every method with the least role that may call it."""
        return {
            "ledger.status": Method(self.ledger_status),
            "ledger.export": Method(self.ledger_export, OPERATOR, logs=True),
            "ledger.import": Method(self.ledger_import, ADMIN),
            "ledger.accept_epoch": Method(self.ledger_accept_epoch, ADMIN),
            "ledger.accept-epoch": Method(self.ledger_accept_epoch, ADMIN),
            "ledger.accept_identity": Method(self.ledger_accept_identity, ADMIN),
            "ledger.accept-identity": Method(self.ledger_accept_identity, ADMIN),
        }

    # ---- what all changes share

    async def _change(self, request: Request[Answer]) -> Answer:
        """A change of the ledger that a person wants; it is told how it went."""
        answer = await self._ledger.write(request)
        if answer.word == UNAVAILABLE:
            raise UnavailableError("the ledger does not answer")
        return answer

    def _audit(self, caller: Caller, what: str, subject: str) -> None:
        if caller.asked is not None:
            caller.asked.recorded = True
        self._driver.journal_control(what, subject, caller.uid, caller.name, **caller.details(), outcome=DONE)

    # ---- status

    async def ledger_status(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        about = await self._ledger.query(lambda ledger: ledger.status())
        recovering_s = about.get("recovering_s", 0.0)
        state = self._ledger.state
        if recovering_s and state == CONNECTED:
            state = RECOVERING  # the sweep, which tells this node, is still to come
        node = self._driver.node
        return {
            "url": self._ledger_url,
            "state": state,
            "error": self._ledger.error or None,
            "weaker": [],
            **about,
            "recovering_s": round(recovering_s, 1),
            "pin": node.ledger if node.pinned else None,
            "not_used": node.braked or None,
            "nodes": objects.ledgers_of_nodes(node),
            "rules": objects.rules_view(node),
        }

    # ---- export and import

    async def ledger_export(self, params: dict[str, Any], caller: Caller) -> AsyncGenerator[dict[str, Any], None]:
        if take(params, "close", bool, False):
            await self._close(caller, force=take(params, "force", bool, False))
        rows = await self._ledger.query(lambda ledger: _portable(ledger).export())
        first = await self._ledger.query(lambda _: _piece(rows))
        return self._export(first, rows)

    async def _close(self, caller: Caller, *, force: bool) -> None:
        """Before the first row is read: nothing is written any more that the export would lack."""
        if caller.role < ADMIN:
            raise RefusedError(
                f"{caller.name} may not close the ledger",
                kind="not_permitted",
                hint="it takes root or the daemon's user",
            )
        # Read once before: who cannot be exported now must not be closed.
        await self._ledger.query(lambda ledger: _piece(_portable(ledger).export()))
        try:
            answer = await self._change(Close(force=force, by=caller.name))
        except LedgerClosedError:
            return  # by an export that was not finished, say
        if answer.word == RECOVERING:
            raise RefusedError(
                f"the ledger is recovering for {answer.left_s:.0f} s: what it has forgotten may still be put back",
                kind="try_later",
                hint="wait, then export again",
            )
        if answer.word == HELD:
            raise RefusedError(
                f"attempts of these runs hold leases of this ledger: {answer.by}",
                kind="in_use",
                hint="suspend the jobs and wait for their runs, or cancel them; --force ends what may be relaunched",
            )
        self._audit(caller, "ledger.close", "forced" if force else "nothing ran")
        self._driver.feed(self._driver.node.look_again)

    async def _export(
        self, piece: list[dict[str, Any]], rows: Iterator[dict[str, Any]]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The rows, piece by piece; the last message has their number, or the reason why there are no more."""
        count = 0
        while piece:
            count += len(piece)
            yield {"rows": piece}
            try:
                piece = await self._ledger.query(lambda _: _piece(rows))
            except CoorddError as exc:  # the question was answered long ago: this is all that can be said
                yield {"error": str(exc)}
                return
        yield {"total": count}

    async def ledger_import(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        rows: list[Any] = take(params, "rows", list, [])
        replace = take(params, "replace", bool, False)
        more = take(params, "more", bool, False)
        upload = self._taken_up(take(params, "import", str, ""), rows)
        if more:
            if caller.asked is not None:
                caller.asked.recorded = True  # nothing is changed until the last piece is there
            self._upload = upload
            return {"import": upload.id, "rows": upload.rows}
        self._upload = None
        if not upload.rows:
            raise RefusedError("no rows", kind="bad_row", hint="take a file that `ledger export` wrote")
        what = f"{upload.rows} rows" + (" instead of all that was there" if replace else "")
        try:
            count = await self._ledger.query_any(
                lambda ledger: _portable(ledger).import_(_rows(upload), replace=replace), IMPORT_S
            )
        except UnavailableError as exc:
            self._audit(caller, "ledger.import", f"{what}; whether it took place is not known")
            raise UnavailableError(
                f"{exc}; it may have taken place all the same: see `coordctl ledger status`, then import again if it "
                "has not"
            ) from exc
        self._audit(caller, "ledger.import", what)
        self._driver.feed(self._driver.node.look_again)
        return {"rows": count, "replaced": replace}

    def _taken_up(self, ident: str, rows: list[Any]) -> Upload:
        """The import that these rows belong to, with them."""
        now, upload = boottime(), self._upload
        if upload is not None and now - upload.touched_at > IMPORT_IDLE_S:
            upload = self._upload = None
        if ident and (upload is None or upload.id != ident):
            raise RefusedError(f"there is no import {ident[:40]!r} any more", kind="unknown_import", hint="start again")
        if not ident and upload is not None:
            raise RefusedError(
                "another import is under way", kind="try_later", hint=f"it is given up after {IMPORT_IDLE_S:.0f} s idle"
            )
        if upload is None:
            upload = Upload(secrets.token_hex(8), [], 0, 0, now)
        text = json.dumps(rows, separators=(",", ":")).encode()
        if upload.size + len(text) > IMPORT_BYTES_MAX:
            self._upload = None
            raise RefusedError(
                f"an import of more than {IMPORT_BYTES_MAX // 2**20} MiB",
                kind="too_large",
                hint="a shorter [history] keep, before it is exported, makes it smaller",
            )
        pieces = [*upload.pieces, zlib.compress(text, 1)]
        return Upload(upload.id, pieces, upload.size + len(text), upload.rows + len(rows), now)

    # ---- quarantine

    async def ledger_accept_epoch(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        if not await self._ledger.query(lambda ledger: isinstance(ledger, Quarantined)):
            raise RefusedError("this ledger is one file and has no quarantine", kind="not_recovering")
        left_s = (await self._change(AcceptEpoch())).left_s
        if left_s > 0:
            self._audit(caller, "ledger.accept_epoch", f"{left_s:.0f} s before its end")
            self._driver.feed(self._driver.node.look_again)
        return {"ended": left_s > 0, "left_s": round(left_s, 1)}

    async def ledger_accept_identity(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """A person says that the ledger which is there now is the one to use."""
        node = self._driver.node
        before = node.ledger if node.pinned else ""
        found = await self._ledger.query_any(_identity_of)
        self._driver.feed(self._driver.node.accept_ledger, found)
        self._ledger.reset()
        self._audit(caller, "ledger.accept_identity", f"{found}, before: {before or 'none'}")
        return {"identity": found, "before": before or None, "not_used": node.braked or None}


def _identity_of(ledger: Ledger) -> str:
    """The identity of a ledger that is there; one that has none is given one."""
    return ledger.ask(ListOpen()).identity


def _portable(ledger: Ledger) -> Portable:
    if not isinstance(ledger, Portable):
        raise RefusedError("this ledger cannot be exported", kind="not_available")
    return ledger


def _piece(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The next rows, in a thread: about PIECE_BYTES of them; [] when there are no more."""
    piece: list[dict[str, Any]] = []
    size = 0
    while size < PIECE_BYTES and (row := next(rows, None)) is not None:
        piece.append(row)
        size += len(json.dumps(row))
    return piece


def _rows(upload: Upload) -> Iterator[Any]:
    for piece in upload.pieces:
        yield from json.loads(zlib.decompress(piece))
