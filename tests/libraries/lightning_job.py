"""A training run of PyTorch Lightning 1.9 with its own strategy ``horovod``: ``FOLDER`` gets its checkpoint.

Needs an environment of its own, ``.venv-lightning``: Lightning 2 has no such strategy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

import horovod.torch as hvd

ROWS = 64


class Regression(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        torch.nn.init.constant_(self.layer.weight, hvd.rank())  # they differ before the broadcast
        self.seen: list[int] = []

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        rows, targets, _ = batch
        return torch.nn.functional.mse_loss(self.layer(rows), targets)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        if self.current_epoch == 0:
            self.seen += batch[2].tolist()
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        # Lightning's own sync_dist=True does nothing here: it asks torch.distributed who else there is.
        self.log("error", self.trainer.strategy.reduce(self.loss(batch)))
        self.log("rank", self.trainer.strategy.reduce(torch.tensor(float(hvd.rank())), reduce_op="sum"))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 10)]


def main() -> None:
    folder = Path(sys.argv[1])
    accumulated = int(sys.argv[2])
    pl.seed_everything(1)  # all ranks shuffle alike, and take every second row
    rows = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True), torch.arange(ROWS))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    kept = ModelCheckpoint(dirpath=folder, filename="last")
    trainer = pl.Trainer(
        strategy="horovod",
        accelerator="cpu",
        max_epochs=20,
        accumulate_grad_batches=accumulated,
        callbacks=[kept],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model, loader, torch.utils.data.DataLoader(data, batch_size=8))
    assert (trainer.world_size, trainer.global_rank) == (hvd.size(), hvd.rank())

    weights = hvd.allgather(model.layer.weight.detach())
    assert torch.equal(weights[0], weights[1])
    shares = hvd.allgather_object(model.seen)
    assert sorted(shares[0] + shares[1]) == list(range(ROWS)), f"Lightning deals the rows out: {shares}"
    saved = torch.load(kept.best_model_path, weights_only=False)["state_dict"]["layer.weight"]
    assert torch.equal(saved, model.layer.weight.detach())
    metrics = trainer.callback_metrics
    assert metrics["rank"].item() == 1.0
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    print(f"rank {hvd.rank()}: error {metrics['error'].item():.8f}, rate {rate:.6f}", flush=True)


if __name__ == "__main__":
    main()
