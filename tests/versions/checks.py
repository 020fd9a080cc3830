"""What must work with every version of TensorFlow: ``python -m tests.versions.checks FOLDER`` is one rank.

Runs in environments that hold little more than TensorFlow, so it needs nothing else. Writes into the file
``FOLDER/RANK.json`` versions, and for each check what went wrong, an empty text if nothing did.
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

CHECK_LIMIT_S = 60.0

CHECKS: dict[str, Callable[[], None]] = {}
"""Name, as the table shows it, and the check."""


def check(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(function: Callable[[], None]) -> Callable[[], None]:
        CHECKS[name] = function
        return function

    return add


def equal(one: Any, other: Any) -> None:
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5)


def equal_everywhere(values: list[Any]) -> None:
    """Every rank has the same arrays."""
    for position, others in enumerate(
        zip(*hvd.allgather_object([np.asarray(v) for v in values]), strict=True)
    ):
        for other in others:
            np.testing.assert_array_equal(other, others[0], err_msg=str(position))


def collectives() -> list[Any]:
    """Results of the collectives, for inputs that depend on the rank."""
    mine = tf.range(4, dtype=tf.float32) + float(hvd.rank())
    pair = hvd.grouped_allreduce([mine, 2 * mine], op=hvd.Sum, name="grouped")
    return [
        hvd.allreduce(mine, op=hvd.Average, name="reduced"),
        *pair,
        hvd.allgather(tf.fill([hvd.rank() + 1, 2], hvd.rank()), name="gathered"),
        hvd.broadcast(mine, 1, name="sent"),
        hvd.alltoall(mine, name="exchanged"),
        hvd.reducescatter(mine, op=hvd.Sum, name="scattered"),
    ]


def expected() -> list[Any]:
    base = np.arange(4, dtype=np.float32)
    half = slice(2 * hvd.rank(), 2 * hvd.rank() + 2)
    return [
        base + 0.5,
        2 * base + 1,
        4 * base + 2,
        [[0, 0], [1, 1], [1, 1]],
        base + 1,
        np.concatenate([base[half], base[half] + 1]),
        (2 * base + 1)[half],
    ]


def all_equal(results: list[Any]) -> None:
    for result, wanted in zip(results, expected(), strict=True):
        equal(result, wanted)


@check("native ops")
def native_ops() -> None:
    from horovod.tensorflow import native

    assert not native.problem, native.problem


@check("eager")
def eager() -> None:
    all_equal(collectives())
    variable = tf.Variable(tf.fill([3], float(hvd.rank())))
    hvd.broadcast_variables([variable], root_rank=1)
    equal(variable, [1.0] * 3)


@check("errors")
def errors() -> None:
    with_error = None
    try:
        hvd.allreduce(tf.zeros([2 + hvd.rank()]), name="of different shapes")
    except tf.errors.OpError as error:
        with_error = error
    assert with_error is not None, "ranks with different shapes were not told"
    assert "of different shapes" in str(with_error), str(with_error)
    equal(hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="after an error"), [2.0, 2.0])


@check("tf.function")
def function() -> None:
    run = tf.function(collectives)
    for _ in range(3):
        all_equal(run())


@check("session")
def session() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        results = collectives()
        variable = v1.get_variable("variable", initializer=tf.fill([3], float(hvd.rank())))
        loss = tf.reduce_sum(tf.square(variable - float(hvd.rank())))
        opt = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.25))
        train = opt.minimize(loss)
        start = hvd.broadcast_global_variables(1)
        session.run(v1.global_variables_initializer())
        all_equal(session.run(results))
        session.run(start)
        equal(session.run(variable), [1.0] * 3)
        session.run(train)  # the mean of 2 (1 - 0) and 2 (1 - 1) is 1
        equal(session.run(variable), [0.75] * 3)


@check("tape")
def tape() -> None:
    weights = tf.Variable([[1.0 + hvd.rank()], [2.0]])
    table = tf.Variable(tf.ones([4, 2]))
    hvd.broadcast_variables([weights, table], root_rank=0)
    rows = [hvd.rank(), 3]

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> list[Any]:
        with tf.GradientTape() as recorded:
            loss = tf.reduce_sum(tf.matmul(tf.gather(table, rows), weights))
        gradients = hvd.DistributedGradientTape(recorded).gradient(loss, [weights, table])
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    of_weights, of_table = step()
    equal(of_weights, [[2.0], [2.0]])
    equal(of_table, [[0.5, 1.0], [0.5, 1.0], [0.0, 0.0], [1.0, 2.0]])


@check("Keras fit")
def keras_fit() -> None:
    import keras

    import horovod.keras as hvd_keras

    random = np.random.default_rng(7)
    rows = random.normal(size=(64, 5)).astype(np.float32)
    targets = rows @ np.arange(5, dtype=np.float32)[:, None]
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.1))
    model.compile(optimizer, "mse")
    history = model.fit(
        rows[hvd.rank() :: 2],
        targets[hvd.rank() :: 2],
        batch_size=8,
        epochs=4,
        verbose=0,
        callbacks=[
            hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd_keras.callbacks.MetricAverageCallback(),
        ],
    )
    losses = history.history["loss"]
    assert losses[-1] < losses[0] / 2, losses
    equal_everywhere([*model.get_weights(), np.array(losses)])


def versions() -> dict[str, str]:
    import keras

    return {
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "NumPy": np.__version__,
        "Python": platform.python_version(),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    hvd.init()
    assert hvd.size() == 2
    report: dict[str, Any] = {"versions": versions(), "checks": {}}
    for name, run in CHECKS.items():
        faulthandler.dump_traceback_later(CHECK_LIMIT_S, exit=True)
        error = ""
        try:
            run()
        except Exception:
            error = traceback.format_exc()
        report["checks"][name] = error
        Path(folder, f"{hvd.rank()}.json").write_text(json.dumps(report))
        try:
            hvd.allgather_object(error, name=f"verdict on {name}")
        except (hvd.HorovodInternalError, ValueError):
            os._exit(1)  # the ranks are no longer in step; what remains was not run
    faulthandler.cancel_dump_traceback_later()
    hvd.shutdown()


if __name__ == "__main__":
    main()
