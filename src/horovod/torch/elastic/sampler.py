"""``ElasticSampler``: distributes a data set over the ranks, and again after the world has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any

import torch.utils.data

from horovod.elastic.sampler import remaining_indices, share
from horovod.runtime import lifecycle

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Samples of this rank, without those that some rank has processed in this epoch.

    Every rank gets equally many: the order is repeated from its start as far as needed. Call
    :meth:`record_batch` after each batch, and :meth:`set_epoch` at the *end* of an epoch, with the number of
    the next one; put the sampler into a ``TorchState``, which distributes the rest after a change of the
    world. A loop that is called again then iterates over the sampler anew.

    Args:
        dataset: its length counts.
        shuffle: order by ``random.Random(seed + epoch)``, the same on all ranks.
        seed: equal on all ranks.

    Attributes:
        epoch: current epoch.
        processed_num: samples of this epoch that are done, on all ranks together.
        num_replicas, rank: the world at the last :meth:`reset`.
        remaining_indices: samples of this epoch that were left then, of all ranks, in order.
        num_samples: samples of this rank; ``total_size``: those of all ranks, with repetitions.
        processed_indices: always empty; kept for old scripts.

    Raises:
        NotInitializedError: ``init()`` has not been called.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.processed_indices: set[int] = set()
        self.num_replicas = 0
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self.resumed: Callable[[], object] | None = None
        """Called where an iteration begins in the middle of an epoch; set by the state."""
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``: nothing of it is processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """All ranks have processed a batch of ``batch_size`` samples each. ``batch_idx`` is not used."""
        self.processed_num += batch_size * self.num_replicas

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was made, in the world of now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        """Epoch and number of processed samples."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def reset(self) -> None:
        """Distribute what is left of the epoch over the ranks of now."""
        topology = lifecycle.current().topology
        self.num_replicas, self.rank = topology.size, topology.rank
        self.remaining_indices = remaining_indices(
            len(self.dataset), self.shuffle, self.seed, self.epoch, self.processed_num
        )
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        return self._indices(share(self.remaining_indices, self.num_replicas, self.rank))

    def _indices(self, own: Sequence[int]) -> Iterator[int]:
        # Not before the first index is wanted: a loader draws its seed after it has asked for this iterator.
        if self.processed_num and self.resumed is not None:
            self.resumed()
        yield from own

    def __len__(self) -> int:
        return self.num_samples
