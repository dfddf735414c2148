"""A small cluster with some nodes of the previous version: the real old core works on the new version's rows."""

from __future__ import annotations

import random
from typing import Any

from support.ledger_calls import EPOCH, grant_of
from support.small_cluster import MONO, Cluster, Shell

from coordd.core.jobs.job import Job
from coordd.core.ledger.rows import RUN_COLUMNS, AttemptRow, JobRow, LedgerTime, Row
from coordd.core.ledger.runner_requests import Renew
from coordd.core.perform import perform
from coordd.core.ready import Launch, LedgerRequest, Ready
from coordd.core.wire import codec
from versions import unpacked

OLD_COLUMNS = len(RUN_COLUMNS) - 1  # all but ``due``


class OldStore:
    """A store for the old rules, over the rows that the new rules write. The old rules see only their own columns."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.rows = unpacked.load("coordd.core.rows")

    def _row(self, row: Row) -> Any:
        return self.rows.Row(row.values()[:OLD_COLUMNS])

    def run(self, run: str) -> Any:
        row = self.store.run(run)
        return self._row(row) if row is not None else None

    def put_run(self, row: Any) -> None:
        known = self.store.run(row.run)
        self.store.put_run(Row((*row.values(), known.due if known is not None else 0.0)))

    def job(self, job: str) -> Any:
        row = self.store.job(job)
        return self.rows.JobRow(*row.values()) if row is not None else None

    def put_job(self, row: Any) -> None:
        self.store.put_job(JobRow(*row.values()))

    def attempt(self, run: str, attempt: int) -> Any:
        row = self.store.attempt(run, attempt)
        return self.rows.AttemptRow(row.values()) if row is not None else None

    def put_attempt(self, row: Any) -> None:
        self.store.put_attempt(AttemptRow(row.values()))

    def active_runs(self, job: str) -> list[Any]:
        return [self._row(row) for row in self.store.active_runs(job)]

    def first_waiting(self, job: str) -> Any:
        row = self.store.first_waiting(job)
        return self._row(row) if row is not None else None

    def open_runs(self, limit: int) -> list[Any]:
        return [self._row(row) for row in self.store.open_runs(limit)[0]]

    def last_fire_at(self, job: str) -> float:
        return float(self.store.last_fire_at(job, float("inf")))


def old_job(job: Job) -> Any:
    """The same definition, as a job of the old version."""
    jobs = unpacked.load("coordd.core.job")
    fields = {name: getattr(job, name) for name in jobs.Job.__struct_fields__ if hasattr(job, name)}
    schedule = job.schedule
    if schedule is not None:
        fields["schedule"] = jobs.Schedule(**{n: getattr(schedule, n) for n in jobs.Schedule.__struct_fields__})
    fields["launch"] = jobs.Command(argv=("/bin/true",))
    fields["retry"] = jobs.Retry()
    return jobs.Job(**fields)


# Fields of ``Ready`` that have another name now: old name -> new name.
RENAMED = {"letters": "unicasts"}


class OldShell(Shell):
    """Does what a node of the previous version wants. That node's ``Ready`` has only some of our fields."""

    def pump(self) -> None:
        while (wanted := self.node.ready()).any():
            ready = Ready()
            for name in wanted.__slots__:
                setattr(ready, RENAMED.get(name, name), getattr(wanted, name))
            perform(ready, self)


class Mixed(Cluster):
    """A cluster whose nodes begin with the previous version. ``replace`` replaces a daemon, and its runners live on."""

    def __init__(self, *names: str, jobs: tuple[Job, ...], seed: int) -> None:
        self.rng = random.Random(seed)
        self.old: set[str] = set()  # names of the nodes with an old daemon
        self.seen_runs: set[tuple[str, int]] = set()
        self.old_runs: set[tuple[str, int]] = set()  # attempts whose runner is of the previous version
        self.rules = unpacked.load("coordd.core.ledger").Rules()
        self.started_at: dict[str, float] = {}
        super().__init__(jobs=())
        self.ledger._store.metas.clear()
        self.jobs = {one.name: one for one in jobs}
        for name in names:
            self.boot_old(name, 1)
        for name in names:
            self.start(name)

    def boot_old(self, name: str, boot: int) -> Shell:
        """Make a daemon of the previous version. The caller starts it."""
        shell = OldShell(self, name, boot)
        nodes, contexts = unpacked.load("coordd.core.node"), unpacked.load("coordd.core.context")
        settings = contexts.Settings(
            **{field: getattr(self.settings, field) for field in contexts.Settings.__struct_fields__}
        )
        shell.node = nodes.Node(
            hostname=name,
            pid=boot,
            incarnation=f"{boot}-{name}",
            settings=settings,
            clock_mark=boot * 1_000_000,
            rng=random.Random(f"{name}{boot}"),
        )
        shell.node.set_jobs({one.name: old_job(one) for one in self.jobs.values()}, self.time())
        self.old.add(name)
        self.shells[name] = shell
        return shell

    def replace(self, name: str, boot: int, *, old: bool) -> None:
        """Stop a daemon cleanly, and start a daemon of the chosen version in its place. The runners go on."""
        before = self.shells[name]
        before.do(before.node.stop)
        self.settle()
        before.alive = False
        if old:
            shell = self.boot_old(name, boot)
        else:
            self.old.discard(name)
            shell = self.boot(name, boot)
        kind = unpacked.load("coordd.core.ready").Launch if old else Launch
        # The runners' files say this about their attempts, as the chosen version reads them.
        shell.launches = [
            kind(**{f: getattr(one, f) for f in kind._fields if hasattr(one, f)}) for one in before.launches
        ]
        shell.gate_at, shell.start_at, shell.renew_at = before.gate_at, before.start_at, before.renew_at
        shell.bus = before.bus
        for run in [*shell.gate_at, *shell.start_at, *shell.renew_at]:
            launch = shell.launch_of(run)
            shell.node.runner_adopted(run, launch.job, launch.attempt, launch.token, False)
        self.start(name)

    # ---- differences from a cluster with one version

    def says(self, shell: Shell, events: Any, only: str) -> None:
        """Send events as bytes: each version reads the bytes that the other version wrote."""
        words = unpacked.load("coordd.core.wire") if shell.name in self.old else codec
        kinds = unpacked.load("coordd.core.events") if shell.name in self.old else None
        from coordd.core.wire import events as new_events

        packets = kinds or new_events
        ctx = shell.node.ctx
        data = words.encode(
            packets.Packet(
                packets.PROTOCOL_MAJOR, "default", ctx.hostname, ctx.pid, ctx.incarnation, 0, 0, list(events)
            )
        )
        for peer in self.shells.values():
            wanted = only in ("", peer.node.ctx.full_hostname) and peer.node.ctx.state != "starting"
            if peer is not shell and peer.alive and wanted and shell.bus and peer.bus:
                self.queue.append((self._hand, (peer, data)))

    def _hand(self, peer: Shell, data: bytes) -> None:
        words = unpacked.load("coordd.core.wire") if peer.name in self.old else codec
        peer.do(peer.node.receive, words.decode(data)[0])

    def by_old_rules(self, op: str, *args: Any) -> Any:
        """Execute an operation by the old rules, as an old daemon or runner asks for it."""
        rule = getattr(self.rules, op)

        def step(store: Any, now: LedgerTime) -> Any:
            return rule(OldStore(store), *args, now)

        return self.ledger._transact(step)

    def asked(self, shell: Shell, request: Any, sent_at: float) -> None:
        if isinstance(request, LedgerRequest):
            super().asked(shell, request, sent_at)
            return
        answer = self.by_old_rules(request.op, *request.args)
        shell.do(lambda now: shell.node.ledger_answered(request.id, answer, sent_at, now))

    def launched(self, shell: Shell, launch: Launch) -> None:
        key = (launch.run, launch.attempt)
        if key not in self.seen_runs and shell.name in self.old:
            self.old_runs.add(key)  # a runner keeps the version with which it was started
        self.seen_runs.add(key)
        if key not in self.old_runs:
            super().launched(shell, launch)
        else:
            answer = self.by_old_rules("gate", *key, launch.token, launch.nonce)
            if answer.word == "ok":
                shell.renew_at[launch.run] = self.mono + self.settings.renew_interval_s
                shell.do(shell.node.runner_started, launch)
                self.started_at.setdefault(launch.run, self.mono)
            elif answer.word == "early":
                shell.gate_at[launch.run] = self.mono + answer.in_s

    def _start(self, shell: Shell, launch: Launch) -> None:
        super()._start(shell, launch)
        self.started_at.setdefault(launch.run, self.mono)

    def _renew(self, shell: Shell, launch: Launch) -> None:
        key = (launch.run, launch.attempt, launch.token, launch.nonce)
        if key[:2] in self.old_runs:
            answer = self.by_old_rules("renew", *key, launch.lease_s, "", True)
        else:
            answer = self.ledger.ask(Renew(grant=grant_of(*key), lease_s=launch.lease_s, launched=True))
        assert answer.word == "ok", f"{launch.run} has lost its lease"
        shell.renew_at[launch.run] = self.mono + self.settings.renew_interval_s

    def end_old_programs(self, seconds: float) -> None:
        """End each program that has run for at least this time."""
        for shell in list(self.shells.values()):
            for run in [run for run in shell.renew_at if self.mono - self.started_at[run] >= seconds]:
                self.end(shell.name, run)


__all__ = ["EPOCH", "MONO", "Mixed"]
