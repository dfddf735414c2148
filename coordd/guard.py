"""Publishes the output of a run once: for Spark drivers and other programs that coordd starts.

One file that needs nothing but Python (3.8 or newer). Ship it with ``--py-files guard.py`` and ``import guard``; where
coordd is installed, ``from coordd import guard``. docs/spark.md has an example, and says what happens after a crash.

    staging = guard.staging("/data/sales")
    frame.write.parquet(staging)
    guard.publish(staging, "/data/sales")

The program asks the runner that started it, and the runner asks the ledger. A driver on a cluster asks a listener of
any node instead; ``guard.gate()`` is its first line. Without a clear answer the program is not the owner: ``gate`` ends
it, ``still_owner`` returns False, and ``publish`` raises LeaseLostError and leaves the target as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
log = logging.getLogger("coordd.guard")

ANSWER_S = 10.0  # the longest wait for one answer of the runner
LISTENER_S = 5.0  # the same for a listener, of which there may be others
PUBLISH_S = 60.0  # the longest wait of a publication: for answers, and for another process that publishes
GATE_S = 300.0  # the longest wait of a driver that starts, while nobody holds its run
AGAIN_S = 0.2
AGAIN_LISTENERS_S = 1.0

GREETING = b"coordd-guard 1 "
ANSWER_BYTES_MAX = 8192
ABSTRACT = "abstract:"
TLS = "tls"
SCHEMES = ("tcp", TLS)

# What ``Published.how`` says.
NOW = "now"
FINISHED = "finished"
BEFORE = "before"

_WORDS = ("ok", "committed", "moved", "stale", "unknown", "refused")
_CONF = ("run", "job", "attempt", "token", "token.nonce", "guard")  # of Spark, behind "spark.coordd."
_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_\d+_\d+")
_NAME = re.compile(r"([0-9a-f]{12})-(\d+)\.(work|ready|old)")
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


class GuardError(Exception):
    """Nothing was published by this call, or not everything; the message says what and why."""


class LeaseLostError(GuardError):
    """This attempt is not the owner of its run, or nobody can tell. The targets are as they were."""


class SupersededError(GuardError):
    """A later attempt of the job has published to the target already."""


class NotPublishableError(GuardError):
    """The staging, the target or the file system do not allow it; the message says what to do."""


class Published(NamedTuple):
    """One target that has the output of this run now.

    ``how``: "now"; "finished" (an earlier attempt of the run had committed, and its output was put in place: this
    attempt's is dropped); "before" (it was in place already). ``token``: of the attempt whose output it is.
    """

    target: str
    token: int
    how: str


class Transaction(NamedTuple):
    """What a table needs to take the output of a run once (Delta: ``txnAppId`` and ``txnVersion``)."""

    run: str
    attempt: int
    token: int
    app_id: str
    version: int


class Grant(NamedTuple):
    """The right of this program: what coordd has put into its environment, or into the conf of its driver.

    ``address``: of the runner, or of listeners, separated by commas. ``authority``: certificates in PEM that vouch for
    the listeners; "": the system's. ``application``: the id of this driver on its cluster, if it is on one.
    """

    run: str
    job: str
    attempt: int
    token: int
    nonce: str
    address: str
    authority: str = ""
    application: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Grant:
        """Raises LeaseLostError when something is missing."""
        conf: Mapping[str, str] = {}
        names = [f"COORDD_{name}" for name in ("RUN", "JOB", "ATTEMPT", "TOKEN", "NONCE", "GUARD")]
        source = environ
        if not environ.get(names[0]):
            conf = _driver_conf(environ)
            if conf.get("spark.coordd.run"):
                names, source = [f"spark.coordd.{name}" for name in _CONF], conf
        missing = [name for name in names if not source.get(name, "").strip(", ")]  # a comma is not an address
        if missing:
            raise LeaseLostError(
                f"{', '.join(missing)} not set: coordd did not start this program, or no [guard] of coordd.toml names"
                " listeners for drivers on a cluster"
            )
        run, job, attempt, token, nonce, address = (source[name] for name in names)
        try:
            grant = cls(run, job, int(attempt), int(token), nonce, address)
        except ValueError as exc:
            raise LeaseLostError(f"{names[2]} and {names[3]} must be whole numbers: {exc}") from exc
        if grant.is_local:
            return grant
        authority = conf.get("spark.coordd.guard.authority", "") or environ.get("COORDD_GUARD_AUTHORITY", "")
        return grant._replace(authority=authority, application=_application(environ, conf))

    @property
    def is_local(self) -> bool:
        """True if the runner is on this machine."""
        return self.address.startswith(ABSTRACT)

    @property
    def prefix(self) -> str:
        """How names of this job's files begin."""
        return hashlib.sha256(self.job.encode()).hexdigest()[:12]


# ---- for programs

# ``environ`` of the calls: in place of the environment of this process, for a block of coordd.single.


def gate(timeout_s: float = GATE_S, *, environ: Mapping[str, str] | None = None) -> None:
    """The first line of a driver: ends the program with a sentence, unless this attempt holds its run.

    A submission may reach the cluster after its run was launched again. While nobody holds the run (its node died, and
    the next one has not adopted this application yet), this waits.
    """
    try:
        grant = _grant(environ)
        word, _, why = _ask(grant, "owner" if grant.is_local else "gate", _now() + timeout_s)
    except LeaseLostError as exc:
        word, why = "unknown", str(exc)
    else:
        why = f"{grant.run}, attempt {grant.attempt} must not begin any more: {why}"
    if word not in ("ok", "committed"):
        sys.exit(f"coordd.guard: {why}. The program ends before it has done anything")


def still_owner(timeout_s: float = ANSWER_S, *, environ: Mapping[str, str] | None = None) -> bool:
    """Return True if this attempt holds its run now; without a clear yes False, with the reason in the log."""
    try:
        grant = _grant(environ)
        word, _, why = _ask(grant, "owner", _now() + timeout_s)
    except LeaseLostError as exc:
        log.warning("not the owner: %s", exc)
        return False
    if word in ("ok", "committed"):
        return True
    log.warning("%s, attempt %d: not the owner any more: %s", grant.run, grant.attempt, why)
    return False


def staging(target: str, *, environ: Mapping[str, str] | None = None) -> str:
    """Return a path on the target's file system for the output of this attempt alone. It does not exist yet.

    What dead attempts have left beside it is removed by the next publication. Raises LeaseLostError and OSError.
    """
    grant = _grant(environ)
    place = _Place(target, grant)
    place.make()
    return place.path(grant.token, "work")


def publish(
    staging: str | Mapping[str, str],
    target: str | None = None,
    *,
    timeout_s: float = PUBLISH_S,
    environ: Mapping[str, str] | None = None,
) -> list[Published]:
    """Put a finished file or directory in the place of ``target``, whole, if this attempt may.

    A mapping {staging: target} publishes several, with one commit: each in one step, one after the other. The commit is
    given once a run. So all targets of a run belong into one call; a second call with others is refused.

    May be repeated. Raises LeaseLostError (nothing has changed, or, without an answer, a repetition or the next attempt
    finishes it), SupersededError, NotPublishableError.
    """
    if isinstance(staging, str):
        if target is None:
            raise NotPublishableError(f"publish({staging!r}): the target is missing")
        staging = {staging: target}
    grant = _grant(environ)
    until = _now() + timeout_s
    places = [_Place(of, grant, work) for work, of in staging.items()]
    targets = frozenset(place.target for place in places)
    if not places or len(targets) != len(places):
        raise NotPublishableError(f"publish: {len(places)} stagings for {len(targets)} targets")
    before = _published.get((grant.run, grant.token))
    if before not in (None, targets):
        raise NotPublishableError(
            f"{grant.run} has committed {', '.join(sorted(before or ())) or 'a transaction'} already, and after a crash"
            " nobody could finish a second publication: publish all targets in one call, before any transaction"
        )
    holder = _prepared.get((grant.run, grant.token)) or _holder(grant, until)
    try:
        for place in places:
            place.holder = holder
            place.prepare(until, repeated=before == targets)
    except BaseException:
        for place in places:
            place.withdraw()
        raise
    _published[grant.run, grant.token] = targets
    _prepared[grant.run, grant.token] = holder

    def moved(to: int) -> None:
        for place in places:
            place.move(to, until)
        _prepared[grant.run, grant.token] = to

    token = _commit(grant, holder, moved, until)
    done = [place.finish(token, until) for place in places]
    for one in done:
        log.info("%s, attempt %d: %s is published (%s)", grant.run, grant.attempt, one.target, one.how)
    return done


def transact(
    write: Callable[[Transaction], T], *, timeout_s: float = PUBLISH_S, environ: Mapping[str, str] | None = None
) -> T:
    """Call ``write``, which writes to a table, if this attempt is the owner; returns what it returns.

    ``write`` must be one transaction, and the table must take that of a run once, from any attempt: if one died after
    its commit, the next one calls ``write`` too. ``Transaction`` has what a table needs for that.
    Raises LeaseLostError; ``write`` was not called then.
    """
    grant = _grant(environ)
    until = _now() + timeout_s
    _commit(grant, _holder(grant, until), lambda _to: None, until)
    _published.setdefault((grant.run, grant.token), frozenset())
    log.info("%s, attempt %d: writes under the commit", grant.run, grant.attempt)
    return write(Transaction(grant.run, grant.attempt, grant.token, f"coordd:{grant.run}", 1))


# ---- the steps


def _grant(environ: Mapping[str, str] | None) -> Grant:
    return Grant.of(os.environ if environ is None else environ)


# (run, token) -> the targets that this process wants, or wanted, to publish under it.
_published: dict[tuple[str, int], frozenset[str]] = {}
# (run, token) -> the token under which this process has prepared its output.
_prepared: dict[tuple[str, int], int] = {}


def _holder(grant: Grant, until: float) -> int:
    """The token that this program publishes under: of its own attempt, or of the one that has adopted its application.

    Raises LeaseLostError.
    """
    if grant.is_local:
        return grant.token
    word, token, why = _ask(grant, "owner", until)
    if word not in ("ok", "committed"):
        raise _lost(grant, why)
    return token if word == "ok" else grant.token


def _commit(grant: Grant, holder: int, moved: Callable[[int], None], until: float) -> int:
    """The token under which the run is published: ours, or that of an earlier attempt. Raises LeaseLostError.

    ``moved`` is called when another attempt has adopted this application since: with its token, before it commits.
    """
    while True:
        word, token, why = _ask(grant, "commit", until, holder)
        if word == "moved" and token > holder:
            holder = token
            moved(holder)
            continue
        if word == "ok":
            return holder
        if word == "committed":
            if token != holder:
                log.warning("%s: an earlier attempt (token %d) has the commit already", grant.run, token)
            return token
        raise _lost(grant, why)


def _lost(grant: Grant, why: str) -> LeaseLostError:
    log.warning("%s, attempt %d may not publish: %s", grant.run, grant.attempt, why)
    return LeaseLostError(f"{grant.run}, attempt {grant.attempt} (token {grant.token}) may not publish: {why}")


class _Place:
    """A target, and the directory beside it for output that waits for its publication: ``.NAME.coordd``."""

    def __init__(self, target: str, grant: Grant, work: str = "") -> None:
        for path in (target, work):
            if "://" in path:
                raise NotPublishableError(f"{path}: only local and mounted paths; for others, see transact()")
        self.target = os.path.realpath(target)
        self.work = os.path.realpath(work) if work else ""
        self.grant = grant
        self.holder = grant.token  # the token that its output is prepared under
        self.moved = False
        self.parent, name = os.path.split(self.target)
        self.directory = os.path.join(self.parent, f".{name}.coordd")
        self.record_path = os.path.join(self.directory, "published.json")

    def path(self, token: int, kind: str) -> str:
        return os.path.join(self.directory, f"{self.grant.prefix}-{token}.{kind}")

    def make(self) -> None:
        try:
            os.makedirs(self.directory, exist_ok=True)
        except OSError as exc:
            raise NotPublishableError(f"{self.directory} cannot be made: {exc.strerror}") from exc

    def prepare(self, until: float, *, repeated: bool) -> None:
        """Make the output safe on the disk, and move it to where the next attempt finds it. No target has changed."""
        self.make()
        ready = self.path(self.holder, "ready")
        with self._locked(until):
            record = self._record(self.holder)
            if not os.path.lexists(self.work):
                if repeated or os.path.lexists(ready) or record["token"] == self.holder:
                    return
                raise NotPublishableError(f"{self.work} is not there")
            if os.path.lexists(ready):
                log.warning("%s: the output that was prepared first counts; %s stays", self.target, self.work)
                return
            self._check()
            try:
                _sync(self.work)
                os.rename(self.work, ready)
                self.moved = True
                _sync_one(self.directory)
            except OSError as exc:
                raise NotPublishableError(f"{self.work} cannot be moved beside {self.target}: {exc}") from exc

    def _check(self) -> None:
        """Refuse before the commit what would fail after it."""
        is_directory = os.path.isdir(self.work)
        if self.target == self.work or self.target.startswith(self.work + os.sep):
            raise NotPublishableError(f"{self.target} is in its staging {self.work}")
        if not is_directory and not os.path.isfile(self.work):
            raise NotPublishableError(f"{self.work} is neither a file nor a directory")
        if os.path.lexists(self.target) and os.path.isdir(self.target) != is_directory:
            raise NotPublishableError(f"of {self.work} and {self.target}, one is a directory and the other is not")
        if is_directory and os.path.lexists(os.path.join(self.work, "_temporary")):
            raise NotPublishableError(f"{self.work} has _temporary: Spark has not finished writing it")
        if is_directory and os.path.isdir(self.target) and os.listdir(self.target) and not self._can_exchange():
            raise NotPublishableError(
                f"{self.target} exists, and its file system cannot replace a directory in one step (renameat2);"
                " publish to a directory that does not exist yet, or a file"
            )

    def _can_exchange(self) -> bool:
        """Try it on two directories of our own, under the lock."""
        pair = [os.path.join(self.directory, name) for name in ("probe-a", "probe-b")]
        try:
            for path in pair:
                os.makedirs(path, exist_ok=True)
            return exchange(*pair)
        finally:
            for path in pair:
                with contextlib.suppress(OSError):
                    os.rmdir(path)

    def withdraw(self) -> None:
        """Before the commit: move the output back to where it was."""
        if self.moved:
            with contextlib.suppress(OSError):
                os.rename(self.path(self.holder, "ready"), self.work)

    def move(self, to: int, until: float) -> None:
        """Before the commit: another attempt has adopted this application: prepare the output under its token."""
        old, self.holder = self.path(self.holder, "ready"), to
        with self._locked(until):
            try:
                if os.path.lexists(old) and not os.path.lexists(self.path(to, "ready")):
                    os.rename(old, self.path(to, "ready"))
                    _sync_one(self.directory)
            except OSError as exc:
                raise NotPublishableError(f"{old} cannot be renamed: {exc}; it is kept") from exc

    def finish(self, token: int, until: float) -> Published:
        """Put what was prepared under that token, which has the commit, in place of the target, once."""
        with self._locked(until):
            how = self._finish(token)
        for name in os.listdir(self.directory):
            found = _NAME.fullmatch(name)
            if found and found[1] == self.grant.prefix and (found[3] == "old" or int(found[2]) <= self.grant.token):
                _remove(os.path.join(self.directory, name))
        return Published(self.target, token, how if token == self.holder or how == BEFORE else FINISHED)

    def _finish(self, token: int) -> str:
        record, ready = self._record(token), self.path(token, "ready")
        begun = record["job"] == self.grant.job and record["token"] == token
        if begun and record["done"]:
            return BEFORE
        if begun and self._inode(self.target) == record["inode"]:
            self._write_record(token, record["inode"], done=True)
            return BEFORE
        inode = self._inode(ready)
        if not inode:
            raise NotPublishableError(
                f"the attempt with token {token} of {self.grant.run} has the commit, and its output is not in"
                f" {self.directory}: is {self.target} on a disk that all nodes share? The run cannot be published any"
                " more; a person must look"
            )
        self._write_record(token, inode, done=False)
        self._replace(ready, token)
        self._write_record(token, inode, done=True)
        return NOW

    def _replace(self, ready: str, token: int) -> None:
        try:
            if os.path.isdir(ready) and os.path.isdir(self.target) and os.listdir(self.target):
                if not exchange(ready, self.target):
                    raise NotPublishableError(
                        f"{self.target} exists, and cannot be replaced in one step; move it away, and run again"
                    )
                os.rename(ready, self.path(token, "old"))
            else:
                os.rename(ready, self.target)
            _sync_one(self.parent)
        except OSError as exc:
            raise NotPublishableError(
                f"{self.target} cannot be replaced: {exc}; {ready} is kept, and the next attempt tries again"
            ) from exc

    @staticmethod
    def _inode(path: str) -> int:
        try:
            return os.lstat(path).st_ino
        except FileNotFoundError:
            return 0

    def _record(self, token: int) -> dict[str, Any]:
        """Who has published, or is about to. Raises LeaseLostError and SupersededError if it is newer."""
        try:
            with open(self.record_path, encoding="utf-8") as file:
                record = json.load(file)
            kinds = {"run": str, "job": str, "token": int, "inode": int, "done": bool}
            if not all(isinstance(record[name], kind) for name, kind in kinds.items()):
                raise ValueError("a field has the wrong type")
        except FileNotFoundError:
            return {"run": "", "job": "", "token": 0, "inode": 0, "done": True}
        except (OSError, ValueError, KeyError, TypeError) as exc:
            raise NotPublishableError(f"{self.record_path} is damaged ({exc!r}); remove it, and run again") from exc
        if record["job"] == self.grant.job and record["token"] > token:
            is_ours = record["run"] == self.grant.run
            raise (LeaseLostError if is_ours else SupersededError)(
                f"{self.target} has the output of a later attempt, of {record['run']} (token {record['token']}); token"
                f" {token} of {self.grant.run} publishes nothing there"
            )
        return dict(record)

    def _write_record(self, token: int, inode: int, *, done: bool) -> None:
        grant = self.grant
        record = {"run": grant.run, "job": grant.job, "token": token, "inode": inode, "done": done, "by": grant.token}
        part = f"{self.record_path}.part"
        try:
            with open(part, "w", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.rename(part, self.record_path)
            _sync_one(self.directory)
        except OSError as exc:
            raise NotPublishableError(f"{self.record_path} cannot be written: {exc.strerror}") from exc

    @contextlib.contextmanager
    def _locked(self, until: float) -> Iterator[None]:
        """One process at a time, also of other machines where the file system has locks for them."""
        path = os.path.join(self.directory, "lock")
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as exc:
            raise NotPublishableError(f"{path} cannot be opened: {exc.strerror}") from exc
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if _now() >= until:
                        raise NotPublishableError(f"another process holds {path}") from None
                    time.sleep(AGAIN_S / 4)
                except OSError as exc:
                    raise NotPublishableError(f"{path} cannot be locked: {exc.strerror}") from exc
            yield
        finally:
            os.close(fd)  # this also releases the lock


# ---- files


def _sync(path: str) -> None:
    """Make a file, or everything in a directory, survive a crash of the machine."""
    if not os.path.isdir(path):
        _sync_one(path)
        return
    for folder, _, files in os.walk(path):
        for name in files:
            if os.path.isfile(os.path.join(folder, name)):
                _sync_one(os.path.join(folder, name))
        _sync_one(folder)


def _sync_one(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def exchange(one: str, other: str) -> bool:
    """Swap two paths in one step; False if this is not supported."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), one, None, other)


def _remove(path: str) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except OSError as exc:
        log.warning("%s cannot be removed: %s", path, exc)


# ---- questions


def _now() -> float:
    """Seconds, also while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _driver_conf(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Spark's conf, from the JVM that has started this program; {} if none has."""
    if not environ.get("PYSPARK_GATEWAY_PORT"):
        return {}
    try:
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()  # it connects to that JVM; there is no context yet
        return dict(SparkConf().getAll())
    except Exception as exc:  # whatever Spark says: without its conf this program has no right
        log.warning("the conf of the driver cannot be read: %r", exc)
        return {}


def _application(environ: Mapping[str, str], conf: Mapping[str, str]) -> str:
    """The id of this driver, as its cluster manager shows it: of YARN's application, or of Kubernetes' pod."""
    container = _CONTAINER.fullmatch(environ.get("CONTAINER_ID", ""))
    host = environ.get("HOSTNAME", "")  # of a pod: its name
    return (
        conf.get("spark.kubernetes.driver.pod.name")
        or conf.get("spark.yarn.app.id")
        or (f"application_{container[1]}" if container else host if host.startswith("coordd-") else "")
    )


def _ask(grant: Grant, what: str, until: float, holder: int = 0, **more: object) -> tuple[str, int, str]:
    """The answer: ok, committed, moved or stale, a token, and why. Raises LeaseLostError. ``more``: of the question."""
    addresses = [grant.address] if grant.is_local else [one.strip() for one in grant.address.split(",") if one.strip()]
    whose, why = "the runner" if grant.is_local else "a listener", ""
    while True:
        refused = 0
        for address in addresses:
            limit = min(until, _now() + (ANSWER_S if grant.is_local else LISTENER_S))
            try:
                word, token, why = _ask_once(grant, address, what, holder, limit, **more)
            except (OSError, ValueError) as exc:
                if not why or _now() < until:  # the last question has often no time left, and tells nothing
                    why = f"{whose} does not answer: {exc or type(exc).__name__}"
                    why += "" if grant.is_local else f" ({address})"
                continue
            if word == "refused":
                refused += 1
                why = f"{whose} refuses the question: {why}"
            elif word != "unknown":
                return word, token, why
        if refused == len(addresses):  # else another one may know
            raise LeaseLostError(f"{grant.run}, attempt {grant.attempt}: {why}")
        pause_s = AGAIN_S if grant.is_local else AGAIN_LISTENERS_S
        if _now() + pause_s >= until:
            raise LeaseLostError(f"{grant.run}, attempt {grant.attempt}: nobody can tell who owns the run: {why}")
        time.sleep(pause_s)


def _ask_once(grant: Grant, address: str, what: str, holder: int, until: float, **more: object) -> tuple[str, int, str]:
    """Raises OSError and ValueError without a good answer in time."""
    ident = os.urandom(16).hex()
    question = {"ask": what, "run": grant.run, "attempt": grant.attempt, "token": grant.token, "id": ident, **more}
    if not grant.is_local:
        question["application"], question["holder"] = grant.application, holder
    body = json.dumps(question).encode()
    with _connected(grant, address, until) as sock:
        purpose = b"ask"
        if not grant.is_local:  # a listener names a text of its own, so that nobody can ask the same again later
            greeting = _line(sock, until)
            if not greeting.startswith(GREETING):
                raise ValueError("its greeting is of another version")
            purpose += b" " + greeting[len(GREETING) : -1]
        sock.settimeout(_left(until))
        sock.sendall(GREETING + _mac(grant.nonce, purpose, body) + b" " + body + b"\n")
        data = _line(sock, until)
    _left(until)  # an answer that this process read long after its question counts for nothing
    return _understood(grant, data, ident)


def _connected(grant: Grant, address: str, until: float) -> socket.socket:
    """A connection; closed by the caller. Raises OSError and ValueError."""
    if grant.is_local:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(_left(until))
            sock.connect(b"\0" + address[len(ABSTRACT) :].encode())
        except BaseException:
            sock.close()
            raise
        return sock
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    if scheme not in SCHEMES or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected an address of this version, found {address[:80]!r}")
    sock = socket.create_connection((host, int(port)), timeout=_left(until))
    if scheme != TLS:
        return sock
    import ssl

    try:
        sock.settimeout(_left(until))
        return ssl.create_default_context(cadata=grant.authority or None).wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def _line(sock: socket.socket, until: float) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        sock.settimeout(_left(until))
        piece = sock.recv(ANSWER_BYTES_MAX)
        data += piece
        if not piece or len(data) > ANSWER_BYTES_MAX:
            raise ValueError(f"its answer ends after {len(data)} bytes")
    return data


def _understood(grant: Grant, data: bytes, ident: str) -> tuple[str, int, str]:
    if not data.startswith(GREETING):
        raise ValueError("its answer is of another version")
    proof, _, body = data[len(GREETING) : -1].partition(b" ")
    has_proof = hmac.compare_digest(proof, _mac(grant.nonce, b"answer", body))
    if not has_proof and grant.is_local:
        raise ValueError("its answer has no proof of the nonce")
    try:
        said = json.loads(body.decode())
    except RecursionError as exc:
        raise ValueError("its answer is nested too deeply") from exc
    answer = said if isinstance(said, dict) else {}
    if not has_proof and answer.get("word") not in ("refused", "unknown"):  # a listener may not know the nonce
        raise ValueError("its answer has no proof of the nonce")
    word, token, why = answer.get("word"), answer.get("token"), answer.get("why")
    # A question that could not be read has no id. Only "refused" may come without it.
    if answer.get("id") != ident and (answer.get("id") is not None or word != "refused"):
        raise ValueError("its answer is to another question")
    if word not in _WORDS or not isinstance(token, int) or not isinstance(why, str):
        raise ValueError("its answer says nothing that is known here")
    return word, token, why


def _left(until: float) -> float:
    left_s = until - _now()
    if left_s <= 0:
        raise TimeoutError("no answer in time")
    return left_s


def _mac(nonce: str, purpose: bytes, body: bytes) -> bytes:
    return hmac.new(nonce.encode(), purpose + b"\0" + body, hashlib.sha256).hexdigest().encode()


def _answered(what: str) -> dict[str, object]:
    """What the runner says to one question, for a program that asks again itself. Raises LeaseLostError."""
    grant = _grant(None)
    try:
        word, token, why = _ask_once(grant, grant.address, what, 0, _now() + ANSWER_S)
    except (OSError, ValueError) as exc:
        word, token, why = "unknown", 0, f"the runner does not answer: {exc or type(exc).__name__}"
    return {"word": word, "token": token, "why": why}


def main(arguments: list[str]) -> int:
    """For shell scripts: guard.py owner, guard.py commit (exit code 0: write now), guard.py staging TARGET,
    guard.py publish STAGING TARGET. For other programs on the node: guard.py ask owner|commit prints JSON.
    """
    logging.basicConfig(level=logging.INFO, format="coordd.guard: %(message)s")
    try:
        if arguments == ["owner"]:
            return 0 if still_owner() else 1
        if arguments == ["commit"]:
            print(transact(lambda of: of.app_id))
            return 0
        if len(arguments) == 2 and arguments[0] == "ask":
            print(json.dumps(_answered(arguments[1])))
            return 0
        if len(arguments) == 2 and arguments[0] == "staging":
            print(staging(arguments[1]))
            return 0
        if len(arguments) == 3 and arguments[0] == "publish":
            publish(arguments[1], arguments[2])
            return 0
    except GuardError as exc:
        print(f"coordd.guard: {exc}", file=sys.stderr)
        return 1
    print(main.__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
