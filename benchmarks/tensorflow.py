"""What TensorFlow pays for training together: ``horovodrun -np 2 python -m benchmarks.tensorflow``.

Three parts, each of which interleaves what it compares, round by round, in the same processes:

small     a step of a ``tf.function`` with 161 gradients of 64 floats, with and without their exchange; either
          way all are there before the first is used
resnet50  the gradients of ResNet-50 (102 MB) in a ``tf.function``, beside the same tensors in PyTorch: both
          have just computed them, as memory that a step has written costs more to send than memory at rest
fit       Keras ``fit`` of a convolutional net of 1 M parameters: each process by itself; the same, meeting at
          a barrier before each batch, as the slower process is what counts; together. From the first batch to
          the last, as the end of an epoch waits up to 0.6 s for threads of ``tf.data``

``python -m benchmarks.tensorflow beside-mirrored`` starts by turns a custom loop with
``DistributedGradientTape`` and one under ``tf.distribute.MultiWorkerMirroredStrategy``, which wants to form
its own cluster before anything else. Prints medians with the lowest and the highest round.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SMALL = [(64,)] * 161


def turn(ways: dict[str, Any], number: int) -> list[str]:
    return list(ways)[:: 1 if number % 2 == 0 else -1]


def rounds_of(ways: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds of a call, by way and round; every second round backwards."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for run in ways.values():
        for _ in range(3):
            run()
    for number in range(rounds):
        for name in turn(ways, number):
            began = time.perf_counter()
            for _ in range(calls):
                ways[name]()
            times[name].append((time.perf_counter() - began) / calls)
    return times


def report(title: str, times: dict[str, list[float]], scale: float, unit: str) -> None:
    for name, values in times.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(
            f"{title:<10} {name:<28} {middle * scale:10.3f} {unit} ({low * scale:.3f} … {high * scale:.3f})",
            flush=True,
        )


def difference(times: dict[str, list[float]], more: str, less: str) -> list[float]:
    return [a - b for a, b in zip(times[more], times[less], strict=True)]


def step_of(hvd: Any, tf: Any, variables: list[Any], exchange: str) -> Callable[[], Any]:
    @tf.function  # type: ignore[untyped-decorator]
    def step(factor: Any) -> Any:
        gradients = [variable * factor for variable in variables]
        if exchange == "together":
            gradients = hvd.grouped_allreduce(gradients, op=hvd.Average, name="step")
        elif exchange == "one by one":
            gradients = [hvd.allreduce(g, name=f"step.{i}") for i, g in enumerate(gradients)]
        # Without this op, which is stateful lest it be optimised away, a step without exchange keeps one
        # gradient at a time, in cache.
        with tf.control_dependencies(gradients):
            first = tf.random.uniform([], 0, 1, tf.int32)
        return tf.add_n([tf.reshape(gradient, [-1])[first] for gradient in gradients])

    factor = tf.constant(1.0)
    return lambda: step(factor)


def small(rounds: int) -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd

    variables = [tf.Variable(tf.ones(shape)) for shape in SMALL]
    ways = {kind: step_of(hvd, tf, variables, kind) for kind in ("none", "together", "one by one")}
    times = rounds_of(ways, rounds, 50)
    times["cost of together"] = difference(times, "together", "none")
    times["cost of one by one"] = difference(times, "one by one", "none")
    if hvd.rank() == 0:
        report("small", times, 1e3, "ms")


def resnet50(rounds: int) -> None:
    import tensorflow as tf
    import torch
    from benchmarks.gradients import MODELS

    import horovod.tensorflow as hvd
    import horovod.torch as hvd_torch

    shapes = MODELS["resnet50"]()
    variables = [tf.Variable(tf.ones(shape)) for shape in shapes]
    tensors = [torch.ones(shape) for shape in shapes]
    gradients = [torch.empty(shape) for shape in shapes]
    ways = {kind: step_of(hvd, tf, variables, kind) for kind in ("none", "together")}

    def compute() -> None:
        for tensor, gradient in zip(tensors, gradients, strict=True):
            torch.mul(tensor, 1.0, out=gradient)

    def exchange() -> None:
        compute()
        hvd_torch.grouped_allreduce_(gradients, op=hvd_torch.Average, name="torch")

    ways |= {"PyTorch, none": compute, "PyTorch, together": exchange}
    times = rounds_of(ways, rounds, 3)
    times["cost of together"] = difference(times, "together", "none")
    times["PyTorch, cost of together"] = difference(times, "PyTorch, together", "PyTorch, none")
    ratios = [
        a / b for a, b in zip(times["cost of together"], times["PyTorch, cost of together"], strict=True)
    ]
    if hvd.rank() == 0:
        report("resnet50", times, 1e3, "ms")
        report("resnet50", {"ratio of costs": ratios}, 1, "")


def network(keras: Any) -> Any:
    """About a million parameters, on 16 x 16 pixels."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(104, activation="relu"),
            layers.Dense(10),
        ]
    )


def data(batch: int, batches: int) -> Any:
    import numpy as np

    random = np.random.default_rng(3)
    x = random.standard_normal((batch * batches, 16, 16, 1)).astype(np.float32)
    return x, random.integers(0, 10, batch * batches)


def fit(rounds: int, batch: int = 64, batches: int = 30) -> None:
    import keras

    import horovod.keras as hvd
    from horovod.collectives.numpy_frontend import collectives

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self, meets: bool) -> None:
            super().__init__()
            self.meets = meets

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self.meets:
                collectives.barrier()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            ends.append(time.perf_counter())

    ends: list[float] = []
    x, y = data(batch, batches)
    ways: dict[str, Callable[[], float]] = {}
    for name in ("alone", "meeting", "together"):
        model = network(keras)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        model.compile(
            hvd.DistributedOptimizer(optimizer) if name == "together" else optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )

        def run(model: Any = model, meets: bool = name == "meeting") -> float:
            hvd.allreduce(0.0, name="begin", op=hvd.Sum)  # both processes work at the same time
            ends.clear()
            model.fit(x, y, batch_size=batch, epochs=1, verbose=0, shuffle=False, callbacks=[Clock(meets)])
            return (ends[-1] - ends[0]) / (batches - 1)

        ways[name] = run
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for number in range(rounds):
        for name in turn(ways, number):
            times[name].append(ways[name]())
    if hvd.rank() == 0:
        print(f"fit        parameters {model.count_params()}")
        speeds = {name: [batch / t for t in values] for name, values in times.items()}
        for one, other in (("meeting", "alone"), ("together", "alone"), ("together", "meeting")):
            pairs = zip(speeds[one], speeds[other], strict=True)
            speeds[f"{one} / {other}"] = [a / b for a, b in pairs]
        report("fit", speeds, 1, "samples/s and process")


class Loop:
    """The same net and batches in a custom loop, for whatever reduces gradients."""

    def __init__(self, batch: int = 64, batches: int = 30) -> None:
        import keras
        import tensorflow as tf

        x, y = data(batch, batches)
        parts = [slice(i * batch, (i + 1) * batch) for i in range(batches)]
        self.batches = [(tf.constant(x[part]), tf.constant(y[part])) for part in parts]
        self.samples = batch * batches
        self.weights = [tf.Variable(weight.numpy()) for weight in network(keras).trainable_weights]

    def loss(self, inputs: Any, labels: Any) -> Any:
        import tensorflow as tf

        w = self.weights
        hidden = tf.nn.relu(tf.nn.conv2d(inputs, w[0], 1, "VALID") + w[1])
        hidden = tf.nn.relu(tf.nn.conv2d(hidden, w[2], 1, "VALID") + w[3])
        hidden = tf.nn.relu(tf.reshape(hidden, [labels.shape[0], -1]) @ w[4] + w[5])
        logits = hidden @ w[6] + w[7]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    def apply(self, gradients: Sequence[Any]) -> None:
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(0.01 * gradient)

    def measure(self, name: str, step: Callable[..., Any], rounds: int, speaks: bool) -> None:
        def run() -> None:
            for inputs, labels in self.batches:
                step(inputs, labels)

        times = rounds_of({name: run}, rounds, 1)
        if speaks:
            speeds = {name: [self.samples / t for t in values] for name, values in times.items()}
            report("loop", speeds, 1, "samples/s and process")


def one_thread() -> None:
    """Processes share the machine: each computes with one."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def mirrored(rounds: int) -> None:
    """One worker of ``MultiWorkerMirroredStrategy``, as ``TF_CONFIG`` says."""
    import json

    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        loop = Loop()

    @tf.function  # type: ignore[untyped-decorator]
    def step(inputs: Any, labels: Any) -> None:
        def replica(inputs: Any, labels: Any) -> None:
            with tf.GradientTape() as tape:
                loss = loop.loss(inputs, labels)
            gradients = tape.gradient(loss, loop.weights)
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
            context.merge_call(
                lambda strategy, gradients: [
                    strategy.extended.update(weight, lambda w, g: w.assign_sub(0.01 * g), args=(gradient,))
                    for weight, gradient in zip(loop.weights, gradients, strict=True)
                ],
                args=(gradients,),
            )

        strategy.run(replica, args=(inputs, labels))

    first = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0
    loop.measure("MultiWorkerMirroredStrategy", step, rounds, first)


def tape(rounds: int) -> None:
    """The same with ``hvd.DistributedGradientTape``."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    loop = Loop()

    @tf.function  # type: ignore[untyped-decorator]
    def step(inputs: Any, labels: Any) -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as recorded:
            loss = loop.loss(inputs, labels)
        loop.apply(recorded.gradient(loss, loop.weights))

    loop.measure("DistributedGradientTape", step, rounds, hvd.rank() == 0)


def beside_mirrored(rounds: int) -> None:
    """Jobs of both, in turns."""
    import json

    this = [sys.executable, "-m", "benchmarks.tensorflow"]
    horovodrun = os.path.join(os.path.dirname(sys.executable), "horovodrun")
    for _ in range(rounds):
        subprocess.run([horovodrun, "-np", "2", *this, "tape"], check=True, timeout=300)
        ports = []
        with ExitStack() as stack:
            for _ in range(2):
                free = stack.enter_context(socket.socket())
                free.bind(("127.0.0.1", 0))
                ports.append(free.getsockname()[1])
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        workers = []
        for index in range(2):
            config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
            workers.append(subprocess.Popen([*this, "mirrored"], env=os.environ | {"TF_CONFIG": config}))
        for worker in workers:
            if worker.wait(300):
                raise SystemExit("a worker of MultiWorkerMirroredStrategy failed")


PARTS: dict[str, Callable[[int], None]] = {
    "small": small,
    "resnet50": resnet50,
    "fit": fit,
    "tape": tape,
    "mirrored": mirrored,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*PARTS, "beside-mirrored"]
    default = ["small", "resnet50", "fit"]
    parser.add_argument("parts", nargs="*", default=default, help=" | ".join(known))
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(known):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if arguments.parts == ["beside-mirrored"]:
        beside_mirrored(min(arguments.rounds, 3))
        return
    one_thread()
    if "mirrored" in arguments.parts:
        mirrored(arguments.rounds)
        return
    import horovod.tensorflow as hvd

    hvd.init()
    for part in arguments.parts:
        PARTS[part](arguments.rounds)
    hvd.shutdown()


if __name__ == "__main__":
    main()
