"""Arguments: placeholders are filled, and only declared text of limited length is accepted."""

import pytest
from hypothesis import given, strategies as st

from coordd.core.jobs.arguments import (
    BUILT_IN,
    FILLED_BYTES_MAX,
    VALUE_BYTES_MAX,
    built_in,
    check_launch,
    fill,
    fill_launch,
    merge_params,
    placeholders,
)
from coordd.core.jobs.job import Command, SparkSubmit
from coordd.errors import RefusedError


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("", ""),
        ("plain", "plain"),
        ("--day={day}", "--day=mon"),
        ("{day}{day}", "monmon"),
        ("{{day}}", "{day}"),
        ("{{{day}}}", "{mon}"),
        ('{{"day": "{day}"}}', '{"day": "mon"}'),
        ("{braces}", "{day}"),  # the program does not fill placeholders inside a value
    ],
)
def test_fill(text: str, filled: str) -> None:
    assert fill(text, {"day": "mon", "braces": "{day}"}) == filled


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("{dya}", '"{dya}" in "{dya}" has no value', 'did you mean "day"?'),
        ("{", 'a single "{"', "{{ and }}"),
        ("a } b", 'a single "}"', "{{ and }}"),
        ("{}", "names no argument", "{{ and }}"),
        ("{day!r}", "names no argument", "{{ and }}"),
        ("{day.__class__}", "names no argument", "{{ and }}"),
        ("{0}", "names no argument", "{{ and }}"),
        ('{"a": 1}', "names no argument", "{{ and }}"),
        ("{day}" * 40000, "bytes long when filled", "a path"),
    ],
)
def test_what_cannot_be_filled_is_refused_with_a_hint(text: str, said: str, hint: str) -> None:
    with pytest.raises(RefusedError) as caught:
        fill(text, {"day": "mon"})
    assert said in str(caught.value)
    assert hint in caught.value.hint
    assert caught.value.kind == "bad_argument"


@given(st.text())
def test_any_text_survives_when_its_braces_are_doubled(text: str) -> None:
    doubled = text.replace("{", "{{").replace("}", "}}")
    if len(text.encode("utf-8", "surrogatepass")) <= FILLED_BYTES_MAX:
        assert fill(doubled, {}) == text
        assert placeholders(doubled) == ()


def test_merge_takes_what_was_given_in_place_of_the_default() -> None:
    assert merge_params({"day": "mon", "n": "1"}, {"n": "2"}) == {"day": "mon", "n": "2"}
    assert merge_params({}, {}) == {}


@pytest.mark.parametrize(
    ("given_values", "said", "hint"),
    [
        ({"rgeion": "eu"}, 'declares no param "rgeion"', 'did you mean "region"?'),
        ({"xyzzy": "1"}, 'declares no param "xyzzy"', "known: region, size"),
        ({"run": "1"}, 'declares no param "run"', ""),  # a caller cannot replace a built-in parameter
        ({"region": "a\nb"}, "control character '\\n'", "one line"),
        ({"region": "a\0b"}, "control character '\\x00'", "one line"),
        ({"region": "a\x9bb"}, "control character", "one line"),
        ({"region": "a\ud800b"}, "control character", "one line"),
        ({"region": "x" * (VALUE_BYTES_MAX + 1)}, "bytes long", "a path"),
        ({"region": "ä" * (VALUE_BYTES_MAX // 2 + 1)}, "bytes long", "a path"),  # bytes, not characters
        ({"region": 5}, "must be text, not int", "quotes"),
        ({"region": None}, "must be text", "quotes"),
    ],
)
def test_merge_refuses(given_values: dict[str, str], said: str, hint: str) -> None:
    with pytest.raises(RefusedError) as caught:
        merge_params({"region": "eu", "size": "1"}, given_values)
    assert said in str(caught.value)
    assert hint in caught.value.hint


def test_merge_refuses_too_much_in_all() -> None:
    declared = {f"p{n}": "" for n in range(20)}
    given_values = dict.fromkeys(declared, "x" * VALUE_BYTES_MAX)
    with pytest.raises(RefusedError, match="at most 32768"):
        merge_params(declared, given_values)
    escaped = {f"p{n}": "\u00e9" * (VALUE_BYTES_MAX // 2) for n in range(3)}  # as JSON three times as long
    with pytest.raises(RefusedError, match="at most 32768"):
        merge_params(dict.fromkeys(escaped, ""), escaped)
    at_the_bound = {"region": "x" * VALUE_BYTES_MAX}
    assert merge_params({"region": ""}, at_the_bound) == at_the_bound


def test_built_in_values_are_in_the_jobs_zone() -> None:
    # 2026-03-29T23:30Z is the 30th in Berlin.
    values = built_in(
        run="j@x", job="j", fire_at=1774827000.0, timezone="Europe/Berlin", attempt=1, token=17, node="edge-1"
    )
    assert values == {
        "fire_time": "2026-03-30T01:30:00+02:00",
        "date": "2026-03-30",
        "run": "j@x",
        "job": "j",
        "attempt": "1",
        "token": "17",
        "node": "edge-1",
    }
    assert set(values) == set(BUILT_IN)
    utc = built_in(run="r", job="j", fire_at=1774827000.0, timezone="UTC", attempt=0, token=1, node="n")
    assert (utc["fire_time"], utc["date"]) == ("2026-03-29T23:30:00Z", "2026-03-29")


def test_a_launch_is_filled_text_by_text() -> None:
    values = {"day": "mon; rm -rf /", "job": "j"}
    spark = SparkSubmit(
        application="/opt/{job}.py", args=("--day", "{day}"), conf={"spark.x": "{day}"}, env={"DAY": "{day}"}
    )
    filled = fill_launch(spark, values)
    assert filled == SparkSubmit(
        application="/opt/j.py",
        args=("--day", "mon; rm -rf /"),  # one argument stays one argument
        conf={"spark.x": "mon; rm -rf /"},
        env={"DAY": "mon; rm -rf /"},
    )
    assert fill_launch(Command(argv=("/bin/echo", "{day}")), values) == Command(argv=("/bin/echo", "mon; rm -rf /"))


@pytest.mark.parametrize(
    ("launch", "key", "said"),
    [
        (SparkSubmit(application="/a.py", args=("{dya}",)), "args", 'did you mean "day"?'),
        (SparkSubmit(application="/a.py", conf={"spark.x": "{"}), "conf.spark.x", 'a single "{"'),
        (SparkSubmit(application="/{day}.py"), "application", "must not choose what is run"),
        (SparkSubmit(application="/a.py", jars=("/{day}.jar",)), "jars", "must not choose what is run"),
        (SparkSubmit(application="/a.py", proxy_user="{day}"), "proxy_user", "must not choose what is run"),
        (Command(argv=("{day}",)), "argv", "must not choose what is run"),
        (Command(argv=("/bin/echo", "{nonsense}")), "argv", "not declared"),
    ],
)
def test_a_launch_is_checked_before_it_is_needed(launch: SparkSubmit | Command, key: str, said: str) -> None:
    [(where, message)] = check_launch(launch, {"day": "mon"})
    assert where == key
    assert said in message


def test_params_may_fill_arguments_and_built_ins_may_stand_anywhere() -> None:
    spark = SparkSubmit(application="/opt/{job}.py", args=("{day}", "{token}"), name="{job} {day}")
    assert check_launch(spark, {"day": "mon"}) == []
    assert check_launch(Command(argv=("/bin/echo", "{day}"), env={"D": "{date}"}), {"day": "mon"}) == []
