"""What a page changes: each form of the pages is one call of the daemon, which decides whether its person may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from coordd.errors import RefusedError


class Action(NamedTuple):
    """``method`` of the control socket; ``fields``: the form's fields that it takes; ``done``: what is told then."""

    method: str
    fields: tuple[str, ...]
    done: str


ACTIONS = {
    "trigger": Action("run.trigger", ("job", "node", "note", "id"), "{id} was triggered"),
    "cancel": Action("run.cancel", ("id", "note"), "{id} is asked to end"),
    "revoke": Action("run.revoke", ("id", "note"), "{id} is revoked: it will not start"),
    "suspend": Action("job.suspend", ("job", "until", "note"), "{job} is suspended on every node"),
    "resume": Action("job.resume", ("job",), "{job} is no longer suspended"),
    "drain": Action("node.drain", ("node", "until", "note"), "{node} takes no new runs"),
    "undrain": Action("node.resume", ("node",), "{node} takes runs again"),
}

# Actions whose reason a person must give: they keep something from running.
REASONED = ("cancel", "revoke", "suspend", "drain")


def asked(name: str, form: Mapping[str, str]) -> tuple[Action, dict[str, Any]]:
    """The action, and the parameters of its call. Raises RefusedError."""
    action = ACTIONS.get(name)
    if action is None:
        raise RefusedError(f"there is no action {name[:40]!r}", kind="unknown_action", hint=", ".join(ACTIONS))
    params = {field: form[field].strip() for field in action.fields if form.get(field, "").strip()}
    if name in REASONED and "note" not in params:
        raise RefusedError(f"{name} needs a reason", kind="invalid_params", hint="say why, for later readers")
    return action, params


def told(action: Action, params: Mapping[str, Any], answer: Any) -> str:
    """The sentence for the person who asked for it."""
    said = answer if isinstance(answer, dict) else {}
    return action.done.format_map({"id": "", "job": "", "node": "this node", **params, **said})
