"""Train a small convolutional network on scikit-learn's handwritten digits with Keras 3, in data parallel.

python examples/keras_digits.py                                        # one process
horovodrun -np 2 python examples/keras_digits.py                       # two processes
KERAS_BACKEND=torch horovodrun -np 2 python examples/keras_digits.py   # or jax; tensorflow is the default
"""

import argparse
from pathlib import Path

import keras
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import horovod.keras as hvd
from horovod.data import shard_indices

Samples = tuple[NDArray[np.float32], NDArray[np.int64]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per process and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one process")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--save", type=Path, help="write the trained model to this .keras file (rank 0 does)")
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


def network() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    args = arguments()
    hvd.init()
    keras.utils.set_random_seed(args.seed + hvd.rank())

    # Every process trains on its own share of the samples; all shares have one length.
    (images, labels), (test_images, test_labels) = datasets(args.seed)
    mine = shard_indices(len(labels), seed=args.seed)
    theirs = shard_indices(len(test_labels), remainder="pad")

    # All processes together take a batch that is `size` times as large: so is the step, after a warm-up.
    rate = args.lr * hvd.size()
    model = network()
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0),  # all start from the weights of rank 0
        hvd.callbacks.MetricAverageCallback(),  # what follows sees the mean over all processes
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3),
    ]
    model.fit(
        images[mine.indices],
        labels[mine.indices],
        batch_size=args.batch_size,
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )

    # Every rank judges its part of the test set; samples that only fill the part do not count.
    answers = model.predict(test_images[theirs.indices], verbose=0).argmax(1)
    correct = (answers == test_labels[theirs.indices])[theirs.real]
    counts = np.array([correct.sum(), len(correct)], np.float32)
    hits, total = keras.ops.convert_to_numpy(hvd.allreduce(counts, op=hvd.Sum))
    accuracy = float(hits / total)
    if hvd.rank() == 0:
        print(f"test accuracy: {accuracy:.2%} of {total:.0f} samples")
        print(f"backend: {keras.backend.backend()}, {hvd.size()} process(es)", flush=True)
        if args.save is not None:
            model.save(args.save)  # loads where Horovod is not installed
            print(f"saved: {args.save}")
    hvd.shutdown()
    if accuracy < args.reach:
        raise SystemExit(f"the test accuracy stayed below {args.reach:.0%}")


if __name__ == "__main__":
    main()
