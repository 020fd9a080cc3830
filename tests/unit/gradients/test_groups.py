from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.gradients.fakes import Inner, KerasLike

from horovod.errors import InvalidArgumentError
from horovod.gradients.groups import checked_groups, plan_groups


@pytest.mark.parametrize("groups", [0, -1, 1.5, "two", [Inner()], {1: 2}])
def test_wrong_groups(groups: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="groups"):
        checked_groups(groups)


def test_a_variable_is_in_one_group_only() -> None:
    variable = Inner()
    with pytest.raises(InvalidArgumentError, match="once"):
        checked_groups([[variable], [KerasLike(variable)]])


def test_without_groups_there_is_one_operation_for_each_kind() -> None:
    assert plan_groups(["f", "f", "h", "f", "h"]) == [[0, 1, 3], [2, 4]]
    assert plan_groups([]) == []


def test_a_number_of_groups_cuts_runs_and_is_clamped() -> None:
    assert plan_groups(["f"] * 5, None, 2) == [[0, 1, 2], [3, 4]]
    assert plan_groups(["f"] * 2, None, 7) == [[0], [1]]
    assert plan_groups([], None, 7) == []


def test_lists_of_variables_group_by_identity_and_others_travel_alone() -> None:
    a, b, c, d, absent = (KerasLike(Inner()) for _ in range(5))
    groups = checked_groups([[d, a], [absent]])
    assert plan_groups(["f"] * 4, [a, b, c, d], groups) == [[0, 3], [1], [2]]


@given(
    st.lists(st.sampled_from("fhs"), max_size=12),
    st.one_of(st.none(), st.integers(1, 15)),
)
def test_every_gradient_travels_once_among_its_kind(kinds: list[str], groups: int | None) -> None:
    planned = plan_groups(kinds, None, groups)
    assert sorted(position for group in planned for position in group) == list(range(len(kinds)))
    assert all(group and len({kinds[position] for position in group}) == 1 for group in planned)
