"""``GradScaler.unscale_`` of distributed optimizers: gradients are exchanged before they are unscaled.

A scaler changes gradients in a way that autograd does not count, and looks for infinities, which all ranks
must find alike. It asks an optimizer nothing before that, so the method itself is put in front.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch

__all__ = ["exchange_before_unscaling"]

_MARK: Final = "_asks_distributed_optimizers"


def exchange_before_unscaling() -> None:
    """Let all scalers of PyTorch finish the exchange of a distributed optimizer before they unscale its
    gradients. Does nothing the second time."""
    scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # before PyTorch 2.3
    plain = scaler.unscale_
    if hasattr(plain, _MARK):
        return

    @functools.wraps(plain)
    def unscale_(self: Any, optimizer: torch.optim.Optimizer) -> None:
        # Only distributed optimizers have it.
        if (finish := getattr(optimizer, "_finish_for_scaler", None)) is not None:
            finish()
        plain(self, optimizer)

    setattr(unscale_, _MARK, True)
    scaler.unscale_ = unscale_
