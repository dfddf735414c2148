"""Job definitions that come from elsewhere than a directory: TOML texts of a revision, tables of a function.

They are read by the same reader as files, so a definition has the same digest wherever it comes from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from coordd.config import jobfile
from coordd.config.jobfile import JOBS_MAX, JobSet
from coordd.config.sections import Config
from coordd.config.tomlfile import FILE_BYTES_MAX, Problem, parsed_toml
from coordd.config.values import found, printable
from coordd.core.names import NAME, NAME_RULE

# A job by its name: its TOML text, or its table.
Said = Mapping[str, str | Mapping[str, Any]]


def read(said: Said, source: str, config: Config) -> JobSet:
    """The jobs and the problems; never raises because of the content. ``source`` names it in messages."""
    jobs, problems = {}, {}
    if len(said) > JOBS_MAX:
        problems[""] = [Problem(source, "", None, f"expected at most {JOBS_MAX} jobs, found {len(said)}")]
    for name in sorted(said)[:JOBS_MAX]:
        shown = printable(name)[:100]
        path = f"{source}/{name}.toml"
        if NAME.fullmatch(name):
            job, wrong = _read_one(path, said[name], config)
        else:  # a reader of files takes the last part of a path for the name
            job, wrong = (
                None,
                [Problem(printable(path), "", None, f"expected {NAME_RULE} as a name, found {found(name)}")],
            )
        if job is not None:
            jobs[shown] = job
        if wrong:
            problems[shown] = wrong
    return jobfile.related(JobSet(jobs, problems), source)


def _read_one(path: str, said: object, config: Config) -> Any:
    if isinstance(said, str):
        content, table, problem = parsed_toml(said.encode(errors="replace"), path, "job")
        return (None, [problem]) if problem else jobfile.made(path, content, table, config)
    if isinstance(said, Mapping):
        return jobfile.made(path, "", {str(key): value for key, value in said.items()}, config)
    message = f"expected a job's table or its TOML text, found {found(said)}"
    return None, [Problem(printable(path), "", None, message)]


def first_error(jobs: JobSet) -> str:
    """The first problem that disables a job, as a sentence; "" without any."""
    listed = [str(problem) for name in sorted(jobs.problems) for problem in jobs.problems[name]
              if problem.severity == "error"]  # fmt: skip
    more = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
    return listed[0] + more if listed else ""


def spoilt(new: JobSet, old: JobSet) -> str:
    """The first problem of a job that could be used before; "" without any."""
    names = [name for name in sorted(new.problems) if name in old.jobs and name not in new.jobs]
    return first_error(JobSet(problems={names[0]: new.problems[names[0]]})) if names else ""


def digest_of(texts: Mapping[str, str]) -> str:
    """The digest of a revision: of the names and texts of its job files."""
    return hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).hexdigest()


def checked_texts(given: object) -> dict[str, str]:
    """The texts of a revision by job name. Raises ValueError with what was expected."""
    if not isinstance(given, dict) or not all(isinstance(one, str) for pair in given.items() for one in pair):
        raise ValueError(f"expected TOML texts by the names of their jobs, found {found(given)}")
    if len(given) > JOBS_MAX:
        raise ValueError(f"expected at most {JOBS_MAX} job files, found {len(given)}")
    for name, text in given.items():
        if len(text.encode(errors="replace")) > FILE_BYTES_MAX:
            raise ValueError(f"{printable(name)[:100]}: expected at most {FILE_BYTES_MAX} bytes")
    return given
