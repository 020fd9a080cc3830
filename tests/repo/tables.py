"""Tables of pages that are made from the sources, between marks that name the command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Table", "stale", "write_or_print"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        page: where it stands, below the root of the repository.
        name: in its marks.
        module: of ``tests.repo``, whose ``--write`` makes it.
        make: the text, which ends with a newline.
    """

    page: str
    name: str
    module: str
    make: Callable[[], str]

    @property
    def command(self) -> str:
        return f"python -m tests.repo.{self.module} --write"

    def parts(self) -> tuple[str, str, str]:
        """The page before the table, with its mark; the table; the rest of the page."""
        text = (ROOT / self.page).read_text(encoding="utf-8")
        begin, end = f"<!-- {self.name}: made by `{self.command}` -->\n", f"<!-- end of {self.name} -->\n"
        before, found, rest = text.partition(begin)
        table, closed, after = rest.partition(end)
        assert found, f"{self.page} has no mark before the table {self.name}"
        assert closed, f"{self.page} has no mark after the table {self.name}"
        return before + begin, table, end + after

    def write(self) -> None:
        before, _, after = self.parts()
        (ROOT / self.page).write_text(before + self.make() + after, encoding="utf-8")


def stale(*tables: Table) -> Iterator[str]:
    """Advice about each table that is no longer true."""
    for table in tables:
        if table.parts()[1] != table.make():
            yield f"the table {table.name} of {table.page} has changed: {table.command}"


def write_or_print(parser: argparse.ArgumentParser, *tables: Table) -> argparse.Namespace:
    """Read the command line, and do what it says with the tables, unless it has another option."""
    parser.add_argument("--write", action="store_true", help=f"write into {tables[0].page}")
    args = parser.parse_args()
    if args.write:
        for table in tables:
            table.write()
    elif not any(vars(args).values()):
        print("\n".join(table.make() for table in tables), end="")
    return args
