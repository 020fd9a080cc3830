"""Keras by HorovodRunner: one process here, then tasks of Spark. ``python examples/spark/keras_digits.py``

The steps are those of a notebook: ``np=-1`` for one process here, ``np=2`` for two tasks of a
Spark job. The digits come with scikit-learn. On a cluster: ``spark-submit --master ...``.
"""

from __future__ import annotations

import argparse
from typing import Any


def train(epochs: int, learning_rate: float) -> float:
    """Train on this rank's share of the digits; returns the accuracy on all test digits."""
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import horovod.keras as hvd
    from horovod.spark.tensorflow.keras import LogCallback

    hvd.init()
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    images, test_images, labels, test_labels = train_test_split(images, labels, test_size=0.2, random_state=1)
    count = len(images) // hvd.size()  # ranks take equally many steps
    images, labels = (each[hvd.rank() :: hvd.size()][:count] for each in (images, labels))
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, "softmax")]
    )
    optimizer = keras.optimizers.Adam(learning_rate * hvd.size())
    model.compile(
        optimizer=hvd.DistributedOptimizer(optimizer),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    callbacks: list[Any] = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    if hvd.rank() == 0:
        callbacks.append(LogCallback())
    model.fit(images, labels, batch_size=32, epochs=epochs, callbacks=callbacks, verbose=0)
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    return float(accuracy)


def main() -> None:
    parser = argparse.ArgumentParser(description="Keras by HorovodRunner, on the digits of scikit-learn")
    parser.add_argument("--np", type=int, default=2, help="tasks of Spark (default: 2)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--reach", type=float, default=0.9, help="fail below this accuracy (default: 0.9)")
    arguments = parser.parse_args()

    from pyspark.sql import SparkSession

    from horovod.spark import HorovodRunner

    session = SparkSession.builder.appName("digits").getOrCreate()
    for count in (-1, arguments.np):
        accuracy = HorovodRunner(np=count).run(train, epochs=arguments.epochs, learning_rate=0.003)
        print(f"np={count}: test accuracy {accuracy:.1%}", flush=True)
        if accuracy < arguments.reach:
            raise SystemExit(f"the test accuracy stayed below {arguments.reach:.0%}")
    session.stop()


if __name__ == "__main__":
    main()
