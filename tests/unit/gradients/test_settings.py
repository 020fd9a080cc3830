from __future__ import annotations

from typing import Any

import pytest

from horovod.collectives.ops import Adasum, Average, Sum
from horovod.errors import InvalidArgumentError
from horovod.gradients.settings import GradientSettings


def test_a_predivide_factor_needs_an_average() -> None:
    GradientSettings(op=Average, gradient_predivide_factor=2.0)
    GradientSettings(op=Sum)
    with pytest.raises(InvalidArgumentError, match="gradient_predivide_factor"):
        GradientSettings(op=Sum, gradient_predivide_factor=2.0)


@pytest.mark.parametrize("passes", [0, -1])
def test_passes_must_be_positive(passes: int) -> None:
    with pytest.raises(InvalidArgumentError, match="backward_passes_per_step"):
        GradientSettings(backward_passes_per_step=passes)


def test_adasum_does_not_average_passes() -> None:
    GradientSettings(op=Adasum, backward_passes_per_step=2)
    with pytest.raises(InvalidArgumentError, match="average_aggregated_gradients"):
        GradientSettings(op=Adasum, average_aggregated_gradients=True)


def test_the_division_is_split_for_averages_only() -> None:
    assert GradientSettings(gradient_predivide_factor=4.0).scales == (0.25, 4.0)
    assert GradientSettings(op=Sum).scales == (1.0, 1.0)


def public(
    optimizer: Any, op: int = Average, num_groups: int = 0, groups: Any = None, sparse_as_dense: bool = False
) -> GradientSettings:
    """Stands for a function that users call."""
    return GradientSettings.of(locals())


def test_settings_are_found_among_arguments() -> None:
    given = public(object(), op=Sum, groups=2, sparse_as_dense=True)
    assert given == GradientSettings(op=Sum, groups=2, sparse_as_dense=True)
    assert GradientSettings.of({"op": Sum, "groups": 2}, groups=3) == GradientSettings(op=Sum, groups=3)


def test_num_groups_is_deprecated_where_it_was_said_and_gives_way() -> None:
    with pytest.warns(DeprecationWarning, match="num_groups") as warned:
        assert public(object(), num_groups=3).groups == 3
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="num_groups"):
        assert public(object(), num_groups=3, groups=2).groups == 2
    assert public(object()).groups is None


def test_groups_are_looked_at_last() -> None:
    with pytest.raises(InvalidArgumentError, match="passes"):
        GradientSettings.of({"backward_passes_per_step": 0, "groups": 0})


def test_lists_that_change_later_change_no_settings() -> None:
    variable = object()
    groups = [[variable]]
    settings = GradientSettings(groups=groups)
    groups.append([object()])
    assert settings.groups == [[variable]]
