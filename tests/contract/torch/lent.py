"""Models that are large enough for ranks of a host to lend each other their copies."""

from __future__ import annotations

import torch


def filled(fill: float) -> torch.nn.Linear:
    """A model that is large enough to be lent."""
    model = torch.nn.Linear(600, 600)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(fill)
    return model


def contents(model: torch.nn.Module) -> list[float]:
    values = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    return [float(each) for each in values.unique()]
