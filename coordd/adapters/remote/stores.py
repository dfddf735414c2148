"""Which store an address names."""

from __future__ import annotations

from collections.abc import Sequence

from coordd.ports import RemoteStore


def open_store(url: str, put: Sequence[str], get: Sequence[str], spool: str) -> RemoteStore:
    """The store of a checked address (config/sinks). The commands, where there are any, come first."""
    scheme = url.partition("://")[0]
    # A daemon without sinks loads none of them.
    if scheme == "file":
        from coordd.adapters.remote.directory import DirectoryStore

        return DirectoryStore(url)
    if scheme in ("webhdfs", "swebhdfs") and not put:
        from coordd.adapters.remote.webhdfs import WebHdfsStore

        return WebHdfsStore(url)
    from coordd.adapters.remote.command import CommandStore

    return CommandStore(url, put, get, spool)
