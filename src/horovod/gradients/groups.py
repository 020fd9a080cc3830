"""Groups of gradients that travel together, as one operation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

from horovod.errors import InvalidArgumentError
from horovod.gradients.variables import own_variable

__all__ = ["Groups", "checked_groups", "plan_groups", "split_list"]

Groups: TypeAlias = int | list[list[Any]] | None
"""A number of groups to cut the gradients of a step into, or lists of variables; ``None``: as few operations
as there are dtypes."""


def checked_groups(groups: Any) -> Groups:
    """``groups``, copied.

    Raises:
        ValueError: neither a positive number nor a list of lists; or a variable in two groups.
    """
    if isinstance(groups, list | tuple):
        if not all(isinstance(group, list | tuple) for group in groups):
            raise InvalidArgumentError("groups must be a number or a list of lists of variables.")
        grouped = [id(own_variable(variable)) for group in groups for variable in group]
        if len(grouped) > len(set(grouped)):
            raise InvalidArgumentError("A variable can only appear once in groups.")
        return [list(group) for group in groups]
    if groups is not None and (not isinstance(groups, int) or groups <= 0):
        raise InvalidArgumentError(
            f"groups must be a positive number or a list of lists of variables, not {groups!r}."
        )
    return groups


def split_list(items: Sequence[Any], parts: int) -> list[list[Any]]:
    """Cut ``items`` into ``parts`` consecutive chunks whose lengths differ by at most one, longer ones
    first."""
    length, longer = divmod(len(items), parts)
    chunks = []
    start = 0
    for part in range(parts):
        stop = start + length + (part < longer)
        chunks.append(list(items[start:stop]))
        start = stop
    return chunks


def plan_groups(
    kinds: Sequence[Hashable], variables: Sequence[Any] | None = None, groups: Groups = None
) -> list[list[int]]:
    """Plan the groups of gradients that travel as one operation, as positions; every position once.

    Args:
        kinds: of each gradient, what must be equal within one operation (the dtype, and whether it is
            sparse).
        variables: of the gradients; needed if ``groups`` are lists.
        groups: None: one group. A number: so many groups, but never more than there are gradients. Lists of
            variables: each is a group, and what is in none travels alone. A group of several kinds travels
            as one operation for each.
    """
    positions = range(len(kinds))
    if not kinds:
        return []
    if groups is None:
        planned = [list(positions)]
    elif isinstance(groups, int):
        planned = split_list(positions, min(groups, len(kinds)))
    else:
        assert variables is not None, "groups of variables need the variables"
        number = {id(own_variable(each)): n for n, group in enumerate(groups) for each in group}
        members: dict[int, list[int]] = {}
        for position in positions:
            # Those in no list get numbers that no list has.
            key = number.get(id(own_variable(variables[position])), len(groups) + position)
            members.setdefault(key, []).append(position)
        planned = list(members.values())
    alike: list[list[int]] = []
    for group in planned:
        by_kind: dict[Hashable, list[int]] = {}
        for position in group:
            by_kind.setdefault(kinds[position], []).append(position)
        alike += by_kind.values()
    return alike
