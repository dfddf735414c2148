"""The independent reader agrees with the product about valid messages, and names what is wrong with others."""

from __future__ import annotations

import io
import json
import os
import pwd
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner, Result

from coordd.adapters import onhost
from coordd.adapters.disk.files import write_atomic
from coordd.cli.coordctl import program
from coordd.cli.wire.reading import Raw, Reader
from coordd.cli.wire.taps import capture_line, captured
from coordd.config.keyring import render
from coordd.core.wire import codec
from coordd.core.wire.envelope import ACCEPT, REFUSALS, RETIRED, SIGN, Envelopes, Key, Keyring
from coordd.core.wire.events import Candidacy, Packet, WorkerElect, WorkerHeartbeat
from coordd.errors import ConfigError

NOW = 1_800_000_000.0
OURS = Key("ours", SIGN, b"o" * 32)
NEXT = Key("next", ACCEPT, b"n" * 32)
OLD = Key("old", RETIRED, b"")
RING = Keyring((OLD, OURS, NEXT))


def packet(seq: int = 1, **changes: Any) -> bytes:
    events = changes.pop("events", [WorkerHeartbeat(clock=7, timestamp=NOW, state="ready")])
    return codec.encode(Packet(1, changes.pop("cluster", "prod"), "n1", 42, "1-a", seq, 0, events))


def sealed(payload: bytes, *, by: Key = OURS, cluster: str = "prod", to: str = "all") -> bytes:
    return Envelopes(Keyring((by._replace(state=SIGN),)), cluster, "x.1").seal(payload, to)


def read(data: bytes, channel: str = "all", ring: Keyring | None = RING) -> dict[str, Any]:
    return Reader("prod", ring).read(Raw(NOW, channel, data))


@pytest.mark.parametrize("by", [OURS, NEXT])
@pytest.mark.parametrize("to", ["all", "n2.7"])
def test_what_a_node_seals_is_verified_and_decoded(by: Key, to: str) -> None:
    said = read(sealed(packet(), by=by, to=to), to)

    assert (said["verified"], said["why"], said["notes"]) == (True, "", [])
    assert (said["key"], said["channel"]) == (by.id, to)
    assert said["packet"]["hostname"] == "n1"
    assert said["packet"]["events"] == [{"type": "worker-heartbeat", "clock": 7, "timestamp": NOW, "state": "ready"}]


def test_a_broadcast_in_an_inbox_is_valid_and_an_inbox_message_elsewhere_is_not() -> None:
    assert read(sealed(packet()), "n2.7")["verified"] is True
    assert read(sealed(packet(), to="n2.7"), "n3.7")["verified"] is False
    assert read(sealed(packet(), to="n2.7"), "all")["verified"] is False


VALID = sealed(packet())


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (VALID[:-1] + bytes([VALID[-1] ^ 1]), "bad_mac"),
        (VALID[:20] + bytes([VALID[20] ^ 1]) + VALID[21:], "bad_mac"),
        (sealed(packet(), cluster="test"), "bad_mac"),
        (sealed(packet(), by=OURS._replace(secret=b"x" * 32)), "bad_mac"),
        (sealed(packet(), by=OURS._replace(id="other")), "unknown_key"),
        (sealed(packet(), by=Key("old", SIGN, b"p" * 32)), "retired_key"),
        (packet(), "not_sealed"),
        (b"CD1" + b"\x02" + VALID[4:], "unknown_algorithm"),
        (VALID[:44], "too_short"),
        (VALID + b"x" * 70_000, "too_large"),
        (b"", "not_sealed"),
    ],
)
def test_what_cannot_be_verified_is_named_and_not_decoded(data: bytes, word: str) -> None:
    said = read(data)

    assert said["verified"] is False
    assert said["why"] == REFUSALS[word]
    assert said["packet"] is None
    assert said["head"] == data[:16].hex()


def test_without_envelopes_packets_are_read_and_envelopes_are_named() -> None:
    assert read(packet(), ring=None)["packet"]["pid"] == 42
    assert read(packet(), ring=None)["verified"] is None
    assert "keyring" in read(VALID, ring=None)["why"]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"\xc1", "not msgpack"),
        (msgpack.packb([1, 2]), "not a packet"),
        (msgpack.packb({"events": [1]}), "not a packet"),
        (msgpack.packb({1: 2}), "not msgpack"),
        (packet() + b"\0", "not msgpack"),
        (b"\x91" * 40 + b"\x01", "not msgpack: ValueError: nested"),
        (b"\x91" * 5000 + b"\x01", "not msgpack"),
        (b"\xdd\xff\xff\xff\xff", "not msgpack"),
        (b"\xa1\xff", "not msgpack"),
    ],
)
def test_a_payload_that_is_not_a_packet_is_named(payload: bytes, why: str) -> None:
    said = read(sealed(payload))

    assert said["verified"] is True
    assert said["why"].startswith(why)
    assert said["packet"] is None


def test_notes_say_what_nodes_refuse() -> None:
    reader = Reader("prod", RING)
    elect = WorkerElect(id="x", topic="drill", candidacy=Candidacy(0, 1, "n1.42"), clock=1, timestamp=NOW - 100)

    def notes(payload: bytes) -> list[str]:
        return list(reader.read(Raw(NOW, "all", sealed(payload)))["notes"])

    assert notes(packet(1)) == []
    assert notes(packet(1)) == ["repeated: seq 1 of this sender was heard before"]
    assert notes(packet(2, cluster="test")) == ["of the cluster 'test': nodes of prod drop it"]
    assert notes(packet(3, events=[elect])) == ["worker-elect was stamped 100 s before: nodes refuse it"]
    assert notes(msgpack.packb({"v": 2, "cluster": "prod", "events": []}))[0].startswith("protocol 2")


def test_values_that_json_cannot_hold_become_text() -> None:
    said = read(msgpack.packb({"v": 1, "events": [{"type": "x", "a": float("nan"), "b": b"\0", "c": None}]}), ring=None)

    assert json.loads(json.dumps(said, allow_nan=False))["packet"]["events"] == [
        {"type": "x", "a": "nan", "b": "b'\\x00'", "c": None}
    ]


# ---- the command, on captures


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """A capture with a valid message, one to an inbox, and a forged one; and the configuration to read it with."""
    keyring = tmp_path / "keys.toml"
    write_atomic(str(keyring), render(Keyring((OURS._replace(made="2027-01-15T08:00:00Z"),))).encode())
    keyring.chmod(0o600)
    (tmp_path / "coordd.toml").write_text(
        '[cluster]\nname = "prod"\nbus = "amqp://127.0.0.1:1/"\nledger = "redis://127.0.0.1:1/0"\n'
        f'keyring = "{keyring}"\n'
    )
    messages = [
        Raw(NOW, "all", VALID),
        Raw(NOW, "n2.7", sealed(packet(9), to="n2.7")),
        Raw(NOW, "all", sealed(packet(10), by=Key("evil", SIGN, b"e" * 32))),
    ]
    path = tmp_path / "capture.jsonl"
    path.write_bytes(b"".join([capture_line(raw) for raw in messages]))
    return path


def wire(capture: Path, *args: str, data: bytes = b"") -> Result:
    argv = ["wire", "--config", str(capture.parent / "coordd.toml"), *args]
    return CliRunner().invoke(program, argv, input=data, prog_name="coordctl")


def test_a_table_names_the_forged_message_and_the_exit_code_says_so(capture: Path) -> None:
    done = wire(capture, str(capture))

    lines = done.stdout.splitlines()
    assert done.exit_code == 1
    assert len(lines) == 3
    assert "worker-heartbeat" in lines[0]
    assert "key=ours" in lines[0]
    assert "to=n2.7" in lines[1]
    assert "not verified: no key of that id in the keyring key=evil" in lines[2]
    assert done.stderr == "3 messages: 2 verified; 1 no key of that id in the keyring\n"


def test_json_is_one_document_and_jsonl_one_object_a_line(capture: Path) -> None:
    document = json.loads(wire(capture, str(capture), "-o", "json").stdout)
    lines = [
        json.loads(line) for line in wire(capture, "-", "-o", "jsonl", data=capture.read_bytes()).stdout.splitlines()
    ]

    assert document == lines
    assert [said["verified"] for said in document] == [True, True, False]


def test_types_choose_and_counts_bound(capture: Path) -> None:
    assert wire(capture, str(capture), "--type", "task-sent").stdout == ""
    assert wire(capture, str(capture), "--count", "1").stderr == "1 message: 1 verified\n"
    assert wire(capture, str(capture), "--count", "1").exit_code == 0


def test_a_capture_can_be_saved_again_for_its_owner_alone(capture: Path) -> None:
    again = capture.parent / "again"

    assert wire(capture, str(capture), "--save", str(again)).exit_code == 1
    assert again.read_bytes() == capture.read_bytes()
    assert again.stat().st_mode & 0o777 == 0o600
    assert wire(capture, str(capture), "--save", str(again)).exit_code == 1, "an existing file is not overwritten"
    assert again.read_bytes() == capture.read_bytes()


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"at": "x", "channel": "all", "data": ""}', '{"at": 1e999, "channel": "", "data": ""}']
)
def test_a_broken_capture_is_named_by_its_line(capture: Path, line: str) -> None:
    capture.write_text(f"\n{line}\n")

    done = wire(capture, str(capture))

    assert done.exit_code == 78
    assert "line 2: expected" in done.stderr


def test_a_bus_that_is_away_and_a_keyring_that_is_missing_are_named(capture: Path) -> None:
    assert wire(capture).exit_code == 69
    assert "127.0.0.1:1" in wire(capture).stderr
    os.unlink(capture.parent / "keys.toml")
    done = wire(capture, str(capture))
    assert done.exit_code == 78
    assert "there is no such keyring" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file to others")
def test_root_reads_the_files_of_the_service(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package leaves the keyring and the passwords root:coordd 0640, and gives the service its directories."""
    uid = gid = 54321
    account = pwd.struct_passwd(("coordd", "x", uid, gid, "", "/", "/bin/false"))
    monkeypatch.setattr(onhost, "service_user", lambda: account)
    state, password = capture.parent / "state", capture.parent / "mq.password"
    state.mkdir(mode=0o700)
    os.chown(state, uid, gid)
    password.write_text("hidden")
    for path in (password, capture.parent / "keys.toml"):
        os.chown(path, 0, gid)
        path.chmod(0o640)
    with open(capture.parent / "coordd.toml", "a", encoding="utf-8") as file:
        file.write(f'bus_password_file = "{password}"\n[node]\nstate_dir = "{state}"\n')

    done = wire(capture, str(capture))
    assert done.exit_code == 1, done.stderr
    assert done.stderr.startswith("3 messages: 2 verified")
    heard = wire(capture, "--for", "0.1")
    assert heard.exit_code == 69
    assert "127.0.0.1:1" in heard.stderr


def test_an_instant_that_no_number_holds_is_named_with_its_line() -> None:
    line = b'{"at": 1%b, "channel": "all", "data": ""}' % (b"0" * 400)
    with pytest.raises(ConfigError, match="x: line 1: expected"):
        list(captured(io.BytesIO(line), "x"))
