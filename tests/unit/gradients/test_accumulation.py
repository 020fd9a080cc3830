"""The machine that sums passes, over numbers of Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from horovod.errors import InvalidArgumentError
from horovod.gradients.accumulation import Accumulator
from horovod.gradients.settings import GradientSettings


class Sparse:
    def __init__(self, value: float) -> None:
        self.value = value


class Cell:
    """A variable."""

    def __init__(self, value: float) -> None:
        self.value = value


class Numbers(Accumulator):
    at_once = True

    def __init__(self, passes: int, reduce: Callable[..., Any], **options: Any) -> None:
        super().__init__(GradientSettings(backward_passes_per_step=passes, **options), reduce)
        self.counter = Cell(0)
        self.sums: dict[str, Cell] = {}

    def sums_of(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is not None:
                self.sums.setdefault(variable, Cell(0.0))
        return [self.sums.get(variable) for variable in variables]

    def dense(self, gradient: Any) -> Any | None:
        return gradient.value if isinstance(gradient, Sparse) else None

    def fitted(self, gradient: Any | None, total: Any) -> Any:
        return 0.0 if gradient is None else gradient

    def read(self, variable: Cell) -> Any:
        return variable.value

    def write(self, variable: Cell, value: Any) -> None:
        variable.value = value

    def runs_at_once(self) -> bool:
        return self.at_once

    def choose(self, condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
        return if_true() if condition else if_false()


class Raw(Numbers):
    returns_sums = False


def tenfold(gradients: list[Any], variables: list[Any]) -> list[Any]:
    return [None if gradient is None else 10 * gradient for gradient in gradients]


def test_sums_are_reduced_in_the_last_pass_of_each_cycle() -> None:
    sums = Numbers(3, tenfold)
    seen = []
    for number in range(1, 7):
        ((gradient),) = sums.compute_gradients([float(number)], ["a"])
        seen.append((gradient, sums.complete([gradient]), sums.counter.value))
    assert seen == [
        (1.0, False, 1),
        (3.0, False, 2),
        (60.0, True, 0),
        (4.0, False, 1),
        (9.0, False, 2),
        (150.0, True, 0),
    ]


def test_reduced_sums_are_averaged_over_the_passes_if_asked_for() -> None:
    sums = Numbers(2, tenfold, average_aggregated_gradients=True)
    assert [sums.compute_gradients([each], ["a"]) for each in (1.0, 2.0)] == [[1.0], [15.0]]


def test_passes_in_between_give_their_own_gradients_where_that_is_expected() -> None:
    sums = Raw(3, tenfold)
    assert [sums.compute_gradients([each], ["a"]) for each in (1.0, 2.0, 3.0)] == [[1.0], [2.0], [60.0]]


def test_a_missing_gradient_keeps_its_sum_and_one_that_never_was_stays_missing() -> None:
    asked: list[Any] = []

    def reduce(gradients: list[Any], variables: list[Any]) -> list[Any]:
        asked.append((gradients, variables))
        return gradients

    sums = Numbers(3, reduce)
    given = ([1.0, None, None], [None, 2.0, None], [None, 3.0, None])
    seen = [sums.compute_gradients(gradients, ["a", "b", "c"]) for gradients in given]
    assert seen == [[1.0, None, None], [1.0, 2.0, None], [1.0, 5.0, None]]
    assert asked == [([1.0, 5.0, None], ["a", "b", "c"])]


def test_a_graph_that_knows_more_sums_than_an_earlier_one_is_refused() -> None:
    sums = Numbers(2, tenfold)
    sums.at_once = False
    sums.compute_gradients([1.0, None], ["a", "b"])
    sums.compute_gradients([1.0, None], ["a", "b"])  # the same for other shapes of a batch
    with pytest.raises(InvalidArgumentError, match="b has a gradient in this graph"):
        sums.compute_gradients([None, 1.0], ["a", "b"])


def test_other_ranks_have_gradients_of_variables_that_never_had_one_here() -> None:
    def reduce(gradients: list[Any], variables: list[Any]) -> list[Any]:
        return [7.0 if gradient is None else gradient for gradient in gradients]

    sums = Numbers(2, reduce, average_aggregated_gradients=True)
    seen = [sums.compute_gradients(gradients, ["a", "b"]) for gradients in ([1.0, None], [None, None])]
    assert seen == [[1.0, None], [0.5, 3.5]]
    idle = Numbers(2, reduce)
    assert [idle.compute_gradients([None], ["a"]) for _ in range(2)] == [[None], [7.0]]
    graph = Numbers(1, reduce)
    graph.at_once = False  # what it gives is a part of it
    assert graph.compute_gradients([1.0, None], ["a", "b"]) == [1.0, None]


def test_a_cycle_forgets_what_was_infinite() -> None:
    sums = Numbers(2, tenfold)
    seen = [sums.compute_gradients([each], ["a"])[0] for each in (math.inf, 1.0, 1.0, 2.0)]
    assert seen == [math.inf, math.inf, 1.0, 30.0]


def test_passes_without_any_gradient_count() -> None:
    sums = Numbers(2, tenfold)
    assert sums.compute_gradients([None], ["a"]) == [None]
    assert not sums.complete([None])
    assert sums.compute_gradients([None], ["a"]) == [None]
    assert sums.complete([None])


def test_sparse_gradients_are_summed_as_dense_ones_only() -> None:
    with pytest.raises(InvalidArgumentError, match="sparse_as_dense"):
        Numbers(2, tenfold).compute_gradients([Sparse(1.0)], ["a"])
    sums = Numbers(2, tenfold, sparse_as_dense=True)
    assert [sums.compute_gradients([Sparse(each)], ["a"]) for each in (1.0, 2.0)] == [[1.0], [30.0]]
