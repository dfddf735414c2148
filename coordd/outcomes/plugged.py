"""Sinks that packages bring: the outcome is handed to the plug-in, in a process of its own."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from coordd.config.hooks.hook import CALL_VARIABLE, EVENT_VARIABLE
from coordd.plugins import SINKS
from coordd.services.hooks.call import run
from coordd.services.programs.child import host


def to_plug_in(sink: dict[str, Any], to: str, document: str, timeout_s: float) -> int:
    """Call it once; returns the exit code. ``to``: plugin://NAME/PATH?KEY=VALUE."""
    parts = urlsplit(to)
    context = {
        "name": sink["name"],
        "to": to,
        "path": parts.path,
        "query": dict(parse_qsl(parts.query, keep_blank_values=True)),
        "timeout_s": timeout_s,
        **{key: sink[key] for key in ("password_file", "token_file", "tls_ca")},
    }
    environ = {name: said for name, said in os.environ.items() if name not in (CALL_VARIABLE, EVENT_VARIABLE)}
    return run(host(SINKS, parts.netloc, json.dumps(context)), document, timeout_s, environ, what="the sink")
