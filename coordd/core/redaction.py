"""Removes secrets from texts for people; finds the line of a program's output that says most about a failure."""

import re

HIDDEN = "***"

# Every pattern runs in linear time: the text may come from anybody.

# The password of a URL, even with an "@" in it; "://" ends it, so that each URL of a list is handled.
_URL_PASSWORD = re.compile(r"(://[^\s:/?#@\"']*:)(?:(?!://)[^\s\"'])*@")

# The same, stricter, for warnings: neither a port nor a path counts as a password.
_URL_WITH_PASSWORD = re.compile(r"://[^\s/:?#@]{0,200}:(?!\*{3}@)[^\s/@]{1,200}@")

# The words in names of settings, variables, options and fields that have a secret value. There is no other list.
PASSWORDS = r"password|passwd|passphrase|secret"  # also at the end of a longer word: mypassword
TOKENS = r"pwd|token|credentials?"
_SECRET_NAME = re.compile(rf"pass|{PASSWORDS}|{TOKENS}|key|auth|nonce", re.IGNORECASE)
_PASSWORD_NAME = re.compile(rf"\w*(?:{PASSWORDS})", re.IGNORECASE)

# The end of a name before a secret: password=, aws_secret_access_key=, sig=, X-Amz-Signature=.
_NAME = rf"(?:{PASSWORDS}|{TOKENS}|key|sig|signature|authorization)"

# name=value in a query, an option or a sentence. Fencing tokens are numbers, and not secret.
_END = r"[&;,\s\"'()]"
_ASSIGNED = re.compile(rf"((?!token=\d{{1,19}}(?:{_END}|$)){_NAME}=)[^{_END[1:]}+", re.IGNORECASE)

# "name": "value" in JSON and in Python's repr.
_QUOTED = re.compile(rf"({_NAME}[\"']\s{{0,8}}:\s{{0,8}})(\"[^\"\n]*\"|'[^'\n]*')", re.IGNORECASE)

# Authorization: Bearer …; the next word is a secret unless it looks like a word of a sentence.
_SCHEME = re.compile(
    r"\b(Bearer|Basic|Digest|Negotiate|ApiKey)(\s{1,8})(?=[^\s\"',;]{0,200}[0-9=+/._~-])[^\s\"',;]{6,}", re.IGNORECASE
)

# X-Api-Key: …, Cookie: …, to the end of the line.
_HEADER = re.compile(r"\b((?:x-[a-z0-9-]{0,40}(?:key|token)|(?:set-)?cookie)\s{0,8}:\s{0,8})[^\r\n\"']+", re.IGNORECASE)

# A line with the error itself: exceptions of Python and Java, messages of shells and tools.
_TELLS = re.compile(
    r"(?:Error|Exception)\b|\b(?:error|fatal|cannot|failed|failure|refused|denied|not found|no such)\b", re.IGNORECASE
)

# Below a login that Kerberos refuses there are causes of causes ("Identifier doesn't match expected value"): this line
# says why.
_LOGIN = "Caused by: javax.security.auth.login.LoginException: "

# Lines after it that say less: stack frames, and log lines below an error level.
_NOISE = re.compile(r"\s*(?:at |\.\.\. \d+ more|File \"|\^+\s*$)|.{0,40}\b(?:TRACE|DEBUG|INFO|WARN|WARNING)\b")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")

LINE_LENGTH_MAX = 200


def redact_text(text: str) -> str:
    """A text with ``***`` instead of its recognisable secrets: passwords in URLs, ``key=value``, JSON, headers. The
    only redactor.
    """
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1{HIDDEN}@", text)
    if "=" in text:
        text = _ASSIGNED.sub(rf"\1{HIDDEN}", text)
    if ":" in text:
        text = _HEADER.sub(rf"\1{HIDDEN}", _QUOTED.sub(_hidden, text))
    return _SCHEME.sub(rf"\1\2{HIDDEN}", text)


def is_secret_name(name: str) -> bool:
    """True if the value of a setting or a variable with this name may be secret. It hides too much rather than too
    little: partition_key has such a name, too.
    """
    return _SECRET_NAME.search(name) is not None


def is_password_name(name: str) -> bool:
    """True if the value of a field with this name is surely a password. A token may be a fencing token."""
    return _PASSWORD_NAME.fullmatch(name) is not None


def holds_password(text: str) -> bool:
    """Is there surely a URL with a password in it, which is not hidden already?"""
    return _URL_WITH_PASSWORD.search(text) is not None


def _hidden(match: "re.Match[str]") -> str:
    quote = match.group(2)[0]
    return f"{match.group(1)}{quote}{HIDDEN}{quote}"


def telling_line(lines: "list[str]") -> str:
    """The line of an output that says most about a failure; "" if there is none.

    Redacted, and at most 200 characters long.
    """
    said = [line for line in lines if line.strip() and not _NOISE.match(line)]
    logins = [line for line in said if line.startswith(_LOGIN)]
    found = next((line for line in reversed(logins or said) if _TELLS.search(line)), said[-1] if said else "")
    line = redact_text(_CONTROL.sub(" ", found).strip())
    return line if len(line) <= LINE_LENGTH_MAX else line[: LINE_LENGTH_MAX - 1] + "…"
