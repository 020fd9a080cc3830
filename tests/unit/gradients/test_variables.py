from __future__ import annotations

from tests.unit.gradients.fakes import Inner, KerasLike

from horovod.gradients.variables import VariableSet, own_variable


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
