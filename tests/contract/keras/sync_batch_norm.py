"""`SyncBatchNormalization` against a layer of one process over the batches of all ranks together."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.contract import normalised
from tests.contract.keras.lazy import backend, hvd, keras
from tests.contract.keras.models import BATCH, data, own_share, weights_of
from tests.contract.world import Cases

CASES = Cases()

# label -> shape of one sample, arguments of the layer
SHAPES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "axis_1": ((4, 2), {"axis": 1}),
    "images": ((3, 3, 5), {}),
    "features": ((6,), {"center": False, "momentum": 0.5}),
}
# Keras computes statistics in float32, whatever the dtype. Means are 50 and more and deviations 2 to 4, which
# takes two digits of seven; gradients and variances lose another.
OF_OUTPUTS, OF_GRADIENTS, OF_VARIANCES = 1e-4, 1e-3, 1e-3


def differentiated(loss: Callable[[Any], tuple[Any, Any]], x: Any, compiled: bool) -> tuple[Any, Any]:
    """The output of ``loss``, which returns loss and output, and the gradient of the loss by ``x``."""
    if backend() == "torch":
        x = keras.ops.convert_to_tensor(x).requires_grad_()
        value, out = loss(x)
        value.backward()
        return out.detach().numpy(), x.grad.numpy()
    if backend() == "jax":
        import jax

        function = jax.value_and_grad(loss, has_aux=True)
        (_, out), gradient = (jax.jit(function) if compiled else function)(keras.ops.convert_to_tensor(x))
        return np.asarray(out), np.asarray(gradient)
    import tensorflow as tf

    def run(x: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value, out = loss(x)
        return out, tape.gradient(value, x)

    out, gradient = (tf.function(run) if compiled else run)(tf.convert_to_tensor(x))
    return out.numpy(), gradient.numpy()


def compare(
    rest: tuple[int, ...], options: dict[str, Any], uneven: bool, masked: bool, compiled: bool
) -> None:
    counts = [rank * 2 + 1 if uneven else 2 for rank in range(hvd.size())]
    example = normalised.example(counts, hvd.rank(), rest, masked)
    everything, own, upstream, masks = example.everything, example.own, example.upstream, example.masks
    layer, alone = hvd.SyncBatchNormalization(**options), keras.layers.BatchNormalization(**options)
    for each in (layer, alone):
        each.build((None, *rest))

    def called(which: Any, part: slice, x: Any) -> Any:
        mask = None if masks is None else keras.ops.convert_to_tensor(masks[part])
        return which(x, training=True, mask=mask)

    def apply(which: Any, part: slice) -> tuple[Any, Any]:
        def loss(x: Any) -> tuple[Any, Any]:
            # On JAX, what a traced call assigns would leak out of it.
            aside = keras.StatelessScope(state_mapping=[(each, each.value) for each in which.variables])
            with aside if backend() == "jax" else contextlib.nullcontext():
                out = called(which, part, x)
            return keras.ops.sum(out * keras.ops.convert_to_tensor(upstream[part])), out

        result = differentiated(loss, everything[part], compiled)
        if backend() == "jax":
            called(which, part, keras.ops.convert_to_tensor(everything[part]))
        return result

    out, gradient = apply(layer, own)
    expected_out, expected_gradient = apply(alone, slice(None))
    np.testing.assert_allclose(out, expected_out[own], rtol=OF_OUTPUTS, atol=10 * OF_OUTPUTS)
    np.testing.assert_allclose(gradient, expected_gradient[own], rtol=OF_GRADIENTS, atol=OF_GRADIENTS)
    for ours, theirs in zip(layer.non_trainable_variables, alone.non_trainable_variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=OF_VARIANCES)


for label, (rest, options) in SHAPES.items():
    CASES.add_as(f"batch_norm_{label}", functools.partial(compare, rest, options, False, False, True))
CASES.add_as("batch_norm_uneven", functools.partial(compare, (4, 2), {"axis": 1}, True, False, True))
CASES.add_as("batch_norm_mask", functools.partial(compare, (5, 6), {}, True, True, True))
CASES.add_as("batch_norm_not_compiled", functools.partial(compare, (6,), {}, True, False, False))


def fitted(layer: Any, optimizer: Any, x: Any, y: Any, rows: int) -> tuple[Any, Any]:
    keras.utils.set_random_seed(1)
    # The names that TensorFlow finds the exchanges by; ranks have made different numbers of models before.
    layers = [
        keras.layers.Input((8,)),
        keras.layers.Dense(6),
        layer(name="first"),
        keras.layers.Dense(5),
        layer(name="second"),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential(layers, name="normalised")
    model.compile(optimizer, "mse")
    history = model.fit(x, y, batch_size=rows, epochs=2, shuffle=False, verbose=0).history
    return model, history["loss"]


@CASES.add
def batch_norm_trains_like_one_process_with_the_same_global_batch() -> None:
    x, y = data()
    optimizer = keras.optimizers.SGD(0.05)
    alone, expected = fitted(keras.layers.BatchNormalization, optimizer, x, y, BATCH)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
    together, losses = fitted(
        hvd.SyncBatchNormalization, optimizer, own_share(x), own_share(y), BATCH // hvd.size()
    )
    mean = np.mean(hvd.allgather_object(losses), axis=0)
    np.testing.assert_allclose(mean, expected, rtol=1e-4)
    for ours, theirs in zip(weights_of(together), weights_of(alone), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    prediction = together.predict(x, verbose=0)
    np.testing.assert_allclose(prediction, alone.predict(x, verbose=0), rtol=1e-3, atol=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        together.save(f"{folder}/model.keras")
        # Where Horovod is not installed, a plain layer of the same name takes its place.
        plain = type("SyncBatchNormalization", (keras.layers.BatchNormalization,), {})
        for layer in (hvd.SyncBatchNormalization, plain):
            objects = {"SyncBatchNormalization": layer}
            loaded = keras.models.load_model(f"{folder}/model.keras", custom_objects=objects)
            assert type(loaded.layers[1]) is layer
            np.testing.assert_array_equal(loaded.predict(x, verbose=0), prediction)


@CASES.add
def batch_norm_in_half_precision_counts_in_float32() -> None:
    counts = [rank * 2 + 1 for rank in range(hvd.size())]
    example = normalised.example(counts, hvd.rank(), (6,), masked=False)
    everything = example.everything
    layer = hvd.SyncBatchNormalization(dtype="mixed_float16")
    out = layer(keras.ops.convert_to_tensor(everything[example.own], "float16"), training=True)
    assert keras.backend.standardize_dtype(out.dtype) == "float16"
    # The inputs have lost what float16 does: 2 ** -11 of their values.
    np.testing.assert_allclose(layer.moving_mean.numpy(), everything.mean(0) * 0.01, rtol=1e-3)


@CASES.add
def batch_norm_that_is_fused_is_refused() -> None:
    for fused in (True, None):
        with pytest.raises(ValueError, match="does not support fused"):
            hvd.SyncBatchNormalization(fused=fused)
