"""Completion in bash. click's own takes the words as bash splits them, and bash splits also at "@" and ":", which are
in the id of every scheduled run. Here the line as it was typed is split, and bash gets what follows its last break.
"""

from __future__ import annotations

import os

from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

SOURCE = """\
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            dir,*) compopt -o dirnames ;;
            file,*) compopt -o default ;;
            plain,*) COMPREPLY+=("${line#*,}") ;;
        esac
    done < <(env COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

# Stands at the cursor while the line is split, so that the word there is there, even an empty one.
CURSOR = "\x01"

# A break at one of these belongs to the word behind it (readline's rl_special_prefixes as bash sets them).
PREFIXES = ("$", "@")


class Completion(BashComplete):
    """click's completion for bash, by the line that was typed."""

    source_template = SOURCE
    before = ""  # what stands of the word before bash's last break: bash keeps it

    def get_completion_args(self) -> tuple[list[str], str]:
        if "COMP_LINE" not in os.environ:  # a shell that has the function of an earlier version
            return super().get_completion_args()
        line = os.environb[b"COMP_LINE"][: int(os.environ["COMP_POINT"])].decode(errors="surrogateescape")
        *words, begun = split_arg_string(line + CURSOR)
        begun = begun.removesuffix(CURSOR)
        self.before = kept_by_bash(line, begun, os.environ.get("COMP_WORDBREAKS", ""))
        return words[1:], begun

    def format_completion(self, item: CompletionItem) -> str:
        value = str(item.value)
        return f"{item.type},{value.removeprefix(self.before)}"


def kept_by_bash(line: str, begun: str, breaks: str) -> str:
    """What bash keeps of the word at the end of ``line``. A word with quotes is not broken.

    ``begun``: that word without quotes. Of `--job=NAME` only NAME is completed.
    """
    if not line.endswith(begun) or line[: len(line) - len(begun)][-1:] in ("'", '"'):
        return ""
    begun = begun.partition("=")[2] if begun.startswith("-") else begun
    last = max((begun.rfind(one) for one in breaks), default=-1)
    return begun[: last if begun[last : last + 1] in PREFIXES else last + 1]


def register() -> None:
    """Let click use it."""
    add_completion_class(Completion)
