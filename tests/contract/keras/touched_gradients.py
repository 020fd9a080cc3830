"""Ways in which optimizers and scripts touch gradients, in eager code and in graphs: training on all ranks is
training of one process with the average of their gradients.

A way is a function that runs twice, in a process by itself and on all ranks: see :class:`Script`. The
gradients are drawn, so that it needs no model.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.contract.keras.lazy import backend, hvd, keras, tf
from tests.contract.world import Cases

CASES = Cases()
STEPS = 4

Head = Callable[[int, int], int | None]
Change = Callable[[list[Any]], list[Any]]

SHAPES = [(4, 3), (3, 2), (3, 2), (2, 2)]  # a body, two heads, and a part that nothing uses


class Script:
    """A training script: on all ranks with gradients of each, or in one process with their averages."""

    def __init__(self, ranks: bool, graph: bool) -> None:
        self.ranks = ranks
        self.graph = graph
        rng = np.random.default_rng(11)
        self.variables = [keras.Variable(rng.normal(size=shape).astype("float32")) for shape in SHAPES]

    def wrap(self, optimizer: Any, **options: Any) -> Any:
        return hvd.DistributedOptimizer(optimizer, **options) if self.ranks else optimizer

    def drawn(self, rank: int, step: int, head: int | None) -> list[Any]:
        """The gradients of a rank: those of the body and of a head."""
        rng = np.random.default_rng(100 * step + rank)
        # Of different sizes on the ranks.
        arrays = [(rank + 1) * rng.normal(size=shape).astype("float32") for shape in SHAPES]
        used = () if head is None else (0, 1 + head)
        return [array if place in used else None for place, array in enumerate(arrays)]

    def gradients(self, step: int, head: Head, change: Change) -> list[Any]:
        """Gradients of this rank, or the averages of all."""
        if self.ranks:
            arrays = change(self.drawn(hvd.rank(), step, head(hvd.rank(), step)))
        else:
            of_all = [change(self.drawn(rank, step, head(rank, step))) for rank in range(hvd.size())]
            arrays = [
                sum(each for each in some if each is not None) / np.float32(hvd.size())
                if any(each is not None for each in some)
                else None
                for some in zip(*of_all, strict=True)
            ]
        return [None if each is None else keras.ops.convert_to_tensor(each) for each in arrays]

    def apply_with(self, optimizer: Any) -> Callable[[list[Any]], None]:
        if not self.graph:
            return lambda gradients: optimizer.apply(gradients, self.variables)
        if backend() == "tensorflow":
            made: Callable[[list[Any]], None] = tf.function(
                lambda gradients: optimizer.apply(gradients, self.variables)
            )
            return made
        import jax

        step = jax.jit(optimizer.stateless_apply)

        def apply(gradients: list[Any]) -> None:
            trained, own = step(
                [each.value for each in optimizer.variables],
                gradients,
                [each.value for each in self.variables],
            )
            for variable, value in zip(
                [*self.variables, *optimizer.variables], [*trained, *own], strict=True
            ):
                variable.assign(value)

        return apply

    def steps(
        self,
        optimizer: Any,
        head: Head = lambda rank, step: step % 2,
        change: Change = lambda gradients: gradients,
    ) -> None:
        optimizer.build(self.variables)
        apply = self.apply_with(optimizer)
        for step in range(STEPS):
            apply(self.gradients(step, head, change))
        finalize = getattr(optimizer, "finalize_variable_values", None)
        if finalize is not None:
            finalize(self.variables)


Way = Callable[..., None]
WAYS: dict[str, Way] = {}
EAGER: dict[str, Way] = {}
"""Ranks lack different gradients, or a script does what a graph cannot."""

# The gate runs these.
TELLING = {
    "clipping_by_global_norm",
    "decay_by_rank",
    "decay_with_an_idle_rank",
    "passes_by_rank",
    "scaling_around",
}


def way(function: Way) -> Way:
    WAYS[function.__name__] = function
    return function


def eager(function: Way) -> Way:
    EAGER[function.__name__] = function
    return function


def by_rank(rank: int, step: int) -> int:
    return (rank + step) % 2


def some_idle(rank: int, step: int) -> int | None:
    return None if (rank + step) % 2 else 0


# -- what optimizers do with gradients -----------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "decay": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.3),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.05, momentum=0.5, weight_decay=0.1),
    "signs": lambda: keras.optimizers.Lion(0.05, weight_decay=0.1),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "layerwise": lambda: keras.optimizers.Lamb(0.05),
    "clipping_by_value": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipvalue=0.1),
    "clipping_by_norm": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.2),
    "clipping_by_global_norm": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.2),
    "average_of_weights": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5),
    "accumulation_of_keras": lambda: keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
}


def plain(script: Script, make: Callable[[], Any], head: Head, **options: Any) -> None:
    script.steps(script.wrap(make(), **options), head)


for _name, _make in OPTIMIZERS.items():
    WAYS[_name] = functools.partial(plain, make=_make, head=lambda rank, step: step % 2)
    EAGER[f"{_name}_by_rank"] = functools.partial(plain, make=_make, head=by_rank)
    EAGER[f"{_name}_with_an_idle_rank"] = functools.partial(plain, make=_make, head=some_idle)


@way
def decay_of_a_part(script: Script) -> None:
    optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.3)
    optimizer.exclude_from_weight_decay([script.variables[0]])
    script.steps(script.wrap(optimizer))


def sized(change: Change, factor: float) -> Change:
    return lambda gradients: [
        None if each is None else each * np.float32(factor) for each in change(gradients)
    ]


def scaling(script: Script, around: bool, head: Head) -> None:
    if backend() == "jax" and not script.graph:
        return  # Keras runs it in compiled functions only
    inner = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1)
    scaler = functools.partial(keras.optimizers.LossScaleOptimizer, initial_scale=64.0)
    optimizer = scaler(script.wrap(inner)) if around else script.wrap(scaler(inner))
    script.steps(optimizer, head, sized(lambda gradients: gradients, 64.0))


WAYS["scaling_around"] = functools.partial(scaling, around=True, head=lambda rank, step: step % 2)
WAYS["scaling_within"] = functools.partial(scaling, around=False, head=lambda rank, step: step % 2)
EAGER["scaling_around_by_rank"] = functools.partial(scaling, around=True, head=by_rank)
EAGER["scaling_within_by_rank"] = functools.partial(scaling, around=False, head=by_rank)


# -- what scripts do with gradients before they hand them over -----------------------------------------------


def momentum(script: Script, change: Change, head: Head = by_rank) -> None:
    script.steps(script.wrap(OPTIMIZERS["momentum"]()), head, change)


def clipped(gradients: list[Any]) -> list[Any]:
    norm = np.sqrt(sum(np.sum(each**2) for each in gradients if each is not None))
    return sized(lambda same: same, min(1.0, 0.3 / max(norm, 1e-6)))(gradients)


def changed(change: Callable[[Any], Any]) -> Change:
    return lambda gradients: [None if each is None else change(each).astype("float32") for each in gradients]


CHANGES: dict[str, Change] = {
    "clipping_before": clipped,
    "scaling_before": changed(lambda each: each * 0.5),
    "centralisation_before": changed(lambda each: each - each.mean(0, keepdims=True)),
    "signs_before": changed(np.sign),
    "noise_before": changed(lambda each: each + np.random.default_rng(3).normal(size=each.shape) * 0.1),
    "zeroing_before": lambda gradients: [None if each is None else 0 * each for each in gradients],
    "leaving_out_before": lambda gradients: [None, *gradients[1:]],
    "surgery_before": changed(lambda each: each - (each * each[0]).sum() / (each[0] ** 2).sum() * each[0]),
}
for _name, _change in CHANGES.items():
    WAYS[_name] = functools.partial(momentum, change=_change, head=lambda rank, step: step % 2)
    EAGER[f"{_name}_by_rank"] = functools.partial(momentum, change=_change)


# -- several passes, groups, several optimizers --------------------------------------------------------------


def passes(script: Script, head: Head, **options: Any) -> None:
    """One process adds up by hand."""
    inner = keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1)
    if script.ranks:
        script.steps(script.wrap(inner, backward_passes_per_step=2, **options), head)
        return
    inner.build(script.variables)
    for cycle in range(STEPS // 2):
        some = [script.gradients(2 * cycle + each, head, lambda same: same) for each in range(2)]
        sums = [
            after if before is None else before if after is None else before + after
            for before, after in zip(*some, strict=True)
        ]
        factor = 0.5 if options.get("average_aggregated_gradients") else 1.0
        inner.apply([None if each is None else each * factor for each in sums], script.variables)


# A graph knows the variables that had gradients when it was built.
WAYS["passes"] = functools.partial(passes, head=lambda rank, step: 0)
EAGER["passes_by_step"] = functools.partial(passes, head=lambda rank, step: step % 2)
EAGER["passes_by_rank"] = functools.partial(passes, head=by_rank)
EAGER["passes_with_an_idle_rank"] = functools.partial(passes, head=some_idle)
EAGER["averaged_passes_by_rank"] = functools.partial(passes, head=by_rank, average_aggregated_gradients=True)
EAGER["heads_that_each_rank_keeps_in_passes"] = functools.partial(passes, head=lambda rank, step: rank % 2)


@eager
def groups_by_rank(script: Script) -> None:
    for groups in (2, 4, [[script.variables[0], script.variables[2]], [script.variables[1]]]):
        options = {"groups": groups} if script.ranks else {}
        plain(script, OPTIMIZERS["decay"], by_rank, **options)


@eager
def an_average_in_two_steps_by_rank(script: Script) -> None:
    options = {"gradient_predivide_factor": 3.0} if script.ranks else {}
    plain(script, OPTIMIZERS["decay"], by_rank, **options)


def summed(script: Script) -> tuple[Any, Change]:
    """An optimizer with sums over the ranks, and what makes sums of averages."""
    optimizer = script.wrap(OPTIMIZERS["momentum"](), **({"op": hvd.Sum} if script.ranks else {}))
    return optimizer, (lambda same: same) if script.ranks else sized(lambda same: same, hvd.size())


@eager
def sums_by_rank(script: Script) -> None:
    optimizer, change = summed(script)
    script.steps(optimizer, by_rank, change)


@eager
def one_gradient_of_two_variables(script: Script) -> None:
    """Handed over once for each of two variables that are equal."""
    optimizer, change = summed(script)
    optimizer.build(script.variables)
    for step in range(STEPS):
        _, gradient, *_ = script.gradients(step, lambda rank, step: 0, change)
        optimizer.apply([None, gradient, gradient, None], script.variables)


@eager
def one_gradient_for_two_optimizers(script: Script) -> None:
    """The gradients are those of the loss also after the first update."""
    both = [summed(script) for _ in range(2)]
    for optimizer, _ in both:
        optimizer.build(script.variables)
    for step in range(STEPS):
        gradients = script.gradients(step, by_rank, both[0][1])
        for optimizer, _ in both:
            optimizer.apply(gradients, script.variables)


# -- the table -----------------------------------------------------------------------------------------------


def weights_after(way: Way, ranks: bool, graph: bool) -> list[Any]:
    script = Script(ranks, graph)
    way(script)
    return [np.array(each.numpy()) for each in script.variables]


def check(way: Way, graph: bool) -> None:
    if graph and backend() == "torch":
        return  # the exchange is outside of what PyTorch compiles
    all_ = weights_after(way, True, graph)
    # Loss scaling of Keras runs on JAX in compiled functions only.
    one = weights_after(way, False, graph and backend() == "jax")
    for ours, theirs in zip(all_, one, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


for _name, _way in (WAYS | EAGER).items():
    for _mode in ("eager", "graph") if _name in WAYS else ("eager",):
        if _name in TELLING or _name.startswith("one_gradient") or os.environ.get("FARANDOLE_FULL_MATRIX"):
            CASES.add_as(f"{_name}-{_mode}", functools.partial(check, _way, _mode == "graph"))


@CASES.add
def ranks_that_lack_gradients_in_graphs_are_told() -> None:
    if hvd.size() == 1 or backend() == "torch":
        return
    with pytest.raises(Exception, match="gradients for different variables"):
        plain(Script(True, True), OPTIMIZERS["decay"], lambda rank, step: min(rank, 1))


@CASES.add
def passes_whose_graphs_know_different_gradients_are_refused() -> None:
    if backend() == "torch":
        return
    # TensorFlow makes another error of what is raised while it builds a graph.
    with pytest.raises(Exception, match="has a gradient in this graph"):
        passes(Script(True, True), lambda rank, step: step % 2)
