"""The part of `doctor` that needs a running node: its keys, its connections, its peers, and its failures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from coordd.config import addresses
from coordd.config.safety import LOST_WITHOUT_GOSSIP
from coordd.core.breaker import Breaker
from coordd.core.context import SKEW_MAX_S
from coordd.core.ledger.requests import ListOpen
from coordd.core.ledger.rows import OF_JOB, OF_NODE
from coordd.core.ledger.words import NEW_RULES, RECOVERING
from coordd.core.members.membership import ALIVE, LEFT, SUSPECT
from coordd.core.node.alarms import Alarms
from coordd.core.node.node import Node
from coordd.core.node.shown import Shown
from coordd.core.visible import visible
from coordd.core.wire.chain import Break
from coordd.core.wire.envelope import ACCEPT, REFUSALS, Keyring
from coordd.core.wire.windows import CLOCK_SKEW_MAX_S
from coordd.errors import CoorddError, UnavailableError
from coordd.plugins import GROUPS, STRATEGIES
from coordd.plugins.installed import package_of, points, unfit
from coordd.ports import Bus, Ledger, Verifiable
from coordd.services.breakers.view import of_jobs
from coordd.services.driver import Driver
from coordd.services.ledger import CLOSED, CONNECTED, FOREIGN, LedgerService, boottime
from coordd.services.metrics.unread import Unread
from coordd.services.sealed_bus import SealedBus
from coordd.services.views.objects import Stop, is_isolated
from coordd.services.views.troubles import NOT_ALL, Found, Trouble
from coordd.services.views.why import is_drained, stopped

Check = dict[str, str]

OK, WARN, FAIL = "ok", "warn", "fail"

# A clock that is further off than this is not synchronised. CLOCK_SKEW_MAX_S is where it causes harm.
SKEW_WARN_S = 2.0

# Keys do not expire; `doctor` advises a new one after this time.
KEY_OLD_DAYS = 365

# More names than this in one sentence do not help.
NAMES_MAX = 5

# Less free space (MiB), and room for fewer files, than this on the disk of the state directory is too little.
DISK_FREE_MB = 200
DISK_FREE_FILES = 1000


async def cluster_checks(driver: Driver, ledger: LedgerService, ledger_url: str) -> list[Check]:
    """The checks of a node among others."""
    checks = [memory_check("/proc/self/mem", os.geteuid())]
    if driver.bus.state != "off" and not driver.bus.url.startswith("unix:"):
        checks += [*signing_checks(driver.bus, time.time()), *tls_checks(driver.bus.url, ledger_url)]
    if not ledger_url.startswith("sqlite:"):  # a file ledger uses our own clock
        checks.append(await _skew_check(ledger))
    checks += [state_check(ledger), identity_check(driver.node, ledger)]
    checks += impaired_checks(driver.node)
    checks.append(unread_check(driver.unread, driver.counts["malformed"]))
    checks.append(rules_check(driver.node))
    checks += alarm_checks(driver.node.alarms)
    checks += row_checks(driver.node)
    checks += node_checks(driver.node)
    checks += hold_checks(driver.node)
    checks += breaker_checks(driver.breakers, boottime())
    checks += job_breaker_checks(driver.node)
    if driver.outbox is not None:
        checks.append(backlog_check(driver.outbox.statistics()))
    return checks


def check(name: str, state: str, text: str, advice: str = "") -> Check:
    """One line of `doctor`; a good result has no advice."""
    return {"check": name, "state": state, "text": text, "advice": "" if state == OK else advice}


def memory_check(path: str, uid: int) -> Check:
    """Whether other processes of the daemon's user can read its memory. ``path``: a file that root owns if not."""
    try:
        closed = os.stat(path).st_uid != uid
    except OSError as exc:
        return check("memory", WARN, f"{path}: {exc.strerror}", "mount /proc")
    if uid == 0:
        return check("memory", OK, "only root can read it: the daemon runs as root")
    if closed:
        return check("memory", OK, f"closed to other processes of uid {uid}")
    text = f"other processes of uid {uid}, jobs too, can read it and its secrets"
    return check("memory", WARN, text, "something has set PR_SET_DUMPABLE again; restart the daemon")


def state_check(ledger: LedgerService) -> Check:
    """Whether the ledger does what this node asks it: one whose rows are sound may refuse every write."""
    name = "ledger state"
    if ledger.state == RECOVERING:
        text = f"it is recovering, and grants nothing for {ledger.recovering_s:.0f} s"
        return check(name, WARN, text, "wait; see docs/runbook.md: ledger recovering")
    if ledger.state == CONNECTED:
        return check(name, OK, "it answers")
    text = ledger.error or ledger.breaker.reason or "it does not answer"
    return check(name, FAIL, text, "see docs/runbook.md: ledger unavailable")


def identity_check(node: Shown, ledger: LedgerService) -> Check:
    """Whether this node uses the same ledger as before, and as the others."""
    name, see = "ledger identity", "see docs/runbook.md: ledger identity differs"
    if ledger.state in (FOREIGN, CLOSED):
        return check(name, FAIL, ledger.error, see)
    if node.braked:
        return check(name, FAIL, f"this node launches nothing: {node.braked}", see)
    others = [m for m in node.members.values() if m.state != LEFT]
    differing = [f"{m.name} uses {m.ledger}" for m in others if m.ledger not in ("", node.ledger)]
    if differing:
        text = f"{node.ledger} here; {', '.join(sorted(differing)[:NAMES_MAX])}: launch nothing there"
        return check(name, WARN, text, f"the same [cluster] ledger on every node; {see}")
    same = sum(m.ledger == node.ledger for m in others)
    silent = f", {len(others) - same} unknown" if same < len(others) else ""
    return check(name, OK, f"{node.ledger or 'not known yet'}, used here and by {same} of {len(others)} others{silent}")


def impaired_checks(node: Shown) -> list[Check]:
    """Why this node starts nothing itself, though it answers; also while it would start nothing for another reason."""
    journal, runtime = node.journal_failure, node.runtime_failure
    see = "see docs/runbook.md: its {} cannot be written"
    checks = [
        check("impaired", FAIL, f"this node starts nothing itself: {why}", see.format(what))
        for why, what in ((journal, "journal"), (runtime, "runtime directory"))
        if why
    ]
    if node.aside:
        text = f"this node leaves runs to other nodes: {node.aside}"
        checks.append(check("stands aside", WARN, text, "see docs/runbook.md: a node leaves runs to other nodes"))
    return checks or [check("impaired", OK, "journal and runtime directory can be written")]


def rules_check(node: Node) -> Check:
    """Which ledger rules are in force, and which nodes prevent the new ones."""
    advice = "upgrade them; see docs/runbook.md: a node goes by the old rules"
    in_force, old = node.rules, node.rulebook.held_back_by()
    names = ", ".join(old[:NAMES_MAX]) + (f" and {len(old) - NAMES_MAX} more" if len(old) > NAMES_MAX else "")
    if in_force < NEW_RULES:
        waits = (
            f"these nodes hold the new ones back: {names}"
            if old
            else "no node holds the new ones back: they begin soon"
        )
        return check("rules", WARN if old else OK, f"the old rules ({in_force}) are in force; {waits}", advice)
    told = f"the new rules ({in_force}) are in force"
    if old:
        return check("rules", WARN, f"{told}; these have an older version, so they launch nothing: {names}", advice)
    return check("rules", OK, told)


def row_checks(node: Shown) -> list[Check]:
    """Rows of the ledger that the last sweep could not use, and how to repair each."""
    checks = []
    for name, why in sorted(node.bad_rows.items())[:NAMES_MAX]:
        if "#" not in name and "@" not in name:  # else it is a run: JOB#ID, JOB@TIME
            told = f"{why}: no run of the job {visible(name)} starts"
            advice = f"coordctl job suspend {visible(name)} replaces the row by a valid one; then job resume"
        else:
            told, advice = f"{why}: no node touches the run", f"coordctl run revoke {visible(name)}"
        checks.append(check("ledger rows", FAIL, told, f"{advice}; see docs/runbook.md: a row of the ledger is bad"))
    if len(node.bad_rows) > NAMES_MAX:
        more = f"{len(node.bad_rows) - NAMES_MAX} more rows are bad"
        checks.append(check("ledger rows", FAIL, more, "mend those that are named first, then coordctl doctor again"))
    return checks or [check("ledger rows", OK, "the last sweep found no bad row")]


def alarm_checks(alarms: Alarms) -> list[Check]:
    """Alarms: something happened that must never happen."""
    advice = "see docs/runbook.md: alarm; then coordctl alarm clear --note TEXT"
    standing = [check("alarm", FAIL, alarm["text"], advice) for alarm in alarms.standing.values()]
    return standing or [check("alarm", OK, "none stands")]


def signing_checks(bus: Bus, now: float) -> list[Check]:
    """The keys that seal messages, and the messages that were refused because of keys."""
    if not isinstance(bus, SealedBus):
        text = "unsigned = true: anybody who reaches the bus can speak as any node"
        return [check("keyring", WARN, text, "coordd keys new, on every node; then unsigned = false and a restart")]
    checks = [_key_check(bus.keyring, now)]
    refused = {REFUSALS[kind]: count for kind, count in bus.refused.items() if count}
    if refused:
        told = "; ".join([*(f"{count} times: {why}" for why, count in refused.items()), bus.unread.told()])
        checks.append(check("envelopes refused", WARN, told, "the same keyring on every node, then coordctl reload"))
    else:
        checks.append(check("envelopes refused", OK, "none since the start"))
    return checks


def unread_check(unread: Unread, count: int) -> Check:
    """Messages that nobody could decode."""
    if not count:
        return check("messages refused", OK, "none since the start")
    advice = "the same version on every node? docs/runbook.md: messages that a node could not use"
    return check("messages refused", WARN, f"{count} could not be decoded; {unread.told()}", advice)


def _key_check(keyring: Keyring, now: float) -> Check:
    key = keyring.signing
    text = f"{key.id} signs"
    days = None
    if key.made:
        made = datetime.fromisoformat(key.made)
        days = int((now - (made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp()) // 86400)
        text += f", made {key.made}, {days} days ago"
    others = [other.id for other in keyring.keys if other.state == ACCEPT]
    if others:
        text += f"; accepted too: {', '.join(others)}"
    if days is not None and days > KEY_OLD_DAYS:
        return check("keyring", WARN, text, "coordd keys rotate")
    return check("keyring", OK, text)


def tls_checks(*listed: str) -> list[Check]:
    """Whether network traffic is encrypted."""
    urls = [url for urls in listed for url in addresses.split(urls)]
    wrong = [why for url in urls for why in addresses.insecure(url)]
    if wrong:
        return [check("TLS", WARN, why, "see docs/runbook.md") for why in wrong]
    plain = sorted({url.partition("://")[0] for url in urls} - addresses.ENCRYPTED - addresses.LOCAL)
    if plain:
        return [check("TLS", OK, f"not used for {', '.join(plain)}: its traffic stays on this machine")]
    return [check("TLS", OK, "used, certificates are verified")]


class Room(NamedTuple):
    """Free space (MiB) of a disk, and how many more files it has room for; None: any number."""

    mb: int
    files: int | None


def room(path: str) -> Room:
    """The room on the disk of this directory. Blocking. Raises OSError."""
    stat = os.statvfs(path)
    return Room(stat.f_bavail * stat.f_frsize // 2**20, stat.f_favail if stat.f_files else None)


def room_checks(path: str) -> list[Check]:
    """Whether the state directory is there, and its disk has room. Blocking. Raises OSError."""
    there = OK if os.path.isdir(path) else FAIL
    free_mb, files = room(path)
    enough = OK if free_mb > DISK_FREE_MB and (files is None or files > DISK_FREE_FILES) else FAIL
    text = f"{free_mb} MiB free" + (f", {files} inodes" if files is not None else "")
    return [
        check("state directory", there, path, f"create the directory {path}"),
        check("disk", enough, text, "free some space: journal and ledger need it"),
    ]


def job_checks(
    loaded: Collection[str], files: Mapping[str, Sequence[str]], refused: Mapping[str, str], absent: Mapping[str, str]
) -> list[Check]:
    """The jobs with a problem, and how many are loaded.

    ``files``: job to what is wrong in its file; ``refused``: to why this node may not run it; ``absent``: to what this
    node lacks for it. As in check-config, the last is a warning: the job itself is fine.
    """
    correct, mend = "correct it, then coordctl reload", "the job is fine: mend it on this node; others start it"
    found = {name: (WARN if name in loaded else FAIL, said[0], correct) for name, said in files.items()}
    found |= {name: (WARN, text, mend) for name, text in absent.items()}
    found |= {name: (FAIL, text, "see docs/runbook.md: a unit for a run") for name, text in refused.items()}
    checks = [check(f"job {name}", *found[name]) for name in sorted(found)]
    return [*checks, check("jobs loaded", OK if loaded else WARN, f"{len(loaded)} jobs", "add a job file")]


def warm_check(pid: int, problem: str) -> Check:
    """Whether attempts start from a warm parent."""
    text = f"not used now: {problem}" if problem else f"a warm parent, pid {pid}"
    return check("fast start", WARN if problem else OK, text, "attempts start slower meanwhile")


def units_check(usable: bool, text: str) -> Check:
    """Whether runs can have units, and what was found."""
    return check("units", OK if usable else WARN, text, "see docs/runbook.md: a unit for a run")


def audit_check(look: Callable[[], Sequence[Break]]) -> Check:
    """Whether the chain of the audit is whole. Blocking."""
    try:
        breaks = look()
    except UnavailableError as exc:
        return check("audit", FAIL, str(exc), "see docs/runbook.md")
    where = [f"{b.file}:{b.line}: {b.problem}" if b.line else f"{b.file} {b.problem}" for b in breaks]
    text = f"the chain of the audit is broken: {'; '.join(where[:3])}" if breaks else "its chain is intact"
    return check("audit", FAIL if breaks else OK, text, "coordctl audit; see docs/runbook.md")


def plugin_checks(strategies: Mapping[str, str]) -> list[Check]:
    """Every plug-in, with its package and version. None is loaded: they run in processes of their own.
    ``strategies``: what is wrong with those that were asked.
    """
    advice = "it is not used: repair or remove its package"
    return [
        check(f"plug-in {point.name}", WARN if wrong else OK, wrong or f"{what} of {package_of(point)}", advice)
        for group, what in GROUPS.items()
        for point in points(group)
        for wrong in (unfit(point) or (strategies.get(point.name, "") if group == STRATEGIES else ""),)
    ]


def opened_checks(open_ledger: Callable[[], Ledger]) -> list[Check]:
    """What a new connection of the ledger says of it. Blocking."""
    try:
        ledger = open_ledger()
        try:
            about = ledger.status()
            wrong = ledger.integrity() if isinstance(ledger, Verifiable) else []
        finally:
            ledger.close()
    except CoorddError as exc:
        return [check("ledger", FAIL, str(exc), "see docs/runbook.md")]
    sound = FAIL if wrong else OK
    weaker: list[str] = about.get("weaker", [])
    refuses = "this server is a replica" if about.get("role") == "replica" else None  # it refuses every write
    return [check("ledger", sound, "; ".join(wrong) or "intact", "restore it from a backup")] + [
        check("ledger server", FAIL if refuses and text.startswith(refuses) else WARN, text, "see docs/runbook.md")
        for text in weaker
    ]


async def _skew_check(ledger: LedgerService) -> Check:
    def look(reader: Ledger) -> tuple[float, float]:
        before = time.time()
        answer = reader.ask(ListOpen())
        after = time.time()
        return (before + after) / 2 - answer.wall, (after - before) / 2

    try:
        skew_s, blur_s = await ledger.query(look)
    except UnavailableError:
        return check("clock", WARN, "not compared: the ledger does not answer", "see the ledger")
    return skew_check(skew_s, blur_s)


def skew_check(skew_s: float, blur_s: float) -> Check:
    """How far this node's clock is ahead of the ledger's. ``blur_s``: how far that may be wrong."""
    off_s = max(0.0, abs(skew_s) - blur_s)
    text = f"{abs(skew_s):.3f} s {'ahead of' if skew_s > 0 else 'behind'} the ledger's"
    if off_s > CLOCK_SKEW_MAX_S:
        return check(
            "clock",
            FAIL,
            f"{text}: nodes with correct clocks refuse this node's messages in elections",
            "set this machine's clock, or the ledger's (chrony)",
        )
    if off_s > SKEW_MAX_S:
        return check(
            "clock",
            FAIL,
            f"{text}: this node opens no scheduled run above {SKEW_MAX_S:g} s",
            "set this machine's clock, or the ledger's (chrony)",
        )
    if off_s > SKEW_WARN_S:
        return check("clock", WARN, f"{text}: scheduled runs start late or early by that", "chrony, on both")
    return check("clock", OK, text)


def bus_check(bus: Bus) -> Check:
    """How the bus is; without gossip there is none."""
    if bus.state == "off":
        return check("bus", WARN, f"gossip = false: {LOST_WITHOUT_GOSSIP}", "docs/operate.md, Without gossip")
    state = OK if bus.state == "connected" else FAIL
    text = bus.error or f"{bus.url} is {bus.state}"
    return check("bus", state, text, "runs still launch, through the ledger; see docs/runbook.md")


def node_checks(node: Shown) -> list[Check]:
    """Which nodes this one hears, and whether they have the same jobs."""
    if is_isolated(node):
        text = "this node hears nobody, and takes all others for lost meanwhile"
        return [check("nodes", WARN, text, "see the bus; runs still start, through the ledger")]
    there = [member for member in node.members.values() if member.state in (ALIVE, SUSPECT)]
    counts = node.member_counts()
    away = f", {counts['lost']} lost" if counts["lost"] else ""
    checks = [check("nodes", WARN if away else OK, f"{counts['alive']} alive{away}", "coordctl node list")]
    others = sorted(member.hostname for member in there if member.jobs_digest != node.jobs_digest)
    if others:
        names = ", ".join(others[:NAMES_MAX]) + (f" and {len(others) - NAMES_MAX} more" * (len(others) > NAMES_MAX))
        text = f"{names}: their job files differ from those here"
        checks.append(check("jobs digest", WARN, text, "the same files on every node, then coordctl reload on each"))
    elif there:
        checks.append(check("jobs digest", OK, "the same on all of them"))
    return checks


def hold_checks(node: Node) -> list[Check]:
    """What people have stopped: all jobs, jobs of this node, nodes."""
    drains, checks = node.drains, []
    if drains.pause is not None:
        told = stopped("", Stop(drains.pause, common=True))
        checks.append(check("all jobs suspended", WARN, told, "coordctl job resume --all"))
    checks += [
        check("job suspended", WARN, stopped(job, Stop(drains.holds.get(OF_JOB + job))), f"coordctl job resume {job}")
        for job in sorted(drains.suspended)[:NAMES_MAX]
    ]
    if len(drains.suspended) > NAMES_MAX:
        more = f"{len(drains.suspended) - NAMES_MAX} more jobs are suspended"
        checks.append(check("job suspended", WARN, more, "coordctl job list"))
    names = {node.hostname, *[key[len(OF_NODE) :] for key in drains.holds if key.startswith(OF_NODE)]}
    drained = {name: drains.of_node(name) for name in sorted(names)}
    return checks + [
        check("node drained", WARN, is_drained(name, hold), f"coordctl node resume {name}")
        for name, hold in drained.items()
        if hold is not None
    ]


def breaker_checks(breakers: tuple[Breaker, ...], now: float) -> list[Check]:
    """Connections whose breaker is open."""
    checks = [
        check(
            f"breaker {breaker.name}",
            WARN,
            f"{breaker.state} after {breaker.failures} failures: {breaker.reason}",
            f"tried again in {breaker.retry_in_s(now):.1f} s; coordctl breaker reset {breaker.name} tries at once",
        )
        for breaker in breakers
        if breaker.is_open
    ]
    return checks or [check("breakers", OK, "closed")]


def job_breaker_checks(node: Node) -> list[Check]:
    """Jobs whose breaker is open."""
    found = [one for one in of_jobs(node.jobs, node.drains.holds).values() if one.is_open]
    checks = [
        check(f"breaker {one.name}", WARN, one.sentence(), f"coordctl why {one.job.name}") for one in found[:NAMES_MAX]
    ]
    if len(found) > NAMES_MAX:
        more = f"{len(found) - NAMES_MAX} more breakers of jobs are open"
        checks.append(check("breakers of jobs", WARN, more, "coordctl breaker list"))
    return checks


def trouble_checks(found: Found) -> list[Check]:
    """Runs and jobs that wait for a person."""
    advice = {
        "unknown": "look at its output, then coordctl run resolve RUN --as success|failed|relaunch",
        "late": "coordctl why RUN",
        "stuck": "coordctl why RUN; coordctl node list",
    }
    checks = [
        check(f"runs {word}", FAIL if word == "unknown" else WARN, told(runs), advice[word])
        for word, runs in (("unknown", found.unknown), ("stuck", found.stuck), ("late", found.late))
        if runs
    ]
    checks += [
        check(f"job {name} is late", FAIL, text, f"coordctl why {name}") for name, text in found.late_jobs.items()
    ]
    checks = checks or ([] if found.cut else [check("runs", OK, "no run is unknown, stuck or late")])
    if found.cut:
        checks.append(check("runs", WARN, NOT_ALL, "coordctl run list; see docs/runbook.md: a run is pending for long"))
    if found.dead:
        named = ", ".join(trouble.run for trouble in found.dead[:NAMES_MAX])  # not why: a reason may quote the program
        text = f"{len(found.dead)} given up: {named}" + (", …" if len(found.dead) > NAMES_MAX else "")
        checks.append(check("dead letters", WARN, text, "coordctl deadletter list; replay or discard each"))
    return checks


def told(runs: Sequence[Trouble]) -> str:
    """The first of these runs with their problems, and how many more there are."""
    shown = "; ".join(f"{trouble.run}: {trouble.text}" for trouble in runs[:NAMES_MAX])
    return shown + (f"; and {len(runs) - NAMES_MAX} more" if len(runs) > NAMES_MAX else "")


def backlog_check(about: dict[str, Any]) -> Check:
    """The messages that wait for the bus."""
    text = "no message waits for the bus"
    if about["waiting"]:
        text = f"{about['waiting']} messages wait for the bus, the oldest for {about['oldest_s']:.0f} s"
    if about["given_up"]:
        text += f"; {about['given_up']} were given up because the backlog was full"
    if about["error"]:
        text += f"; the disk refuses them: {about['error']}"
        return check("backlog", WARN, text, "repair the disk before this node is restarted")
    if about["waiting"] or about["given_up"]:
        return check("backlog", WARN, text, "see the bus")
    return check("backlog", OK, text)
