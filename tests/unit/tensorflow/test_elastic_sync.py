"""A failure in the middle of a ``sync``: what was saved before is still whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from horovod.errors import PeerLostError
from horovod.keras.elastic import KerasState
from horovod.tensorflow.elastic import TensorFlowState


def ahead(variables: Iterable[Any], root_rank: int) -> None:
    """Rank 0 is one step ahead."""
    for variable in variables:
        variable.assign(variable + tf.ones_like(variable))


def lost(value: object) -> object:
    """What comes last does not come."""
    if isinstance(value, dict):
        raise PeerLostError("rank 0 is gone", rank=0)
    return value


def test_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = tf.Variable([1.0, 1.0])
    state = TensorFlowState([variable], step=3)
    monkeypatch.setattr("horovod.tensorflow.elastic.broadcast_variables", ahead)
    state._bcast_object, state._rank = lost, lambda: 1
    with pytest.raises(PeerLostError):
        state.sync()
    state.restore()
    assert state.step == 3
    assert variable.numpy().tolist() == [1.0, 1.0]


def test_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "linear", False, "ones")])
    state = KerasState(model, keras.optimizers.SGD(0.1), step=3)
    monkeypatch.setattr(
        "horovod._keras.elastic.broadcast_arrays",
        lambda arrays, root_rank: np.add(arrays[0], 1.0, out=arrays[0]),
    )
    state._bcast_object, state._rank = lost, lambda: 1
    with pytest.raises(PeerLostError):
        state.sync()
    state.restore()
    assert state.step == 3
    assert model.get_weights()[0].tolist() == [[1.0], [1.0]]


class Failing:
    """A session that fails when it is told to."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.fails = False

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if self.fails:
            raise tf.errors.AbortedError(None, None, "the session is gone")
        return self.session.run(*args, **kwargs)


def test_of_a_session_all_or_nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        values = [tf.compat.v1.get_variable(name, initializer=[1.0]) for name in ("a", "b")]
        session.run(tf.compat.v1.global_variables_initializer())
        asked = Failing(session)
        state: Any = TensorFlowState(session=asked, step=3)

        def change(value: float) -> None:
            for variable in values:
                variable.load([value], session)

        def back() -> tuple[list[float], int]:
            state.restore()
            return [value[0] for value in session.run(values)], state.step

        change(2.0)
        state.step, asked.fails = 4, True
        with pytest.raises(tf.errors.AbortedError):
            state.save()
        asked.fails = False
        assert back() == ([1.0, 1.0], 3)

        change(2.0)
        del state.step  # the other half fails
        with pytest.raises(AttributeError):
            state.save()
        assert back() == ([1.0, 1.0], 3)

        change(2.0)
        one_step = [tf.compat.v1.assign_add(each, [1.0]) for each in values]
        monkeypatch.setattr(state._in_graph, "broadcast", lambda: one_step)
        state._bcast_object, state._rank = lost, lambda: 1
        with pytest.raises(PeerLostError):
            state.sync()
        assert session.run(values) == [[3.0], [3.0]]
        assert back() == ([1.0, 1.0], 3)


def test_of_a_graph_without_a_session() -> None:
    with tf.Graph().as_default():
        tf.compat.v1.get_variable("a", initializer=[1.0])
        with pytest.raises(ValueError, match="session="):
            TensorFlowState()
