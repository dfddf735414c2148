"""Network namespaces: this thread, and the processes that it starts, are in another namespace for a while."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)  # os.setns comes with Python 3.12


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """Only the calling thread moves. Sockets and processes that it makes stay in the namespace. "" changes nothing."""
    if not name:
        yield
        return
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(own)
    finally:
        os.close(own)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
