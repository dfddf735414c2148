"""Writes the tables of docs that can be read off the code; tests/test_docs.py fails when one is out of date.

    python docs/texts/tables.py          rewrite them in place

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. What a table says in prose stands here (of the methods
of the control socket in texts/methods.toml), by the name that the code uses: a name without a sentence, or a sentence
without a name, is an error.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from coordd.config import jobkeys
from coordd.core import attempt
from coordd.core.ledger import rows, steps, words as ledger_words
from coordd.core.members import membership
from coordd.core.node import states
from coordd.core.wire import events, merge
from coordd.services.control.callers import ADMIN, OPERATOR, VIEWER
from coordd.services.control.methods import UNAVAILABLE_METHODS, Methods
from coordd.services.metrics import families

DOCS = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(head)
    drawn = [head, ["---"] * len(head), *[list(line) for line in lines]]
    return "".join([f"| {' | '.join(cells)} |\n" for cells in drawn])


def told(names: Iterable[str], sentences: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Each name with its sentence. Raises KeyError when the two lists of names differ."""
    found = list(names)
    different = set(found) ^ set(sentences)
    if different:
        raise KeyError(f"not described, or described and not there: {sorted(different)}")
    return [(name, sentences[name]) for name in found]


def code(words: Iterable[str]) -> str:
    """Words as code, with commas between."""
    return ", ".join([f"`{word}`" for word in words])


# ---- states


def _moves(moves: Mapping[str, Iterable[str]], order: tuple[str, ...]) -> str:
    def after(word: str) -> str:
        return code([to for to in order if to in moves.get(word, ())]) or "nothing: it is over"

    return table(("from", "may become"), [(f"`{word}`", after(word)) for word in order])


def run_moves() -> str:
    return _moves(steps.MOVES, ledger_words.STATES)


def attempt_moves() -> str:
    return _moves(attempt.MOVES, tuple(attempt.MOVES))


def node_moves() -> str:
    return _moves(states.MOVES, tuple(states.MOVES))


def member_moves() -> str:
    states = (membership.ALIVE, membership.SUSPECT, membership.LOST, membership.LEFT)
    happened = ("heard", "speaks", "offline", "silent", "dead")
    assert {what for _, what in membership.MOVES} == set(happened)
    lines = [
        [
            f"`{word}`",
            *[f"`{membership.MOVES[word, what]}`" if (word, what) in membership.MOVES else "-" for what in happened],
        ]
        for word in states
    ]
    return table(("state", *happened), lines)


def precedence() -> str:
    said = {word: [kind for kind, becomes in merge.STATE_OF.items() if becomes == word] for word in merge.PRECEDENCE}
    lines = []
    for rank, word in enumerate(merge.PRECEDENCE):
        fields = merge.MERGE_RULES.get(word or "", None)
        brings = code(fields) if fields else "all its fields"
        lines.append((str(rank), f"`{word}`" if word else "any other", code(said[word]), brings))
    return table(("rank", "state", "event", "what it still brings when it comes too late"), lines)


# ---- the wire

_PACKET = {
    "v": "protocol major, `1`",
    "cluster": "`[cluster] name`; a packet of another cluster is dropped",
    "hostname": "the sender's `[node] name`",
    "pid": "the sender's process id",
    "incarnation": "`BOOTS-RANDOM`: boot counter in decimal, 64 random bits as 16 hexadecimal digits",
    "seq": "how many events this incarnation had sent before the first one in here",
    "utcoffset": "whole hours east of UTC",
    "events": "array of maps, each with its `type`",
}

_EVENTS = {
    "worker-elect": (
        "a node opens an election",
        "joins the election and the pursuit of its run; answers once with `worker-elect-ack`",
    ),
    "worker-elect-ack": ("a node's one answer to an election", "the sender's statement counts, if it is its first"),
    "worker-online": ("mingle is over", "the sender's fields are taken over"),
    "worker-heartbeat": ("regularly (section 4), and when draining begins or ends", "the same"),
    "worker-offline": ("a clean stop", "the sender is `left`, at once"),
    "worker-hello": ("a node starts; its bus is back", "answered with `worker-hello-reply`, to the sender alone"),
    "worker-hello-reply": (
        "the answer to a hello",
        "the highest tokens and unknown members are taken over; mingle may be over",
    ),
    "worker-beat": ("large clusters: a unicast to each watcher", "with `ask`: answered with another, to the sender"),
    "worker-suspect": ("large clusters: a watcher hears nothing of them", "section 4, *large clusters*"),
    "worker-vouch": ("large clusters: the sender alone has heard them", "they are alive"),
    "peer-ask": (
        "a person asks what became of a run (to the inbox of each node), or for a log (of one)",
        "answered with `peer-answer`",
    ),
    "peer-answer": ("the answer to a question, to the inbox of the sender", "the waiting caller gets it"),
    "task-sent": ("the ledger has recorded a trigger for the first time", "nothing but history"),
    "task-received": ("a claim was granted; in the sender's journal, synced", "a pursuit that is not under way waits"),
    "task-started": ("the program was executed", "nothing but history"),
    "task-succeeded": ("it exited with 0", "end of an attempt: sweep soon; report for the holder if it cannot"),
    "task-failed": ("it ended otherwise, or could not be executed", "the same"),
    "task-rejected": ("the ledger wrote rejected or missed for this node's claim", "the same"),
    "task-revoked": ("it was cancelled, or forbidden", "the same"),
    "task-retried": ("an attempt was lost, or never started, and the next is due", "the same"),
    "control-revoke": ("a person has revoked a run; the ledger has it", "sweep soon; it is known as revoked"),
    "control-clear": ("a person has looked at alarms (section 9)", "they stand no more, and are not raised again"),
    "control-cancel": ("a person has cancelled a run; the ledger has it", "the node that runs it tells its runner"),
}


def _field(kind: Any) -> str:
    if isinstance(kind, type):
        return {"Candidacy": "candidacy", "Action": "action"}.get(kind.__name__, kind.__name__)
    optional = re.sub(r"^typing\.Optional\[(\w+)\]$", r"\1?", str(kind))  # how a bounded type says "or None"
    word = optional.replace("coordd.core.wire.events.", "").replace(" | None", "?").replace("Action", "action")
    return word.replace("tuple[str, ...]", "[str]").replace("tuple[float, float, float]", "[float, float, float]")


def _fields(kind: type[msgspec.Struct], less: tuple[str, ...] = ()) -> list[str]:
    """Each field with its type, and with its default where that is not empty."""
    hints = get_type_hints(kind)
    return [
        f"`{field.name}` {_field(hints[field.name])}" + (f" = `{field.default}`" if _says(field.default) else "")
        for field in msgspec.structs.fields(kind)
        if field.name not in less
    ]


def _says(default: Any) -> bool:
    return isinstance(default, str | int) and bool(default)


def packet() -> str:
    kinds = get_type_hints(events.Packet)
    lines = [
        (f"`{name}`", "array" if name == "events" else _field(kinds[name]), says)
        for name, says in told(events.Packet.__struct_fields__, _PACKET)
    ]
    return table(("key", "type", "meaning"), lines)


def event_types() -> str:
    of = {str(kind.__struct_config__.tag): kind for kind in get_args(events.AnyEvent)}
    lines = []
    for word, (when, effect) in told(of, _EVENTS):
        kind = of[word]
        if issubclass(kind, events.Task):
            fields = "*run*"
        else:
            is_node = issubclass(kind, events.WorkerState)
            less = events.WorkerState.__struct_fields__ if is_node else events.Event.__struct_fields__
            fields = ", ".join([*["*node*"][:is_node], *_fields(kind, less)])
        lines.append((f"`{word}`", when, fields, effect))
    return table(("type", "when", "fields", "effect on who hears it"), lines)


def groups() -> str:
    common = events.Event.__struct_fields__
    return table(
        ("name", "fields"),
        [
            ("every event", ", ".join(_fields(events.Event))),
            ("*node*", ", ".join(_fields(events.WorkerState, common))),
            ("*run*", ", ".join(_fields(events.Task, common))),
            ("candidacy, an **array** in this order", ", ".join(_fields(events.Candidacy))),
            ("action", ", ".join(_fields(events.Action))),
        ],
    )


# ---- the ledger

_RUN = {
    "run": "the run's id, the key",
    "job": "the job's name",
    "digest": "of the definition it was registered with",
    "args": "JSON object of texts, keys sorted",
    "policy": f"`{' '.join(ledger_words.POLICY)}`, blanks between; the last only where there are limits",
    "scheduled": "1 from a schedule, 0 asked for",
    "fire_at": "nominal time; for a trigger the ledger's time less the request's age",
    "created_at": "when the row was written",
    "by": "who asked for it",
    "state": "see the table of section 8",
    "attempt": "the current attempt, from 0",
    "not_before": "when this attempt is due",
    "failures": "attempts that failed",
    "relaunches": "attempts that were lost or never started",
    "token": "fencing token of the current grant; 0 before the first",
    "nonce": "the claimant's random text",
    "node": "full_hostname of the holder",
    "lease": "the length of the lease, seconds",
    "until": "its end, on the lease clock",
    "boot": "the boot that `until` belongs to",
    "beat": "grows with the gate and with each renewal",
    "commit_token": "the token that committed, or 0",
    "cancel": "1: to be ended",
    "received_at": "when this attempt was granted",
    "started_at": "when it passed the gate",
    "ended_at": "when it ended",
    "exit_code": "of the program; negative: ended by that signal; null: not known",
    "application_id": "Spark's",
    "reason": "one sentence",
    "due": "when the run is due at the earliest, later than `fire_at` by the job's jitter; 0 where an older version"
    " wrote the row",
}

_JOB = {
    "job": "the job's name, the key",
    "fence": "the highest token handed out",
    "horizon": "fire times up to here are settled",
    "suspended": "1: nothing is granted",
    "version": "grows with each suspend and resume",
    "changed_by": "who did that last",
}


def columns() -> str:
    return table(("column", "meaning"), [(f"`{c}`", says) for c, says in told(rows.RUN_COLUMNS, _RUN)])


def job_columns() -> str:
    return table(("column", "meaning"), [(f"`{c}`", says) for c, says in told(rows.JOB_COLUMNS, _JOB)])


# ---- the control socket

_METHODS = {
    name: (said["takes"], said["says"])
    for name, said in tomllib.loads((DOCS / "texts" / "methods.toml").read_text(encoding="utf-8")).items()
}
_BY_JOB = {"job.suspend", "job.resume", "run.trigger", "run.cancel", "run.revoke", "run.resolve", "run.rerun"} | {
    "deadletter.replay",
    "deadletter.discard",
    "breaker.reset",
    "breaker.isolate",
    "check.run",
    "check.report",
}
_ROLES = {ADMIN: "admin", OPERATOR: "operator", VIEWER: "viewer"}


def methods() -> str:
    found = Methods.table(Methods.__new__(Methods))
    lines = []
    for name, (params, says) in told(found, _METHODS):
        role = "operator, or the job's owner" if name in _BY_JOB else _ROLES[found[name].role]
        if name == "run.logs":
            role = "operator, or the job's owner"
        lines.append((f"`{name}`", role, params or "-", says))
    return table(("method", "role", "params (? optional)", "answer"), lines)


def later_methods() -> str:
    return code(sorted(UNAVAILABLE_METHODS)) + "\n"


# ---- limits

_LIMITS = (
    ("core.wire.events", "MESSAGE_BYTES_MAX", "bytes of one message"),
    ("core.clock", "CLOCK_JUMP_MAX", "a larger jump of the logical clock is refused"),
    ("core.clock", "CLOCK_BLOCK", "stamps per write of the clock's mark"),
    ("core.members.membership", "MEMBERS_MAX", "members a node keeps"),
    ("core.members.membership", "FANOUT_DELIVERIES_S", "deliveries a second of all heartbeats to all together"),
    ("core.members.heartbeat", "WATCHERS", "watchers of each node, and nodes that answer a hello, in a large cluster"),
    ("core.members.outcomes", "OUTCOMES_MAX", "ends of runs that a node remembers, and that a hello is told"),
    ("core.members.detector", "BEATS_MAX", "unicasts that a node sends to its watchers in one interval"),
    ("core.members.membership", "FORGET_AFTER_S", "seconds after which a member that is gone is forgotten"),
    ("core.election", "ELECTION_MEMBERS_MAX", "members above which nothing is said"),
    ("core.election", "DECIDED_MAX", "decided elections remembered"),
    ("core.node.elections", "OPEN_MAX", "undecided elections at a time"),
    ("core.node.elections", "EARLY_MAX", "elections of which an answer came before the question"),
    ("core.runs.triggers", "REQUESTS_MAX", "triggers that wait for the ledger"),
    ("core.ledger.words", "OPEN_PAGE", "open rows on one page of a sweep"),
    ("core.ledger.rows", "FEED_MAX", "changes that the ledger remembers"),
    ("core.runs.sweep", "WHOLE_EVERY", "intervals of sweeps after which a node reads everything again"),
    ("core.runs.leftovers", "AT_A_TIME", "rows that a node asks to settle at a time"),
    ("core.runs.leftovers", "WATCHED_MAX", "holders that a node watches to settle what they leave"),
    ("core.runs.planner", "CATCH_UP_MAX", "missed fire times that `misfire = all` catches up"),
    ("core.runs.planner", "SKIP_GRACE_S", "seconds after which `misfire = skip` skips"),
    ("core.runs.passing", "GRACE_S", "seconds after `start_within` when a fire time is passed over"),
    ("core.ledger.fires", "STRETCHES_MAX", "stretches of a job that the ledger keeps"),
    ("services.views.fire_methods", "FIRES_MAX", "fire times in one answer of `job.fires`"),
    ("core.ledger.backfill.plan", "AT_MOST_MAX", "runs of a backfill at a time"),
    ("core.ledger.backfill.plan", "KEPT_S", "seconds for which a backfill that has ended is shown"),
    ("core.node.plans.backfills", "ASKS_MAX", "fire times of a backfill that a node asks for after one sweep"),
    ("services.views.backfill_methods", "ASKED_TWICE", "runs above which a backfill takes `yes`"),
    ("services.views.backfill_methods", "RUNS_MAX", "fire times of a backfill"),
    ("core.ledger.words", "CLAIM_AHEAD_S", "seconds before its time that a run may be claimed"),
    ("core.ledger.words", "GATE_AHEAD_S", "seconds before its time that its gate may open"),
    ("core.context", "LEAD_S", "seconds before its time that an election is opened"),
    (
        "core.context",
        "SKEW_MAX_S",
        "seconds that a node's wall clock may be off the ledger's; beyond, it opens nothing by schedule",
    ),
    ("core.ledger.words", "RHO", "clock-rate error tolerated between two machines"),
    ("core.attempt", "REPORT_LIMIT_S", "seconds that a runner repeats its report"),
    ("core.attempt", "HEAD_START_S", "seconds before its instant that a program is released; it waits for the rest"),
    ("core.attempt", "KILL_PART", "part of `kill_grace` that is left for KILL"),
    ("core.attempt", "WATCHER_PART", "part of `kill_grace` that is left for the watcher"),
    ("runner.holder", "WATCHERS_MAX", "watchers of one attempt; the job ends when the last of these was killed"),
    ("launching", "LOG_BYTES_MAX", "bytes of an attempt's output kept"),
    ("core.jobs.arguments", "VALUE_BYTES_MAX", "bytes of one argument"),
    ("core.jobs.arguments", "VALUES_BYTES_MAX", "bytes of all arguments of a run"),
    ("services.control.rpc", "LINE_BYTES_MAX", "bytes of a line on the control socket"),
    ("services.control.rpc", "DEPTH_MAX", "nesting of a request"),
    ("services.control.server", "CONNECTIONS_MAX", "clients at a time"),
    ("services.control.server", "CONNECTIONS_KEPT", "of these kept for root and the daemon's user"),
    ("services.control.server", "IN_FLIGHT_MAX", "questions of one client at a time"),
    ("services.control.server", "STREAMS_MAX", "streams of one client"),
    ("adapters.bus.unix_bus", "PEERS_MAX", "other nodes of one machine"),
    ("adapters.bus.unix_peer", "WAITING_LENGTH_MAX", "messages that wait for a slow peer; the oldest are dropped"),
    ("services.ledger", "QUEUE_MAX", "questions that wait for the ledger"),
    ("config.jobfile", "JOBS_MAX", "job files"),
    ("config.jobkeys", "BLACKOUTS_MAX", "blackouts of a job"),
)


def limits() -> str:
    lines = []
    for module, name, says in _LIMITS:
        value = getattr(importlib.import_module(f"coordd.{module}"), name)
        lines.append((f"{value:,}" if isinstance(value, int) else f"{value:g}", says, f"`{module}.{name}`"))
    return table(("limit", "of what", "in the code"), lines)


# ---- job files

_KEYS = {
    "description": "text",
    "enabled": "boolean; `false`: the job is held, which means it is listed and nothing launches it (`true`)",
    "owner": "a group whose members may operate the job",
    "schedule": '`"0 2 * * *"`, `"every 15m"`, `"at 2026-12-01T02:00"`; without it: by hand',
    "timezone": 'IANA name ("UTC")',
    "start": "instant; nothing fires before it",
    "end": "instant; nothing fires after it",
    "jitter": "duration; each job has its own fixed place in it (0)",
    "blackout": "list of `{ from, to }` or `{ cron, duration }`; nothing fires in it; at most 100",
    "misfire": "`skip`, `once` or `all`: fire times that nobody was there for (`once`)",
    "expect_within": "duration; without a success for longer the job is late: `status`, `doctor` (none)",
    "start_within": 'duration; later than this after its time a run is `missed` ("1h")',
    "overlap": "`forbid`, `allow`, `replace` or `queue`, when another run of the job is not over (`forbid`)",
    "on_lost": "`relaunch` or `hold`: an attempt whose end nobody knows (`relaunch`)",
    "placement": "`first`, or `spread`: the least loaded node tries first (`spread` for client drivers)",
    "tags": "list; only nodes that have them all take it",
    "priority": "integer; higher first among runs that wait for a slot (0)",
    "pool": "a name of `[pools]` in coordd.toml: the runs of all jobs that name it share its size (none)",
    "concurrency": 'runs of the job at a time; `{ per = "{customer}", max = 1 }`: of each filled text; '
    "`{ min, max, by }`: as a strategy says (none)",
    "rate": '`"200/m"`: starts in that time (s, m, h, d), or `{ cluster, per_node }`; overrides `concurrency` (none)',
    "queue_max": 'with `overlap = "queue"`: how many runs wait (100)',
    "queue_keep": "`first` or `last`: which of them are kept; the others are `rejected` (`first`)",
    "after": 'the jobs after which it runs: `["a", "b"]`, or `{ all = […] or any = […], on, period, within }`: '
    "[policies.md](policies.md#after) (none)",
    "expand": 'one run for each value of a parameter: `{ region = ["eu", "us"] }` or '
    '`{ day = { from = "{date}", days = 7 } }`: '
    "[policies.md](policies.md#groups) (none)",
    "chunk": "with `expand`: how many values each run gets, as a JSON list (one, as it is)",
    "timeout": "duration; then it is ended, and has failed (none)",
    "lease": "seconds (the cluster's)",
    "run_as": "the user of its program, one of those in root's `/etc/coordd/run_as.allow`, never root; the run is in a "
    "systemd unit of its own (default: the daemon's user)",
    "limits": '`{ memory = "2G", cpu_weight = 100, tasks = 512 }`: the most that a run may use, counted by the kernel; '
    "the run is in a systemd unit of its own (no limit)",
    "params": "table of defaults; `--arg K=V` fills `{K}`",
    "spark": "`[spark]`: application, args, master, deploy_mode, conf, py_files, files, jars, name, keytab, principal, "
    "proxy_user, env, properties_file, class, lineage (as `[lineage] spark` says: OpenLineage's parent in its conf), "
    "pipeline (in place of application), fast_start, connect ([spark.md](spark.md#start-sooner))",
    "command": "`[command]`: argv, env, cwd; instead of `[spark]`",
    "breaker": "`[breaker]`: after (3: that many runs in a row), on (failure, lost, timeout; states, exit codes and "
    "patterns, or a table that says of each how many), window (none; those runs ended within it), open_for (15m), "
    "open_for_max (24h), growth (`fixed`, `linear`, `exponential`), when_open (`prevent`: rejected, `fail`: failure), "
    'enforce (true; false only watches), loud (`{ after = 3, within = "5m", for = "30m" }`: when a trip is logged '
    "as an error). docs/policies.md has the rules (no breaker)",
    "trigger": "`[[trigger]]`: what starts a run beside the schedule. kind (file, command, sql, http, amqp, redis, "
    "event), name (the kind), args (the params of the run, from `{trigger.NAME}`), every (10s), max_open (100; 1 if "
    "runs exclude each other), path and settle (2s) of files, argv and timeout (30s) of a command, url, password_file, "
    "query and timeout (30s) of a database, route, secret_file, auth (bearer) and key_header of HTTP calls, url, "
    "password_file, queue or stream, and key (id) of messages, on and jobs of events "
    "([triggers.md](jobs/triggers.md)) (none)",
    "check": "`[[check]]`: name, kind, its target (url, address, argv or path), every (30s), timeout (5s), fail_after "
    "(3), pass_after (2), scope (`node`, `cluster`, `tag:T`), then (`warn`, `abstain`, `suspend`), degraded_at, "
    "unhealthy_at; or, in `check = [...]`, names of checks of coordd.toml. docs/policies.md has kinds and rules (none)",
    "dedupe": "which triggers are the same run: a template over params, or `{ key, period, then }` "
    "([policies](policies.md#the-same-trigger-twice)) (none)",
    "sink": "`[[sink]]`: to (an address, or the NAME of a `[sink.NAME]`), on (success, failure, done), args (false): "
    "where the ends of its runs are sent. docs/operate.md has the addresses (none)",
    "retry": "`[retry]`: attempts (1, failures), relaunches (5, losses), submits (3, calls of spark-submit in deploy "
    "mode cluster until something is submitted), delay (30s), backoff (`fixed`, `linear`, `exponential`), "
    "jitter (0; by which part of itself, up to 1, a delay grows), never_on (exit codes and patterns)",
}


def job_keys() -> str:
    for section in ("spark", "command", "retry", "breaker"):
        names = getattr(jobkeys, section.upper())
        words = set(re.findall(r"[a-z_]+", _KEYS[section]))
        if set(names) - words:
            raise KeyError(f"[{section}] {sorted(set(names) - words)} are not described")
    described = sorted(told(jobkeys.TOP, _KEYS), key=lambda line: list(_KEYS).index(line[0]))
    lines = [(f"`{key}`", says) for key, says in described]
    return table(("key", "what it says (default)"), lines)


def metrics() -> str:
    lines = [
        (f"`{family.samples[0].removeprefix('coordd_')}`", family.kind, code(family.labels) or "-", family.text)
        for family in families.FAMILIES
    ]
    return table(("name", "kind", "labels", "what"), lines)


TABLES: dict[str, Callable[[], str]] = {
    "run-moves": run_moves,
    "attempt-moves": attempt_moves,
    "node-moves": node_moves,
    "member-moves": member_moves,
    "precedence": precedence,
    "packet": packet,
    "events": event_types,
    "groups": groups,
    "columns": columns,
    "job-columns": job_columns,
    "methods": methods,
    "later-methods": later_methods,
    "limits": limits,
    "job-keys": job_keys,
    "metrics": metrics,
}


def renew(text: str) -> str:
    """The text with every table as the code has it now. Raises KeyError for a table that there is not."""
    return BLOCK.sub(lambda match: f"{match.group(1)}{TABLES[match.group(2)]()}{match.group(3)}", text)


def main() -> None:
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        renewed = renew(text)
        if renewed != text:
            path.write_text(renewed, encoding="utf-8")
            print(f"{path.name}: renewed")


if __name__ == "__main__":
    main()
