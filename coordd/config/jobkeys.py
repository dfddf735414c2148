"""The keys of a job file, and their valid values.

One table per section: key -> reader. A reader raises ValueError with the expected and the found value. PLAIN says more
about the keys that fill one field of Job: the job file's reader, `job show` and what viewers see follow from it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from datetime import date
from difflib import get_close_matches
from typing import Any, NamedTuple

from coordd.config import values
from coordd.config.checks.loud import read_loud
from coordd.config.following import expanding, keys as following
from coordd.config.values import converted, found
from coordd.core.jobs.arguments import BUILT_IN, NAME as PARAM_NAME, merge_params, nearest, placeholders
from coordd.core.jobs.job import Concurrency, Dedupe, Limits, Rate, Rates, SparkSubmit
from coordd.core.jobs.schedule import parse_duration, zone
from coordd.core.ledger import words
from coordd.core.ledger.breaker import text as breakers
from coordd.errors import RefusedError

# Every node keeps all definitions in memory: limits for the entries of a list or a table, and for the bytes of a text.
ENTRIES_MAX = 1000
TEXT_BYTES_MAX = 64 * 1024

# Each fire time is compared with every blackout.
BLACKOUTS_MAX = 100

PRIORITY_MAX = 1_000_000
TRIES_MAX = 1000
SUBMITS_MAX = 20
MEMORY_MIN, MEMORY_MAX = 16 * 2**20, 2**62

# Keys that [spark].conf must not contain, and why.
OWNED_CONF = {
    "spark.yarn.tags": "coordd uses it to find a run's applications",
    "spark.yarn.submit.waitAppCompletion": "coordd follows the application itself",
    "spark.kubernetes.submission.waitAppCompletion": "coordd follows the application itself",
    "spark.standalone.submit.waitAppCompletion": "coordd follows the application itself",
    "spark.master": "write master under [spark]",
    "spark.submit.deployMode": "write deploy_mode under [spark]",
}

# In deploy mode client Spark needs it: the executors belong to that pod.
POD_NAME = "spark.kubernetes.driver.pod.name"

_URI = re.compile(r"[a-z][a-z0-9+.-]*:/\S+", re.ASCII | re.IGNORECASE)
_CONF_KEY = re.compile(r"spark\.[A-Za-z0-9._-]{1,200}", re.ASCII)
_RATE = re.compile(r"([0-9]{1,9})/([smhd])", re.ASCII)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def _part(value: object) -> float:
    part = values.number(value)
    if not 0 <= part <= 1:
        raise ValueError(f"expected a number from 0 to 1, found {part:g}")
    return part


def _longer_than_nothing(value: Any) -> float:
    seconds = parse_duration(value)
    if seconds <= 0:
        raise ValueError(f"expected a duration above zero, found {found(value)}")
    return seconds


def _lines(value: object) -> str:
    """A text that may have several lines, such as an argument or a script."""
    read: str = converted(value, str, "a text")
    if "\0" in read:
        raise ValueError("expected a text without NUL characters")
    if len(read.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        raise ValueError(f"expected at most {TEXT_BYTES_MAX} bytes, found more")
    return read


def _list_of(reader: values.Reader) -> values.Reader:
    def read(value: object) -> tuple[str, ...]:
        items: list[Any] = converted(value, list[Any], "a list of texts")
        if len(items) > ENTRIES_MAX:
            raise ValueError(f"expected at most {ENTRIES_MAX} entries, found {len(items)}")
        values.only_texts(items)
        return tuple([reader(item) for item in items])

    return read


def _application(value: object) -> str:
    read = values.text(value)
    if read.startswith("-"):
        raise ValueError(f"expected an absolute path or a URI; found {found(read)}, which looks like an option")
    if not read.startswith("/") and not _URI.fullmatch(read):
        raise ValueError(f"expected an absolute path or a URI, found {found(read)}")
    return read


def _no_option(value: object) -> str:
    """A value after an option of spark-submit; it must not look like an option."""
    read = values.text(value)
    if not read or read.startswith("-"):
        raise ValueError(f'expected a text that does not begin with "-", found {found(read)}')
    return read


def _entry(value: object) -> str:
    """One entry of a list for spark-submit, which separates entries with commas."""
    read = _no_option(value)
    if "," in read:
        raise ValueError(f"expected one path or URI without commas, found {found(read)}")
    return read


def _argv(value: object) -> tuple[str, ...]:
    argv: tuple[str, ...] = _list_of(_lines)(value)
    if not argv or not argv[0]:
        raise ValueError("expected a program and its arguments, found nothing")
    program = values.text(argv[0])
    if program.startswith("-") or ("/" in program and not program.startswith("/")):
        raise ValueError(f"expected an absolute path, or a name to be found on PATH, found {found(program)}")
    return argv


def _table(value: object) -> dict[str, str]:
    table = values.text_table(value)
    if len(table) > ENTRIES_MAX:
        raise ValueError(f"expected at most {ENTRIES_MAX} entries, found {len(table)}")
    return {key: _lines(item) for key, item in table.items()}


def _env(value: object) -> dict[str, str]:
    env = _table(value)
    for key in env:
        if not _VARIABLE.fullmatch(key):
            raise ValueError(f'"{key:.60}" is not a valid name of an environment variable')
        if key.startswith("COORDD_"):
            raise ValueError(f'"{key:.60}" must not be set: coordd sets the variables that begin with COORDD_')
    return env


def _conf(value: object) -> dict[str, str]:
    """Spark's properties. TOML reads ``spark.executor.memory = "4g"`` as nested tables; they are joined again."""
    conf = _table(_joined(converted(value, dict[str, Any], "a table of texts"), ""))
    for key, item in conf.items():
        if key in OWNED_CONF:
            raise ValueError(f'"{key}" must not be set here: {OWNED_CONF[key]}')
        if key.startswith("spark.coordd."):
            raise ValueError(
                f'"{key:.60}" must not be set: coordd gives the driver its run and token as spark.coordd.*'
            )
        if not _CONF_KEY.fullmatch(key):
            raise ValueError(f'expected keys that begin with "spark." (spark-submit ignores others), found "{key:.60}"')
        values.text(item)
    return conf


def cluster_fault(on_lost: str, launch: SparkSubmit, master: str, *, guarded: bool) -> tuple[str, str] | None:
    """The key of a job with deploy mode cluster that cannot be kept, and why."""
    standalone = master.startswith("spark://")
    if master.startswith("local"):
        return "spark.deploy_mode", (
            f'spark-submit refuses deploy_mode = "cluster" with master "{master}": name a master, such as yarn, or'
            ' write deploy_mode = "client"'
        )
    if standalone and launch.application.endswith((".py", ".zip", ".egg")):
        return "spark.deploy_mode", (
            f'a Standalone master ("{master}") refuses Python programs in deploy mode cluster: write deploy_mode ='
            ' "client", or give a jar'
        )
    if POD_NAME in launch.conf:
        return (
            "spark.conf",
            f'"{POD_NAME}" must not be set with deploy_mode = "cluster": coordd finds a run\'s driver by it',
        )
    if standalone and launch.conf.get("spark.driver.supervise", "false") != "false":
        return "spark.conf", (
            '"spark.driver.supervise" lets the Standalone master start a failed driver again by itself, beside'
            " the attempts that coordd counts: write attempts under [retry] instead"
        )
    if guarded and launch.conf.get("spark.yarn.maxAppAttempts", "1") != "1":
        return "spark.conf", (
            '"spark.yarn.maxAppAttempts" above 1 lets YARN start a second driver with the token of the first, and'
            " with [guard] both would be the owner: write attempts under [retry] instead"
        )
    if on_lost == "relaunch" and not (standalone or master == "yarn" or master.startswith("k8s://")):
        return "on_lost", (
            'on_lost = "relaunch" with deploy_mode = "cluster" needs a look-up of the application that the lost'
            f' attempt may have left running, and master "{master}" has none: only yarn, k8s:// and spark:// show'
            ' what belongs to a run. Write on_lost = "hold"'
        )
    return None


def _joined(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for key, item in table.items():
        joined.update(_joined(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": item})
    return joined


def _params(value: object) -> dict[str, str]:
    params = _table(value)
    for key in params:
        if not PARAM_NAME.fullmatch(key):
            raise ValueError(f'expected names of letters, digits and _ (at most 64), found "{key:.60}"')
        if key in BUILT_IN:
            raise ValueError(f'"{key}" is a name that coordd sets itself; choose another')
    try:
        return merge_params(params, params)
    except RefusedError as exc:
        raise ValueError(f"{exc}: {exc.hint}") from exc


def _zone_name(value: object) -> str:
    name = values.text(value)
    zone(name)
    return name


def _instant(value: object) -> str | date:
    """Only stored here; parsed once the time zone is known."""
    if isinstance(value, date):
        return value
    return values.text(value)


def _exit_code(code: int) -> int:
    if not 1 <= abs(code) <= 255:
        raise ValueError(f"expected exit codes from 1 to 255 (or -1 to -64 for signals), found {code}")
    return code


def _pattern(item: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            re.compile(values.text(item))
    except (re.error, RecursionError, OverflowError) as exc:
        raise ValueError(f"expected a regular expression, found {found(item)}: {exc}") from exc
    except FutureWarning as exc:
        raise ValueError(
            f"expected a regular expression, found {found(item)}: {exc}, which a later Python will read "
            "differently; write \\[ for a bracket"
        ) from exc
    return item


def _never_on(value: object) -> tuple[int | str, ...]:
    items: list[int | str] = converted(value, list[int | str], "a list of exit codes and patterns")
    return tuple([_exit_code(item) if isinstance(item, int) else _pattern(item) for item in items[:ENTRIES_MAX]])


def _trips_on(value: object) -> tuple[int | str, ...] | dict[str, int]:
    """What a breaker counts: states, exit codes and patterns; or a table that says of each how many."""
    states = ", ".join(breakers.COUNTED)
    if isinstance(value, dict):
        counts: dict[str, int] = converted(value, dict[str, int], f"a table of numbers by {states} or exit code")
        if not 1 <= len(counts) <= breakers.GROUPS_MAX:
            raise ValueError(f"expected 1 to {breakers.GROUPS_MAX} entries, found {len(counts)}")
        for word, count in counts.items():
            if word not in breakers.COUNTED:
                if not re.fullmatch(r"-?[0-9]{1,3}", word):
                    raise ValueError(f"expected {states} or an exit code, found {found(word)}")
                _exit_code(int(word))
            values.whole(1, breakers.COUNT_MAX)(count)
        return counts
    items: list[int | str] = converted(value, list[int | str], f"a list of {states}, exit codes and patterns")
    if not items:
        raise ValueError(f"expected some of {states}, exit codes and patterns, found nothing")
    for item in items[:ENTRIES_MAX]:
        if isinstance(item, int):
            _exit_code(item)
        elif item not in breakers.COUNTED:
            meant = get_close_matches(item, breakers.COUNTED, n=1, cutoff=0.7)
            if meant or item in words.STATES:
                near = f'; did you mean "{meant[0]}"?' if meant else "; that is not a failure of a run"
                raise ValueError(f"expected {states}, exit codes or patterns, found {found(item)}{near}")
            _pattern(item)
    return tuple(items[:ENTRIES_MAX])


def _concurrency(value: object) -> Concurrency:
    if isinstance(value, dict):
        if "by" in value:
            return _by_strategy(value)
        if set(value) != {"per", "max"}:
            said = ", ".join(value) or "nothing"
            raise ValueError(f"expected a whole number, {{ per, max }} or {{ min, max, by }}, found {said}")
        per = values.text(value["per"])
        try:
            names = placeholders(per)
        except RefusedError as exc:
            raise ValueError(f"per: {exc}: {exc.hint}") from exc
        if not names:
            raise ValueError(f"per: expected a template that names a parameter, found {found(per)}")
        return Concurrency(max=values.whole(0, values.SIZE_MAX)(value["max"]), per=per)
    return Concurrency(max=values.whole(0, values.SIZE_MAX)(value))


def _dedupe(value: object) -> Dedupe:
    said = value if isinstance(value, dict) else {"key": value}
    if "key" not in said or not set(said) <= {"key", "period", "then"}:
        raise ValueError(
            f'expected a template such as "{{customer}}", or {{ key, period, then }}, found {found(value)}'
        )
    key = values.text(said["key"])
    try:
        names = placeholders(key)
    except RefusedError as exc:
        raise ValueError(f"key: {exc}: {exc.hint}") from exc
    period_s = _longer_than_nothing(said["period"]) if "period" in said else 0.0
    if not names and not period_s:
        raise ValueError(f"expected a template that names a parameter, or a period, found {found(key)}")
    return Dedupe(key, period_s, values.one_of("same", "refuse")(said.get("then", "same")))


class AnyParam(dict[str, str]):
    """Stands for params that cannot be used: each name counts as declared, so that no problem follows from theirs."""

    def __contains__(self, name: object) -> bool:
        return True


def settle_params(table: Mapping[str, Any], said: dict[str, Any]) -> None:
    """After `expand` has declared its parameter: if `params` or `expand` has an error, nobody knows the names."""
    if any(key in table and key not in said for key in ("params", "expand")):
        said["params"] = AnyParam(said.get("params", {}))


def undeclared(template: str, params: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each placeholder of a limit or of `dedupe` that is not a parameter."""
    for name in placeholders(template):
        if name in BUILT_IN:
            yield (
                f"{{{name}}} is set only when a run is launched, too late for this: declare a parameter of your own"
                ' under params, and let the caller give it, as in "{day}"'
            )
        elif name not in params:
            yield f'there is no param "{name}"; {nearest(name, params)}'


def without_schedule(key: str, said: Mapping[str, Any]) -> str:
    """A warning: the key has no effect."""
    if said.get("after"):
        return f"{key} has no effect without schedule: the job runs after its parents"
    also = "when a trigger of its file starts it, or by hand" if said.get("trigger") else "by hand only"
    return f"{key} has no effect without schedule: the job runs {also}"


def fraction(key: str, found_s: float) -> str:
    """A warning: a part of the duration has no effect."""
    return f"{key} is counted in whole seconds: {found_s:g} s has the effect of {int(found_s)} s"


def without_attempts(table: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Warnings about keys of [retry] that have no effect. ``said``: those of the table that can be used."""
    if table.get("attempts", 1) == 1:
        for key in ("delay", "backoff", "jitter", "never_on"):
            if key in said:
                yield key, f"{key} has no effect without attempts above 1: no failure is tried again"


def without_growth(table: Mapping[str, Any]) -> str:
    """A warning: open_for_max of [breaker] has no effect."""
    if table.get("growth", "fixed") != "fixed":
        return ""
    return 'open_for_max has no effect with growth = "fixed", the default: it is open for open_for each time'


def misused_dedupe(said: Mapping[str, Any], keep_s: float) -> Iterator[str]:
    """Problems between `dedupe` and other keys. ``keep_s``: for how long the ledger keeps runs."""
    dedupe: Dedupe | None = said.get("dedupe")
    if dedupe is None:
        return
    yield from undeclared(dedupe.key, said.get("params", {}))
    if dedupe.period_s >= keep_s:
        yield "period must be shorter than the time for which the ledger keeps runs ([history] keep of coordd.toml)"
    if dedupe.period_s and said.get("trigger"):
        yield (
            "period cannot stand beside [[trigger]]: the same arrival is looked at again in the next period, and would"
            ' be a new run; put the date into the key, as in dedupe = "{customer}-{day}"'
        )


def _by_strategy(value: dict[str, object]) -> Concurrency:
    if set(value) != {"min", "max", "by"}:
        raise ValueError(f"expected {{ min, max, by }}, found {', '.join(value)}")
    size = values.whole(0, values.SIZE_MAX)
    least, most = size(value["min"]), size(value["max"])
    if least > most:
        raise ValueError(f"min ({least}) is above max ({most})")
    return Concurrency(max=most, min=least, by=values.strategy(value["by"], "load", "memory"))


def _rate(value: object) -> Rate:
    said = values.text(value)
    match = _RATE.fullmatch(said)
    if not match or int(match[1]) > values.SIZE_MAX:
        raise ValueError(f'expected starts per time, such as "200/m" (s, m, h or d), found {found(said)}')
    return Rate(count=int(match[1]), period_s=int(parse_duration(f"1{match[2]}")))


def _rates(value: object) -> Rates:
    if not isinstance(value, dict):
        return Rates(cluster=_rate(value))
    if not value or not set(value) <= {"cluster", "per_node"}:
        raise ValueError(f"expected cluster, per_node or both, found {', '.join(value) or 'nothing'}")
    return Rates(**{key: _rate(said) for key, said in value.items()})


def _blackouts(value: object) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = converted(
        value, list[dict[str, Any]], "a list of tables { from, to } or { cron, duration }"
    )
    if len(tables) > BLACKOUTS_MAX:
        raise ValueError(f"expected at most {BLACKOUTS_MAX} blackouts, found {len(tables)}")
    return tables


def _user(value: object) -> str:
    """The user of a job's programs. This machine may not have it: other nodes may."""
    name = values.text(value)
    if not _USER.fullmatch(name):
        raise ValueError(f"expected the name of a user, found {found(name)}")
    if name == "root":
        raise ValueError("no job runs as root by run_as: name a user that may do what the job needs")
    return name


def _limits(value: object) -> Limits:
    table = converted(value, dict[str, Any], 'a table { memory = "2G", cpu_weight = 100, tasks = 512 }')
    wrong: list[str] = []
    said = values.read_table(
        table, LIMITS, lambda key, message: wrong.append(f"{key}: {message}" if key in LIMITS else message)
    )
    if wrong:
        raise ValueError("; ".join(wrong))
    return Limits(**said)


def _memory(value: object) -> int:
    size = values.parse_size(values.text(value))
    if size < MEMORY_MIN:
        raise ValueError(f"expected at least {MEMORY_MIN} bytes, found {size}: no program starts with less")
    if size > MEMORY_MAX:
        raise ValueError(f"expected at most {MEMORY_MAX} bytes, found {size}")
    return size


class Key(NamedTuple):
    """A key that fills one field of Job. ``public``: viewers see its value too."""

    read: values.Reader
    field: str
    public: bool


LIMITS: dict[str, values.Reader] = {
    "memory": _memory,
    "cpu_weight": values.whole(1, 10_000),
    "tasks": values.whole(1, 2**22),
}
PLAIN: dict[str, Key] = {
    "description": Key(_lines, "description", public=True),
    "enabled": Key(values.flag, "enabled", public=True),
    "owner": Key(values.text, "owner", public=True),
    "timezone": Key(_zone_name, "timezone", public=True),
    "misfire": Key(values.one_of("skip", "once", "all"), "misfire", public=True),
    "start_within": Key(_longer_than_nothing, "start_within_s", public=True),
    "expect_within": Key(_longer_than_nothing, "expect_within_s", public=True),
    "overlap": Key(values.one_of(*words.OVERLAP), "overlap", public=True),
    "on_lost": Key(values.one_of(*words.ON_LOST), "on_lost", public=True),
    "placement": Key(values.one_of("first", "spread"), "placement", public=True),
    "tags": Key(values.tags, "tags", public=True),
    "priority": Key(values.whole(-PRIORITY_MAX, PRIORITY_MAX), "priority", public=True),
    "pool": Key(values.name, "pool", public=True),
    "concurrency": Key(_concurrency, "concurrency", public=True),
    "rate": Key(_rates, "rate", public=True),
    "queue_max": Key(values.whole(0, values.SIZE_MAX), "queue_max", public=True),
    "queue_keep": Key(values.one_of(*words.QUEUE_KEEP), "queue_keep", public=True),
    "after": Key(following.read, "after", public=True),
    "dedupe": Key(_dedupe, "dedupe", public=True),
    "expand": Key(expanding.read, "expand", public=False),
    "timeout": Key(_longer_than_nothing, "timeout_s", public=True),
    "lease": Key(values.number, "lease_s", public=True),
    "run_as": Key(_user, "run_as", public=True),
    "limits": Key(_limits, "limits", public=True),
    "params": Key(_params, "params", public=False),
}
TOP: dict[str, values.Reader] = {
    **{name: key.read for name, key in PLAIN.items()},
    "schedule": values.text,
    "chunk": expanding.CHUNK,
    "start": _instant,
    "end": _instant,
    "jitter": parse_duration,
    "blackout": _blackouts,
    "spark": lambda value: converted(value, dict[str, Any], "a table"),
    "command": lambda value: converted(value, dict[str, Any], "a table"),
    "retry": lambda value: converted(value, dict[str, Any], "a table"),
    "breaker": lambda value: converted(value, dict[str, Any], "a table"),
    "trigger": lambda value: converted(value, list[dict[str, Any]], "[[trigger]], with two brackets on each side"),
    "check": lambda value: value,
    "sink": lambda value: converted(value, list[dict[str, Any]], "[[sink]], a list of tables"),
}
SPARK: dict[str, values.Reader] = {
    "application": _application,
    "args": _list_of(_lines),
    "master": _no_option,
    "deploy_mode": values.one_of("client", "cluster"),
    "conf": _conf,
    "py_files": _list_of(_entry),
    "files": _list_of(_entry),
    "jars": _list_of(_entry),
    "name": values.text,
    "keytab": values.path,
    "principal": _no_option,
    "proxy_user": _no_option,
    "env": _env,
    "properties_file": values.path,
    "class": _no_option,
    "lineage": values.flag,
    "fast_start": values.flag,
    "pipeline": values.path,
    "connect": values.one_of("pool"),
}
COMMAND: dict[str, values.Reader] = {"argv": _argv, "env": _env, "cwd": values.path}
RETRY: dict[str, values.Reader] = {
    "attempts": values.whole(1, TRIES_MAX),
    "relaunches": values.whole(0, TRIES_MAX),
    "submits": values.whole(1, SUBMITS_MAX),
    "delay": parse_duration,
    "backoff": values.one_of(*words.BACKOFF),
    "jitter": _part,
    "never_on": _never_on,
}
BREAKER: dict[str, values.Reader] = {
    "after": values.whole(1, breakers.COUNT_MAX),
    "on": _trips_on,
    "window": _longer_than_nothing,
    "open_for": _longer_than_nothing,
    "open_for_max": _longer_than_nothing,
    "growth": values.one_of(*breakers.GROWTH),
    "when_open": values.one_of(*breakers.WHEN_OPEN),
    "enforce": values.flag,
    "loud": read_loud,
}
BLACKOUT: dict[str, values.Reader] = {
    "from": _instant,
    "to": _instant,
    "cron": values.text,
    "duration": _longer_than_nothing,
}
