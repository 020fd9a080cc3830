"""The page on elastic jobs names every event of ``--elastic-events``, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def events_of(source: str) -> set[str]:
    """The names that calls of ``log`` and ``_log`` begin with."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args)
    names = (call.args[0] for call in calls if getattr(call.func, "attr", "") in ("log", "_log"))
    return {
        part.value
        for name in names
        for part in ast.walk(name)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def test_the_table_of_events_is_whole() -> None:
    page = (ROOT / "docs" / "elastic.md").read_text()
    (table,) = re.findall(r"^\| `event` \|.*\n\|[-| ]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    told = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    folder = ROOT / "src" / "horovod" / "launch" / "elastic"
    written = set().union(*(events_of(path.read_text()) for path in folder.glob("*.py")))
    assert {"world", "left", "ended"} <= written
    assert told == written
