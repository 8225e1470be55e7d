"""Words that make readers of the pages stop: counted, with a bound. CONTRIBUTING has the rule."""

from __future__ import annotations

import re

from tests.docs.test_docs import CURRENT, ROOT

#: Patterns by what is wrong with them. A word may be right in its place, so the bound is not zero.
WORDS = {
    "name the thing in each row": r"(?<=\|) *(?:the same|likewise)\b",
    "compared with, next to": r"\b[Bb]eside\b",
    "if": r"\b[Ww]here (?:there|it|they|one|no|that|these|none)\b",
    "the program does something": r"\b(?:[Nn]obody|[Ss]omebody|[Ww]hoever|blam\w+|believ\w+)\b",
    "report, print": r"\b(?:tells?|told|telling|says?|said|saying)\b",
    "resume, again, fixed": r"\b(?:goes on|went on|going on|anew|mended|likewise|thrice)\b",
}
MOST = 60
MOST_WORDS = 32_500


def prose(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "code", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def test_few_words_stop_a_reader() -> None:
    pages = {page.name: prose(page.read_text()) for page in (*CURRENT, ROOT / "CHANGELOG.md")}
    found = [
        (name, better, match[0])
        for name, text in pages.items()
        for better, pattern in WORDS.items()
        for match in re.finditer(pattern, text)
    ]
    assert len(found) <= MOST, found


def test_the_pages_stay_short() -> None:
    words = sum(
        len(re.findall(r"[A-Za-z][A-Za-z'-]*", prose(page.read_text())))
        for page in (*CURRENT, ROOT / "CHANGELOG.md")
    )
    assert words <= MOST_WORDS


def test_the_readme_answers_five_questions_early() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    first = "\n".join(lines[:60])
    for answer in (
        "makes neural networks run faster",
        "It is for",
        "## Start",
        "How much faster?",
        "**Limits.**",
    ):
        assert answer in first
