"""Sales of shops from a table: a Keras model with embeddings, on Parquet that is made first.

    python examples/spark/estimator_keras.py --rows 1000000

The columns are categories (shop, weekday, holiday ...) and numbers (distance of the next shop, temperature
...). The model learns the logarithm of the sales; its metric is the root mean square error in percent of the
sales. On a cluster: ``spark-submit``, with ``--store`` at a place that all executors can write.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

CATEGORIES = {"shop": 500, "weekday": 7, "month": 12, "promotion": 2, "holiday": 4, "assortment": 3}
NUMBERS = ("distance", "temperature", "competitors")


def table(session: Any, rows: int) -> Any:
    """Rows with all columns and ``log_sales``; some noise is left that nobody can learn."""
    from pyspark.sql import functions as F

    def category(name: str, count: int, salt: int) -> Any:
        return (F.abs(F.hash(F.col("id"), F.lit(salt))) % count).cast("int").alias(name)

    def number(name: str, salt: int) -> Any:
        return F.randn(salt).cast("float").alias(name)

    categories = [category(name, count, salt) for salt, (name, count) in enumerate(CATEGORIES.items())]
    numbers = [number(name, salt) for salt, name in enumerate(NUMBERS)]
    frame = session.range(rows).select(*categories, *numbers)
    of_the_shop = (F.abs(F.hash(F.col("shop"))) % 1000) / 1000
    log_sales = (
        8
        + of_the_shop
        + 0.3 * F.col("promotion")
        - 0.2 * (F.col("weekday") == 6).cast("int")
        + 0.1 * F.sin(F.col("month") / 2)
        - 0.15 * F.tanh(F.col("distance"))
        + 0.1 * F.randn(99)
    )
    return frame.withColumn("log_sales", log_sales.cast("float"))


def exp_rmspe(actual: Any, predicted: Any) -> Any:
    """Root mean square of the error in percent, of sales whose logarithms are given."""
    from keras import ops

    error = (ops.exp(actual) - ops.exp(predicted)) / ops.exp(actual)
    return ops.sqrt(ops.mean(ops.square(error)))


def network() -> Any:
    """One input for each column: embeddings of categories, numbers as they are."""
    import keras

    inputs, parts = [], []
    for name, count in CATEGORIES.items():
        column = keras.Input((1,), name=name, dtype="int32")
        embedded = keras.layers.Embedding(count, min(16, count // 2 + 1))(column)
        inputs.append(column)
        parts.append(keras.layers.Flatten()(embedded))
    for name in NUMBERS:
        column = keras.Input((1,), name=name)
        inputs.append(column)
        parts.append(column)
    hidden = keras.layers.Concatenate()(parts)
    for width in (64, 32):
        hidden = keras.layers.Dense(width, activation="relu")(hidden)
    # The sales of a middling shop, so that training need not find them first.
    output = keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(8.5))(hidden)
    return keras.Model(inputs, output)


def main() -> None:
    parser = argparse.ArgumentParser(description="an estimator for Keras, on a table of shops")
    parser.add_argument("--np", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table (default: 1000000)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1024, help="of each process (default: 1024)")
    parser.add_argument("--store", help="where data and checkpoints go (default: a new directory)")
    parser.add_argument("--reach", type=float, default=0.25, help="fail above this error (default: 0.25)")
    arguments = parser.parse_args()

    import keras
    from pyspark.sql import SparkSession

    from horovod.spark.common.store import Store
    from horovod.spark.keras import KerasEstimator

    session = SparkSession.builder.appName("shops").getOrCreate()
    keras.utils.set_random_seed(1)
    directory = arguments.store or tempfile.mkdtemp()
    table(session, arguments.rows).write.mode("overwrite").parquet(f"{directory}/shops")
    frame = session.read.parquet(f"{directory}/shops")

    estimator = KerasEstimator(
        num_proc=arguments.np,
        store=Store.create(directory),
        model=network(),
        optimizer=keras.optimizers.Adam(0.002),
        loss="mae",
        metrics=[exp_rmspe],
        feature_cols=[*CATEGORIES, *NUMBERS],
        label_cols=["log_sales"],
        validation=0.1,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        random_seed=1,
    )
    began = time.perf_counter()
    trained = estimator.fit(frame)
    elapsed = time.perf_counter() - began
    error = trained.getHistory()["val_exp_rmspe"][-1]
    trained.transform(frame).select("log_sales", "log_sales__output").show(3)
    print(f"{arguments.rows} rows, {elapsed:.0f} s, error {error:.1%} of the sales", flush=True)
    if error > arguments.reach:
        raise SystemExit(f"the error stayed above {arguments.reach:.0%}")
    session.stop()


if __name__ == "__main__":
    main()
