"""The answers of the control socket that ``coordd.client`` has types for."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Status(TypedDict):
    """The state of this node now."""

    node: str
    cluster: str
    state: str
    version: str
    pid: int
    incarnation: str
    clock: int
    bus: dict[str, Any]
    ledger: dict[str, Any]
    members: dict[str, int]
    runs: dict[str, Any]
    breakers_open: list[str]
    late_jobs: list[str]
    boot: list[dict[str, Any]]
    uptime_s: float


class NodeView(TypedDict):
    """One node, as the node that answers knows it."""

    hostname: str
    pid: int
    incarnation: str
    state: str
    clock: int
    last_seen_s: float | None
    active: int
    freq: float
    jobs_digest: str
    self: bool


class Triggered(TypedDict):
    """A recorded trigger. ``durable`` says where it is recorded: in the ledger, or on the
    node while the ledger is away. ``state``: of the run, as the ledger says. ``duplicate``: `dedupe` of the job
    knows its key, so nothing new starts.
    """

    id: str
    durable: str
    state: NotRequired[str]
    duplicate: NotRequired[bool]


class Run(TypedDict):
    """One run. Instants are ISO 8601 in UTC. ``args``: "(hidden)" for viewers. ``progress``: only if asked for."""

    id: str
    job: str
    fire_time: str | None
    state: str
    attempt: int
    node: str | None
    token: int | None
    application_id: str | None
    exit_code: int | None
    received_at: str | None
    started_at: str | None
    ended_at: str | None
    runtime_s: float | None
    reason: str | None
    args: Any
    by: str | None
    only_node: str | None
    commit_token: int | None
    progress: NotRequired[dict[str, Any] | None]


class RunShown(Run):
    """One run with its attempts, and what happened when."""

    attempts: list[dict[str, Any]]
    timeline: list[dict[str, Any]]


class RunLog(TypedDict):
    """The end of an attempt's output, and the node that it is from. ``cut``: the log is longer."""

    id: str
    attempt: int
    node: str
    here: bool
    path: str
    text: str
    cut: bool


class FireTime(TypedDict):
    """What became of one fire time; ``decision`` is None where nobody has decided it. ``earlier``: only in the first,
    True where there are earlier ones than the answer has.
    """

    fire_time: str
    due: str
    decision: str | None
    reason: str | None
    run: str | None
    state: str | None
    earlier: NotRequired[bool]


class Why(TypedDict):
    """Why a run or a job is as it is, in one sentence. ``found``: is there such a run or job. ``what_if``: only if
    ``without`` was given.
    """

    id: str
    sentence: str
    found: bool
    timeline: list[dict[str, Any]]
    what_if: NotRequired[str]
