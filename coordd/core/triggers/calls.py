"""HTTP calls that start runs: who may call, and which arrival a call is."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import NamedTuple

from coordd.core.jobs.trigger import HMAC, Trigger
from coordd.core.triggers.arrivals import Arrival
from coordd.core.triggers.bodies import read_json, values_of

# How far the time of a signature may be from that of this node (seconds).
SKEW_MAX_S = 300.0

SIGNATURE = "x-coordd-signature"
_SIGNED = re.compile(r"t=([0-9]{1,12}),s=([0-9a-f]{64})")
_KEY = re.compile(r"[!-~]{1,200}")


class Refusal(NamedTuple):
    """The answer to a call that starts nothing."""

    status: int
    error: str


def signature(secret: str, at: int, route: str, key: str, body: bytes) -> str:
    """The value of the header X-Coordd-Signature. ``at``: Unix seconds."""
    signed = f"{at}\n{route}\n{key}\n".encode() + body
    return f"t={at},s={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


def refusal(trigger: Trigger, secret: str, headers: Mapping[str, str], body: bytes, wall: float) -> Refusal | None:
    """Why this caller may not start a run; None if it may. ``headers``: with names in lower case."""
    if trigger.auth != HMAC:
        given = headers.get("authorization", "")
        expected = f"Bearer {secret}"
        same = hmac.compare_digest(given.encode(), expected.encode())
        return None if same else Refusal(401, "expected the header Authorization: Bearer, with the token of this route")
    match = _SIGNED.fullmatch(headers.get(SIGNATURE, ""))
    if match is None:
        return Refusal(401, "expected the header X-Coordd-Signature: t=UNIX_SECONDS,s=HMAC_SHA256")
    at = int(match[1])
    expected = signature(secret, at, trigger.route, headers.get(trigger.key_header.lower(), ""), body)
    if not hmac.compare_digest(match[0].encode(), expected.encode()):
        return Refusal(401, "the signature is not that of this time, route, key and body")
    if abs(at - wall) > SKEW_MAX_S:
        return Refusal(401, f"the time of the signature is more than {SKEW_MAX_S:g} s from that of this node")
    return None


def arrival_of(trigger: Trigger, headers: Mapping[str, str], body: bytes) -> Arrival | Refusal:
    """What a call starts."""
    key = headers.get(trigger.key_header.lower(), "")
    if not _KEY.fullmatch(key):
        return Refusal(400, f"expected the header {trigger.key_header}, 1 to 200 visible ASCII characters")
    try:
        fields = read_json(body)
    except ValueError as exc:
        return Refusal(400, str(exc))
    return Arrival(key, {"key": key, **values_of(fields)})
