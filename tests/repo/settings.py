"""The table of ``docs/settings.md`` is made from the settings, and ``test_settings.py`` fails when it is no
longer true:

    python -m tests.repo.settings --write
"""

from __future__ import annotations

import argparse
from pathlib import Path

from horovod.config import SETTINGS, Setting

__all__ = ["BEGIN", "END", "PAGE", "table"]

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
BEGIN = "<!-- settings: made by `python -m tests.repo.settings --write` -->\n"
END = "<!-- end of settings -->\n"


def table() -> str:
    rows = ["| variable | default | option | meaning |", "|---|---|---|---|"]
    rows += [_row(name, setting) for name, setting in SETTINGS.items()]
    return "\n".join(rows) + "\n"


def _row(name: str, setting: Setting) -> str:
    default = setting.default or "–"
    if name.endswith("_bytes"):
        default += f" ({int(default) >> 20} MiB)"
    option = f"`{setting.flag.spelling}`" if setting.flag is not None else ""
    return f"| `{setting.variables[0]}` | {default} | {option} | {setting.doc} |"


def _main() -> None:
    parser = argparse.ArgumentParser(description="The table of the settings.")
    parser.add_argument("--write", action="store_true", help="write it into docs/settings.md")
    if parser.parse_args().write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
    else:
        print(table(), end="")


if __name__ == "__main__":
    _main()
