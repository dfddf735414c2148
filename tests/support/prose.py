"""Finds the text that people read in a file: comments, docstrings, messages, and the text of documents."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

WRITTEN = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, text) for each piece of prose; comment lines that follow each other are one piece."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from python(text)
    elif path.suffix == ".lua":
        yield from lua(text)
    else:
        yield from paragraphs(text)


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    line = 1
    for piece in text.split("\n\n"):
        yield line, piece
        line += piece.count("\n") + 2


def python(text: str) -> Iterator[tuple[int, str]]:
    comment: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (not comment or token.start[0] == last + 1):
            first, last = first if comment else token.start[0], token.start[0]
            comment.append(token.string)
        elif token.type in WRITTEN:
            if comment:
                yield first, "\n".join(comment)
                comment = []
            if token.type == tokenize.COMMENT:
                first = last = token.start[0]
                comment = [token.string]
            else:
                yield token.start[0], token.string
    if comment:
        yield first, "\n".join(comment)


def lua(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if found := re.search(r"--.*", line):
            yield number, found[0]
