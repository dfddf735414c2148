"""The bus of one machine: a datagram socket per node in one directory, no broker.

Each node's socket file is named after its full_hostname. Only the directory's owner may enter it (0700), so this bus
needs no signatures. Each peer has a *connected* socket: only such a socket can wait until that peer has room
(net.unix.max_dgram_qlen is 10 datagrams), and the next send fails if the peer is dead.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

import trio

from coordd.adapters.bus.unix_peer import Directory, Outcome, Peer, check_name
from coordd.core.wire.events import MESSAGE_BYTES_MAX
from coordd.errors import ConfigError, LocalProtocolError, UnavailableError

# Maximum number of datagrams that are read before the caller may answer: bounds the latency of the first one.
BURST_MAX = 256

# Maximum number of other nodes on the machine; also bounds file descriptors.
PEERS_MAX = 256

# For how many check intervals a node still reads a socket whose file was removed: a peer that looks as often has moved
# to the new one by then. Of more than OLD_SOCKETS_MAX, the oldest is closed at once.
OLD_SOCKET_INTERVALS = 5.0
OLD_SOCKETS_MAX = 16

# The directory's time stamp is as coarse as the kernel's tick (10 ms at most). So a second change shortly after a first
# may have the same stamp: for this time (seconds) the list is read again.
STAMP_COARSE_S = 0.05

STARTING = "starting"
CONNECTED = "connected"
DISCONNECTED = "disconnected"


class UnixBus:
    """The port's Bus over unix datagrams. Used from the trio thread only; ``publish`` and ``send`` never block."""

    def __init__(self, url: str, full_hostname: str, *, check_interval_s: float = 2.0) -> None:
        """Listen in the directory, which is created (0700) if it is missing.

        Args:
            url: ``unix:///run/coordd/bus``.
            full_hostname: our name, ``hostname.pid``.
            check_interval_s: how often ``receive`` looks for our own file, and for peers.

        Raises:
            ConfigError: the url or name cannot be used, others may write to the directory, or a live node
                has our name.
            UnavailableError: the operating system refuses.
        """
        if not url.startswith("unix:///"):
            raise ConfigError(f"[cluster] bus: {url!r} is not unix:///DIRECTORY")
        self.url = url
        self.state = STARTING
        self.error = ""
        self.full_hostname = full_hostname
        check_name(full_hostname)
        self._directory = Directory(url.removeprefix("unix://"))
        self._check_interval_s = check_interval_s
        self._peers: dict[str, Peer] = {}
        self._told_dead: dict[str, None] = {}  # names whose death was reported; ordered, bounded
        self._hints: deque[str] = deque(maxlen=PEERS_MAX)
        self._hinted = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._deliver: Callable[[bytes], None] = lambda _data: None
        self._sockets: list[socket.socket] = []  # our sockets, newest last; older ones are still read for a while
        self._replaced_at: list[float] = []  # when each but the newest was replaced: time.monotonic()
        self._inode = 0
        self._stamp = (0, 0)  # of the directory, when it was last read
        self._settled = False  # no later change can have that stamp
        self._buffer = bytearray(MESSAGE_BYTES_MAX + 1)
        self._counts = dict.fromkeys(
            ("published", "delivered", "sent", "bytes", "dropped", "rejected", "failed", "rebinds"), 0
        )
        self._bind()

    # ---- sending

    def publish(self, data: bytes, confirmed: Callable[[bool], None] | None = None) -> None:
        """Send to every other node; a message for a slow peer is kept for a while, then dropped and counted.

        Raises LocalProtocolError when the message is empty or over 64 KiB.
        """
        _check_size(data)
        self._look()
        self._counts["published"] += 1
        gone = [peer for peer in self._peers.values() if self._give(peer, data)]
        for peer in gone:
            self._bury(peer, data)
        if confirmed is not None:
            confirmed(True)  # in the kernel's buffers, or kept here for a slow peer

    def send(self, name: str, data: bytes) -> None:
        """Send to one full_hostname; if nobody listens there, ``dead`` is called. Raises as ``publish`` does."""
        _check_size(data)
        self._look()
        self._counts["published"] += 1
        peer = self._peers.get(name)
        if peer is None:
            self._read_directory()
            peer = self._peers.get(name)
        if peer is None:
            if name != self.full_hostname:
                self._tell_dead(name)
        elif self._give(peer, data):
            self._bury(peer, data)

    def peers(self) -> Sequence[str]:
        """The full_hostnames with a listener now, without our own."""
        self._look()
        for peer in list(self._peers.values()):
            if not peer.listens():
                self._bury(peer)
        return tuple(sorted(self._peers))

    def _give(self, peer: Peer, data: bytes) -> bool:
        """Send or keep a message; True when the peer is gone."""
        outcome = peer.send(data)
        if outcome is Outcome.SENT:
            self._counts["sent"] += 1
            self._counts["bytes"] += len(data)
        elif outcome is Outcome.FULL:
            self._counts["dropped"] += peer.keep(data)
            self._start_flush(peer)
        elif outcome is Outcome.GONE:
            return True
        else:
            self._counts["failed"] += 1
        return False

    def _start_flush(self, peer: Peer) -> None:
        if self._nursery is not None and not peer.flushing:
            peer.flushing = True
            self._nursery.start_soon(self._flush, peer)

    async def _flush(self, peer: Peer) -> None:
        """Send kept messages in order, as the peer makes room."""
        try:
            while peer.waiting and peer.sock.fileno() >= 0:  # closed when it was forgotten meanwhile
                await trio.lowlevel.wait_writable(peer.sock)
                outcome = peer.send_waiting()
                if outcome is Outcome.GONE:
                    self._bury(peer)
                    return
                if outcome is Outcome.SENT:
                    self._counts["sent"] += 1
        except trio.ClosedResourceError:
            return  # forgotten meanwhile
        finally:
            peer.flushing = False

    # ---- receiving

    async def receive(
        self,
        deliver: Callable[[bytes], None],
        dead: Callable[[str], None],
        changed: Callable[[bool], None] = lambda _up: None,
    ) -> None:
        """Run for ever: ``deliver`` each message, then b"" once when a burst is over, also after ``dead``.

        Neither is ever called from inside ``publish`` or ``send``.
        """
        assert self._nursery is None, "receive runs once"
        self._deliver = deliver
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self.state = CONNECTED
                for sock in self._sockets:
                    nursery.start_soon(self._read, sock)
                for peer in self._peers.values():
                    if peer.waiting:
                        self._start_flush(peer)
                nursery.start_soon(self._tell, dead)
                while True:
                    self._look()
                    self._close_old()
                    await trio.sleep(self._check_interval_s)
        finally:
            self._nursery = None
            self.state = DISCONNECTED

    async def _read(self, sock: socket.socket) -> None:
        try:
            while sock.fileno() >= 0:
                await trio.lowlevel.wait_readable(sock)
                taken = 0
                # Also take messages that arrived while the caller answered: cheaper than waiting for them.
                while taken < BURST_MAX and sock.fileno() >= 0 and (heard := self._take(sock)):
                    self._deliver(b"")
                    taken += heard
        except trio.ClosedResourceError:
            return  # an old socket of ours, closed

    def _take(self, sock: socket.socket) -> int:
        """Deliver waiting messages, at most BURST_MAX; returns how many."""
        buffer = self._buffer
        view = memoryview(buffer)
        counts = self._counts
        deliver = self._deliver
        heard = 0
        for _ in range(BURST_MAX):
            try:
                size = sock.recv_into(buffer)
            except BlockingIOError:
                break
            if not size:
                continue  # a peer asks whether we are alive
            if size > MESSAGE_BYTES_MAX:
                counts["rejected"] += 1
                continue
            counts["delivered"] += 1
            heard += 1
            deliver(bytes(view[:size]))
        return heard

    async def _tell(self, dead: Callable[[str], None]) -> None:
        while True:
            await self._hinted.wait()
            self._hinted = trio.Event()
            while self._hints:
                dead(self._hints.popleft())
            self._deliver(b"")

    # ---- peers

    def _look(self) -> None:
        """Read the directory again if it has changed: a stat costs 2 µs, and a new peer is seen at once."""
        stamp = self._directory.stamp()
        if stamp is None or stamp != self._stamp or not self._settled:
            self._read_directory()

    def _read_directory(self) -> None:
        try:
            names = self._directory.names()
            if names.get(self.full_hostname, 0) != self._inode:
                self._bind()
                names = self._directory.names()
        except (UnavailableError, ConfigError):
            # Connected peers are still heard. The error is visible in ``state``, and the next look tries again.
            self.state = DISCONNECTED
            self._counts["failed"] += 1
            self._settled = False
            return
        if self._nursery is not None:
            self.state = CONNECTED
        stamp = self._directory.read_stamp
        self._stamp = stamp
        self._settled = time.time() - stamp[1] / 1e9 > STAMP_COARSE_S
        for peer in list(self._peers.values()):
            inode = names.get(peer.name, 0)
            # A file can be removed or replaced while its node lives (tmp cleaners): only the peer itself can tell.
            if peer.inode != inode and not self._follow(peer, inode):
                self._bury(peer)
        for name in names.keys() - self._peers.keys() - {self.full_hostname}:
            if len(self._peers) >= PEERS_MAX:
                self._counts["failed"] += 1
                return
            self._meet(name, names[name])

    def _meet(self, name: str, inode: int) -> Peer | None:
        """Connect to a name in the directory. A file without a listener is removed, and its death reported."""
        try:
            peer = Peer(name, self._directory.address(name), inode)
        except ConfigError:
            return None  # no node of this host can have such a long name
        outcome = peer.connect()
        if outcome is Outcome.SENT:
            self._peers[name] = peer
            self._told_dead.pop(name, None)
            return peer
        if outcome is Outcome.GONE:
            self._directory.remove(name, inode)
            self._tell_dead(name)
        else:
            self._counts["failed"] += 1  # no descriptor left, or not permitted: the next look tries again
            self._settled = False
        return None

    def _follow(self, peer: Peer, inode: int) -> bool:
        """Its file is another one (0: there is none): connect to the new one. False when nobody listens there.

        A live node closes its old sockets after a while (``_close_old``), so a peer must not stay on one.
        """
        if inode and not peer.waiting:  # a task waits for room in the old socket
            old = peer.sock
            if peer.connect() is Outcome.SENT:
                peer.inode = inode
                self._close(old)
                return True
            peer.sock = old
        if inode:
            self._settled = False  # try again
        else:
            peer.inode = inode
        return peer.listens()

    def _bury(self, peer: Peer, unsent: bytes = b"") -> None:
        """Forget a dead peer. If a new process has the same name, it gets the kept messages."""
        if self._peers.get(peer.name) is not peer:
            return
        self._close(peer.sock)
        del self._peers[peer.name]
        inode = self._directory.sockets().get(peer.name, 0)
        successor = self._meet(peer.name, inode) if inode else None
        if not inode:
            self._tell_dead(peer.name)
        if successor is not None:
            for data in (*peer.waiting, unsent):
                if data:
                    self._give(successor, data)

    def _tell_dead(self, name: str) -> None:
        if name in self._told_dead:
            return
        self._told_dead[name] = None
        if len(self._told_dead) > PEERS_MAX:
            del self._told_dead[next(iter(self._told_dead))]
        self._hints.append(name)
        self._hinted.set()

    # ---- our own socket

    def _bind(self) -> None:
        """Listen under our name; also after our file was removed."""
        sock, self._inode = self._directory.bind(self.full_hostname)
        if self._sockets:
            self._counts["rebinds"] += 1
            self._replaced_at.append(time.monotonic())
        self._sockets.append(sock)
        self._close_old()
        if self._nursery is not None:
            self._nursery.start_soon(self._read, sock)

    def _close_old(self) -> None:
        """Close sockets that peers have had the time to leave; they find the newest by its name."""
        while self._replaced_at and (
            len(self._sockets) > OLD_SOCKETS_MAX
            or time.monotonic() - self._replaced_at[0] > OLD_SOCKET_INTERVALS * self._check_interval_s
        ):
            del self._replaced_at[0]
            self._close(self._sockets.pop(0))

    def _close(self, sock: socket.socket) -> None:
        if trio.lowlevel.in_trio_run():
            trio.lowlevel.notify_closing(sock)  # wakes the task that waits for it
        sock.close()

    # ---- the rest of the port

    def statistics(self) -> dict[str, int]:
        """Counters.

        published: calls of publish and send. sent, bytes: datagrams that a peer's socket accepted. delivered: messages
        given to our caller. dropped: our messages to a peer without room. rejected: too large messages from peers.
        failed: peers that could not be reached although they may live. rebinds: our file was gone.
        """
        return {**self._counts, "peers": len(self._peers), "waiting": sum(len(p.waiting) for p in self._peers.values())}

    def close(self) -> None:
        """Close: remove our file, but not a successor's. May be called twice."""
        self.state = DISCONNECTED
        if not self._sockets:
            return
        self._directory.remove(self.full_hostname, self._inode)
        for sock in self._sockets:
            self._close(sock)
        self._sockets.clear()
        self._replaced_at.clear()
        for peer in self._peers.values():
            self._close(peer.sock)
        self._peers.clear()
        self._directory.close()


def _check_size(data: bytes) -> None:
    if not 0 < len(data) <= MESSAGE_BYTES_MAX:
        raise LocalProtocolError(f"a message of {len(data)} bytes; 1 to {MESSAGE_BYTES_MAX} can be sent")
