"""PyTorch in the tasks of a Spark job. ``python examples/spark/torch_digits.py``

``horovod.spark.run`` returns what the function returned on every rank. On a cluster: ``spark-submit``.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any


def train(epochs: int, learning_rate: float) -> tuple[float, Any]:
    """Train on this rank's share; returns the accuracy over all ranks and, on rank 0, the weights."""
    import torch
    from sklearn.datasets import load_digits

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32)[hvd.rank() :: hvd.size()] / 16
    labels = torch.tensor(digits.target)[hvd.rank() :: hvd.size()]
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=learning_rate), model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(epochs):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if hvd.rank() == 0 and epoch % 20 == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    right = (model(inputs).argmax(1) == labels).float().mean()
    accuracy = hvd.allreduce(right).item()
    return accuracy, model.state_dict() if hvd.rank() == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description="PyTorch in Spark tasks, on the digits of scikit-learn")
    parser.add_argument("--np", type=int, default=2, help="tasks of Spark (default: 2)")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--reach", type=float, default=0.9, help="fail below this accuracy (default: 0.9)")
    arguments = parser.parse_args()

    from pyspark.sql import SparkSession

    import horovod.spark

    session = SparkSession.builder.appName("digits").getOrCreate()
    results = horovod.spark.run(train, (arguments.epochs, 0.01), num_proc=arguments.np, stdout=sys.stdout)
    accuracy, weights = results[0]
    print(f"{len(results)} ranks, accuracy {accuracy:.1%}, {len(weights)} tensors of weights", flush=True)
    if accuracy < arguments.reach:
        raise SystemExit(f"the accuracy stayed below {arguments.reach:.0%}")
    session.stop()


if __name__ == "__main__":
    main()
