"""A PyTorch module, trained and used as a stage of Spark ML. ``python examples/spark/estimator_torch.py``

On a cluster: ``spark-submit``, with ``--store`` at a place that all executors can write.
"""

from __future__ import annotations

import argparse
import tempfile


def main() -> None:
    parser = argparse.ArgumentParser(description="an estimator for PyTorch, on the digits of scikit-learn")
    parser.add_argument("--np", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--store", help="where data and checkpoints go (default: a new directory)")
    parser.add_argument("--reach", type=float, default=0.9, help="fail below this accuracy (default: 0.9)")
    arguments = parser.parse_args()

    import torch
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import SparkSession
    from sklearn.datasets import load_digits

    from horovod.spark.common.store import Store
    from horovod.spark.torch import TorchEstimator

    session = SparkSession.builder.appName("digits").getOrCreate()
    digits = load_digits()
    rows = [
        (Vectors.dense(pixels / 16), int(digit))
        for pixels, digit in zip(digits.data, digits.target, strict=True)
    ]
    frame = session.createDataFrame(rows, ["pixels", "digit"])
    train, test = frame.randomSplit([0.8, 0.2], seed=1)

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    estimator = TorchEstimator(
        num_proc=arguments.np,
        store=Store.create(arguments.store or tempfile.mkdtemp()),
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.005),
        loss=torch.nn.functional.cross_entropy,
        feature_cols=["pixels"],
        label_cols=["digit"],
        validation=0.1,
        epochs=arguments.epochs,
        random_seed=1,
    )
    trained = Pipeline(stages=[estimator]).fit(train)
    path = tempfile.mkdtemp() + "/model"
    trained.save(path)

    predicted = PipelineModel.load(path).transform(test).collect()
    right = [int(row["digit"]) == int(row["digit__output"].toArray().argmax()) for row in predicted]
    accuracy = sum(right) / len(right)
    last = trained.stages[0].getHistory()[-1]
    print(f"validation loss {last['validation']['loss']:.3f}, accuracy {accuracy:.1%}", flush=True)
    if accuracy < arguments.reach:
        raise SystemExit(f"the accuracy stayed below {arguments.reach:.0%}")
    session.stop()


if __name__ == "__main__":
    main()
