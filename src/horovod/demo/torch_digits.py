"""Train a small convolutional network on scikit-learn's handwritten digits, in data parallel.

python examples/torch_digits.py                        # one process
horovodrun -np 2 python examples/torch_digits.py       # two processes, each with half of the data
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd
from horovod.observe import data_paths


@dataclasses.dataclass(frozen=True)
class Figures:
    """Figures at the end of a run."""

    processes: int
    accuracy: float
    samples_per_s: float
    data_paths: str

    @classmethod
    def of(cls, text: str) -> Figures:
        return cls(**json.loads(text))


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per process and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate for one process")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--save", type=Path, help="write the trained weights here (rank 0 does)")
    parser.add_argument("--figures", type=Path, help="write accuracy and speed here, as JSON (rank 0 does)")
    return parser.parse_args(given)


def datasets(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Training and test set; the same split on every rank. Images: float32 (n, 1, 8, 8) in 0..1."""
    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.as_tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, train = order[:360], order[360:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def accuracy(model: nn.Module, test: TensorDataset, device: torch.device) -> float:
    """Share of correct answers: every rank judges its part of the test set, allreduce adds them up."""
    images, labels = (t[hvd.rank() :: hvd.size()].to(device) for t in test.tensors)
    model.eval()
    with torch.no_grad():
        correct = (model(images).argmax(1) == labels).sum()
    counts = torch.stack([correct.cpu(), torch.tensor(len(labels))])
    hits, total = hvd.allreduce(counts, op=hvd.Sum, name="accuracy").tolist()
    return float(hits / total)


def train(args: argparse.Namespace) -> Figures:
    torch.manual_seed(args.seed)

    # Each process uses the GPU of its number on this host, if the installed build exchanges tensors of GPUs.
    device = torch.device("cpu")
    if hvd.cuda_built() and torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
        device = torch.device("cuda", hvd.local_rank())

    # Every process sees its own share of the samples, shuffled anew in every epoch.
    training, test = datasets(args.seed)
    sampler: DistributedSampler[int] = DistributedSampler(
        training, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed
    )
    loader = DataLoader(training, batch_size=args.batch_size, sampler=sampler)

    # All processes together take a batch that is `size` times as large: so is the step.
    model = network().to(device)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr * hvd.size(), momentum=0.9
    )
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    # All start from the weights and the optimizer state of rank 0.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    trained_s = 0.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        started = time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        schedule.step()
        trained_s += time.perf_counter() - started
        mean_loss = hvd.allreduce(loss.detach(), name="loss").item()
        score = accuracy(model, test, device)
        if hvd.rank() == 0:
            progress = f"epoch {epoch + 1:2d}/{args.epochs}"
            print(f"{progress}  loss {mean_loss:.4f}  accuracy {score:.2%}", flush=True)

    carried = ", ".join(
        f"{path}: {operations} operations, {size_bytes / 1e6:.1f} MB"
        for path, (operations, size_bytes) in sorted(data_paths().items())
    )
    figures = Figures(
        hvd.size(), score, args.epochs * len(training) / trained_s, carried or "none (one process)"
    )
    if hvd.rank() == 0:
        print(f"test accuracy: {score:.2%}")
        print(f"samples/s: {figures.samples_per_s:.0f} with {hvd.size()} process(es)")
        print(f"data paths: {figures.data_paths}", flush=True)
        if args.save is not None:
            torch.save(model.state_dict(), args.save)
            print(f"saved: {args.save}")
        if args.figures is not None:
            args.figures.write_text(json.dumps(dataclasses.asdict(figures)))
    return figures


def main() -> None:
    args = arguments()
    hvd.init()
    train(args)
    hvd.shutdown()


if __name__ == "__main__":
    main()
