"""aio-pika's connection, closed also where it could not be opened.

Its own ``connect`` leaves a connection that failed. When that is collected in a thread without a loop, such as trio's,
it makes a loop there that nobody runs or closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import Any

from aio_pika.connection import Connection, make_url
from yarl import URL

from coordd.adapters.bus.where import Where

# Both log to stderr what we put into one sentence for people.
for _name in ("aiormq", "aio_pika"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

# The timeout (seconds) of a farewell.
FAREWELL_S = 1.0


def url_of(where: Where, password: str, tls: ssl.SSLContext | None, name: str, heartbeat_s: int | None = None) -> URL:
    """As aio-pika takes it; ``name``: of the connection, for people."""
    return make_url(
        host=where.host,
        port=where.port,
        login=where.user,
        password=password,
        virtualhost=where.space,
        ssl=tls is not None,
        heartbeat=heartbeat_s,
        name=name,
    )


async def connect(
    *,
    where: Where,
    password: str,
    tls: ssl.SSLContext | None,
    name: str,
    heartbeat_s: int | None = None,
    transport: Any = None,
) -> Any:
    """An open connection; ``name`` is for people. ``transport``: aiormq's TransportFactory; None: its own. Raises what
    aio-pika raises, and leaves nothing open then.
    """
    connection = Connection(url_of(where, password, tls, name, heartbeat_s), ssl_context=tls)
    if transport is not None:
        connection.kwargs["transport_factory"] = transport
    try:
        await connection.connect()
    except BaseException:
        await farewell(connection)
        raise
    return connection


async def farewell(connection: Any) -> None:
    """Close it, however that goes."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(FAREWELL_S):
            await connection.close()
