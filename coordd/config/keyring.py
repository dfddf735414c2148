"""The keyring's file: validated when it is read, readable for people, and rotated step by step.

A rotation without a gap takes three steps: the new key is accepted, the new key signs, the old key is retired. Every
node must have and reload the file before the next step. So every node always accepts the messages of every other.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from coordd.config import ownership
from coordd.config.tomlfile import read_toml
from coordd.config.values import found, printable
from coordd.core.jobs.arguments import nearest
from coordd.core.wire.envelope import (
    ACCEPT,
    KEY_ID,
    KEY_ID_RULE,
    KEY_STATES,
    KEYS_MAX,
    RETIRED,
    SECRET_BYTES_MAX,
    SECRET_BYTES_MIN,
    SIGN,
    Key,
    Keyring,
)
from coordd.errors import ConfigError

# Retired keys that `rotate` keeps in the file, newest last, for readers of an old log that names their ids.
RETIRED_MAX = 4

_FIELDS = ("id", "state", "secret", "made")

_HEAD = """\
# The keys of a coordd cluster: the same file on every node, and secret (mode 0600).
# accept: this node accepts messages sealed with it. sign: this node seals with it. retired: neither.
# `coordd keys rotate` makes the next step; `coordctl reload` reads the file again.
"""


def load(path: str, environ: Mapping[str, str]) -> Keyring:
    """Read a keyring.

    Raises:
        ConfigError: it is missing, others may read it, or it is invalid. No message contains a secret.
    """
    shown = printable(path)
    try:
        found_at = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise ConfigError(
            f"{shown}: there is no such keyring; make one with `coordd keys new --output {shown}` and copy it to every "
            "node, or set [cluster] unsigned = true (for development only)"
        ) from exc
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{shown}: cannot be read: {getattr(exc, 'strerror', None) or exc}") from exc
    if stat.S_ISREG(found_at.st_mode) and not ownership.is_credential(path, environ):
        why = ownership.secret_fault(path, found_at)
        if why:
            raise ConfigError(
                f"{shown}: {why}; a reader of this file can send messages as any node: rotate the keys if "
                "somebody may have read it"
            )
    _, table, problem = read_toml(path, "config")
    if problem:
        raise ConfigError(str(problem))
    try:
        return _keyring(table)
    except ValueError as exc:
        raise ConfigError(f"{shown}: {exc}") from exc


def _keyring(table: Mapping[str, Any]) -> Keyring:
    for name in table:
        if name != "key":
            raise ValueError(f'unknown key "{printable(name[:60])}"; expected tables [[key]]')
    said = table.get("key")
    if not isinstance(said, list) or not said:
        raise ValueError("it holds no key; expected tables [[key]]")
    if len(said) > KEYS_MAX:
        raise ValueError(f"expected at most {KEYS_MAX} keys, found {len(said)}")
    keys = tuple([_key(fields, number) for number, fields in enumerate(said, 1)])
    ids = [key.id for key in keys]
    for ident in ids:
        if ids.count(ident) > 1:
            raise ValueError(f"the key id {ident} appears twice; each key needs its own id")
    signing = [key.id for key in keys if key.state == SIGN]
    if len(signing) != 1:
        some = ", ".join(signing) if signing else "none"
        raise ValueError(f'expected exactly one key with state = "{SIGN}", found {some}')
    return Keyring(keys)


def _key(fields: object, number: int) -> Key:
    if not isinstance(fields, dict):
        raise ValueError(f"key {number}: expected a table [[key]], found {found(fields)}")  # noqa: TRY004  # ours: of the file
    for name in fields:
        if name not in _FIELDS:
            raise ValueError(f'key {number}: unknown key "{printable(name[:60])}"; {nearest(name[:60], _FIELDS)}')
    ident, state, secret = fields.get("id", ""), fields.get("state", ""), fields.get("secret", "")
    if not isinstance(ident, str) or not KEY_ID.fullmatch(ident):
        raise ValueError(f"key {number}: id: expected {KEY_ID_RULE}, found {found(ident)}")
    if state not in KEY_STATES:
        raise ValueError(f"key {ident}: state: expected one of {', '.join(KEY_STATES)}, found {found(state)}")
    at = fields.get("made")
    if at is not None and not isinstance(at, datetime):
        raise ValueError(f"key {ident}: made: expected an instant such as 2026-12-01T02:00:00Z, found {found(at)}")
    made = at.isoformat().replace("+00:00", "Z") if at is not None else ""
    if state == RETIRED:
        return Key(ident, state, b"", made)
    try:
        raw = base64.b64decode(secret, validate=True) if isinstance(secret, str) else b""
    except (binascii.Error, ValueError):
        raw = b""
    if not SECRET_BYTES_MIN <= len(raw) <= SECRET_BYTES_MAX:
        raise ValueError(
            f"key {ident}: secret: expected {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes in base64; "
            "`coordd keys new` makes one"
        )
    return Key(ident, state, raw, made)


def render(keyring: Keyring) -> str:
    """The text of the keyring file."""
    parts = [_HEAD]
    for key in keyring.keys:
        lines = ["[[key]]", f'id = "{key.id}"', f'state = "{key.state}"']
        if key.secret:
            lines.append(f'secret = "{base64.b64encode(key.secret).decode()}"')
        if key.made:
            lines.append(f"made = {key.made}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


class Step(NamedTuple):
    """The result of a rotation: the new keyring, and per key id what changed."""

    keyring: Keyring
    did: dict[str, str]
    number: int  # of 3
    next: str


def rotate(keyring: Keyring, fresh: Key) -> Step:
    """Make the next step of a rotation; the file itself says which one. The first step uses ``fresh``."""
    keys = list(keyring.keys)
    at = keys.index(keyring.signing)
    newer = [key.id for key in keys[at + 1 :] if key.state == ACCEPT]
    older = [key.id for key in keys[:at] if key.state == ACCEPT]
    did: dict[str, str] = {}
    if newer:
        for place, key in enumerate(keys):
            if key.id == newer[-1]:
                keys[place], did[key.id] = key._replace(state=SIGN), "signs from now on"
            elif key.state == SIGN:
                keys[place], did[key.id] = key._replace(state=ACCEPT), "no longer signs, is accepted"
        return Step(Keyring(tuple(keys)), did, 2, _NEXT[2])
    if older:
        for place, key in enumerate(keys):
            if key.id in older:
                keys[place], did[key.id] = key._replace(state=RETIRED, secret=b""), "retired, its secret removed"
        return Step(_kept(keys), did, 3, _NEXT[3])
    keys.append(fresh._replace(state=ACCEPT))
    return Step(_kept(keys), {fresh.id: "new, accepted"}, 1, _NEXT[1])


def _kept(keys: list[Key]) -> Keyring:
    """Drops the oldest retired keys, if there are many."""
    retired = [key.id for key in keys if key.state == RETIRED]
    forgotten = retired[: max(0, len(retired) - RETIRED_MAX)]
    return Keyring(tuple([key for key in keys if key.id not in forgotten]))


_NEXT = {
    1: "copy this file to every node and run `coordctl reload` on each; then `coordd keys rotate` here once more",
    2: "copy this file to every node and run `coordctl reload` on each; then `coordd keys rotate` here once more, "
    "which retires the old key: do it only when every node has the new one",
    3: "copy this file to every node and run `coordctl reload` on each; then the rotation is over",
}
