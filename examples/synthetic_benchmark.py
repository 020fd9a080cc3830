"""How many images a second does a training step take, with the exchange of its gradients? No data is needed.

python examples/synthetic_benchmark.py                                # one process
horovodrun -np 2 python examples/synthetic_benchmark.py               # PyTorch
horovodrun -np 2 python examples/synthetic_benchmark.py --framework tensorflow   # or keras

A convolutional network of 1.5 million parameters trains on random images. Compare the rate of several
processes with that of one, for which OMP_NUM_THREADS says how many cores it may use.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from horovod.observe import data_paths

CLASSES = 100
WIDTHS = (32, 64, 128, 256)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", choices=("torch", "tensorflow", "keras"), default="torch")
    parser.add_argument("--batch-size", type=int, default=32, help="images per process and step")
    parser.add_argument("--pixels", type=int, default=32, help="width and height of an image")
    parser.add_argument("--warmup", type=int, default=5, help="steps that do not count")
    parser.add_argument("--steps", type=int, default=20, help="steps that count")
    return parser.parse_args()


def torch_step(hvd: Any, images: Any, labels: Any) -> Callable[[], object]:
    import torch
    import torch.nn.functional as F
    from torch import nn

    layers: list[nn.Module] = []
    for before, width in zip((3, *WIDTHS), WIDTHS, strict=False):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    side = images.shape[2] >> len(WIDTHS)
    model = nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(WIDTHS[-1] * side**2, 1024), nn.Linear(1024, CLASSES)
    )
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    rows, answers = torch.as_tensor(images).permute(0, 3, 1, 2).contiguous(), torch.as_tensor(labels)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(rows), answers).backward()
        optimizer.step()

    return step


def keras_model(keras: Any, pixels: int) -> Any:
    layers: list[Any] = [keras.Input((pixels, pixels, 3))]
    for width in WIDTHS:
        layers += [
            keras.layers.Conv2D(width, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
        ]
    return keras.Sequential(
        [*layers, keras.layers.Flatten(), keras.layers.Dense(1024), keras.layers.Dense(CLASSES)]
    )


def tensorflow_step(hvd: Any, images: Any, labels: Any) -> Callable[[], object]:
    import tensorflow as tf

    model = keras_model(tf.keras, images.shape[1])
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rows, answers = tf.constant(images), tf.constant(labels)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        with tf.GradientTape() as tape:
            error = loss(answers, model(rows, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(error, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return step  # type: ignore[no-any-return]


def keras_step(hvd: Any, images: Any, labels: Any) -> Callable[[], object]:
    import keras

    model = keras_model(keras, images.shape[1])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([*model.weights, *model.optimizer.variables], root_rank=0)
    return lambda: model.train_on_batch(images, labels)


def exchanged_bytes() -> int:
    """How many bytes of tensors this rank has exchanged so far."""
    return sum(size_bytes for _, size_bytes in data_paths().values())


def main() -> None:
    args = arguments()
    hvd = importlib.import_module(f"horovod.{args.framework}")
    hvd.init()
    random = np.random.default_rng(hvd.rank())
    images = random.random((args.batch_size, args.pixels, args.pixels, 3), np.float32)
    labels = random.integers(0, CLASSES, args.batch_size)
    make = {"torch": torch_step, "tensorflow": tensorflow_step, "keras": keras_step}[args.framework]
    step = make(hvd, images, labels)

    for _ in range(args.warmup):
        step()
    before = exchanged_bytes()
    took = []
    for _ in range(args.steps):
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)

    # The slowest rank decides how long a step takes: the median of each, and the largest of these.
    seconds = max(hvd.allgather_object(float(np.median(took))))
    if hvd.rank() == 0:
        rate = args.batch_size / seconds
        print(f"{args.framework}: {rate:.1f} images/s for each process, {rate * hvd.size():.1f} in all")
        print(f"exchanged: {(exchanged_bytes() - before) / args.steps / 1e6:.1f} MB per step", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
