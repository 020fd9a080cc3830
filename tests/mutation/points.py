"""Places of a C++ source that can be mutated, found with libclang; offsets are those of the file in bytes."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clang import cindex

Kind = cindex.CursorKind

COMPARISONS = {
    "<": ("less", ("<=", ">=")),
    "<=": ("less_equal", ("<", ">")),
    ">": ("greater", (">=", "<=")),
    ">=": ("greater_equal", (">", "<")),
    "==": ("equal", ("!=",)),
    "!=": ("not_equal", ("==",)),
}
ARITHMETIC = {"+": ("plus", ("-",)), "-": ("minus", ("+",))}
LOGICAL = {"&&": ("conjunct", "true"), "||": ("disjunct", "false")}

# Of points that cover the same text the first is the outer one.
ORDER = ("kept", "conjunct", "disjunct", "truth", "negation", "comparison", "arithmetic", "constant")

# Parsed once: reading them takes much longer than reading ours.
STANDARD_HEADERS = (
    *(
        "algorithm",
        "array",
        "atomic",
        "chrono",
        "condition_variable",
        "cstring",
        "deque",
        "functional",
        "map",
    ),
    *("memory", "mutex", "optional", "random", "set", "span", "sstream", "string", "thread", "unordered_map"),
    *("variant", "vector"),
)

INTEGERS = {
    cindex.TypeKind.INT,
    cindex.TypeKind.UINT,
    cindex.TypeKind.LONG,
    cindex.TypeKind.ULONG,
    cindex.TypeKind.LONGLONG,
    cindex.TypeKind.ULONGLONG,
    cindex.TypeKind.SHORT,
    cindex.TypeKind.USHORT,
    cindex.TypeKind.UCHAR,
    cindex.TypeKind.SCHAR,
}
NUMBERS = INTEGERS | {cindex.TypeKind.DOUBLE, cindex.TypeKind.FLOAT}

EXPRESSION_STATEMENTS = {
    Kind.CALL_EXPR,
    Kind.BINARY_OPERATOR,
    Kind.COMPOUND_ASSIGNMENT_OPERATOR,
    Kind.UNARY_OPERATOR,
    Kind.UNEXPOSED_EXPR,
    Kind.CSTYLE_CAST_EXPR,
}
BODIES = {
    Kind.COMPOUND_STMT,
    Kind.IF_STMT,
    Kind.FOR_STMT,
    Kind.WHILE_STMT,
    Kind.DO_STMT,
    Kind.CXX_FOR_RANGE_STMT,
}
DECLARATIONS = {Kind.VAR_DECL, Kind.FIELD_DECL, Kind.PARM_DECL}
CONSTANT_CONTEXTS = {
    Kind.ENUM_CONSTANT_DECL,
    Kind.STATIC_ASSERT,
    Kind.ENUM_DECL,
    Kind.TEMPLATE_NON_TYPE_PARAMETER,
}


@dataclass(frozen=True)
class Point:
    """Text from `begin` to `end` that becomes a call of `function`; one mutant for each of `becomes`."""

    begin: int
    end: int
    function: str
    becomes: tuple[str, ...]
    operator: tuple[int, int] | None = None
    """Where the operator is, which becomes a comma (or nothing, if it stands first)."""

    @property
    def rank(self) -> int:
        family = self.function
        if any(family == name for name, _ in COMPARISONS.values()):
            family = "comparison"
        elif any(family == name for name, _ in ARITHMETIC.values()):
            family = "arithmetic"
        return ORDER.index(family)


@dataclass
class Found:
    points: list[Point]
    skipped: int
    """Constants which the compiler needs: no process can choose them."""


def compiler_arguments(core: Path, compiler: str = "g++") -> list[str]:
    headers = subprocess.run(
        [compiler, "-print-file-name=include"], check=True, capture_output=True, text=True
    ).stdout.strip()
    # libclang comes without the compiler's own headers; those of GCC serve it.
    return ["-x", "c++", "-std=c++20", f"-I{core}", "-nobuiltininc", "-isystem", headers]


class Source:
    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.found: dict[tuple[int, int, str], Point] = {}
        self.skipped: set[int] = set()

    def between(self, begin: int, end: int) -> str:
        text = self.data[begin:end].decode()
        return re.sub(r"//[^\n]*\n|/\*.*?\*/", " ", text, flags=re.DOTALL).strip()

    def add(self, point: Point) -> None:
        self.found.setdefault((point.begin, point.end, point.function), point)


def span(cursor: cindex.Cursor) -> tuple[int, int]:
    return cursor.extent.start.offset, cursor.extent.end.offset


def bare(cursor: cindex.Cursor) -> cindex.Cursor:
    """Without conversions that are not written out."""
    while cursor.kind == Kind.UNEXPOSED_EXPR:
        children = list(cursor.get_children())
        if len(children) != 1 or span(children[0]) != span(cursor):
            break
        cursor = children[0]
    return cursor


def operands(source: Source, cursor: cindex.Cursor) -> tuple[str, cindex.Cursor, cindex.Cursor] | None:
    """The operator of a binary expression and what it combines, whether built in or overloaded."""
    if cursor.kind not in (Kind.BINARY_OPERATOR, Kind.CALL_EXPR, Kind.UNEXPOSED_EXPR):
        return None
    children = [c for c in cursor.get_children() if c.extent.start.file is not None]
    children = [c for c in children if not re.fullmatch(r"[<>=!+\-&|]{1,2}", source.between(*span(c)))]
    if len(children) != 2:
        return None
    left, right = sorted(children, key=lambda c: c.extent.start.offset)
    begin, end = span(cursor)
    if span(left)[0] != begin or span(right)[1] != end or span(left)[1] >= span(right)[0]:
        return None
    return source.between(span(left)[1], span(right)[0]), left, right


def operator_at(
    source: Source, left: cindex.Cursor, right: cindex.Cursor, text: str
) -> tuple[int, int] | None:
    begin = source.data.find(text.encode(), span(left)[1], span(right)[0])
    return None if begin < 0 else (begin, begin + len(text))


def is_number(kind: cindex.Type) -> bool:
    canonical = kind.get_canonical()
    return canonical.kind in NUMBERS


def is_time(kind: cindex.Type) -> bool:
    name: str = kind.get_canonical().spelling
    return name.removeprefix("const ").startswith("std::chrono::duration<")


def is_constant(cursor: cindex.Cursor) -> bool:
    """A name of a constant that the compiler knows."""
    target = cursor.referenced
    if target is None or target.kind != Kind.VAR_DECL or not (is_number(target.type) or is_time(target.type)):
        return False
    return any(token.spelling == "constexpr" for token in _first_tokens(target))


def _first_tokens(cursor: cindex.Cursor) -> Iterator[cindex.Token]:
    for count, token in enumerate(cursor.get_tokens()):
        if count == 6 or token.spelling == "=":
            return
        yield token


class Finder:
    """Walks what a translation unit has of one file."""

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.name = name

    def walk(self, cursor: cindex.Cursor, parent: cindex.Cursor | None, constant: bool) -> None:
        where = cursor.extent.start
        if where.file is not None and where.file.name != self.name:
            return
        if cursor.kind in CONSTANT_CONTEXTS:
            constant = True
        if cursor.kind == Kind.VAR_DECL and any(t.spelling == "constexpr" for t in _first_tokens(cursor)):
            constant = True
        self.look(cursor, parent, constant)
        children = list(cursor.get_children())
        for index, child in enumerate(children):
            held = constant
            if cursor.kind in DECLARATIONS and child.extent.start.offset < cursor.location.offset:
                held = True  # of its type
            if cursor.kind == Kind.CASE_STMT and index == 0:
                held = True
            self.walk(child, cursor, held)

    def look(self, cursor: cindex.Cursor, parent: cindex.Cursor | None, constant: bool) -> None:
        source = self.source
        begin, end = span(cursor)
        if end <= begin:
            return
        if constant:
            if cursor.kind in (Kind.INTEGER_LITERAL, Kind.FLOATING_LITERAL):
                source.skipped.add(begin)
            return
        if cursor.kind == Kind.CXX_BOOL_LITERAL_EXPR:
            text = source.between(begin, end)
            if text in ("true", "false"):
                source.add(Point(begin, end, "truth", ("false" if text == "true" else "true",)))
        elif cursor.kind in (Kind.INTEGER_LITERAL, Kind.FLOATING_LITERAL):
            self.literal(cursor, parent)
        elif cursor.kind in (Kind.DECL_REF_EXPR, Kind.MEMBER_REF_EXPR) and is_constant(cursor):
            if re.fullmatch(r"[\w:]+", source.between(begin, end)):
                becomes = ("*10", "/10") if is_time(cursor.referenced.type) else ("+1", "-1")
                source.add(Point(begin, end, "constant", becomes))
        elif cursor.kind == Kind.UNARY_OPERATOR and re.match(rb"!(?!=)", source.data[begin:end]):
            # A != that the compiler makes of an == is such an operator for libclang, too.
            source.add(Point(begin, end, "negation", ("without !",), (begin, begin + 1)))
        self.binary(cursor)
        self.condition(cursor)
        self.statement(cursor, parent)

    def literal(self, cursor: cindex.Cursor, parent: cindex.Cursor | None) -> None:
        source = self.source
        begin, end = span(cursor)
        before = source.data[:begin].rstrip()[-1:]
        after = source.data[end : end + 1]
        if not re.fullmatch(r"[\d.'a-zA-Z]+", source.between(begin, end)):
            return  # of a macro
        compared = parent is not None and parent.kind == Kind.BINARY_OPERATOR
        of_template = after == b">" or (before == b"<" and after in (b">", b","))
        of_array = before == b"[" and after == b"]" and (parent is None or parent.kind in DECLARATIONS)
        if not compared and (of_template or of_array):
            source.skipped.add(begin)
            return
        source.add(Point(begin, end, "constant", ("+1", "-1")))

    def binary(self, cursor: cindex.Cursor) -> None:
        source = self.source
        parts = operands(source, cursor)
        if parts is None:
            return
        operator, left, right = parts
        at = operator_at(source, left, right, operator)
        begin, end = span(cursor)
        if at is None:
            return
        if operator in COMPARISONS:
            function, becomes = COMPARISONS[operator]
            source.add(Point(begin, end, function, becomes, at))
        elif operator in LOGICAL:
            function, neutral = LOGICAL[operator]
            for side in (left, right):
                inner = operands(source, bare(side))
                if inner is None or inner[0] != operator:
                    source.add(Point(*span(side), function, (neutral,)))
        elif operator in ARITHMETIC and all(is_number(each.type) for each in (cursor, left, right)):
            function, becomes = ARITHMETIC[operator]
            source.add(Point(begin, end, function, becomes, at))

    def condition(self, cursor: cindex.Cursor) -> None:
        """What an if, a while or ?: asks, unless it is an operator that has mutants of its own."""
        if cursor.kind not in (Kind.IF_STMT, Kind.WHILE_STMT, Kind.CONDITIONAL_OPERATOR):
            return
        source = self.source
        children = list(cursor.get_children())
        for child, following in itertools.pairwise(children):
            if not child.kind.is_expression():
                continue
            between = source.between(span(child)[1], span(following)[0])
            if between[:1] not in (")", "?"):
                continue
            asked = bare(child)
            parts = operands(source, asked)
            own = parts is not None and (parts[0] in COMPARISONS or parts[0] in LOGICAL)
            negated = source.data[span(asked)[0] : span(asked)[0] + 1] == b"!"
            if own or negated or asked.kind == Kind.CXX_BOOL_LITERAL_EXPR:
                return
            before = source.data[: cursor.extent.end.offset][cursor.extent.start.offset : span(child)[0]]
            if b"constexpr" in before.split(b"(")[0]:
                source.skipped.add(span(child)[0])
                return
            source.add(Point(*span(child), "truth", ("the contrary",)))
            return

    def statement(self, cursor: cindex.Cursor, parent: cindex.Cursor | None) -> None:
        if parent is None or parent.kind not in BODIES or cursor.kind not in EXPRESSION_STATEMENTS:
            return
        source = self.source
        begin, end = span(cursor)
        before = source.data[:begin].rstrip()[-4:]
        starts = before[-1:] in (b"{", b"}", b";", b")", b":") or before == b"else"
        if parent.kind == Kind.FOR_STMT and before[-1:] == b";":
            return  # a part of its head
        # A comment before it ends with its line.
        if not starts and not re.search(rb"//[^\n]*\s*$", source.data[max(0, begin - 200) : begin]):
            return
        of_macro = re.match(rb"[A-Z][A-Z_]+\(", source.data[begin:end])
        if source.data[end : end + 1] == b";" and not of_macro:
            source.add(Point(begin, end, "kept", ("nothing",)))


def find(sources: Sequence[Path], root: Path, wanted: tuple[str, ...], precompiled: Path) -> dict[str, Found]:
    """Points of those files under `root` that begin with `wanted`, seen while parsing `sources`.

    `precompiled`: where to put what is parsed once for all of them.
    """
    arguments = compiler_arguments(root / "core")
    index = cindex.Index.create()
    options = cindex.TranslationUnit.PARSE_INCOMPLETE
    text = "".join(f"#include <{name}>\n" for name in STANDARD_HEADERS)
    headers = index.parse("headers.h", ["-x", "c++-header", *arguments[2:]], [("headers.h", text)], options)
    headers.save(str(precompiled))
    arguments += ["-include-pch", str(precompiled)]
    files: dict[str, Source] = {}
    for path in sources:
        unit = index.parse(str(path), arguments)
        # libclang complains, nowhere, of a built-in type that it finds in the precompiled headers again.
        found = [d for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
        errors = [str(d) for d in found if d.location.file is not None]
        if errors:
            raise SystemExit(f"libclang cannot read {path}:\n" + "\n".join(errors))
        mine: dict[str, Source] = {}
        for cursor in unit.cursor.get_children():
            file = cursor.location.file
            if file is None:
                continue
            name = str(Path(file.name).relative_to(root)) if Path(file.name).is_relative_to(root) else ""
            if not name.startswith(wanted) or name in files:
                continue
            if name not in mine:
                mine[name] = Source(Path(file.name))
            Finder(mine[name], file.name).walk(cursor, None, constant=False)
        files.update(mine)
    return {
        name: Found(sorted(s.found.values(), key=lambda p: (p.begin, -p.end, p.rank)), len(s.skipped))
        for name, s in files.items()
    }
