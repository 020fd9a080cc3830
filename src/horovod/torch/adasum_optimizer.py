"""``DistributedOptimizer(op=Adasum)``: combines the steps that each rank would take, instead of gradients.

Each rank lets the wrapped optimizer step from the common weights with its own gradients, and Adasum combines
the differences: it adds what is orthogonal and averages what is parallel.

Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from horovod.collectives.allreduce import check_adasum
from horovod.collectives.ops import Adasum
from horovod.errors import InvalidArgumentError
from horovod.gradients.exchange import GradientExchange, GradientStore
from horovod.gradients.settings import GradientSettings
from horovod.runtime.process_set import global_process_set
from horovod.torch.autograd import collectives
from horovod.torch.grad_scaler import exchange_before_unscaling
from horovod.torch.gradients import Gradients
from horovod.torch.wrapped_optimizer import WrappedOptimizer, local_step

__all__: list[str] = []


class _Differences(GradientStore[torch.Tensor]):
    """Exchanges how the optimizer would change each parameter, instead of gradients."""

    remedy = (
        "The optimizer has taken its step by the gradient as it was, and ranks combine these steps "
        "(op=Adasum). Change the gradient before that, in a hook that is registered before the optimizer is "
        "wrapped: parameter.register_post_accumulate_grad_hook(hook)."
    )

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters = parameters
        self.old: dict[int, torch.Tensor] = {}  # kept for their memory
        self.change: dict[int, torch.Tensor] = {}

    def get(self, index: int) -> torch.Tensor | None:
        return self.parameters[index].grad

    def zero(self, index: int) -> torch.Tensor:
        return torch.zeros_like(
            self.parameters[index], requires_grad=False, memory_format=torch.contiguous_format
        )

    def put(self, index: int, gradient: torch.Tensor) -> None:
        self.change[index] = gradient

    version = Gradients.version
    changed = Gradients.changed

    def settle(self, exchanged: Sequence[torch.Tensor | None]) -> None:
        with torch.no_grad():
            for index, change in self.change.items():
                parameter = self.parameters[index]
                parameter.add_(change.view_as(parameter))
        self.change.clear()

    def is_complex(self, index: int) -> bool:
        return self.parameters[index].is_complex()


class _DistributedAdasumOptimizer(WrappedOptimizer):
    """Base that ``DistributedOptimizer(op=Adasum)`` puts before the class of the wrapped optimizer.

    Weights change in :meth:`step` only. Optimizers that need a closure (``LBFGS``) cannot be used, and a
    ``GradScaler`` cannot either: gradients are used before it could unscale them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        settings: GradientSettings,
    ) -> None:
        self._take_over(optimizer, named_parameters)
        check_adasum(global_process_set)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InvalidArgumentError("Adasum cannot combine steps of LBFGS, which need a closure.")
        self.op = Adasum
        self.process_set = global_process_set
        self._compression = settings.compression
        self._passes = settings.backward_passes_per_step
        self._parameters, frozen = self._watched()
        self._differences = _Differences(self._parameters)
        self._counted: list[tuple[dict[str, Any], dict[str, Any]]] = []
        exchange = GradientExchange(
            collectives,
            self._differences,
            [self._names.of_exchange(parameter) for parameter in self._parameters],
            settings,
        )
        me = weakref.ref(self)

        def difference_of(index: int, gradient: torch.Tensor) -> torch.Tensor:
            optimizer = me()  # a circle would leave the hooks on the parameters of an optimizer that is gone
            assert optimizer is not None
            return optimizer._difference_of(index, gradient)

        exchange.hold(difference_of)
        self._watch(exchange, frozen)
        exchange_before_unscaling()

    def _arguments(self) -> dict[str, Any]:
        return {**super()._arguments(), "compression": self._compression, "op": Adasum}

    def _difference_of(self, index: int, _: torch.Tensor) -> torch.Tensor:
        """Compute the change that the wrapped optimizer would make to parameter ``index``; the parameter
        keeps its values.
        """
        parameter = self._parameters[index]
        differences = self._differences
        old = differences.old.get(index)
        if old is None or old.shape != parameter.shape or old.dtype != parameter.dtype:
            old = differences.old[index] = torch.empty_like(parameter, requires_grad=False)
        with torch.no_grad(), _same_version(parameter):
            old.copy_(parameter)
            self._step_alone(parameter)
            change = (parameter - old).contiguous()
            parameter.copy_(old)
        differences.change[index] = change
        return change

    def _step_alone(self, parameter: torch.Tensor) -> None:
        """One step of the wrapped optimizer on one parameter."""
        everything = list(self.param_groups)
        group = next(group for group in everything if any(p is parameter for p in group["params"]))
        before = dict(group)
        group["params"] = [parameter]
        self.param_groups[:] = [group]  # in place: an optimizer inside of this one may have the same list
        try:
            local_step(self)
        finally:
            # An optimizer that counts steps in its groups has to count this one once, not for each parameter.
            counted = {name: value for name, value in group.items() if value is not before.get(name)}
            del counted["params"]
            self._counted.append((group, counted))
            for name in counted.keys() - before.keys():
                del group[name]
            group.update(before)
            self.param_groups[:] = everything

    def synchronize(self) -> None:
        """Does nothing: the exchange ends in :meth:`step`."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Refuse the context that other distributed optimizers have.

        Raises:
            AssertionError: always; the changes of the weights cannot be used without their exchange.
        """
        if self._exchange is not None:
            raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def _finish_for_scaler(self) -> None:
        raise InvalidArgumentError(
            "A GradScaler cannot be used with op=Adasum: the optimizer has taken its step by the scaled "
            "gradients already, and ranks combine these steps. Leave out the scaler and compute in bfloat16, "
            "which needs none, or use op=hvd.Average."
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Evaluate ``closure``, wait for the combined changes and apply them; returns the closure's value.

        Raises:
            HorovodInternalError: an exchange failed; the weights are as before, the wrapped optimizer's state
                is not.
        """
        self._look_at_replicas()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            self._finish_exchange()
        finally:
            for group, options in self._counted:
                group.update(options)
            self._counted.clear()
        return loss


def _same_version(parameter: torch.Tensor) -> AbstractContextManager[None]:
    """Hide changes in the block from autograd: the values are the same again at its end. Graphs that have
    saved this parameter stay valid."""
    preserve: Any = getattr(torch.autograd, "_unsafe_preserve_version_counter", None)
    return nullcontext() if preserve is None else preserve(parameter)
