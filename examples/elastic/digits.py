"""Train on scikit-learn's handwritten digits while processes come and go.

cd examples/elastic
horovodrun -np 2 --min-np 1 --host-discovery-script ./hosts.sh python digits.py

Kill one of the processes: the others go on. Write `localhost:3` to hosts.txt: one more joins.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per process and step")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one process")
    parser.add_argument("--commit-every", type=int, default=5, help="steps from one commit to the next")
    parser.add_argument("--reach", type=float, default=0.0, help="fail if the accuracy stays below this")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    hvd.init()
    torch.manual_seed(42)

    # What every process makes by itself, also one that comes later. No collective may be called here.
    digits = load_digits()
    images = torch.as_tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.as_tensor(digits.target, dtype=torch.int64)
    training, test = TensorDataset(images[360:], labels[360:]), (images[:360], labels[:360])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(training)

    # What must not be lost: a failure goes back to the last commit of this.
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0)

    def adapt() -> None:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()

    state.register_reset_callbacks([adapt])
    adapt()

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> float:
        print(f"process {os.getpid()} is rank {hvd.rank()} of {hvd.size()}, epoch {state.epoch}", flush=True)
        loader = DataLoader(training, batch_size=args.batch_size, sampler=sampler)
        score = 0.0
        while state.epoch < args.epochs:
            for index, (batch, targets) in enumerate(loader):
                optimizer.zero_grad()
                F.cross_entropy(model(batch), targets).backward()
                optimizer.step()
                sampler.record_batch(index, args.batch_size)
                state.step += 1
                if state.step % args.commit_every == 0:
                    state.commit()
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()
            with torch.no_grad():
                score = (model(test[0]).argmax(1) == test[1]).float().mean().item()
            if hvd.rank() == 0:
                print(
                    f"epoch {state.epoch:2d}/{args.epochs}  {hvd.size()} process(es)  {score:.2%}", flush=True
                )
        return score

    score = train(state)
    if hvd.rank() == 0:
        print(f"test accuracy: {score:.2%}", flush=True)
    if score < args.reach:
        raise SystemExit(f"the test accuracy stayed below {args.reach:.0%}")


if __name__ == "__main__":
    main()
