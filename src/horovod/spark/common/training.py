"""Training of an estimator on one rank, whatever the framework."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any

from horovod.errors import InvalidArgumentError
from horovod.spark.task import get_available_devices

__all__ = ["Columns", "Rank", "Training", "TrainingRun", "row_shape", "train_on_rank"]

_USE_LOCAL_RANK = "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX"


@dataclass(frozen=True)
class Columns:
    """Roles of the columns, and the shape that each row of them gets; None: as it comes."""

    features: tuple[str, ...]
    labels: tuple[str, ...]
    sample_weight: str | None = None
    feature_shapes: tuple[tuple[int, ...] | None, ...] = ()
    label_shapes: tuple[tuple[int, ...] | None, ...] = ()

    def split(self, batch: Any) -> tuple[list[Any], list[Any], Any]:
        """Features, labels and weights (or None) of a batch: of arrays or tensors by column.

        Raises:
            InvalidArgumentError: it lacks a column.
        """
        names = [*self.features, *self.labels, *([self.sample_weight] if self.sample_weight else [])]
        if missing := [name for name in names if name not in batch]:
            raise InvalidArgumentError(
                f"The batches have no column {missing[0]!r}; they have {', '.join(map(repr, batch))}. A "
                "transformation_fn must return all features, labels and weights."
            )
        features = [_shaped(batch[name], *rest) for name, *rest in _zip(self.features, self.feature_shapes)]
        labels = [_shaped(batch[name], *rest) for name, *rest in _zip(self.labels, self.label_shapes)]
        return features, labels, None if self.sample_weight is None else batch[self.sample_weight]


def _zip(names: tuple[str, ...], shapes: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return list(zip(names, shapes or (None,) * len(names), strict=True))


def _shaped(array: Any, shape: tuple[int, ...] | None) -> Any:
    return array if shape is None else array.reshape((len(array), *shape))


def row_shape(shape: Any) -> tuple[int, ...]:
    """The shape of a row from one that may have the batch before it, as -1 or None."""
    numbers = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
    return tuple(int(each) for each in (numbers[1:] if numbers[:1] in ((-1,), (None,)) else numbers))


@dataclass(frozen=True)
class TrainingRun:
    """A training run, as all ranks know it.

    Attributes:
        store: the remote side of the store.
        checkpoint_name: of the file in the directory of the run.
        checkpoint: that of an earlier run with its name; None: there is none.
        data_module, data_arguments: where batches come from.
        train_steps, val_steps: batches of an epoch on each rank; no ``val_steps``: no validation.
        seed: for the framework; None: it chooses its own.
    """

    store: Any
    run_id: str
    checkpoint_name: str
    checkpoint: bytes | None
    data_module: Any
    data_arguments: dict[str, Any]
    columns: Columns
    epochs: int
    train_steps: int
    val_steps: int
    seed: int | None
    use_gpu: bool
    verbose: int


@dataclass
class Rank:
    """This rank while it trains.

    Attributes:
        hvd: the module of the framework, initialised.
        data: the opened data module: ``train_data()``, ``val_data()``.
        directory: of this rank alone. What rank 0 puts there goes to the store.
        gpu: number of its GPU; None: it computes on the CPU.
    """

    run: TrainingRun
    hvd: Any
    data: Any
    directory: str
    gpu: int | None

    @property
    def first(self) -> bool:
        """True on rank 0, which reports and saves what all ranks have in common."""
        return bool(self.hvd.rank() == 0)

    @property
    def talkative(self) -> bool:
        return self.first and self.run.verbose > 0

    @property
    def checkpoint_path(self) -> str:
        return os.path.join(self.directory, self.run.checkpoint_name)

    def steps_of(self, batches: Iterable[Any], steps: int) -> Iterator[Any]:
        """So many batches.

        Raises:
            RuntimeError: there are fewer: the other ranks would wait for this one.
        """
        count = 0
        for count, batch in enumerate(islice(batches, steps), 1):  # noqa: B007  # is used below
            yield batch
        if count < steps:
            raise RuntimeError(
                f"Rank {self.hvd.rank()}: the data module ended after {count} of {steps} batches of an "
                "epoch. It must be endless, or have as many on every rank."
            )

    def save(self) -> None:
        """Bring what is in the directory to the store: after every epoch, on rank 0."""
        if self.first and self.run.store.saving_runs:
            self.run.store.sync(self.directory)


class Training(ABC):
    """The part of a training run that is different for each framework. It travels to the ranks."""

    frontend: str
    """Module of this package with ``init()``, ``rank()`` and the rest."""

    @abstractmethod
    def gpu_available(self) -> bool:
        """Return whether the framework can compute on a GPU in this process."""

    def data(self, run: TrainingRun, rank: int, size: int) -> AbstractContextManager[Any]:
        """The data module of a rank."""
        found: AbstractContextManager[Any] = run.data_module(
            **run.data_arguments, cur_shard=rank, shard_count=size
        )
        return found

    @abstractmethod
    def train(self, rank: Rank) -> Any:
        """Train; returns what was measured. At the end rank 0 has its last checkpoint in its directory."""


def train_on_rank(training: Training, run: TrainingRun) -> tuple[Any, bytes] | None:
    """Train on this rank; returns on rank 0 what was measured and the last checkpoint.

    Raises:
        RuntimeError: some ranks have a GPU and others have none.
        InvalidArgumentError: no checkpoint was written.
    """
    hvd = import_module(training.frontend)
    hvd.init()
    gpu = _gpu(training, run, hvd)
    with ExitStack() as stack:
        directory = stack.enter_context(run.store.get_local_output_dir())
        data = stack.enter_context(training.data(run, hvd.rank(), hvd.size()))
        rank = Rank(run, hvd, data, str(directory), gpu)
        history = training.train(rank)
        if not rank.first:
            return None
        rank.save()
        try:
            with open(rank.checkpoint_path, "rb") as file:
                return history, file.read()
        except FileNotFoundError:
            raise InvalidArgumentError(
                f"Run {run.run_id} has saved no model: no callback has written {run.checkpoint_name}. Let "
                "that which saves it do so at least once: what it monitors must be measured."
            ) from None


def _gpu(training: Training, run: TrainingRun, hvd: Any) -> int | None:
    """The number of this rank's GPU, on which all ranks agree that there are some."""
    available = training.gpu_available()
    everywhere = hvd.allgather_object(available)
    if len(set(everywhere)) > 1:
        without = [str(rank) for rank, there in enumerate(everywhere) if not there]
        raise RuntimeError(
            f"Of {len(everywhere)} ranks {len(without)} can use no GPU (rank {', '.join(without)}), and the "
            "others can. Give all tasks a GPU, or none; or set use_gpu to False."
        )
    if not available or not run.use_gpu:
        if available and hvd.rank() == 0 and run.verbose:
            print("There are GPUs, which are not used: use_gpu is False.", flush=True)
        return None
    assigned = get_available_devices()
    if assigned and os.environ.get(_USE_LOCAL_RANK) != "1":
        if not assigned[0].isdigit():
            raise InvalidArgumentError(
                f"Rank {hvd.rank()}: Spark assigned GPU {assigned[0]!r}, which is no number. Set "
                f"{_USE_LOCAL_RANK}=1 to take the GPUs of a host in the order of its ranks."
            )
        return int(assigned[0])
    return int(hvd.local_rank())
