"""PyTorch in actors of a Ray cluster. ``python examples/ray/torch_digits.py``

``RayExecutor.run`` returns what the function returned on every rank. Without a cluster, Ray starts one here.
"""

from __future__ import annotations

import argparse
from typing import Any


def train(epochs: int, learning_rate: float) -> tuple[float, Any]:
    """Train on this rank's share; returns the accuracy over all ranks and, on rank 0, the weights."""
    import torch
    from sklearn.datasets import load_digits

    import horovod.torch as hvd
    from horovod.ray import ray_logger

    hvd.init()
    torch.manual_seed(1)
    data, target = load_digits(return_X_y=True)
    inputs = torch.tensor(data, dtype=torch.float32)[hvd.rank() :: hvd.size()] / 16
    labels = torch.tensor(target)[hvd.rank() :: hvd.size()]
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
        if epoch % 20 == 0:
            ray_logger.log({"rank": hvd.rank(), "epoch": epoch, "loss": loss.item()})
    right = (model(inputs).argmax(1) == labels).float().mean()
    accuracy = hvd.allreduce(right).item()
    return accuracy, model.state_dict() if hvd.rank() == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description="PyTorch in actors of Ray, on the digits of scikit-learn")
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--reach", type=float, default=0.9, help="fail below this accuracy (default: 0.9)")
    arguments = parser.parse_args()

    import ray

    from horovod.ray import RayExecutor

    ray.init()
    settings = RayExecutor.create_settings(timeout_s=120)
    with RayExecutor(settings, num_workers=arguments.np) as executor:
        executor.start()
        results = executor.run(train, [arguments.epochs, 0.01], callbacks=[print])
    accuracy, weights = results[0]
    print(f"{len(results)} ranks, accuracy {accuracy:.1%}, {len(weights)} tensors of weights", flush=True)
    if accuracy < arguments.reach:
        raise SystemExit(f"the accuracy stayed below {arguments.reach:.0%}")


if __name__ == "__main__":
    main()
