"""The headers of the Redis scripts: the arguments of each script, and the words and fields of its answers.

-- ARGV of a registration, in this order:     "Then:" before an operation's own arguments
--   name              unit; what it is
-- Answers:
--   word              field, field; when
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import coordd.adapters.ledger
from coordd.adapters.ledger.redis_scripts import ROOM_OF, SEVERAL

LUA = Path(coordd.adapters.ledger.__file__).parent / "lua"

ENTRY = re.compile(r"--   ([a-z_]+(?:\.\.\.)?) +([^;]*?)(?:;.*)?")
ARGUMENTS = re.compile(r"-- (?:.* Then|ARGV|ARGV of .*):")
ANSWERS = "-- Answers:"


@dataclass
class Header:
    """The lists of one file's header."""

    arguments: list[tuple[str, str]] = field(default_factory=list)  # name and unit, in order
    answers: dict[str, set[str]] = field(default_factory=dict)  # word -> fields
    needs: tuple[str, ...] = ()
    body: str = ""

    @property
    def is_open(self) -> bool:
        """True if the last argument is a list of any length."""
        return bool(self.arguments) and self.arguments[-1][0].endswith("...")

    def fits(self, count: int) -> bool:
        """True if the header lists that number of arguments."""
        least = len(self.arguments) - self.is_open
        return count >= least if self.is_open else count == least


@cache
def header(name: str) -> Header:
    """The header of the file lua/<name>.lua."""
    found, into = Header(), ""
    head, needs, rest = (LUA / f"{name}.lua").read_text().partition("\n-- Needs: ")
    if needs:
        line, _, found.body = rest.partition("\n")
        found.needs = tuple(line.split()) if line != "nothing" else ()
    for line in head.split("\n"):
        entry = ENTRY.fullmatch(line)
        if ARGUMENTS.fullmatch(line):
            into = "arguments"
        elif line == ANSWERS:
            into = "answers"
        elif not line.startswith("--   "):
            into = ""
        elif entry and into == "arguments":
            name, unit = entry.groups()
            found.arguments += header("shared/registrations").arguments if name == "registration" else [(name, unit)]
        elif entry and into == "answers":
            found.answers[entry[1]] = {each for each in entry[2].split(", ") if each}
    return found


def of(op: str) -> Header:
    """The header of the script of an operation."""
    return header(f"{ROOM_OF[op]}/{op}")


def check_question(op: str, count: int) -> None:
    """Fails if the number of arguments for a script is not the number in its header."""
    one = next((single for single, several in SEVERAL.items() if several == op), op)
    if one != op:
        assert count % len(of(one).arguments) == 0, f"{op} is sent {count} values"
    else:
        assert of(op).fits(count), f"{op} is sent {count} values, its header lists {len(of(op).arguments)}"


def check_reply(op: str, reply: list[object]) -> None:
    """Fails if the answer of a script is not listed in its header."""
    one = next((single for single, several in SEVERAL.items() if several == op), op)
    for said in reply if one != op else (reply,):
        assert isinstance(said, list)
        word, answers = said[1].decode(), of(one).answers
        assert word in answers, f"{one} answers {word}, which its header does not list"
        names = said[2:] if word == "open" else [each.decode() for each in said[2::2]]
        if word == "open":
            assert len(names) == len(answers[word]), one
        else:
            assert set(names) <= answers[word], f"{one}: {word} comes with {names}"
