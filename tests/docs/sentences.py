"""The sentences of a page of text, as a reader counts them.

Code, headings and comments are no sentences. In a sentence a piece of code is one word, and a link is its
text. Each item of a list and each cell of a table stands for itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CODE = "CODE"
_ITEM = re.compile(r"^(?:[*+-]|\d+\.) ")
# A stop ends a sentence where a blank follows and no small letter after it: "e.g. this" goes on.
_STOP = re.compile(r"(?<=[.!?])[\")\]*_]*\s+(?![a-z])")


@dataclass(frozen=True)
class Sentence:
    """``line`` is where its paragraph begins, from 1; ``cell``: it stands in a table."""

    line: int
    text: str
    cell: bool = False

    @property
    def words(self) -> int:
        """What has a letter or a digit in it."""
        return len([word for word in self.text.split() if re.search(r"\w", word)])


def plain(text: str) -> str:
    """``text`` without marks: a piece of code is one word, a link is its text."""
    text = re.sub(r"``.+?``|`[^`]+`", _CODE, text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return text.replace("**", "").replace("*", "")


def paragraphs(page: str) -> list[tuple[int, str, bool]]:
    """(line, text, whether it is a cell of a table) of what people read."""
    found: list[tuple[int, str, bool]] = []
    begin, held = 0, []  # type: int, list[str]

    def end() -> None:
        nonlocal held
        if held:
            found.append((begin, " ".join(held), False))
        held = []

    fence = ""
    comment = False
    for number, line in enumerate(page.splitlines(), 1):
        text = line.strip()
        if fence:
            fence = "" if text == fence else fence
        elif comment or text.startswith("<!--"):
            comment = "-->" not in text
        elif opening := re.match(r"(`{3,}|:{3,})", text):
            end()
            fence = opening[1]
        elif not text or text.startswith("#") or (line.startswith("    ") and not held):
            end()
        elif text.startswith("|"):
            end()
            cells = [] if set(text) <= set("|-: ") else re.split(r"(?<!\\)\|", text.strip("|"))
            found += [(number, cell.strip(), True) for cell in cells if cell.strip()]
        else:
            if _ITEM.match(text):
                end()
                text = _ITEM.sub("", text, count=1)
            if not held:
                begin = number
            held.append(text)
    end()
    return found


def sentences(page: str) -> list[Sentence]:
    """The sentences of a page, in order."""
    return [
        Sentence(line, sentence, cell)
        for line, text, cell in paragraphs(page)
        for sentence in _STOP.split(plain(text))
        if re.search(r"\w", sentence)
    ]
