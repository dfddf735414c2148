"""A document's blocks of commands: what is typed after a prompt, what is then seen, and a shell that compares both."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)

# The shell's own word about a background process that a command of the document has killed.
JOB_ENDED = re.compile(r"^(\S+: line \d+: +\d+ |\[\d+\].*)(Killed|Terminated).*$")

END = "@@"
ANYTHING = "…"


class Step(NamedTuple):
    """One command, and the lines that the document shows after it; ``line`` is its place in the document."""

    line: int
    command: str
    shown: tuple[str, ...]


def steps(text: str, prompt: str = "$ ") -> Iterator[Step]:
    """The commands of all blocks ``console``. A line that begins with "> " continues a command."""
    for block in CONSOLE.finditer(text):
        first = text.count("\n", 0, block.start(1)) + 1
        command: list[str] = []
        shown: list[str] = []
        begun = first
        for number, line in enumerate(block[1].splitlines(), first):
            if line.startswith(prompt):
                if command:
                    yield Step(begun, "\n".join(command), tuple(shown))
                command, shown, begun = [line.removeprefix(prompt)], [], number
            elif line.startswith("> ") or line == ">":
                command.append(line[2:])
            else:
                shown.append(line)
        if command:
            yield Step(begun, "\n".join(command), tuple(shown))


def pattern(shown: Sequence[str]) -> re.Pattern[str]:
    """The output that a document means: "…" is any text of a line, alone any lines, and spaces count as one."""
    parts = []
    for line in shown:
        if line.strip() == ANYTHING:
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            words = [re.escape(part) for part in " ".join(line.split()).split(ANYTHING)]
            parts.append("[^\\n]*".join(words) + r" ?\n")
    return re.compile("".join(parts))


def agrees(shown: Sequence[str], found: str) -> bool:
    """Does the output of a command agree with the document?"""
    lines = [" ".join(line.split()) for line in found.splitlines() if not JOB_ENDED.match(line)]
    return pattern(shown).fullmatch("".join([f"{line}\n" for line in lines])) is not None


class Shell:
    """One bash that is typed into; a context."""

    def __init__(self, argv: Sequence[str], where: Path, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [*argv, "bash", "--noprofile", "--norc", "-s"],
            cwd=where,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def type(self, command: str) -> tuple[int, str]:
        """Run a command in this shell; returns (exit code, output)."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"eval {shlex.quote(command)} </dev/null\ncode=$?; echo; echo {END} $code\n")
        self.process.stdin.flush()
        said: list[str] = []
        for line in self.process.stdout:
            if line.startswith(f"{END} "):
                return int(line.split()[1]), "".join(said).removesuffix("\n")
            said.append(line)
        raise AssertionError(f"the shell ended in: {command}\n{''.join(said)}")

    def follow(self, text: str) -> int:
        """Type each command of a document; each must succeed and show what the document shows. Returns their number."""
        typed = list(steps(text))
        for step in typed:
            code, found = self.type(step.command)
            assert code == 0, f"line {step.line}: {step.command}\nexit code {code}:\n{found}"
            shown = "\n".join(step.shown)
            assert agrees(step.shown, found), f"line {step.line}: {step.command}\nshown:\n{shown}\nfound:\n{found}"
        return len(typed)
