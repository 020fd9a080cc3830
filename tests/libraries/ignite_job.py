"""A training run of PyTorch Ignite, which starts its own processes and finds its backend by itself."""

from __future__ import annotations

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import MeanSquaredError

RANKS = 2


def collectives(rank: int) -> None:
    assert idist.backend() == "horovod"
    assert idist.get_world_size() == idist.get_nproc_per_node() == RANKS
    assert idist.all_reduce(torch.tensor([rank + 1.0])).item() == 3
    assert idist.all_gather(torch.tensor([rank])).tolist() == [0, 1]
    assert idist.all_gather("x" * (rank + 1)) == ["x", "xx"]
    assert idist.broadcast(torch.tensor([rank + 5.0]), src=1).item() == 6
    idist.barrier()


def train(_local_rank: int) -> None:
    rank = idist.get_rank()
    collectives(rank)
    torch.manual_seed(rank)  # weights differ before the broadcast
    model = idist.auto_model(torch.nn.Linear(3, 1))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)
    evaluator = create_supervised_evaluator(model, {"error": MeanSquaredError()})
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = idist.auto_dataloader(data, batch_size=8, shuffle=True)
    trainer.add_event_handler(Events.COMPLETED, lambda: evaluator.run(loader))
    trainer.run(loader, max_epochs=20)
    weights = idist.all_gather(model.weight.detach())
    assert torch.equal(weights[0], weights[1])
    print(f"rank {rank}: error {evaluator.state.metrics['error']:.6f}")


if __name__ == "__main__":
    with idist.Parallel(backend="horovod", nproc_per_node=RANKS) as parallel:
        parallel.run(train)
