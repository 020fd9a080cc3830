from __future__ import annotations

from types import SimpleNamespace

import pytest

from horovod.errors import NotInitializedError
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set


@pytest.fixture
def rank_1_of_3(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(topology=SimpleNamespace(rank=1, size=3))
    monkeypatch.setattr(lifecycle, "current", lambda: runtime)
    monkeypatch.setattr(lifecycle, "is_initialized", lambda: True)


def test_ranks_are_sorted_and_any_iterable_of_ints_is_taken() -> None:
    assert ProcessSet([3, 1]).ranks == [1, 3]
    assert ProcessSet(range(2)).ranks == [0, 1]
    assert ProcessSet(reversed([0, 5])).ranks == [0, 5]


def test_other_contents_and_communicators_are_value_errors() -> None:
    for wrong in (["0"], [0.0], 7, object()):
        with pytest.raises(ValueError):
            ProcessSet(wrong)


def test_an_unregistered_set_knows_no_size_and_rank(rank_1_of_3: None) -> None:
    some = ProcessSet([0, 1])
    assert some.process_set_id is None
    assert some.size() is None
    assert some.rank() is None
    assert some.included() is True
    assert ProcessSet([0]).included() is False
    assert str(some) == "ProcessSet(process_set_id=None, ranks=[0, 1], mpi_comm=None)"


def test_the_rank_within_a_foreign_set_is_a_value_error(rank_1_of_3: None) -> None:
    some = ProcessSet([0, 2])
    some.process_set_id = 5
    assert some.size() == 2
    with pytest.raises(ValueError, match="not part of provided process set"):
        some.rank()


def test_the_global_set_follows_the_world(rank_1_of_3: None) -> None:
    assert global_process_set.process_set_id == 0
    assert global_process_set.ranks == [0, 1, 2]
    assert global_process_set.size() == 3
    assert global_process_set.rank() == 1
    assert global_process_set.included() is True


def test_the_global_set_is_empty_before_init(monkeypatch: pytest.MonkeyPatch) -> None:
    def current() -> None:
        raise NotInitializedError

    monkeypatch.setattr(lifecycle, "current", current)
    monkeypatch.setattr(lifecycle, "is_initialized", lambda: False)
    assert global_process_set.ranks == []
    with pytest.raises(ValueError, match="has not been initialized"):
        ProcessSet([0]).included()


def test_sets_are_equal_by_identity_only() -> None:
    assert ProcessSet([0]) != ProcessSet([0])
