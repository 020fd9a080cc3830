"""Losses of the estimators: what is averaged, and sizes that do not fit."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.nn import functional  # noqa: E402

from horovod.errors import InvalidArgumentError  # noqa: E402
from horovod.spark.torch.losses import TotalLoss, labels_like_outputs  # noqa: E402


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_each_row_has_its_own_weight(shape: tuple[int, ...]) -> None:
    output, label = torch.tensor([[1.0], [2.0], [4.0]]), torch.zeros(3, 1)
    weights = torch.tensor([1.0, 0.0, 2.0]).reshape(shape)
    found = TotalLoss([functional.mse_loss])([output], [label], weights)
    assert float(found) == pytest.approx((1 + 0 + 2 * 16) / 3)


def test_weights_that_are_not_one_a_row_are_refused() -> None:
    values = torch.zeros(3, 1)
    with pytest.raises(InvalidArgumentError, match=r"weights have the shape \[3, 2\] for 3 rows"):
        TotalLoss([functional.mse_loss])([values], [values], torch.ones(3, 2))


@pytest.mark.parametrize(
    "loss", [functional.mse_loss, torch.nn.HuberLoss(), lambda a, b: functional.l1_loss(a, b)]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_an_output_of_another_size_than_the_label_is_refused(loss: Any, weighted: bool) -> None:
    output, label = torch.rand(4, 3), torch.rand(4, 1)
    weights = torch.ones(4) if weighted and loss is functional.mse_loss else None
    total = TotalLoss([loss])
    for _ in range(2):  # a try that failed counts for nothing
        with pytest.raises(
            InvalidArgumentError, match=r"output of the shape \[4, 3\] and a label .* \[4, 1\]"
        ):
            total([output], labels_like_outputs([output], [label]), weights)


def test_losses_that_take_labels_of_another_size_go_on_doing_so() -> None:
    scores, classes = torch.zeros(4, 10), torch.tensor([1, 2, 3, 4])

    def quantiles(output: Any, label: Any) -> Any:
        warnings.warn("of the loss itself", stacklevel=1)
        return (output - label[:, None]).abs().mean()

    total = TotalLoss([functional.cross_entropy, quantiles])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(5):
            assert float(total([scores, scores], [classes, torch.zeros(4)])) == pytest.approx(
                1.1513, abs=1e-3
            )
    assert [str(each.message) for each in seen][-1:] == ["of the loss itself"]
    assert len(seen) <= 2, "not in every step"
