"""A script whose ranks train until they are ended: ``endless.py KIND FOLDER``.

Ranks leave the numbers of their processes in the folder.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray

import horovod.arrays as hvd


def train(folder: str) -> None:
    hvd.init()
    Path(folder, str(os.getpid())).touch()
    while True:
        hvd.allreduce(np.ones(3))
        time.sleep(0.05)


def by_trainer(config: dict[str, Any]) -> None:
    train(config["folder"])


def main() -> None:
    kind, folder = sys.argv[1:]
    ray.init(address="auto", log_to_driver=False)
    if kind == "train":
        from horovod.ray.train import HorovodTrainer

        run = ray.train.RunConfig(storage_path=f"{folder}/results")
        scaling = ray.train.ScalingConfig(num_workers=2)
        HorovodTrainer(
            by_trainer, train_loop_config={"folder": folder}, scaling_config=scaling, run_config=run
        ).fit()
        return
    from horovod.ray import RayExecutor

    settings = RayExecutor.create_settings(timeout_s=120)
    how: dict[str, Any] = {"static": {"num_workers": 2}, "elastic": {"min_workers": 2, "max_workers": 2}}
    with RayExecutor(settings, **how[kind]) as executor:
        executor.start()
        executor.run(train, [folder])


if __name__ == "__main__":
    main()
