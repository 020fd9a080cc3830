"""Copies of variables: the memory is used again, nobody else's, and whole or not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from horovod._keras.copies import VariableCopies


class Variable:
    """Goes on to use the memory it is given, as one of JAX does."""

    def __init__(self, value: Any) -> None:
        self.held = np.asarray(value)

    def numpy(self) -> Any:
        return self.held

    def assign(self, value: Any) -> None:
        self.held = value


def keep(copies: VariableCopies, variables: list[Any]) -> None:
    copies.prepare(variables)
    copies.adopt()


def test_two_sets_of_memory_take_turns() -> None:
    variable = Variable(np.zeros(4))
    copies = VariableCopies()
    places = []
    for number in range(6):
        variable.held[:] = number
        keep(copies, [variable])
        places.append(copies._whole[0][1].ctypes.data)
    assert places == places[:2] * 3
    assert places[0] != places[1]


def test_what_is_restored_may_be_changed_and_restored_again() -> None:
    variable = Variable(np.ones(4, np.float32))
    copies = VariableCopies()
    keep(copies, [variable])
    for _ in range(3):
        copies.restore()
        assert variable.held.tolist() == [1] * 4
        variable.held[:] = 7
    copies.restore()
    restored = variable.held
    variable.held = np.full(4, 2, np.float32)
    for _ in range(2):
        keep(copies, [variable])
    assert restored.tolist() == [1] * 4


def test_other_variables_and_shapes_get_memory_of_their_own() -> None:
    copies = VariableCopies()
    cases: list[list[Any]] = [
        [np.ones(3)],
        [np.ones(3), np.ones(2)],
        [np.ones((2, 2)), np.ones(2, np.int8)],
        [],
    ]
    for values in cases:
        variables = [Variable(value) for value in values]
        for _ in range(3):
            keep(copies, variables)
        copies.restore()
        for variable, value in zip(variables, values, strict=True):
            assert variable.held.dtype == value.dtype
            assert np.array_equal(variable.held, value)


def test_a_copy_that_fails_leaves_the_last_one_whole() -> None:
    first, second = Variable(np.ones(2)), Variable(np.ones(2))
    copies = VariableCopies()
    for _ in range(2):
        keep(copies, [first, second])
    first.held[:] = 5

    class Lost:
        def numpy(self) -> Any:
            raise RuntimeError("no value")

    with pytest.raises(RuntimeError, match="no value"):
        copies.prepare([first, Lost()])
    copies.restore()
    assert first.held.tolist() == [1, 1]
