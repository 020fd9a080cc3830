"""The price list of CONTRIBUTING.md counts files as it says."""

from __future__ import annotations

from pathlib import Path

from tests.repo.prices import Price, files_that_name


def test_files_are_counted_by_what_they_name(tmp_path: Path) -> None:
    for place, text in {
        "core/collectives/gather.cpp": "int gather;",
        "core/engine/engine.cpp": "use(Gather);",
        "core/engine/other.cpp": "nothing",
        "src/horovod/notes.md": "gather",
        "src/horovod/calls.py": "def GATHER(): ...",
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    price = Price("a collective", "a file", "a line", "gather", r"gather", r"gather")
    assert files_that_name(price, tmp_path) == (
        ["core/collectives/gather.cpp"],
        ["core/engine/engine.cpp", "src/horovod/calls.py"],
    )
