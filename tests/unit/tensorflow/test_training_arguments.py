"""Arguments of optimizers, tapes and layers, in a world of one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.gradients.settings import GradientSettings
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager

v1 = tf.compat.v1


@pytest.fixture(autouse=True, scope="module")
def world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def descent() -> Any:
    return v1.train.GradientDescentOptimizer(1.0)


def wrap_tape(**options: Any) -> Any:
    return hvd.DistributedGradientTape(tf.GradientTape(), **options)


def wrap_partial_tape(**options: Any) -> Any:
    return hvd.PartialDistributedGradientTape(tf.GradientTape(), **options)


def wrap_optimizer(**options: Any) -> Any:
    return hvd.DistributedOptimizer(descent(), **options)


@pytest.mark.parametrize("wrap", [wrap_tape, wrap_partial_tape, wrap_optimizer])
def test_wrong_arguments_are_refused_and_named(wrap: Any) -> None:
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        wrap(gradient_predivide_factor=2.0, op=hvd.Sum)
    for groups in (0, -1, "all", [tf.Variable(1.0)]):
        with pytest.raises(ValueError, match="groups"):
            wrap(groups=groups)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        wrap(num_groups=2)


# Parameters of the public functions that are no settings: what is wrapped, and what is looked at on its own.
NO_SETTINGS = {"optimizer", "gradtape", "use_locking", "num_groups", "local_layers"}


def functions() -> dict[str, tuple[Callable[..., Any], Callable[[], Any]]]:
    """What users call, and what it wraps."""
    import horovod.keras as keras3
    import horovod.tensorflow.keras as tf_keras

    def of_keras() -> Any:
        return tf.keras.optimizers.SGD()

    return {
        "v1": (hvd.DistributedOptimizer, descent),
        "any": (hvd.DistributedOptimizer, of_keras),
        "tape": (hvd.DistributedGradientTape, tf.GradientTape),
        "partial_tape": (hvd.PartialDistributedGradientTape, tf.GradientTape),
        "keras": (keras3.DistributedOptimizer, of_keras),
        "partial_keras": (keras3.PartialDistributedOptimizer, of_keras),
        "tf_keras": (tf_keras.DistributedOptimizer, of_keras),
        "partial_tf_keras": (tf_keras.PartialDistributedOptimizer, of_keras),
    }


@pytest.mark.parametrize("which", list(functions()))
def test_every_argument_arrives(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions hand on what they find in their ``locals()``: a parameter of another name would be lost."""
    values = {
        "name": "mine",
        "device_dense": "/cpu:0",
        "device_sparse": "/device:cpu:0",
        "compression": hvd.Compression.fp16,
        "sparse_as_dense": True,
        "backward_passes_per_step": 3,
        "average_aggregated_gradients": True,
        "groups": 2,
        "process_set": hvd.ProcessSet([0]),
        "scale_local_gradients": False,
    }
    function, make = functions()[which]
    made: list[GradientSettings] = []
    checked = GradientSettings.__post_init__

    def seen(settings: GradientSettings) -> None:
        checked(settings)
        made.append(settings)

    monkeypatch.setattr(GradientSettings, "__post_init__", seen)
    parameters = inspect.signature(function).parameters.keys()
    with tf.Graph().as_default():
        for others in ({"op": hvd.Sum}, {"op": hvd.Average, "gradient_predivide_factor": 2.0}):
            given = {name: value for name, value in (values | others).items() if name in parameters}
            assert parameters - given.keys() - {"op", "gradient_predivide_factor"} <= NO_SETTINGS
            function(make(), **given)
            last = {"name": "DistributedGradientTape"} if "tape" in which else {}
            assert vars(made[-1]) == vars(GradientSettings()) | given | last


def test_adasum_takes_neither_averages_of_passes_nor_sets_nor_optimizers_of_keras() -> None:
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        wrap_optimizer(op=hvd.Adasum, average_aggregated_gradients=True)
    with pytest.raises(NotImplementedError, match="process set"):
        wrap_optimizer(op=hvd.Adasum, process_set=hvd.ProcessSet([0]))
    with pytest.raises(ValueError, match="Keras"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(), op=hvd.Adasum)


def test_arguments_are_checked_in_the_order_of_the_interface() -> None:
    with pytest.raises(ValueError, match="gradient_predivide_factor"):
        wrap_optimizer(
            gradient_predivide_factor=2.0, op=hvd.Adasum, average_aggregated_gradients=True, groups=0
        )
    with pytest.raises(ValueError, match="average_aggregated_gradients"):
        wrap_optimizer(op=hvd.Adasum, average_aggregated_gradients=True, groups=0)
    with pytest.raises(ValueError, match="groups"):
        wrap_optimizer(op=hvd.Adasum, process_set=hvd.ProcessSet([0]), groups=0)


@pytest.mark.parametrize("passes", [0, -3])
def test_passes_are_positive(passes: int) -> None:
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        wrap_optimizer(backward_passes_per_step=passes)
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        LocalGradientAggregationHelperEager(passes, lambda gradients, _: gradients, False, False)
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        LocalGradientAggregationHelper(passes, lambda gradients, _: gradients, False, False, 0, "")


def test_v1_optimizers_sum_no_passes_in_eager_mode() -> None:
    with pytest.raises(ValueError, match="eager"):
        wrap_optimizer(backward_passes_per_step=2)


def test_summing_slices_needs_them_dense() -> None:
    table = tf.Variable([[1.0], [2.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [0]))
    gradients = tape.gradient(loss, [table])
    helper = LocalGradientAggregationHelperEager(2, lambda gradients, _: gradients, False, False)
    with pytest.raises(ValueError, match="sparse_as_dense"):
        helper.compute_gradients(gradients, [table])
    with tf.Graph().as_default():
        weight = v1.get_variable("table", initializer=[[1.0], [2.0]])
        optimizer = wrap_optimizer(backward_passes_per_step=2)
        with pytest.raises(ValueError, match="sparse_as_dense"):
            optimizer.minimize(tf.reduce_sum(tf.gather(weight, [0])))


def test_sums_need_a_static_shape() -> None:
    with tf.Graph().as_default():
        optimizer = wrap_optimizer(backward_passes_per_step=2)
        value = v1.placeholder(tf.float32, [None])
        weight = v1.Variable(value, validate_shape=False)
        with pytest.raises(ValueError, match="static shape"):
            optimizer.compute_gradients(tf.reduce_sum(weight), [weight])


@pytest.mark.parametrize("layers", [1, "dense", [None], [tf.Variable(1.0)]])
def test_local_layers_are_layers(layers: Any) -> None:
    with pytest.raises(ValueError, match="local_layers"):
        wrap_partial_tape(local_layers=layers)


@pytest.mark.parametrize("fused", [True, None])
def test_synchronous_batch_normalisation_is_never_fused(fused: Any) -> None:
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=fused)
    assert hvd.SyncBatchNormalization(fused=False).get_config()["axis"] == -1


def test_before_init_reducing_says_so() -> None:
    weight = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = weight * 2.0
    wrapped = hvd.DistributedGradientTape(tape)
    hvd.shutdown()
    try:
        with pytest.raises(ValueError, match="init"):
            wrapped.gradient(loss, [weight])
    finally:
        hvd.init()


def test_elastic_training_is_there_with_the_module() -> None:
    assert callable(hvd.elastic.run)
    assert "elastic" in hvd.__all__
