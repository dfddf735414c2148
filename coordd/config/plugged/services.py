"""Reads ``[[service]]``: services of packages that the daemon starts and watches."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import msgspec

from coordd.config import values
from coordd.plugins import SERVICES

SERVICES_MAX = 20
SECONDS_MIN, SECONDS_MAX = 1.0, 3600.0
MEMORY_MIN, MEMORY_MAX = 64 * 2**20, 64 * 2**30


class ServiceTable(msgspec.Struct, frozen=True, kw_only=True):
    """One service, by the name of its entry point.

    ``start_timeout_s``: seconds until it must say that it is ready. ``watchdog_s``: afterwards it must say something
    this often; 0.0: it need not. ``memory``: bytes of its data.
    """

    name: str
    start_timeout_s: float = 30.0
    watchdog_s: float = 0.0
    memory: int = 512 * 2**20


def read_services(tables: Any, report: Callable[[str], None]) -> tuple[ServiceTable, ...]:
    """The services; each problem is reported in a sentence."""
    services: dict[str, ServiceTable] = {}
    for said, wrong in read_tables("service", tables, SERVICES_MAX, _READERS, services, report):
        if not wrong:
            renamed = {"start_timeout": "start_timeout_s", "watchdog": "watchdog_s"}
            services[said["name"]] = ServiceTable(**{renamed.get(key, key): value for key, value in said.items()})
    return tuple(services.values())


def read_tables(
    section: str,
    tables: Any,
    most: int,
    readers: Mapping[str, values.Reader],
    known: Container[str],
    report: Callable[[str], None],
    *,
    what: str = "",
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """What each table of a list says, and what is wrong with it. The caller may add to that before it takes the next
    one; then it is reported. ``most``: how many there may be. ``known``: the names so far. ``what``: one of them, for
    people; "": the section's name.
    """
    what = what or section
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        report(f"expected [[{section}]], a list of tables: two brackets on each side")
        return
    if len(tables) > most:
        report(f"expected at most {most} {what}s, found {len(tables)}")
        return
    for number, table in enumerate(tables, 1):
        wrong: list[str] = []
        said = values.read_table(table, readers, lambda key, message: wrong.append(f"{key}: {message}"))  # noqa: B023 - it is called here
        if "name" not in table:
            wrong.append("name: expected it, found nothing")
        elif said.get("name") in known:
            wrong.append(f'name: there is another {what} "{said["name"]}"')
        yield said, wrong
        for message in wrong:
            report(f"{what} {number}: {message}")


def _name(value: object) -> str:
    return values.brought(value, SERVICES, "a service")


def read_memory(value: object) -> int:
    """Bytes of a process. Raises ValueError."""
    size = values.parse_size(values.text(value))
    if not MEMORY_MIN <= size <= MEMORY_MAX:
        raise ValueError(f"expected 64M to 64G, found {values.found(value)}")
    return size


# The reader of a limit in seconds.
read_seconds = values.seconds(SECONDS_MIN, SECONDS_MAX)

_READERS: dict[str, values.Reader] = {
    "name": _name,
    "start_timeout": read_seconds,
    "watchdog": lambda value: 0.0 if value in (0, "0") else read_seconds(value),
    "memory": read_memory,
}
