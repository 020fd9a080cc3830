from __future__ import annotations

import pytest

from horovod.bootstrap.mesh.agreement import agree_on_sets, wrong_ranks
from horovod.errors import InvalidArgumentError


def test_no_sets_are_fine() -> None:
    assert agree_on_sets([[], []]) == []


def test_sets_keep_their_order() -> None:
    assert agree_on_sets([[[1], [0]]] * 2) == [[1], [0]]


def test_repeated_sets_and_the_world_are_left_out() -> None:
    assert agree_on_sets([[[0, 1], [0, 1, 2], [2], [0, 1]]] * 3) == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([[[0]], [[0], [1]]], r"rank 0 passed 1, rank 1 passed 2"),
        ([[[0]], [[1]]], r"process_sets\[0\] is \[0\] on rank 0 and \[1\] on rank 1"),
        ([[[0], [1]], [[1], [0]]], r"process_sets\[0\] is \[0\] on rank 0 and \[1\] on rank 1"),
        ([[], [[0]]], r"rank 0 passed 0, rank 1 passed 1"),
        ([[[1]], [[0, 0]]], r"process_sets\[0\] on rank 1 has rank 0 more than once: \[0, 0\]"),
        ([[[1]], [[1], [0, 2]]], r"process_sets\[1\] on rank 1 has rank 2, but the ranks are 0 to 1"),
        ([[[-1, 0]], []], r"process_sets\[0\] on rank 0 has rank -1"),
        ([[[]], [[]]], r"process_sets\[0\] on rank 0 has no ranks"),
    ],
)
def test_who_said_what_is_named(said: list[list[list[int]]], expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^Horovod initialization failed: .*{expected}"):
        agree_on_sets(said)


def test_long_sets_are_cut_in_messages() -> None:
    assert wrong_ranks(range(12), 11).endswith("[0, 1, 2, 3, 4, 5, 6, 7, ...]")
    assert wrong_ranks(range(11), 11) == ""
