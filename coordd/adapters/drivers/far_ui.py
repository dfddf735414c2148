"""Asks a Spark driver on a cluster how far it is, on the way that its cluster manager shows.

On YARN that is the proxy of the ResourceManager, on Kubernetes the API server's proxy to the driver's pod, on
Standalone a port of the driver's worker. As on this machine (ui.py), the UI must name the run and the attempt that
stand in the driver's conf; nobody else's answer counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from coordd.adapters.cluster.http import DriverPlace, ShowsDrivers
from coordd.adapters.drivers.ui import OFF, counted, is_of, is_off, listed, properties_of, ui_ports
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Applications, Driven, Seen

NO_WAY = "Hadoop's yarn command ([spark] yarn_command) leads to no driver, so nobody can ask it how far it is"


class FarUi:
    """ports.DriverUi: one attempt's driver on a cluster."""

    def __init__(self, driven: Driven, open_manager: Callable[[], Applications]) -> None:
        """``open_manager`` raises CoorddError."""
        self._driven = driven
        self._open_manager = open_manager
        self._manager: Applications | None = None
        self._place: tuple[DriverPlace, str] | None = None  # where it is, and the application's path there

    def look(self, application_id: str, within_s: float) -> Seen:
        """How far it is. Raises UnavailableError (later perhaps) or RefusedError (never for this attempt)."""
        if is_off(self._driven.conf):
            raise RefusedError(OFF, kind="no_ui")
        if not application_id:
            raise UnavailableError("its application is not known yet")
        deadline = time.monotonic() + within_s
        if self._place is None:
            self._place = self._find(application_id, deadline)
        place, path = self._place
        try:
            return counted(_asked(place, f"{path}/jobs", deadline), place.address)
        except UnavailableError:
            self._place = None  # a driver that is tried again on the cluster is elsewhere
            raise

    def _find(self, ident: str, deadline: float) -> tuple[DriverPlace, str]:
        if self._manager is None:
            self._manager = self._open_manager()
        if not isinstance(self._manager, ShowsDrivers):
            raise RefusedError(NO_WAY, kind="no_ui")
        why = "its driver has no UI yet"
        for place in self._manager.drivers_places(ident, ui_ports(self._driven.conf)):
            try:
                for application in listed(_asked(place, "/api/v1/applications", deadline)):
                    known = str(application.get("id", "")) if isinstance(application, dict) else ""
                    path = f"/api/v1/applications/{quote(known, safe='')}"
                    if known and is_of(properties_of(_asked(place, f"{path}/environment", deadline)), self._driven):
                        return place, path
            except UnavailableError as exc:
                why = str(exc)
        raise UnavailableError(why)


def _asked(place: DriverPlace, path: str, deadline: float) -> Any:
    """One question, as JSON. Raises UnavailableError."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise UnavailableError(f"{place.address}: no answer in time")
    answer = place.ask(path, left_s)
    if answer.status != 200:
        raise UnavailableError(f"{place.address} answers {answer.status} instead of the driver's progress")
    try:
        return json.loads(answer.content)
    except (ValueError, RecursionError) as exc:
        raise UnavailableError(f"{place.address} does not answer in JSON: a page of the proxy, or it starts") from exc
