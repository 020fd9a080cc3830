"""Classify images with augmentation, a warm-up of the learning rate, and checkpoints to go on from.

horovodrun -np 2 python examples/torch_images.py --checkpoints here
horovodrun -np 2 python examples/torch_images.py --checkpoints here --epochs 20      # goes on where it ended

The images are scikit-learn's handwritten digits, which come with it. Every epoch shifts each image anew, by
up to one pixel, so a network sees more than 1437 of them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

TEST = 360


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per process and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate for one process")
    parser.add_argument("--warmup-epochs", type=int, default=2)
    parser.add_argument(
        "--checkpoints", type=Path, help="folder for checkpoints; a job goes on from the last one"
    )
    parser.add_argument("--reach", type=float, default=0.0, help="fail if the test accuracy stays below")
    return parser.parse_args()


class Shifted(Dataset[tuple[Tensor, Tensor]]):
    """Images of 8 x 8 pixels, float32 in 0..1, each shifted by up to one pixel to each side."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = F.pad(images, (1, 1, 1, 1)), labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        down, right = torch.randint(0, 3, (2,)).tolist()
        return self.images[index, :, down : down + 8, right : right + 8], self.labels[index]


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def rate(epoch: float, warmup: int, epochs: int) -> float:
    """Factor of the learning rate of all ranks: up from that of one rank, then down to a tenth."""
    if epoch < warmup:
        return 1 / hvd.size() + (1 - 1 / hvd.size()) * epoch / warmup
    return float(0.1 ** ((epoch - warmup) / max(epochs - warmup, 1)))


def save(folder: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint; a job that is ended meanwhile leaves the older one whole."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "new.pt")
    os.replace(folder / "new.pt", folder / "last.pt")


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Take the last checkpoint, if there is one; returns the epochs that it has seen."""
    if not (folder / "last.pt").exists():
        return 0
    state = torch.load(folder / "last.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of correct answers: every rank judges its part, a sum over the ranks makes one number of it."""
    mine = slice(hvd.rank(), None, hvd.size())
    model.eval()
    with torch.no_grad():
        correct = (model(images[mine]).argmax(1) == labels[mine]).sum()
    model.train()
    counts = torch.stack([correct, torch.tensor(len(labels[mine]))])
    hits, total = hvd.allreduce(counts, op=hvd.Sum, name="accuracy").tolist()
    return float(hits / total)


def main() -> None:
    args = arguments()
    hvd.init()
    torch.manual_seed(hvd.rank())  # every rank shifts in its own way; the broadcast below makes weights equal

    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.as_tensor(digits.target, dtype=torch.int64)
    train = Shifted(images[TEST:], labels[TEST:])
    sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(
        train, num_replicas=hvd.size(), rank=hvd.rank()
    )
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler)

    # Statistics of batch normalisation are those of the batches of all ranks together.
    model = hvd.SyncBatchNorm.convert_sync_batchnorm(network())
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr * hvd.size(), momentum=0.9, weight_decay=5e-4
    )
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    # Rank 0 alone needs to see the folder; the others get its state.
    first = load(args.checkpoints, model, optimizer) if args.checkpoints and hvd.rank() == 0 else 0
    first = hvd.broadcast_object(first, root_rank=0, name="epoch")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    score = accuracy(model, images[:TEST], labels[:TEST])
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        for step, (batch, targets) in enumerate(loader):
            scale = rate(epoch + step / len(loader), args.warmup_epochs, args.epochs)
            optimizer.param_groups[0]["lr"] = args.lr * hvd.size() * scale
            optimizer.zero_grad()
            F.cross_entropy(model(batch), targets).backward()
            optimizer.step()
        score = accuracy(model, images[:TEST], labels[:TEST])
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d}/{args.epochs}  accuracy {score:.2%}", flush=True)
            if args.checkpoints:
                save(args.checkpoints, epoch + 1, model, optimizer)

    if hvd.rank() == 0:
        print(f"began after epoch {first}")
        print(f"test accuracy: {score:.2%}", flush=True)
    hvd.shutdown()
    if score < args.reach:
        raise SystemExit(f"the test accuracy stayed below {args.reach:.0%}")


if __name__ == "__main__":
    main()
