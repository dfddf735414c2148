"""Reads ``[topic]`` of a job file: what a run executes comes from a package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from coordd.config import values
from coordd.config.plugged.services import read_memory
from coordd.core.jobs.job import Command
from coordd.plugins import TOPICS

ARGS_MAX = 50

_ARG = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)


def topic_of(said: Mapping[str, Any]) -> Command:
    """The launch of a job. ``said``: what could be read."""
    words = [f"{key}={template}" for key, template in said.get("args", {}).items()]
    return Command(
        argv=(said.get("name", ""), *words),
        env=said.get("env", {}),
        cwd=said.get("cwd", ""),
        topic=True,
        memory=said.get("memory", 0),
    )


def _name(value: object) -> str:
    return values.brought(value, TOPICS, "a topic")


def _args(value: object) -> dict[str, str]:
    said = values.text_table(value)
    if len(said) > ARGS_MAX:
        raise ValueError(f"expected at most {ARGS_MAX} values, found {len(said)}")
    for name in said:
        if not _ARG.fullmatch(name):
            raise ValueError(f"expected names of a letter and up to 63 of A-Z a-z 0-9 _ -, found {values.found(name)}")
    return said


def readers(env: values.Reader) -> dict[str, values.Reader]:
    """Of each key. ``env``: the reader of variables of a program."""
    return {"name": _name, "args": _args, "env": env, "cwd": values.path, "memory": read_memory}
