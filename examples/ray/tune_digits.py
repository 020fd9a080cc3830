"""Hyper-parameters by Ray Tune, each trial on several ranks. ``python examples/ray/tune_digits.py``

Trials of a bad learning rate are ended early. Without a cluster, Ray starts one here. ``tune.TuneConfig``
takes any search of Tune, as that of Optuna: ``search_alg=OptunaSearch()``.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any


def train(config: dict[str, Any], state: Any) -> None:
    """Train on this rank's share; say after each epoch how good it is on what no rank trains on."""
    import torch
    from sklearn.datasets import load_digits

    import horovod.torch as hvd
    from horovod.ray.tune import report

    hvd.init()
    torch.manual_seed(1)
    data, target = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(data, dtype=torch.float32) / 16, torch.tensor(target)
    test_inputs, test_labels = inputs[1400:], labels[1400:]
    inputs, labels = (each[hvd.rank() : 1400 : hvd.size()] for each in (inputs, labels))
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=config["learning_rate"], momentum=0.9),
        model.named_parameters(),
    )
    first = 0
    if state is not None:  # a trial that has failed goes on
        first = state["epoch"] + 1
        model.load_state_dict(state["model"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(first, config["epochs"]):
        for _ in range(10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        accuracy = (model(test_inputs).argmax(1) == test_labels).float().mean().item()
        report({"accuracy": accuracy, "ranks": hvd.size()}, {"epoch": epoch, "model": model.state_dict()})


def main() -> None:
    parser = argparse.ArgumentParser(description="Ray Tune, on the digits of scikit-learn")
    parser.add_argument("--np", type=int, default=2, help="ranks of each trial (default: 2)")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.001, 0.5], help="learning rates")
    parser.add_argument("--storage", help="folder for results (default: one that is removed)")
    parser.add_argument("--reach", type=float, default=0.8, help="fail below this accuracy (default: 0.8)")
    arguments = parser.parse_args()

    import ray
    from ray import tune

    from horovod.ray.tune import DistributedTrainableCreator

    ray.init()
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            DistributedTrainableCreator(train, num_workers=arguments.np, timeout_s=120),
            param_space={
                "learning_rate": tune.grid_search(arguments.rates),
                "epochs": arguments.epochs,
            },
            tune_config=tune.TuneConfig(
                metric="accuracy", mode="max", scheduler=tune.schedulers.ASHAScheduler(grace_period=2)
            ),
            run_config=tune.RunConfig(
                name="digits",
                storage_path=arguments.storage or folder,
                failure_config=tune.FailureConfig(max_failures=1),
                verbose=0,
            ),
        )
        best = tuner.fit().get_best_result()
    metrics, config = best.metrics, best.config
    print(f"best learning rate: {config['learning_rate']}", flush=True)
    print(f"{metrics['ranks']} ranks, accuracy {metrics['accuracy']:.1%}", flush=True)
    if metrics["accuracy"] < arguments.reach:
        raise SystemExit(f"the accuracy stayed below {arguments.reach:.0%}")


if __name__ == "__main__":
    main()
