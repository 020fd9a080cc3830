from __future__ import annotations

import pytest

from horovod.devices.core_list import as_text, read_list


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("5", (5,)), ("", ()), ("\n", ()), ("a-b", ()), ("3-1", ())],
)
def test_lists_are_read(text: str, numbers: tuple[int, ...]) -> None:
    assert read_list(text) == numbers


def test_lists_are_written() -> None:
    assert as_text([11, 0, 1, 2, 3, 8, 10, 3]) == "0-3,8,10-11"
    assert as_text([]) == ""
