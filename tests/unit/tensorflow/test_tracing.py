"""What the first trace of a function does with our code."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

import horovod.tensorflow as hvd


def test_our_code_is_traced_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function that AutoGraph rewrites takes a tenth of a second or so, in every process."""
    rewritten: list[str] = []
    rewrite = api._convert_actual

    def noted(function: object, context: object) -> object:
        rewritten.append(function.__module__)
        return rewrite(function, context)

    monkeypatch.setattr(api, "_convert_actual", noted)
    variable = tf.Variable(1.0)
    hvd.init()
    try:

        @tf.function  # type: ignore[untyped-decorator]
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = hvd.allreduce(x, op=hvd.Sum) * variable
            return hvd.DistributedGradientTape(tape).gradient(loss, variable)

        assert float(step(tf.constant(3.0))) == 3.0
    finally:
        hvd.shutdown()
    assert set(rewritten) == {__name__}
