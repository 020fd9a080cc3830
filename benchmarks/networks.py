"""Three small networks that train on the CPU with synthetic data, each for another balance of work.

`convnet` computes much for its few parameters, `mlp` has many parameters for little computation, and
`transformer` many tensors of all sizes. What a network gets is random: only the time counts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["NETWORKS", "Network"]

Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Network:
    """What to train, and on what.

    Attributes:
        make: new parameters, from PyTorch's random state.
        samples: in a batch.
        batch: random input and labels: the network maps the first to logits ``(*labels.shape, classes)``.
    """

    make: Callable[[], nn.Module]
    samples: int
    batch: Callable[[], Batch]


def convnet() -> nn.Module:
    """Three convolutions with batch norm on images of 32 x 32 pixels; 1.1 M parameters in 13 tensors."""

    def stage(into: int, out: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)
        )

    stages = [stage(3, 32), stage(32, 64), stage(64, 128)]
    return nn.Sequential(*stages, nn.Flatten(), nn.Linear(128 * 4 * 4, 512), nn.ReLU(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    """Three layers, 10.5 M parameters in 6 tensors."""
    return nn.Sequential(
        nn.Linear(1024, 3072), nn.ReLU(), nn.Linear(3072, 2304), nn.ReLU(), nn.Linear(2304, 128)
    )


class Transformer(nn.Module):
    """A causal language model: 4 layers of width 256, context 64; 4.2 M parameters in 52 tensors."""

    VOCABULARY = 2048
    WIDTH = 256
    CONTEXT = 64

    def __init__(self) -> None:
        super().__init__()
        width = self.WIDTH
        self.tokens = nn.Embedding(self.VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(self.CONTEXT, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.logits = nn.Linear(width, self.VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(self.CONTEXT))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.tokens(tokens) + self.positions
        logits: torch.Tensor = self.logits(self.layers(embedded, mask=self.mask, is_causal=True))
        return logits


def _text(samples: int) -> Batch:
    text = torch.randint(Transformer.VOCABULARY, (samples, Transformer.CONTEXT + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


NETWORKS = {
    "convnet": Network(convnet, 32, lambda: (torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))),
    "mlp": Network(mlp, 64, lambda: (torch.randn(64, 1024), torch.randint(128, (64,)))),
    "transformer": Network(Transformer, 8, lambda: _text(8)),
}
