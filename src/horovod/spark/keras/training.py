"""The training of :class:`horovod.spark.keras.KerasEstimator`, as every rank runs it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from horovod.errors import InvalidArgumentError
from horovod.spark.common.training import Columns, Rank, Training
from horovod.spark.keras.packing import KerasSetting, LegacyOptimizer, from_bytes

__all__ = ["KerasTraining", "LegacyKerasTraining", "model_inputs", "validation_set"]


@dataclass(frozen=True)
class KerasTraining(Training):
    """Training with Keras; the attributes are parameters of the estimator.

    Attributes:
        model: packed.
        loss: None: the model is compiled.
    """

    setting: KerasSetting
    model: bytes
    optimizer: Any
    loss: Any
    loss_weights: Any
    metrics: Any
    custom_objects: Mapping[str, Any]
    gradient_compression: Any
    callbacks: Sequence[Any]
    checkpoint_callback: Any
    frontend = "horovod.keras"

    def gpu_available(self) -> bool:
        return _gpus(self.setting.backend) > 0

    def train(self, rank: Rank) -> dict[str, list[float]]:
        self.setting.apply()
        keras = self.setting.module()
        run, data = rank.run, rank.data
        if run.seed is not None:
            keras.utils.set_random_seed(run.seed)
        with _device(self, rank):
            model = self._compiled(rank)
            optional: dict[str, Any] = {}
            if run.val_steps:
                held_out = data.val_data()
                optional["validation_data"] = validation_set(
                    getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence,
                    lambda: _batches(held_out, model, run.columns),
                    run.val_steps,
                )
            found = model.fit(
                _batches(data.train_data(), model, run.columns),
                steps_per_epoch=run.train_steps,
                epochs=run.epochs,
                callbacks=self._callbacks(rank),
                verbose=2 if rank.talkative else 0,
                shuffle=False,  # the reader does it
                **optional,
            )
        return {name: [float(value) for value in values] for name, values in found.history.items()}

    def _compiled(self, rank: Rank) -> Any:
        """The model, with an optimizer that exchanges gradients and has the learning rate of all ranks."""
        keras, hvd, run = self.setting.module(), rank.hvd, rank.run
        compression = self.gradient_compression or hvd.Compression.none
        if run.checkpoint is not None or self.loss is None:
            model = from_bytes(
                run.checkpoint or self.model,
                hvd.load_model,
                custom_objects=self.custom_objects,
                compression=compression,
            )
            if run.checkpoint is not None:
                self._check_earlier(model, run.run_id)
        else:
            model = from_bytes(
                self.model, keras.saving.load_model, custom_objects=self.custom_objects, compile=False
            )
            optimizer = self.optimizer
            if isinstance(optimizer, LegacyOptimizer):
                optimizer = optimizer.optimizer()
            model.compile(
                optimizer=hvd.DistributedOptimizer(optimizer, compression=compression),
                loss=self.loss,
                loss_weights=self.loss_weights,
                metrics=self.metrics or None,
            )
        _multiply_learning_rate(model.optimizer, hvd.size())
        return model

    def _check_earlier(self, model: Any, run_id: str) -> None:
        """Check that the model of an earlier run is like the one that was given.

        Raises:
            InvalidArgumentError: its weights have other shapes.
        """
        load = self.setting.module().saving.load_model
        given = from_bytes(self.model, load, custom_objects=self.custom_objects, compile=False)
        shapes = [[tuple(weight.shape) for weight in each.weights] for each in (given, model)]
        if shapes[0] != shapes[1]:
            raise InvalidArgumentError(
                f"Run {run_id} in the store is that of another model: its weights have the shapes "
                f"{shapes[1]}, those of the given one {shapes[0]}. Choose another run_id, or none."
            )

    def _callbacks(self, rank: Rank) -> list[Any]:
        keras, hvd = self.setting.module(), rank.hvd.callbacks
        callbacks = list(self.callbacks)
        for callback in callbacks:
            if isinstance(callback, (hvd.LearningRateScheduleCallback, hvd.LearningRateWarmupCallback)):
                callback.initial_lr *= rank.hvd.size()
        boards = [each for each in callbacks if isinstance(each, keras.callbacks.TensorBoard)]
        shared = [each for each in callbacks if each not in boards]
        found = [hvd.BroadcastGlobalVariablesCallback(0), hvd.MetricAverageCallback(), *shared]
        if rank.first:
            found += [*self._checkpoint(rank), *_tensorboard(keras, rank, boards)]
            found.append(keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rank.save()))
        return found

    def _checkpoint(self, rank: Rank) -> list[Any]:
        """Callbacks that save the model with the learning rate of one rank."""
        keras = self.setting.module()
        checkpoint = self.checkpoint_callback or keras.callbacks.ModelCheckpoint(rank.checkpoint_path)
        checkpoint.filepath = rank.checkpoint_path

        def multiply(factor: float) -> Any:
            callback: Any = keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: _multiply_learning_rate(callback.model.optimizer, factor)
            )
            return callback

        return [multiply(1 / rank.hvd.size()), checkpoint, multiply(rank.hvd.size())]


class LegacyKerasTraining(KerasTraining):
    """Of a model of ``tf_keras``."""

    frontend = "horovod.tensorflow.keras"


def _multiply_learning_rate(optimizer: Any, factor: float) -> None:
    """Of a number; a schedule is what its maker means."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # in that which scales losses
    own = getattr(optimizer, "_learning_rate", None)
    if own is None:  # the oldest optimizers of Keras
        own = optimizer._hyper["learning_rate"]
    if any(kind.__name__ == "LearningRateSchedule" for kind in type(own).__mro__):
        return
    rate = optimizer.learning_rate
    rate = rate.numpy() if hasattr(rate, "numpy") else rate
    optimizer.learning_rate = float(rate) * factor


def _tensorboard(keras: Any, rank: Rank, boards: Sequence[Any]) -> list[Any]:
    """TensorBoard, if it is installed, with its files in the directory of the run."""
    found = list(boards)
    if not found and all(map(importlib.util.find_spec, ("tensorboard", "tensorflow"))):
        found = [keras.callbacks.TensorBoard()]
    for board in found:
        board.log_dir = os.path.join(rank.directory, rank.run.store.logs_subdir)
    return found


def _batches(batches: Iterable[Any], model: Any, columns: Columns) -> Iterator[tuple[Any, ...]]:
    """Turn batches into those that ``fit`` takes: inputs, outputs, and weights of rows if there are some."""
    dtype = np.dtype(model.dtype if model.dtype != "bfloat16" else "float32")
    outputs = list(getattr(model, "outputs", None) or [None] * len(columns.labels))
    for batch in batches:
        features, labels, weights = columns.split(batch)
        targets = [
            _fitted(label, output if shape is None else None, dtype)
            for label, output, shape in zip(
                labels, outputs, columns.label_shapes or (None,) * len(labels), strict=True
            )
        ]
        inputs = model_inputs(model, columns.features, features)
        pair = (inputs, targets[0] if len(targets) == 1 else tuple(targets))
        yield pair if weights is None else (*pair, np.asarray(weights).astype(dtype))


def model_inputs(model: Any, names: Sequence[str], features: Sequence[Any]) -> Any:
    """Features as the model takes them: an array, a tuple, or a dictionary by column."""
    tensors = list(getattr(model, "inputs", None) or [None] * len(features))
    if len(tensors) != len(features):
        raise InvalidArgumentError(
            f"The model has {len(tensors)} inputs for {len(features)} feature columns: {', '.join(names)}."
        )
    arrays = [
        _fitted(feature, tensor, _dtype_of(model, tensor))
        for feature, tensor in zip(features, tensors, strict=True)
    ]
    if isinstance(getattr(model, "input", None) if tensors[0] is not None else None, dict):
        return dict(zip(names, arrays, strict=True))
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _dtype_of(model: Any, tensor: Any) -> Any:
    """NumPy's type of an input."""
    dtype = model.compute_dtype if tensor is None else tensor.dtype
    return np.dtype(getattr(dtype, "as_numpy_dtype", dtype))


def _fitted(array: Any, tensor: Any, dtype: Any) -> Any:
    """An array in the shape of a symbolic tensor, where both have as many elements in a row."""
    array = np.asarray(array)
    if np.issubdtype(array.dtype, np.floating) or array.dtype == bool:
        array = array.astype(dtype, copy=False)
    shape = None if tensor is None else tuple(tensor.shape[1:])
    if shape is None or None in shape or int(np.prod(shape)) != int(np.prod(array.shape[1:])):
        return array
    return array.reshape((len(array), *shape))


def _gpus(backend: str) -> int:
    """Count the GPUs that the framework of Keras sees."""
    if backend == "torch":
        import torch

        return int(torch.cuda.device_count())
    if backend == "tensorflow":
        import tensorflow

        return len(tensorflow.config.list_physical_devices("GPU"))
    import jax

    return sum(device.platform == "gpu" for device in jax.local_devices())


def _device(training: KerasTraining, rank: Rank) -> AbstractContextManager[Any]:
    """Return a context in which this rank computes on its device."""
    import keras

    if not training.gpu_available():
        return nullcontext()
    if training.setting.backend == "tensorflow":
        import tensorflow

        devices = tensorflow.config.list_physical_devices("GPU")
        mine = [] if rank.gpu is None else [devices[rank.gpu]]
        tensorflow.config.set_visible_devices(mine, "GPU")
        for device in mine:
            tensorflow.config.experimental.set_memory_growth(device, True)
        return nullcontext()
    found: AbstractContextManager[Any] = keras.device("cpu:0" if rank.gpu is None else f"gpu:{rank.gpu}")
    return found


def validation_set(base: Any, batches: Callable[[], Iterator[Any]], steps: int) -> Any:
    """The same batches in every epoch.

    Of a generator Keras looks at the first batches, and gives these to every validation again, before those
    that follow where the one before has ended.

    Args:
        base: ``PyDataset`` of Keras 3, or ``Sequence`` of Keras 2.
        batches: begins anew: returns inputs, outputs and perhaps weights, batch by batch.
        steps: how many there are.
    """

    class ValidationSet(base):  # type: ignore[misc]
        """Batches by their number; in order they are read once."""

        def __init__(self) -> None:
            super().__init__()
            self._stream: Iterator[Any] = iter(())
            self._next = steps  # number of the batch that the stream has next

        def __len__(self) -> int:
            return steps

        def __getitem__(self, number: int) -> Any:
            if number < self._next:
                self._stream, self._next = batches(), 0
            while self._next < number:
                next(self._stream)
                self._next += 1
            self._next += 1
            try:
                return next(self._stream)
            except StopIteration:
                raise RuntimeError(
                    f"The data module ended after {number} of {steps} batches to validate on. It must be "
                    "endless, or have as many on every rank."
                ) from None

    return ValidationSet()
