"""The price list of CONTRIBUTING.md is true."""

from __future__ import annotations

from pathlib import Path

from tests.repo.prices import BEGIN, END, PAGE, Price, files_that_name, table


def test_the_price_list_is_what_the_product_costs() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "has something become dearer? python -m tests.repo.prices --write"


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
