"""The contract tests notice changes in the scripts. This runs a part of `make mutants-lua`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from lua_mutants import notice
from lua_mutants.conversation import Interview
from lua_mutants.edits import Edit, changed, edits

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
