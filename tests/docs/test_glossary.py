"""The glossary has every noun of the project, and words that were given up do not come back."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"

# Classes of these headers are the nouns of the engine and of the backends' contract.
HEADERS = [
    *sorted((ROOT / "core" / "engine").rglob("*.h")),
    *sorted((ROOT / "core" / "backends").glob("*.h")),
]
# Their names say what they are to every C++ programmer.
PLAIN = {"HashIndex", "Log", "RankSet"}
# Rooms of the package that are named after something of ours.
ROOMS = ["bootstrap", "launch/agent", "launch/launchers"]

GIVEN_UP = {  # the word -> what is said in its place
    "accus(e|es|ed|ation|ations)": "report",
    "baton": "progress lock",
    "bypass(es)?": "fast path",
    "desert(ed)?": "abandon",
    "inquest|inquiry": "cause finder, survey",
    "keepers?": "host agent",
    "shorthand": "cache ids",
    "twins?": "what they have in common",
}
# The same for words with a meaning in plain English that stays, or in another room.
GIVEN_UP_IN_CORE = {
    "[Gg]lossary": "response cache",
    "Caller": "Coordinator",
    "[Ff]abric": "backend factory",
    "[Ii]nquest": "cause finder",
    "[Vv]erdict": "decision, outcome",
    "[Oo]ffer(s|ed)?": "proposal",
    "Term|OpenTerms": "KeyState",
    "nonsense": "malformed",
}
PAGES = [
    page
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "decisions" not in page.parts and page != GLOSSARY
]
SOURCES = sorted(
    file
    for folder in ("core", "src")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in {".h", ".cpp", ".inl", ".py"}
)


def entries(page: str) -> list[tuple[str, str]]:
    """The rows of the table: word and meaning."""
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return [(row[0].strip(), row[1].strip()) for row in rows[1:]]


def classes(header: str) -> list[str]:
    """Names of the classes that a header defines."""
    return re.findall(r"^class (?:\[\[nodiscard\]\] )?(\w+)(?: final)? ?(?=:|\{)", header, re.MULTILINE)


def found(words: dict[str, str], file: Path, text: str) -> list[str]:
    """Places of ``text`` that have one of the words. Names of files may have it."""
    pattern = re.compile(rf"(?<![\w/.-])({'|'.join(words)})(?![\w-])")
    return [
        f"{file.relative_to(ROOT)}:{number}: {hit[0]!r}; say: {said}"
        for number, line in enumerate(text.splitlines(), 1)
        for hit in pattern.finditer(line)
        for word, said in words.items()
        if re.fullmatch(word, hit[0])
    ]


def test_words_are_in_order_and_each_is_explained() -> None:
    rows = entries(GLOSSARY.read_text())
    assert len(rows) > 50
    words = [word for word, _ in rows]
    assert [(one, other) for one, other in pairwise(words) if one.lower() >= other.lower()] == []
    assert [word for word, meaning in rows if not re.search(r"[.)]$", meaning) or len(meaning) < 15] == []
    long = [word for word, meaning in rows if len(re.findall(r"\.(?= [A-Z*])", meaning)) > 2]
    assert long == [], "three short sentences at most"


def test_every_class_of_the_engine_is_in_the_glossary() -> None:
    named = set(re.findall(r"`(\w+)`", GLOSSARY.read_text()))
    nouns = {name: file for file in HEADERS for name in classes(file.read_text())}
    assert len(nouns) > 40, "the pattern finds no classes any more"
    missing = sorted(
        f"{name} ({file.relative_to(ROOT)})" for name, file in nouns.items() if name not in named | PLAIN
    )
    assert missing == []
    assert sorted(PLAIN - set(nouns)) == []
    assert [room for room in ROOMS if f"`src/horovod/{room}`" not in GLOSSARY.read_text()] == []


def test_every_class_in_the_glossary_exists() -> None:
    named = re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", GLOSSARY.read_text())
    code = "\n".join(file.read_text() for file in SOURCES)
    defined = set(re.findall(r"\b(?:class|struct) (?:\[\[nodiscard\]\] )?(\w+)", code))
    assert [name for name in named if name not in defined] == []


@pytest.mark.parametrize("room", ["core", "src", "pages"])
def test_words_that_were_given_up_do_not_come_back(room: str) -> None:
    files = PAGES if room == "pages" else [file for file in SOURCES if file.is_relative_to(ROOT / room)]
    words = {**GIVEN_UP, **GIVEN_UP_IN_CORE} if room == "core" else GIVEN_UP
    assert files
    hits = [hit for file in files for hit in found(words, file, file.read_text())]
    assert hits == []


def test_a_word_that_was_given_up_is_found() -> None:
    text = "the baton\nhis baton's end\na path/keeper.md\na keeper"
    hits = found(GIVEN_UP, GLOSSARY, text)
    assert [hit.split(":")[1] for hit in hits] == ["1", "2", "4"]
