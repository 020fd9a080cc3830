"""The pages are written in short sentences, for readers who learned English at work."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.sentences import paragraphs, plain, sentences

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
MOST_WORDS = 35
MOST_ON_AVERAGE = 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page: Path) -> None:
    found = sentences(page.read_text())
    long = [f"line {each.line}: {each.words} words: {each.text}" for each in found if each.words > MOST_WORDS]
    assert long == []
    prose = [each.words for each in found if not each.cell]  # cells of tables are shorter than sentences
    assert sum(prose) <= MOST_ON_AVERAGE * len(prose), f"{sum(prose) / len(prose):.1f} words on average"


def test_what_is_a_sentence() -> None:
    page = """\
# A heading is none

One is here. Another one (with e.g. an abbreviation) is
on two lines! A [link of three words](page.md#a.b) counts
as such, and `code. With a stop` as one word.

```python
code = "is none. Of course."
```

    Nor is this.

* an item

| a cell | of two. Sentences |
|---|---|
<!-- a comment
says nothing -->
Last one."""
    found = sentences(page)
    assert [each.words for each in found] == [3, 10, 13, 2, 2, 2, 1, 2]
    assert [each.line for each in found] == [3, 3, 3, 13, 15, 15, 15, 19]
    assert [each.cell for each in found] == [False] * 4 + [True] * 3 + [False]


def test_marks_are_no_words() -> None:
    assert plain("**bold** and ``two `ticks` `` ![a picture](x.png)") == "bold and CODE a picture"
    assert paragraphs("a\nb\n\nc") == [(1, "a b", False), (4, "c", False)]
