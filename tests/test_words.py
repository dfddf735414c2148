"""docs/style.md as a test: it bans constructions that a reader must decode."""

import re
from pathlib import Path

import pytest
from support.prose import prose

ROOT = Path(__file__).parents[1]

# The banned construction, and the words to write instead.
BANNED = {
    r"\bso (many|much|few)\b": "the number, 'up to N', 'that many'",
    r"\bso long\b": "the duration, 'as long as', 'until then'",
    r"\banew\b": "'again', 'from the start', 'new'",
    r"\bwhoever\b": "name who: the caller, the node, the operator",
    r"\bwhat (is|are|was|were) (no|none|not|neither)\b": "a noun: 'invalid text', 'other files'",
    r"(?<!here )\b(is|are|was|were) none\b": "'is not a …', 'has no …', 'there is no …'",
    r"\bof which no\b": "'without'",
    r"(?<!here )\b(is|are|were) no (?!longer\b|more\b)": "'is not a …'",
    r"(?:^|\. |\"\"\")What (is|are|was|were|has|have|does|did|can|may|must)\b(?![^.?]*\?)": "a noun as the subject",
    r"\b(hence|lest|albeit|whence|thereof|therein|thereby|herein|hitherto|suffices)\b": "'so', 'is enough', 'in it'",
    r"\bin vain\b": "'without success'",
    r"\bno worse off\b": "say what the consequence is",
}
QUOTES_THEM = {ROOT / "docs" / "style.md", Path(__file__)}

READ = ("coordd", "docs", "tests", "README.md", "SECURITY.md", "CONTRIBUTING.md")


def files() -> list[Path]:
    found = [path for name in READ for path in [ROOT / name, *(ROOT / name).rglob("*")]]
    return sorted({path for path in found if path.suffix in {".py", ".lua", ".md"}} - QUOTES_THEM)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_words_are_plain(path: Path) -> None:
    found = []
    for line, text in prose(path):
        without = re.sub(r"^#+ .*" if path.suffix == ".md" else r"^# ?", "", text, flags=re.MULTILINE)
        plain = re.sub(r"\s*\n[ \t]*(?![\n|*-])", " ", without)
        for pattern, instead in BANNED.items():
            for match in re.finditer(pattern, plain):
                around = plain[max(0, match.start() - 60) : match.end() + 40].replace("\n", " ")
                found.append(f"{path.name}:{line}: {around!r}: use {instead}")

    assert not found, "\n".join(found)
