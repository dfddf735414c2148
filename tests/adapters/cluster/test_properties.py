"""Java properties, read as spark-submit reads them."""

from __future__ import annotations

from hypothesis import given, strategies

from coordd.adapters.cluster.properties import parse
from coordd.adapters.spark import _properties_text


def test_what_people_write_is_read() -> None:
    text = "# c\n! c\n\nspark.a b\nspark.b=  c d \nspark.c : e\\\n   f\nspark\\ d=\\u0041\\t.\nspark.b=last\nspark.e"

    assert parse(text) == {"spark.a": "b", "spark.b": "last", "spark.c": "ef", "spark d": "A\t.", "spark.e": ""}


@given(strategies.dictionaries(strategies.text(min_size=1), strategies.text().map(str.strip)))
def test_what_we_write_is_read_back(conf: dict[str, str]) -> None:
    assert parse(_properties_text(conf)) == conf


@given(strategies.text())
def test_nothing_stops_the_reader(text: str) -> None:
    parse(text)
