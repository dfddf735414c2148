"""The arguments of `coordd exec`, its wait, and its silence. A daemon that says what the test wants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.fake_daemon import FakeDaemon, refusal

from coordd.cli import coordd as cli
from coordd.once import asking as asking_module, command
from coordd.once.asking import Asking
from coordd.once.command import Options, parsed


def waits(word: str, **more: Any) -> dict[str, Any]:
    named = {"run": "j#1", "job": "j", "ident": "1", "attempt": 0}
    return {**named, "word": word, "in_s": 0.0, "why": f"because {word}", "state": "", **more}


def over(state: str) -> dict[str, Any]:
    return waits("finished", state=state)


def exec_of(daemon: FakeDaemon, *answers: Any, options: str = "--id 1") -> int | None:
    left = list(answers)
    daemon.answers["exec"] = lambda _params: left.pop(0) if len(left) > 1 else left[0]
    return command.main([f"--socket={daemon.path}", "--job", "j", *options.split(), "--", "touch", "/nowhere/x"])


ARGUMENTS = [
    "--job j -- true",
    "--job j true --id",
    "--job=j --tick=@daily -- sh -c exit",
    "--job j --every 5m --lease 90 --wait -E 9 --verbose -- a b",
    "--job j --id x --timezone Europe/Berlin --socket /s -- -x",
    "--id x -- true",
    "--job j",
    "--job j --",
    "--job j --id x --every 5m -- true",
    "--job j --lease soon -- true",
    "--job j --lease 0 -- true",
    "--job j -E 256 -- true",
    "--job j --job k -- true",
    "--job j --walt -- true",
    "--job j --id= -- true",
    "--job j --every= -- true",
    "--job j --id x --timezone= -- true",
    "--job j --id x --socket= -- true",
    "--job= -- true",
    "--job j --lease nan -- true",
    "--job j --lease inf -- true",
    "--help",
]


@pytest.mark.parametrize("line", ARGUMENTS)
def test_both_readers_of_the_arguments_agree(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast one leaves to click what it does not understand; click must not understand it differently."""
    seen: list[Options] = []

    def note(options: Options) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(command, "run", note)
    monkeypatch.delenv("COORDD_SOCKET", raising=False)
    done = CliRunner().invoke(cli.program, ["exec", *line.split()])
    fast = parsed(line.split())
    if fast is None:
        assert seen == [] or line == "--job j --job k -- true"
        assert done.exit_code == (0 if "--help" in line else 2) or seen
    else:
        assert vars(fast) == vars(seen[0])


def test_a_loser_waits_in_silence_and_exits_with_the_code(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exec_of(daemon, waits("held"), waits("early"), over("success"), options="--id 1 -E 9") == 9
    asked = [params for method, params in daemon.asked if method == "exec"]
    assert [params["ident"] for params in asked] == ["", "1", "1"], "the run stays the same"
    assert {params["nonce"] for params in asked} == {asked[0]["nonce"]}
    assert capfd.readouterr() == ("", "")
    assert exec_of(daemon, waits("held"), over("failure"), options="--id 1 --verbose") == 75
    assert "because held" in capfd.readouterr().err


@pytest.mark.parametrize("option", ["--id", "--every", "--tick", "--timezone", "--socket", "--job"])
def test_an_empty_text_is_a_mistake_of_the_caller(daemon: FakeDaemon, option: str) -> None:
    """`--id "$DAY"` without a DAY: with a random id each call would be another run."""
    job = [] if option == "--job" else ["--job", "j"]
    line = [f"--socket={daemon.path}", *job, option, "", "--", "touch", "/nowhere/x"]
    if option == "--socket":
        line = line[1:]
    assert command.main(line) is None, "left to the reader with the sentences"
    done = CliRunner().invoke(cli.program, ["exec", *line])
    assert done.exit_code == 2
    assert f"'{option}'" in done.stderr
    assert 'expected a text, found ""' in done.stderr
    assert daemon.asked == []


@pytest.mark.parametrize("lease", ["nan", "inf", "-inf"])
def test_a_lease_is_a_number_of_seconds(daemon: FakeDaemon, lease: str) -> None:
    line = [f"--socket={daemon.path}", "--job", "j", f"--lease={lease}", "--", "touch", "/nowhere/x"]
    assert command.main(line) is None
    done = CliRunner().invoke(cli.program, ["exec", *line])
    assert done.exit_code == 2
    assert "'--lease'" in done.stderr
    assert lease in done.stderr
    assert daemon.asked == []


def test_two_keys_are_refused_by_the_name_of_the_command(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    line = [f"--socket={daemon.path}", "--job", "j", "--tick", "@daily", "--every", "5m", "--", "touch", "/nowhere/x"]
    assert command.main(line) is None
    done = CliRunner().invoke(cli.program, ["exec", *line], prog_name="coordd")
    assert done.exit_code == 2
    said = "coordd exec: expected one of --tick, --every and --id, found --tick and --every: leave out all but one\n"
    assert capfd.readouterr().err == said


@pytest.mark.parametrize("told", ["every: expected a duration", "--every: expected a duration"])
def test_a_refusal_names_the_option(daemon: FakeDaemon, told: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The daemon names the parameter; an older one, the option."""
    assert exec_of(daemon, refusal("bad_argument", told), options="--every 5x") == 2
    assert capfd.readouterr().err == "coordd exec: --every: expected a duration\n"


@pytest.mark.parametrize("state", ["missed", "lost", "revoked"])
def test_an_end_that_nobody_expects_is_said(daemon: FakeDaemon, state: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert exec_of(daemon, over(state)) == 75
    assert capfd.readouterr().err == f"coordd exec: j#1 is {state}: because finished\n"


def test_an_id_that_has_failed_before_is_said(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    """Once is for ever: who calls it again must learn that nothing was run."""
    assert exec_of(daemon, over("failure")) == 75
    said = "coordd exec: j#1 is failure: because finished; COMMAND runs once for each id: give another --id\n"
    assert capfd.readouterr().err == said
    for answers, options in (
        ([over("success")], "--id 1"),  # its cron's mail would come from each machine that is late
        ([over("rejected")], "--id 1"),
        ([waits("held"), over("failure")], "--id 1"),  # the machine that had it has told
        ([over("failure")], "--tick @daily"),
        ([over("failure")], "--every 5m"),
    ):
        assert exec_of(daemon, *answers, options=options) == 75
        assert capfd.readouterr().err == "", (answers, options)


def test_a_person_at_a_terminal_is_told_of_any_end(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(command, "say", told.append)
    monkeypatch.setattr(os, "isatty", lambda fd: fd == 2)
    assert exec_of(daemon, over("success")) == 75
    assert told == ["j#1 is success: because finished; COMMAND runs once for each id: give another --id"]
    assert exec_of(daemon, waits("held"), over("success")) == 75
    assert len(told) == 1


def test_a_lost_attempt_is_asked_for_by_its_next_number(daemon: FakeDaemon) -> None:
    assert exec_of(daemon, waits("lost", attempt=1), over("success")) == 75
    assert [params["attempt"] for method, params in daemon.asked if method == "exec"] == [0, 1]


def test_a_lock_does_not_wait_unless_it_is_told_to(daemon: FakeDaemon) -> None:
    for answer in (waits("limited"), waits("recovering"), over("rejected")):
        assert exec_of(daemon, answer, options="") == 75
    rejected = [over("rejected"), waits("limited"), over("revoked")]
    assert exec_of(daemon, *rejected, options="--wait") == 75
    asked = [params for method, params in daemon.asked if method == "exec"][-3:]
    assert [params["ident"] for params in asked] == ["", "", "1"], "another caller was faster: a new run"
    assert asked[0]["nonce"] != asked[1]["nonce"] == asked[2]["nonce"], "whose id is made from the nonce"


@pytest.mark.parametrize(
    ("kind", "options", "code"),
    [
        ("not_permitted", "--id 1", 77),
        ("bad_argument", "--id 1", 2),
        ("bad_job", "--id 1", 65),
        ("conflict", "--id 1", 1),
        ("unavailable", "", 69),
        ("try_later", "", 69),
    ],
)
def test_a_refusal_is_said_and_has_its_code(
    daemon: FakeDaemon, kind: str, options: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exec_of(daemon, refusal(kind, "so it is"), options=options) == code
    assert "so it is" in capfd.readouterr().err


def test_a_ledger_that_is_away_is_waited_for(daemon: FakeDaemon) -> None:
    assert exec_of(daemon, refusal("unavailable"), over("success")) == 75


def test_no_daemon_is_69(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = [f"--socket={tmp_path}/s", "--job", "j", "--", "touch", f"{tmp_path}/started"]
    assert command.main(line) == 69
    assert "COMMAND was not started" in capfd.readouterr().err
    assert not os.path.exists(f"{tmp_path}/started")


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_relative_socket_is_the_callers(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The runner, and the command, may have another working directory."""
    monkeypatch.chdir(os.path.dirname(daemon.path))
    name = os.path.basename(daemon.path)
    if by == "environment":
        monkeypatch.setenv("COORDD_SOCKET", name)
    asking = Asking("j", "id", "1", socket=name if by == "option" else "")
    monkeypatch.chdir(tmp_path)
    assert asking.socket == asking.line.path == os.path.abspath(daemon.path)
    daemon.answers["exec"] = waits("granted") | {"token": 1, "left_s": 9.0, "node": "n", "terms": {}}
    daemon.answers["exec"]["held"] = {"policy": ""}
    assert asking.step() is None
    assert asking.spec()["ledger"] == f"control:{daemon.path}"


@pytest.mark.parametrize(
    ("environment", "zone"),
    [
        ({"CRON_TZ": "Asia/Tokyo"}, "Asia/Tokyo"),
        ({"CRON_TZ": "Japan", "TZ": "America/Lima"}, "Japan"),
        ({"TZ": "America/Lima"}, "America/Lima"),
        ({"TZ": "UTC"}, "UTC"),
        ({"TZ": "CET"}, "CET"),
        ({"TZ": ":Europe/Berlin"}, "Europe/Berlin"),
        # No names of zones: a rule, the machine's zone, a path, a file that is not there, one outside.
        *[({"TZ": value}, "Asia/Seoul") for value in ("CET-1CEST", "localtime", ":/etc/localtime", "Mars", "..", "")],
    ],
)
def test_a_tick_is_in_the_zone_of_cron(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], zone: str
) -> None:
    """Without CRON_TZ and TZ, cron uses the machine's zone, which is Asia/Seoul here."""
    for name in ("CET", "localtime"):
        (tmp_path / "zoneinfo" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "zoneinfo" / name).touch()
    monkeypatch.setattr(asking_module, "ZONES", f"{tmp_path}/zoneinfo")
    monkeypatch.setattr(os, "readlink", lambda _: "/usr/share/zoneinfo/Asia/Seoul")
    for name in ("CRON_TZ", "TZ"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert exec_of(daemon, over("success"), options="--tick @daily") == 75
    assert daemon.asked[-1][1]["timezone"] == zone
