"""Checks who else could change the files that the daemon reads and runs, like sshd's StrictModes.

A configuration, a job file or a key is code that runs as the daemon's user. So each of them, and every directory on the
way to it, must belong to root or to that user, and nobody else may write it:

- Group-writable is refused for any group: its members may change at any time. - A sticky directory that anybody may
write (/tmp) is accepted on the way to a file: only the owner of an entry can rename or remove it, and the entry's owner
is checked. It is refused if all entries of the directory count (jobs_dir): anybody could add one. - A symbolic link
must belong to root or to the daemon's user; then its target is judged the same way. - The check looks at the opened
file: if another file has its name by now, it is refused.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from coordd.core.visible import visible

LINKS_MAX = 40  # the same limit as Linux


class Trust(NamedTuple):
    """Who may own and write (``uids``), and the group that may read a secret."""

    uids: frozenset[int]
    gids: frozenset[int]


_also: set[tuple[int, int]] = set()


def trust_also(uid: int, gid: int) -> None:
    """For commands as root: the files may belong to the service's user, who reads them."""
    _also.add((uid, gid))


def own() -> Trust:
    """Root and this process's user; the process's primary group."""
    return Trust(
        frozenset((0, os.geteuid(), *[uid for uid, _ in _also])), frozenset((os.getegid(), *[gid for _, gid in _also]))
    )


def fault(
    path: str, opened: os.stat_result | None = None, *, all_in_it: bool = False, trust: Trust | None = None
) -> str:
    """Who else could change a file or a directory, and the command that repairs it; "" if nobody can.

    ``opened``: the fstat of the file that was opened under that name. ``all_in_it``: every entry of that directory
    counts. A path that does not exist has no fault.
    """
    trust = trust or own()
    return _verdict(partial(_walk, path, trust, all_in_it), opened)


class Directory:
    """A directory whose files are judged one after the other: the way to it is walked once, for all of them.

    Of a directory with a fault, each file has that fault. If there is none, only root and the daemon's user can put
    something else on the way until the last file is read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._trust = own()
        self._at = ""  # without links; "": it could not be walked, and the way to each file is walked
        self._why = ""
        with contextlib.suppress(OSError):
            self._why, self._found, self._at = _walk(path, self._trust, all_in_it=False)

    def fault(self, name: str, opened: os.stat_result) -> str:
        """As ``fault`` for an entry of the directory."""
        return _verdict(partial(self._entry, name), opened)

    def _entry(self, name: str) -> tuple[str, os.stat_result, str]:
        if self._why:
            return self._why, self._found, self._at
        entry = os.path.join(self._at, name)
        found = os.lstat(entry) if self._at else None
        if found is None or stat.S_ISLNK(found.st_mode):
            return _walk(os.path.join(self._path, name), self._trust, all_in_it=False)
        return _fault(entry, found, self._trust, sticky=True), found, entry


def _verdict(walk: Callable[[], tuple[str, os.stat_result, str]], opened: os.stat_result | None) -> str:
    try:
        why, found, _ = walk()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as exc:
        return f"cannot find out who may write it: {exc.strerror or exc}"
    if why or opened is None:
        return why
    if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino):
        return "it was replaced while it was being read; try again"
    return ""


def secret_fault(path: str, opened: os.stat_result, *, trust: Trust | None = None) -> str:
    """Who else may read a secret file, and the command that repairs it."""
    trust = trust or own()
    mode = stat.S_IMODE(opened.st_mode)
    groups_own = mode & 0o070 == 0o040 and opened.st_gid in trust.gids
    if mode & 0o007 == 0 and (mode & 0o070 == 0 or groups_own):
        return ""
    group = "" if opened.st_gid in trust.gids else f", group {_group(opened.st_gid)}, which is not the daemon's own"
    shown = visible(path)
    uid, gid = min(_also, default=(os.geteuid(), os.getegid()))
    # Of somebody else's file, root's as a rule, the daemon needs its group's permission.
    mend = (
        f"chmod 600 {shown}"
        if opened.st_uid == uid
        else f"chgrp {_group(gid).removeprefix('gid ')} {shown} && chmod 640 {shown}"
    )
    return (
        f"other users may read it (mode {mode:04o}{group}); expected mode 0600, or 0640 with the daemon's own "
        f"group: {mend}"
    )


def is_credential(path: str, environ: Mapping[str, str]) -> bool:
    """systemd's own copy: an ACL lets the service's user read it; the mode shows that as the group's permission."""
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    return bool(directory) and os.path.dirname(os.path.realpath(path)) == os.path.realpath(directory)


def _walk(path: str, trust: Trust, all_in_it: bool) -> tuple[str, os.stat_result, str]:
    """Judge every directory from / on, every link, and the final file. Returns also its path without links."""
    current, links = "/", 0
    found = os.lstat(current)
    parts = [part for part in os.path.join(os.getcwd(), path).split("/") if part not in ("", ".")]
    why = _fault(current, found, trust, sticky=True)
    while parts and not why:
        name = parts.pop(0)
        if name == "..":
            current = os.path.dirname(current)
            continue
        entry = os.path.join(current, name)
        found = os.lstat(entry)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > LINKS_MAX:
                return f"{visible(path)}: too many symbolic links", found, current
            if found.st_uid not in trust.uids:
                why = f"{visible(entry)} is a link that belongs to {user_name(found.st_uid)}{_who(trust)}: remove it"
                return why, found, current
            target = os.readlink(entry)
            current = "/" if target.startswith("/") else current
            parts = [part for part in target.split("/") if part not in ("", ".")] + parts
            continue
        current = entry
        why = _fault(current, found, trust, sticky=bool(parts) or not all_in_it)
    return why, (found if not stat.S_ISLNK(found.st_mode) else os.stat(current)), current


def _fault(path: str, found: os.stat_result, trust: Trust, *, sticky: bool) -> str:
    mode = stat.S_IMODE(found.st_mode)
    shown = visible(path)
    if found.st_uid not in trust.uids:
        what = f"{shown} belongs to {user_name(found.st_uid)} (mode {mode:04o})"
        mend = f"chown root {shown} && chmod go-w {shown}"
    elif mode & 0o022 and not (sticky and mode & stat.S_ISVTX and stat.S_ISDIR(found.st_mode)):
        who = "everybody" if mode & 0o002 else f"the group {_group(found.st_gid)}"
        what = f"{who} can write {shown} (owner {user_name(found.st_uid)}, mode {mode:04o})"
        mend = f"chmod go-w {shown}"
    else:
        return ""
    return f"{what}{_who(trust)}: {mend}"


def _who(trust: Trust) -> str:
    names = sorted({user_name(uid) for uid in trust.uids})
    return f", and so could change what runs as {user_name(os.geteuid())}; only {' and '.join(names)} may"


def user_name(uid: int) -> str:
    """The user's name, or its number if nobody knows one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"gid {gid}"
