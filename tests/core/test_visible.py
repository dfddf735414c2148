"""Text from other sources, shown to people: no escape sequence reaches a terminal, and JSON keeps the values."""

from __future__ import annotations

import json

import pytest

from coordd.core.redaction import redact_text
from coordd.core.visible import obeyed, visible, visible_json

OBEYED = {
    "colour": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;bWFs\x1b\\",
    "c1-csi": "\x9b2J",
    "c1-osc": "\x9d0;owned\x9c",
    "return": "100 %\rdone",
    "backspace": "ab\x08\x08",
    "bell": "\x07",
    "del": "a\x7fb",
    "override": "exe\u202etxt",
    "isolate": "\u2066x\u2069",
    "mark": "a\u200fb",
    "zero-width": "pay\u200bpal",
    "separator": "one\u2028two",
    "bom": "\ufeffx",
    "tag": "x\U000e0041",
    "soft-hyphen": "a\xadb",
    "null": "a\0b",
    "surrogate": "a\udc80b",
}


@pytest.mark.parametrize("text", OBEYED.values(), ids=OBEYED)
def test_what_a_terminal_obeys_is_written_out(text: str) -> None:
    assert obeyed(text)
    for shown in (visible(text), visible(text, lines=True)):
        assert shown.isprintable()
        assert "\\" in shown


@pytest.mark.parametrize("text", OBEYED.values(), ids=OBEYED)
def test_json_has_the_same_values_and_nothing_that_a_terminal_obeys(text: str) -> None:
    value = {text: [text, {"in": text}]}
    written = visible_json(json.dumps(value, ensure_ascii=False))
    assert written.isprintable()
    assert json.loads(written) == value


@pytest.mark.parametrize("text", ["", "plain", "Grüße, мир, 世界, 😀", "a b", "é"])
def test_all_other_text_stays(text: str) -> None:
    assert not obeyed(text)
    assert visible(text) == visible_json(text) == text


def test_lines_stay_lines_where_they_are_wanted() -> None:
    assert visible("a\tb\nc", lines=True) == "a\tb\nc"
    assert visible("a\tb\nc") == "a\\tb\\nc"


# ---- secrets


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("https://h/x?sig=abc%2Fdef&se=2026", "https://h/x?sig=***&se=2026"),
        ("https://h/x?X-Amz-Signature=0a1b", "https://h/x?X-Amz-Signature=***"),
        ("fs.azure.account.key=abc123", "fs.azure.account.key=***"),
        ("api_key=abc token=xyz", "api_key=*** token=***"),
        ("access_token=eyJh.x.y&a=1", "access_token=***&a=1"),
        ("Authorization: Bearer eyJhbGciOi.J9", "Authorization: Bearer ***"),
        ("sent with bearer abc123def", "sent with bearer ***"),
        ("Authorization: Basic dXNlcjpwYXNz=", "Authorization: Basic ***"),
        ("X-Api-Key: 12345", "X-Api-Key: ***"),
        ("Cookie: a=b; c=d", "Cookie: ***"),
        ('{"password": "x", "user": "ann"}', '{"password": "***", "user": "ann"}'),
        ("{'aws_secret': 'x'}", "{'aws_secret': '***'}"),
        ("redis://u:p@h/0?password=x", "redis://u:***@h/0?password=***"),
        ("bearer of good news", "bearer of good news"),
        ("Basic authentication is needed", "Basic authentication is needed"),
        ("granted token=17", "granted token=17"),
        ("pwd=1234", "pwd=***"),
        ("keyring: 2 keys", "keyring: 2 keys"),
        ("a monkey = 3", "a monkey = 3"),
    ],
)
def test_secrets_are_taken_out_and_words_stay(text: str, told: str) -> None:
    assert redact_text(text) == told


@pytest.mark.parametrize(
    "piece", ["a", "key", "key=", "://a:", "Bearer ", "x-", "cookie:", '"key": "', " ", "'", "a=", "X-a-", "Basic a"]
)
def test_a_long_text_takes_no_longer_than_its_length(piece: str) -> None:
    """The time grows linearly with the length. A pattern with quadratic time would need hours."""
    redact_text(piece * (1_000_000 // len(piece)))
