"""Train a small convolutional network on scikit-learn's handwritten digits, in a loop of one's own.

python examples/tensorflow_digits.py                        # one process
horovodrun -np 2 python examples/tensorflow_digits.py       # two processes, each with half of the data
"""

import argparse
import time
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd
from horovod.observe import data_paths
from horovod.tensorflow.data import shard

Samples = tuple[NDArray[np.float32], NDArray[np.int64]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per process and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one process")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoints", help="folder for checkpoints (rank 0 writes them)")
    parser.add_argument("--reach", type=float, default=0.0, help="fail if the test accuracy stays below")
    return parser.parse_args()


def datasets(seed: int) -> tuple[Samples, Samples]:
    """Training and test set; the same split on every rank. Images: float32 (n, 8, 8, 1) in 0..1."""
    digits = load_digits()
    images = digits.images[..., None].astype(np.float32) / 16
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = order[:360], order[360:]
    return (images[train], labels[train]), (images[test], labels[test])


def network() -> Any:
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.25),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def main() -> None:
    args = arguments()
    hvd.init()
    tf.random.set_seed(args.seed + hvd.rank())

    # Pin each process to the GPU of its number on this host.
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
        tf.config.experimental.set_memory_growth(gpus[hvd.local_rank()], True)

    # Every process trains on its own share of the samples; all shares have one length.
    train, test = datasets(args.seed)
    share = shard(tf.data.Dataset.from_tensor_slices(train))
    batches = share.dataset.cache().shuffle(share.records or 1).batch(args.batch_size)

    # All processes together take a batch that is `size` times as large: so is the step, after a warm-up.
    model = network()
    steps = args.epochs * len(batches)
    rate = tf.keras.optimizers.schedules.CosineDecay(
        args.lr, steps, warmup_target=args.lr * hvd.size(), warmup_steps=steps // 10
    )
    optimizer = tf.keras.optimizers.SGD(rate, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)  # its gradients are means over all processes
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    # All start from the weights and the optimizer state of rank 0, which may come from a checkpoint.
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    keeper = tf.train.CheckpointManager(checkpoint, args.checkpoints, 3) if args.checkpoints else None
    if keeper and hvd.rank() == 0:
        keeper.restore_or_initialize()
    hvd.broadcast_variables(model.weights, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)

    trained_s = 0.0
    for epoch in range(args.epochs):
        started = time.perf_counter()
        for images, labels in batches:
            loss = step(images, labels)
        trained_s += time.perf_counter() - started
        mean_loss = float(hvd.allreduce(loss, name="loss"))
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d}/{args.epochs}  loss {mean_loss:.4f}", flush=True)
            if keeper:
                keeper.save()

    # Every rank judges its part of the test set, allreduce adds them up.
    images, labels = (samples[hvd.rank() :: hvd.size()] for samples in test)
    correct = np.argmax(model(images, training=False), 1) == labels
    counts = tf.constant([correct.sum(), len(correct)], tf.float32)
    hits, total = hvd.allreduce(counts, op=hvd.Sum, name="accuracy").numpy()
    accuracy = float(hits / total)
    if hvd.rank() == 0:
        carried = ", ".join(
            f"{path}: {operations} operations, {size_bytes / 1e6:.1f} MB"
            for path, (operations, size_bytes) in sorted(data_paths().items())
        )
        print(f"test accuracy: {accuracy:.2%}")
        print(f"samples/s: {args.epochs * len(train[1]) / trained_s:.0f} with {hvd.size()} process(es)")
        print(f"data paths: {carried or 'none (one process)'}", flush=True)
    hvd.shutdown()
    if accuracy < args.reach:
        raise SystemExit(f"the test accuracy stayed below {args.reach:.0%}")


if __name__ == "__main__":
    main()
