"""What people see of inputs that have failed."""

from __future__ import annotations

import pytest

from coordd.core.ledger.inputs.memory import Seen
from coordd.core.ledger.rows import Hold
from coordd.resilience import _short
from coordd.services.guarding.inputs import _view


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("bad ü.csv", "bad ü.csv"),
        ("C:\\new\\ü", "C:\\new\\ü"),
        ("a\x1bb", "a\\x1bb"),
        ("no utf-8 \udcff", "no utf-8 \\udcff"),
        ("cut \\u00", "cut \\u00"),
    ],
)
def test_an_input_is_shown_as_its_driver_named_it(key: str, shown: str) -> None:
    """The ledger keeps ASCII."""
    seen = Seen(2, 2, _short(key, 300), _short("ValueError('ü')", 300))
    assert _view("input:etl:0", Hold(by="r#1"), seen)["reason"] == f"{shown}: ValueError('ü')"


def test_a_text_that_was_not_escaped_stays() -> None:
    assert _view("input:etl:0", Hold(by="r#1"), Seen(2, 2, "x \\u00", ""))["reason"] == "x \\u00: "
