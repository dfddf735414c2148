"""Finds secrets in the words of a command line, which every user of the host can read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from coordd.core.jobs.arguments import BUILT_IN
from coordd.core.redaction import PASSWORDS, TOKENS, holds_password

# Options and variables with a secret value: --db-password, API_KEY, client.secret. Not --partition-key.
_NAMED = re.compile(
    rf"(?:.*[-_.])?(?:\w*(?:{PASSWORDS})|{TOKENS}"
    r"|(?:api|access|secret|private|account|auth|signing|encryption)[-_.]?key)",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"(?:--?|/)?([A-Za-z][\w.-]{0,100})[=:](.+)", re.DOTALL)
_OPTION = re.compile(r"--?([A-Za-z][\w.-]{0,100})")

# Values that are recognisable as secrets: keys of AWS, GitHub, GitLab and Slack, JSON web tokens, PEM.
_VALUE = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_[0-9A-Za-z]{36}|\bglpat-[\w-]{20}|\bxox[abprs]-[\w-]{10}"
    r"|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
)
_FILLED_BY_US = re.compile(r"\{(?:" + "|".join(BUILT_IN) + r")\}")


def exposed(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(place, kind) of each word that seems to contain a secret; never the secret itself."""
    for place, word in enumerate(words):
        assigned = _ASSIGNED.fullmatch(word)
        option = _OPTION.fullmatch(words[place - 1]) if place else None
        if assigned and _NAMED.fullmatch(assigned.group(1)) and _is_value(assigned.group(2)):
            yield place, f"the value of {assigned.group(1)}"
        elif option and _NAMED.fullmatch(option.group(1)) and not word.startswith("-") and _is_value(word):
            yield place, f"the value of {words[place - 1]}"
        elif _VALUE.search(word):
            yield place, "a key or a token"
        elif holds_password(word):
            yield place, "the password of a URL"


def _is_value(text: str) -> bool:
    """False for a path, a reference that the program resolves, or a value that coordd fills in (the fencing token)."""
    return not (text.startswith(("/", "./", "file:", "env:", "vault:", "$")) or _FILLED_BY_US.fullmatch(text))
