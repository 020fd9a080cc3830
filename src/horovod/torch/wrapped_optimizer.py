"""Base of both kinds of distributed optimizer: they are instances of a subclass of the wrapped optimizer's
class, watch its parameters, and count backward passes.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any, ClassVar, TypeVar, cast

import torch

from horovod.errors import DuplicateNameError, InvalidArgumentError
from horovod.gradients.exchange import GradientExchange
from horovod.gradients.replicas import Replicas
from horovod.runtime.process_set import ProcessSet, global_process_set
from horovod.torch.instances import Plain, attributes_of, slots_of
from horovod.torch.parameter_names import ParameterNames
from horovod.torch.replicas import replicas_of, watch_original
from horovod.torch.shared_gradients import SharedGradients

__all__ = ["WrappedOptimizer", "outside_graphs", "subclass_of"]

F = TypeVar("F", bound=Callable[..., Any])


def outside_graphs(method: F) -> F:
    """Keep ``torch.compile`` from tracing ``method``: a compiled step leaves its graph for the exchange. The
    public decorator would load the compiler at once; this one loads it in the first call, as PyTorch's own
    optimizers do."""
    disable = getattr(torch, "_disable_dynamo", None)
    return method if disable is None else cast(F, disable(method))


class WrappedOptimizer(torch.optim.Optimizer):
    """Base of the classes that are put before the class of the wrapped optimizer."""

    _wrapped_class: ClassVar[type[torch.optim.Optimizer]]
    _wrapped_step: ClassVar[Callable[..., Any]]
    _make: ClassVar[Callable[..., torch.optim.Optimizer]]
    """Wraps an optimizer again, with the arguments that ``_arguments`` returns."""

    _exchange: GradientExchange[torch.Tensor] | None = None
    _names: ParameterNames
    _parameters: list[torch.Tensor]
    """Parameters that are exchanged; the numbers of the exchange are positions in this list."""
    _bring: Callable[[int, torch.Tensor], torch.Tensor] | None = None
    _frozen: list[torch.Tensor]
    """Parameters that will be exchanged once they require gradients."""
    _layout: list[list[torch.Tensor]]
    """Content of ``param_groups`` at the last exchange."""
    _passes: int
    process_set: ProcessSet
    _replicas: Replicas | None = None
    _original: Callable[[], Any]
    """A weak reference to what was wrapped."""
    _replaced_step: Callable[..., Any] | None = None
    """A function that somebody has put in the place of ``step`` of the original. It works on the groups and
    the state, which both share."""
    _of_wrapper: frozenset[str]
    """Names of the attributes that the wrapped class does not have."""

    # -- construction ---------------------------------------------------------------------------------------

    def _take_over(
        self, optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
    ) -> None:
        """Become an optimizer that holds what ``optimizer`` holds, the same objects: parameter groups, state,
        hooks of the user and whatever its class keeps. Its constructor is not called: it may want more than
        parameters."""
        names = ParameterNames(optimizer, named_parameters)
        # Some classes do not call the constructor of PyTorch's base class. It would have made these.
        torch.optim.Optimizer.__setstate__(self, {"defaults": {}})
        held = attributes_of(optimizer, self)
        step = held.pop("step", None)
        vars(self).update(held)
        for name, value in slots_of(optimizer):
            setattr(self, name, value)
        if getattr(step, "__wrapped__", None) is type(optimizer).step:
            # A scheduler that was made for the original looks there for steps.
            optimizer._opt_called = True  # type: ignore[attr-defined]
        elif step is not None:
            self._replaced_step = step
        self._original = weakref.ref(optimizer)
        self._names = names
        self._parameter_names = names.by_parameter
        self._parameters = []
        self._frozen = []
        self._layout = [list(group["params"]) for group in self.param_groups]

    def _watched(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The parameters that require gradients, and the others."""
        everything = [parameter for group in self.param_groups for parameter in group["params"]]
        return [p for p in everything if p.requires_grad], [p for p in everything if not p.requires_grad]

    def _watch(
        self,
        exchange: GradientExchange[torch.Tensor],
        frozen: list[torch.Tensor],
        shared: SharedGradients | None = None,
    ) -> None:
        """Hand the gradients of ``self._parameters`` to ``exchange`` from now on."""
        self._exchange = exchange
        self._replicas = exchange.replicas = replicas_of(self, "DistributedOptimizer", self.process_set)
        watch_original(self._original(), self, self._replicas)
        self._frozen = frozen
        self._bring = shared.bring if shared is not None and shared.always else None
        self._hooks = [self._hook_of(index) for index in range(len(self._parameters))]
        # Parameters may outlive the optimizer. Without the optimizer nobody waits for their gradients.
        weakref.finalize(self, _remove_all, self._hooks).atexit = False

    def _add_to_exchange(self, parameters: Iterable[torch.Tensor]) -> None:
        assert self._exchange is not None
        for parameter in parameters:
            self._parameters.append(parameter)  # the store of the exchange looks there
            index = self._exchange.add(self._names.of_exchange(parameter))
            self._hooks.append(self._hook_of(index))

    def _hook_of(self, index: int) -> Any:
        """Hand over the gradient of that parameter as soon as it is there. One that does not require
        gradients cannot: it is looked at before the step."""
        assert self._exchange is not None
        parameter = self._parameters[index]
        if not parameter.requires_grad:
            return None
        name = self._names.of_exchange(parameter)
        return parameter.register_post_accumulate_grad_hook(_hook(self._exchange, index, name, self._bring))

    @outside_graphs
    def _look_at_replicas(self) -> None:
        if self._replicas is not None:
            self._replicas.look()

    @outside_graphs
    def _finish_exchange(self) -> None:
        """Exchange the gradients of all that stands in ``param_groups``."""
        exchange = self._exchange
        assert exchange is not None
        if self._frozen:
            self._add_unfrozen()
        exchange.finish()
        if _differs(self._layout, self.param_groups) and (fresh := self._follow_groups()):
            exchange.finish(only=fresh)

    def _add_unfrozen(self) -> None:
        """Begin to exchange parameters that were frozen when they were added. Ranks need no message for this
        if they unfreeze the same layers before the same step."""
        unfrozen = [parameter for parameter in self._frozen if _has_part(parameter)]
        if unfrozen:
            self._frozen = [parameter for parameter in self._frozen if not _has_part(parameter)]
            self._add_to_exchange(unfrozen)

    def _follow_groups(self) -> set[int]:
        """Somebody has put other parameters into ``param_groups``: exchange what stands there now. Nothing is
        in flight. All ranks make the same change before the same step.

        A parameter that stands where another one stood takes its name and its number.

        Returns:
            Numbers of the parameters whose gradients have not been exchanged yet.
        """
        before, self._layout = self._layout, [list(group["params"]) for group in self.param_groups]
        known = {parameter for group in before for parameter in group}
        gone = known.difference(*self._layout)
        number = {parameter: index for index, parameter in enumerate(self._parameters)}
        new: list[torch.Tensor] = []
        fresh: set[int] = set()
        for at, group in enumerate(self._layout):
            for position, parameter in enumerate(group):
                if parameter in known:
                    continue
                old = before[at][position] if at < len(before) and position < len(before[at]) else None
                if old is None or old not in gone:
                    self._names.add(at, position, parameter)
                    new.append(parameter)
                    continue
                gone.remove(old)
                self._names.replace(old, parameter)
                self._frozen = [each for each in self._frozen if each is not old]
                index = number.get(old)
                if index is None:
                    new.append(parameter)
                else:
                    self._replace(index, parameter)
                    fresh.add(index)
        for parameter in gone:
            self._frozen = [each for each in self._frozen if each is not parameter]
            if parameter in number:
                self._remove(number[parameter])
        fresh.update(range(len(self._parameters), len(self._parameters) + sum(map(_has_part, new))))
        self._add_to_exchange(filter(_has_part, new))
        self._frozen += [parameter for parameter in new if not _has_part(parameter)]
        return fresh

    def _replace(self, index: int, parameter: torch.Tensor) -> None:
        assert self._exchange is not None
        _remove_all([self._hooks[index]])
        self._parameters[index] = parameter
        self._exchange.renew(index)
        self._hooks[index] = self._hook_of(index)

    def _remove(self, index: int) -> None:
        assert self._exchange is not None
        _remove_all([self._hooks[index]])
        self._parameters[index] = torch.empty(0)  # the number stays; the parameter need not
        self._exchange.remove(index)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters; their gradients are exchanged from now on. All ranks add the same ones between the
        same two steps.

        Raises:
            ValueError: the optimizer was made with ``named_parameters``, and a new parameter is not among
                them.
        """
        super().add_param_group(param_group)
        parameters = self.param_groups[-1]["params"]
        try:
            self._names.add_group(len(self.param_groups) - 1, parameters)
            if self._exchange is not None:
                self._add_to_exchange(p for p in parameters if p.requires_grad)
        except InvalidArgumentError:
            del self.param_groups[-1]
            raise
        self._layout.append(list(parameters))
        if self._exchange is not None:
            self._frozen.extend(p for p in parameters if not p.requires_grad)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a state of this optimizer or of the wrapped class. The list of groups and the state stay the
        same objects: the original has them as well, and with it a scheduler that was made before."""
        own = vars(self)
        groups, state = own.get("param_groups"), own.get("state")
        super().load_state_dict(*args, **kwargs)
        if groups is not None and own["param_groups"] is not groups:
            groups[:] = own["param_groups"]
            own["param_groups"] = groups
        if state is not None and own["state"] is not state:
            loaded = own["state"]
            state.clear()
            state.update(loaded)
            own["state"] = state

    # -- passes ---------------------------------------------------------------------------------------------

    @property
    def backward_passes_per_step(self) -> int:
        return self._passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are summed locally before one exchange; starts counting anew."""
        self._passes = passes
        if self._exchange is not None:
            self._exchange.expect(passes)

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

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The step of the original, on this rank."""
        step = self._replaced_step
        return self._wrapped_step(closure) if step is None else step(closure)

    # -- copies ---------------------------------------------------------------------------------------------

    def _arguments(self) -> dict[str, Any]:
        """Arguments to wrap a copy of the original in the same way, without talking to other ranks."""
        return {
            "named_parameters": [(name, p) for p, name in self._names.by_parameter.items()]
            if self._names.given
            else None,
            "backward_passes_per_step": self._passes,
        }

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """For ``copy.deepcopy`` and ``pickle``: a copy is wrapped in the same way and exchanges the gradients
        of its own parameters. Like those of any PyTorch optimizer, copies have no hooks of the user; unlike
        those, they keep the other attributes of a class of the user."""
        kind = type(self)
        return _again, (kind._make, Plain(self, kind._wrapped_class, self._of_wrapper), self._arguments())


def _has_part(parameter: torch.Tensor) -> bool:
    """Return whether there may be a gradient to exchange, also one that was assigned."""
    return parameter.requires_grad or parameter.grad is not None


def _differs(layout: list[list[torch.Tensor]], groups: list[dict[str, Any]]) -> bool:
    """Return whether other parameters stand in ``groups`` than in ``layout``, or elsewhere."""
    if len(layout) != len(groups):
        return True
    for known, group in zip(layout, groups, strict=True):
        parameters = group["params"]
        if len(parameters) != len(known) or not all(map(is_, parameters, known)):
            return True
    return False


class SetReference:
    """A process set as an argument of a copy: within one process the same object, not a copy of it."""

    def __init__(self, process_set: ProcessSet) -> None:
        self.process_set = process_set

    def __deepcopy__(self, memo: Any) -> SetReference:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.process_set is global_process_set:
            return _global_reference, ()
        return SetReference, (self.process_set,)


def _global_reference() -> SetReference:
    return SetReference(global_process_set)


def subclass_of(
    wrapper: type[WrappedOptimizer],
    wrapped: type[torch.optim.Optimizer],
    make: Callable[..., torch.optim.Optimizer],
) -> Any:
    """A class that puts ``wrapper`` before ``wrapped``, named like the latter.

    Raises:
        ValueError: ``wrapped`` is such a class already.
    """
    if issubclass(wrapped, WrappedOptimizer):
        raise InvalidArgumentError(
            f"This {wrapped.__name__} is a DistributedOptimizer already; its gradients are exchanged once. "
            "Pass the plain optimizer."
        )
    # Some only look like optimizers of PyTorch; what they lack comes from there.
    last = () if issubclass(wrapped, torch.optim.Optimizer) else (torch.optim.Optimizer,)
    wrapped_step: Any = wrapped.step
    attributes = {
        "__module__": wrapper.__module__,
        "__init__": _constructor(wrapper),
        "_wrapped_class": wrapped,
        "_wrapped_step": wrapped_step
        if getattr(wrapped_step, "hooked", False)
        else torch.optim.Optimizer.profile_hook_step(wrapped_step),  # its constructor has not done that
        "_make": staticmethod(make),
    }
    return type(wrapped.__name__, (wrapper, wrapped, *last), attributes)


def _constructor(wrapper: type[WrappedOptimizer]) -> Callable[..., None]:
    """Make the class of ``wrapper``, which then knows its own attributes from those of the wrapped class.

    Raises:
        ValueError: an attribute is needed by both.
    """
    classes = wrapper.__mro__[: wrapper.__mro__.index(torch.optim.Optimizer)]
    of_classes = {name for kind in classes for name in (*vars(kind), *vars(kind).get("__annotations__", ()))}
    of_classes -= {*dir(torch.optim.Optimizer)}

    def construct(self: Any, optimizer: Any, *arguments: Any) -> None:
        given = {name: value for name, value in vars(optimizer).items() if name != "step"}
        wrapper.__init__(self, optimizer, *arguments)
        now = vars(self)
        both = [
            name
            for name, value in given.items()
            if name in of_classes
            or (now[name] is not value and not isinstance(value, types.MethodType) and name != "_opt_called")
        ]
        if both:
            raise InvalidArgumentError(
                f"{type(optimizer).__name__} keeps something under the name {both[0]}, which a distributed "
                "optimizer needs for itself. Rename this attribute in the class."
            )
        self._of_wrapper = frozenset(now.keys() - given.keys()) | of_classes

    return construct


def local_step(optimizer: torch.optim.Optimizer) -> None:
    """The step of the wrapped class, without an exchange and without the user's step hooks."""
    if (replaced := cast(Any, optimizer)._replaced_step) is not None:
        replaced()
        return
    step = cast(Any, type(optimizer))._wrapped_class.step
    if getattr(step, "hooked", False):
        step = getattr(step, "__wrapped__", step)
    step(optimizer)


def _again(
    make: Callable[..., torch.optim.Optimizer], plain: torch.optim.Optimizer, arguments: dict[str, Any]
) -> torch.optim.Optimizer:
    arguments = copy.copy(arguments)
    process_set = arguments.pop("process_set", None)
    if process_set is not None:
        arguments["process_set"] = process_set.process_set
    return make(plain, **arguments)


def _hook(
    exchange: GradientExchange[torch.Tensor],
    index: int,
    name: str,
    bring: Callable[[int, torch.Tensor], torch.Tensor] | None,
) -> Callable[[torch.Tensor], None]:
    """The function that a parameter calls when its gradient has been accumulated. ``bring`` puts the gradient
    into shared memory first."""
    ready = exchange.ready

    def hook(parameter: torch.Tensor) -> None:
        try:
            ready(index, parameter.grad)  # type: ignore[arg-type]
        except (AssertionError, DuplicateNameError) as error:
            raise _explained(error, parameter, name) from error

    def hook_of_shared(parameter: torch.Tensor) -> None:
        try:
            ready(index, bring(index, parameter))  # type: ignore[misc]
        except (AssertionError, DuplicateNameError) as error:
            raise _explained(error, parameter, name) from error

    return hook if bring is None else hook_of_shared


def _explained(error: Exception, parameter: torch.Tensor, name: str) -> Exception:
    """``error``, or one of its class that says more: a gradient that comes too often may do so because two
    optimizers of the script watch the parameter."""
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    if sum(getattr(hook, "__module__", None) == __name__ for hook in hooks.values()) < 2:
        return error
    return type(error)(
        f"Two distributed optimizers have the parameter {name}, and both exchange its gradient after each "
        "backward(). Keep one of them: delete the other (del optimizer, and whatever else refers to it, such "
        "as a scheduler) before backward()."
    )


def _remove_all(hooks: list[Any]) -> None:
    for hook in hooks:
        if hook is not None:
            hook.remove()
