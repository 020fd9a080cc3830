"""A TensorFlow 1 training script, unchanged but for its import: softmax regression on handwritten digits.

python examples/tensorflow1_digits.py                        # one process
horovodrun -np 2 python examples/tensorflow1_digits.py       # two processes, each with half of the steps
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import horovod.tensorflow as hvd

tf.disable_v2_behavior()

Samples = tuple[NDArray[np.float32], NDArray[np.int64]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1200, help="of all processes together")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per process and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate for one process")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoints", type=Path, help="folder for checkpoints (rank 0 writes them)")
    parser.add_argument("--reach", type=float, default=0.0, help="fail if the test accuracy stays below")
    return parser.parse_args()


def datasets(seed: int) -> tuple[Samples, Samples]:
    """Training and test set; the same split on every rank. Images: float32 (n, 64) in 0..1."""
    digits = load_digits()
    images = digits.images.reshape(-1, 64).astype(np.float32) / 16
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = order[:360], order[360:]
    return (images[train], labels[train]), (images[test], labels[test])


def batches(samples: Samples, batch_size: int, seed: int) -> Iterator[Samples]:
    """Random batches without end; another seed gives others."""
    images, labels = samples
    random = np.random.default_rng(seed)
    while True:
        chosen = random.integers(0, len(labels), batch_size)
        yield images[chosen], labels[chosen]


def network(images: Any) -> Any:
    """Scores (n, 10) of images (n, 64)."""
    with tf.variable_scope("hidden"):
        weights = tf.get_variable("weights", [64, 64], initializer=tf.glorot_uniform_initializer())
        biases = tf.get_variable("biases", [64], initializer=tf.zeros_initializer())
        hidden = tf.nn.relu(tf.matmul(images, weights) + biases)
    with tf.variable_scope("scores"):
        weights = tf.get_variable("weights", [64, 10], initializer=tf.glorot_uniform_initializer())
        biases = tf.get_variable("biases", [10], initializer=tf.zeros_initializer())
        return tf.matmul(hidden, weights) + biases


class Judge(tf.train.SessionRunHook):  # type: ignore[misc]
    """Finds ``accuracy`` when training has ended."""

    accuracy = 0.0

    def __init__(self, share: Any, feed: dict[Any, Any]) -> None:
        self._share = share
        self._feed = feed

    def end(self, session: Any) -> None:
        self.accuracy = float(session.run(self._share, self._feed))


def main() -> None:
    args = arguments()
    hvd.init()
    tf.set_random_seed(args.seed + hvd.rank())
    train, test = datasets(args.seed)

    images = tf.placeholder(tf.float32, [None, 64], name="images")
    labels = tf.placeholder(tf.int64, [None], name="labels")
    scores = network(images)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, scores)
    correct = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(scores, 1), labels), tf.float32))

    # All processes together take a batch that is `size` times as large: so is the step.
    opt = tf.train.AdagradOptimizer(args.lr * hvd.size())
    opt = hvd.DistributedOptimizer(opt)
    global_step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(loss, global_step=global_step)

    judge = Judge(correct, {images: test[0], labels: test[1]})
    hooks = [
        judge,
        hvd.BroadcastGlobalVariablesHook(0),  # all start from the variables of rank 0, fresh or restored
        tf.train.StopAtStepHook(last_step=args.steps // hvd.size()),
    ]
    if hvd.rank() == 0:
        hooks.append(tf.train.LoggingTensorHook({"step": global_step, "loss": loss}, every_n_iter=100))

    # Pin each process to the GPU of its number on this host.
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())

    # Only rank 0 writes checkpoints: otherwise processes would spoil each other's.
    folder = str(args.checkpoints) if args.checkpoints and hvd.rank() == 0 else None
    mine = batches(train, args.batch_size, args.seed + hvd.rank())
    tf.logging.set_verbosity(tf.logging.INFO if hvd.rank() == 0 else tf.logging.ERROR)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, config=config, hooks=hooks) as session:
        while not session.should_stop():
            chosen, answers = next(mine)
            session.run(train_op, {images: chosen, labels: answers})
    accuracy = judge.accuracy
    if hvd.rank() == 0:
        print(f"test accuracy: {accuracy:.2%} after {args.steps // hvd.size()} steps")
        print(f"{hvd.size()} process(es)", flush=True)
    hvd.shutdown()
    if accuracy < args.reach:
        raise SystemExit(f"the test accuracy stayed below {args.reach:.0%}")


if __name__ == "__main__":
    main()
