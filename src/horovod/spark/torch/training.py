"""The training loop of :class:`horovod.spark.torch.TorchEstimator`, as every rank runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from horovod.errors import HorovodInternalError, InvalidArgumentError
from horovod.spark.common.training import Rank, Training
from horovod.spark.torch.losses import Losses, as_list, labels_like_outputs, metric_groups
from horovod.spark.torch.packing import (
    PackedModule,
    PackedOptimizer,
    as_bytes,
    floating_dtype,
    prepared,
    state_of_run,
)

__all__ = ["TorchTraining"]

_STEPS_BETWEEN_WORDS = 100


@dataclass(frozen=True)
class TorchTraining(Training):
    """Training with PyTorch; the attributes are parameters of the estimator."""

    model: PackedModule
    optimizer: PackedOptimizer
    losses: Losses
    gradient_compression: Any
    backward_passes_per_step: int
    train_minibatch_fn: Callable[..., Any] | None
    callbacks: Sequence[Callable[[dict[str, Any], Any], Any]]
    frontend = "horovod.torch"

    def gpu_available(self) -> bool:
        return torch.cuda.is_available()

    def train(self, rank: Rank) -> list[dict[str, Any]]:
        loop = _Loop(self, rank)
        history = []
        for epoch in range(rank.run.epochs):
            record = {"epoch": epoch, **loop.epoch()}
            for callback in self.callbacks:
                callback(record, loop.model)
            history.append(record)
            if rank.first:
                loop.save()
                rank.save()
            if rank.talkative:
                print(f"Epoch {epoch + 1} of {rank.run.epochs}: {_words(record)}", flush=True)
        return history


class _Loop:
    """The model and its optimizer on this rank."""

    def __init__(self, training: TorchTraining, rank: Rank) -> None:
        self._training, self._rank = training, rank
        hvd, run = rank.hvd, rank.run
        if run.seed is not None:
            torch.manual_seed(run.seed)
        self._device = torch.device("cpu" if rank.gpu is None else f"cuda:{rank.gpu}")
        if rank.gpu is not None:
            torch.cuda.set_device(rank.gpu)
        self.model = training.model.module()
        optimizer = training.optimizer.optimizer(self.model)
        if run.checkpoint is not None:
            state = state_of_run(run.checkpoint, run.run_id)
            try:
                self.model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])
            except (RuntimeError, ValueError) as error:
                raise InvalidArgumentError(
                    f"Run {run.run_id} in the store is that of another model or optimizer: {error} Choose "
                    "another run_id, or none."
                ) from error
        self.model.to(self._device)
        optimizer.load_state_dict(optimizer.state_dict())  # to where the parameters are now
        self._scale = hvd.size()
        _multiply_learning_rates(optimizer.param_groups, self._scale)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        self._optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=self.model.named_parameters(),
            compression=training.gradient_compression or hvd.Compression.none,
            backward_passes_per_step=training.backward_passes_per_step,
        )
        self._loss = training.losses.total()
        self._train_data = rank.data.train_data()
        self._val_data = rank.data.val_data() if run.val_steps else ()
        self._groups = metric_groups(training.losses.metrics, run.columns.labels)

    def epoch(self) -> dict[str, Any]:
        """Train for an epoch, and validate; returns the means over all ranks."""
        run = self._rank.run
        self.model.train()
        record = {"train": self._through(self._train_data, run.train_steps, self._train_step)}
        if run.val_steps:
            self.model.eval()
            record["validation"] = self._through(self._val_data, run.val_steps, self._validation_step)
        return record

    def save(self) -> None:
        """Write the checkpoint, with the learning rate of one process."""
        optimizer = self._optimizer.state_dict()
        optimizer["param_groups"] = [dict(group) for group in optimizer["param_groups"]]
        _multiply_learning_rates(optimizer["param_groups"], 1 / self._scale)
        state = {"model": self.model.state_dict(), "optimizer": optimizer}
        with open(self._rank.checkpoint_path, "wb") as file:
            file.write(as_bytes(state))

    def _through(self, batches: Iterable[Any], steps: int, step: Callable[..., Any]) -> dict[str, Any]:
        """Take so many steps; returns the means of the loss and the metrics over steps and ranks."""
        names = [name for group in self._groups for name, _ in group]
        sums = torch.zeros(1 + len(names), dtype=torch.float64)
        for index, batch in enumerate(self._rank.steps_of(batches, steps)):
            outputs, labels, loss = step(index, *self._split(batch), last=index + 1 == steps)
            values = [loss, *(self._measured(outputs, labels))]
            sums += torch.tensor([float(value) for value in values], dtype=torch.float64)
            if self._rank.talkative and (index + 1) % _STEPS_BETWEEN_WORDS == 0:
                print(f"  step {index + 1} of {steps}: loss {float(sums[0]) / (index + 1):.4g}", flush=True)
        means = self._rank.hvd.allreduce(sums / steps, name="estimator.metrics").tolist()
        by_name = dict(zip(names, means[1:], strict=True))
        groups = [{name: by_name[name] for name, _ in group} for group in self._groups]
        return {"loss": means[0], "all_metrics": groups}

    def _measured(self, outputs: Sequence[Any], labels: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            return [
                metric(output, label)
                for group in self._groups
                for (_, metric), output, label in zip(group, outputs, labels, strict=True)
            ]

    def _split(self, batch: dict[str, Any]) -> tuple[list[Any], list[Any], Any]:
        dtype = floating_dtype(self.model)
        return self._rank.run.columns.split(
            {name: prepared(tensor, dtype).to(self._device) for name, tensor in batch.items()}
        )

    def _train_step(
        self, index: int, inputs: Sequence[Any], labels: Sequence[Any], weights: Any, *, last: bool
    ) -> tuple[Any, Any, Any]:
        passes = self._training.backward_passes_per_step
        if self._training.train_minibatch_fn is not None:
            outputs, loss = self._training.train_minibatch_fn(
                self.model, self._optimizer, _transformed, self._loss, inputs, labels, weights, passes, index
            )
            return *_transformed(outputs, labels), loss.detach()
        if index % passes == 0:
            self._optimizer.zero_grad()
        outputs, labels, loss = self._computed(inputs, labels, weights)
        (loss / passes).backward()
        if (index + 1) % passes == 0 or last:
            self._optimizer.step()
        return outputs, labels, loss.detach()

    def _validation_step(
        self, index: int, inputs: Sequence[Any], labels: Sequence[Any], weights: Any, *, last: bool
    ) -> tuple[Any, Any, Any]:
        with torch.no_grad():
            return self._computed(inputs, labels, weights)

    def _computed(
        self, inputs: Sequence[Any], labels: Sequence[Any], weights: Any
    ) -> tuple[list[Any], list[Any], Any]:
        """Outputs, the labels in their shapes, and the loss.

        Raises:
            InvalidArgumentError: the columns have other shapes or types than the model or the loss.
        """
        outputs: list[Any] = []
        try:
            outputs, labels = _transformed(self.model(*inputs), labels)
            return outputs, labels, self._loss(outputs, labels, weights) if self._loss else torch.zeros(())
        except (HorovodInternalError, InvalidArgumentError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            columns = self._rank.run.columns
            raise InvalidArgumentError(
                f"Rank {self._rank.hvd.rank()}: {'the loss' if outputs else 'the model'} does not take this "
                f"batch: {error}. Features: {_described(columns.features, inputs)}. Labels: "
                f"{_described(columns.labels, labels)}. Outputs: {_described((), outputs)}. input_shapes and "
                "label_shapes give columns other shapes; for other types cast them in the DataFrame."
            ) from error


def _described(names: Sequence[str], values: Sequence[Any]) -> str:
    """Shapes and types of tensors, with their names if they have some."""
    words = [
        f"{list(each.shape)} {str(each.dtype).removeprefix('torch.')}"
        if isinstance(each, torch.Tensor)
        else type(each).__name__
        for each in values
    ]
    return ", ".join(map(" ".join, zip(names, words, strict=True)) if names else words) or "none"


def _transformed(outputs: Any, labels: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    found = as_list(outputs)
    return found, labels_like_outputs(found, labels)


def _multiply_learning_rates(groups: Iterable[dict[str, Any]], factor: float) -> None:
    for group in groups:
        group["lr"] = group["lr"] * factor


def _words(record: dict[str, Any]) -> str:
    parts = [("", record["train"]), ("validation ", record.get("validation"))]
    return ", ".join(
        f"{kind}{name} {value:.4g}"
        for kind, found in parts
        if found
        for name, value in [
            ("loss", found["loss"]),
            *(item for group in found["all_metrics"] for item in group.items()),
        ]
    )
