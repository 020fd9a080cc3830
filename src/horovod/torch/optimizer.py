"""``DistributedOptimizer``: an optimizer whose gradients are exchanged while the backward pass still
computes."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from horovod import _runtime
from horovod.collectives import Adasum, Average
from horovod.compression import NoneCompressor
from horovod.errors import HorovodInternalError, InvalidArgumentError
from horovod.exchange import GradientExchange, check_groups, split_list
from horovod.process_set import ProcessSet, global_process_set
from horovod.torch.autograd import collectives
from horovod.torch.functions import broadcast_object
from horovod.torch.mpi_ops import sparse_allreduce_async

__all__ = ["DistributedOptimizer"]


class _Gradients:
    """Implements :class:`horovod.exchange.GradientStore` over ``parameter.grad``."""

    def __init__(self, parameters: list[torch.Tensor], process_set: ProcessSet) -> None:
        self._parameters = parameters
        self._process_set = process_set
        # Parameters whose gradient was sparse: one without a gradient then has an empty sparse one.
        self._sparse: set[int] = set()

    def get(self, index: int) -> torch.Tensor:
        parameter = self._parameters[index]
        if parameter.grad is None:
            layout = torch.sparse_coo if index in self._sparse else torch.strided
            parameter.grad = torch.zeros_like(parameter, layout=layout, requires_grad=False)
        return parameter.grad

    def put(self, index: int, gradient: torch.Tensor) -> None:
        parameter = self._parameters[index]
        old = parameter.grad
        if (
            old is None
            or gradient.layout != torch.strided
            or old.layout != torch.strided
            or 0 in old.stride()
        ):
            parameter.grad = gradient
            return
        with torch.no_grad():
            old.copy_(gradient)

    def is_sparse(self, index: int, gradient: torch.Tensor) -> bool:
        if gradient.is_sparse:
            self._sparse.add(index)
            return True
        return False

    def to_dense(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.to_dense()

    def to_sparse(self, dense: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return dense.to_sparse(like.sparse_dim())

    def sparse_allreduce(self, gradient: torch.Tensor, name: str, op: int) -> Callable[[], torch.Tensor]:
        return sparse_allreduce_async(gradient, name, op, self._process_set)


class _DistributedOptimizer(torch.optim.Optimizer):
    """What ``DistributedOptimizer`` puts before the class of the wrapped optimizer."""

    _exchange: GradientExchange[torch.Tensor] | None

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        compression: Any,
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: int | list[list[torch.Tensor]] | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        names = _name_parameters(optimizer, named_parameters, self.find_duplicates)
        _check_groups(groups)

        # The wrapped class, from the parameter groups alone: the options of the original are in them.
        super().__init__(optimizer.param_groups)  # type: ignore[call-arg]
        self.defaults = optimizer.defaults
        self._parameter_names = names
        self.op = op
        self.gradient_predivide_factor = gradient_predivide_factor
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self._passes = backward_passes_per_step
        self._should_synchronize = True
        self._synchronized = False
        self._exchange = None

        topology = _runtime.current().topology
        alone = topology.size == 1 and os.environ.get("HOROVOD_ELASTIC") != "1"
        if alone or not process_set.included():
            return
        trainable = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        factor = gradient_predivide_factor if op == Average else 1.0
        self._exchange = GradientExchange(
            collectives,
            _Gradients(trainable, process_set),
            [names[parameter] for parameter in trainable],
            op=op,
            passes=backward_passes_per_step,
            prescale=1.0 / factor,
            postscale=factor,
            compression=compression,
            groups=_group_indices(groups, trainable, names),
            sparse_as_dense=sparse_as_dense,
            process_set=process_set,
        )
        hooks = [
            parameter.register_post_accumulate_grad_hook(_hook(self._exchange, index))
            for index, parameter in enumerate(trainable)
        ]
        # The parameters outlive an optimizer that is thrown away; without it nobody waits for their
        # gradients.
        weakref.finalize(self, _remove_all, hooks).atexit = False

    @property
    def backward_passes_per_step(self) -> int:
        return self._passes

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a state; gradients in flight are dropped, all backward passes are expected again."""
        if self._exchange is not None:
            self._exchange.reset()
        self._synchronized = False
        super().load_state_dict(*args, **kwargs)

    @staticmethod
    def find_duplicates(lst: Iterable[Any]) -> set[Any]:
        """The elements that occur more than once."""
        seen: set[Any] = set()
        return {element for element in lst if element in seen or seen.add(element)}  # type: ignore[func-returns-value]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are summed locally before one exchange; starts counting anew."""
        self._passes = passes
        if self._exchange is not None:
            self._exchange.passes = passes

    def synchronize(self) -> None:
        """Exchange what has not been exchanged yet and wait: afterwards every ``.grad`` holds the reduced
        gradient.

        Raises:
            HorovodInternalError: an exchange failed; the gradients are then unspecified.
        """
        if self._exchange is not None:
            self._exchange.finish()
            self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within the block ``step()`` only updates: for use after :meth:`synchronize` and gradient
        clipping."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """:meth:`synchronize`, then the step of the wrapped optimizer, whose value is returned.

        ``closure`` runs after the exchange, so gradients that it computes are not exchanged.
        """
        if self._should_synchronize:
            if self._synchronized and self._exchange is not None and not self._exchange.in_flight:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are exchanged twice. Use "
                    "`with optimizer.skip_synchronize(): optimizer.step()` after optimizer.synchronize().",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        return super().step(closure)

    # Step hooks of the user run once, in the step of the wrapped class: they see the exchanged gradients.
    step.hooked = True  # type: ignore[attr-defined]

    def _local_step(self) -> None:
        """The step of the wrapped optimizer, without any exchange."""
        super().step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients.

        Raises:
            AssertionError: between ``backward()`` and ``step()`` or ``synchronize()``, as the exchange works
                on them.
        """
        if self._exchange is not None and self._exchange.in_flight:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(). This is prohibited as it can cause a race condition."
            )
        super().zero_grad(set_to_none=set_to_none)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = NoneCompressor,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> _DistributedOptimizer:
    """Wrap ``optimizer`` so that its gradients are reduced over all ranks before each step.

    The result is an instance of a subclass of the optimizer's class over the same parameter groups. Its state
    is empty: load a state after wrapping.

    Args:
        named_parameters: names of the parameters, equal on all ranks; by default made from their positions.
        compression: around the reduction of each dense gradient.
        backward_passes_per_step: gradients of so many backward passes are summed (not averaged) locally, then
            reduced over the ranks.
        op: reduction of dense gradients over the ranks.
        gradient_predivide_factor: with ``Average``, divide by this before the sum and by the rest after it.
        num_groups: deprecated, use ``groups``.
        groups: a number of groups to cut the parameters into, or lists of parameters; the gradients of a
            group are reduced as one operation. By default the engine decides what travels together.
        sparse_as_dense: reduce sparse gradients as dense ones.
        process_set: ranks whose gradients are combined.

    Raises:
        ValueError: an argument is wrong (see each message), or ``init()`` has not been called.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed.",
            DeprecationWarning,
            stacklevel=2,
        )
        if groups is None:
            groups = num_groups
    if backward_passes_per_step <= 0:
        raise InvalidArgumentError("backward_passes_per_step must be > 0")
    if op == Adasum and _runtime.current().topology.size > 1:
        if process_set is not global_process_set:
            raise NotImplementedError("Adasum does not support non-global process sets.")
        raise HorovodInternalError(
            "No Adasum operation enabled: it is not available yet. Use Average or Sum."
        )

    wrapped = optimizer.__class__
    distributed = type(wrapped.__name__, (_DistributedOptimizer, wrapped), {"__module__": __name__})
    instance: _DistributedOptimizer = distributed(
        optimizer,
        named_parameters,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        groups,
        sparse_as_dense,
        process_set,
    )
    return instance


def _hook(exchange: GradientExchange[torch.Tensor], index: int) -> Callable[[torch.Tensor], None]:
    """What a parameter calls when its gradient has been accumulated."""
    ready = exchange.ready

    def hook(parameter: torch.Tensor) -> None:
        ready(index, parameter.grad)  # type: ignore[arg-type]

    return hook


def _remove_all(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _name_parameters(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    find_duplicates: Callable[[Iterable[Any]], set[Any]],
) -> dict[torch.Tensor, str]:
    """A name for every parameter.

    Raises:
        ValueError: not pairs; a name occurs twice; a parameter has none.
    """
    if named_parameters is None:
        return {
            parameter: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(optimizer.param_groups)
            for j, parameter in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise InvalidArgumentError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
            "model.named_parameters()."
        )
    duplicates = find_duplicates(name for name, _ in pairs)
    if duplicates:
        raise InvalidArgumentError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(sorted(duplicates))
        )
    names = {parameter: name for name, parameter in pairs}
    missing = sum(p not in names for group in optimizer.param_groups for p in group["params"])
    if missing:
        raise InvalidArgumentError(
            f"named_parameters was specified, but {missing} parameters of the optimizer were not named. "
            "Every parameter needs a name that is the same on all ranks: pass model.named_parameters()."
        )
    return names


def _check_groups(groups: int | list[list[torch.Tensor]] | None) -> None:
    """
    Raises:
        ValueError: neither a positive number nor a list of lists of tensors.
    """
    if groups is None:
        return
    if isinstance(groups, list):
        if not all(isinstance(p, torch.Tensor) for group in groups for p in group):
            raise InvalidArgumentError("groups must be lists of parameters (torch.Tensor).")
        positions: dict[torch.Tensor, int] = {}
        check_groups([[positions.setdefault(p, len(positions)) for p in group] for group in groups])
    elif not groups > 0:
        raise InvalidArgumentError("groups should be a positive number or a list of lists of parameters.")


def _group_indices(
    groups: int | list[list[torch.Tensor]] | None,
    trainable: list[torch.Tensor],
    names: dict[torch.Tensor, str],
) -> list[list[int]]:
    """``groups`` in positions of ``trainable``; frozen parameters are dropped."""
    if groups is None:
        return []
    if isinstance(groups, list):
        positions = {parameter: index for index, parameter in enumerate(trainable)}
        return [[positions[p] for p in group if p in positions] for group in groups]
    # Ranks may hold their parameters in different orders: rank 0's counts.
    by_name = {names[parameter]: index for index, parameter in enumerate(trainable)}
    order: list[str] = broadcast_object(list(by_name), 0, "DistributedOptimizer.groups")
    return split_list([by_name[name] for name in order if name in by_name], groups)
