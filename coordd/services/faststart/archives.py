"""Makes class archives in the background: one at a time, at low priority, each with a trial before it is used.

A job never waits for one: until its archive is there, it starts without.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence

import structlog
import trio

from coordd.errors import CoorddError
from coordd.services.control.doctor import OK, WARN, Check, check
from coordd.services.faststart.seams import ClassArchive
from coordd.services.ledger import boottime
from coordd.services.pace import turn

log = structlog.get_logger("archives")

# A daemon that starts and dies again and again makes none. Then it looks this often (seconds).
FIRST_S = 10.0
LOOK_S = 30.0

# The training takes 20 s on an idle machine, a trial 1 s; no longer than this (seconds).
TRAIN_S = 300.0
DUMP_S = 120.0
TRIAL_S = 60.0

# After a failure it is tried again after this pause (seconds), which doubles up to the second value.
PAUSE_S = 3600.0
PAUSE_MAX_S = 86400.0

# The jobs of a node use one Spark and one Java, seldom two; of more, the others start without.
ARCHIVES_MAX = 4

# The part of a command's output that is told (characters).
SAID_MAX = 300

WORK = "work-"


class _About:
    """What this daemon knows about one archive."""

    def __init__(self, archive: ClassArchive) -> None:
        self.archive = archive
        self.tried = False  # Java has accepted it since this daemon began
        self.busy = False
        self.why = "it has not been made yet"  # ... or why there is none; "" while it can be used
        self.pause_s = PAUSE_S
        self.again_at = 0.0


class Archives:
    """``wanted`` lists the archives that the jobs of this node can use. It blocks shortly, and raises CoorddError."""

    def __init__(
        self, directory: str, wanted: Callable[[], Sequence[ClassArchive]], *, first_s: float = FIRST_S
    ) -> None:
        self._directory = directory
        self._wanted = wanted
        self._first_s = first_s
        self.known: dict[str, _About] = {}

    async def run(self) -> None:
        """Look again and again."""
        await trio.sleep(self._first_s)
        self._clean()
        while True:
            try:
                await self.look()
            except (CoorddError, OSError) as exc:
                log.warning("archives.not_looked", reason=str(exc))
            except Exception:  # the boundary of one look: no job depends on it
                log.exception("archives.look_failed")
            await turn(LOOK_S)

    async def look(self) -> None:
        """Try or make what the jobs can use now. Raises CoorddError and OSError."""
        wanted = {each.path: each for each in await trio.to_thread.run_sync(self._wanted)}
        paths = sorted(wanted)[:ARCHIVES_MAX]
        self.known = {path: self.known.get(path) or _About(wanted[path]) for path in paths}
        for about in self.known.values():
            about.archive = wanted[about.archive.path]
            unusable = about.archive.usable()
            if not unusable and about.tried:
                about.why = ""
            elif not unusable:
                await self._try(about)
            if unusable or about.why:
                await self._make(about)

    async def _try(self, about: _About) -> None:
        """An earlier daemon has made it: does Java still accept it?"""
        refused = await self._call(about.archive.trial(), TRIAL_S)
        about.tried, about.why = True, ""
        if refused:
            about.archive.discard()
            about.why = f"Java refuses it: {refused}"
            log.warning("archive.refused", path=about.archive.path, reason=refused)

    async def _make(self, about: _About) -> None:
        if boottime() < about.again_at:
            return
        about.busy = True
        try:
            about.why = await self._made(about.archive)
        except OSError as exc:
            about.why = f"{exc.filename}: {exc.strerror}"
        finally:
            about.busy = False
        about.tried = not about.why
        if about.why:
            log.warning("archive.not_made", spark=about.archive.spark, reason=about.why, again_in_s=about.pause_s)
            about.again_at = boottime() + about.pause_s
            about.pause_s = min(2 * about.pause_s, PAUSE_MAX_S)
        else:
            log.info("archive.made", spark=about.archive.spark, java=about.archive.java, path=about.archive.path)
            about.pause_s = PAUSE_S

    async def _made(self, archive: ClassArchive) -> str:
        """Why it could not be made; "" if it was."""
        if why := archive.obstacle():
            return why
        work, accepted = tempfile.mkdtemp(prefix=WORK, dir=self._directory), False
        try:
            archive.discard()
            if why := await self._call(archive.training(work, TRAIN_S), TRAIN_S + DUMP_S):
                return f"its training failed: {why}"
            if not archive.made():
                return "Java wrote none: it is older than 13, or has no archive of its own classes (java -Xshare:dump)"
            if why := await self._call(archive.trial(archive.part), TRIAL_S):
                return f"Java refuses the new one: {why}"
            archive.accept()
            accepted = True
            return ""
        finally:
            if not accepted:
                archive.discard()
            shutil.rmtree(work, ignore_errors=True)

    async def _call(self, command: tuple[list[str], dict[str, str]], limit_s: float) -> str:
        """Run a command to its end; why it failed, "" if it did not. Nothing of its group stays."""
        argv, env = command
        with tempfile.TemporaryFile(dir=self._directory) as said:
            code = None
            with trio.move_on_after(limit_s):
                done = await trio.run_process(
                    ["nice", "-n", "19", *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    env=env,
                    check=False,
                    start_new_session=True,
                    deliver_cancel=_kill_group,
                )
                code = done.returncode
            if code == 0:
                return ""
            said.seek(max(0, said.seek(0, os.SEEK_END) - 4096))
            told = " ".join(said.read().decode(errors="replace").split())[-SAID_MAX:]
            return (
                f"{f'exit code {code}' if code is not None else f'no end within {limit_s:g} s'}: {told or 'no output'}"
            )

    def _clean(self) -> None:
        """Remove what a killed daemon has left."""
        if not os.path.isdir(self._directory):
            return
        for name in os.listdir(self._directory):
            path = os.path.join(self._directory, name)
            if name.startswith(WORK):
                shutil.rmtree(path, ignore_errors=True)

    def checks(self) -> list[Check]:
        """For `doctor`."""
        found = []
        for about in self.known.values():
            of = f"class archive for {about.archive.spark} and {about.archive.java}"
            unusable = about.archive.usable()
            if not unusable and not about.why:
                found.append(check("class archive", OK, f"{of}: in use"))
            elif about.busy:
                found.append(check("class archive", WARN, f"{of}: it is being made", "wait a minute"))
            else:
                text = f"{of}: {about.why or unusable}; jobs with fast_start start without it"
                found.append(check("class archive", WARN, text, "see docs/spark.md: fast start"))
        return found


async def _kill_group(process: trio.Process) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
