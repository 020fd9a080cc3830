"""A rank of an elastic job that trains with a framework, until a file says that it is enough.

    python elastic_framework_rank.py {torch,tensorflow,keras} ENOUGH

Rank 0 alone decides what is done next, by what it gives to a sum; so all ranks do the same. At the end each
one prints what its weights are: they must be equal.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROWS, COLUMNS = 8, 6
Step = Callable[[np.ndarray[Any, Any], float], float]
"""One step with a batch; returns the sum of what all ranks have given."""


def tell(frame: Any, step: int) -> None:
    print(f"trains {frame.size()} from step {step}", flush=True)


def loop(frame: Any, state: Any, enough: Path, one_step: Step) -> None:
    """Train in one world."""
    tell(frame, state.step)
    while not state.over:
        random = np.random.default_rng([state.step, frame.rank()])
        wanted = float(enough.exists()) if frame.rank() == 0 else 0.0
        total = one_step(random.standard_normal((ROWS, COLUMNS)).astype(np.float32), 1.0 + 1000.0 * wanted)
        ranks, state.over = total % 1000, total >= 1000
        assert ranks == frame.size(), f"{ranks} of {frame.size()} have given 1"
        state.step += 1
        time.sleep(0.02)
        state.commit()


def with_torch(enough: Path) -> Sequence[Any]:
    import torch

    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(COLUMNS, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters()
    )

    def one_step(batch: np.ndarray[Any, Any], given: float) -> float:
        optimizer.zero_grad()
        (model(torch.from_numpy(batch)) ** 2).mean().backward()
        optimizer.step()
        return float(hvd.allreduce(torch.tensor(given), op=hvd.Sum, name="given"))

    @hvd.elastic.run
    def train(state: Any) -> None:
        loop(hvd, state, enough, one_step)

    train(hvd.elastic.TorchState(model, optimizer, step=0, over=False))
    return [each.detach().numpy() for each in model.parameters()]


def with_tensorflow(enough: Path) -> Sequence[Any]:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    hvd.init()
    weight = tf.Variable(tf.random.normal([COLUMNS, 1]))
    optimizer = tf.keras.optimizers.Adam(0.01)
    optimizer.build([weight])

    @tf.function  # type: ignore[untyped-decorator]
    def graph(batch: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch @ weight))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return hvd.allreduce(given, op=hvd.Sum, name="given")

    def one_step(batch: np.ndarray[Any, Any], given: float) -> float:
        return float(graph(tf.constant(batch), tf.constant(given)))

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: Any) -> None:
        loop(hvd, state, enough, one_step)

    train(hvd.elastic.TensorFlowState([weight, *optimizer.variables], step=0, over=False))
    return [weight.numpy()]


def with_keras(enough: Path) -> Sequence[Any]:
    import keras

    import horovod.keras as hvd

    hvd.init()
    model = keras.Sequential([keras.Input((COLUMNS,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse")

    def one_step(batch: np.ndarray[Any, Any], given: float) -> float:
        model.train_on_batch(batch, batch[:, :1])
        return float(np.asarray(hvd.allreduce(np.float32(given), name="given", op=hvd.Sum)))

    @hvd.elastic.run
    def train(state: Any) -> None:
        loop(hvd, state, enough, one_step)

    train(hvd.elastic.KerasState(model, step=0, over=False))
    return [np.asarray(each) for each in model.get_weights()]


WAYS = {"torch": with_torch, "tensorflow": with_tensorflow, "keras": with_keras}


def main() -> None:
    weights = WAYS[sys.argv[1]](Path(sys.argv[2]))
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in weights)).hexdigest()
    print(f"ends with {digest}", flush=True)


if __name__ == "__main__":
    main()
