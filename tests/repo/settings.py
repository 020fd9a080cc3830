"""The tables of ``docs/settings.md`` are made from the settings:

python -m tests.repo.settings --write
"""

from __future__ import annotations

import argparse

from tests.repo.tables import Table, write_or_print

from horovod.bootstrap.variables import WITHOUT_EFFECT, Ineffective
from horovod.config import SETTINGS, Setting

__all__ = ["TABLES"]


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


TABLES = (
    Table("docs/settings.md", "settings", "settings", _settings),
    Table("docs/settings.md", "without effect", "settings", _without_effect),
)

if __name__ == "__main__":
    write_or_print(argparse.ArgumentParser(description="The tables of the settings."), *TABLES)
