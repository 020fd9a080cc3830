"""The map of the folders, made from their docstrings and, in `core`, from `core/README.md`:

python -m tests.repo.map --write
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.repo.tables import ROOT, Table, write_or_print

__all__ = ["MAP", "core_folders", "core_lines"]

_CORE = ROOT / "core"
_PACKAGE = ROOT / "src" / "horovod"
_LINE = re.compile(r"^\* `(core[\w/]*)`: (.+)\.$", re.MULTILINE)


def core_lines() -> dict[str, str]:
    """Folders of `core` that its README names, and what they hold."""
    return dict(_LINE.findall((_CORE / "README.md").read_text(encoding="utf-8")))


def core_folders() -> list[str]:
    """Folders that have sources, below the root of the repository."""
    return _folders(_CORE, "*.[ch]*")


def _folders(top: Path, files: str) -> list[str]:
    found = {path.parent for path in top.rglob(files) if path.is_file()}
    return sorted(folder.relative_to(ROOT).as_posix() for folder in found)


def _packages() -> Iterator[tuple[str, str]]:
    for folder in _folders(_PACKAGE, "__init__.py"):
        tree = ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8"))
        first = (ast.get_docstring(tree) or "").partition("\n\n")[0]
        yield folder, " ".join(first.split()).replace("``", "`").rstrip(".")


def _map() -> str:
    rows = ["| folder | holds |", "|---|---|"]
    rows += [f"| `{folder}/` | {holds} |" for folder, holds in (*core_lines().items(), *_packages())]
    return "\n".join(rows) + "\n"


MAP = Table("docs/architecture.md", "the map", "map", _map)

if __name__ == "__main__":
    write_or_print(argparse.ArgumentParser(description="The map of the folders."), MAP)
