"""``DistributedOptimizer``: an optimizer whose gradients are exchanged while the backward pass still
computes."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from horovod.collectives.ops import Adasum, Average, Sum
from horovod.errors import InvalidArgumentError
from horovod.gradients.compression import NoneCompressor
from horovod.gradients.exchange import GradientExchange
from horovod.gradients.groups import Groups, split_list
from horovod.gradients.settings import GradientSettings, chosen_groups
from horovod.runtime import lifecycle
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.torch.adasum_optimizer import _DistributedAdasumOptimizer
from horovod.torch.autograd import collectives
from horovod.torch.functions import broadcast_object
from horovod.torch.grad_scaler import exchange_before_unscaling
from horovod.torch.gradients import Gradients
from horovod.torch.parameter_names import ParameterNames, find_duplicates
from horovod.torch.shared_gradients import SharedGradients
from horovod.torch.wrapped_optimizer import SetReference, WrappedOptimizer, outside_graphs, subclass_of

__all__ = ["DistributedOptimizer"]

Hook = Callable[[Any], None]


class _DistributedOptimizer(WrappedOptimizer):
    """Base that ``DistributedOptimizer`` puts before the class of the wrapped optimizer.

    Gradients go through four stages: accumulated on this rank; handed over while ``backward()`` still runs;
    exchanged, after :meth:`synchronize`; used by :meth:`step`. Hooks of the user have a place in each: see
    :meth:`register_gradient_hook`, :meth:`register_synchronize_pre_hook`,
    :meth:`register_synchronize_post_hook`, and for the last one PyTorch's ``register_step_pre_hook``.

    With a ``torch.amp.GradScaler``: ``scaler.step(optimizer)`` and ``scaler.unscale_(optimizer)`` exchange
    the scaled gradients before the scaler looks at them, so all ranks see the same infinities and skip the
    same steps.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
        settings: GradientSettings,
        groups: Any,
    ) -> None:
        self._should_synchronize = True
        self._synchronized = False
        self._for_scaler = False
        self._in_closure = False
        self._gradient_hooks: dict[int, Hook] = OrderedDict()
        self._synchronize_pre_hooks: dict[int, Hook] = OrderedDict()
        self._synchronize_post_hooks: dict[int, Hook] = OrderedDict()
        self._take_over(optimizer, named_parameters)
        settings = replace(settings, groups=groups)  # which are looked at after the names
        self.op = settings.op
        self.gradient_predivide_factor = settings.gradient_predivide_factor
        self.sparse_as_dense = settings.sparse_as_dense
        self.process_set = settings.process_set
        self._compression = settings.compression
        self._passes = settings.backward_passes_per_step
        self._groups = _lists_of_parameters(settings.groups)

        if lifecycle.current().alone or not self.process_set.included():
            return
        self._parameters, frozen = self._watched()
        indices = _group_indices(settings.groups, self._parameters, self._names, self.process_set)
        self._groups = [[self._parameters[index] for index in group] for group in indices] or None
        # A gradient that is scaled before the reduction is copied anyway.
        scaled = self.gradient_predivide_factor != 1.0
        shared = None if scaled else SharedGradients(lifecycle.current().config.shared_gradients)
        exchange = GradientExchange(
            collectives,
            Gradients(self._parameters, self.process_set, shared),
            [self._names.of_exchange(parameter) for parameter in self._parameters],
            settings,
            indices,
        )
        self._watch(exchange, frozen, shared)
        exchange_before_unscaling()

    def _replace(self, index: int, parameter: torch.Tensor) -> None:
        old = self._parameters[index]
        for group in self._groups or ():
            group[:] = [parameter if each is old else each for each in group]
        super()._replace(index, parameter)

    def _remove(self, index: int) -> None:
        old = self._parameters[index]
        for group in self._groups or ():
            group[:] = [each for each in group if each is not old]
        super()._remove(index)

    def _arguments(self) -> dict[str, Any]:
        return {
            **super()._arguments(),
            "compression": self._compression,
            "op": self.op,
            "gradient_predivide_factor": self.gradient_predivide_factor,
            "groups": self._groups,
            "sparse_as_dense": self.sparse_as_dense,
            "process_set": SetReference(self.process_set),
        }

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a state of this optimizer or of the wrapped class. Drops gradients in flight, and starts
        counting backward passes anew."""
        if self._exchange is not None:
            self._exchange.reset()
        self._synchronized = False
        super().load_state_dict(*args, **kwargs)

    @staticmethod
    def find_duplicates(lst: Iterable[Any]) -> set[Any]:
        """The elements that occur more than once."""
        return find_duplicates(lst)

    # -- hooks ----------------------------------------------------------------------------------------------

    def register_gradient_hook(self, hook: Callable[[torch.Tensor], None]) -> RemovableHandle:
        """Call ``hook(parameter)`` when the gradient of a parameter is complete on this rank (all
        ``backward_passes_per_step`` of them), right before it is exchanged, usually during ``backward()``.

        The hook may change ``parameter.grad``, for example clip it locally. Returns a handle with
        ``remove()``.
        """
        return self._register(self._gradient_hooks, hook)

    def register_synchronize_pre_hook(self, hook: Callable[[Any], None]) -> RemovableHandle:
        """Call ``hook(optimizer)`` in every :meth:`synchronize` before any gradient is exchanged: it sees the
        local gradients of all parameters together.

        While there is such a hook nothing is exchanged during ``backward()``. Returns a handle with
        ``remove()``.
        """
        return self._register(self._synchronize_pre_hooks, hook)

    def register_synchronize_post_hook(self, hook: Callable[[Any], None]) -> RemovableHandle:
        """Call ``hook(optimizer)`` in every :meth:`synchronize` once the gradients have been exchanged,
        before :meth:`step` uses them: the place for clipping by the global norm. Returns a handle with
        ``remove()``.

        Also called in a world of one and on ranks outside of the process set, with their local gradients.
        """
        return self._register(self._synchronize_post_hooks, hook)

    def _register(self, hooks: dict[int, Hook], hook: Hook) -> RemovableHandle:
        handle = _Registration(hooks, self)
        hooks[handle.id] = hook
        self._place_hooks()
        return handle

    def _place_hooks(self) -> None:
        """Tell the exchange which hooks there are now."""
        if self._exchange is None:
            return
        parameters, hooks = self._parameters, self._gradient_hooks

        def prepare(index: int, _: torch.Tensor) -> torch.Tensor | None:
            for hook in tuple(hooks.values()):
                hook(parameters[index])
            return parameters[index].grad

        self._exchange.hold(prepare if hooks else None, deferred=bool(self._synchronize_pre_hooks))

    def _allreduce_grad_async(self, p: torch.Tensor) -> tuple[int, Any]:
        """Begin to reduce the gradient of the parameter ``p`` at once, for scripts that reduce by themselves;
        :meth:`step` knows nothing of it.

        Returns:
            A handle, and what the compression has to remember: ``decompress(synchronize(handle), context)``
            is the reduced gradient. Without compression it is in ``p.grad`` as well.

        Raises:
            ValueError: this gradient is being reduced already; or it cannot be, see ``allreduce``.
        """
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        small, context = self._compression.compress(p.grad)
        factor = self.gradient_predivide_factor
        name = self._names.of_exchange(p)
        handle = collectives.allreduce(small, small, name, self.op, 1.0 / factor, factor, self.process_set)
        return handle, context

    # -- the exchange ---------------------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Exchange what has not been exchanged yet and wait: afterwards every ``.grad`` holds the reduced
        gradient.

        A parameter that has a gradient on no rank has none afterwards.

        Raises:
            GradientChangedError: a gradient was changed after ``backward()`` had handed it over.
            HorovodInternalError: an exchange failed; the gradients are then unspecified.
        """
        exchange = self._exchange
        if exchange is not None:
            if self._synchronize_pre_hooks:
                _call(self._synchronize_pre_hooks, self)
            self._finish_exchange()
            self._synchronized = True
        else:
            self._call_local_hooks()
        if self._synchronize_post_hooks:
            _call(self._synchronize_post_hooks, self)

    def _call_local_hooks(self) -> None:
        if self._gradient_hooks:
            for parameter in self._watched()[0]:
                if parameter.grad is not None:
                    _call(self._gradient_hooks, parameter)
        _call(self._synchronize_pre_hooks, self)

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

        With a ``closure``, which an optimizer may call several times, the exchange comes at the end of each
        call instead, so that the optimizer only ever sees exchanged gradients; a number that the closure
        returns (the loss) is reduced as well, as ``LBFGS`` decides by it. So all ranks take the same
        decisions and stay equal. All ranks pass a closure, or none does.
        """
        self._look_at_replicas()
        if self._should_synchronize:
            if closure is not None and self._exchange is not None:
                return self._step_with(closure, self._exchange)
            if self._for_scaler and (self._exchange is None or not self._exchange.in_flight):
                pass  # done when the scaler asked, see _finish_for_scaler
            else:
                if self._synchronized and self._exchange is not None and not self._exchange.in_flight:
                    _warn_of_second_exchange(stacklevel=3)
                self.synchronize()
        self._synchronized = self._for_scaler = False
        return super().step(closure)

    # Step hooks of the user run once, in the step of the wrapped class: they see the exchanged gradients.
    step.hooked = True  # type: ignore[attr-defined]

    def _step_with(self, closure: Callable[[], Any], exchange: GradientExchange[torch.Tensor]) -> Any:
        # Whether the user called synchronize() before, and nothing has been computed since.
        done_before = self._synchronized and not exchange.in_flight

        def exchanged() -> Any:
            nonlocal done_before
            self._synchronized = False
            self._in_closure = True
            try:
                loss = closure()
            finally:
                self._in_closure = False
            if self._synchronized and not exchange.in_flight:
                return self._reduced_loss(loss)()  # the closure did it, to clip for example
            if done_before and not exchange.in_flight:
                _warn_of_second_exchange(stacklevel=4)
            done_before = False
            wait = self._reduced_loss(loss)
            self.synchronize()
            return wait()

        try:
            return super().step(exchanged)
        finally:
            self._synchronized = self._for_scaler = False

    @outside_graphs
    def _reduced_loss(self, loss: Any) -> Callable[[], Any]:
        """Begin to reduce ``loss`` like the gradients. Returns a function that waits for the result. A
        ``loss`` that is no number stays as it is."""
        number: Any
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.dtype.is_floating_point:
            number = loss.detach().clone()
        elif isinstance(loss, float):
            number = torch.tensor(loss, dtype=torch.float64, device="cpu")
        else:
            return lambda: loss
        op = Sum if self.op == Sum else Average
        handle = collectives.allreduce(
            number, number, "DistributedOptimizer.closure_loss", op, process_set=self.process_set
        )

        def wait() -> Any:
            collectives.synchronize(handle)
            return number if isinstance(loss, torch.Tensor) else number.item()

        return wait

    def _finish_for_scaler(self) -> None:
        """A ``GradScaler`` is about to look at the gradients: it must not scale what is still being reduced,
        and must find the same infinities on all ranks."""
        exchange = self._exchange
        if exchange is not None and self._should_synchronize:
            if exchange.in_flight or not self._synchronized:
                self.synchronize()
            self._for_scaler = True

    def _leave_scaler(self) -> None:
        """The scaler has made the step or left it out: the next gradients are new ones, also where nothing
        tells, as they are assigned."""
        self._synchronized = self._for_scaler = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients.

        Raises:
            AssertionError: between ``backward()`` and ``step()`` or ``synchronize()``, as the exchange works
                on them.
        """
        if self._in_closure and self._exchange is not None and self._exchange.in_flight:
            # Gradients of before step(closure), which nobody will use.
            self._exchange.finish()
        self._synchronized = self._for_scaler = False
        super().zero_grad(set_to_none=set_to_none)


class _Registration(RemovableHandle):
    """A hook of one optimizer, which is told when the hook has been removed."""

    def __init__(self, hooks: dict[int, Hook], optimizer: _DistributedOptimizer) -> None:
        super().__init__(hooks)
        self._optimizer = optimizer

    def remove(self) -> None:
        super().remove()
        self._optimizer._place_hooks()


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

    The result is an instance of a subclass of the optimizer's class that has the same parameter groups, the
    same state and the same attributes. The class's constructor is not called again.

    Args:
        named_parameters: names of the parameters, equal on all ranks; by default made from their positions.
            Optimizers whose gradients are in flight at the same time need different names.
        compression: around the reduction of each dense gradient: one of ``Compression``, or a class of your
            own (see ``horovod.torch.compression.Compressor``).
        backward_passes_per_step: gradients of so many backward passes are summed (not averaged) locally, then
            reduced over the ranks.
        op: reduction of dense gradients over the ranks. With ``Adasum`` and more than one rank, the steps
            that the wrapped optimizer takes on each rank are combined instead of the gradients; then only
            ``named_parameters``, ``compression`` and ``backward_passes_per_step`` have an effect.
        gradient_predivide_factor: with ``Average``, divide by this before the sum and by the rest after it.
        num_groups: deprecated, use ``groups``.
        groups: a number of groups to cut the parameters into, or lists of parameters; the gradients of a
            group are reduced as one operation. By default the engine decides what travels together.
        sparse_as_dense: reduce sparse gradients as dense ones.
        process_set: ranks whose gradients are combined.

    Raises:
        ValueError: an argument is wrong (see each message), or ``init()`` has not been called.
        NotImplementedError: ``Adasum`` on a process set, or with a number of ranks that is no power of two.
    """
    _check_optimizer(optimizer)
    settings = GradientSettings.of(locals(), groups=None)
    groups = chosen_groups(num_groups, groups)
    if op == Adasum and lifecycle.current().topology.size > 1:
        if process_set is not global_process_set:
            raise NotImplementedError("Adasum does not support non-global process sets.")
        delta = subclass_of(_DistributedAdasumOptimizer, type(optimizer), DistributedOptimizer)
        combined: _DistributedOptimizer = delta(optimizer, named_parameters, settings)
        return combined
    distributed = subclass_of(_DistributedOptimizer, type(optimizer), DistributedOptimizer)
    instance: _DistributedOptimizer = distributed(optimizer, named_parameters, settings, groups)
    return instance


def _check_optimizer(given: Any) -> None:
    """Refuse what is no optimizer.

    Raises:
        ValueError: with the line to write.
    """
    if isinstance(given, torch.optim.Optimizer) or hasattr(given, "param_groups"):
        return
    is_model = isinstance(given, torch.nn.Module)
    wanted = "wrap the optimizer, not the model" if is_model else "it wraps an optimizer of PyTorch"
    raise InvalidArgumentError(
        f"DistributedOptimizer got {_kind_of(given)}: {wanted}. Write optimizer = "
        "hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), "
        "named_parameters=model.named_parameters())"
    )


def _kind_of(given: Any) -> str:
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return repr(given) if isinstance(given, str) else f"a {type(given).__name__}"


def _call(hooks: dict[int, Hook], argument: Any) -> None:
    for hook in tuple(hooks.values()):
        hook(argument)


def _warn_of_second_exchange(stacklevel: int) -> None:
    warnings.warn(
        "optimizer.step() called without optimizer.skip_synchronize() context after "
        "optimizer.synchronize(): the gradients are exchanged twice. Use "
        "`with optimizer.skip_synchronize(): optimizer.step()` after optimizer.synchronize().",
        stacklevel=stacklevel,
    )


def _lists_of_parameters(groups: Groups) -> list[list[torch.Tensor]] | None:
    """``groups`` if they are lists.

    Raises:
        ValueError: of something else than tensors.
    """
    if not isinstance(groups, list):
        return None
    if not all(isinstance(p, torch.Tensor) for group in groups for p in group):
        raise InvalidArgumentError("groups must be lists of parameters (torch.Tensor).")
    return groups


def _group_indices(
    groups: Groups,
    trainable: list[torch.Tensor],
    names: ParameterNames,
    process_set: ProcessSet,
) -> list[list[int]]:
    """``groups`` in positions of ``trainable``; frozen parameters are dropped."""
    if groups is None:
        return []
    if isinstance(groups, list):
        positions = {parameter: index for index, parameter in enumerate(trainable)}
        return [[positions[p] for p in group if p in positions] for group in groups]
    # Ranks may hold their parameters in different orders: that of the set's first rank counts.
    by_name = {names.of_exchange(parameter): index for index, parameter in enumerate(trainable)}
    root = (process_set.ranks or [0])[0]
    order: list[str] = broadcast_object(list(by_name), root, "DistributedOptimizer.groups", process_set)
    return split_list([by_name[name] for name in order if name in by_name], groups)
