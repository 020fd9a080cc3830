"""Names that scripts import from ``horovod.runner``."""

from __future__ import annotations

import pytest

import horovod.runner.launch
from horovod.launch.cli import run_commandline
from horovod.runner.common.util.env import get_env_rank_and_size

FAMILIES = [
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
]


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in FAMILIES:
        for name in family:
            monkeypatch.delenv(name, raising=False)


def test_launch_module_has_the_command() -> None:
    assert horovod.runner.launch.run_commandline is run_commandline


def test_without_launcher_the_world_is_one() -> None:
    assert get_env_rank_and_size() == (0, 1)


@pytest.mark.parametrize("first", range(len(FAMILIES)))
def test_first_complete_family_wins(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (rank, size) in enumerate(FAMILIES[first:]):
        monkeypatch.setenv(rank, str(number))
        monkeypatch.setenv(size, "8")
    assert get_env_rank_and_size() == (0, 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_half_a_pair_is_an_error(family: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in family:
        monkeypatch.setenv(name, "0")
        with pytest.raises(RuntimeError, match=f"{family[0]} and {family[1]}"):
            get_env_rank_and_size()
        monkeypatch.delenv(name)


def test_text_instead_of_a_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "one")
    monkeypatch.setenv("PMI_SIZE", "8")
    with pytest.raises(RuntimeError, match="PMI_RANK='one'"):
        get_env_rank_and_size()
