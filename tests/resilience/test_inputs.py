"""Inputs that fail as often as allowed are refused by every later section with their key, until a person says so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
import tenacity
from guard.fake_runner import JOB

import coordd.resilience
from coordd import guard
from coordd.core.ledger.inputs.memory import key_of
from coordd.core.ledger.requests import Keep
from coordd.guard import LeaseLostError
from coordd.resilience import PoisonousError, poisonous, retry
from resilience.conftest import Attempt

PATH = "/in/a.csv"
Way = Callable[[str, BaseException | None], str]


@poisonous(key="{path}", attempts=2)
def load(path: str, error: BaseException | None = None) -> str:
    assert path
    if error is not None:
        raise error
    return "loaded"


@poisonous(key=lambda path, _error: str(path), attempts=2)
async def load_async(path: str, error: BaseException | None) -> str:
    assert path
    await anyio.lowlevel.checkpoint()
    if error is not None:
        raise error
    return "loaded"


def under_trio(path: str, error: BaseException | None = None) -> str:
    return anyio.run(load_async, path, error, backend="trio")


def in_block(path: str, error: BaseException | None = None) -> str:
    with poisonous(key=path, attempts=2):
        if error is not None:
            raise error
    return "loaded"


def in_async_block(path: str, error: BaseException | None = None) -> str:
    async def call() -> str:
        async with poisonous(key=path, attempts=2):
            if error is not None:
                raise error
        return "loaded"

    return anyio.run(call, backend="asyncio")


@pytest.mark.parametrize("way", [load, under_trio, in_block, in_async_block])
def test_an_input_is_refused_after_as_many_failures_as_allowed(way: Way, attempt: Attempt) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="spoilt"):
            way(PATH, ValueError("spoilt"))
    with pytest.raises(PoisonousError) as caught:
        way(PATH, None)

    letter = key_of(JOB, PATH)
    assert str(caught.value) == (
        f"{PATH} has failed 2 times and is not processed any more. When its cause is mended:"
        f" coordctl deadletter discard {letter} --note TEXT (last: ValueError('spoilt'))"
    )
    assert way("/in/b.csv", None) == "loaded"
    attempt.ledger.ask(Keep(key=letter, held=False, by="ann"))
    assert way(PATH, None) == "loaded"


class CallFailed(Exception):  # noqa: N818  # it stands for Py4JJavaError, whose text the JVM is asked for
    """``text``: Java's trace; None if the JVM has ended."""

    def __init__(self, text: str | None) -> None:
        super().__init__("a call")
        self.text = text

    def __str__(self) -> str:
        if self.text is None:
            raise ConnectionError
        return self.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("calling o8.x\n: a.Failed: stage 1\n\tat b\nCaused by: a.NoColumn: amount\n\tat", "a.NoColumn: amount"),
        (None, "CallFailed('a call')"),
    ],
)
def test_the_reason_of_a_failure_in_java_is_its_cause(text: str | None, told: str, attempt: Attempt) -> None:
    for _ in range(2):
        with pytest.raises(CallFailed):
            load(PATH, CallFailed(text))
    with pytest.raises(PoisonousError) as caught:
        load(PATH)
    assert str(caught.value).endswith(f"{told})")
    assert attempt.said


def test_a_success_forgets_the_failures_before_it(attempt: Attempt) -> None:
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            load(PATH, ZeroDivisionError())
        assert load(PATH) == "loaded"
    assert attempt.said == ["asked", "failed", "asked", "passed"] * 3
    assert attempt.ledger.marks("input:") == {}


def test_an_input_without_failures_costs_one_question(attempt: Attempt) -> None:
    assert load(PATH) == "loaded"
    assert attempt.said == ["asked"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), LeaseLostError(), SystemExit(1)])
def test_what_is_no_fault_of_the_input_does_not_count(error: BaseException, attempt: Attempt) -> None:
    with pytest.raises(type(error)):
        load(PATH, error)
    assert attempt.said == ["asked"]


@pytest.mark.usefixtures("attempt")
def test_a_function_may_skip_a_poisonous_input(caplog: pytest.LogCaptureFixture) -> None:
    @poisonous(key="{path}", attempts=1, skip=True)
    def skipping(path: str) -> None:
        raise ZeroDivisionError(path)

    with pytest.raises(ZeroDivisionError):
        skipping(PATH)
    assert skipping(PATH) is None
    assert caplog.messages[-1].startswith(f"skipped: {PATH} has failed 1 times")


def test_a_program_that_dies_in_a_fatal_section_has_counted(attempt: Attempt) -> None:
    section = poisonous(key=PATH, attempts=2, fatal=True)
    section.__enter__()  # and the program is killed
    assert [hold.note for hold in attempt.ledger.marks("input:").values()] == [
        f"1 2\n{PATH}\nthe program died while it processed this input"
    ]
    with pytest.raises(ZeroDivisionError), poisonous(key=PATH, attempts=2, fatal=True):
        raise ZeroDivisionError("spoilt")
    assert attempt.said == ["asked", "begun", "asked", "begun", "explained"]
    with pytest.raises(PoisonousError, match=r"failed 2 times .* ZeroDivisionError"), poisonous(key=PATH, attempts=2):
        pass


def test_a_fatal_section_that_is_interrupted_has_not_counted(attempt: Attempt) -> None:
    with pytest.raises(KeyboardInterrupt), poisonous(key=PATH, fatal=True):
        raise KeyboardInterrupt
    assert attempt.ledger.marks("input:") == {}


@pytest.mark.usefixtures("attempt")
def test_no_retry_tries_a_poisonous_input_again() -> None:
    calls = []

    @retry(attempts=5, delay=0.0)
    @poisonous(key="{path}", attempts=2)
    def both(path: str) -> None:
        calls.append(path)
        raise ValueError(path)

    with pytest.raises(PoisonousError):
        both(PATH)
    assert calls == [PATH, PATH]


def test_without_a_key_a_failure_is_poisonous_at_once_and_nobody_is_asked(attempt: Attempt) -> None:
    calls = []

    @retry(attempts=5, delay=0.0)
    def validate() -> None:
        calls.append(1)
        with poisonous():
            raise ValueError("never valid")

    with pytest.raises(PoisonousError, match="never valid"):
        validate()
    assert (len(calls), attempt.said) == (1, [])


def test_an_attempt_that_lost_its_lease_processes_nothing(attempt: Attempt) -> None:
    attempt.word = "stale"
    with pytest.raises(LeaseLostError, match="as the test says"):
        load(PATH)


def test_a_runner_of_an_older_version_remembers_nothing(attempt: Attempt, caplog: pytest.LogCaptureFixture) -> None:
    attempt.word = "refused"
    assert load(PATH) == "loaded"
    assert "nothing is known or remembered of its failures" in caplog.text


def test_without_coordd_each_input_is_processed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COORDD_RUN", raising=False)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            load(PATH, ZeroDivisionError())
    assert load(PATH) == "loaded"


def test_keys_of_any_text_are_told_apart(attempt: Attempt) -> None:
    keys = ["/in/straße\n", "/in/strasse", "x" * 5000, "x" * 5001]
    for key in keys:
        with pytest.raises(ZeroDivisionError), poisonous(key=key, attempts=1):
            raise ZeroDivisionError("ü\n" * 1000)
    assert len(attempt.ledger.marks("input:")) == len(keys)
    for key in keys:
        with pytest.raises(PoisonousError), poisonous(key=key, attempts=1):
            pass


@pytest.mark.usefixtures("attempt")
def test_the_files_work_where_coordd_is_not_installed(tmp_path: Path) -> None:
    for file in (guard.__file__, coordd.resilience.__file__):
        shutil.copy(file, tmp_path)
    shutil.copytree(Path(tenacity.__file__).parent, tmp_path / "tenacity")
    program = """if True:
        import sys, resilience
        assert not {"coordd", "tenacity", "anyio", "asyncio"} & set(sys.modules), sys.modules
        calls = []
        @resilience.retry(attempts=2, delay=0.0)
        def twice():
            calls.append(1)
            if len(calls) == 1: raise OSError
        twice()
        try:
            with resilience.poisonous("x", attempts=1): raise OSError("bad")
        except OSError: pass
        try:
            with resilience.poisonous("x", attempts=1): pass
        except resilience.PoisonousError as exc: print(exc)
    """
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.startswith("x has failed 1 times"), done.stderr
