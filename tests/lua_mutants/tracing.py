"""Which lines of the scripts each ledger's conversation executes: a change of another line cannot differ there."""

from __future__ import annotations

import re

from coordd.adapters.ledger import lua_constants
from lua_mutants.edits import LUA, Edit, code_of

# The set in Redis in which a traced script notes its lines.
TRACE = "lua-trace"

# A line that begins a statement, and one after which a statement goes on.
BEGINS = re.compile(r"\s*(?:local |if |for |while |return\b|break\b|function |[\w.\[\]'\0, #+]+ = |[\w.]+\()")
GOES_ON = re.compile(r"(?:\band|\bor|[,=(]|\.\.)\s*$")

_WRAPPED = """local done, said = pcall(function()
%s
end)
local lines = {}
for line in pairs(KEYS) do if type(line) == 'string' then lines[#lines + 1] = line end end
redis.call('SADD', '%s', unpack(lines))
if done or type(said) == 'table' then return said end
error(said, 0)
"""


def marked(file: str, text: str) -> str:
    """The text, in which each statement notes its line when it begins."""
    if LUA / file == lua_constants.PATH:
        return text
    lines = text.split("\n")
    return "\n".join(
        f"KEYS['{file}:{number}'] = 1 {line}" if place_of(lines, number) == number else line
        for number, line in enumerate(lines)
    )


def wrapped(script: bytes) -> bytes:
    """A whole script of marked files, which adds its lines to the set TRACE at its end."""
    return (_WRAPPED % (script.decode(), TRACE)).encode()


def line_of(edit: Edit) -> str:
    """The line that is noted where that of the edit is executed."""
    lines = (LUA / edit.file).read_text().split("\n")
    number = [number for number, line in enumerate(lines) if line.strip() == edit.line.strip()][edit.nth]
    return f"{edit.file}:{place_of(lines, number)}"


def place_of(lines: list[str], number: int) -> int:
    """The line that begins the statement of this one. Of "elseif" and "else" it is the "if": that has begun, too."""
    code = code_of(lines[number])
    if code.lstrip().startswith(("elseif ", "else")):
        indent = len(code) - len(code.lstrip())
        return next(n for n in range(number - 1, -1, -1) if re.match(rf" {{{indent}}}if ", lines[n]))
    depth, begin = 0, 0
    for n in range(number + 1):
        now = code_of(lines[n])
        if depth == 0 and BEGINS.match(now) and not GOES_ON.search(code_of(lines[n - 1]) if n else ""):
            begin = n
        depth += sum(now.count(letter) for letter in "([{") - sum(now.count(letter) for letter in ")]}")
    return begin
