"""Predict from a table: the course of diabetes in a year, by ten measurements of 442 patients.

horovodrun -np 2 python examples/torch_tabular.py             # gradients are averaged
horovodrun -np 2 python examples/torch_tabular.py --adasum    # changes of the weights are combined by Adasum
horovodrun -np 4 python examples/torch_tabular.py --folds 2   # two models in two process sets, at once

The table is scikit-learn's. With ``--folds`` the ranks are split into process sets. Each leaves out another
part of the patients and is judged by them: cross-validation, all folds at once.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import horovod.torch as hvd


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate")
    parser.add_argument("--adasum", action="store_true", help="combine changes of the weights by Adasum")
    parser.add_argument("--folds", type=int, default=1, help="process sets; must divide the number of ranks")
    parser.add_argument(
        "--reach", type=float, default=-1.0, help="fail if a fold explains less of the variance"
    )
    return parser.parse_args()


def table() -> tuple[Tensor, Tensor]:
    """Measurements (442, 10) and outcomes (442, 1), float32, each column with mean 0 and deviation 1."""
    diabetes = load_diabetes()
    columns = [
        torch.as_tensor(each, dtype=torch.float32) for each in (diabetes.data, diabetes.target[:, None])
    ]
    rows, outcomes = ((each - each.mean(0)) / each.std(0) for each in columns)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return rows[order], outcomes[order]


def main() -> None:
    args = arguments()
    hvd.init(process_sets="dynamic")
    if hvd.size() % args.folds:
        raise SystemExit(f"{hvd.size()} ranks are not {args.folds} equal sets")
    if args.adasum and args.folds > 1:
        raise SystemExit("Adasum works among all ranks: leave --folds out")
    members = hvd.size() // args.folds
    ours = hvd.global_process_set
    for fold in range(args.folds) if args.folds > 1 else []:
        made = hvd.add_process_set(range(fold * members, (fold + 1) * members))
        ours = made if made.included() else ours
    fold, place = divmod(hvd.rank(), members)

    # A fold leaves out a fifth of the patients, each another one; its ranks share out the rest.
    rows, outcomes = table()
    fifth = len(rows) // 5
    judged = torch.zeros(len(rows), dtype=torch.bool)
    judged[fold * fifth : (fold + 1) * fifth] = True
    mine = torch.arange(len(rows))[~judged][place::members]

    torch.manual_seed(fold)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))
    plain = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=1e-2)
    optimizer = (
        hvd.DistributedOptimizer(plain, model.named_parameters(), op=hvd.Adasum)
        if args.adasum
        else hvd.DistributedOptimizer(plain, model.named_parameters(), process_set=ours)
    )
    for parameter in model.parameters():  # start equal, each set by itself
        hvd.broadcast_(parameter.data, root_rank=fold * members, process_set=ours)

    batches = -(-len(torch.arange(len(rows))[~judged][::members]) // 32)  # as many for every rank of the set
    generator = torch.Generator().manual_seed(hvd.rank())
    for _ in range(args.epochs):
        order = mine[torch.randperm(len(mine), generator=generator)]
        for batch in torch.tensor_split(order, batches):
            optimizer.zero_grad()
            F.mse_loss(model(rows[batch]), outcomes[batch]).backward()
            optimizer.step()

    model.eval()
    with torch.no_grad():
        explained = 1 - F.mse_loss(model(rows[judged]), outcomes[judged]) / outcomes[judged].var(correction=0)
    everybody = hvd.allgather(explained.reshape(1), name="explained")[::members].tolist()
    if hvd.rank() == 0:
        said = ", ".join(f"{each:.2f}" for each in everybody)
        print(f"variance explained: {said}; {args.folds} fold(s) of {members} rank(s)", flush=True)
    hvd.shutdown()
    if min(everybody) < args.reach:
        raise SystemExit(f"a fold explains less than {args.reach} of the variance: {everybody}")


if __name__ == "__main__":
    main()
