"""The tables of ``docs/settings.md`` are made from the settings, and ``test_settings.py`` fails when one of
them is no longer true:

    python -m tests.repo.settings --write
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from horovod.bootstrap.variables import WITHOUT_EFFECT, Ineffective
from horovod.config import SETTINGS, Setting

__all__ = ["PAGE", "TABLES", "written"]

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def written(page: str, name: str) -> str:
    """The table of that name in the text of the page."""
    begin, end = _marks(name)
    return page.partition(begin)[2].partition(end)[0]


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: made by `python -m tests.repo.settings --write` -->\n", f"<!-- end of {name} -->\n"


def _settings() -> str:
    rows = ["| variable | default | option | meaning |", "|---|---|---|---|"]
    rows += [_row(name, setting) for name, setting in SETTINGS.items()]
    return "\n".join(rows) + "\n"


def _row(name: str, setting: Setting) -> str:
    default = setting.default or "–"
    if name.endswith("_bytes"):
        default += f" ({int(default) >> 20} MiB)"
    option = f"`{setting.flag.spelling}`" if setting.flag is not None else ""
    return f"| `{setting.variables[0]}` | {default} | {option} | {setting.doc} |"


def _without_effect() -> str:
    rows = ["| variable | option | why it has no effect |", "|---|---|---|"]
    rows += [_row_without_effect(row) for row in WITHOUT_EFFECT]
    return "\n".join(rows) + "\n"


def _row_without_effect(row: Ineffective) -> str:
    variables = ", ".join(f"`{name}`" for name in (*row.variables, *row.further))
    return f"| {variables} | {', '.join(f'`{option}`' for option in row.options)} | {row.why} |"


TABLES: Mapping[str, Callable[[], str]] = {"settings": _settings, "without effect": _without_effect}


def _main() -> None:
    parser = argparse.ArgumentParser(description="The tables of the settings.")
    parser.add_argument("--write", action="store_true", help="write them into docs/settings.md")
    if not parser.parse_args().write:
        print("\n".join(table() for table in TABLES.values()), end="")
        return
    page = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        begin, end = _marks(name)
        before, _, rest = page.partition(begin)
        page = before + begin + table() + end + rest.partition(end)[2]
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    _main()
