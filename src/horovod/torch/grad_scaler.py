"""``GradScaler`` with distributed optimizers: gradients are exchanged before they are unscaled.

A scaler changes gradients in a way that autograd does not count, and looks for infinities, which all ranks
must find alike. It asks an optimizer nothing before that, and does not tell it of a step that it leaves out.
So its methods themselves are wrapped.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

__all__ = ["exchange_before_unscaling"]

_MARK: Final = "_asks_distributed_optimizers"


def exchange_before_unscaling() -> None:
    """Let all scalers of PyTorch finish the exchange of a distributed optimizer before they look at its
    gradients, and tell it when they are done with these. Does nothing the second time."""
    scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # before PyTorch 2.3
    plain_unscale, plain_step = scaler.unscale_, scaler.step
    if hasattr(plain_unscale, _MARK):
        return

    @functools.wraps(plain_unscale)
    def unscale_(self: Any, optimizer: torch.optim.Optimizer) -> None:
        _ask(optimizer, "_finish_for_scaler")
        plain_unscale(self, optimizer)

    @functools.wraps(plain_step)
    def step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        _ask(optimizer, "_finish_for_scaler")  # fused optimizers unscale in their own step
        result = plain_step(self, optimizer, *args, **kwargs)
        _ask(optimizer, "_leave_scaler")
        return result

    setattr(unscale_, _MARK, True)
    scaler.unscale_ = unscale_
    scaler.step = step


def _ask(optimizer: torch.optim.Optimizer, method: str) -> None:
    """Call ``method`` of a distributed optimizer; others do not have it."""
    if (function := getattr(optimizer, method, None)) is not None:
        function()
