"""The pages of `docs/reference`: the names in their blocks ```` ```{api} MODULE ```` are described.

A line of a block is

    allreduce                      a function or class of the module
    Average: what it is            a value, which has no docstring
    run = horovod.module.inner     a name that the module computes: where it is defined

The descriptions are the docstrings, read from the sources without importing them.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.site.reader import Module, Object, decorated, dotted, find, member, members, signature

BLOCK = re.compile(r"^```\{api\} (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"(\w+)(?:: (.+)| = ([\w.]+))?")


class Unknown(ValueError):
    """A name of a block that the sources do not have."""


@dataclass(frozen=True)
class Entry:
    """A line of a block: ``text`` describes a value, ``source`` says where a computed name is defined."""

    module: str
    name: str
    text: str = ""
    source: str = ""

    def found(self) -> Object:
        """What the name stands for.

        Raises:
            Unknown: the sources have no such name.
        """
        found = dotted(self.source) if self.source else find(self.module, self.name)
        if found is None or isinstance(found, Module):
            where = self.source or f"{self.module}.{self.name}"
            raise Unknown(f"{where} is neither a function, a class nor a value of the sources")
        return found


def entries(page: str) -> Iterator[Entry]:
    """The names of all blocks of a page, in order.

    Raises:
        Unknown: a line that says nothing.
    """
    for module, body in BLOCK.findall(page):
        yield from _entries(module, body)


def _entries(module: str, body: str) -> Iterator[Entry]:
    for line in filter(None, map(str.strip, body.splitlines())):
        said = LINE.fullmatch(line)
        if said is None:
            raise Unknown(f"{module}: {line!r} is no line of a block")
        yield Entry(module, said[1], said[2] or "", said[3] or "")


def described(entry: Entry, docstring: Any) -> str:
    """The reStructuredText of an entry.

    Args:
        docstring: turns a docstring into reStructuredText.
    """
    found = entry.found()
    name = entry.name
    if entry.text:
        return _directive("data", name, entry.text)
    if isinstance(found.node, ast.ClassDef) and not found.instance:
        kind = (
            "exception" if found.node.name.endswith(("Error", "Timeout", "Interrupt", "Failed")) else "class"
        )
        own = [_method(each, docstring) for each in members(found) if each.doc]
        made = member(found, "__init__")
        about = [docstring(each.doc) for each in (found, made) if each is not None and each.doc]
        return _directive(kind, name + signature(found), "\n\n".join([*about, *own]))
    if isinstance(found.node, ast.FunctionDef):
        return _directive("function", name + signature(found), docstring(found.doc))
    raise Unknown(f"{entry.module}.{name} is a value: say what it is, after a colon")


def _method(of: Object, docstring: Any) -> str:
    assert of.node is not None
    if decorated(of, "property"):
        return _directive("property", of.node.name, docstring(of.doc))
    options = [f":{kind}:" for kind in ("classmethod", "staticmethod") if decorated(of, kind)]
    return _directive("method", of.node.name + signature(of), docstring(of.doc), options)


def _directive(kind: str, head: str, body: str, options: list[str] | None = None) -> str:
    lines = "\n".join([*(options or []), "", body])
    return f".. py:{kind}:: {head}\n{textwrap.indent(lines, '   ')}\n"


def expanded(page: str, docstring: Any) -> str:
    """A page with its blocks replaced by descriptions."""

    def one(block: re.Match[str]) -> str:
        descriptions = [described(entry, docstring) for entry in _entries(block[1], block[2])]
        here = f".. py:currentmodule:: {block[1]}\n"  # names in descriptions are first looked for there
        return "``````{eval-rst}\n" + "\n".join([here, *descriptions]) + "``````"

    return BLOCK.sub(one, page)


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""
    from sphinx.errors import ExtensionError
    from sphinx.ext.napoleon import Config, GoogleDocstring

    config = Config(napoleon_google_docstring=True, napoleon_custom_sections=[("Source", "notes_style")])

    def docstring(text: str) -> str:
        return str(GoogleDocstring(text, config))

    def expand(_: Any, page: str, source: list[str]) -> None:
        if "{api}" in source[0]:
            try:
                source[0] = expanded(source[0], docstring)
            except Unknown as error:
                raise ExtensionError(f"{page}: {error}") from error

    def depend(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
        """The pages that docstrings are on are made anew each time: these may have changed anywhere."""
        return [page for page in env.found_docs if Path(page).parts[0] == "reference"]

    app.connect("source-read", expand)
    app.connect("env-get-outdated", depend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
