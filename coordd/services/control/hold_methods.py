"""The control methods that stop something until an instant: job.suspend, job.resume, node.drain, node.resume.

Also those that give a pool another size: pool.list, pool.set, pool.unset.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from coordd.config.values import SIZE_MAX
from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.schedule import parse_instant
from coordd.core.ledger.limits.text import POOL, slots
from coordd.core.ledger.requests import Keep, Suspend
from coordd.core.ledger.rows import ALL, OF_NODE, OF_POOL, Hold, Row
from coordd.core.ledger.steps import HOLDING
from coordd.core.ledger.words import FINISHED, INSTANT_MAX, PENDING, RECEIVED, RETRY, STARTED, UNKNOWN, Policy
from coordd.core.members.membership import LEFT
from coordd.core.names import host_of
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Ledger
from coordd.services.control.callers import OPERATOR, Caller, Method
from coordd.services.control.job_methods import JobMethods
from coordd.services.control.rpc import INVALID_PARAMS, RpcError, take
from coordd.services.views import objects

# Characters of a note.
NOTE_MAX = 500

# So many runs in each state are looked at, for the figures of the pools.
POOL_RUNS_MAX = 1000


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
            "pool.list": Method(self.pool_list),
            "pool.set": Method(self.pool_set, OPERATOR),
            "pool.unset": Method(self.pool_unset, OPERATOR),
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
        hold = Hold(by=caller.name, uid=caller.uid, at=self._driver.now().wall, until=said.until, note=said.note)
        kept = True
        if name == node.hostname:
            self._may_turn()
            try:
                await self._keep(OF_NODE + name, caller, said)
                self._driver.feed(node.drain_kept, name, hold)
            except UnavailableError:
                if said.until:  # only the ledger's clock ends it
                    raise
                kept = False
                self._driver.feed(node.drain, hold)
        else:
            old = [one for one in node.rulebook.held_back_by() if host_of(one) == name]
            self._knows_holds(old, f"ask on {name} itself")
            await self._keep(OF_NODE + name, caller, said)
            self._driver.feed(node.drain_kept, name, hold)
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
        self._driver.feed(node.drain_kept, name, None)
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

    # ---- pools

    async def pool_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        node = self._driver.node

        def read(ledger: Ledger) -> list[Row]:
            states = (RECEIVED, STARTED, UNKNOWN, PENDING, RETRY)
            return [row for state in states for row in ledger.runs(state=state, limit=POOL_RUNS_MAX)]

        rows = await self._ledger.query(read)
        wall = self._driver.now().wall
        active = Counter(
            key for row in rows if row.state in HOLDING for key, _ in slots(Policy.unpack(row.policy).limits)
        )
        waiting = Counter(
            job.pool
            for row in rows
            if row.state not in HOLDING and row.not_before <= wall and (job := node.jobs.get(row.job)) is not None
        )
        return [
            {**self._pool(name), "active": active[POOL + name], "waiting": waiting[name]}
            for name in sorted(self._pools())
        ]

    async def pool_set(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        name, size, until = self._named_pool(params), take(params, "size", int), self._asked(params).until
        if not 0 <= size <= SIZE_MAX:
            raise RpcError(INVALID_PARAMS, f"the size must be 0 to {SIZE_MAX}, found {size}", kind="invalid_params")
        await self._keep(OF_POOL + name, caller, Asked(until, str(size)))
        self._audit(caller, "pool.set", Asked(until, str(size)).text(f"pool {name}"))
        self._driver.feed(self._driver.node.look_again)
        return {**self._pool(name), "size": size, "until": objects.instant(until), "by": caller.name}

    async def pool_unset(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        name = self._named_pool(params)
        await self._keep(OF_POOL + name, caller, None)
        self._audit(caller, "pool.unset", f"pool {name}")
        self._driver.feed(self._driver.node.look_again)
        return {"name": name, "size": self._driver.node.drains.pools.get(name, 0), "until": None, "by": None}

    def _pools(self) -> set[str]:
        node = self._driver.node
        return {*node.drains.pools, *(job.pool for job in node.jobs.values() if job.pool)}

    def _named_pool(self, params: dict[str, Any]) -> str:
        name: str = take(params, "name", str)
        if name not in self._pools():
            hint = "a pool is named in [pools] of coordd.toml; " + nearest(name, self._pools())
            raise RefusedError(f"no pool {name!r} is known here", kind="unknown_pool", hint=hint)
        return name

    def _pool(self, name: str) -> dict[str, Any]:
        """Its size, as the last sweep knows it, and who set it until when."""
        node = self._driver.node
        hold = node.drains.holds.get(OF_POOL + name)
        if hold is None or not hold.note.isdecimal():
            return {"name": name, "size": node.drains.pools.get(name, 0), "until": None, "by": None}
        return {"name": name, "size": int(hold.note), "until": objects.instant(hold.until), "by": hold.by}

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
