"""The unix bus: its promises beyond the port, about files, processes and buffer space."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from contract.bus.listeners import receiving, run, until
from coordd.adapters.bus import unix_peer
from coordd.adapters.bus.unix_bus import OLD_SOCKETS_MAX, PEERS_MAX, UnixBus
from coordd.core.wire.events import MESSAGE_BYTES_MAX
from coordd.errors import ConfigError, LocalProtocolError

REPOSITORY = str(Path(__file__).parents[3])


class UnixLab:
    """A bus directory, and ways to disturb it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"unix://{path}"
        self.buses: list[UnixBus] = []

    def bus(self, name: str, check_interval_s: float = 0.02) -> UnixBus:
        bus = UnixBus(self.url, name, check_interval_s=check_interval_s)
        self.buses.append(bus)
        return bus

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """Start another process with a bus. The process listens when this returns."""
        script = (
            "import sys, trio; from coordd.adapters.bus.unix_bus import UnixBus\n"
            "async def main():\n"
            "    bus = UnixBus(sys.argv[1], sys.argv[2]); print('here', flush=True)\n"
            "    await bus.receive(lambda d: bus.publish(b're:' + d) if d else None, lambda n: None)\n"
            "trio.run(main)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", script, self.url, name],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": REPOSITORY},
        )
        assert process.stdout
        assert process.stdout.readline() == b"here\n"
        return process

    def names(self) -> set[str]:
        return {entry.name for entry in self.path.iterdir()}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[UnixLab]:
    made = UnixLab(tmp_path / "bus")
    yield made
    for bus in made.buses:
        bus.close()


class TestUnixBus:
    def test_the_directory_is_ours_alone(self, lab: UnixLab) -> None:
        lab.bus("a.1")
        assert lab.path.stat().st_mode & 0o777 == 0o700
        assert lab.names() == {"a.1"}
        assert (lab.path / "a.1").stat().st_mode & 0o777 == 0o600

    def test_a_directory_that_others_may_write_to_is_refused(self, lab: UnixLab) -> None:
        lab.path.mkdir()
        lab.path.chmod(0o777)
        with pytest.raises(ConfigError, match=r"others may write to .*mode 0777"):
            lab.bus("a.1")

    @pytest.mark.parametrize("name", ["", "a/b.1", ".hidden.1", "a\0.1"])
    def test_a_name_that_is_no_file_name_is_refused(self, lab: UnixLab, name: str) -> None:
        with pytest.raises(ConfigError, match="name"):
            lab.bus(name)

    @pytest.mark.parametrize("url", ["unix://bus", "amqp://x", "/run/bus"])
    def test_another_url_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigError, match="unix:///DIRECTORY"):
            UnixBus(url, "a.1")

    def test_a_live_node_keeps_its_name(self, lab: UnixLab) -> None:
        lab.bus("a.1")
        with pytest.raises(ConfigError, match=r"listens at .*a\.1 already"):
            lab.bus("a.1")

    def test_a_long_path_is_no_obstacle(self, tmp_path: Path) -> None:
        async def main() -> None:
            lab = UnixLab(tmp_path / ("d" * 120) / "bus")
            a, b = lab.bus("a.1"), lab.bus("b.2")
            async with receiving(a, b) as (_, heard_b):
                a.publish(b"far")
                await until(lambda: heard_b.messages)
            a.close()
            b.close()
            assert lab.names() == set()

        run(main)

    def test_a_name_that_is_too_long_for_a_socket_is_refused(self, lab: UnixLab) -> None:
        with pytest.raises(ConfigError, match="too long"):
            lab.bus("n" * 120 + ".1")

    def test_killed_process_is_told_dead_once_and_its_file_removed(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1", check_interval_s=60.0)
            async with receiving(a) as (heard_a,):
                with lab.process("b.2") as b:
                    a.publish(b"ping")
                    await until(lambda: b"re:ping" in heard_a.messages)
                    b.kill()
                a.publish(b"who answers?")
                await until(lambda: heard_a.dead)
                a.publish(b"and now?")
                a.send("b.2", b"really?")
                bursts = heard_a.bursts
                await until(lambda: heard_a.bursts >= bursts)
                assert heard_a.dead == ["b.2"]
                assert lab.names() == {"a.1"}
                assert list(a.peers()) == []

        run(main)

    def test_a_stale_file_is_removed_by_whoever_finds_it(self, lab: UnixLab) -> None:
        lab.bus("a.1")
        with lab.process("b.2") as b:
            b.kill()
        assert lab.names() == {"a.1", "b.2"}
        late = lab.bus("c.3")
        assert list(late.peers()) == ["a.1"]
        assert lab.names() == {"a.1", "c.3"}

    def test_death_is_told_outside_of_publish(self, lab: UnixLab) -> None:
        async def main() -> None:
            a, b = lab.bus("a.1"), lab.bus("b.2")
            async with receiving(a) as (heard_a,):
                a.publish(b"here?")
                b.close()
                a.publish(b"gone")
                assert heard_a.dead == []  # the caller has not finished its own work
                await until(lambda: heard_a.dead == ["b.2"])
                assert heard_a.bursts  # so that the caller flushes the messages that result from it

        run(main)

    def test_a_new_process_with_the_same_name_is_not_dead(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1", check_interval_s=60.0)
            async with receiving(a) as (heard_a,):
                for word in (b"first", b"second"):
                    with lab.process("b.2") as b:
                        a.publish(word)
                        await until(lambda word=word: b"re:" + word in heard_a.messages)  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
                        b.kill()
                assert heard_a.dead == []

        run(main)

    def test_a_new_node_is_spoken_to_at_once(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1", check_interval_s=60.0)
            for n in range(30):
                b = lab.bus(f"b.{n + 2}")
                a.publish(b"hello")
                async with receiving(b) as (heard_b,):
                    await until(lambda heard_b=heard_b: heard_b.messages)  # type: ignore[misc]  # mypy infers no type for a lambda with defaults

        run(main)

    def test_a_new_node_is_seen_behind_a_time_stamp_that_has_not_moved(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1", check_interval_s=60.0)
            tick = lab.path.stat().st_mtime_ns + 3600 * 10**9  # as if the time stamp of the directory stayed the same
            for n in range(3):
                os.utime(lab.path, ns=(tick, tick))
                a.publish(b"who is there?")
                b = lab.bus(f"b.{n + 2}")
                os.utime(lab.path, ns=(tick, tick))
                a.publish(b"hello")
                async with receiving(b) as (heard_b,):
                    await until(lambda heard_b=heard_b: heard_b.messages)  # type: ignore[misc]  # mypy infers no type for a lambda with defaults

        run(main)

    def test_one_who_leaves_is_missed_without_a_word_being_sent(self, lab: UnixLab) -> None:
        async def main() -> None:
            a, b = lab.bus("a.1"), lab.bus("b.2")
            async with receiving(a) as (heard_a,):
                a.publish(b"here?")
                b.close()
                await until(lambda: heard_a.dead == ["b.2"])

        run(main)

    def test_what_waited_for_a_process_goes_to_the_next_of_its_name(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1", check_interval_s=60.0)
            async with receiving(a) as (heard_a,):
                with lab.process("b.2") as b:
                    b.send_signal(signal.SIGSTOP)
                    for n in range(50):
                        a.publish(b"%d" % n)
                    b.kill()
                with lab.process("b.2") as b:  # all this happens before our loop runs again
                    await until(lambda: b"re:49" in heard_a.messages)
                    b.kill()
                assert heard_a.dead == []

        run(main)

    def test_our_file_is_made_again_when_a_cleaner_took_it(self, lab: UnixLab) -> None:
        async def main() -> None:
            a, b = lab.bus("a.1"), lab.bus("b.2")
            async with receiving(a, b) as (heard_a, heard_b):
                b.publish(b"before")
                await until(lambda: heard_a.messages)
                for _ in range(4):
                    (lab.path / "a.1").unlink()
                    await until(lambda: "a.1" in lab.names())
                b.publish(b"after")
                await until(lambda: b"after" in heard_a.messages)
                assert a.statistics()["rebinds"] == 4
                await until(lambda: len(a._sockets) == 1)
                c = lab.bus("c.3")
                c.publish(b"new here")
                await until(lambda: b"new here" in heard_a.messages)
                assert heard_b.dead == []

        run(main)

    def test_a_peer_follows_to_the_new_file_so_it_never_takes_a_live_node_for_dead(self, lab: UnixLab) -> None:
        async def main() -> None:
            a, b = lab.bus("a.1"), lab.bus("b.2")
            async with receiving(a, b) as (heard_a, heard_b):
                for _ in range(OLD_SOCKETS_MAX - 1):  # without a wait: neither loop runs meanwhile
                    (lab.path / "a.1").unlink()
                    assert b.peers() == ("a.1",)  # there is no file, and the old socket still listens
                    a.peers()  # makes the file again
                assert b.peers() == ("a.1",)
                b.publish(b"after")
                await until(lambda: b"after" in heard_a.messages)
                await until(lambda: len(a._sockets) == 1)
                assert b.peers() == ("a.1",)
                assert heard_b.dead == []

        run(main)

    def test_the_directory_is_made_again_when_a_cleaner_took_it(self, lab: UnixLab) -> None:
        async def main() -> None:
            a, b = lab.bus("a.1"), lab.bus("b.2")
            async with receiving(a, b) as (heard_a, heard_b):
                for path in lab.path.iterdir():
                    path.unlink()
                lab.path.rmdir()
                await until(lambda: lab.path.exists() and lab.names() == {"a.1", "b.2"})
                a.publish(b"again")
                b.publish(b"again")
                await until(lambda: heard_a.messages and heard_b.messages)
                c = lab.bus("c.3")
                assert sorted(c.peers()) == ["a.1", "b.2"]

        run(main)

    def test_a_directory_that_cannot_be_made_again_is_seen_in_the_state(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1")
            async with receiving(a):
                for path in lab.path.iterdir():
                    path.unlink()
                lab.path.rmdir()
                lab.path.write_text("in the way")
                await until(lambda: a.state == "disconnected")
                a.publish(b"into the void")
                lab.path.unlink()
                await until(lambda: a.state == "connected")
                assert lab.names() == {"a.1"}

        run(main)

    def test_close_removes_our_file_and_no_successor(self, lab: UnixLab) -> None:
        a = lab.bus("a.1", check_interval_s=60.0)
        (lab.path / "a.1").unlink()
        other = lab.bus("a.1")
        a.close()
        assert lab.names() == {"a.1"}
        other.close()
        assert lab.names() == set()

    def test_other_files_are_left_alone(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1")
            (lab.path / "notes.txt").write_text("keep me")
            (lab.path / "folder").mkdir()
            (lab.path / "link").symlink_to("a.1")
            async with receiving(a) as (heard_a,):
                a.publish(b"hello")
                assert list(a.peers()) == []
                assert lab.names() == {"a.1", "notes.txt", "folder", "link"}
                assert heard_a.dead == []

        run(main)

    def test_what_is_too_large_or_empty_is_not_delivered(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1")
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
                stranger.connect(str(lab.path / "a.1"))
                async with receiving(a) as (heard_a,):
                    stranger.send(b"x" * (MESSAGE_BYTES_MAX + 1))
                    stranger.send(b"")
                    stranger.send(b"good")
                    await until(lambda: heard_a.messages)
                    assert heard_a.messages == [b"good"]
                    assert a.statistics()["rejected"] == 1

        run(main)

    def test_sending_what_is_too_large_or_empty_is_our_bug(self, lab: UnixLab) -> None:
        a = lab.bus("a.1")
        for size in (0, MESSAGE_BYTES_MAX + 1):
            with pytest.raises(LocalProtocolError, match=f"a message of {size} bytes"):
                a.publish(b"x" * size)
            with pytest.raises(LocalProtocolError, match=f"a message of {size} bytes"):
                a.send("b.2", b"x" * size)

    def test_the_newest_messages_wait_for_a_hung_node(self, lab: UnixLab) -> None:
        count = 2 * unix_peer.WAITING_LENGTH_MAX

        async def main() -> None:
            a, b = lab.bus("a.1"), lab.bus("hung.2")
            async with receiving(a):
                for n in range(count):
                    a.publish(b"%d" % n)
                async with receiving(b) as (heard_b,):
                    await until(lambda: b"%d" % (count - 1) in heard_b.messages)
            newest = [b"%d" % n for n in range(count - unix_peer.WAITING_LENGTH_MAX, count)]
            assert heard_b.messages[-unix_peer.WAITING_LENGTH_MAX :] == newest
            assert a.statistics()["dropped"] == count - len(heard_b.messages)

        run(main)

    def test_waiting_for_room_does_not_spin(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1", check_interval_s=60.0)
            b = lab.bus("hung.2", check_interval_s=60.0)
            tries = 0
            send_waiting = unix_peer.Peer.send_waiting

            def counted(peer: unix_peer.Peer) -> unix_peer.Outcome:
                nonlocal tries
                tries += 1
                return send_waiting(peer)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(unix_peer.Peer, "send_waiting", counted)
                async with receiving(a):
                    for n in range(30):
                        a.publish(b"%d" % n + b"x" * 60_000)
                    for _ in range(200):  # the loop runs, and nobody reads
                        await trio.lowlevel.checkpoint()
                    assert tries <= 2
                    async with receiving(b) as (heard_b,):
                        await until(lambda: len(heard_b.messages) == 30)
                    assert tries <= 60
                    assert a.statistics()["dropped"] == 0

        run(main)

    def test_what_waits_for_a_hung_node_is_bounded_in_bytes(self, lab: UnixLab) -> None:
        a, _b = lab.bus("a.1"), lab.bus("hung.2")
        for _ in range(200):
            a.publish(b"x" * 60_000)
        (peer,) = a._peers.values()
        assert peer.waiting_bytes <= unix_peer.WAITING_BYTES_MAX
        assert peer.waiting_bytes == sum(map(len, peer.waiting))
        assert a.statistics()["dropped"] == 200 - len(peer.waiting) - a.statistics()["sent"]

    def test_a_hung_process_that_dies_is_told_dead(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1", check_interval_s=60.0)
            async with receiving(a) as (heard_a,):
                with lab.process("b.2") as b:
                    b.send_signal(signal.SIGSTOP)
                    for n in range(100):
                        a.publish(b"%d" % n)
                    assert heard_a.dead == []
                    b.kill()
                    await until(lambda: heard_a.dead == ["b.2"])  # nothing more is sent: the wait for buffer space ends

        run(main)

    def test_without_a_free_descriptor_a_peer_is_met_later(self, lab: UnixLab) -> None:
        async def main() -> None:
            a = lab.bus("a.1")
            lab.bus("b.2")

            def none_left() -> socket.socket:
                raise OSError(24, "Too many open files")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(unix_peer, "new_socket", none_left)
                a.publish(b"hello")
                assert a._peers == {}
                assert a.statistics()["failed"] == 1
            assert list(a.peers()) == ["b.2"]

        run(main)

    def test_no_more_peers_than_the_bound(self, lab: UnixLab) -> None:
        a = lab.bus("a.1")
        strangers = []
        for n in range(PEERS_MAX + 3):
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            stranger.bind(str(lab.path / f"s.{n}"))
            strangers.append(stranger)
        try:
            assert len(a.peers()) == PEERS_MAX
        finally:
            for stranger in strangers:
                stranger.close()

    def test_no_descriptor_is_left_open(self, lab: UnixLab) -> None:
        async def main() -> None:
            before = len(os.listdir("/proc/self/fd"))
            for n in range(5):
                a, b = lab.bus(f"a.{n + 1}"), lab.bus(f"b.{n + 1}")
                async with receiving(a, b) as (_, heard_b):
                    a.publish(b"x")
                    await until(lambda heard_b=heard_b: heard_b.messages)  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
                    b.close()
                    a.publish(b"y")
                a.close()
            assert len(os.listdir("/proc/self/fd")) == before

        run(main)
