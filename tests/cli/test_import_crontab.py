"""`coordd import-crontab`: what it writes, what it leaves alone, what it says."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordd.adapters import onhost
from coordd.cli import crontab
from coordd.cli.coordd import program
from coordd.config.jobfile import load_jobs
from coordd.config.sections import Config
from coordd.core.jobs.job import Command, Job

ME = pwd.getpwuid(os.geteuid()).pw_name
LINES = """\
CRON_TZ=Europe/Berlin
30 2 * * * /opt/etl/run.sh --full "${DAY}"
@hourly /opt/etl/clean.sh
"""


@pytest.fixture(autouse=True)
def _own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    found = onhost.service_user
    # Without the service's account, the jobs run as the user who imports them.
    monkeypatch.setattr(onhost, "service_user", lambda name="no-such-account": found(name))


def imported(tmp_path: Path, text: str, *more: str, code: int = 0) -> Result:
    source = tmp_path / "crontab"
    source.write_text(text)
    (tmp_path / "jobs.d").mkdir(exist_ok=True)
    arguments = ["import-crontab", str(source), "--to", str(tmp_path / "jobs.d"), "--timezone", "UTC", *more]
    done = CliRunner().invoke(program, arguments, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def jobs(tmp_path: Path) -> dict[str, Job]:
    found = load_jobs(str(tmp_path / "jobs.d"), Config())
    assert found.problems == {}
    return found.jobs


def file_of(tmp_path: Path, stem: str) -> Path:
    [path] = (tmp_path / "jobs.d").glob(f"{stem}*.toml")
    return path


def test_lines_become_jobs_that_are_held(tmp_path: Path) -> None:
    done = imported(tmp_path, LINES)
    assert "2 jobs" in done.output
    assert "2 held" in done.output
    [clean, run] = [found for _, found in sorted(jobs(tmp_path).items())]
    assert run.name.startswith("run.sh-")
    assert (run.enabled, run.schedule) == (False, None)
    assert run.held is not None
    assert (run.held.cron, run.timezone) == ("30 2 * * *", "Europe/Berlin")
    assert (run.misfire, run.overlap) == ("skip", "allow")
    assert isinstance(run.launch, Command)
    assert run.launch.argv == ("/bin/sh", "-c", '/opt/etl/run.sh --full "${{DAY}}"')
    assert run.launch.env["PATH"] == "/usr/bin:/bin"
    assert run.launch.env["LOGNAME"] == ME
    assert run.launch.cwd == pwd.getpwnam(ME).pw_dir
    assert clean.held is not None
    assert clean.held.cron == "0 * * * *"


def test_a_second_import_changes_nothing_and_follows_the_crontab(tmp_path: Path) -> None:
    imported(tmp_path, LINES)
    before = {path: path.read_text() for path in (tmp_path / "jobs.d").iterdir()}
    assert "unchanged" in imported(tmp_path, LINES).output
    assert {path: path.read_text() for path in (tmp_path / "jobs.d").iterdir()} == before
    assert "updated" in imported(tmp_path, LINES.replace("30 2", "45 3")).output
    held = jobs(tmp_path)[file_of(tmp_path, "run.sh").stem].held
    assert held is not None
    assert held.cron == "45 3 * * *"


def test_release_and_a_release_by_hand_outlast_the_next_import(tmp_path: Path) -> None:
    imported(tmp_path, LINES)
    path = file_of(tmp_path, "run.sh")
    path.write_text("\n".join("enabled = true" if "enabled" in line else line for line in path.read_text().split("\n")))
    imported(tmp_path, f"A=1\n{LINES}")
    found = jobs(tmp_path)
    assert found[path.stem].schedule is not None, "it was released by hand, and is not held again"
    assert sum(job.enabled for job in found.values()) == 1
    assert "0 held" in imported(tmp_path, LINES, "--release").output
    assert all(job.enabled for job in jobs(tmp_path).values())


def released(path: Path) -> str:
    """The text of this job file, which now is released, as a person does it."""
    path.write_text(path.read_text().replace("enabled = false", "enabled = true"))
    return path.read_text()


def schedules(tmp_path: Path) -> dict[str, tuple[str, bool]]:
    """(schedule, released) of each job, by the end of its name: "": the first line of this command."""
    found = [(job.name[len("sync.sh-123456") :], job, job.schedule or job.held) for job in jobs(tmp_path).values()]
    return {end: (schedule.cron if schedule else "", job.enabled) for end, job, schedule in found}


SYNC = "0 1 * * * /opt/sync.sh\n0 13 * * * /opt/sync.sh\n"


def test_a_released_job_keeps_its_schedule_after_its_line_is_gone(tmp_path: Path) -> None:
    """Two lines run one command; the first is cut over. The other line is that of the other job, as before."""
    imported(tmp_path, SYNC)
    [first] = (tmp_path / "jobs.d").glob("sync.sh-??????.toml")
    before = released(first)
    done = imported(tmp_path, "0 13 * * * /opt/sync.sh\n", code=1)
    assert "its line is gone" in done.output
    assert first.read_text() == before
    assert schedules(tmp_path) == {"": ("0 1 * * *", True), "-2": ("0 13 * * *", False)}
    imported(tmp_path, "0 15 * * * /opt/sync.sh\n", code=1)
    assert schedules(tmp_path) == {"": ("0 1 * * *", True), "-2": ("0 15 * * *", False)}, "the job that is held follows"


def test_lines_of_one_command_keep_their_names_in_another_order(tmp_path: Path) -> None:
    imported(tmp_path, SYNC)
    imported(tmp_path, "0 7 * * * /opt/sync.sh\n" + "".join(reversed(SYNC.splitlines(keepends=True))))
    held = {"": ("0 1 * * *", False), "-2": ("0 13 * * *", False), "-3": ("0 7 * * *", False)}
    assert schedules(tmp_path) == held
    imported(tmp_path, "".join(reversed(SYNC.splitlines(keepends=True))), "--timezone", "Europe/Berlin", code=1)
    assert schedules(tmp_path) == held


@pytest.mark.parametrize("more", [(), ("--release",)])
def test_no_import_gives_a_released_job_other_times(tmp_path: Path, more: tuple[str, ...]) -> None:
    imported(tmp_path, "0 1 * * * /opt/sync.sh\n")
    path = file_of(tmp_path, "sync.sh")
    before = released(path)
    done = imported(tmp_path, "0 13 * * * /opt/sync.sh\n", *more, code=1)
    assert path.read_text() == before
    assert "is released with the schedule 0 1 * * * (UTC)" in done.output
    assert "set its schedule in the job file" in done.output
    done = imported(tmp_path, "CRON_TZ=Asia/Tokyo\n0 1 * * * /opt/sync.sh\n", *more, code=1)
    assert path.read_text() == before
    imported(tmp_path, "A=1\n0 1 * * * /opt/sync.sh\n", *more)
    [job] = jobs(tmp_path).values()
    assert isinstance(job.launch, Command)
    assert (job.enabled, job.launch.env["A"]) == (True, "1"), "all else follows the crontab"


def test_what_was_edited_or_is_somebody_elses_is_named_and_kept(tmp_path: Path) -> None:
    imported(tmp_path, LINES)
    path = file_of(tmp_path, "run.sh")
    edited = path.read_text().replace('overlap = "allow"', 'overlap = "forbid"')
    path.write_text(edited)
    other = file_of(tmp_path, "clean.sh")
    other.write_text('[command]\nargv = ["/bin/true"]\n')
    done = imported(tmp_path, LINES.replace("30 2", "45 3"), "--release", code=1)
    assert path.read_text() == edited
    assert other.read_text() == '[command]\nargv = ["/bin/true"]\n'
    assert "was edited after its import" in done.output
    assert "no import wrote" in done.output


def test_what_left_the_crontab_is_named_and_kept(tmp_path: Path) -> None:
    imported(tmp_path, LINES)
    done = imported(tmp_path, LINES.replace("@hourly /opt/etl/clean.sh\n", ""), code=1)
    assert "clean.sh" in done.output
    assert "its line is gone" in done.output
    assert len(jobs(tmp_path)) == 2


def test_what_cannot_be_carried_over_is_named_with_its_line(tmp_path: Path) -> None:
    text = f"MAILTO=ops\n@reboot /bin/a\n0 0 31 2 * /bin/never\n{LINES}* * * * * root ls\n"
    done = imported(tmp_path, text, code=1)
    for said in ("line 1: coordd sends no mail", "line 2: @reboot", "line 3: "):
        assert said in done.output
    assert len(jobs(tmp_path)) == 3


def test_the_home_of_the_crontab_is_the_working_directory(tmp_path: Path) -> None:
    """cron changes to the HOME that the crontab sets, and a command such as ./sync.sh is found from there."""
    imported(tmp_path, "0 1 * * * ./before.sh\nHOME=/opt/app\n0 2 * * * ./sync.sh\n")
    found = {job.name[:4]: job.launch for job in jobs(tmp_path).values()}
    before, sync = found["befo"], found["sync"]
    assert isinstance(before, Command)
    assert isinstance(sync, Command)
    assert (sync.cwd, sync.env["HOME"]) == ("/opt/app", "/opt/app")
    assert before.cwd == pwd.getpwnam(ME).pw_dir
    done = imported(tmp_path, "HOME=app\n0 1 * * * ./elsewhere.sh\n", code=1)
    assert "expected an absolute path" in done.output


def test_a_crontab_cannot_change_its_logname(tmp_path: Path) -> None:
    """crontab(5): it is the user that the job runs as."""
    imported(tmp_path, "LOGNAME=somebody\n0 1 * * * /opt/a.sh\n")
    [one] = jobs(tmp_path).values()
    assert isinstance(one.launch, Command)
    assert one.launch.env["LOGNAME"] == ME


def test_lines_of_other_users_become_jobs_of_these_users(tmp_path: Path) -> None:
    """Only root can allow them, on each node; their homes may be others there, so the files name none."""
    lines = f"0 1 * * * {ME} /opt/mine.sh\n0 2 * * * nobody /opt/theirs.sh\n"
    done = imported(tmp_path, lines, "--system")
    [mine, theirs] = [job for _, job in sorted(jobs(tmp_path).items())]
    assert (mine.run_as, theirs.run_as) == ("", "nobody")
    assert isinstance(theirs.launch, Command)
    assert theirs.launch.env == {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", "LOGNAME": "nobody"}
    assert theirs.launch.cwd == ""
    assert "run as nobody: root names this user in /etc/coordd/run_as.allow, on every node" in done.output
    assert "run_as" not in imported(tmp_path, lines.partition("\n")[0] + "\n", "--system", code=1).output


def test_lines_of_root_are_named_unless_the_daemon_is_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crontab, "_me", lambda: ("etl", "/opt/etl"))
    done = imported(tmp_path, "0 1 * * * root /opt/all.sh\n", "--system", code=1)
    assert jobs(tmp_path) == {}
    assert (
        "it runs as root; jobs run as etl, the daemon's user, or as another one by run_as, but never root"
        in done.output
    )
    assert "leave it to cron" in done.output
    monkeypatch.setattr(crontab, "_me", lambda: ("root", "/root"))
    imported(tmp_path, "0 1 * * * root /opt/all.sh\n", "--system")
    [job] = jobs(tmp_path).values()
    assert job.run_as == ""


def test_a_directory_is_read_as_cron_reads_it(tmp_path: Path) -> None:
    (tmp_path / "cron.d").mkdir()
    (tmp_path / "cron.d" / "etl").write_text(f"0 1 * * * {ME} /opt/mine.sh\n")
    (tmp_path / "cron.d" / "etl.bak").write_text("nonsense\n")
    (tmp_path / "jobs.d").mkdir()
    done = CliRunner().invoke(
        program, ["import-crontab", str(tmp_path / "cron.d"), "--to", str(tmp_path / "jobs.d"), "--timezone", "UTC"]
    )
    assert done.exit_code == 0, done.output
    assert "etl.bak is skipped" in done.output
    assert len(jobs(tmp_path)) == 1


def test_bad_input_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bytes").write_bytes(b"0 1 * * * \xff\n")
    (tmp_path / "jobs.d").mkdir()
    to = ["--to", str(tmp_path / "jobs.d")]
    wrong: list[tuple[list[str], int, str]] = [
        ([str(tmp_path / "bytes"), *to], 1, "expected UTF-8"),
        ([str(tmp_path / "absent"), *to], 1, "cannot be read"),
        ([str(tmp_path / "bytes"), "--to", str(tmp_path / "nowhere")], 1, "no such directory"),
        ([*to], 2, "expected FILE or --user"),
        ([str(tmp_path / "bytes"), "--user", ME, *to], 2, "expected FILE or --user"),
        (["--user", "../../etc", *to], 2, "expected the name of a user"),
        ([str(tmp_path / "bytes"), "--timezone", "Mars", *to], 2, "--timezone: expected the IANA name"),
    ]
    for arguments, code, said in wrong:
        done = CliRunner().invoke(program, ["import-crontab", *arguments])
        assert (done.exit_code, said in done.output) == (code, True), done.output
    monkeypatch.setattr(crontab, "BYTES_MAX", 3)
    done = CliRunner().invoke(program, ["import-crontab", str(tmp_path / "bytes"), *to])
    assert "found more" in done.output
    assert list((tmp_path / "jobs.d").iterdir()) == []


def test_a_disk_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(tmp_path, LINES)
    before = {path: path.read_text() for path in (tmp_path / "jobs.d").iterdir()}
    calls = iter([None])

    def fails(_fd: int) -> None:
        if next(calls, "full") == "full":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    done = imported(tmp_path, LINES.replace("30 2", "45 3").replace("@hourly", "@daily"), code=1)
    assert "No space left on device" in done.output
    assert {path: path.read_text() for path in (tmp_path / "jobs.d").iterdir()} == before


def test_cron_and_the_job_run_the_same_command(tmp_path: Path) -> None:
    """The argv and environment of the job, started as the runner starts them, against what crontab(5) promises."""
    line = f'* * * * * cat > {tmp_path}/out; echo "$LOGNAME $PATH \\% {{x,y}}" >> {tmp_path}/out%hello%world\n'
    imported(tmp_path, line)
    [job] = jobs(tmp_path).values()
    assert isinstance(job.launch, Command)
    argv = [word.replace("{{", "{").replace("}}", "}") for word in job.launch.argv]
    subprocess.run(argv, env=job.launch.env, cwd=job.launch.cwd, check=True, timeout=30)
    assert (tmp_path / "out").read_text() == f"hello\nworld\n{ME} /usr/bin:/bin % {{x,y}}\n"


def test_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "readlink", lambda _: "/usr/share/zoneinfo/Europe/Berlin")
    assert crontab.machine_zone() == "Europe/Berlin"
    monkeypatch.setattr(os, "readlink", lambda _: "../usr/share/zoneinfo/Etc/UTC")
    assert crontab.machine_zone() == "UTC"


def test_the_crontab_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `crontab -l` shows it; for an unknown user the message is that of `crontab`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "jobs.d").mkdir()
    program_of = tmp_path / "bin" / "crontab"
    program_of.write_text(
        '#!/bin/sh\n[ "$*" = "-l" ] || { echo "no crontab for $3" >&2; exit 1; }\necho "0 1 * * * /opt/a"\n'
    )
    program_of.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    to = ["--to", str(tmp_path / "jobs.d"), "--timezone", "UTC"]
    monkeypatch.setattr(os, "access", lambda *_: False)
    done = CliRunner().invoke(program, ["import-crontab", "--user", ME, *to])
    assert done.exit_code == 0, done.output
    assert len(jobs(tmp_path)) == 1
    assert f"the crontab of {ME}, line 1" in file_of(tmp_path, "a-").read_text()
    done = CliRunner().invoke(program, ["import-crontab", "--user", "nobody", *to])
    assert (done.exit_code, "no crontab for nobody" in done.output) == (1, True)
