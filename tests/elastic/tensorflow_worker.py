"""Training with TensorFlow, as a worker of an elastic job: ``TensorFlowState``, and a ``tf.function``.

    python tensorflow_worker.py EPOCHS

Points: ``start``, ``init``, ``prologue``, ``step``, ``commit``, ``saved``, ``epoch``, ``reset``, ``wrong``,
``done``.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.elastic.link import Link

link = Link()

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tests.elastic import sums  # noqa: E402

import horovod.tensorflow as hvd  # noqa: E402
from horovod.runtime import lifecycle  # noqa: E402

EPOCHS, STEPS = int(sys.argv[1]), 6


def facts() -> dict[str, Any]:
    part = lifecycle.part()
    return {"rank": hvd.rank(), "size": hvd.size(), "round": part.round if part is not None else 0}


class Wrong(Exception):
    """A sum is not what members have given."""


class State(hvd.elastic.TensorFlowState):  # type: ignore[misc]
    epoch: int
    batch: int
    last: int

    def save(self) -> None:
        link.at("commit", epoch=self.epoch, batch=self.batch, **facts())
        super().save()
        link.at("saved", epoch=self.epoch, batch=self.batch, **facts())


def main() -> None:
    link.at("init")
    hvd.init()
    link.at("prologue", **facts())
    weight = tf.Variable(tf.ones([6, 1]))
    optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build([weight])

    @tf.function  # type: ignore[untyped-decorator]
    def one_step(batch: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch @ weight))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return hvd.allreduce(known, op=hvd.Sum, name="known")

    state = State([weight, *optimizer.variables], epoch=0, batch=0, last=0)
    state.register_reset_callbacks([lambda: link.at("reset", **facts())])

    @hvd.elastic.run  # type: ignore[untyped-decorator]
    def train(state: State) -> None:
        while state.epoch < EPOCHS and not (state.last and state.batch == 0):
            while state.batch < STEPS:
                at = facts()
                told = link.at("step", epoch=state.epoch, batch=state.batch, **at)
                token = 1000 * at["round"] + state.batch
                mixed = np.random.default_rng([state.epoch, state.batch, at["rank"]])
                batch = tf.constant(mixed.standard_normal((4, 6)), tf.float32)
                known = tf.constant([(at["rank"] + 1) * token, int(told == "last" or state.last)], tf.int64)
                got, last = one_step(batch, known).numpy()
                if got != token * at["size"] * (at["size"] + 1) // 2:
                    link.at("wrong", got=int(got), token=token, **at)
                    raise Wrong(f"{got}, {at}")
                state.last, state.batch = int(last > 0), state.batch + 1
                if state.batch < STEPS:
                    state.commit()
            state.epoch, state.batch = state.epoch + 1, 0
            link.at("epoch", epoch=state.epoch, **facts())
            state.commit()

    train(state)
    link.at("done", weights=sums.digest(weight.numpy()), epoch=state.epoch, **facts())


main()
