"""What others are told of this node: hooks; metrics and the mirror if they are configured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import trio

from coordd.config.hooks.delivery import socket_path
from coordd.config.hooks.hook import jobs_of
from coordd.config.hooks.sink import SinkHook, shown
from coordd.config.hooks.sinks import sinks_of
from coordd.config.sections import Config
from coordd.config.tracing import endpoint
from coordd.core.breaker import Rule
from coordd.core.jobs.job import Job
from coordd.ports import Files, Mirror, SpanExporter
from coordd.services.applications.reconciling import Reconciling
from coordd.services.checks import view as check_views
from coordd.services.checks.methods import CheckMethods
from coordd.services.checks.service import Checks
from coordd.services.control.doctor import OK, WARN, Check, check
from coordd.services.driver import Driver
from coordd.services.faststart.archives import Archives
from coordd.services.faststart.pool import Pool
from coordd.services.guarding.listener import GuardListener
from coordd.services.health import Health
from coordd.services.hooks.service import Hooks
from coordd.services.ledger import LedgerService
from coordd.services.mirror.service import Mirrored
from coordd.services.plugged.supervising import Services
from coordd.services.plugged.topics import Topics
from coordd.services.progress.service import Progress
from coordd.services.publishing.checks import message_checks
from coordd.services.publishing.passing import Passing
from coordd.services.sinks.service import Sinks
from coordd.services.tracing.service import Tracing
from coordd.services.triggering.calls import Calls
from coordd.services.triggering.checks import trigger_checks
from coordd.services.triggering.service import Queues, Triggering
from coordd.services.views.troubles import Troubles

if TYPE_CHECKING:
    from coordd.services.metrics.service import Metrics


class Outlets(NamedTuple):
    """The ways to receivers elsewhere. ``exporter``: None without traces; ``mirror``: None without [mirror]; ``guard``:
    None without [guard] listen; ``calls``: None without [triggers] listen.
    """

    sinks: Sinks
    exporter: SpanExporter | None
    mirror: Mirror | None
    progress: Progress
    reconciling: Reconciling
    archives: Archives
    pool: Pool
    files: Files
    queues: Queues
    passing: Passing
    guard: GuardListener | None = None
    calls: Calls | None = None


class Observing:
    """The services that only watch."""

    def __init__(
        self,
        config: Config,
        driver: Driver,
        ledger: LedgerService,
        troubles: Troubles,
        health: Health,
        methods: CheckMethods,
        outlets: Outlets,
    ) -> None:
        readiness, kept = health.readiness, os.path.join(config.node.state_dir, "hooks.json")
        self.hooks = Hooks((), kept, driver, ledger, troubles, readiness)
        self.sinks = methods.sinks = outlets.sinks
        self.sinks.use(config.history)
        self.reconciling = methods.reconciling = outlets.reconciling
        self.progress = methods.progress = outlets.progress
        self.progress.serve(methods._relay)
        self._driver = driver
        self._methods = methods
        self._use_breakers(config)
        self.checked = methods.checks = self.hooks.checks = Checks(config.checks, driver, ledger)
        methods._relay.serve("checks", self._told_checks)
        about = {"node": config.node.name, "cluster": config.cluster.name, "socket": config.control.socket}
        self.services = Services(config.services, about)
        driver.own_breakers.of_services = self.services.breakers
        self.archives = outlets.archives
        self.pool = outlets.pool
        self.passing = methods.passing = outlets.passing
        health.percents = self.progress.percents
        self.guard = outlets.guard
        self._keep_s = config.history.keep_s
        self.triggering = Triggering(driver, ledger, outlets.files, lambda: self._keep_s, outlets.queues, outlets.calls)
        methods.serve_triggers(self.triggering)
        self.topics = Topics(driver, about)
        self._otlp = config.tracing.otlp
        self.hooks.traced = outlets.exporter is not None
        self.tracing = Tracing(outlets.exporter, driver, ledger) if outlets.exporter is not None else None
        mirror = outlets.mirror
        self.mirrored = Mirrored(mirror, driver, arguments=config.mirror.args) if mirror is not None else None
        self.metrics: Metrics | None = None
        if config.metrics.listen or config.metrics.textfile:
            from coordd.services.metrics.service import Metrics  # it loads prometheus-client

            self.metrics = Metrics(config.metrics, driver, ledger, troubles, readiness, methods.fires_due, self.sinks)
            self.metrics.tracing = self.tracing
            self.metrics.triggering = self.triggering
            self.metrics.checks = self.checked
            self.metrics.messages = methods

    def use(self, config: Config) -> None:
        """The configuration was read again."""
        self.checked.use(config.checks)
        self._use_breakers(config)
        self.sinks.use(config.history)
        self.services.use(config.services)
        self._keep_s = config.history.keep_s

    def _use_breakers(self, config: Config) -> None:
        for breaker in self._driver.own_breakers.connections:
            breaker.use(config.breakers.get(breaker.name, Rule()))

    async def _told_checks(self, _sender: str, _subject: str) -> str:
        return check_views.packed(self.checked.rows())

    def hook_jobs(self, config: Config, jobs: Mapping[str, Job]) -> dict[str, Job]:
        """The hooks, sinks and publishers from now on; returns the jobs that they are, by name."""
        hooks = (*config.hooks, *sinks_of(config, jobs))
        self.hooks.use(hooks, jobs)
        self._methods.publishers = config.publishers
        path = socket_path(config.node.runtime_dir)
        publishers = [one.job(config.cluster.lease, path) for one in config.publishers]
        return {**jobs_of(hooks, config.cluster.lease), **{job.name: job for job in publishers}}

    async def run(self) -> None:
        """Serve for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.hooks.run)
            nursery.start_soon(self.checked.run)
            nursery.start_soon(self.sinks.run)
            nursery.start_soon(self.triggering.run)
            nursery.start_soon(self.progress.run)
            nursery.start_soon(self.reconciling.run)
            nursery.start_soon(self.archives.run)
            nursery.start_soon(self.services.run)
            nursery.start_soon(self.topics.run)
            if self.guard is not None:
                nursery.start_soon(self.guard.run)
            nursery.start_soon(self.pool.run)
            nursery.start_soon(self.passing.run)
            if self.mirrored is not None:
                nursery.start_soon(self.mirrored.run)
            if self.metrics is not None:
                nursery.start_soon(self.metrics.run)
            if self.tracing is not None:
                nursery.start_soon(self.tracing.run)

    def checks(self) -> list[Check]:
        """For `doctor`."""
        told = (
            self.archives.checks()
            + self.pool.checks()
            + [
                check(
                    f"{sink} sink",
                    WARN,
                    f"{why}; {self.sinks.counts[sink, 'waiting']} files wait",
                    "see docs/runbook.md",
                )
                for sink, why in self.sinks.problems.items()
            ]
        )
        told += trigger_checks(self.triggering) + self.services.checks() + self.topics.checks()
        for hook in self.hooks.hooks:
            if isinstance(hook, SinkHook):
                whose = ", ".join([*hook.patterns, *sorted(hook.jobs)[:5]])
                told.append(check(f"sink {hook.title}", OK, f"{shown(hook.to)}, of {whose or 'no job'}", ""))
        told += message_checks(self._driver.node, self._methods.publishers, self.passing)
        untraced = self.tracing.problem if self.tracing is not None else endpoint.problem(self._otlp, os.environ)
        if self.tracing is not None or untraced:
            said = untraced or f"{self.tracing.counts['sent'] if self.tracing is not None else 0} spans were sent"
            told.append(check("traces", WARN if untraced else OK, said, "jobs do not depend on it; see [tracing]"))
        if self.mirrored is not None:
            mirror = self.mirrored.mirror
            counts = mirror.statistics()
            gone = counts["dropped"] + counts["lost"]
            text = mirror.error or f"{counts['sent']} events sent to {mirror.exchange}, {gone} dropped"
            advice = "Flower and celery events miss events; see [mirror]"
            told.append(check("mirror", WARN if mirror.error else OK, text, advice))
        if (guard := self.guard) is not None:
            text = guard.problem or f"{guard.counts['asked']} questions of drivers, {guard.counts['refused']} refused"
            advice = "drivers on a cluster ask the other nodes; see [guard]"
            told.append(check("guard listener", WARN if guard.problem else OK, text, advice))
        if self.metrics is None:
            return told
        problems = self.metrics.problems
        text = "; ".join(problems) or "they can be read"
        return [*told, check("metrics", WARN if problems else OK, text, "jobs do not depend on it; see [metrics]")]
