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


@pytest.mark.parametrize("passes", [0, -1, 1.5, "2", None, float("inf"), float("nan")])
def test_passes_must_be_a_positive_whole_number(passes: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match="backward_passes_per_step must be a positive whole number"
    ):
        GradientSettings(backward_passes_per_step=passes)


def test_passes_may_be_a_whole_number_of_any_type() -> None:
    passes: Any = 2.0
    assert repr(GradientSettings(backward_passes_per_step=passes).backward_passes_per_step) == "2"


@pytest.mark.parametrize("factor", [0, 0.0, "2", None, float("nan"), float("inf"), 10**400, [2.0]])
def test_a_predivide_factor_is_a_number_and_not_zero(factor: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="gradient_predivide_factor must be a number other than 0"):
        GradientSettings(gradient_predivide_factor=factor)


@pytest.mark.parametrize("given", ["fp16", None, object])
def test_what_does_not_compress_is_answered_with_what_does(given: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"does not compress\. Write compression=hvd\.Compression\.fp16"
    ):
        GradientSettings(compression=given)


@pytest.mark.parametrize("given", [None, 0, [0, 1]])
def test_what_is_no_process_set_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"process_set must be a hvd\.ProcessSet, got"):
        GradientSettings(process_set=given)


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
