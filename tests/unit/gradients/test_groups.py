from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.collectives.forms import Adasum, Average, Sum
from horovod.errors import InvalidArgumentError
from horovod.gradients.groups import (
    PartialReduction,
    VariableSet,
    check_passes,
    check_predivide,
    chosen_groups,
    own_variable,
    plan_groups,
    scaling,
    stays_local,
)
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set


class Inner:
    """A framework's variable: it can be assigned to, and comparing it is no yes or no."""

    def assign(self, value: object) -> None: ...

    def __eq__(self, other: object) -> bool:
        raise TypeError("ambiguous")

    __hash__ = None  # type: ignore[assignment]


class KerasLike:
    name = "kernel"

    def __init__(self, value: object) -> None:
        self._value = value


# -- arguments


def test_a_predivide_factor_needs_an_average() -> None:
    check_predivide(Average, 2.0)
    check_predivide(Sum, 1.0)
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        check_predivide(Sum, 2.0)


@pytest.mark.parametrize("passes", [0, -1])
def test_passes_must_be_positive(passes: int) -> None:
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        check_passes(passes, Average, False)


def test_adasum_does_not_average_passes() -> None:
    check_passes(2, Adasum, False)
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        check_passes(1, Adasum, True)


def test_num_groups_is_deprecated_and_gives_way() -> None:
    with pytest.warns(DeprecationWarning, match="num_groups"):
        assert chosen_groups(3, None) == 3
    with pytest.warns(DeprecationWarning, match="num_groups"):
        assert chosen_groups(3, 2) == 2
    assert chosen_groups(0, None) is None


@pytest.mark.parametrize("groups", [0, -1, 1.5, "two", [Inner()], {1: 2}])
def test_wrong_groups(groups: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="groups"):
        chosen_groups(0, groups)


def test_a_variable_is_in_one_group_only() -> None:
    variable = Inner()
    with pytest.raises(InvalidArgumentError, match="once"):
        chosen_groups(0, [[variable], [KerasLike(variable)]])


def test_the_division_is_split_for_averages_only() -> None:
    assert scaling(Average, 4.0) == (0.25, 4.0)
    assert scaling(Sum, 1.0) == (1.0, 1.0)


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


# -- variables


def test_a_keras_variable_is_what_it_holds_unless_that_changes() -> None:
    inner = Inner()
    assert own_variable(KerasLike(inner)) is inner
    assert own_variable(inner) is inner
    on_jax = KerasLike((1.0, 2.0))
    assert own_variable(on_jax) is on_jax


def test_variables_are_told_apart_by_identity() -> None:
    first, second = KerasLike(Inner()), KerasLike(Inner())
    known = VariableSet([first])
    assert first in known
    assert first._value in known
    assert second not in known
    assert len(known) == 1


# -- groups


def test_without_groups_there_is_one_operation_for_each_kind() -> None:
    assert plan_groups(["f", "f", "h", "f", "h"]) == [[0, 1, 3], [2, 4]]
    assert plan_groups([]) == []


def test_a_number_of_groups_cuts_runs_and_is_clamped() -> None:
    assert plan_groups(["f"] * 5, None, 2) == [[0, 1, 2], [3, 4]]
    assert plan_groups(["f"] * 2, None, 7) == [[0], [1]]
    assert plan_groups([], None, 7) == []


def test_lists_of_variables_group_by_identity_and_others_travel_alone() -> None:
    a, b, c, d, absent = (KerasLike(Inner()) for _ in range(5))
    groups = chosen_groups(0, [[d, a], [absent]])
    assert plan_groups(["f"] * 4, [a, b, c, d], groups) == [[0, 3], [1], [2]]


@given(
    st.lists(st.sampled_from("fhs"), max_size=12),
    st.one_of(st.none(), st.integers(1, 15)),
)
def test_every_gradient_travels_once_among_its_kind(kinds: list[str], groups: int | None) -> None:
    planned = plan_groups(kinds, None, groups)
    assert sorted(position for group in planned for position in group) == list(range(len(kinds)))
    assert all(group and len({kinds[position] for position in group}) == 1 for group in planned)


# -- local variables


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
