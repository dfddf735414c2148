"""The changes: one place of one line of Lua, as a substitution of text.

A change is identified by the text of its line and by the edit, never by a line number. So it survives moves, also to
another file. If the same line is in several places, the file identifies it too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import coordd.adapters.ledger
from coordd.adapters.ledger import lua_constants

LUA = Path(coordd.adapters.ledger.__file__).parent / "lua"

# A pattern in a line's code, and its replacement. Lua has no +=, and // only from 5.3 on.
SWAPS = (
    (r"==", "~="), (r"~=", "=="), (r"<=", "<"), (r">=", ">"), (r"(?<![<>=~])<(?!=)", "<="),
    (r"(?<![<>=~-])>(?!=)", ">="),
    (r"\band\b", "or"), (r"\bor\b", "and"), (r"\bnot\b ?", ""),
    (r"\bmath\.max\b", "math.min"), (r"\bmath\.min\b", "math.max"),
    (r"(?<=[\w\])]) \+ (?=[\w(])", " - "), (r"(?<=[\w\])]) - (?=[\w(])", " + "), (r"(?<=[\w\])]) \* (?=[\w(])", " / "),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", "more"),
)  # fmt: skip

# A line that is a complete statement, and may be left out.
STATEMENT = re.compile(
    r"\s*(?:return\b.*|local [\w, ]+ = .*|[\w.\[\]', ]+ = .*|[\w.]+\(.*\)|break|if .* then .* end)\s*$"
)
CONDITION = re.compile(r"^(\s*(?:else)?if |\s*while )(.+?)( then| do)(\s.*)?$")


@dataclass(frozen=True)
class Edit:
    """One change. ``nth`` counts the lines of that file with the same text from 0; the indentation does not matter.

    ``alone``: no other line of any script has this text.
    """

    file: str
    line: str
    nth: int
    becomes: str
    alone: bool

    @property
    def name(self) -> str:
        """One line, for people and for survivors.toml."""
        number = f" ({self.nth + 1}.)" if self.nth else ""
        where = "" if self.alone else f"{self.file}: "
        return f"{where}{self.line.strip()}{number}  ->  {self.becomes.strip() or 'nothing'}"

    def rewrite(self) -> Callable[[str, str], str]:
        """A function (file, text) -> text that makes this change in its file."""

        def rewritten(file: str, text: str) -> str:
            if file != self.file:
                return text
            lines = text.split("\n")
            places = [number for number, line in enumerate(lines) if line.strip() == self.line.strip()]
            lines[places[self.nth]] = self.becomes
            return "\n".join(lines)

        return rewritten


def edits() -> list[Edit]:
    """Every change of every script, in the order of the lines, except for the file of constants.

    That file is written from the rules in Python, and a test compares every byte of it.
    """
    paths = sorted(path for path in LUA.rglob("*.lua") if path != lua_constants.PATH)
    files = {str(path.relative_to(LUA)): path.read_text().split("\n") for path in paths}
    places = Counter(line.strip() for lines in files.values() for line in lines)
    found: list[Edit] = []
    for file, lines in files.items():
        seen: Counter[str] = Counter()
        for line in lines:
            text = line.strip()
            found += [Edit(file, line, seen[text], other, places[text] == 1) for other in changed(line)]
            seen[text] += 1
    return found


def changed(line: str) -> Iterator[str]:
    """The possible changes of one line; none for comments and empty lines."""
    code = code_of(line)
    if not code.strip():
        return
    given = {line}
    for other in _candidates(line, code):
        if other not in given:
            given.add(other)
            yield other


def _candidates(line: str, code: str) -> Iterator[str]:
    for pattern, instead in SWAPS:
        for match in re.finditer(pattern, code):
            put = str(int(float(match[0])) + 1) if instead == "more" else instead
            yield line[: match.start()] + put + line[match.end() :]
    condition = CONDITION.match(code)
    if condition:
        begin, end = condition.span(2)
        yield f"{line[:begin]}not ({line[begin:end]}){line[end:]}"
    if STATEMENT.match(code) and not code.lstrip().startswith("local function"):
        yield ""


def code_of(line: str) -> str:
    """The line, with spaces for its comment and for the contents of its strings: only code is changed."""
    kept: list[str] = []
    quote = ""
    for at, letter in enumerate(line):
        if not quote and line.startswith("--", at):
            return "".join(kept)
        if quote and letter != quote:
            kept.append("\0")
            continue
        if letter in "'\"":
            quote = "" if quote else letter
        kept.append(letter)
    return "".join(kept)
