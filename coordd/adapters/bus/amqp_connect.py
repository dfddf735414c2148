"""aio-pika's connection, closed also where it could not be opened.

Its own ``connect`` leaves a connection that failed. When that is collected in a thread without a loop, such as trio's,
it makes a loop there that nobody runs or closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

from aio_pika.connection import Connection, make_url

from coordd.adapters.bus.brokered_bus import Where

# The timeout (seconds) of a farewell.
FAREWELL_S = 1.0


async def connect(
    *, where: Where, password: str, tls: ssl.SSLContext | None, name: str, heartbeat_s: int | None = None
) -> Any:
    """An open connection; ``name`` is for people. Raises what aio-pika raises, and leaves nothing open then."""
    url = make_url(
        host=where.host,
        port=where.port,
        login=where.user,
        password=password,
        virtualhost=where.space,
        ssl=tls is not None,
        heartbeat=heartbeat_s,
    )
    connection = Connection(url, ssl_context=tls, client_properties={"connection_name": name})
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
