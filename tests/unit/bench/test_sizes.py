"""Sizes as people write them."""

from __future__ import annotations

import pytest

from horovod.bench.options import parse_size, series, size_name


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4", 4),
        ("1K", 1024),
        ("64k", 65536),
        ("1.5M", 1572864),
        ("2GiB", 2 << 30),
        ("8 MB", 8 << 20),
        ("7B", 7),
        (" 16K ", 16384),
    ],
)
def test_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "K", "-4", "0", "4T", "1e3", "0.5", "1.3K", "4,8", "0x10", "nan"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is no size") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


def test_series_ends_at_the_largest_size_or_below() -> None:
    assert series(4, 64, 4) == (4, 16, 64)
    assert series(4, 63, 4) == (4, 16)
    assert series(8, 8, 2) == (8,)


def test_series_with_a_small_factor_names_no_size_twice() -> None:
    assert series(1, 4, 1.5) == (1, 2, 3)


@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0, float("nan")])
def test_series_that_would_not_end_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="must be above 1"):
        series(4, 64, factor)


def test_series_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="smallest must not be larger"):
        series(64, 4, 2)


@pytest.mark.parametrize(
    ("size_bytes", "name"),
    [
        (4, "4 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 << 20, "64 MiB"),
        (1 << 30, "1 GiB"),
    ],
)
def test_name_of_a_size(size_bytes: int, name: str) -> None:
    assert size_name(size_bytes) == name
