"""Man pages in roff, made from the help of the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

WIDTH = 1000  # nothing is wrapped before man does it


def page(program: click.Group, name: str, version: str, about: str) -> str:
    """The page of a program with all its commands. ``about``: the words after its name in `man -k`."""
    context = _context(program, name, None)
    shared = set(_options(program, context))
    lines = [
        f'.TH {name.upper()} 1 "" "coordd {version}"',
        *(".SH NAME", f"{_text(name)} \\- {_text(about)}"),
        *(".SH SYNOPSIS", f".B {_text(name)}", _text(" ".join(program.collect_usage_pieces(context)))),
        *(".SH DESCRIPTION", *_paragraphs(program.help or "")),
        *(".SH OPTIONS", *_drawn(_options(program, context))),
    ]
    lines += [".PP", "An option of these that a command accepts too is not listed again below."]
    lines.append(".SH COMMANDS")
    for inner in _contexts(program, context):
        command = inner.command
        lines += [f'.SS "{_text(inner.command_path)} {_text(" ".join(command.collect_usage_pieces(inner)))}"']
        lines += _paragraphs(command.help or "")
        lines += _drawn([record for record in _options(command, inner) if record not in shared])
    lines += [".SH EXIT STATUS AND NOTES", *_paragraphs(program.epilog or "")]
    lines += [".SH FILES", *_files(), ".SH SEE ALSO", _see_also(name)]
    return "\n".join(lines) + "\n"


def example_page(example: str, version: str) -> str:
    """coordd.toml(5): the example configuration as it is, because it holds every setting with its default."""
    lines = [
        f'.TH COORDD.TOML 5 "" "coordd {version}"',
        *(".SH NAME", "coordd.toml \\- the configuration of coordd"),
        *(".SH DESCRIPTION", "All settings with their defaults. Job files are explained in the documentation:"),
        "/usr/share/doc/coordd/runbook.md.",
        *(".PP", ".nf", *[_text(line) or ".sp" for line in example.splitlines()], ".fi"),
        *(".SH SEE ALSO", _see_also("coordd.toml")),
    ]
    return "\n".join(lines) + "\n"


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    return click.Context(
        command,
        parent=parent,
        info_name=name,
        max_content_width=WIDTH,
        terminal_width=WIDTH,
        help_option_names=["-h", "--help"],
    )


def _contexts(group: click.Group, context: click.Context) -> Iterator[click.Context]:
    """The context of each command below a group, depth first, in the order of `--help`."""
    for name in group.list_commands(context):
        command = group.commands[name]
        if command.hidden:
            continue
        inner = _context(command, name, context)
        if isinstance(command, click.Group):
            yield from _contexts(command, inner)
        else:
            yield inner


def _options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """(names, help) of each parameter that the command's help explains."""
    found = [one.get_help_record(context) for one in command.get_params(context)]
    return [record for record in found if record is not None and record[1]]


def _drawn(options: list[tuple[str, str]]) -> Iterator[str]:
    for names, text in options:
        yield from (".TP", f"\\fB{_text(names)}\\fR", _text(" ".join(text.split())) or "\\&")


def _paragraphs(help_: str) -> Iterator[str]:
    """Click's help: paragraphs are filled, those after a \\b keep their lines."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(help_.replace("\f", ""))):
        kept, _, rest = paragraph.rpartition("\b\n") if "\b\n" in paragraph else ("", "", "")
        for part in (kept, paragraph if not rest else ""):
            if part.strip():
                yield from (".PP", _text(" ".join(part.split())))
        if rest:
            yield from (".PP", ".nf", *[_text(line) for line in rest.splitlines()], ".fi")


def _files() -> Iterator[str]:
    for path, what in (
        ("/etc/coordd/coordd.toml", "the configuration; coordd.toml(5)"),
        ("/etc/coordd/jobs.d", "one job a file"),
        ("/var/lib/coordd", "state: journal, ledger of a single machine, logs of runs"),
        ("/run/coordd/coordd.sock", "the control socket"),
    ):
        yield from (".TP", f".I {_text(path)}", _text(what))


def _see_also(name: str) -> str:
    pages = ("coordctl(1)", "coordd(1)", "coordd.toml(5)")
    return ", ".join([f"\\fB{_text(one)}\\fR" for one in pages if one.partition("(")[0] != name])


def _text(text: str) -> str:
    """Text as roff prints it: a hyphen stays one, and no line is taken for a request."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return "\\&" + safe if safe.startswith((".", "'")) else safe
