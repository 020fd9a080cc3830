"""What the package's files import, read from their text."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "horovod"


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(file: Path) -> str:
    """ "horovod.torch" of horovod/torch/__init__.py."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path) -> Iterator[str]:
    """Full names of what a file imports, also inside functions; not what it imports for type checkers only.

    "a.b.c" for `from a.b import c`, whether that is a module or a name in one.
    """
    package = file.relative_to(PACKAGE.parent).parent.parts

    class Imports(ast.NodeVisitor):
        def __init__(self) -> None:
            self.found: list[str] = []

        def visit_If(self, node: ast.If) -> None:
            for_checkers = "TYPE_CHECKING" in ast.unparse(node.test)
            for statement in node.orelse if for_checkers else [*node.body, *node.orelse]:
                self.visit(statement)

        def visit_Import(self, node: ast.Import) -> None:
            self.found += [alias.name for alias in node.names]

        def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += [node.module] if node.module else []
            self.found += [".".join([*base, alias.name]) for alias in node.names]

    visitor = Imports()
    visitor.visit(ast.parse(file.read_text()))
    yield from visitor.found
