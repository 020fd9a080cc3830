"""Training with Keras, as a worker of an elastic job: ``KerasState``, ``fit`` and the elastic callbacks.

    python keras_worker.py EPOCHS

Points: ``start``, ``init``, ``prologue``, ``step``, ``commit``, ``saved``, ``epoch``, ``reset``, ``wrong``,
``done``.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.elastic.link import Link

link = Link()

import keras  # noqa: E402
import numpy as np  # noqa: E402
from tests.elastic import sums  # noqa: E402

import horovod.keras as hvd  # noqa: E402
from horovod.runtime import lifecycle  # noqa: E402

EPOCHS, STEPS, BATCH = int(sys.argv[1]), 6, 4


def facts() -> dict[str, Any]:
    part = lifecycle.part()
    return {"rank": hvd.rank(), "size": hvd.size(), "round": part.round if part is not None else 0}


class State(hvd.elastic.KerasState):  # type: ignore[misc]
    epoch: int
    batch: int

    def save(self) -> None:
        link.at("commit", epoch=self.epoch, batch=self.batch, **facts())
        super().save()
        link.at("saved", epoch=self.epoch, batch=self.batch, **facts())


class Local:
    """A model of one weight that belongs to this rank: its gradient is divided by the ranks of now."""

    def __init__(self) -> None:
        layer = keras.layers.Dense(1, use_bias=False)
        self._model = keras.Sequential([keras.Input((1,)), layer])
        self._kernel = layer.kernel
        optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=layer)
        self._model.compile(optimizer=optimizer, loss="mse")

    def train(self) -> None:
        self._kernel.assign([[1.0]])
        self._model.fit(np.ones((1, 1)), np.zeros((1, 1)), verbose=0)
        step = 1.0 - float(self._kernel.numpy()[0, 0])
        if abs(step - 0.2 / hvd.size()) > 1e-5:
            link.at("wrong", step=step, **facts())
            raise AssertionError(f"{step}, {facts()}")


class Tell(keras.callbacks.Callback):  # type: ignore[misc]
    """Where ``fit`` is."""

    def __init__(self, state: State, local: Local) -> None:
        super().__init__()
        self._state = state
        self._local = local

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        link.at("step", epoch=self._state.epoch, batch=batch, **facts())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._local.train()
        link.at("epoch", epoch=self._state.epoch, **facts())


def main() -> None:
    link.at("init")
    hvd.init()
    link.at("prologue", **facts())
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    model.compile(optimizer=optimizer, loss="mse")
    records = np.random.default_rng(1).standard_normal((BATCH * STEPS, 6)).astype(np.float32)
    state = State(model, epoch=0, batch=0)
    local = Local()
    state.register_reset_callbacks([lambda: link.at("reset", **facts())])

    @hvd.elastic.run
    def train(state: State) -> None:
        model.fit(
            records,
            records[:, :1],
            batch_size=BATCH,
            epochs=EPOCHS - state.epoch,
            shuffle=False,
            verbose=0,
            callbacks=[
                Tell(state, local),
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
            ],
        )

    train(state)
    weights = np.concatenate([each.reshape(-1) for each in model.get_weights()])
    link.at("done", weights=sums.digest(weights), epoch=state.epoch, **facts())


main()
