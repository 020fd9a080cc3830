"""The training of :class:`horovod.spark.lightning.TorchEstimator`, as every rank runs it."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from horovod.spark.common.training import Columns, Rank, Training, TrainingRun
from horovod.spark.lightning.datamodule import PlainModule, is_plain
from horovod.spark.lightning.modules import is_lightning, package_of, wrapped
from horovod.spark.lightning.strategy import strategy_class
from horovod.spark.torch.losses import Losses
from horovod.spark.torch.packing import PackedModule, PackedOptimizer, floating_dtype, prepared, state_of_run

__all__ = ["LightningTraining"]


@dataclass(frozen=True)
class LightningTraining(Training):
    """Training with Lightning; the attributes are parameters of the estimator.

    Attributes:
        optimizer, losses: for a plain module alone.
        steps: batches of an epoch to train and to validate on, for data modules that do not go by the rows
            of the DataFrame; None: all that there are.
    """

    model: PackedModule
    optimizer: PackedOptimizer | None
    losses: Losses
    gradient_compression: Any
    callbacks: Sequence[Any]
    trainer_args: Mapping[str, Any]
    logger: Any
    log_every_n_steps: int
    terminate_on_nan: bool
    profiler: Any
    steps: tuple[int | None, int | None] = (None, None)
    frontend = "horovod.torch"

    def gpu_available(self) -> bool:
        return torch.cuda.is_available()

    def data(self, run: TrainingRun, rank: int, size: int) -> AbstractContextManager[Any]:
        if is_plain(run.data_module):
            known = {**run.data_arguments, "cur_shard": rank, "shard_count": size}
            return nullcontext(PlainModule.of(run.data_module, known))
        return super().data(run, rank, size)

    def train(self, rank: Rank) -> dict[str, float]:
        run, data, model = rank.run, rank.data, self._module(rank)
        pl = package_of(model)
        if run.seed is not None:
            pl.seed_everything(run.seed, workers=True, verbose=False)
        earlier, epoch = _earlier(rank)
        arguments = self._arguments(pl, rank, run.epochs + epoch)
        source: dict[str, Any]
        if isinstance(data, PlainModule):
            source = {"datamodule": data.module}
            arguments |= {
                "use_distributed_sampler": not data.shards,
                "limit_train_batches": self.steps[0] or 1.0,
                "limit_val_batches": self.steps[1] or 1.0,
            }
        else:
            dtype = floating_dtype(model)
            train = _Batches(data.train_dataloader(), run.columns, run.train_steps, dtype)
            source = {"train_dataloaders": train}
            if run.val_steps:
                held_out = _Batches(data.val_dataloader(), run.columns, run.val_steps, dtype)
                source["val_dataloaders"] = held_out
        given = {name: value for name, value in self.trainer_args.items() if name != "callbacks"}
        trainer = pl.Trainer(**{**arguments, **given})
        trainer.fit(model, **source, ckpt_path=earlier, **({"weights_only": True} if earlier else {}))
        measured = {name: float(value) for name, value in trainer.callback_metrics.items()}
        everywhere = rank.hvd.allgather_object(measured)
        return {
            name: sum(each[name] for each in everywhere) / len(everywhere)
            for name in measured
            if all(name in each for each in everywhere)
        }

    def _module(self, rank: Rank) -> Any:
        """The LightningModule: the model, or one around it."""
        model = self.model.module()
        if is_lightning(model):
            return model
        assert self.optimizer is not None
        return wrapped(model, self.optimizer.optimizer(model), self.losses, rank.run.columns)

    def _arguments(self, pl: Any, rank: Rank, epochs: int) -> dict[str, Any]:
        """Of the trainer; those that users give have precedence."""
        strategy = strategy_class(pl)(compression=self.gradient_compression, scale_learning_rate=True)
        return {
            "strategy": strategy,
            "accelerator": "cpu" if rank.gpu is None else "gpu",
            "devices": 1 if rank.gpu is None else [rank.gpu],
            "callbacks": self._callbacks(pl, rank),
            "max_epochs": epochs,
            "logger": _logger(pl, self.logger, rank),
            "log_every_n_steps": self.log_every_n_steps,
            "num_sanity_val_steps": 0,
            "use_distributed_sampler": False,
            "limit_train_batches": rank.run.train_steps,
            "limit_val_batches": rank.run.val_steps,
            "enable_progress_bar": rank.talkative,
            "enable_model_summary": rank.talkative,
            "profiler": _profiler(self.profiler, rank),
            "default_root_dir": rank.directory,
        }

    def _callbacks(self, pl: Any, rank: Rank) -> list[Any]:
        """List the user's callbacks and the one that saves the model: on every rank, as Lightning decides
        together.
        """
        more = self.trainer_args.get("callbacks") or ()
        found = [*self.callbacks, *(more if isinstance(more, (list, tuple)) else [more])]
        stem = os.path.splitext(rank.run.checkpoint_name)[0]
        savers = [each for each in found if isinstance(each, pl.callbacks.ModelCheckpoint)]
        if not savers:
            savers = [pl.callbacks.ModelCheckpoint(save_top_k=1, save_on_train_epoch_end=True)]
            found += savers
        for saver in savers:
            saver.dirpath, saver.filename = rank.directory, stem
            saver._enable_version_counter = False

        class Save(pl.callbacks.Checkpoint):  # type: ignore[misc]
            """Comes after those that write the checkpoint."""

            def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
                rank.save()

        class FailOnNaN(pl.Callback):  # type: ignore[misc]
            def on_train_batch_end(
                self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
            ) -> None:
                loss = float(outputs["loss"] if isinstance(outputs, Mapping) else outputs)
                if not math.isfinite(loss):
                    raise ValueError(f"The loss of batch {index} is {loss} (terminate_on_nan).")

        return [*found, Save(), *([FailOnNaN()] if self.terminate_on_nan else [])]


class _Batches:
    """A loader whose batches have the shapes and the precision of the model."""

    def __init__(self, loader: Any, columns: Columns, steps: int, dtype: Any) -> None:
        self._loader, self._columns = loader, columns
        self._steps, self._dtype = steps, dtype

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        names = [*self._columns.features, *self._columns.labels]
        for batch in self._loader:
            known = {name: prepared(tensor, self._dtype) for name, tensor in batch.items()}
            features, labels, _ = self._columns.split(known)
            yield {**known, **dict(zip(names, [*features, *labels], strict=True))}


def _earlier(rank: Rank) -> tuple[str | None, int]:
    """The file of an earlier run's checkpoint, and how many epochs that has behind it."""
    if rank.run.checkpoint is None:
        return None, 0
    state = state_of_run(rank.run.checkpoint, rank.run.run_id)
    path = os.path.join(rank.directory, rank.run.checkpoint_name)
    with open(path, "wb") as file:
        file.write(rank.run.checkpoint)
    return path, int(state["epoch"]) + 1


def _logger(pl: Any, logger: Any, rank: Rank) -> Any:
    directory = os.path.join(rank.directory, rank.run.store.logs_subdir)
    if logger is None:
        if not any(map(importlib.util.find_spec, ("tensorboard", "tensorboardX"))):
            return False
        return pl.loggers.TensorBoardLogger(rank.directory, name=rank.run.store.logs_subdir)
    for attribute in ("_save_dir", "_root_dir"):
        if hasattr(logger, attribute):
            setattr(logger, attribute, directory)
    return logger


def _profiler(profiler: Any, rank: Rank) -> Any:
    if profiler is not None and hasattr(profiler, "dirpath"):
        profiler.dirpath = os.path.join(rank.directory, rank.run.store.logs_subdir)
    return profiler
