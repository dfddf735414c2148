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
    jobs_digest: str
    self: bool


class Triggered(TypedDict):
    """A recorded trigger. ``durable`` says where it is recorded: in the ledger, or on the
    node while the ledger is away. ``duplicate``: `dedupe` of the job knows its key, so nothing new starts.
    """

    id: str
    durable: str
    duplicate: NotRequired[bool]


class Run(TypedDict):
    """One run. Instants are ISO 8601 in UTC."""

    id: str
    job: str
    fire_time: str
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


class RunShown(Run):
    """One run with its attempts."""

    attempts: list[dict[str, Any]]


class Why(TypedDict):
    """Why a run or a job is as it is, in one sentence."""

    id: str
    sentence: str
