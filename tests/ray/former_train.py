"""A script of the former Ray Train: ``former_train.py MODULE FOLDER`` trains by the trainer of that module.

``RAY_TRAIN_V2_ENABLED=0`` has to be set. The result is left in the folder.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import ray.train


def train(config: dict[str, Any]) -> None:
    import torch
    from sklearn.datasets import load_digits

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(hvd.rank())  # weights are equal after the broadcast
    data, target = load_digits(return_X_y=True)
    inputs = torch.tensor(data[hvd.rank() :: hvd.size()], dtype=torch.float32) / 16
    labels = torch.tensor(target[hvd.rank() :: hvd.size()])
    model = torch.nn.Linear(64, 10)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=config["learning_rate"]), model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(2):
        for _ in range(30):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        accuracy = hvd.allreduce((model(inputs).argmax(1) == labels).float().mean()).item()
        key = len(os.environ["HOROVOD_SECRET_KEY"])
        ray.train.report({"accuracy": accuracy, "size": hvd.size(), "pid": os.getpid(), "key": key})


def main() -> None:
    module, folder = sys.argv[1:]
    made = importlib.import_module(module)
    ray.init(
        address="auto",
        log_to_driver=False,
        # Workers decide by it, too, and they were not started by this script.
        runtime_env={"env_vars": {"RAY_TRAIN_V2_ENABLED": "0"}},
    )
    trainer = made.HorovodTrainer(
        train,
        train_loop_config={"learning_rate": 0.05},
        horovod_config=made.HorovodConfig(timeout_s=60),
        scaling_config=ray.train.ScalingConfig(num_workers=2, trainer_resources={"CPU": 0}),
        run_config=ray.train.RunConfig(storage_path=folder, verbose=0),
    )
    result = trainer.fit()
    Path(folder, "result").write_text(json.dumps({name: result.metrics[name] for name in _WANTED}))


_WANTED = ("accuracy", "size", "pid", "key")

if __name__ == "__main__":
    main()
