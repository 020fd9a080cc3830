"""`SyncBatchNormalization` against a layer of one process over the batches of all ranks together."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from tests.contract import normalised
from tests.contract.tensorflow.modes import Session, graph
from tests.contract.world import Cases

import horovod.tensorflow as hvd

CASES = Cases()

# label -> shape of one sample, arguments of the layer
SHAPES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "axis_1_pairs": ((4, 2), {"axis": 1}),
    "axis_1_single": ((4, 1), {"axis": 1}),
    "images": ((3, 3, 5), {}),
    "features": ((6,), {"center": False, "momentum": 0.5}),
}


def compare(mode: str, rest: tuple[int, ...], options: dict[str, Any], uneven: bool, masked: bool) -> None:
    counts = [rank % 3 + 1 if uneven else 1 for rank in range(hvd.size())]
    example = normalised.example(counts, hvd.rank(), rest, masked)
    everything, own, upstream, masks = example.everything, example.own, example.upstream, example.masks
    layer, alone = hvd.SyncBatchNormalization(**options), tf.keras.layers.BatchNormalization(**options)
    for each in (layer, alone):
        each.build((None, *rest))

    def apply(which: Any, part: slice) -> Any:
        x = tf.constant(everything[part])
        mask = None if masks is None else tf.constant(masks[part])
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = which(x, training=True, mask=mask)
            loss = tf.reduce_sum(out * upstream[part])
        return out, tape.gradient(loss, x)

    mine = functools.partial(apply, layer, own)
    run = tf.function(mine) if mode == "function" else mine
    for _ in range(2):
        out, gradient = run()
        expected_out, expected_gradient = apply(alone, slice(None))
        np.testing.assert_allclose(out, expected_out[own], rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(gradient, expected_gradient[own], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(layer.moving_mean.numpy(), alone.moving_mean.numpy(), rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance.numpy(), alone.moving_variance.numpy(), rtol=1e-3)
    inference = layer(tf.constant(everything[own]), training=False)
    np.testing.assert_allclose(inference, alone(tf.constant(everything[own])), rtol=1e-3, atol=1e-3)


for label, (rest, options) in SHAPES.items():
    for mode in ("eager", "function"):
        CASES.add_as(f"{mode}_{label}", functools.partial(compare, mode, rest, options, False, False))
    CASES.add_as(f"uneven_{label}", functools.partial(compare, "function", rest, options, True, False))
CASES.add_as("mask", functools.partial(compare, "function", (5, 6), {}, True, True))


@CASES.add
def half_precision_is_normalised_in_float32() -> None:
    counts = [rank % 3 + 1 for rank in range(hvd.size())]
    example = normalised.example(counts, hvd.rank(), (6,), masked=False)
    everything = example.everything
    layer = hvd.SyncBatchNormalization(dtype="mixed_float16")
    out = layer(tf.constant(everything[example.own], tf.float16), training=True)
    assert out.dtype == tf.float16
    np.testing.assert_allclose(layer.moving_mean.numpy(), everything.mean(0) * 0.01, rtol=1e-2)


@CASES.add
def updates_in_v1_graphs_are_in_their_collection() -> None:
    with graph("graph") as built:
        data = tf.constant(np.full((2, 3), hvd.rank(), np.float32))
        layer = hvd.SyncBatchNormalization()
        layer(data, training=False)
        assert not tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
        assert not any(each.type.startswith("Horovod") for each in built.get_operations())
        layer(data, training=True)
        updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
        assert len(updates) == 2
        session = Session()
        session.run(updates)
        mean = layer.moving_mean.value
        np.testing.assert_allclose(session.run(mean), [(hvd.size() - 1) / 2 * 0.01] * 3, rtol=1e-5)


@CASES.add
def two_layers_in_a_model_have_names_of_their_own() -> None:
    inputs = tf.keras.Input((3,))
    outputs = hvd.SyncBatchNormalization()(hvd.SyncBatchNormalization()(inputs))
    model = tf.keras.Model(inputs, outputs)
    assert len({layer.name for layer in model.layers}) == 3
    assert model(np.ones((2, 3), np.float32), training=True).shape == (2, 3)
