"""Reports about collectives in TensorFlow's functions, pipelines and tapes."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tests.contract.world import Cases

import horovod.tensorflow as hvd

FRAMEWORK = "horovod.tensorflow"
CASES = Cases()


@CASES.add
def recomputed_gradients() -> None:
    """TensorFlow: ``tf.recompute_grad`` around a part with a collective ran it once more, and it met
    nobody."""
    variable = tf.Variable([1.0, 2.0])
    part = tf.recompute_grad(lambda x: hvd.allreduce(x * x, op=hvd.Sum))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(part(variable))
    assert np.allclose(tape.gradient(loss, variable), 2 * hvd.size() * variable)


@CASES.add
def jacobians() -> None:
    """TensorFlow: the vectorized jacobian of a collective was that of one row, broadcast to all."""
    variable = tf.Variable([1.0, 2.0])
    for vectorized in (True, False):
        with tf.GradientTape(persistent=True) as tape:
            result = hvd.allreduce(variable * float(hvd.rank() + 1), op=hvd.Sum)
        jacobian = tape.jacobian(result, variable, experimental_use_pfor=vectorized)
        assert np.allclose(jacobian, np.eye(2) * (hvd.rank() + 1) * hvd.size()), vectorized


@CASES.add
def rows_one_by_one() -> None:
    """TensorFlow: ``tf.map_fn`` runs iterations at the same time, and one name was in flight several
    times."""
    rows = tf.reshape(tf.range(6.0), (3, 2)) * float(hvd.rank() + 1)
    expected = np.arange(6).reshape(3, 2) * sum(range(1, hvd.size() + 1))

    def mapped(rows: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(lambda row: hvd.allreduce(row, op=hvd.Sum), rows)

    for function in (mapped, tf.function(mapped)):
        assert np.allclose(function(rows), expected)


@CASES.add
def in_an_input_pipeline() -> None:
    """TensorFlow: a collective in ``Dataset.map`` ran in the pipeline's threads and hung at the end of the
    data."""
    numbers = tf.data.Dataset.range(4).map(
        lambda number: hvd.allreduce(tf.cast(number, tf.float32), op=hvd.Sum, name="pipeline")
    )
    assert [float(number) for number in numbers] == [number * hvd.size() for number in range(4)]


@CASES.add
def functions_that_are_traced_differently_by_rank() -> None:
    """MultiWorkerMirroredStrategy: ranks that traced a function at other moments counted other collective
    keys, and hung."""

    @tf.function  # type: ignore[untyped-decorator]
    def scaled(x: tf.Tensor, factor: int) -> tf.Tensor:
        return hvd.allreduce(x * factor, op=hvd.Sum)

    if hvd.rank() == 0:
        scaled.get_concrete_function(tf.TensorSpec([2], tf.float64), 3)
    for number in range(3):
        result = scaled(tf.ones(2 + number), number + 10 * hvd.rank())
        assert np.allclose(result, sum(number + 10 * rank for rank in range(hvd.size())))


@CASES.add
def from_functions_of_python() -> None:
    """TensorFlow: a collective in ``tf.py_function`` held the interpreter's lock, while the other rank
    needed it."""
    eager = tf.py_function(
        lambda x: hvd.allreduce(x, op=hvd.Sum, name="py_function"), [tf.ones(2)], tf.float32
    )

    @tf.function  # type: ignore[untyped-decorator]
    def traced(x: tf.Tensor) -> tf.Tensor:
        def reduce(array: np.ndarray) -> np.ndarray:
            result: np.ndarray = hvd.allreduce(tf.constant(array), op=hvd.Sum, name="numpy_function").numpy()
            return result

        return tf.numpy_function(reduce, [x], tf.float32)

    assert np.allclose(eager, hvd.size())
    assert np.allclose(traced(tf.ones(2)), hvd.size())


@CASES.add
def a_step_that_xla_compiles() -> None:
    """Keras users: gradients of a step with ``jit_compile`` were reduced outside of it, with another name
    by rank."""
    weights = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def gradients(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * x)
        return tape.gradient(loss, [weights])[0]

    @tf.function  # type: ignore[untyped-decorator]
    def step(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(gradients(x))

    assert np.allclose(step(tf.fill([2], float(hvd.rank()))), (hvd.size() - 1) / 2)


@CASES.add
def rows_that_occur_twice() -> None:
    """Parameter servers: rows of an embedding that a batch used twice were counted once after the
    exchange."""
    table = tf.Variable(tf.ones((4, 2)))
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 1, hvd.rank()]))
    expected = np.zeros((4, 2))
    for rank in range(hvd.size()):
        for row in (1, 1, rank):
            expected[row] += 1 / hvd.size()
    assert np.allclose(tf.convert_to_tensor(tape.gradient(loss, [table])[0]), expected)


@CASES.add
def variables_of_a_strategy() -> None:
    """TensorFlow: variables made in the scope of a strategy are mirrored, and a broadcast overwrote one
    copy."""
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        variable = tf.Variable([float(hvd.rank())])
    hvd.broadcast_variables([variable], hvd.size() - 1)
    assert variable.numpy().tolist() == [hvd.size() - 1]
