"""The replies to ``collect``: made once for all who ask the same, as the book of N ranks goes to N ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from horovod.bootstrap.store.messages import SharedBody

__all__ = ["Collection", "forget_beyond"]

T = TypeVar("T")


@dataclass(eq=False)
class _Book:
    body: SharedBody
    json: bytes | None  # as long as it was asked for once


@dataclass(eq=False)
class Collection(Generic[T]):
    """Keys below one prefix that somebody collects, who waits for more of them, and the encoded replies while
    they are fresh, by what is left out of them.
    """

    prefix: str
    names: set[str]
    waiters: list[T] = field(default_factory=list)
    ways: set[bytes | None] = field(default_factory=set)
    """Values that anybody has ever left out."""
    _books: dict[bytes | None, _Book] = field(default_factory=dict)

    @property
    def kept_bytes(self) -> int:
        """Memory that the replies take."""
        return sum(len(book.body.blocks) for book in self._books.values())

    def changed(self) -> None:
        """Drop the replies: they are no longer right, or shall not be kept."""
        self._books.clear()

    def book(self, usual: bytes | None, values: Mapping[str, bytes], *, for_many: bool) -> SharedBody:
        """The reply without what is ``usual``. Who asks alone gets it as it is: to deflate it takes longer
        than the bytes that it saves, and whoever changes a value and asks in turn would keep us busy.
        """
        book = self._books.get(usual)
        if book is None:
            text = _as_object(self.names, self.prefix, usual, values)
            body = SharedBody.of(text) if for_many else SharedBody.plain(text)
            book = self._books[usual] = _Book(body, None if for_many else text)
        elif book.json is not None:
            book.body, book.json = SharedBody.of(book.json), None
        return book.body


def _as_object(names: Iterable[str], prefix: str, usual: bytes | None, values: Mapping[str, bytes]) -> bytes:
    found = ((name, values[prefix + name]) for name in names)
    return b"{" + b",".join(json.dumps(n).encode() + b":" + v for n, v in found if v != usual) + b"}"


def forget_beyond(limit_bytes: int, collections: Iterable[Collection[T]]) -> None:
    """Keep no more than that of replies: those of ``collections`` that stand last stay."""
    kept_bytes = 0
    for collection in reversed(list(collections)):
        kept_bytes += collection.kept_bytes
        if kept_bytes > limit_bytes:
            kept_bytes -= collection.kept_bytes
            collection.changed()
