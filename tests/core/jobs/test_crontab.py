"""Crontabs: each line becomes an entry, or the report names it. No line is dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import lists, sampled_from, text

from coordd.core.jobs.crontab import Entry, job_name, read_crontab

CRONTAB = """\
# nightly things
SHELL=/bin/bash
MAILTO=""
PATH = /opt/bin:/usr/bin
QUOTED = "with spaces"
30 2 * * *\t/opt/etl/run.sh --date "$(date +\\%F)"
CRON_TZ=Europe/Berlin
@daily /opt/etl/clean.sh
RANDOM_DELAY=5
*/15 8-18 * * mon-fri cd /opt/etl && ./load.py %first line%second
"""


def only(line: str, *, system: bool = False) -> Entry:
    found = read_crontab(line, system=system)
    assert found.named == []
    [entry] = found.entries
    return entry


def reason(line: str, *, system: bool = False) -> str:
    found = read_crontab(line, system=system)
    assert found.entries == []
    [named] = found.named
    assert named.line == 1
    return named.reason


def test_a_whole_crontab() -> None:
    found = read_crontab(CRONTAB, system=False)
    assert found.named == []
    first, second, third = found.entries
    assert (first.line, first.schedule, first.timezone, first.shell) == (6, "30 2 * * *", "", "/bin/bash")
    assert first.script == '/opt/etl/run.sh --date "$(date +%F)"'
    assert first.env == {"PATH": "/opt/bin:/usr/bin", "QUOTED": "with spaces"}
    assert (second.schedule, second.timezone, second.jitter_s) == ("@daily", "Europe/Berlin", 0.0)
    assert (third.schedule, third.jitter_s) == ("*/15 8-18 * * mon-fri", 300.0)
    assert third.script.splitlines() == [
        "{ cd /opt/etl && ./load.py ",
        "} <<'COORDD_STANDARD_INPUT'",
        "first line",
        "second",
        "COORDD_STANDARD_INPUT",
    ]


def test_variables_hold_for_the_lines_below_them() -> None:
    found = read_crontab("A=1\n0 1 * * * one\nA=2\n0 2 * * * two\n", system=False)
    assert [entry.env for entry in found.entries] == [{"A": "1"}, {"A": "2"}]


def test_the_user_column() -> None:
    entry = only("17 * * * *\troot    cd / && run-parts --report /etc/cron.hourly", system=True)
    assert (entry.user, entry.script) == ("root", "cd / && run-parts --report /etc/cron.hourly")
    tabbed = only("17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly", system=True)
    assert (tabbed.schedule, tabbed.user, tabbed.script) == ("17 * * * *", entry.user, entry.script)
    assert only("0 1 * * *\tetl \t /bin/a\tb", system=True).script == "/bin/a\tb"
    assert only("0 1 * * * root /bin/true").script == "root /bin/true"  # a user's own crontab has no user field


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("@reboot /bin/true", "@reboot is a time of one machine"),
        ("@every 5m /bin/true", "expected one of @annually"),
        ("0 2 * *", "expected five time fields and a command, found 4"),
        ("0 2 * * *", "expected a command, found the end of the line"),
        ("61 2 * * * /bin/true", "expected a cron line"),
        ("0 2 31 2 * /bin/true", "expected a cron line"),
        ("0 0 12 * * ? /bin/true", "sixth time field"),
        ("0 0 12 1 * 2027 /bin/true", "sixth time field"),
        ("H 2 * * * /bin/true", "differs from machine to machine"),
        ("0~30 2 * * * /bin/true", "differs from machine to machine"),
        ("-*/5 * * * * /bin/true", "another dialect"),
        ("every 5 minutes do something else", "expected a time field"),
        ("MAILTO=ops@example.com", "coordd sends no mail"),
        ("CRON_TZ=Mars/Olympus", "CRON_TZ: expected the IANA name"),
        ("RANDOM_DELAY=soon", "expected whole minutes"),
        ("0 2 * * * a\x07b", "control characters"),
        (f"0 2 * * * {'x' * 5000}", "at most 4000 characters"),
    ],
)
def test_what_is_not_carried_over_says_why(line: str, said: str) -> None:
    assert said in reason(line)


def test_a_shell_without_here_documents_gets_no_standard_input() -> None:
    found = read_crontab("SHELL=/bin/tcsh\n0 1 * * * cat %hello\n0 2 * * * cat\n", system=False)
    assert [entry.line for entry in found.entries] == [3]
    assert "here-document" in found.named[0].reason


def test_a_system_line_without_a_user_is_named() -> None:
    assert "name of a user" in reason("0 1 * * * /opt/etl/run.sh --all", system=True)
    assert "expected a command" in reason("0 1 * * *\tetl", system=True)


@pytest.mark.parametrize(
    ("script", "stem"),
    [
        ("/opt/etl/run.sh --full", "run.sh"),
        ("cd /opt/etl && ./load.py", "load.py"),
        ("[ -x /usr/bin/certbot ] && /usr/bin/certbot renew", "certbot"),
        ("test -e /x || /opt/y.sh", "y.sh"),
        ("nice -n 10 /opt/heavy", "heavy"),
        ("LANG=C exec /opt/z", "z"),
        ("$X", "command"),
        ("/bin/äöü", "command"),
    ],
)
def test_a_job_is_named_after_its_program(script: str, stem: str) -> None:
    entry = Entry(1, "", "", "", script, "/bin/sh", {}, 0.0, "")
    assert job_name(entry, set(), "0a1b2c") == f"{stem}-0a1b2c"
    assert job_name(entry, {f"{stem}-0a1b2c"}, "0a1b2c") == f"{stem}-0a1b2c-2"


@given(lists(sampled_from(CRONTAB.splitlines()) | text(max_size=60).filter(lambda line: "\n" not in line)))
def test_every_line_is_told_of(lines: list[str]) -> None:
    """Each line is one of these: empty, a comment, a variable, an entry, or named in the report."""
    for system in (False, True):
        found = read_crontab("\n".join(lines), system=system)
        told = {entry.line for entry in found.entries} | {named.line for named in found.named}
        for number, line in enumerate(lines, 1):
            bare = line.strip(" \t\r")
            assert number in told or not bare or bare.startswith("#") or "=" in bare
