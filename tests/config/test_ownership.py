"""Files that other users could change are refused; the message has the file, its owner and mode, and the remedy."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from coordd.adapters import onhost, spark
from coordd.adapters.secrets import password
from coordd.config import keyring
from coordd.config.jobfile import check, load_jobs
from coordd.config.ownership import Directory, Trust, fault, secret_fault
from coordd.config.settings import load, read_config
from coordd.core.wire.envelope import SIGN, Key, Keyring
from coordd.errors import ConfigError, UnavailableError

# These tests make files of our own; for the daemon of another user they are a stranger's.
STRANGE = Trust(frozenset((0 if os.getuid() else 12345,)), frozenset())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A node's files, as they should be."""
    tmp_path.chmod(0o755)
    for name in ("jobs.d", "state", "run"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "jobs.d/a.toml").write_text('[command]\nargv = ["/bin/true"]\n')
    (tmp_path / "spark.env").write_text("A=b\n")
    (tmp_path / "spark.conf").write_text("spark.a b\n")
    (tmp_path / "password").write_text("x\n")
    (tmp_path / "submit").write_text("#!/bin/sh\n")
    (tmp_path / "submit").chmod(0o755)
    (tmp_path / "password").chmod(0o600)
    (tmp_path / "coordd.toml").write_text(
        f'[node]\nname = "a"\njobs_dir = "{tmp_path}/jobs.d"\nstate_dir = "{tmp_path}/state"\n'
        f'runtime_dir = "{tmp_path}/run"\n[cluster]\nbus = "amqp://coordd@127.0.0.1/"\n'
        f'ledger = "redis://127.0.0.1/0"\nunsigned = true\nallow_insecure = true\n'
        f'bus_password_file = "{tmp_path}/password"\n[spark]\nsubmit = "{tmp_path}/submit"\n'
        f'env_file = "{tmp_path}/spark.env"\nproperties_file = "{tmp_path}/spark.conf"\n'
    )
    for file in ("jobs.d/a.toml", "spark.env", "spark.conf", "coordd.toml"):
        (tmp_path / file).chmod(0o644)
    assert read_config(f"{tmp_path}/coordd.toml", {})[1] == []
    return tmp_path


CONFIGURED = [
    ("coordd.toml", ""),
    ("jobs.d", "node.jobs_dir"),
    ("state", "node.state_dir"),
    ("run", "node.runtime_dir"),
    ("submit", "spark.submit"),
    ("spark.env", "spark.env_file"),
    ("spark.conf", "spark.properties_file"),
    ("password", "cluster.bus_password_file"),
]


@pytest.mark.parametrize("bit", [0o020, 0o002], ids=["group", "others"])
@pytest.mark.parametrize(("name", "setting"), CONFIGURED, ids=[name for name, _ in CONFIGURED])
def test_a_file_that_others_may_write_is_refused_at_the_start_and_by_check_config(
    home: Path, name: str, setting: str, bit: int
) -> None:
    path = home / name
    path.chmod(path.stat().st_mode & 0o777 | bit)
    config, problems = read_config(f"{home}/coordd.toml", {})
    assert config is None
    [problem] = problems
    assert problem.key == setting
    assert str(path) in problem.message or problem.file == str(path)
    assert f"mode {path.stat().st_mode & 0o7777:04o}" in problem.message
    assert f"chmod go-w {path}" in problem.message
    assert check(f"{home}/coordd.toml", {}) == problems
    with pytest.raises(ConfigError, match="chmod go-w"):
        load(f"{home}/coordd.toml", {})


def test_a_job_file_that_others_may_write_disables_that_job_alone(home: Path) -> None:
    config = load(f"{home}/coordd.toml", {})
    (home / "jobs.d/b.toml").write_text('[command]\nargv = ["/bin/true"]\n')
    (home / "jobs.d/b.toml").chmod(0o666)
    found = load_jobs(f"{home}/jobs.d", config)
    assert list(found.jobs) == ["a"]
    assert "everybody can write" in str(found.problems["b"][0])


@pytest.mark.parametrize("name", ["coordd.toml", "jobs.d", "spark.env"])
def test_a_directory_on_the_way_counts_like_the_file(home: Path, name: str) -> None:
    home.chmod(0o777)
    assert f"everybody can write {home} " in fault(f"{home}/{name}")
    home.chmod(0o775)
    assert f"can write {home} " in fault(f"{home}/{name}")
    home.chmod(0o1777)  # sticky, as /tmp: nobody but its owner may replace an entry of it
    assert fault(f"{home}/{name}") == ""


def test_a_sticky_directory_whose_entries_all_count_is_refused(home: Path) -> None:
    (home / "jobs.d").chmod(0o1777)
    assert "jobs.d" in fault(f"{home}/jobs.d", all_in_it=True)
    assert fault(f"{home}/jobs.d/a.toml") == ""


def test_what_belongs_to_somebody_else_is_refused_whatever_its_mode(home: Path) -> None:
    said = fault(f"{home}/coordd.toml", trust=STRANGE)
    assert "belongs to" in said
    assert "chown root" in said


def test_a_link_is_followed_to_what_it_names(home: Path) -> None:
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    (elsewhere / "a.toml").write_text("x = 1\n")
    (home / "jobs.d/link.toml").symlink_to("../elsewhere/a.toml")
    assert "elsewhere" in fault(f"{home}/jobs.d/link.toml")
    elsewhere.chmod(0o755)
    assert fault(f"{home}/jobs.d/link.toml") == ""
    (home / "loop").symlink_to("loop")
    assert "too many" in fault(f"{home}/loop")


def test_a_file_that_was_replaced_between_its_opening_and_the_look_is_refused(home: Path) -> None:
    with open(home / "coordd.toml", "rb") as file:
        (home / "other").write_text("x")
        (home / "other").rename(home / "coordd.toml")
        assert "replaced" in fault(f"{home}/coordd.toml", os.fstat(file.fileno()))


def writable_file(home: Path) -> None:
    (home / "jobs.d/a.toml").chmod(0o666)


def writable_directory(home: Path) -> None:
    (home / "jobs.d").chmod(0o775)


def sticky_directory(home: Path) -> None:
    (home / "jobs.d").chmod(0o1777)


def writable_way(home: Path) -> None:
    home.chmod(0o777)


def linked_file(home: Path) -> None:
    (home / "jobs.d/a.toml").rename(home / "b.toml")
    (home / "jobs.d/a.toml").symlink_to("../b.toml")


def linked_to_a_writable_one(home: Path) -> None:
    linked_file(home)
    (home / "b.toml").chmod(0o666)


def linked_directory(home: Path) -> None:
    (home / "jobs.d").rename(home / "elsewhere")
    (home / "jobs.d").symlink_to("elsewhere")


def linked_to_a_writable_directory(home: Path) -> None:
    linked_directory(home)
    (home / "elsewhere").chmod(0o777)


FAULTS = [
    (lambda home: None, ""),
    (writable_file, "everybody can write"),
    (writable_directory, "can write"),
    (sticky_directory, ""),
    (writable_way, "everybody can write"),
    (linked_file, ""),
    (linked_to_a_writable_one, "everybody can write"),
    (linked_directory, ""),
    (linked_to_a_writable_directory, "everybody can write"),
]


@pytest.mark.parametrize(("spoil", "said"), FAULTS)
def test_a_file_of_a_directory_has_the_faults_that_it_has_alone(
    home: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(home)
    path = home / "jobs.d/a.toml"
    found = Directory(f"{home}/jobs.d").fault("a.toml", path.stat())
    assert found == fault(str(path), path.stat())
    assert said in found
    assert bool(said) == bool(found)
    if not said:
        assert "replaced" in Directory(f"{home}/jobs.d").fault("a.toml", home.stat())


def test_the_way_to_a_directory_of_job_files_is_walked_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(f"{home}/coordd.toml", {})
    for number in range(50):
        (home / f"jobs.d/{number}.toml").write_text('[command]\nargv = ["/bin/true"]\n')
    looked: list[str] = []
    look = os.lstat

    def counted(path: str) -> os.stat_result:
        looked.append(path)
        return look(path)

    monkeypatch.setattr(os, "lstat", counted)
    assert len(load_jobs(f"{home}/jobs.d", config).jobs) == 51
    assert looked.count(str(home)) == 1
    assert all(looked.count(f"{home}/jobs.d/{number}.toml") == 1 for number in range(50))


def test_what_is_not_there_is_for_others_to_say(home: Path) -> None:
    assert fault(f"{home}/none") == fault(f"{home}/coordd.toml/x") == ""


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666, 0o660, 0o620])
def test_a_password_that_others_may_read_or_write_is_refused(
    home: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getegid", lambda: 54321)  # its group is not the daemon's own
    (home / "password").chmod(mode)
    with pytest.raises(UnavailableError, match="chmod"):
        password(f"{home}/password", "bus_password")
    assert [problem.key for problem in read_config(f"{home}/coordd.toml", {})[1]] == ["cluster.bus_password_file"]


@pytest.mark.parametrize(
    ("mode", "fits"), [(0o600, True), (0o640, True), (0o400, True), (0o660, False), (0o644, False)]
)
def test_the_daemons_own_group_may_read_a_secret_and_nobody_else(home: Path, mode: int, fits: bool) -> None:
    (home / "password").chmod(mode)
    found = (home / "password").stat()
    trust = Trust(frozenset((0, os.geteuid())), frozenset((found.st_gid,)))
    assert (secret_fault(f"{home}/password", found, trust=trust) == "") is fits


@pytest.mark.parametrize(
    "use",
    [
        lambda home: spark.read_env_file(f"{home}/spark.env"),
        lambda home: spark.find_submit(f"{home}/submit", {}),
        lambda home: spark.find_submit("", {"PATH": f"{home}"}),
    ],
    ids=["env_file", "submit", "PATH"],
)
def test_what_became_writable_since_the_start_is_refused_at_the_launch(
    home: Path, use: Callable[[Path], object]
) -> None:
    for name in ("spark.env", "submit"):
        (home / name).chmod(0o777)
    shutil.copy(home / "submit", home / "spark-submit")
    (home / "spark-submit").chmod(0o777)
    with pytest.raises(UnavailableError, match="everybody can write"):
        use(home)


def test_the_keyring_as_the_package_leaves_it_is_read_by_the_service() -> None:
    """The packaged tmpfiles.d line, by the real systemd-tmpfiles, then the loader as the service's user and group."""
    uid = gid = 54321
    packaged = Path(__file__).parents[2] / "systemd/tmpfiles.d-coordd.conf"
    with tempfile.TemporaryDirectory(prefix="cdo-") as directory:
        root = Path(directory)
        root.chmod(0o755)
        (root / "etc/coordd").mkdir(parents=True)
        (root / "etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\ncoordd:x:{uid}:{gid}::/:/bin/false\n")
        (root / "etc/group").write_text(f"root:x:0:\ncoordd:x:{gid}:\n")
        ring = root / "etc/coordd/keys.toml"
        ring.write_text(keyring.render(Keyring((Key("k1", SIGN, b"x" * 32),))))
        ring.chmod(0o600)
        done = subprocess.run(
            ["systemd-tmpfiles", "--create", f"--root={root}", str(packaged)],
            capture_output=True,
            text=True,
            check=False,
        )
        found = ring.stat()
        assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o640, 0, gid), done.stderr
        account = pwd.struct_passwd(("coordd", "x", uid, gid, "", "/", "/bin/false"))
        assert onhost.as_user(account, lambda: keyring.load(str(ring), {}).signing.id) == "k1"
        stranger = pwd.struct_passwd(("other", "x", uid, gid + 1, "", "/", "/bin/false"))
        os.chmod(ring, 0o644)
        said = onhost.as_user(stranger, lambda: _refusal(str(ring)))
        assert "mode 0644" in said


def _refusal(path: str) -> str:
    try:
        keyring.load(path, {})
    except ConfigError as exc:
        return str(exc)
    return ""
