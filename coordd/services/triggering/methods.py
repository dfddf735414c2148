"""The control methods about triggers: trigger.list and trigger.show. The node that polls a trigger knows what waits."""

from __future__ import annotations

import json
from typing import Any

from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.job import Job
from coordd.core.jobs.trigger import AMQP, EVENT, FILE, HTTP, REDIS, Trigger
from coordd.core.names import host_of
from coordd.core.triggers.polling import subject
from coordd.core.visible import visible
from coordd.errors import RefusedError, UnavailableError
from coordd.services.backends.methods import RevisionMethods
from coordd.services.control.callers import VIEWER, Caller, Method
from coordd.services.control.rpc import take
from coordd.services.triggering import explaining
from coordd.services.triggering.service import Triggering, Watched
from coordd.services.views.objects import instant

# The kind of question to other nodes, and how many triggers one answer tells of.
WHAT = "triggers"
TOLD_MAX = 150


class TriggerMethods(RevisionMethods):
    """What starts jobs beside their schedules."""

    triggering: Triggering | None = None

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {"trigger.list": Method(self.trigger_list), "trigger.show": Method(self.trigger_show), **super().table()}

    def serve_triggers(self, triggering: Triggering) -> None:
        """Answer about these. Called before the relay runs."""
        self.triggering = triggering
        self._relay.serve(WHAT, self._answer)

    async def trigger_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        job = take(params, "job", str, "")
        found = [(one, trigger) for one in self._triggered() if job in ("", one.name) for trigger in one.triggers]
        told = await self._told(found)
        return [self._trigger_view(one, trigger, told.get((one.name, trigger.name))) for one, trigger in found]

    async def trigger_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        job = self._job(params)
        trigger = self._one(job, take(params, "name", str, ""))
        told: dict[str, Any] | None = None
        poller = self._poller(job, trigger)
        if self.triggering is not None and (own := self.triggering.own(job.name, trigger.name)) is not None:
            told = own.details()
        elif poller and poller != self._driver.node.full_hostname:
            try:
                said = await self._relay.ask_one(WHAT, f"{job.name} {trigger.name}", poller)
                told = _read(said)[0]
            except (UnavailableError, IndexError):
                told = None
        view = self._trigger_view(job, trigger, told)
        told = told or {}
        view["args"] = dict(trigger.args)
        view["waiting_first"] = told.get("waiting_first")
        view["refused_now"] = told.get("refused_now")
        for name in ("dead_last", "taken_last"):
            view[name] = [{**one, "at": instant(one["at"])} for one in told.get(name) or []]
        return view

    async def why(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Also of a file (its absolute path), and what the triggers of a job do."""
        subject = take(params, "id", str, "") or take(params, "job", str, "")
        if subject.startswith("/"):
            return await self._why_file(subject, caller)
        told = await super().why(params, caller)
        job = self._driver.node.jobs.get(subject)
        if job is not None and job.triggers and caller.role > VIEWER:
            said = explaining.of_job(await self.trigger_list({"job": subject}, caller))
            told["why"] = told["sentence"] = f"{told['sentence']} {said}"
        return told

    async def _why_file(self, path: str, caller: Caller) -> dict[str, Any]:
        """Why a file has no run, or which run it is."""
        if caller.role <= VIEWER:
            raise RefusedError(
                "viewers do not see arrivals", kind="not_permitted", hint="ask an operator (see docs/operate.md)"
            )
        found = [
            (job, one)
            for job in self._triggered()
            for one in job.triggers
            if one.kind == FILE and explaining.matches(one, path)
        ]
        said: list[str] = []
        if not found:
            known = [one.path for job in self._triggered() for one in job.triggers if one.kind == FILE]
            some = ", ".join(known[: explaining.SHOWN_MAX]) or "there is no such trigger"
            said = [f"{visible(path)[:300]}: no trigger of the kind file has a pattern that fits it ({some})."]
        for job, trigger in found[: explaining.SHOWN_MAX]:
            told = await self._asked_why(job, trigger, path)
            said.append(told["sentence"])
            if told.get("run"):
                said.append((await super().why({"id": told["run"]}, caller))["sentence"])
        sentence = " ".join(said)
        return {"id": path, "why": sentence, "sentence": sentence, "timeline": [], "unheard": []}

    async def _asked_why(self, job: Job, trigger: Trigger, path: str) -> dict[str, str]:
        """What the node that polls says of a file."""
        poller = self._poller(job, trigger)
        of = f"{job.name}/{trigger.name}"
        if self.triggering is not None and (own := self.triggering.own(job.name, trigger.name)) is not None:
            return explaining.explained(own, path)
        if not poller:
            return {"sentence": f"{visible(path)[:300]}: no node polls the trigger {of} now (coordctl trigger list)."}
        try:
            told = _read(await self._relay.ask_one(WHAT, f"{job.name} {trigger.name} {path}", poller))
            return {"sentence": str(told[0]["sentence"]), "run": str(told[0].get("run") or "")}
        except (UnavailableError, IndexError, KeyError):
            return {"sentence": f"{host_of(poller)}, which polls the trigger {of}, does not answer now."}

    def _triggered(self) -> list[Job]:
        return [job for _, job in sorted(self._driver.node.jobs.items()) if job.triggers]

    def _one(self, job: Job, name: str) -> Trigger:
        """The trigger of that name, or the only one."""
        names = [one.name for one in job.triggers]
        if not name and len(names) == 1:
            return job.triggers[0]
        for one in job.triggers:
            if one.name == name:
                return one
        if not names:
            raise RefusedError(f"{job.name} has no trigger", kind="unknown_trigger", hint="coordctl trigger list")
        what = f"{job.name} has no trigger {name[:60]!r}" if name else f"{job.name} has {len(names)} triggers"
        known = nearest(name, names) if name else f"{', '.join(names)}: coordctl trigger show {job.name} {names[0]}"
        raise RefusedError(what, kind="unknown_trigger", hint=known)

    def _poller(self, job: Job, trigger: Trigger) -> str:
        return self.triggering.polling.poller(subject(job.name, trigger.name)) if self.triggering is not None else ""

    async def _told(self, found: list[tuple[Job, Trigger]]) -> dict[tuple[str, str], dict[str, Any]]:
        """What the nodes that poll say, by job and trigger."""
        own = self._driver.node.full_hostname
        pollers = {self._poller(job, trigger) for job, trigger in found} - {"", own}
        answers = await self._relay.ask(WHAT, "", sorted(pollers)) if pollers else {}
        said = [one for answer in answers.values() if answer for one in _read(answer)]
        said += [one.summary() for one in self.triggering.polled()] if self.triggering is not None else []
        return {(str(one.get("job")), str(one.get("name"))): one for one in said}

    async def _answer(self, _sender: str, asked: str) -> str:
        """To another node: about all that this one polls, one trigger ("JOB NAME"), or a file ("JOB NAME PATH")."""
        if self.triggering is None:
            return "[]"
        if not asked:
            return json.dumps([one.summary() for one in self.triggering.polled()[:TOLD_MAX]])
        job, _, rest = asked.partition(" ")
        name, _, path = rest.partition(" ")
        own: Watched | None = self.triggering.own(job, name)
        if own is not None and path:
            return json.dumps([explaining.explained(own, path)])
        return json.dumps([own.details()] if own is not None else [])

    def _of_calls(self, job: str, name: str) -> dict[str, Any]:
        """What this node's listener says of a route."""
        calls = self.triggering.calls if self.triggering is not None else None
        if calls is None:
            return {"problem": "this node does not listen: [triggers] listen is empty"}
        problem = calls.problem or calls.problems.get((job, name), "")
        return {"taken": calls.taken[job, name], "refused": calls.refused[job, name], "problem": problem}

    def _trigger_view(self, job: Job, trigger: Trigger, told: dict[str, Any] | None) -> dict[str, Any]:
        poller = self._poller(job, trigger)
        told = told or {}
        state = "every node" if not trigger.polled else "polled" if poller else "nobody polls"
        if trigger.kind == HTTP:
            told = self._of_calls(job.name, trigger.name)
        if not job.enabled:
            state = "held"
        elif self._driver.node.drains.pause is not None or job.name in self._driver.node.drains.suspended:
            state = "suspended"
        return {
            "job": job.name,
            "name": trigger.name,
            "kind": trigger.kind,
            "about": trigger.about,
            "state": state,
            "poller": host_of(poller) or None,
            "every_s": trigger.every_s if trigger.polled else None,
            "max_open": trigger.max_open if trigger.kind != EVENT else None,
            "looked_at": instant(told["looked_at"]) if told.get("looked_at") else None,
            "waiting": told.get("waiting"),
            "dead": told.get("dead") if trigger.kind in (AMQP, REDIS) else None,
            "taken": told.get("taken"),
            "refused": told.get("refused"),
            "problem": told.get("problem") or None,
        }


def _read(said: str) -> list[dict[str, Any]]:
    """Another node's answer."""
    try:
        found = json.loads(said)
    except ValueError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
