"""The runner's spec is made from the granted definition, and from no other."""

from __future__ import annotations

from typing import Any, cast

import pytest
from support.small_cluster import EPOCH, MONO, Lone, job

from coordd.config.sections import Config
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.ready import Launch
from coordd.errors import UnavailableError
from coordd.launching import LaunchBuilder


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ((job(digest="d2", on_lost="hold"),), "was changed .* expected digest d1, found d2"),
        ((), "was removed .* expected digest d1, found no such job"),
    ],
)
def test_a_definition_that_was_changed_since_the_grant_is_not_launched(jobs: tuple[Any, ...], said: str) -> None:
    builder = LaunchBuilder(Config(), Lone(*jobs).node, lambda *_: "/nowhere", cast(Any, None))
    launch = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "n7", EPOCH, "{}", MONO + 58.0, 60.0, digest="d1")

    with pytest.raises(UnavailableError, match=said):
        builder.spec(launch)
