"""`coordd import-crontab`: job files from a crontab, held until they are released."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
import tempfile
from typing import TYPE_CHECKING

import click

from coordd.cli.options import EXIT_FAILED, EXIT_USAGE, Failed, Strict, say

if TYPE_CHECKING:
    from coordd.config.imported import File, Place, Plan
    from coordd.core.jobs.crontab import Named

BYTES_MAX = 1024 * 1024
CRONTAB_S = 10.0

# run-parts and Debian's cron use this pattern: cron skips files in cron.d with other names, such as backups.
_RUN_PART = re.compile(r"[A-Za-z0-9_-]+")


@click.command("import-crontab", cls=Strict)
@click.argument("file", required=False)
@click.option("--user", metavar="NAME", help="Import the crontab of this user instead of a FILE.")
@click.option("--to", "directory", metavar="DIR", required=True, help="Where the job files go: a jobs directory.")
@click.option("--system", is_flag=True, help="Its lines have a user column [default: depends on the path].")
@click.option("--timezone", metavar="ZONE", help="The time zone of lines without CRON_TZ [default: this machine's].")
@click.option("--release", is_flag=True, help="Release the jobs: take their lines out of the crontab first.")
@click.pass_context
def import_crontab(
    context: click.Context,
    file: str | None,
    user: str | None,
    directory: str,
    system: bool,
    timezone: str | None,
    release: bool,
) -> None:
    """Make job files from a crontab: FILE, a cron.d directory, or --user NAME.

    The jobs are held: nothing launches them until they are released, so cron and coordd never both run one. Lines that
    cannot be carried over are listed with the reason. A second import updates only files that nobody has edited.

    Exit codes: 0 all lines were carried over; 1 some were not, or the import failed; 2 usage.
    """
    from coordd.adapters import onhost
    from coordd.config.imported import Account, Place, job_files, left_behind, planned
    from coordd.core.jobs.crontab import Named, read_crontab
    from coordd.core.jobs.schedule import zone

    if (file is None) == (user is None):
        raise Failed("expected FILE or --user NAME, one of them", EXIT_USAGE)
    if not os.path.isdir(directory):
        raise Failed(f"--to {directory}: there is no such directory", EXIT_FAILED, "make it, or name the jobs_dir")
    local = timezone or machine_zone()
    try:
        zone(local)
    except ValueError as exc:
        raise Failed(f"--timezone: {exc}", EXIT_USAGE) from exc
    service = onhost.service_user()  # without such an account, the jobs run as the user who starts the daemon here
    daemon = Account(service.pw_name, service.pw_dir) if service is not None else Account(*_me())
    account = onhost.service_user(user) if user is not None else None
    owner = daemon if user is None else Account(user, account.pw_dir if account is not None else "")
    plans: list[Plan] = []
    named: list[tuple[str, Named]] = []
    there = dict(_files_of(directory))
    taken: dict[str, str] = {}
    for source, text, columns in _sources(file, user, system=system):
        place = Place(source, local, owner, daemon.name)
        files, wrong = job_files(read_crontab(text, system=columns), place, there)
        sound, unsound = _checked(files, place)
        named += [(source, one) for one in [*wrong, *unsound]]
        for one in sound:
            if one.name in taken:
                named.append((source, Named(one.entry.line, one.entry.text, f"the same line is in {taken[one.name]}")))
                continue
            taken[one.name] = source
            plan = planned(one, there.get(one.name), release=release)
            plans.append(plan)
            if plan.state == "kept":
                named.append((source, Named(one.entry.line, one.entry.text, f"{one.name}.toml: {plan.why}")))
        for name in left_behind(source, taken, there.items()):
            named.append((source, Named(0, "", f"{name}.toml: its line is gone from the crontab; the file was kept")))
    _write(directory, [plan for plan in plans if plan.state in ("written", "updated")])
    _tell(plans, named, directory)
    context.exit(EXIT_FAILED if named else 0)


def machine_zone() -> str:
    """The IANA name of this machine's zone, which is cron's. Raises Failed where no file names it."""
    with contextlib.suppress(OSError):
        target = os.readlink("/etc/localtime")
        _, separator, name = target.partition("zoneinfo/")
        if separator:
            return name.removeprefix("posix/").removeprefix("right/").replace("Etc/UTC", "UTC")
    with contextlib.suppress(OSError), open("/etc/timezone", encoding="utf-8") as file:
        name = file.read(200).strip()
        if name:
            return name.replace("Etc/UTC", "UTC")
    if not os.path.exists("/etc/localtime"):
        return "UTC"
    raise Failed(
        "this machine's time zone has no name: /etc/localtime is not a link, and there is no /etc/timezone",
        EXIT_FAILED,
        "name it: --timezone Europe/Berlin",
    )


def _me() -> tuple[str, str]:
    try:
        found = pwd.getpwuid(os.geteuid())
    except KeyError:
        return str(os.geteuid()), ""
    return found.pw_name, found.pw_dir


def _sources(file: str | None, user: str | None, *, system: bool) -> list[tuple[str, str, bool]]:
    """(name for people, text, with a user column) of each crontab to import."""
    if user is not None:
        return [(f"the crontab of {user}", _crontab_of(user), False)]
    assert file is not None
    if os.path.isdir(file):
        found = []
        for name in sorted(os.listdir(file)):
            path = os.path.join(file, name)
            if _RUN_PART.fullmatch(name):
                found.append((os.path.abspath(path), _read(path), True))
            elif not name.startswith("."):
                say(f"coordd: {path} is skipped, as cron does: its name has other characters than A-Z a-z 0-9 _ -")
        return found
    path = os.path.abspath(file)
    columns = system or path == "/etc/crontab" or os.path.basename(os.path.dirname(path)) == "cron.d"
    return [(path, _read(path), columns)]


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as exc:
        raise Failed(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if len(data) > BYTES_MAX:
        raise Failed(f"{path} is not a crontab: expected at most {BYTES_MAX} bytes, found more")
    return _decoded(data, path)


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise Failed(f"{source}, line {line}: expected UTF-8, found other bytes; nothing was written") from exc


def _crontab_of(user: str) -> str:
    """The text that `crontab -l` shows for a user. If it needs no installation: the file is in a known place."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?", user):
        raise Failed(f'expected the name of a user, found "{user:.40}"', EXIT_USAGE)
    for directory in ("/var/spool/cron/crontabs", "/var/spool/cron"):
        path = f"{directory}/{user}"
        if os.path.isfile(path) and os.access(path, os.R_OK):
            return _read(path)
    argv = ["crontab", "-l"] if user == _me()[0] else ["crontab", "-l", "-u", user]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=CRONTAB_S, check=False)
    except FileNotFoundError as exc:
        raise Failed(f"{user} has no crontab here that can be read, and there is no crontab command") from exc
    except (OSError, subprocess.SubprocessError) as exc:
        raise Failed(f"{' '.join(argv)}: {exc}") from exc
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise Failed(f"{' '.join(argv)}: {said[0] if said else f'exit {done.returncode}'}")
    return _decoded(done.stdout, f"the crontab of {user}")


def _files_of(directory: str) -> list[tuple[str, str]]:
    """The job files that exist already."""
    found = []
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if name.endswith(".toml") and not name.startswith(".") and os.path.isfile(path):
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                found.append((name.removesuffix(".toml"), file.read(BYTES_MAX)))
    return found


def _checked(files: list[File], place: Place) -> tuple[list[File], list[Named]]:
    """Reads each file as the daemon would: the job files, and the problems of the others."""
    from coordd.config.jobfile import load_job
    from coordd.config.sections import Config
    from coordd.core.jobs.crontab import Named

    sound, wrong = [], []
    with tempfile.TemporaryDirectory(prefix="coordd-import-") as directory:
        for file in files:
            path = os.path.join(directory, f"{file.name}.toml")
            with open(path, "w", encoding="utf-8") as out:
                out.write(file.text)
            job, problems = load_job(path, Config())
            if job is not None:
                sound.append(file)
            else:
                why = "; ".join(problem.message for problem in problems if problem.severity == "error")
                wrong.append(Named(file.entry.line, file.entry.text, why or f"no job file of {place.source}"))
    return sound, wrong


def _write(directory: str, plans: list[Plan]) -> None:
    """Writes all of them, or none: all are on the disk before the first gets its final name."""
    from coordd.adapters.disk.files import sync_directory

    made = []
    try:
        for plan in plans:
            path = os.path.join(directory, f".{plan.file.name}.toml.new")
            made.append(path)
            with open(path, "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(plan.text)
                file.flush()
                os.fsync(file.fileno())
        for plan, path in zip(plans, made, strict=True):
            os.replace(path, os.path.join(directory, f"{plan.file.name}.toml"))
        sync_directory(directory)
    except OSError as exc:
        for path in made:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise Failed(f"{directory} cannot be written: {exc.strerror or exc}") from exc


def _tell(plans: list[Plan], named: list[tuple[str, Named]], directory: str) -> None:
    from coordd.adapters.launch.allowed import PATH as ALLOWED
    from coordd.cli.show import tables
    from coordd.cli.show.phrases import some

    rows = [
        {
            "job": plan.file.name,
            "schedule": plan.file.entry.schedule,
            "state": "released" if "\nenabled = true" in plan.text else "held",
            "done": plan.state,
            "line": str(plan.file.entry.line),
            "text": plan.file.entry.text,
        }
        for plan in plans
        if plan.state != "kept"
    ]
    tables.draw(tables.IMPORTED, rows, "No line became a job.")
    for source, one in sorted(named, key=lambda pair: (pair[0], pair[1].line)):
        where = f"{source}, line {one.line}" if one.line else source
        say(f"not carried over: {where}: {one.reason}" + (f"\n    {one.text[:200]}" if one.text else ""))
    held = sum(row["state"] == "held" for row in rows)
    say(f"{some(len(rows), 'job')} in {directory}, {held} held; {some(len(named), 'line')} named")
    if users := sorted({plan.file.run_as for plan in plans if plan.file.run_as and plan.state != "kept"}):
        these = "this user" if len(users) == 1 else "these users"
        say(f"some run as {', '.join(users)}: root names {these} in {ALLOWED}, on every node")
    if held:
        say("next: take the lines out of the crontab, then set enabled = true (or --release) on every node, and reload")
