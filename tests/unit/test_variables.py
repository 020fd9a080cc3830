"""What is said about variables with our prefix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from horovod.bootstrap.variables import WITHOUT_EFFECT, is_known, remarks

ROOT = Path(__file__).resolve().parents[2]


def about(**variables: str) -> list[str]:
    return list(remarks(variables))


def test_nothing_is_said_of_what_is_read_or_set_by_launchers() -> None:
    assert (
        about(HOROVOD_RANK="1", HOROVOD_SIZE="2", HOROVOD_CYCLE_TIME="5", HOROVOD_STARTER="3,4", HOME="/")
        == []
    )


@pytest.mark.parametrize("row", WITHOUT_EFFECT, ids=lambda row: row.variables[0])
def test_what_has_no_effect_is_told_if_it_asks_for_something(row: object) -> None:
    row = next(each for each in WITHOUT_EFFECT if each is row)
    for name in row.variables:
        assert about(**{name: "7"}) == [f"{name}=7 has no effect: {row.why}."]
        assert about(**{name: "0"}) == about(**{name: row.usual}) == about(**{name: ""}) == []
    for name in row.further:
        assert about(**{name: "7"}) == []


def test_every_variable_has_a_line_of_its_own() -> None:
    said = about(HOROVOD_HIERARCHICAL_ALLREDUCE="1", HOROVOD_TORUS_ALLREDUCE="1", HOROVOD_CCL_CACHE="1")
    assert [line.partition("=")[0] for line in said] == [
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        "HOROVOD_TORUS_ALLREDUCE",
        "HOROVOD_CCL_CACHE",
    ]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("HOROVOD_FUSION_TRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
        ("HOROVOD_FUSION_THRESHOLD_MB", "HOROVOD_FUSION_THRESHOLD"),
        ("HOROVOD_CYCLE_TIME_MS", "HOROVOD_CYCLE_TIME"),
        ("HOROVOD_LOGLEVEL", "HOROVOD_LOG_LEVEL"),
        ("HOROVOD_STALL_CHECK_DISABLED", "HOROVOD_STALL_CHECK_DISABLE"),
        ("HOROVOD_TIME_LINE", "HOROVOD_TIMELINE"),
        ("HOROVOD_AUTO_TUNE", "HOROVOD_AUTOTUNE"),
        ("HOROVOD_GPU_ALLREDUC", "HOROVOD_GPU_ALLREDUCE"),
    ],
)
def test_a_name_that_is_nearly_one_of_ours_is_told_with_that(wrong: str, meant: str) -> None:
    assert about(**{wrong: "1"}) == [f"{wrong} is not read. Did you mean {meant}?"]


def test_names_like_none_of_ours_are_one_line() -> None:
    (said,) = about(HOROVOD_XYZZY="1", HOROVOD_PLUGH="1")
    assert said == "HOROVOD_PLUGH, HOROVOD_XYZZY: nothing here reads a variable of this name."


@pytest.mark.parametrize(
    "name",
    [
        "HOROVOD_WITH_PYTORCH",
        "HOROVOD_GPU_OPERATIONS",
        "HOROVOD_GPU",
        "HOROVOD_NCCL_HOME",
        "HOROVOD_SPARK_START_TIMEOUT",
    ],
)
def test_what_images_and_other_packages_set_is_known(name: str) -> None:
    assert about(**{name: "NCCL"}) == []


def test_every_variable_in_the_sources_is_known() -> None:
    files = [*(ROOT / "src" / "horovod").rglob("*.py")]
    named = {name for file in files for name in re.findall(r'"(HOROVOD_[A-Z_]+[A-Z])"', file.read_text())}
    assert "HOROVOD_RANK" in named
    assert [name for name in sorted(named) if not is_known(name)] == []
