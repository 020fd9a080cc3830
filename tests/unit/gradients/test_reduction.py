from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.gradients.fakes import Inner, KerasLike

from horovod.gradients.reduction import PartialReduction, reduce_in_groups, share_of_average, stays_local
from horovod.gradients.settings import GradientSettings
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set


@pytest.mark.parametrize(
    ("ranks", "local"), [([0, 1], False), ([1], True), ([0, 2], True), ([0], True), ([0, 1, 2], False)]
)
def test_gradients_stay_local_outside_of_a_set_and_alone_in_it(
    ranks: list[int], local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = SimpleNamespace(topology=SimpleNamespace(rank=1, size=3))
    monkeypatch.setattr(lifecycle, "current", lambda: runtime)
    monkeypatch.setattr(lifecycle, "is_initialized", lambda: True)
    some = ProcessSet(ranks)
    with pytest.raises(TypeError):
        stays_local(some)
    some.process_set_id = 5
    assert stays_local(some) is local
    assert stays_local(global_process_set) is False


def test_local_gradients_are_scaled_and_others_reduced() -> None:
    variables = [Inner() for _ in range(4)]
    seen: list[Any] = []

    def reduce(gradients: list[Any], sources: list[Any], extra: int = 0) -> list[Any]:
        seen.append((gradients, [id(source) for source in sources], extra))
        return [None if gradient is None else gradient * 10 for gradient in gradients]

    reduction = PartialReduction(reduce, lambda gradient: gradient / 2)
    assert reduction([1.0, None, 3.0, 4.0], variables) == [10.0, None, 30.0, 40.0]
    reduction.register(KerasLike(variables[0]))
    reduction.register(variables[3])
    assert reduction([1.0, None, 3.0, 4.0], variables, extra=5) == [0.5, None, 30.0, 2.0]
    assert seen[-1] == ([None, 3.0], [id(variables[1]), id(variables[2])], 5)


def test_local_gradients_stay_as_they_are_without_a_scale() -> None:
    variables = [Inner(), Inner()]
    reduction = PartialReduction(lambda gradients, _: gradients, None)
    for variable in variables:
        reduction.register(variable)
    assert reduction([1.0, None], variables) == [1.0, None]


def test_local_gradients_have_the_scale_of_an_average(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(topology=SimpleNamespace(rank=1, size=4))
    monkeypatch.setattr(lifecycle, "current", lambda: runtime)
    monkeypatch.setattr(type(global_process_set), "ranks", [0, 1, 2, 3])
    share = share_of_average(GradientSettings())
    assert share is not None
    assert share(6.0) == 1.5
    monkeypatch.setattr(type(global_process_set), "ranks", [0, 2])
    assert share(6.0) == 6.0, "it is not in the set, so nothing is averaged here"
    assert share_of_average(GradientSettings(scale_local_gradients=False)) is None


class Number:
    """A tensor of one element with a type of its own."""

    def __init__(self, value: float, dtype: str) -> None:
        self.value, self.dtype = value, dtype


class Halving:
    """Sends every other tensor as ``half``."""

    @staticmethod
    def compress(tensor: Number) -> tuple[Number, str]:
        return (Number(tensor.value, "half") if tensor.value % 2 else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Number, ctx: str) -> Number:
        return Number(tensor.value, ctx)


def test_what_is_compressed_alike_travels_together() -> None:
    travelled: list[list[tuple[float, str]]] = []

    def reduce(groups: list[list[Number]]) -> list[list[Number]]:
        travelled.extend([(each.value, each.dtype) for each in group] for group in groups)
        return [[Number(10 * each.value, each.dtype) for each in group] for group in groups]

    tensors = [Number(1.0, "float"), Number(2.0, "float"), Number(3.0, "double"), Number(4.0, "float")]
    reduced = reduce_in_groups(tensors, Halving, reduce)
    assert travelled == [[(1.0, "half"), (3.0, "half")], [(2.0, "float"), (4.0, "float")]]
    assert [(each.value, each.dtype) for each in reduced] == [
        (10.0, "float"),
        (20.0, "float"),
        (30.0, "double"),
        (40.0, "float"),
    ]
