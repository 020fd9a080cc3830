"""Data modules of Lightning: ours, and those that were written without estimators in mind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod.errors import InvalidArgumentError
from horovod.spark.common.datamodule import ParquetModule
from horovod.spark.data_loaders.pytorch_data_loaders import AsyncBatches, as_tensors
from horovod.spark.lightning.modules import installed

__all__ = ["ParquetDataModule", "PetastormDataModule", "PlainModule", "check_plain", "is_plain"]

Field = tuple[str, Any, Sequence[int], bool]


class ParquetDataModule(ParquetModule, installed().LightningDataModule):  # type: ignore[misc]
    """Batches of tensors by column, from loaders as Lightning's ``Trainer`` takes them.

    Args:
        reader_worker_count: threads that read, where ``train_reader_worker_count`` and
            ``val_reader_worker_count`` do not say it.
        transformation: called with each row, in place of ``transform_fn``.
        transformation_edit_fields: ``(name, dtype, shape, nullable)`` of columns that it makes: its values
            get this dtype and shape.
        transformation_removed_fields: columns that it takes away.
        debug_data_loader: print a line for every batch.
        train_async_data_loader_queue_size, val_async_data_loader_queue_size: make batches in one more thread,
            so many ahead; a fraction is one of the steps of an epoch. By default there is none: readers have
            threads.
        seed: another name of ``random_seed``.
        args, kwargs: as for :class:`horovod.spark.common.datamodule.ParquetModule`.

    Raises:
        ValueError: a queue size is neither.
    """

    def __init__(
        self,
        *args: Any,
        reader_worker_count: int = 2,
        transformation: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        transformation_edit_fields: Sequence[Field] | None = None,
        transformation_removed_fields: Sequence[str] | None = None,
        debug_data_loader: bool = False,
        train_async_data_loader_queue_size: int | float | None = None,
        val_async_data_loader_queue_size: int | float | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        installed().LightningDataModule.__init__(self)
        for name in ("train_reader_worker_count", "val_reader_worker_count"):
            kwargs.setdefault(name, reader_worker_count)
        if seed is not None:
            kwargs["random_seed"] = seed
        super().__init__(*args, **kwargs)
        transform = transformation or self.transform_fn
        if transform or transformation_edit_fields or transformation_removed_fields:
            self.transform_fn = _Edited(
                transform, transformation_edit_fields or (), transformation_removed_fields or ()
            )
        self._debug = debug_data_loader
        self._train_queue = _queue_size(train_async_data_loader_queue_size, self.steps_per_epoch_train)
        self._val_queue = _queue_size(val_async_data_loader_queue_size, self.steps_per_epoch_val)
        self._loaders: list[AsyncBatches] = []

    def convert(self, batch: dict[str, NDArray[Any]]) -> Any:
        return as_tensors(batch)

    def train_dataloader(self) -> Iterable[Any]:
        """The batches to train on: each loop has those of an epoch."""
        return self._loader(self.train_data(), self._train_queue)

    def val_dataloader(self) -> Iterable[Any]:
        """The batches to validate on; none, if there are no data for it."""
        batches = self.val_data()
        return [] if batches is None else self._loader(batches, self._val_queue)

    def teardown(self, stage: str | None = None) -> None:
        """End all threads; Lightning calls it at the end."""
        del stage
        self.close()

    def close(self) -> None:
        while self._loaders:
            self._loaders.pop().close_async_loader()
        super().close()

    def _loader(self, batches: Any, queue_size: int) -> Iterable[Any]:
        if not queue_size:
            found: Iterable[Any] = batches
            return found
        loader = AsyncBatches(queue_size, self._debug, batches)
        self._loaders.append(loader)
        return loader


PetastormDataModule = ParquetDataModule
"""The name that scripts know. Petastorm itself is not used."""


class _Edited:
    """A transformation of rows, with what is said of the columns that it makes and takes away."""

    def __init__(
        self,
        transform: Callable[[dict[str, Any]], Mapping[str, Any]] | None,
        made: Sequence[Field],
        removed: Sequence[str],
    ) -> None:
        self._transform = transform
        self._made = made
        self._removed = removed

    def __call__(self, row: dict[str, Any]) -> Mapping[str, Any]:
        result = dict(row if self._transform is None else self._transform(row))
        for name in self._removed:
            result.pop(name, None)
        for name, dtype, shape, *_ in self._made:
            if name not in result:
                raise InvalidArgumentError(
                    f"transformation_edit_fields names {name!r}, which the transformation does not "
                    f"return; it returns {', '.join(map(repr, result))}."
                )
            result[name] = np.asarray(result[name], dtype).reshape(tuple(shape))
        return result


def _queue_size(given: int | float | None, steps: int) -> int:
    """Return the number of batches that are made ahead; 0: none."""
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int | float) or given < 0:
        raise InvalidArgumentError(
            "The queue size of an asynchronous loader must be a number of batches, or a fraction of the "
            f"steps of an epoch, got {given!r}."
        )
    return given if isinstance(given, int) else max(1, int(given * steps))


def is_plain(given: Any) -> bool:
    """Return whether it is a LightningDataModule, or a class of such, that is no context manager."""
    kind = given if isinstance(given, type) else type(given)
    of_lightning = any(base.__name__ == "LightningDataModule" for base in kind.__mro__)
    return of_lightning and not hasattr(kind, "__enter__")


def check_plain(given: Any, known: Mapping[str, Any]) -> None:
    """
    Raises:
        InvalidArgumentError: its class wants arguments that an estimator does not have.
    """
    if not isinstance(given, type):
        return
    wanted = [
        name
        for name, parameter in inspect.signature(given).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in {*known, "cur_shard", "shard_count"}
    ]
    if wanted:
        raise InvalidArgumentError(
            f"data_module: {given.__name__} needs arguments that an estimator does not have: "
            f"{', '.join(wanted)}. Pass an instance, data_module={given.__name__}(...)."
        )


@dataclass(frozen=True)
class PlainModule:
    """
    Attributes:
        module: for the trainer.
        shards: whether it takes the batches of its rank alone. Otherwise the trainer gives its loaders a
            sampler that does.
    """

    module: Any
    shards: bool

    @classmethod
    def of(cls, given: Any, arguments: Mapping[str, Any]) -> PlainModule:
        """Make it, with those arguments that its class has by name; or take the instance."""
        if not isinstance(given, type):
            return cls(given, shards=False)
        parameters = inspect.signature(given).parameters
        known = {name: value for name, value in arguments.items() if name in parameters}
        return cls(given(**known), shards="cur_shard" in known)
