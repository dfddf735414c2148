"""What the ledger's scripts in Redis know of its rules: written from the rules in Python, never by hand.

    make lua          writes lua/shared/constants.lua; a test says when it is out of date

No part of what runs: the daemon and the runner read the written file.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from coordd.adapters.ledger import redis_people, redis_rows
from coordd.core.ledger import fires, people, rows, rules, sound, standing, steps, words
from coordd.core.ledger.backfill import plan as plans, rule as backfilling
from coordd.core.ledger.breaker import rule as breaking, text as breakers
from coordd.core.ledger.limits import rule as limiting, text as limits
from coordd.core.ledger.marks import rule as marks
from coordd.core.ledger.revision import text as revisions

PATH = Path(__file__).parent / "lua" / "shared" / "constants.lua"

_HEAD = """\
-- Words, columns, figures and the table of moves. Written by `make lua` from the rules in Python: change those.
"""

# Each with the unit, or with what it counts.
_FIGURES = (
    (redis_people, "SCHEMA", "a closed ledger has another one"),
    (words, "NEW_RULES", "the version of the rules that identity_from begins"),
    (words, "NEVER", "Unix seconds: identity_from while the old rules are in force"),
    (words, "RHO", "clock-rate error between two machines"),
    (words, "CLOCK_EXACT_S", "seconds"),
    (words, "CLAIM_AHEAD_S", "seconds"),
    (words, "GATE_AHEAD_S", "seconds"),
    (words, "OPEN_PAGE", "rows on one page of a sweep"),
    (people, "BEGUN_MAX", "runs in an answer"),
    (rules, "SUSPENDED_RETRY_S", "seconds"),
    (rules, "OVERLAP_RETRY_S", "seconds"),
    (people, "NAMED_MAX", "runs in a sentence"),
    (words, "POLICY_WORDS_MIN", "words of a policy that every row has"),
    (words, "BACKOFF_MAX_S", "seconds"),
    (words, "BACKOFF_DOUBLINGS_MAX", "doublings of a delay"),
    (rows, "ACTIVATIONS_MAX", "definitions of a job that are remembered"),
    (standing, "IDENTITY_AHEAD_S", "seconds"),
    (standing, "LATE_S", "seconds"),
    (standing, "BARRIER_AT", "Unix seconds: the horizon that older versions read"),
    (standing, "BARRIER_BY", "who suspended the job, as they read it"),
    (steps, "SHORT_LIVED_S", "seconds"),
    (rows, "ALL", "the key of the hold on every job"),
    (words, "RELAUNCH_PAUSE_S", "seconds"),
    (words, "RELAUNCH_DOUBLINGS_MAX", "doublings of that pause"),
    (words, "INSTANT_MAX", "Unix seconds: the year 3000"),
    (words, "TOKEN_MAX", "the highest whole number that a column may have"),
    (sound, "FENCE_MAX", "a job's fence: tokens to come need room above it"),
    (sound, "BAD_MAX", "bad rows that one step passes over, or names"),
)

# Those of drained nodes, suspended jobs, sizes of pools, the revision in force and breakers of jobs; and how the text
# begins that says who asked for a run whose parents did not all come, or whose parents opened it. RERUN: of plans of
# re-runs; RERUN_OF: what stands in the row of a run that such a plan has opened; REPEATED: how the text begins of a run
# that a person runs once more; GONE: the definition of a withdrawn job; then how long a plan waits (seconds).
_KEYS = {
    "NODE": rows.OF_NODE,
    "JOB": rows.OF_JOB,
    "POOL": rows.OF_POOL,
    "REVISION": rows.REVISION,
    "BREAKER": rows.OF_BREAKER,
    "ISOLATED": rows.OF_ISOLATED,
    "ABSENT": words.ABSENT,
    "OPENED": words.OPENED,
    "CHECK": rows.OF_CHECK,
    "REPORTED": rows.OF_REPORTED,
    "RERUN": rows.OF_RERUN,
    "RERUN_OF": words.RERUN,
    "REPEATED": words.REPEATED,
    "GONE": revisions.GONE,
    "CHILDREN_KEPT_S": steps.CHILDREN_KEPT_S,
}


# IMPORTED: the epoch after an import; its next reader finds that the ledger went back.
_MARKS = {
    "NEWCOMER_S": words.NEWCOMER_S,
    "FORGOTTEN_S": marks.FORGOTTEN_S,
    "IMPORTED": "imported",
    "FEED_MAX": rows.FEED_MAX,
}


def constants() -> str:
    """The text of lua/shared/constants.lua."""
    numbers = {column: kind for column, (kind, _, _) in sound.NUMBERS.items() if column != "exit_code"}
    parts = [
        _HEAD,
        "-- States and answers (core/ledger/words.py).",
        *[f"local {word.upper()} = {_value(word)}" for word in (*words.STATES, *_answers())],
        f"local STATES = {_set(words.STATES)}",
        f"local TERMINAL = {_set(words.TERMINAL)}",
        f"local ACTIVE = {_set(words.ACTIVE)}",
        f"local HOLDING = {_set(steps.HOLDING)}",
        "",
        "-- Who may follow whom (core/ledger/steps.py).",
        f"local MOVES = {_sets(steps.MOVES)}",
        "",
        "-- What a report may say, and as what an attempt so reported may stand in the record (core/ledger/rules.py).",
        f"local REPORTED = {_sets(steps.REPORTED)}",
        "",
        "-- Words of a policy, in their order: the valid ones, or the largest number (core/ledger/words.py).",
        f"local POLICY = {_policy()}",
        "-- Limits (core/ledger/limits); one table, because Lua knows at most 200 names at a time.",
        f"local LIMIT = {_limits()}",
        "-- Fire times without a row, missed runs (core/ledger/fires.py); one table for the same reason.",
        f"local FIRES = {_fires()}",
        "-- Backfill (core/ledger/backfill); one table for the same reason.",
        f"local BACKFILL = {_backfill()}",
        "-- The breakers of jobs (core/ledger/breaker); one table for the same reason.",
        f"local BREAKER = {_breaker()}",
        "-- The keys of holds, or how they begin (core/ledger/rows.py). ABSENT, OPENED: how ``by`` of a run begins",
        "-- whose parents did not all come, or did; RERUN_OF: what follows there in a re-run; REPEATED: how it begins",
        "-- in a re-run of a run without parents (core/ledger/words.py).",
        "-- CHILDREN_KEPT_S: how long it is waited for (seconds). One table for the same reason.",
        f"local OF = {_table([f'{name} = {_value(key)}' for name, key in _KEYS.items()])}",
        "-- Marks (core/ledger/marks), how many changes are kept (core/ledger/feed); one table for the same reason.",
        f"local MARKS = {_table([f'{name} = {_value(value)}' for name, value in _MARKS.items()])}",
        "",
        "-- Figures.",
        *[f"local {name} = {_value(getattr(module, name))}  -- {says}" for module, name, says in _FIGURES],
        "",
        "-- Bytes of a text; core/ledger/sound.py counts characters, of four bytes at most.",
        f"local TEXT_BYTES_MAX = {4 * words.NAME_MAX}",
        f"local LONG_BYTES_MAX = {_table([f'{column} = {4 * sound.LONG_TEXT_MAX}' for column in sorted(sound.LONG)])}",
        "",
        "-- Columns (core/ledger/rows.py); of a run's row, OPEN is what a sweep tells, FEED what has a number when it",
        "-- changes; WHOLE and INSTANT are numbers.",
        f"local COLUMNS = {_columns(numbers)}",
        "-- Those that are numbers.",
        f"local NUMBERS = {_set(numbers)}",
    ]
    return "\n".join(parts) + "\n"


def _columns(numbers: Mapping[str, object]) -> str:
    """One table: Lua knows at most 200 names at a time, and a claim needs nearly all of them."""
    of_runs = [column for column in rows.RUN_COLUMNS if column in numbers]
    lists = {
        "RUN": rows.RUN_COLUMNS,
        "ATTEMPT": rows.ATTEMPT_COLUMNS,
        "JOB": rows.JOB_COLUMNS,
        "STANDING": rows.STANDING_COLUMNS,
        "OPEN": redis_rows.OPEN_COLUMNS,
        "FEED": rows.FEED_COLUMNS,
        "WHOLE": [column for column in of_runs if numbers[column] is int],
        "INSTANT": [column for column in of_runs if _is_instant(column)],
    }
    return "{\n" + "".join(f"  {name} = {_list(columns)},\n" for name, columns in lists.items()) + "}"


def _limits() -> str:
    figures = {
        "POOL": limits.POOL,
        "RETRY_S": limiting.LIMIT_RETRY_S,
        "DROPPED_MAX": limiting.DROPPED_MAX,
        "QUEUE_MAX": words.QUEUE_MAX,
        "JITTER_MAX": words.JITTER_MAX,
    }
    kinds = _table([f"['{kind}'] = true" for kind in words.LIMITS])
    return _table([*[f"{name} = {_value(value)}" for name, value in figures.items()], f"KINDS = {kinds}"])


def _fires() -> str:
    names = ("STRETCHES_MAX", "SUSPENDED", "REDEFINED", "HELD_BY_SUSPENSION", "HELD_BY_OTHERS")
    return _table([f"{name} = {_value(getattr(fires, name))}" for name in names])


def _backfill() -> str:
    figures = {
        "KEY": rows.OF_BACKFILL,
        "BY": rows.BACKFILLED,
        "RUNNING": plans.RUNNING,
        "DONE": plans.DONE,
        "STOPPED": plans.STOPPED,
        "CANCELLED": plans.CANCELLED,
        "OLDEST": plans.OLDEST,
        "EVERY": plans.EVERY,
        "FAILED": plans.FAILED,
        "NOTHING": plans.NOTHING_OPEN,
        "KEPT_S": plans.KEPT_S,
        "RETRY_S": limiting.LIMIT_RETRY_S,
        "UNSETTLED_S": backfilling.UNSETTLED_RETRY_S,
    }
    return _table([f"{name} = {_value(value)}" for name, value in figures.items()])


def _breaker() -> str:
    figures = {
        "ITEM": words.BREAKER,
        "CLOSED": breakers.CLOSED,
        "OPEN": breakers.OPEN,
        "HALF_OPEN": breakers.HALF_OPEN,
        "TIMEOUT": breakers.TIMEOUT,
        "MATCHED": breakers.MATCHED,
        "TIMED_OUT": words.TIMED_OUT,
        "HAS_MATCHED": words.HAS_MATCHED,
        "BY": breakers.PREVENTED_BY,
        "NOBODY": breakers.NOBODY,
        "GROUPS_MAX": breakers.GROUPS_MAX,
        "COUNT_MAX": breakers.COUNT_MAX,
        "DOUBLINGS_MAX": breakers.DOUBLINGS_MAX,
        "RETRY_S": breaking.BREAKER_RETRY_S,
    }
    sets = {
        "STATES": breakers.STATES,
        "TRYING": breaking.TRYING,
        "GROWTH": breakers.GROWTH,
        "WHEN_OPEN": breakers.WHEN_OPEN,
    }
    told = [f"{name} = {_value(value)}" for name, value in figures.items()]
    return _table([*told, *[f"{name} = {_set(some)}" for name, some in sets.items()]])


def _policy() -> str:
    lines = []
    for name, (kind, valid_words, most) in words.POLICY.items():
        number = "" if kind is str else f", most = {_value(most)}"
        valid = f", words = {_set(valid_words)}" if valid_words else number
        lines.append(f"  {{ name = '{name}'{valid} }},\n")
    return "{\n" + "".join(lines) + "}"


def _answers() -> list[str]:
    return [*sorted(words.WORDS - {*words.STATES, words.UNAVAILABLE}), words.SETTLED]


def _is_instant(column: str) -> bool:
    return sound.NUMBERS[column] == (float, 0.0, words.INSTANT_MAX)


def _value(value: object) -> str:
    if isinstance(value, str):
        assert "'" not in value
        assert "\\" not in value
        return f"'{value}'"
    assert isinstance(value, float | int)
    return str(int(value)) if value == int(value) else repr(value)


def _key(word: str) -> str:
    return "['until']" if word == "until" else word  # a word of Lua's own


def _set(some: Iterable[str]) -> str:
    return _table([f"{_key(word)} = true" for word in sorted(some)])


def _sets(some: Mapping[str, Iterable[str]]) -> str:
    return "{\n" + "".join(f"  {_key(word)} = {_set(after)},\n" for word, after in some.items()) + "}"


def _list(some: Iterable[str]) -> str:
    return _table([f"'{word}'" for word in some])


def _table(parts: list[str]) -> str:
    """On one line, or on as many as it takes."""
    whole = f"{{ {', '.join(parts)} }}"
    if len(whole) <= 108:
        return whole
    lines = [""]
    for part in parts:
        if len(lines[-1]) + len(part) > 110:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else '  '}{part},"
    return "{\n" + "\n".join(lines) + "\n}"


def main() -> None:
    """Write the file."""
    PATH.write_text(constants(), encoding="utf-8")


if __name__ == "__main__":
    main()
