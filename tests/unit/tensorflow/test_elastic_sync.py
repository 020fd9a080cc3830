"""A failure in the middle of a ``sync``: what was saved before is still whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
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
    raise PeerLostError("rank 0 is gone", rank=0)


def test_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = tf.Variable([1.0, 1.0])
    state = TensorFlowState([variable], step=3)
    monkeypatch.setattr("horovod.tensorflow.elastic.broadcast_variables", ahead)
    state._bcast_object = lost
    with pytest.raises(PeerLostError):
        state.sync()
    state.restore()
    assert state.step == 3
    assert variable.numpy().tolist() == [1.0, 1.0]


def test_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, "linear", False, "ones")])
    state = KerasState(model, keras.optimizers.SGD(0.1), step=3)
    monkeypatch.setattr(
        "horovod._keras.elastic.broadcast_variables",
        lambda variables, root_rank: model.weights[0].assign(model.weights[0] + 1.0),
    )
    state._bcast_object = lost
    with pytest.raises(PeerLostError):
        state.sync()
    state.restore()
    assert state.step == 3
    assert model.get_weights()[0].tolist() == [[1.0], [1.0]]
