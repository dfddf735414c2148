"""Root's list of the users that jobs may run as."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from coordd.adapters.launch import allowed
from coordd.config import jobkeys

ASKED = {"memory": 0, "cpu_weight": 0, "tasks": 0}


def test_users_and_their_limits() -> None:
    text = "# who\n\netl memory=8G cpu_weight=200\n  report   tasks=50 # at night\nplain\n"
    assert allowed.parse(text) == {
        "etl": {"memory": 8 * 2**30, "cpu_weight": 200},
        "report": {"tasks": 50},
        "plain": {},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("etl\nx ram=1G", 'line 2: expected memory=, cpu_weight=, tasks=, found "ram=1G"'),
        ("x memory", 'found "memory"'),
        ("x memory=1.5G", "expected a whole number for memory"),
        ("x tasks=5K", "expected a whole number for tasks"),
        ("x tasks=0", "expected 1 to 4194304 for tasks, found 0"),
        ("x cpu_weight=10001", "expected 1 to 10000 for cpu_weight"),
    ],
)
def test_a_line_that_is_not_understood_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="line") as raised:
        allowed.parse(text)
    assert said in str(raised.value)


def test_a_job_file_has_the_same_limits_and_bounds() -> None:
    """config must not import this room, and the supervisor, which is root, must not import config."""
    assert list(jobkeys.LIMITS) == list(allowed.LIMITS)
    for name, (_, most) in allowed.LIMITS.items():
        said, more = (f"{most >> 40}T", f"{(most >> 40) + 1}T") if name == "memory" else (most, most + 1)
        assert jobkeys.LIMITS[name](said) == allowed.number(name, str(said)) == most
        with pytest.raises(ValueError, match="expected"):
            allowed.number(name, str(more))
        with pytest.raises(ValueError, match="expected"):
            jobkeys.LIMITS[name](more)


def test_without_the_file_nobody_is_allowed(tmp_path: Path) -> None:
    assert allowed.read(str(tmp_path / "none")) == {}
    with pytest.raises(ValueError, match="where root names the users"):
        allowed.decide("nobody", ASKED, {})


@pytest.mark.parametrize("how", ["writable by a group", "another owner", "a link", "a directory", "long", "a bad line"])
def test_a_file_that_others_could_change_is_refused(tmp_path: Path, how: str) -> None:
    path = tmp_path / "allow"
    path.write_text("nobody\n")
    path.chmod(0o644)
    assert allowed.read(str(path)) == {"nobody": {}}
    if how == "writable by a group":
        path.chmod(0o664)
    elif how == "another owner":
        os.chown(path, 65534, 0)
    elif how == "a link":
        path.rename(tmp_path / "real")
        path.symlink_to(tmp_path / "real")
    elif how == "a directory":
        path.unlink()
        path.mkdir(0o755)
    elif how == "long":
        path.write_text("x\n" * allowed.BYTES_MAX)
    else:
        path.write_text("nobody anything\n")
    with pytest.raises(ValueError, match=str(path)):
        allowed.read(str(path))


def test_a_job_gets_at_most_what_root_says() -> None:
    users = {"nobody": {"memory": 1000, "tasks": 5}}
    account, limits = allowed.decide("nobody", {"memory": 500, "cpu_weight": 7, "tasks": 0}, users)
    assert account.pw_name == "nobody"
    assert limits == {"memory": 500, "cpu_weight": 7, "tasks": 5}
    with pytest.raises(ValueError, match=r'limits\.memory is 1001, and .* allows "nobody" at most 1000'):
        allowed.decide("nobody", {**ASKED, "memory": 1001}, users)


def test_root_is_never_allowed_and_a_user_must_exist() -> None:
    with pytest.raises(ValueError, match='"root" is root'):
        allowed.decide("root", ASKED, {"root": {}})
    with pytest.raises(ValueError, match='no user "no-such-user"'):
        allowed.decide("no-such-user", ASKED, {"no-such-user": {}})


@pytest.mark.parametrize(("uid", "gid"), [(2**32 - 1, 1000), (1000, 2**32 - 1), (-1, -1)])
def test_an_account_whose_number_the_kernel_takes_for_no_change_is_refused(
    monkeypatch: pytest.MonkeyPatch, uid: int, gid: int
) -> None:
    """setresuid and setresgid with this number succeed, and change nothing: the program would be root."""
    account = pwd.struct_passwd(("etl", "x", uid, gid, "", "/", "/bin/sh"))
    monkeypatch.setattr("pwd.getpwnam", lambda _name: account)
    with pytest.raises(ValueError, match="is not a number of a user"):
        allowed.decide("etl", ASKED, {"etl": {}})
