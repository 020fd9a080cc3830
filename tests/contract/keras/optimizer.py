"""What `DistributedOptimizer` does with the gradients it is given."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from tests.contract.keras.lazy import backend, hvd, keras, tf
from tests.contract.keras.models import dense_model, tensor, variable
from tests.contract.world import Cases

CASES = Cases()


def near(variable: Any, *values: float) -> None:
    np.testing.assert_allclose(variable.numpy(), np.array(values, "float32"), rtol=1e-3)


def sgd(**options: Any) -> Any:
    return hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)


def mean_rank() -> float:
    return float(hvd.size() - 1) / 2


@CASES.add
def gradients_are_averaged_summed_scaled_grouped_and_compressed() -> None:
    mean = mean_rank()
    for options, factor in (
        ({}, 1),
        ({"op": hvd.Sum}, hvd.size()),
        ({"gradient_predivide_factor": 2.0}, 1),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, hvd.size()),
        ({"groups": 2}, 1),
        ({"groups": 7}, 1),
        ({"compression": hvd.Compression.fp16}, 1),
        ({"name": "mine", "process_set": hvd.global_process_set}, 1),
    ):
        variables = [variable(0.0), variable(0.0, 0.0), variable(0.0)]
        optimizer = sgd(**options)
        rank = float(hvd.rank())
        optimizer.apply([tensor(rank), tensor(rank, 2 * rank), tensor(4 * rank)], variables)
        near(variables[0], -factor * mean)
        near(variables[1], -factor * mean, -2 * factor * mean)
        near(variables[2], -4 * factor * mean)


@CASES.add
def the_text_of_an_optimizer_says_that_it_is_distributed() -> None:
    """Libraries look for it. The module of the class is that of Keras, by which saved files name it."""
    plain = keras.optimizers.SGD(1.0)
    assert "horovod._keras" not in str(plain)
    for optimizer in (sgd(), hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(plain))):
        assert "horovod._keras" in str(optimizer)
        assert "horovod._keras" in repr(optimizer)
        assert type(optimizer).__module__ == "keras.optimizers"


@CASES.add
def what_is_no_optimizer_is_refused_with_the_line_to_write() -> None:
    for given, what in (
        (dense_model(), "got a Sequential: wrap the optimizer, not the model"),
        ("adam", "got 'adam': it wraps an optimizer of Keras"),
        (keras.optimizers.SGD, "got <class '.*SGD'>: it wraps an optimizer of Keras"),
    ):
        for wrap in (hvd.DistributedOptimizer, hvd.PartialDistributedOptimizer):
            with pytest.raises(ValueError, match=what) as caught:
                wrap(given)
        line = str(caught.value).partition("Write ")[2].partition(" and ")[0]
        scope: dict[str, Any] = {"hvd": hvd, "keras": keras}
        exec(line, scope)
        assert isinstance(scope["optimizer"], keras.optimizers.Adam)


def step_of_keras_2(optimizer: Any, value: Any, local: Any) -> Any:
    """A step with this rank's number plus one as the gradient of both variables; returns the gradients."""

    def step() -> Any:
        pairs = optimizer._compute_gradients(
            lambda: tf.reduce_sum((hvd.rank() + 1.0) * (value.value + local.value)), [value, local]
        )
        optimizer.apply_gradients(pairs)
        return [gradient for gradient, _ in pairs]

    return step


@CASES.add
def gradients_that_a_class_of_the_user_computes_are_reduced_once() -> None:
    if backend() != "tensorflow":
        return
    rank, mean = float(hvd.rank()), mean_rank()

    class Constant(keras.optimizers.SGD):  # type: ignore[misc]
        def get_gradients(self, loss: Any, params: Any) -> list[Any]:
            return [tf.fill([1], rank + 7.0) for _ in params]

        def _compute_gradients(self, loss: Any, var_list: Any, *_: Any, **__: Any) -> list[Any]:
            return [(tf.fill([1], rank + 5.0), each) for each in var_list]

    optimizer, value = hvd.DistributedOptimizer(Constant(1.0)), variable(0.0)
    gradients = optimizer.get_gradients(None, [value])
    np.testing.assert_allclose(gradients[0].numpy(), [7.0 + mean])
    optimizer.apply_gradients(zip(gradients, [value], strict=True))
    near(value, -7.0 - mean)
    optimizer.apply_gradients(optimizer._compute_gradients(None, [value]))
    near(value, -12.0 - 2 * mean)


@CASES.add
def gradients_that_an_optimizer_computes_are_reduced_once() -> None:
    rank, size = float(hvd.rank()), hvd.size()
    if backend() != "tensorflow":
        with pytest.raises(ValueError, match="with TensorFlow only"):
            sgd()._compute_gradients(lambda: tensor(1.0), [variable(0.0)])
        return
    for compiled in (False, True):
        for passes in (1, 2):
            value, local = variable(0.0), variable(0.0)
            optimizer = sgd(op=hvd.Sum, backward_passes_per_step=passes, scale_local_gradients=False)
            optimizer.register_local_var(local)
            optimizer.build([value, local])

            step = step_of_keras_2(optimizer, value, local)
            run = tf.function(step) if compiled else step
            every = [run() for _ in range(passes)]
            total = size * (size + 1) / 2
            np.testing.assert_allclose(every[0][0].numpy(), [total if passes == 1 else rank + 1])
            near(value, -passes * total)
            near(local, -passes * (rank + 1))

    value = variable(2.0)
    optimizer = sgd(op=hvd.Sum)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((rank + 1.0) * value.value)
    with pytest.raises(ValueError, match="pass tape="):
        optimizer._compute_gradients(loss, [value])
    ((gradient, of),) = optimizer._compute_gradients(
        loss, lambda: [value], grad_loss=tensor(2.0)[0], tape=tape
    )
    assert of is value
    np.testing.assert_allclose(gradient.numpy(), [size * (size + 1)])

    def in_a_graph() -> Any:
        return optimizer.get_gradients(tf.reduce_sum((rank + 1.0) * value.value), [value])

    np.testing.assert_allclose(tf.function(in_a_graph)()[0].numpy(), [size * (size + 1) / 2])


@CASES.add
def a_gradient_made_from_a_reduced_one_is_never_summed_or_divided_again() -> None:
    if backend() != "tensorflow":
        return
    size = hvd.size()

    def changed(optimizer: Any, value: Any) -> Any:
        pairs = optimizer._compute_gradients(lambda: tf.reduce_sum((hvd.rank() + 1.0) * value.value), [value])
        return [(gradient * 1.0, variable) for gradient, variable in pairs]

    value, local, other = variable(0.0), variable(0.0), variable(0.0)
    summed, partly_local, averaged = sgd(op=hvd.Sum), sgd(), sgd()
    partly_local.register_local_var(local)
    for optimizer, of in ((summed, value), (partly_local, local)):
        with pytest.raises(ValueError, match=r"a second time\. Let the optimizer clip"):
            optimizer.apply_gradients(changed(optimizer, of))
        near(of, 0.0)
        # Gradients of this rank are reduced as ever.
        other.assign([0.0])
        optimizer.apply_gradients([(tensor(float(hvd.rank())), other)])
        near(other, -mean_rank() * (size if optimizer is summed else 1))
    averaged.apply_gradients(changed(averaged, value))
    near(value, -mean_rank() - 1)


@CASES.add
def groups_of_variables_are_found_by_identity() -> None:
    variables = [variable(0.0) for _ in range(4)]  # all of one name
    optimizer = sgd(groups=[[variables[3], variables[0]], [variables[2]]])
    optimizer.apply([tensor(float(i + hvd.rank())) for i in range(4)], variables)
    for i, each in enumerate(variables):
        near(each, -(i + mean_rank()))


@CASES.add
def gradients_without_variables_are_those_it_was_built_with() -> None:
    variables = [variable(0.0), variable(0.0)]
    optimizer = sgd()
    optimizer.build(variables)
    optimizer.apply([tensor(float(hvd.rank())), tensor(1.0)])
    near(variables[0], -mean_rank())
    near(variables[1], -1.0)


@CASES.add
def missing_gradients_stay_missing() -> None:
    variables = [variable(0.0), variable(7.0)]
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        sgd().apply([tensor(float(hvd.rank())), None], variables)
    near(variables[0], -mean_rank())
    near(variables[1], 7.0)


@CASES.add
def statistics_that_overwrite_variables_are_left_alone() -> None:
    variables = [variable(0.0), variable(0.0)]
    variables[1].overwrite_with_gradient = True
    sgd().apply([tensor(float(hvd.rank())), tensor(float(hvd.rank()))], variables)
    near(variables[0], -mean_rank())
    near(variables[1], float(hvd.rank()))


@CASES.add
def clipping_comes_after_the_reduction() -> None:
    clipped = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, clipvalue=0.25))
    value = variable(0.0)
    # Clipped on each rank first, these would average to something else.
    clipped.apply([tensor(100.0 if hvd.rank() == 0 else -100.0 / max(hvd.size() - 1, 1))], [value])
    near(value, 0.0 if hvd.size() > 1 else -0.25)


@CASES.add
def local_variables_keep_their_own_gradients() -> None:
    for scaled, factor in ((True, 1.0 / hvd.size()), (False, 1.0)):
        variables = [variable(0.0), variable(0.0)]
        optimizer = sgd(scale_local_gradients=scaled)
        optimizer.register_local_var(variables[0])
        optimizer.apply([tensor(float(hvd.rank())), tensor(float(hvd.rank()))], variables)
        near(variables[0], -factor * hvd.rank())
        near(variables[1], -mean_rank())


@CASES.add
def partial_optimizers_leave_layers_local() -> None:
    model = dense_model()
    first, second = model.layers
    for layers, local in ((None, []), (first, [first]), ([first, second], [first, second])):
        optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=layers)
        names = {id(weight) for layer in local for weight in layer.trainable_weights}
        before = [weight.numpy().copy() for weight in model.trainable_weights]
        gradients = [
            keras.ops.full(weight.shape, float(hvd.rank()), "float32") for weight in model.trainable_weights
        ]
        optimizer.apply(gradients, model.trainable_weights)
        for weight, old in zip(model.trainable_weights, before, strict=True):
            step = hvd.rank() / hvd.size() if id(weight) in names else mean_rank()
            np.testing.assert_allclose(weight.numpy(), old - step, atol=1e-5)
            weight.assign(old)
    with pytest.raises(ValueError, match="local_layers"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=3)
    with pytest.raises(ValueError, match="The layer late of local_layers is not built"):
        hvd.PartialDistributedOptimizer(
            keras.optimizers.SGD(1.0), local_layers=[keras.layers.Dense(1, name="late")]
        )


@CASES.add
def a_local_layer_may_be_frozen_at_first() -> None:
    layer = dense_model().layers[0]
    layer.trainable = False
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), local_layers=layer, scale_local_gradients=False
    )
    layer.trainable = True
    weights = layer.trainable_weights
    before = [weight.numpy().copy() for weight in weights]
    optimizer.apply([keras.ops.full(each.shape, float(hvd.rank()), "float32") for each in weights], weights)
    for weight, old in zip(weights, before, strict=True):
        np.testing.assert_allclose(weight.numpy(), old - hvd.rank(), atol=1e-5)


@CASES.add
def optimizers_of_users_keep_what_their_configuration_leaves_out() -> None:
    class Stronger(keras.optimizers.SGD):  # type: ignore[misc]
        def __init__(self, learning_rate: float = 0.01, factor: float = 1.0, **options: Any) -> None:
            super().__init__(learning_rate, **options)
            self.factor = factor

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(gradient * self.factor, variable, learning_rate)

    weight = variable(0.0)
    optimizer = hvd.DistributedOptimizer(Stronger(1.0, factor=3.0))
    assert optimizer.factor == 3.0
    optimizer.apply([tensor(float(hvd.rank()))], [weight])
    near(weight, -3.0 * mean_rank())


@CASES.add
def passes_are_summed_and_used_together() -> None:
    for average, factor in ((True, 0.25), (False, 1.0)):
        variables = [variable(0.0), variable(0.0)]
        optimizer = sgd(backward_passes_per_step=4, average_aggregated_gradients=average)
        optimizer.register_local_var(variables[1])
        for done in range(1, 9):
            optimizer.apply([tensor(done + float(hvd.rank())), tensor(float(hvd.rank()))], variables)
            cycles = done // 4
            total = sum(range(1, 4 * cycles + 1)) + 4 * cycles * mean_rank()
            near(variables[0], -factor * total)
            near(variables[1], -factor * 4 * cycles * hvd.rank() / hvd.size())
            assert int(optimizer.iterations.numpy()) == done
            assert int(optimizer._agg_helper.counter.numpy()) == done % 4


@CASES.add
def averages_of_weights_begin_with_the_first_update() -> None:
    def averages(passes: int, overwrite: int | None) -> list[Any]:
        value = variable(3.0)
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.75, ema_overwrite_frequency=overwrite),
            backward_passes_per_step=passes,
        )
        seen = []
        for done in range(1, 3 * passes + 1):
            optimizer.apply([tensor(1.0 / passes)], [value])
            if done % passes == 0:
                seen += [
                    value.numpy().tolist(),
                    optimizer._model_variables_moving_average[0].numpy().tolist(),
                ]
        return seen

    for overwrite in (None, 1):
        np.testing.assert_allclose(averages(4, overwrite), averages(1, overwrite), rtol=1e-6)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0, use_ema=True))
    with pytest.raises(ValueError, match=r"LossScaleOptimizer\(hvd\.DistributedOptimizer"):
        hvd.DistributedOptimizer(scaled, backward_passes_per_step=2)


@CASES.add
def an_infinite_gradient_does_not_outlive_its_cycle() -> None:
    value = variable(0.0)
    optimizer = sgd(backward_passes_per_step=2)
    for gradient in (np.inf, 1.0):
        optimizer.apply([tensor(gradient)], [value])
    assert not np.isfinite(value.numpy()).any()
    value.assign(np.zeros(1, "float32"))
    for gradient in (1.0, 2.0):
        optimizer.apply([tensor(gradient)], [value])
    near(value, -3.0)


@CASES.add
def a_gradient_that_is_missing_in_a_pass_keeps_its_sum() -> None:
    variables = [variable(0.0), variable(0.0), variable(7.0)]
    optimizer = sgd(backward_passes_per_step=3)
    first, second = float(hvd.rank()), 2.0
    optimizer.apply([tensor(first), None, None], variables)
    optimizer.apply([None, tensor(second), None], variables)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([tensor(first), None, None], variables)
    near(variables[0], -2 * mean_rank())
    near(variables[1], -second)
    near(variables[2], 7.0)


@CASES.add
def the_configuration_makes_such_an_optimizer_again() -> None:
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.125, beta_1=0.5), backward_passes_per_step=2)
    config = optimizer.get_config()
    assert config == keras.optimizers.Adam.from_config(config).get_config()
    for again in (type(optimizer).from_config(config), optimizer.from_config(config)):
        assert again.get_config() == config
        assert type(again) is type(optimizer)
        assert again._horovod_settings.backward_passes_per_step == 2


@CASES.add
def the_class_looks_like_the_wrapped_one() -> None:
    plain = keras.optimizers.Adam(0.1)
    optimizer = hvd.DistributedOptimizer(plain)
    assert isinstance(optimizer, type(plain))
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert type(optimizer).__name__ == "Adam"
    assert type(optimizer).__module__ == "keras.optimizers"
    assert optimizer.name == plain.name
    assert optimizer.variables() == optimizer.variables
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)


@CASES.add
def the_state_of_the_wrapped_optimizer_is_taken_over() -> None:
    value = variable(0.0)
    plain = keras.optimizers.SGD(0.5, momentum=0.5)
    plain.apply([tensor(2.0)], [value])
    for passes in (1, 2):
        optimizer = hvd.DistributedOptimizer(plain, backward_passes_per_step=passes)
        assert int(optimizer.iterations.numpy()) == 1
        near(optimizer.momentums[0], -1.0)
    optimizer = hvd.DistributedOptimizer(plain)
    optimizer.apply([tensor(2.0)], [value])
    near(value, -1.0 - 1.5)
    near(plain.momentums[0], -1.0)  # it goes its own way


@CASES.add
def combined_optimizers_reduce_once() -> None:
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        return  # added in Keras 3.13
    first, second = variable(0.0), variable(0.0)
    parts = [keras.optimizers.SGD(1.0), keras.optimizers.SGD(0.5)]

    def choose(each: Any) -> Any:
        return parts[0] if each is first else parts[1]

    # Cannot be made again from its configuration: it becomes distributed itself.
    combined = keras.optimizers.MultiOptimizer(choose)
    optimizer = hvd.DistributedOptimizer(combined)
    optimizer.apply([tensor(float(hvd.rank())), tensor(float(hvd.rank()))], [first, second])
    near(first, -mean_rank())
    near(second, -mean_rank() / 2)


@CASES.add
def ranks_outside_of_the_process_set_keep_their_own_gradients() -> None:
    alone = hvd.add_process_set([0])
    try:
        value = variable(0.0)
        sgd(process_set=alone).apply([tensor(3.0 + hvd.rank())], [value])
        near(value, -3.0 - hvd.rank())
    finally:
        hvd.remove_process_set(alone)


@CASES.add
def wrong_arguments_are_refused() -> None:
    for options, message in (
        ({"op": hvd.Adasum}, "Average and Sum"),
        ({"op": hvd.Max}, "Average and Sum"),
        ({"groups": 0}, "groups"),
        ({"groups": "two"}, "groups"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
    ):
        with pytest.raises(ValueError, match=message):
            sgd(**options)
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0, gradient_accumulation_steps=2), backward_passes_per_step=2
        )
    with pytest.raises(ValueError, match="optimizer of Keras"):
        hvd.DistributedOptimizer(object())


@CASES.add
def gradients_of_a_reducing_tape_are_reduced_once() -> None:
    if backend() != "tensorflow":
        return
    from horovod.tensorflow.tape import DistributedGradientTape

    value = variable(0.0)
    factor = float(hvd.rank() + 1)
    with tf.GradientTape() as tape:
        loss = factor * value.value[0]
    tape = DistributedGradientTape(tape, op=hvd.Sum)
    optimizer = sgd(op=hvd.Sum)
    optimizer.apply_gradients(zip(tape.gradient(loss, [value.value]), [value], strict=True))
    near(value, -hvd.size() * (hvd.size() + 1) / 2)


@CASES.add
def sums_of_a_reducing_tapes_gradients_are_not_reduced_again() -> None:
    if backend() != "tensorflow":
        return
    from horovod.tensorflow.tape import DistributedGradientTape

    def pass_of(optimizer: Any, values: list[Any], factor: Any) -> None:
        with tf.GradientTape() as tape:
            loss = factor * values[0].value[0] + tf.reduce_sum(tf.gather(values[1].value, [1])) * factor
        tape = DistributedGradientTape(tape, op=hvd.Sum)
        gradients = tape.gradient(loss, [each.value for each in values])
        assert isinstance(gradients[1], tf.IndexedSlices)
        optimizer.apply(gradients, values)

    for wrap in (lambda step: step, tf.function(autograph=False)):
        values = [variable(0.0), keras.Variable(np.zeros((2, 1), "float32"))]
        optimizer = sgd(op=hvd.Sum, backward_passes_per_step=2, sparse_as_dense=True)
        step = wrap(functools.partial(pass_of, optimizer, values))
        for number in (1.0, 2.0, 4.0):
            step(tf.constant(number + hvd.rank()))
        expected = -hvd.size() * (3.0 + 2 * mean_rank())
        near(values[0], expected)
        np.testing.assert_allclose(values[1].numpy()[:, 0], [0.0, expected], rtol=1e-5)


@CASES.add
def sums_of_reduced_and_own_gradients_are_refused() -> None:
    if backend() != "tensorflow":
        return
    from horovod.tensorflow.tape import DistributedGradientTape

    value = variable(0.0)
    optimizer = sgd(backward_passes_per_step=2)
    optimizer.apply([tensor(1.0)], [value])
    with tf.GradientTape() as tape:
        loss = value.value[0] * 1.0
    gradients = DistributedGradientTape(tape).gradient(loss, [value.value])
    with pytest.raises(ValueError, match=r"variable.*DistributedGradientTape.*other passes"):
        optimizer.apply(gradients, [value])


@CASES.add
def functions_of_tensorflow_accumulate() -> None:
    if backend() != "tensorflow":
        return
    value, table = variable(0.0), keras.Variable(np.zeros((4, 1), "float32"))
    optimizer = sgd(backward_passes_per_step=2, sparse_as_dense=True)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(number: Any) -> None:
        rows = tf.IndexedSlices(tf.reshape(number, [1, 1]), tf.constant([1]), tf.constant([4, 1]))
        optimizer.apply([tf.reshape(number, [1]), rows], [value, table])

    for number in (1.0, 2.0, 4.0):
        step(tf.constant(number + hvd.rank()))
    near(value, -(3.0 + 2 * mean_rank()))
    np.testing.assert_allclose(table.numpy()[:, 0], [0, -(3.0 + 2 * mean_rank()), 0, 0])
    assert int(optimizer._agg_helper.counter.numpy()) == 1
    with pytest.raises(ValueError, match="sparse_as_dense"):
        sgd(backward_passes_per_step=2).apply(
            [tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1]), tf.constant([4, 1]))], [table]
        )
