"""The keeper of a prepared server, of which the daemon and the runner of an attempt speak at the same time."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import pytest

from coordd.runner.connect.keeper import TAKE_S, Keeper


@pytest.mark.parametrize("is_taken", [False, True])
def test_who_is_taken_already_waits_for_nobody(is_taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper: Any = Keeper.__new__(Keeper)
    keeper._give_up_at, keeper._link = math.inf, object() if is_taken else None
    monkeypatch.setattr(os, "read", lambda *_: b"given")

    assert keeper._hear_daemon() is True

    if is_taken:
        assert keeper._give_up_at == math.inf, "the server of an attempt that runs is not ended"
    else:
        assert keeper._give_up_at <= time.monotonic() + TAKE_S
