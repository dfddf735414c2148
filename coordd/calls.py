"""The methods of the control socket, as coordd.client calls them: their parameters, and the types of their answers."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from coordd.adapters.control_line import refuse_empty
from coordd.answers import FireTime, NodeView, Run, RunLog, RunShown, Status, Triggered, Why

P = ParamSpec("P")
T = TypeVar("T")


class Awaits:
    """A connection whose calls are awaited."""


class Blocks:
    """A connection whose calls block."""


class Method(Generic[P, T]):
    """One method of the socket: awaitable on Awaits, blocking on Blocks."""

    def __init__(self, name: str, shape: Callable[Concatenate[Any, P], T]) -> None:
        self._name = name
        self._signature = inspect.signature(shape)
        given = self._signature.parameters.values()
        self._required = [one.name for one in given if one.default is inspect.Parameter.empty]
        self.__doc__ = shape.__doc__

    @overload
    def __get__(self, caller: Awaits, kind: type) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, caller: Blocks, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, caller: None, kind: type) -> Self: ...
    def __get__(self, caller: Any, kind: type) -> Any:
        """Return a function, bound to this connection, that calls the method."""
        if caller is None:
            return self

        def ask(*args: Any, **params: Any) -> Any:
            given = self._signature.bind(None, *args, **params).arguments
            refuse_empty(self._name, given, self._required)
            named = {name.removesuffix("_"): value for name, value in list(given.items())[1:] if value is not None}
            return caller.call(self._name, **named)

        ask.__name__ = self._name
        ask.__doc__ = self.__doc__
        return ask


def _method(name: str) -> Callable[[Callable[Concatenate[Any, P], T]], Method[P, T]]:
    """The function gives the method its parameters and the type of its answer; its body is never executed."""
    return lambda shape: Method(name, shape)


class Methods:
    """The methods, for both kinds of connection. If an argument is None, the call does not send that parameter."""

    @_method("ping")
    def ping(self) -> dict[str, Any]:
        """The version, quickly."""
        raise NotImplementedError

    @_method("status")
    def status(self) -> Status:
        """This node."""
        raise NotImplementedError

    @_method("node.list")
    def node_list(self) -> list[NodeView]:
        """Every node that this one knows of."""
        raise NotImplementedError

    @_method("node.drain")
    def node_drain(
        self, node: str | None = None, until: float | str | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Take no new runs. ``until``: it ends by itself then (Unix seconds, or an instant as text)."""
        raise NotImplementedError

    @_method("node.resume")
    def node_resume(self, node: str | None = None) -> dict[str, Any]:
        """Take runs again."""
        raise NotImplementedError

    @_method("job.list")
    def job_list(self) -> list[dict[str, Any]]:
        """Every job file of this node."""
        raise NotImplementedError

    @_method("job.show")
    def job_show(self, job: str) -> dict[str, Any]:
        """One job."""
        raise NotImplementedError

    @_method("job.next")
    def job_next(self, job: str, count: int | None = None) -> list[dict[str, Any]]:
        """The next fire times."""
        raise NotImplementedError

    @_method("job.fires")
    def job_fires(self, job: str, from_: float | str | None = None, to: float | str | None = None) -> list[FireTime]:
        """What became of each fire time between two instants (Unix seconds, or an instant as text), oldest first."""
        raise NotImplementedError

    @_method("job.backfill")
    def job_backfill(
        self,
        job: str,
        from_: float | str | None = None,
        to: float | str | None = None,
        order: str | None = None,
        at_most: int | None = None,
        redo: str | None = None,
        stop_after_failures: int | None = None,
        dry_run: bool | None = None,
        yes: bool | None = None,
        cancel: bool | None = None,
    ) -> dict[str, Any]:
        """Run the fire times from ``from_`` until before ``to``, or ``cancel`` what is under way."""
        raise NotImplementedError

    @_method("job.backfills")
    def job_backfills(self, job: str | None = None) -> list[dict[str, Any]]:
        """How far each backfill is."""
        raise NotImplementedError

    @_method("job.activate")
    def job_activate(self, job: str) -> dict[str, Any]:
        """This node's definition of the job counts from now on."""
        raise NotImplementedError

    @_method("job.suspend")
    def job_suspend(
        self,
        job: str | None = None,
        all: bool | None = None,  # noqa: A002 - the parameter's name on the wire
        until: float | str | None = None,
        note: str | None = None,
    ) -> dict[str, Any]:
        """Grant no run of the job, or of any job (``all``), on any node. ``until`` as in ``node_drain``."""
        raise NotImplementedError

    @_method("job.resume")
    def job_resume(
        self,
        job: str | None = None,
        all: bool | None = None,  # noqa: A002 - the parameter's name on the wire
    ) -> dict[str, Any]:
        """Grant runs of the job again, or end the suspension of all jobs."""
        raise NotImplementedError

    @_method("pool.list")
    def pool_list(self) -> list[dict[str, Any]]:
        """Every pool: its size, the runs in it, and the runs that wait for it."""
        raise NotImplementedError

    @_method("pool.set")
    def pool_set(self, name: str, size: int, until: float | str | None = None) -> dict[str, Any]:
        """Give a pool another size in the whole cluster. ``until`` as in ``node_drain``."""
        raise NotImplementedError

    @_method("pool.unset")
    def pool_unset(self, name: str) -> dict[str, Any]:
        """The size in the configuration counts again."""
        raise NotImplementedError

    @_method("run.list")
    def run_list(
        self,
        job: str | None = None,
        state: str | None = None,
        node: str | None = None,
        since: float | None = None,
        limit: int | None = None,
        progress: bool | None = None,
    ) -> list[Run]:
        """Runs, newest first. ``since`` in Unix seconds. ``progress``: what runs that run have told of it, too."""
        raise NotImplementedError

    @_method("run.show")
    def run_show(self, id: str) -> RunShown:  # noqa: A002 - the parameter's name on the wire
        """One run, or the newest of a job."""
        raise NotImplementedError

    @_method("run.trigger")
    def run_trigger(
        self,
        job: str,
        args: Mapping[str, str] | None = None,
        id: str | None = None,  # noqa: A002 - the parameter's name on the wire
        dry_run: bool | None = None,
        node: str | None = None,
        note: str | None = None,
    ) -> Triggered:
        """Trigger a run; the same ``id`` twice, on any nodes, is one run. ``node``: only that one launches it."""
        raise NotImplementedError

    @_method("run.logs")
    def run_logs(
        self,
        id: str,  # noqa: A002 - the parameter's name on the wire
        attempt: int | None = None,
        bytes: int | None = None,  # noqa: A002 - the parameter's name on the wire
    ) -> RunLog:
        """The end of an attempt's output. To follow a run: ``stream("run.logs", id=RUN, follow=True)``."""
        raise NotImplementedError

    @_method("election.open")
    def election_open(
        self,
        id: str,  # noqa: A002 - the parameter's name on the wire
        topic: str,
        action: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Trigger a run by a topic, or only elect (``drill``)."""
        raise NotImplementedError

    @_method("config.publish")
    def config_publish(self, files: Mapping[str, str], note: str | None = None) -> dict[str, Any]:
        """Make these job files (TOML texts by job) the next revision."""
        raise NotImplementedError

    @_method("config.list")
    def config_list(self) -> list[dict[str, Any]]:
        """The revisions, newest first."""
        raise NotImplementedError

    @_method("config.show")
    def config_show(self, number: int | None = None) -> dict[str, Any]:
        """One revision with its files; the one in force without a number."""
        raise NotImplementedError

    @_method("config.rollback")
    def config_rollback(self, number: int | None = None, note: str | None = None) -> dict[str, Any]:
        """Publish an earlier revision again."""
        raise NotImplementedError

    @_method("orphans")
    def orphans(self) -> dict[str, Any]:
        """What the ledger and the cluster managers do not both know."""
        raise NotImplementedError

    @_method("publish")
    def publish(
        self,
        to: str,
        body: Any,
        expires: str | None = None,
        id: str | None = None,  # noqa: A002 - the parameter's name on the wire
    ) -> Triggered:
        """Record a message for a `[publish.NAME]`. A text is sent as it is, everything else as JSON."""
        raise NotImplementedError

    @_method("message.list")
    def message_list(self) -> list[dict[str, Any]]:
        """Of each `[publish.NAME]`: what waits, what was given up, and which of its addresses fail."""
        raise NotImplementedError

    @_method("run.cancel")
    def run_cancel(self, id: str, note: str | None = None) -> dict[str, Any]:  # noqa: A002 - as on the wire
        """End a running attempt."""
        raise NotImplementedError

    @_method("run.revoke")
    def run_revoke(
        self,
        id: str | None = None,  # noqa: A002 - the parameter's name on the wire
        job: str | None = None,
        note: str | None = None,
    ) -> dict[str, Any]:
        """Forbid a run that has not started, or all such runs of a job."""
        raise NotImplementedError

    @_method("run.resolve")
    def run_resolve(self, id: str, as_: str) -> dict[str, Any]:  # noqa: A002 - the parameter's name on the wire
        """Settle an unknown run ``as_`` success, failed or relaunch."""
        raise NotImplementedError

    @_method("run.rerun")
    def run_rerun(
        self,
        id: str,  # noqa: A002 - the parameter's name on the wire
        with_children: bool | None = None,
        note: str | None = None,
    ) -> dict[str, Any]:
        """Run a run that has ended once more; ``with_children``: then the runs after it too."""
        raise NotImplementedError

    @_method("deadletter.list")
    def deadletter_list(self, job: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Runs that were given up, newest first."""
        raise NotImplementedError

    @_method("deadletter.show")
    def deadletter_show(self, id: str) -> dict[str, Any]:  # noqa: A002 - the parameter's name on the wire
        """One of them, with everything that is known of its run."""
        raise NotImplementedError

    @_method("deadletter.replay")
    def deadletter_replay(self, id: str, with_children: bool | None = None) -> dict[str, Any]:  # noqa: A002 - as on the wire
        """Make one more attempt of the run, once; ``with_children``: then the runs after it run once more too."""
        raise NotImplementedError

    @_method("deadletter.discard")
    def deadletter_discard(self, id: str, note: str) -> dict[str, Any]:  # noqa: A002 - as on the wire
        """Nobody needs it."""
        raise NotImplementedError

    @_method("why")
    def why(self, id: str, without: str | None = None) -> Why:  # noqa: A002 - the parameter's name on the wire
        """Why a run, or a job, is as it is; and what would be without that node."""
        raise NotImplementedError

    @_method("election.list")
    def election_list(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Elections that this node took part in."""
        raise NotImplementedError

    @_method("trigger.list")
    def trigger_list(self, job: str | None = None) -> list[dict[str, Any]]:
        """The triggers of all jobs, or of one."""
        raise NotImplementedError

    @_method("trigger.show")
    def trigger_show(self, job: str, name: str | None = None) -> dict[str, Any]:
        """One trigger, with what waits for it."""
        raise NotImplementedError

    @_method("check.list")
    def check_list(self) -> list[dict[str, Any]]:
        """The checks of the cluster."""
        raise NotImplementedError

    @_method("check.show")
    def check_show(self, name: str) -> dict[str, Any]:
        """One check, as this node has it."""
        raise NotImplementedError

    @_method("check.run")
    def check_run(self, name: str) -> dict[str, Any]:
        """Look once, now."""
        raise NotImplementedError

    @_method("check.report")
    def check_report(
        self, name: str, state: str, until: float | str | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Report a state, as an alert does."""
        raise NotImplementedError

    @_method("breaker.list")
    def breaker_list(self) -> list[dict[str, Any]]:
        """The breakers of this node's connections, and those of jobs."""
        raise NotImplementedError

    @_method("breaker.reset")
    def breaker_reset(self, name: str) -> dict[str, Any]:
        """Close the breaker."""
        raise NotImplementedError

    @_method("breaker.isolate")
    def breaker_isolate(self, name: str, until: float | str | None = None, note: str | None = None) -> dict[str, Any]:
        """Hold a job's breaker open."""
        raise NotImplementedError

    @_method("alarm.list")
    def alarm_list(self) -> list[dict[str, Any]]:
        """The alarms that nobody has cleared."""
        raise NotImplementedError

    @_method("alarm.clear")
    def alarm_clear(self, note: str, id: str | None = None) -> dict[str, Any]:  # noqa: A002 - as on the wire
        """Clear alarms after a person has looked at them."""
        raise NotImplementedError

    @_method("audit")
    def audit(self, since: float | None = None, limit: int | None = None) -> dict[str, Any]:
        """Privileged calls: the permitted and the refused ones."""
        raise NotImplementedError

    @_method("doctor")
    def doctor(self) -> list[dict[str, str]]:
        """Checks of this node."""
        raise NotImplementedError

    @_method("reload")
    def reload(self, no_jobs: bool | None = None) -> dict[str, Any]:
        """Read the configuration and the job files again. ``no_jobs``: all jobs go, where no job file is left."""
        raise NotImplementedError

    @_method("ledger.accept-epoch")
    def ledger_accept_epoch(self) -> dict[str, Any]:
        """End a quarantine now."""
        raise NotImplementedError

    @_method("ledger.accept-identity")
    def ledger_accept_identity(self) -> dict[str, Any]:
        """Use the ledger that is there now."""
        raise NotImplementedError

    @_method("ledger.status")
    def ledger_status(self) -> dict[str, Any]:
        """The place of the ledger, and its state."""
        raise NotImplementedError
