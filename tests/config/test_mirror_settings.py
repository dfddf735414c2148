"""[mirror]: settings that are refused, with the key and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.written import refused, write
from coordd.config.settings import load

WRONG = [
    ('[mirror]\nurl = "redis://h/0"\n', "mirror.url", "expected a URL that starts with one of amqp, amqps"),
    ('[mirror]\nurl = "amqp://far.example/"\n', "mirror.url", "amqp:// to far.example is not encrypted"),
    ('[mirror]\nurl = "bus"\n', "mirror.url", '"bus" needs RabbitMQ as the bus, and [cluster] bus is unix://'),
    ('[mirror]\nexchange = "a b"\n', "mirror.exchange", "expected up to 200 of the characters"),
    ('[mirror]\npassword_file = "/none"\n', "mirror.password_file", "it cannot be read"),
]


@pytest.mark.parametrize(("text", "setting", "sentence"), WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, setting: str, sentence: str) -> None:
    said = refused(write(tmp_path / "coordd.toml", text))
    assert setting in said
    assert sentence in said


def test_the_broker_of_the_bus_needs_no_second_address(tmp_path: Path) -> None:
    cluster = '[cluster]\nbus = "amqp://127.0.0.1/"\nledger = "redis://127.0.0.1/0"\nunsigned = true\n'
    path = write(tmp_path / "coordd.toml", cluster + '[mirror]\nurl = "bus"\n')

    assert load(path, {}).mirror.on_bus
