"""``DistributedOptimizer`` for Keras 3: a subclass of the class of the given optimizer that reduces gradients
on their way into ``apply``, the one place that all trainers and loops go through."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from horovod._keras.classes import has_lost, shown_as_distributed
from horovod._keras.frameworks import Framework
from horovod.collectives.ops import Sum
from horovod.errors import InvalidArgumentError
from horovod.gradients.accumulation import Accumulator
from horovod.gradients.reduction import PartialReduction, stays_local
from horovod.gradients.settings import GradientSettings
from horovod.gradients.variables import VariableSet, keep_apart
from horovod.runtime import lifecycle

__all__ = ["CallableList", "distributed", "is_distributed"]

_Wrapped: Any = object  # the class of the given optimizer comes behind


class CallableList(list[Any]):
    """A list that may be called for itself: ``optimizer.variables`` was a method once."""

    def __call__(self) -> CallableList:
        return self


def is_distributed(optimizer: Any) -> bool:
    """Return whether ``optimizer`` reduces gradients. The name of its class does not tell: it is the wrapped
    one's, so that saved models load without Horovod.
    """
    return getattr(optimizer, "_horovod_settings", None) is not None


def distributed(optimizer: Any, framework: Framework, settings: GradientSettings) -> Any:
    """A distributed optimizer like ``optimizer``, with its state.

    If its class cannot be made again from ``get_config()``, or something gets lost that way, ``optimizer``
    itself becomes distributed.

    Raises:
        ValueError: it is distributed already, accumulates gradients itself as well, or is loss scaling around
            one whose average of weights would begin wrong.
    """
    if is_distributed(optimizer):
        raise InvalidArgumentError(f"The optimizer {optimizer.name} is distributed already.")
    if settings.backward_passes_per_step > 1 and optimizer.gradient_accumulation_steps:
        raise InvalidArgumentError(
            f"The optimizer {optimizer.name} has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}, which reduces after every pass. Use either that or "
            "backward_passes_per_step."
        )
    counting = _counting(optimizer)
    if settings.backward_passes_per_step > 1 and counting is not optimizer and counting.use_ema:
        raise InvalidArgumentError(
            f"{counting.name} within {optimizer.name} averages weights (use_ema), and would begin with "
            "zeros where backward_passes_per_step > 1. Put the loss scaling around the distributed "
            "optimizer: keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(...))."
        )
    kind = _subclass(type(optimizer), framework, settings)
    made = _made_again(optimizer, kind)
    if made is None:
        optimizer.__class__ = kind
        optimizer._begin()
        return optimizer
    # Own variables come last, see `build`.
    for own, given in zip(made._shared_variables(), optimizer.variables, strict=optimizer.built):
        own.assign(given)
    return made


def _made_again(optimizer: Any, kind: type) -> Any | None:
    """An optimizer of class ``kind`` by the configuration of ``optimizer``, for the same variables; ``None``
    if that does not tell all: a class of the user may keep what its ``get_config()`` leaves out."""
    try:
        made: Any = kind.from_config(optimizer.get_config())  # type: ignore[attr-defined]
    except (TypeError, ValueError, NotImplementedError):
        return None
    for name, value in vars(optimizer).items():
        if name.startswith("_exclude_from_weight_decay"):  # no part of the configuration
            setattr(made, name, value)
    if optimizer.built:
        made.build(list(optimizer._trainable_variables))
    return None if has_lost(optimizer, made) else made


class _DistributedOptimizer(_Wrapped):  # type: ignore[misc]
    """Base that comes before the class of the wrapped optimizer.

    Attributes:
        _horovod_settings: of the class.
        _framework: of the class.
    """

    _horovod_settings: GradientSettings
    _framework: Framework
    _reduction: PartialReduction | None = None  # until `_begin`
    _reduces = True  # not so if the loss scaling around this optimizer does
    _gave_reduced: VariableSet | None = None  # whose gradients were computed here since the last update
    _counts_updates = False  # `iterations` are those of updates for a moment, not of passes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin()

    def _begin(self) -> None:
        settings, framework = self._horovod_settings, self._framework
        self._agg_helper: _Accumulator | None = None
        self._reduction = framework.reduction(settings)
        if self.built:
            self._add_accumulator(list(self._trainable_variables))

    def __repr__(self) -> str:
        return shown_as_distributed(super().__repr__())

    # -- what scripts call ----------------------------------------------------------------------------------

    def register_local_var(self, var: Any) -> None:
        """Do not reduce the gradient of ``var`` from now on."""
        assert self._reduction is not None
        self._reduction.register(var)

    @property
    def variables(self) -> CallableList:
        return CallableList(super().variables)

    def save_own_variables(self, store: Any) -> None:
        """Without the sums of a step that is not finished: the file loads into the wrapped class as well."""
        for index, variable in enumerate(self._shared_variables()):
            store[str(index)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        shared = self._shared_variables()
        if len(store.keys()) != len(shared):
            super().load_own_variables(store)  # says what is wrong
            return
        for index, variable in enumerate(shared):
            variable.assign(store[str(index)])

    # -- names of Keras 2 -----------------------------------------------------------------------------------

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        """Reduced gradients with their variables, on TensorFlow. :meth:`apply_gradients` takes these
        gradients as they are. What is computed from them (clipped ones) it reduces again, which leaves
        averages alone; it refuses the others.

        With ``backward_passes_per_step`` they are those of this rank: sums are reduced, in
        :meth:`apply_gradients`.

        Args:
            loss: a function without arguments; or a tensor, in a graph or with the ``tape`` that saw it.
            var_list: variables, or a function that returns them.
            grad_loss: the gradient of ``loss`` itself, by default ones.

        Raises:
            ValueError: a tensor in eager mode, without ``tape``; Keras computes with another framework.
        """
        own = getattr(super(), "_compute_gradients", None)  # Keras has none, but a class of the user may
        if own is None:
            variables = list(var_list() if callable(var_list) else var_list)
            gradients = self._framework.gradients(loss, variables, grad_loss, tape)
        else:
            pairs = list(own(loss, var_list, grad_loss, tape))
            gradients, variables = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return list(zip(self._given_out(gradients, variables), variables, strict=True))

    def _given_out(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """``gradients`` as a script gets them that asks for them before the update."""
        if self._reduces and self._horovod_settings.backward_passes_per_step == 1:
            gradients = self._reduced(gradients, variables, self._come_reduced(gradients))
            self._framework.note_reduced(gradients)
            self._gave_reduced = VariableSet(variables)
        return gradients

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """The gradients of :meth:`_compute_gradients`, of a ``loss`` in a graph."""
        own = getattr(super(), "get_gradients", None)  # Keras has none, but a class of the user may
        if own is None:
            return [gradient for gradient, _ in self._compute_gradients(loss, params)]
        return self._given_out(list(own(loss, params)), list(params))

    # -- where gradients go in ------------------------------------------------------------------------------

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Reduce ``grads`` over the ranks, then update; see ``keras.optimizers.Optimizer.apply``."""
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if not (self._reduces and grads and (self.built or trainable_variables)):
            super().apply(grads, trainable_variables)
            return
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        if self._horovod_settings.backward_passes_per_step == 1:
            come_reduced = self._come_reduced(grads)
            self._refuse_changed(grads, variables, come_reduced)
            super().apply(self._reduced(grads, variables, come_reduced), trainable_variables)
        else:
            self._accumulate(grads, variables)

    def stateless_apply(
        self, optimizer_variables: list[Any], grads: list[Any], trainable_variables: list[Any]
    ) -> Any:
        """See ``keras.optimizers.Optimizer.stateless_apply``; ends in :meth:`apply`, but for loss scaling."""
        if self._reduces and isinstance(self, keras.optimizers.LossScaleOptimizer):
            if self._horovod_settings.backward_passes_per_step > 1:
                raise InvalidArgumentError(
                    "backward_passes_per_step is not supported with loss scaling on JAX. Use a larger batch, "
                    "or the policy mixed_bfloat16, which needs no scaling."
                )
            # The variables themselves hold nothing while Keras trains on JAX.
            values = list(zip(self._trainable_variables, trainable_variables, strict=True))
            with keras.StatelessScope(state_mapping=values):
                grads = self._reduced(grads, self._trainable_variables, self._come_reduced(grads))
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _come_reduced(self, grads: Sequence[Any]) -> list[bool]:
        """Of each gradient, whether something else has reduced it."""
        return [gradient is not None and self._framework.is_reduced(gradient) for gradient in grads]

    def _refuse_changed(
        self, grads: Sequence[Any], variables: Sequence[Any], come_reduced: Sequence[bool]
    ) -> None:
        """Refuse what may be computed from gradients that were reduced here, if reducing it again would make
        other values of it: nothing tells it from gradients of this rank.

        Raises:
            ValueError: there is such a gradient.
        """
        given, self._gave_reduced = self._gave_reduced, None
        settings = self._horovod_settings
        if given is None or _keeps_own(settings):
            return
        assert self._reduction is not None
        for gradient, variable, done in zip(grads, variables, come_reduced, strict=True):
            if gradient is None or done or variable not in given:
                continue
            local = variable in self._reduction.local
            if settings.scale_local_gradients if local else settings.op == Sum:
                raise InvalidArgumentError(
                    f"This gradient of {variable.name} is not the one that the optimizer has computed "
                    f"and reduced. If it was made from that, as by clipping, it would be "
                    f"{'divided' if local else 'summed over the ranks'} a second time. Let the optimizer "
                    "clip (clipnorm, global_clipnorm, clipvalue), which it does after the reduction"
                    f"{'' if local else ', or use op=hvd.Average'}."
                )

    def _reduced(
        self, grads: Sequence[Any], variables: Sequence[Any], come_reduced: Sequence[bool]
    ) -> list[Any]:
        """``grads`` as the update takes them: those that ``come_reduced`` stay as they are."""
        settings, framework = self._horovod_settings, self._framework
        result = list(grads)
        if _keeps_own(settings):
            return result
        framework.refuse_compiled()
        chosen = [
            index
            for index, (variable, done) in enumerate(zip(variables, come_reduced, strict=True))
            if not _overwrites(variable) and not done
        ]
        if chosen:
            assert self._reduction is not None
            reduced = self._reduction([grads[i] for i in chosen], [variables[i] for i in chosen])
            for index, gradient in zip(chosen, reduced, strict=True):
                result[index] = gradient
        return result

    # -- several backward passes for one step ---------------------------------------------------------------

    def build(self, variables: Sequence[Any]) -> None:
        known = self.built
        super().build(variables)
        if not known and self._reduces:
            self._add_accumulator(variables)

    def _add_accumulator(self, variables: Sequence[Any]) -> None:
        """After all other variables: what was saved without them can be loaded by position."""
        if self._horovod_settings.backward_passes_per_step > 1:
            self._agg_helper = _Accumulator(self, variables)

    def _shared_variables(self) -> list[Any]:
        """The variables that the wrapped class has as well."""
        own = set() if self._agg_helper is None else {id(variable) for variable in self._agg_helper.variables}
        return [variable for variable in super().variables if id(variable) not in own]

    def _accumulate(self, grads: list[Any], variables: Sequence[Any]) -> None:
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        assert self._agg_helper is not None
        result = list(grads)
        summed = [index for index, variable in enumerate(variables) if not _overwrites(variable)]
        outcome = self._agg_helper.compute_gradients(
            [grads[index] for index in summed], [variables[index] for index in summed]
        )
        for index, gradient in zip(summed, outcome, strict=True):
            result[index] = gradient
        own_apply = super().apply

        def step() -> None:
            own_apply(result, variables)

        def only_count() -> None:
            _counting(self)._iterations.assign_add(1)

        everything = [*variables, *self.variables]
        self._framework.choose(self._agg_helper.complete(result), step, only_count, everything)

    @property
    def iterations(self) -> Any:
        passes = super().iterations
        if not self._counts_updates:
            return passes
        return keras.ops.floor_divide(passes, self._horovod_settings.backward_passes_per_step)

    def _update_model_variables_moving_average(self, trainable_variables: Sequence[Any]) -> None:
        """Keras begins the average with the first update, which it knows by ``iterations``."""
        self._counts_updates = True
        try:
            super()._update_model_variables_moving_average(trainable_variables)
        finally:
            self._counts_updates = False

    # -- loss scaling that Keras puts around ----------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        # The last thing a LossScaleOptimizer does to the optimizer it is put around. It calls `apply` only if
        # it finds the gradients of this rank finite, so it has to get the reduced ones, or ranks would wait
        # for each other forever.
        if name == "loss_scale_factor" and value is None and self._reduction is not None:
            scaler = sys._getframe(1).f_locals.get("self")
            if (
                isinstance(scaler, keras.optimizers.LossScaleOptimizer)
                and scaler is not self
                and scaler.inner_optimizer is self
            ):
                scaler.__class__ = _subclass(type(scaler), self._framework, self._horovod_settings)
                scaler._begin()
                scaler._reduction = self._reduction  # with the local variables
                self._reduces = False


class _Accumulator(Accumulator):
    """Sums in variables of the optimizer, which JAX carries from step to step."""

    def __init__(self, optimizer: _DistributedOptimizer, variables: Sequence[Any]) -> None:
        super().__init__(optimizer._horovod_settings, self._reduced)
        self._optimizer = optimizer
        self._framework = optimizer._framework
        self._sums = [
            optimizer.add_variable_from_reference(variable, name="accumulated_gradient")
            for variable in variables
        ]
        for total in self._sums:
            keep_apart(total)
        self._used: set[int] = set()  # which of them ever had a gradient
        # By place, whether the gradients come reduced. A graph is traced once for many passes, so it cannot
        # differ from pass to pass.
        self._come_reduced: dict[int, bool] = {}
        self.counter = optimizer.add_variable(shape=(), dtype="int32", name="passes_done")

    @property
    def variables(self) -> list[Any]:
        return [*self._sums, self.counter]

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        for gradient, variable, done in zip(grads, vars, self._optimizer._come_reduced(grads), strict=True):
            place = self._place(variable)
            if gradient is not None and self._come_reduced.setdefault(place, done) != done:
                raise InvalidArgumentError(
                    f"The gradient of the variable {variable.path} was reduced by a DistributedGradientTape "
                    "in some passes of the optimizer, and not in other passes. With backward_passes_per_step "
                    "> 1 use that tape in every pass, or in none."
                )
        return super().compute_gradients(grads, vars)

    def _reduced(self, sums: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        come_reduced = [self._come_reduced.get(self._place(variable), False) for variable in variables]
        return self._optimizer._reduced(sums, variables, come_reduced)

    def _place(self, variable: Any) -> int:
        place: int = self._optimizer._get_variable_index(variable)
        return place

    def sums_of(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        places = [self._place(variable) for variable in variables]
        self._used.update(place for place, each in zip(places, gradients, strict=True) if each is not None)
        return [self._sums[place] if place in self._used else None for place in places]

    def dense(self, gradient: Any) -> Any | None:
        return self._framework.dense(gradient)

    def fitted(self, gradient: Any | None, total: Any) -> Any:
        value = total.value
        return keras.ops.zeros_like(value) if gradient is None else keras.ops.cast(gradient, value.dtype)

    def read(self, variable: Any) -> Any:
        return variable.value

    def write(self, variable: Any, value: Any) -> None:
        variable.assign(value)

    def runs_at_once(self) -> bool:
        return self._framework.runs_at_once(self.counter.value)

    def choose(self, condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
        return self._framework.choose(condition, if_true, if_false, [])


def _subclass(kind: type[Any], framework: Framework, settings: GradientSettings) -> type[Any]:
    """A class that reduces, with the name and the module that Keras would write into a file for ``kind``."""
    module, name = kind.__module__, kind.__name__
    for base in kind.__mro__:
        if getattr(keras.optimizers, base.__name__, None) is base:
            # Classes that are made for one framework have the name of the public one.
            if base.__name__ == kind.__name__:
                module = "keras.optimizers"
            break
    made: type[Any] = type(
        name,
        (_DistributedOptimizer, kind),
        {
            "__module__": module,
            "__doc__": kind.__doc__,
            "_horovod_settings": settings,
            "_framework": framework,
        },
    )
    registered = keras.saving.get_registered_name(kind)
    if registered != name:
        # Files name registered classes by this. The other direction, from name to class, stays as it is.
        from keras.src.saving import object_registration

        object_registration.GLOBAL_CUSTOM_NAMES[made] = registered
    return made


def _overwrites(variable: Any) -> bool:
    """Return whether ``variable`` gets new values in place of a gradient: statistics of float8 training."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def _keeps_own(settings: GradientSettings) -> bool:
    """Return whether there is nobody to reduce with. In elastic jobs that is only known when a step runs."""
    return not lifecycle.current().config.elastic and stays_local(settings.process_set)


def _counting(optimizer: Any) -> Any:
    """The optimizer whose iterations count, within loss scaling."""
    inner: Callable[[], Any] | Any = getattr(optimizer, "inner_optimizer", None)
    return optimizer if inner is None else inner
