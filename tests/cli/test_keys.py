"""The keyring: made once, moved on step by step, read with care, and never shown."""

from __future__ import annotations

import base64
import os
import pwd
import re
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordd.adapters import onhost
from coordd.cli.coordd import program
from coordd.config import keyring, settings as config_module
from coordd.core.wire.envelope import KEYS_MAX, EnvelopeError, Envelopes, Key, Keyring
from coordd.errors import ConfigError

SECRET = base64.b64encode(b"s" * 32).decode()
GOOD = f'[[key]]\nid = "k1"\nstate = "sign"\nsecret = "{SECRET}"\n'


@pytest.fixture(autouse=True)
def no_system_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests must not touch the keyring of the machine they run on."""
    monkeypatch.setattr(config_module, "CONFIG_PATH", str(tmp_path / "etc" / "coordd.toml"))
    monkeypatch.setenv("COORDD_CLUSTER_KEYRING", str(tmp_path / "default.toml"))
    monkeypatch.delenv("COORDD_CONFIG", raising=False)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


@pytest.fixture
def keys() -> Callable[..., Result]:
    def run(*args: str) -> Result:
        return CliRunner().invoke(program, ["keys", *args], prog_name="coordd")

    return run


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def states(path: Path | str) -> list[str]:
    return [key.state for key in keyring.load(str(path), {}).keys]


def secrets_of(path: Path | str) -> list[str]:
    return re.findall(r'secret = "([^"]+)"', Path(path).read_text())


# ---- coordd keys


def test_a_new_keyring_is_ours_alone_and_works(tmp_path: Path, keys: Callable[..., Result]) -> None:
    path = tmp_path / "keys.toml"
    done = keys("new", "--output", str(path))
    assert done.exit_code == 0, done.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ring = keyring.load(str(path), {})
    assert [key.state for key in ring.keys] == ["sign"]
    assert len(ring.signing.secret) == 32
    assert ring.signing.id in done.stdout
    assert secrets_of(path)[0] not in done.output
    assert "copy" in done.stderr


def test_a_new_keyring_is_made_whatever_the_umask(tmp_path: Path, keys: Callable[..., Result]) -> None:
    before = os.umask(0)
    try:
        keys("new", "--output", str(tmp_path / "keys.toml"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "keys.toml").stat().st_mode) == 0o600


def test_two_keyrings_have_nothing_in_common(tmp_path: Path, keys: Callable[..., Result]) -> None:
    keys("new", "--output", str(tmp_path / "a.toml"))
    keys("new", "--output", str(tmp_path / "b.toml"))
    one, other = keyring.load(str(tmp_path / "a.toml"), {}), keyring.load(str(tmp_path / "b.toml"), {})
    assert one.signing.id != other.signing.id
    assert one.signing.secret != other.signing.secret


@pytest.mark.parametrize("what", ["file", "link", "dangling link", "directory"])
def test_nothing_is_ever_overwritten(tmp_path: Path, keys: Callable[..., Result], what: str) -> None:
    path = tmp_path / "keys.toml"
    other = tmp_path / "other"
    if what == "file":
        path.write_text("precious")
    elif what == "directory":
        path.mkdir()
    else:
        path.symlink_to(other)
        if what == "link":
            other.write_text("precious")
    done = keys("new", "--output", str(path))
    assert done.exit_code == 1
    assert "exists already, and is not overwritten" in done.stderr
    assert "coordd keys rotate" in done.stderr
    if what in ("file", "link"):
        assert path.read_text() == "precious"
    assert what == "link" or not other.exists()


def test_where_it_cannot_be_written_is_said(tmp_path: Path, keys: Callable[..., Result]) -> None:
    done = keys("new", "--output", str(tmp_path / "missing" / "keys.toml"))
    assert done.exit_code == 1
    assert "keys.toml cannot be written: No such file or directory" in done.stderr


def test_the_default_is_where_the_configuration_has_it(
    tmp_path: Path, keys: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keys("new").exit_code == 0
    assert states(tmp_path / "default.toml") == ["sign"]
    monkeypatch.delenv("COORDD_CLUSTER_KEYRING")
    named = tmp_path / "coordd.toml"
    # Not a valid configuration yet: the keyring that it asks for is what we are about to make.
    named.write_text(f'[cluster]\nbus = "amqps://mq/"\nkeyring = "{tmp_path}/of-config.toml"\n')
    monkeypatch.setenv("COORDD_CONFIG", str(named))
    assert keys("new").exit_code == 0
    assert states(tmp_path / "of-config.toml") == ["sign"]
    monkeypatch.delenv("COORDD_CONFIG")
    assert config_module.keyring_path({}) == "/etc/coordd/keys.toml"


def test_root_makes_it_for_the_daemon(
    tmp_path: Path, keys: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _fd, uid, gid: given.append((uid, gid)))
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: pwd.getpwuid(os.getuid()))
    assert keys("new", "--output", str(tmp_path / "keys.toml")).exit_code == 0
    assert given == [(os.getuid(), os.getgid())]


def test_a_rotation_takes_three_steps_and_ends_where_it_began(tmp_path: Path, keys: Callable[..., Result]) -> None:
    path = tmp_path / "keys.toml"
    keys("new", "--output", str(path))
    first = keyring.load(str(path), {}).signing.id
    expected = [["sign", "accept"], ["accept", "sign"], ["retired", "sign"]]
    for number, after in enumerate(expected, 1):
        done = keys("rotate", str(path))
        assert done.exit_code == 0, done.output
        assert states(path) == after
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert f"step {number} of 3; next: copy this file to every node" in done.stderr
        assert not any(secret in done.output for secret in secrets_of(path))
    assert keyring.load(str(path), {}).signing.id != first
    assert len(secrets_of(path)) == 1, "a retired key leaves no secret behind"
    assert keys("rotate", str(path)).exit_code == 0
    assert states(path) == ["retired", "sign", "accept"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["keys.toml"], "no other file is left"


def test_each_step_understands_the_one_before() -> None:
    ring = Keyring((Key("k0", "sign", b"0" * 32),))
    for number in range(1, 13):
        step = keyring.rotate(ring, Key(f"k{number}", "accept", bytes([number]) * 32))
        before, after = Envelopes(ring, "prod", "a.1"), Envelopes(step.keyring, "prod", "b.2")
        assert after.open(before.seal(b"payload")) == b"payload"
        assert before.open(after.seal(b"payload")) == b"payload"
        assert step.number == (number - 1) % 3 + 1
        ring = step.keyring
    first = Envelopes(Keyring((Key("k0", "sign", b"0" * 32),)), "prod", "a.1")
    with pytest.raises(EnvelopeError):
        Envelopes(ring, "prod", "b.2").open(first.seal(b"payload"))


def test_a_keyring_does_not_grow_for_ever(tmp_path: Path) -> None:
    ring = Keyring((Key("k0", "sign", b"0" * 32),))
    for number in range(1, 60):
        ring = keyring.rotate(ring, Key(f"k{number}", "accept", b"x" * 32)).keyring
        path = write(tmp_path / "keys.toml", keyring.render(ring))
        assert keyring.load(path, {}) == ring
    assert len(ring.keys) <= keyring.RETIRED_MAX + 2 <= KEYS_MAX


def test_a_rotation_that_cannot_be_written_leaves_the_keyring_as_it_was(
    tmp_path: Path, keys: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(write(tmp_path / "keys.toml", GOOD))

    def full(_from: str, _to: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    done = keys("rotate", str(path))
    assert done.exit_code == 1
    assert "No space left on device" in done.stderr
    assert path.read_text() == GOOD
    assert list(tmp_path.iterdir()) == [path]


def test_a_rotation_keeps_the_link_and_is_for_the_owner(
    tmp_path: Path, keys: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path(write(tmp_path / "real.toml", GOOD))
    link = tmp_path / "keys.toml"
    link.symlink_to(real)
    assert keys("rotate", str(link)).exit_code == 0
    assert link.is_symlink()
    assert states(real) == ["sign", "accept"]
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    done = keys("rotate", str(link))
    assert (done.exit_code, states(real)) == (1, ["sign", "accept"])
    assert "belongs to another user" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file to others")
@pytest.mark.parametrize(("owner", "mode"), [("root", 0o640), ("service", 0o600), ("service", 0o440)])
def test_root_rotates_the_keyring_of_the_service_who_reads_the_new_one(
    keys: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, owner: str, mode: int
) -> None:
    """0640 root:coordd is what the package, `coordd init` and the role leave; the umask of root does not count."""
    uid = gid = 54321
    account = pwd.struct_passwd(("coordd", "x", uid, gid, "", "/", "/bin/false"))
    monkeypatch.setattr(onhost, "service_user", lambda: account)
    with tempfile.TemporaryDirectory(prefix="cdk-") as directory:
        Path(directory).chmod(0o755)  # the directories of pytest are closed to other users
        path = Path(write(Path(directory) / "keys.toml", GOOD))
        os.chown(path, uid if owner == "service" else 0, gid)
        path.chmod(mode)
        before = path.stat()
        assert keys("list", str(path)).exit_code == 0
        umask = os.umask(0o077)
        try:
            done = keys("rotate", str(path))
        finally:
            os.umask(umask)
        assert done.exit_code == 0, done.output
        after = path.stat()
        assert after.st_ino != before.st_ino
        assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
        assert onhost.as_user(account, lambda: states(path)) == ["sign", "accept"]

        path.chmod(0o644)
        done = keys("rotate", str(path))
        mend = f"chgrp {gid} {path} && chmod 640 {path}" if owner == "root" else f"chmod 600 {path}"
        assert done.exit_code == 78
        assert f"expected mode 0600, or 0640 with the daemon's own group: {mend};" in done.stderr
        subprocess.run(["sh", "-c", mend], check=True)
        assert onhost.as_user(account, lambda: states(path)) == ["sign", "accept"]


def test_the_list_shows_no_secret(tmp_path: Path, keys: Callable[..., Result]) -> None:
    path = tmp_path / "keys.toml"
    keys("new", "--output", str(path))
    keys("rotate", str(path))
    done = keys("list", str(path))
    assert done.exit_code == 0
    assert [line.split()[1] for line in done.stdout.splitlines()[1:]] == ["sign", "accept"]
    assert not any(secret in done.output for secret in secrets_of(path))


@pytest.mark.parametrize("command", ["rotate", "list"])
def test_a_keyring_that_cannot_be_used_is_a_sentence(tmp_path: Path, keys: Callable[..., Result], command: str) -> None:
    done = keys(command, str(tmp_path / "none.toml"))
    assert done.exit_code == 78
    assert "there is no such keyring" in done.stderr
    assert f"coordd keys new --output {tmp_path}/none.toml" in done.stderr


# ---- the file


def refused(path: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        keyring.load(path, environ or {})
    assert path in str(caught.value)
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o620, 0o602, 0o666, 0o610])
def test_a_keyring_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "keys.toml", GOOD, mode)
    assert f"(mode {mode:04o})" in refused(path)
    assert f"chmod 600 {path}" in refused(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_keyring_of_our_own_is_read(tmp_path: Path, mode: int) -> None:
    assert keyring.load(write(tmp_path / "keys.toml", GOOD, mode), {}).signing == Key("k1", "sign", b"s" * 32)


def test_systemds_own_copy_may_look_open_to_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getegid", lambda: 54321)  # else the group would be our own, which may read
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    path = write(credentials / "keyring", GOOD, 0o440)
    assert keyring.load(path, {"CREDENTIALS_DIRECTORY": str(credentials)}).signing.id == "k1"
    assert "mode 0440" in refused(path)
    beside = write(tmp_path / "keys.toml", GOOD, 0o440)
    assert "mode 0440" in refused(beside, {"CREDENTIALS_DIRECTORY": str(credentials)})


SECOND = GOOD.replace('"k1"', '"k2"').replace('"sign"', '"accept"')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it holds no key"),
        ("key = []", "it holds no key"),
        ("key = 5", "it holds no key"),
        ("key = [1]", "key 1: expected a table [[key]], found the number 1"),
        ("[[keys]]\nid = 'a'", 'unknown key "keys"'),
        ("[[key]]\n", "key 1: id: expected 1 to 8 of the characters"),
        (GOOD.replace('"k1"', '"much-too-long"'), "key 1: id: expected"),
        (GOOD.replace('"k1"', '"k 1"'), "key 1: id: expected"),
        (GOOD.replace('"k1"', "1"), "key 1: id: expected"),
        (GOOD.replace("sign", "signs"), 'key k1: state: expected one of accept, sign, retired, found the text "signs"'),
        (GOOD.replace('"sign"', "[]"), "key k1: state: expected one of"),
        (GOOD.replace("secret =", "secrets ="), 'key 1: unknown key "secrets"; did you mean "secret"?'),
        (GOOD.replace(SECRET, "not base64!"), "key k1: secret: expected 32 to 1024 bytes in base64"),
        (GOOD.replace(SECRET, base64.b64encode(b"short").decode()), "key k1: secret: expected 32 to 1024"),
        (GOOD.replace(SECRET, base64.b64encode(b"x" * 1025).decode()), "key k1: secret: expected 32 to 1024"),
        (GOOD.replace(f'"{SECRET}"', "5"), "key k1: secret: expected 32 to 1024"),
        ('[[key]]\nid = "k1"\nstate = "sign"\n', "key k1: secret: expected 32 to 1024"),
        (GOOD + 'made = "today"\n', "key k1: made: expected an instant such as"),
        (GOOD + "made = 2026-01-01\n", "key k1: made: expected an instant"),
        (GOOD + GOOD, "the key id k1 appears twice"),
        (GOOD + SECOND.replace("accept", "sign"), 'expected exactly one key with state = "sign", found k1, k2'),
        (SECOND, 'expected exactly one key with state = "sign", found none'),
        ("".join([SECOND.replace("k2", f"k{n}") for n in range(KEYS_MAX + 1)]), f"at most {KEYS_MAX} keys"),
        (f'[[key]]\nsecret = "{SECRET}', "it is not TOML"),
    ],
)
def test_what_is_wrong_in_a_keyring_is_named_and_its_secrets_are_not(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(write(tmp_path / "keys.toml", text))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert "there is no such keyring" in refused(str(tmp_path / "none.toml"))
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert "expected a regular file" in refused(str(tmp_path / "fifo"))
    assert "cannot be read" in refused(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be read"):
        keyring.load("/x\0y", {})


def test_what_is_rendered_is_read(tmp_path: Path) -> None:
    ring = Keyring(
        (
            Key("k0", "retired", b"", "2026-01-01T00:00:00Z"),
            Key("k1", "accept", b"a" * 32, "2026-01-01T00:00:00+02:00"),
            Key("k2", "sign", bytes(range(64))),
        )
    )
    assert keyring.load(write(tmp_path / "keys.toml", keyring.render(ring)), {}) == ring
