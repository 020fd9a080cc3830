"""What the package offers under a name, read from its text: nothing is imported, so no framework is needed.

A name is followed to where it is defined: through imports, ``import *``, an instance at the top of a module
whose method it is, and base classes. What is under ``if TYPE_CHECKING`` counts, as for type checkers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"

Definition = ast.FunctionDef | ast.ClassDef
_NO_CODE = ast.Module(body=[], type_ignores=[])  # of a folder without __init__.py


@dataclass(frozen=True)
class Module:
    """A module of the package."""

    name: str


@dataclass(frozen=True)
class Object:
    """A function, a class, an instance of a class or another value.

    Attributes:
        module: where it is defined.
        node: its definition; ``None`` for a value that is no call of a class.
        owner: the class whose method it is.
        instance: it is an instance of the class ``node``.
    """

    module: str
    node: Definition | None = None
    owner: Object | None = None
    instance: bool = False

    @property
    def doc(self) -> str:
        """The docstring, that of a base class if it has none; empty if there is none."""
        if self.node is None or self.instance:
            return ""
        own = _given_doc(self) or ast.get_docstring(self.node) or _named_doc(self)
        if own or self.owner is None:
            return own
        above = (member(base, self.node.name) for base in _bases(self.owner))
        return next((each.doc for each in above if each is not None and each.doc), "")


@cache
def _tree(module: str) -> ast.Module | None:
    path = SOURCES.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    return _NO_CODE if path.is_dir() and SOURCES in path.parents else None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those at the top of a module, also under ``if`` and ``try``."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _statements(statement.body)
            yield from _statements(statement.orelse)


@cache
def find(module: str, name: str) -> Object | Module | None:
    """What ``module`` has under ``name``; ``None`` for nothing, and for what comes from other packages."""
    tree = _tree(module)
    found: Object | Module | None = None
    for statement in _statements(tree.body if tree else []):
        found = _defined(module, statement, name) or found
    if found is None and _tree(f"{module}.{name}") is not None:
        return Module(f"{module}.{name}")
    return found


def _defined(module: str, statement: ast.stmt, name: str) -> Object | Module | None:
    """What ``statement`` defines as ``name``."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return Object(module, statement) if statement.name == name else None
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        for alias in statement.names:
            star = alias.name == "*" and not name.startswith("_")
            if (star or (alias.asname or alias.name) == name) and _tree(statement.module) is not None:
                found = find(statement.module, name if star else alias.name)
                if found is not None:
                    return found
    targets: list[ast.expr] = []
    value: ast.expr | None = None
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, ast.AnnAssign):
        targets, value = [statement.target], statement.value
    if value is not None and any(isinstance(each, ast.Name) and each.id == name for each in targets):
        return _evaluate(module, value) or Object(module)
    return None


def _evaluate(module: str, value: ast.expr) -> Object | Module | None:
    if isinstance(value, ast.Name):
        return find(module, value.id)
    if isinstance(value, ast.Attribute):
        base = _evaluate(module, value.value)
        if isinstance(base, Module):
            return find(base.name, value.attr)
        return member(base, value.attr) if base is not None else None
    if isinstance(value, ast.Call):
        made = _evaluate(module, value.func)
        if isinstance(made, Object) and isinstance(made.node, ast.ClassDef):
            return Object(made.module, made.node, instance=True)
    return None


def _bases(of: Object) -> list[Object]:
    """The base classes that the package defines."""
    if not isinstance(of.node, ast.ClassDef):
        return []
    found = (_evaluate(of.module, base) for base in of.node.bases)
    return [each for each in found if isinstance(each, Object) and isinstance(each.node, ast.ClassDef)]


def member(of: Object, name: str) -> Object | None:
    """The method or inner class ``name`` of a class or an instance."""
    if not isinstance(of.node, ast.ClassDef):
        return None
    for statement in of.node.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name == name:
            return Object(of.module, statement, Object(of.module, of.node))
    return next((each for base in _bases(of) if (each := member(base, name))), None)


def members(of: Object) -> list[Object]:
    """The public methods and properties of a class, its own first, each once."""
    found: dict[str, Object] = {}
    for holder in [of, *_bases(of)]:
        if not isinstance(holder.node, ast.ClassDef):
            continue
        here = [
            Object(holder.module, statement, holder)
            for statement in holder.node.body
            if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_")
        ]
        for each in here if holder is of else members(holder):
            assert each.node is not None
            found.setdefault(each.node.name, each)
    return list(found.values())


def dotted(path: str) -> Object | Module | None:
    """What stands at ``package.module.Class.method``; also a function within a function."""
    first, *rest = path.split(".")
    at: Object | Module | None = Module(first)
    for name in rest:
        if isinstance(at, Module):
            at = find(at.name, name)
        elif at is not None and isinstance(at.node, ast.FunctionDef):
            inner = (each for each in ast.walk(at.node) if isinstance(each, Definition) and each.name == name)
            node = next(inner, None)
            at = Object(at.module, node) if node else None
        else:
            at = member(at, name) if at is not None else None
    return at


def _named_doc(of: Object) -> str:
    """The docstring of a class that says ``__doc__ = Other.__doc__``."""
    for statement in of.node.body if isinstance(of.node, ast.ClassDef) else []:
        if (
            isinstance(statement, ast.Assign)
            and ast.unparse(statement.targets[0]) == "__doc__"
            and isinstance(statement.value, ast.Attribute)
        ):
            other = _evaluate(of.module, statement.value.value)
            return other.doc if isinstance(other, Object) else ""
    return ""


def _given_doc(of: Object) -> str:
    """The docstring of a function whose module says ``function.__doc__ = other.__doc__`` below it."""
    tree = _tree(of.module) if of.owner is None and of.node is not None else None
    for statement in tree.body if tree else []:
        if (
            isinstance(statement, ast.Assign)
            and of.node is not None
            and ast.unparse(statement.targets[0]) == f"{of.node.name}.__doc__"
            and isinstance(statement.value, ast.Attribute)
        ):
            other = _evaluate(of.module, statement.value.value)
            return other.doc if isinstance(other, Object) else ""
    return ""


def decorated(of: Object, name: str) -> bool:
    """Whether the decorator ``name`` stands above a definition."""
    return of.node is not None and any(
        ast.unparse(each).split("(")[0].split(".")[-1] == name for each in of.node.decorator_list
    )


def signature(of: Object) -> str:
    """The parameters and the result of a function, for a class those of its constructor."""
    node = of.node
    if isinstance(node, ast.ClassDef):
        made = member(of, "__init__")
        if made is not None and isinstance(made.node, ast.FunctionDef):
            return _written(made.node, drop_first=True, result=False)
        return f"({', '.join(_fields(of))})" if decorated(of, "dataclass") else ""
    if isinstance(node, ast.FunctionDef):
        return _written(node, of.owner is not None and not decorated(of, "staticmethod"), result=True)
    return ""


def _fields(of: Object) -> list[str]:
    inherited = [field for base in _bases(of) for field in _fields(base)]
    own = [each for each in (of.node.body if of.node else []) if isinstance(each, ast.AnnAssign)]
    return [*inherited, *(ast.unparse(each) for each in own)]


def _written(node: ast.FunctionDef, drop_first: bool, result: bool) -> str:
    arguments = node.args
    if drop_first:
        positional = [*arguments.posonlyargs, *arguments.args][1:]
        kept = len(arguments.posonlyargs) - 1 if arguments.posonlyargs else 0
        arguments = ast.arguments(
            posonlyargs=positional[: max(kept, 0)],
            args=positional[max(kept, 0) :],
            vararg=arguments.vararg,
            kwonlyargs=arguments.kwonlyargs,
            kw_defaults=arguments.kw_defaults,
            kwarg=arguments.kwarg,
            defaults=arguments.defaults,
        )
    returned = f" -> {ast.unparse(node.returns)}" if result and node.returns is not None else ""
    return f"({ast.unparse(arguments)}){returned}"
