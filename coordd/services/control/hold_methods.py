"""The control methods that stop something until an instant: job.suspend, job.resume, node.drain, node.resume."""

from __future__ import annotations

from typing import Any, NamedTuple

from coordd.core.jobs.schedule import parse_instant
from coordd.core.ledger.requests import Keep, Suspend
from coordd.core.ledger.rows import ALL, OF_NODE, Hold
from coordd.core.ledger.words import FINISHED, INSTANT_MAX
from coordd.core.members.membership import LEFT
from coordd.errors import RefusedError, UnavailableError
from coordd.services.control.callers import OPERATOR, Caller, Method
from coordd.services.control.job_methods import JobMethods
from coordd.services.control.rpc import INVALID_PARAMS, RpcError, take
from coordd.services.views import objects

# Characters of a note.
NOTE_MAX = 500


class Asked(NamedTuple):
    """What a caller said about a hold: ``until`` in Unix seconds, 0.0 for no end."""

    until: float
    note: str

    def text(self, subject: str) -> str:
        """For the audit."""
        end = f" until {objects.instant(self.until)}" if self.until else ""
        return f"{subject}{end}" + (f": {self.note}" if self.note else "")


class HoldMethods(JobMethods):
    """The methods that suspend and drain, and those that end it."""

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "node.drain": Method(self.node_drain, OPERATOR),
            "node.resume": Method(self.node_resume, OPERATOR),
            "job.suspend": Method(self.job_suspend, changes=True),
            "job.resume": Method(self.job_resume, changes=True),
            **super().table(),
        }

    # ---- jobs

    async def job_suspend(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        said = self._asked(params)
        if take(params, "all", bool, False):
            return await self._pause(caller, said)
        job = self._job(params)
        self._may_operate(caller, job.name)
        suspend = Suspend(
            job=job.name, suspended=True, by=caller.name, uid=caller.uid, until=said.until, note=said.note
        )
        answer = await self._change(suspend)
        if answer.word == FINISHED:
            raise _is_over(said.until)
        self._audit(caller, "job.suspend", said.text(job.name))
        self._driver.feed(self._driver.node.look_again)
        begun = answer.by.split()
        return {"job": job.name, "suspended": True, "version": answer.token, "begun": begun, **_told(caller, said)}

    async def job_resume(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        if take(params, "all", bool, False):
            return await self._pause(caller, None)
        job = self._job(params)
        self._may_operate(caller, job.name)
        answer = await self._change(Suspend(job=job.name, suspended=False, by=caller.name))
        self._audit(caller, "job.resume", job.name)
        self._driver.feed(self._driver.node.look_again)
        paused = self._driver.node.drains.pause is not None
        return {"job": job.name, "suspended": False, "version": answer.token, "all_suspended": paused}

    async def _pause(self, caller: Caller, said: Asked | None) -> dict[str, Any]:
        """Suspend all jobs; None: end that. Jobs that are suspended by themselves stay so."""
        if caller.role < OPERATOR:
            raise RefusedError(
                f"{caller.name} may not suspend or resume all jobs",
                kind="not_permitted",
                hint="this needs the operator group",
            )
        if said is not None:
            self._knows_holds(self._driver.node.rulebook.held_back_by(), "suspend each job by its name")
        begun = await self._keep(ALL, caller, said)
        self._audit(caller, "job.suspend" if said else "job.resume", said.text("all jobs") if said else "all jobs")
        self._driver.feed(self._driver.node.look_again)
        return {
            "job": "all",
            "suspended": said is not None,
            **({"begun": begun, **_told(caller, said)} if said else {}),
        }

    # ---- nodes

    async def node_drain(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        node, said = self._driver.node, self._asked(params)
        name = self._named(params)
        kept = True
        if name == node.hostname:
            self._may_turn()
            hold = Hold(by=caller.name, uid=caller.uid, at=self._driver.now().wall, until=said.until, note=said.note)
            try:
                await self._keep(OF_NODE + name, caller, said)
                self._driver.feed(node.drain_kept, hold)
            except UnavailableError:
                if said.until:  # only the ledger's clock ends it
                    raise
                kept = False
                self._driver.feed(node.drain, hold)
        else:
            old = [one for one in node.rulebook.held_back_by() if one.rpartition(".")[0] == name]
            self._knows_holds(old, f"ask on {name} itself")
            await self._keep(OF_NODE + name, caller, said)
        self._audit(caller, "node.drain", said.text(name))
        return {**self._present(name), **_told(caller, said), "kept": kept}

    async def node_resume(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        node, name = self._driver.node, self._named(params)
        if name == node.hostname:
            self._may_turn()
        try:
            await self._keep(OF_NODE + name, caller, None)
        except UnavailableError:
            if name != node.hostname or node.drains.kept_here is None:
                raise
        if name == node.hostname:
            self._driver.feed(node.drain_kept, None)
        self._audit(caller, "node.resume", name)
        return self._present(name)

    def _named(self, params: dict[str, Any]) -> str:
        """The hostname of the node that is meant: this one, or a known member."""
        node = self._driver.node
        named: str = take(params, "node", str, "")
        if named in ("", node.hostname, node.full_hostname):
            return node.hostname
        found = [one.hostname for one in node.members.values() if named in (one.hostname, one.name)]
        if not found and OF_NODE + named not in node.drains.holds:  # a drained one may be forgotten since
            known = ", ".join(sorted([node.hostname, *[m.hostname for m in node.members.values()]])[:10])
            raise RefusedError(f"no node {named!r} is known here", kind="unknown_node", hint=f"known: {known}")
        return found[0] if found else named

    def _may_turn(self) -> None:
        if self._driver.node.state not in ("ready", "draining"):
            raise RefusedError(f"the node is {self._driver.node.state}", kind="try_later")

    def _present(self, name: str) -> dict[str, Any]:
        """How that node is now; another node drains when it sweeps next, and is granted nothing until then."""
        node = self._driver.node
        if name == node.hostname:
            return {"node": name, "state": node.state, "active": len(node.pursuits.running), "self": True}
        member = node.members.get(name)
        if member is None or member.state == LEFT:
            return {"node": name, "state": LEFT, "active": 0, "self": False}
        return {"node": name, "state": member.says, "active": member.active, "self": False}

    # ---- both

    def _asked(self, params: dict[str, Any]) -> Asked:
        note: str = take(params, "note", str, "").strip()
        if len(note) > NOTE_MAX or not all(character.isprintable() for character in note):
            raise RpcError(
                INVALID_PARAMS, f"the note must be one line of at most {NOTE_MAX} characters", kind="invalid_params"
            )
        given = params.get("until")
        until = take(params, "until", float, 0.0) if not isinstance(given, str) else _instant(given)
        if "until" in params and not self._driver.now().wall < until <= INSTANT_MAX:
            raise _is_over(until)
        return Asked(float(until), note)

    async def _keep(self, key: str, caller: Caller, said: Asked | None) -> list[str]:
        """Write a hold, or end it. Returns the runs that start nevertheless: they are past their gate."""
        asked = said or Asked(0.0, "")
        keep = Keep(key=key, held=said is not None, by=caller.name, uid=caller.uid, until=asked.until, note=asked.note)
        answer = await self._change(keep)
        if answer.word == FINISHED:
            raise _is_over(asked.until)
        return answer.by.split()

    def _knows_holds(self, old: list[str], instead: str) -> None:
        """Raises RefusedError if nodes of the version before would not obey."""
        if old:
            raise RefusedError(
                f"a node of an older version does not know this: {', '.join(old[:5])}",
                kind="old_version",
                hint=f"upgrade it, or {instead}",
            )


def _instant(text: str) -> float:
    try:
        return parse_instant(text, "UTC")
    except ValueError as exc:
        raise RpcError(INVALID_PARAMS, f"until: {exc}", kind="invalid_params") from exc


def _is_over(until: float) -> RefusedError:
    at = objects.instant(until) if 0.0 < until <= INSTANT_MAX else f"{until:g}"
    return RefusedError(
        f"until {at}: expected an instant ahead of the clocks of this node and of the ledger",
        kind="bad_argument",
        hint="such as 2026-12-01T02:00Z",
    )


def _told(caller: Caller, said: Asked) -> dict[str, Any]:
    return {"until": objects.instant(said.until), "note": said.note or None, "by": caller.name, "uid": caller.uid}
