"""Optimizers as people write them: constructors that want more than parameters, and optimizers around
others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Needy(torch.optim.SGD):
    """A required argument, one by keyword only, a function and a counter."""

    def __init__(self, params: Any, rate: float, *, decay: float) -> None:
        super().__init__(params, lr=rate, momentum=0.9)
        self.decay = decay
        self.count = 0
        self.factor = _halved
        self.advance = self._count  # a method of its own

    def _count(self) -> None:
        self.count += 1

    def step(self, closure: Any = None) -> Any:
        self.advance()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 - self.factor(self.decay) / self.count)
        return super().step(closure)


def _halved(value: float) -> float:
    return value / 2


class Slotted(torch.optim.Adam):
    __slots__ = ("__hidden", "shown")

    def __init__(self, params: Any, shown: float) -> None:
        super().__init__(params, lr=0.1)
        self.shown = shown
        self.__hidden = 0.5

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(self.shown * self.__hidden)
        return super().step(closure)


class Lookahead(torch.optim.Optimizer):
    """Shares the groups and the state of another; does not call the constructor of its base class."""

    def __init__(self, inner: torch.optim.Optimizer, every: int) -> None:
        self.inner = inner
        self.every = every
        self.param_groups = inner.param_groups
        self.state = inner.state
        self.defaults = inner.defaults
        for group in self.param_groups:
            group["counter"] = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        param_group["counter"] = 0
        self.inner.add_param_group(param_group)

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def step(self, closure: Any = None) -> Any:
        loss = self.inner.step(closure)
        for group in self.param_groups:
            group["counter"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                slow = state.setdefault("slow", parameter.detach().clone())
                if group["counter"] % self.every == 0:
                    with torch.no_grad():
                        slow.add_(parameter - slow, alpha=0.5)
                        parameter.copy_(slow)
        return loss


class Around(torch.optim.Optimizer):
    """Shows what another has through properties that cannot be assigned, and holds no groups of its own."""

    def __init__(self, base: torch.optim.Optimizer, momentum: float) -> None:
        self.base = base
        self.momentum = momentum

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.base.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.base.add_param_group(param_group)

    def state_dict(self) -> Any:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.base.load_state_dict(state_dict)

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for parameter in group["params"]:
                state = self.state[parameter]
                mean = state.setdefault("mean", torch.zeros_like(parameter))
                with torch.no_grad():
                    mean.mul_(self.momentum).add_(parameter.grad, alpha=1.0 / group["k"])
                    parameter.grad.copy_(mean)
        return self.base.step(closure)


class LooksLikeOne:
    """No subclass of PyTorch's base class."""

    def __init__(self, inner: torch.optim.Optimizer, trust: float) -> None:
        self.inner = inner
        self.trust = trust

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    @property
    def state(self) -> Any:
        return self.inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.inner.add_param_group(param_group)

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.inner.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(self.trust / (1.0 + parameter.grad.norm()))
        return self.inner.step(closure)


class OwnState(torch.optim.SGD):
    """Says itself what a copy of it has."""

    def __init__(self, params: Any, scale: float) -> None:
        super().__init__(params, lr=0.1)
        self.scale = scale
        self.cache: Any = (each for each in range(0))  # cannot be copied

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "scale": self.scale}

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad.mul_(self.scale)
        return super().step(closure)


class SAM(torch.optim.Optimizer):
    """Climbs by the first gradient, and descends by that of where it got to."""

    def __init__(self, params: Any, base: Callable[..., torch.optim.Optimizer], rho: float, **options: Any):
        super().__init__(params, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    def climb(self) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["old"] = parameter.detach().clone()
                    parameter.add_(parameter.grad, alpha=group["rho"])
        self.zero_grad()

    def descend(self) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.copy_(self.state[parameter]["old"])
        self.base.step()

    def step(self, closure: Any = None) -> Any:
        assert closure is not None
        self.climb()
        loss = closure()
        self.descend()
        return loss


def momentum_sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


FOREIGN: dict[str, Callable[[Any], Any]] = {
    "needy": lambda params: Needy(params, 0.1, decay=0.2),
    "slotted": lambda params: Slotted(params, 1.5),
    "lookahead": lambda params: Lookahead(momentum_sgd(params), every=2),
    "around": lambda params: Around(momentum_sgd(params), momentum=0.5),
    "looks like one": lambda params: LooksLikeOne(momentum_sgd(params), trust=0.5),
    "own state": lambda params: OwnState(params, scale=3.0),
}
