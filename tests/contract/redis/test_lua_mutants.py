"""The contract tests notice changes in the scripts. This runs a part of `make mutants-lua`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from lua_mutants import notice, recorder, tracing
from lua_mutants.conversation import Interview
from lua_mutants.edits import Edit, changed, edits
from support import stepped_redis

from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.redis_server import Server
from coordd.core.ledger.requests import Suspend

SLICE = 25


def drawn() -> list[Edit]:
    """The same changes every time, also when lines have moved. Changes with a known reason to survive are left out."""
    explained = notice.known_survivors()
    wanted = [edit for edit in edits() if edit.name not in explained]
    return sorted(wanted, key=lambda edit: hashlib.sha256(edit.name.encode()).digest())


@pytest.fixture(scope="module")
def asks() -> Iterator[Interview]:
    made = notice.interview(notice.record(brief=True))
    yield made
    made.close()


def test_changed_scripts_are_noticed_and_the_true_ones_are_not(asks: Interview) -> None:
    assert asks.noticed(lambda _, text: text) == ""
    valid = 0
    for edit in drawn():
        said = asks.noticed(edit.rewrite())
        if said.startswith("invalid"):
            continue
        assert said or notice.by_real_servers(edit), f"nothing notices {edit.name}"
        valid += 1
        if valid == SLICE:
            break
    assert valid == SLICE


def test_survivors_are_changes_that_there_are_and_each_has_a_reason() -> None:
    names = [edit.name for edit in edits()]
    assert len(set(names)) == len(names)
    survivors = notice.known_survivors()
    assert survivors.keys() <= set(names), f"no such change any more: {sorted(survivors.keys() - set(names))}"
    assert all(len(reason) > 20 for reason in survivors.values())


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("if now > row.at then  -- a > b", "if now >= row.at then  -- a > b"),
        ("if now > row.at then  -- a > b", "if not (now > row.at) then  -- a > b"),
        ("  row.cancel = 1", ""),
        ("  row.cancel = 1", "  row.cancel = 2"),
        ("return answer('ok < no', { state = a + b })", "return answer('ok < no', { state = a - b })"),
    ],
)
def test_a_line_is_changed_in_its_code_alone(line: str, becomes: str) -> None:
    assert becomes in set(changed(line))
    assert "ok <= no" not in "".join(changed(line))
    assert "a >= b" not in "".join(changed(line))


def test_comments_stay() -> None:
    assert not list(changed("-- row.cancel = 1"))


def test_a_name_says_the_file_only_where_the_line_stands_in_several_places() -> None:
    line, other = "  row.cancel = 1", "  row.cancel = 2"

    assert Edit("people/cancel.lua", line, 0, other, alone=True).name == "row.cancel = 1  ->  row.cancel = 2"
    assert Edit("a.lua", line, 1, "", alone=False).name == "a.lua: row.cancel = 1 (2.)  ->  nothing"


SCRIPT = """local row = {
  run = run, state = state,
}
if row.run == ''
  and now > 0 then
  row['until'], row.beat = now, 0
elseif not row then
  held[#held + 1] = run
else
  return answer(OK, { left_s = 0,
    in_s = 1 })
end"""


def test_each_line_belongs_to_the_statement_that_begins_before_it() -> None:
    lines = SCRIPT.split("\n")
    begins = [tracing.place_of(lines, number) for number in range(len(lines))]
    assert begins == [0, 0, 0, 3, 3, 5, 3, 7, 3, 9, 9, 9]


def test_a_change_is_asked_only_where_its_line_is_executed(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for of, name in ((RedisLedger, "__init__"), (Server, "_try")):
        monkeypatch.setattr(of, name, getattr(of, name))  # what listens is gone after the test
    monkeypatch.setattr(recorder, "KEPT", [])
    recorder._listen()
    for suspended in (True, False):
        ledger = stepped_redis.SteppedLedger(redis_url, stepped_redis.OneClock())
        ledger.ask(Suspend(job="sales", suspended=suspended, by="ann"))
        ledger.close()
    asks = notice.interview(recorder.KEPT)
    try:
        asks.trace()
        found = {edit.line.strip(): edit for edit in edits() if edit.file == "people/suspend.lua" and not edit.becomes}
        changes = found["job.suspended, job.version, job.changed_by = suspended, job.version + 1, by"]
        mends = found["job.fence = math.floor(now * 1000000)"]
        assert len(asks.executing(tracing.line_of(changes))) == 1
        assert not asks.executing(tracing.line_of(mends))
        assert asks.noticed(changes.rewrite(), tracing.line_of(changes))
        assert not asks.noticed(mends.rewrite(), tracing.line_of(mends))
    finally:
        asks.close()
