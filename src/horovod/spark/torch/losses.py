"""The loss of a batch with several labels and weighted rows, and metrics of its outputs."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from horovod.errors import InvalidArgumentError

__all__ = ["Losses", "TotalLoss", "as_list", "labels_like_outputs", "metric_groups"]

Loss = Callable[..., Any]


class TotalLoss:
    """The weighted sum of a loss for each label.

    Args:
        losses: one for each label: functions of output and label, or modules.
        loss_weights: one for each; by default 1 / n.
    """

    def __init__(self, losses: Sequence[Loss], loss_weights: Sequence[float] | None = None) -> None:
        self._losses = list(losses)
        self._by_row = [_without_reduction(loss) for loss in losses]
        self._tried: set[tuple[Any, ...]] = set()
        self._weights = list(loss_weights or [1.0 / len(self._losses)] * len(self._losses))

    def __call__(self, outputs: Sequence[Any], labels: Sequence[Any], sample_weights: Any = None) -> Any:
        """A number: the mean over the rows of the batch, or with weights the mean of loss times weight.

        Args:
            sample_weights: one number a row, or None.

        Raises:
            InvalidArgumentError: there are not as many outputs as losses, or weights as rows; or PyTorch
                warns that output and label of other sizes are spread over each other.
        """
        if len(outputs) != len(self._losses):
            raise InvalidArgumentError(
                f"The model has {len(outputs)} outputs for {len(self._losses)} losses: there must be as many "
                "outputs as labels."
            )
        total: Any = 0.0
        for index, (output, label) in enumerate(zip(outputs, labels, strict=True)):
            with self._sizes_agree(index, output, label):
                if sample_weights is None:
                    loss = self._losses[index](output, label)
                else:
                    by_row = _by_row(self._by_row[index], output, label)
                    loss = (by_row * _one_a_row(sample_weights, len(by_row))).mean()
            total = total + self._weights[index] * loss
        return total

    @contextmanager
    def _sizes_agree(self, index: int, output: Any, label: Any) -> Iterator[None]:
        """Make an error of PyTorch's warning: every output would be compared with every label. Losses that
        take a label of another size, such as the number of a class, give none.

        Each pair of shapes is tried once, as a change of filters makes all warnings come again.
        """
        shapes = [tuple(getattr(each, "shape", ())) for each in (output, label)]
        pair = (index, len(shapes[0]), shapes[0][1:], len(shapes[1]), shapes[1][1:])
        if shapes[0] == shapes[1] or pair in self._tried:
            yield
            return
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Using a target size", category=UserWarning)
                yield
        except UserWarning as warning:
            raise InvalidArgumentError(
                f"Loss {index} got an output of the shape {list(shapes[0])} and a label of the shape "
                f"{list(shapes[1])}, and would compare each with each. Let the model return as many numbers "
                "a row as the label has, or set label_shapes."
            ) from warning
        self._tried.add(pair)


@dataclass(frozen=True)
class Losses:
    """Losses and metrics of an estimator, on their way to the ranks.

    Attributes:
        functions: one for each label: functions of output and label, or modules.
        constructors: functions that make them on the ranks, instead.
        weights: one for each label; by default 1 / n.
        metrics: see :func:`metric_groups`.
    """

    functions: Sequence[Loss] | None = None
    constructors: Sequence[Callable[[], Loss]] | None = None
    weights: Sequence[float] | None = None
    metrics: Sequence[Any] = ()

    def __bool__(self) -> bool:
        return self.functions is not None or self.constructors is not None

    def total(self) -> TotalLoss | None:
        """The loss of a batch, on this rank; None: none is given."""
        functions = self.functions
        if self.constructors is not None:
            functions = [make() for make in self.constructors]
        return None if functions is None else TotalLoss(functions, self.weights)


def _one_a_row(weights: Any, rows: int) -> Any:
    """``[rows]``: a column of arrays of one number is ``[rows, 1]``.

    Raises:
        InvalidArgumentError: there are more or fewer.
    """
    if weights.numel() != rows:
        raise InvalidArgumentError(
            f"The sample weights have the shape {list(weights.shape)} for {rows} rows: there must be one "
            "number a row."
        )
    return weights.reshape(rows)


def _without_reduction(loss: Loss) -> Loss:
    if isinstance(loss, torch.nn.Module) and hasattr(loss, "reduction"):
        each: Any = copy.copy(loss)
        each.reduction = "none"
        return each  # type: ignore[no-any-return]
    return functools.partial(loss, reduction="none")


def _by_row(loss: Loss, output: Any, label: Any) -> Any:
    """``[batch]``: the loss of each row, the mean over what else the label has."""
    try:
        found = loss(output, label)
    except TypeError as error:
        raise InvalidArgumentError(
            f"With sample_weight_col a loss must take reduction='none', as those of torch.nn.functional do: "
            f"{error}"
        ) from error
    return found.reshape(len(found), -1).mean(dim=1)


def labels_like_outputs(outputs: Sequence[Any], labels: Sequence[Any]) -> list[Any]:
    """Labels in the shape of their outputs where both have as many elements, and with their dtype: a column
    of numbers is ``[batch]``, the output for it mostly ``[batch, 1]``.

    Raises:
        InvalidArgumentError: there are not as many outputs as labels, or they are no tensors.
    """
    if len(outputs) != len(labels) or not all(isinstance(each, torch.Tensor) for each in outputs):
        kinds = ", ".join(type(each).__name__ for each in outputs)
        raise InvalidArgumentError(
            f"The model returns {len(outputs)} outputs ({kinds}) for {len(labels)} labels: it must return "
            "one tensor for each, as a tuple if there are several."
        )
    return [
        label.reshape(output.shape).to(output.dtype)
        if label.numel() == output.numel() and output.is_floating_point()
        else label
        for output, label in zip(outputs, labels, strict=True)
    ]


def as_list(outputs: Any) -> list[Any]:
    """The outputs of a model: it may return one, or several."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def metric_groups(metrics: Any, labels: Sequence[str]) -> list[list[tuple[str, Loss]]]:
    """For each group of metrics a function for each label, with the name ``group_<number>_<label>``.

    Raises:
        InvalidArgumentError: a group has neither one function nor one for each label.
    """
    groups = []
    for number, group in enumerate(metrics or []):
        functions = as_list(group)
        if len(functions) not in (1, len(labels)):
            raise InvalidArgumentError(
                f"Group {number} of metrics has {len(functions)} functions for {len(labels)} labels: give "
                "one for all, or one for each."
            )
        functions = functions * len(labels) if len(functions) == 1 else functions
        names = [f"group_{number}_{label}" for label in labels]
        groups.append(list(zip(names, functions, strict=True)))
    return groups
