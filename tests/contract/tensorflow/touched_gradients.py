"""Ways in which scripts touch gradients, in eager code and in functions: training on all ranks is training of
one process on the whole batch.

A way is a function that runs twice, in a process by itself and on all ranks: see :class:`Script`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.contract.world import Cases

import horovod.tensorflow as hvd

CASES = Cases()
STEPS = 4
SHARE = 3  # samples of each rank in each step
ROWS = 5  # of the table

Gradients = list[Any]
Change = Callable[["Script", Gradients], Gradients]
Head = Callable[[int, int], int | None]


class Script:
    """A training script: on all ranks with a share of each batch, or in one process with the whole one."""

    def __init__(self, ranks: bool, graph: bool) -> None:
        self.ranks = ranks
        self.graph = graph
        rng = np.random.default_rng(11)

        def variable(*shape: int) -> tf.Variable:
            return tf.Variable(rng.normal(size=shape))

        self.body = variable(4, 3)
        self.heads = [variable(3, 2), variable(3, 2)]
        self.unused = variable(2, 2)
        self.tables = [variable(ROWS, 4), variable(ROWS, 4)]
        self.variables = [self.body, *self.heads, self.unused, *self.tables]
        self.momenta = [tf.Variable(tf.zeros_like(each)) for each in self.variables]

    def tape(self, persistent: bool = False, **options: Any) -> Any:
        tape = tf.GradientTape(persistent=persistent)
        return hvd.DistributedGradientTape(tape, **options) if self.ranks else tape

    def reduced(self, gradients: Gradients) -> Gradients:
        """The averages over the ranks, by hand."""
        return hvd.grouped_allreduce(gradients, name="by_hand") if self.ranks else gradients

    def run(self, function: Callable[..., Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = tf.function(function) if self.graph else function
        return made

    def shares(self, step: int) -> list[Any]:
        """The samples of this rank, or those of all ranks."""
        rng = np.random.default_rng(100 + step)
        # Losses of different sizes on the ranks.
        whole = rng.normal(size=(hvd.size(), SHARE, 4)) * np.arange(1.0, hvd.size() + 1)[:, None, None]
        return [tf.constant(each) for each in (whole[[hvd.rank()]] if self.ranks else whole)]

    def heads_of(self, step: int, head: Head) -> tuple[int | None, ...]:
        return tuple(head(rank, step) for rank in ([hvd.rank()] if self.ranks else range(hvd.size())))

    def outputs(self, share: Any, head: int | None) -> Any:
        if head is None:  # there is nothing to learn from this
            return tf.zeros_like(share)
        return tf.tanh(share @ self.body) @ self.heads[head]

    def loss(self, shares: Sequence[Any], heads: Sequence[int | None]) -> Any:
        losses = [
            tf.reduce_mean(self.outputs(share, head) ** 2) for share, head in zip(shares, heads, strict=True)
        ]
        return tf.add_n(losses) / len(losses)

    def rows_used(self, shares: Sequence[Any], heads: Sequence[int | None]) -> Any:
        """A loss that also uses some rows of the table that goes with each head."""
        losses = [
            tf.reduce_mean(tf.gather(self.tables[head], [0, 2, 2]) ** 2 * tf.reduce_mean(share))
            for share, head in zip(shares, heads, strict=True)
            if head is not None
        ]
        return self.loss(shares, heads) + tf.add_n(losses) / len(shares)

    def update(self, gradients: Gradients) -> None:
        """Momentum and decay of whatever has a gradient."""
        for variable, momentum, gradient in zip(self.variables, self.momenta, gradients, strict=True):
            if gradient is not None:
                momentum.assign(0.9 * momentum + tf.convert_to_tensor(gradient) + 0.1 * variable)
                variable.assign_sub(0.1 * momentum)

    def steps(
        self,
        change: Change = lambda script, gradients: gradients,
        head: Head = lambda rank, step: 0,
        loss: Callable[[Script, Sequence[Any], Sequence[int | None]], Any] | None = None,
        unconnected: Any = tf.UnconnectedGradients.NONE,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """The usual loop; ``options`` are those of the tape of all ranks."""

        def step(shares: Sequence[Any], heads: Sequence[int | None]) -> None:
            with self.tape(**options) if self.ranks else self.tape() as tape:
                value = (loss or Script.loss)(self, shares, heads)
            gradients = tape.gradient(value, self.variables, unconnected_gradients=unconnected)
            self.update(change(self, gradients))

        run = self.run(step)
        for number in range(STEPS):
            run(self.shares(number), self.heads_of(number, head))


Way = Callable[[Script], None]

WAYS: dict[str, Way] = {}
EAGER: dict[str, Way] = {}
"""Ranks lack different gradients. In functions they say so, see ``tape.py``."""

# The gate runs these, and all that is in `EAGER`.
TELLING = {"clipping_by_global_norm", "heads_in_turn", "a_sparse_table", "clipping_before_the_exchange"}


def way(function: Way) -> Way:
    WAYS[function.__name__] = function
    return function


def eager(function: Way) -> Way:
    EAGER[function.__name__] = function
    return function


def of_each(change: Callable[[Any], Any]) -> Change:
    return lambda _, gradients: [None if each is None else change(each) for each in gradients]


# -- changes after the exchange ------------------------------------------------------------------------------


@way
def nothing(script: Script) -> None:
    script.steps()


@way
def clipping_by_value(script: Script) -> None:
    script.steps(of_each(lambda gradient: tf.clip_by_value(gradient, -0.05, 0.05)))


@way
def clipping_by_norm(script: Script) -> None:
    script.steps(of_each(lambda gradient: tf.clip_by_norm(gradient, 0.1)))


@way
def clipping_by_global_norm(script: Script) -> None:
    script.steps(lambda _, gradients: tf.clip_by_global_norm(gradients, 0.1)[0])


@way
def scaling(script: Script) -> None:
    script.steps(of_each(lambda gradient: gradient * 0.5))


@way
def noise(script: Script) -> None:
    script.steps(
        of_each(lambda each: each + 0.01 * tf.random.stateless_normal(each.shape, [1, 2], dtype=tf.float64))
    )


@way
def zeroing(script: Script) -> None:
    script.steps(lambda _, gradients: [tf.zeros_like(gradients[0]), *gradients[1:]])


@way
def leaving_out(script: Script) -> None:
    script.steps(lambda _, gradients: [None, *gradients[1:]])


@way
def centralisation(script: Script) -> None:
    script.steps(of_each(lambda gradient: gradient - tf.reduce_mean(gradient, 0, keepdims=True)))


@way
def signs(script: Script) -> None:
    script.steps(of_each(tf.sign))


@way
def normalisation(script: Script) -> None:
    script.steps(of_each(lambda gradient: gradient / (tf.norm(gradient) + 1e-3)))


@way
def a_moving_average_of_weights(script: Script) -> None:
    averages = [tf.Variable(each) for each in script.variables]

    def follow(_: Script, gradients: Gradients) -> Gradients:
        for average, variable in zip(averages, script.variables, strict=True):
            average.assign(0.9 * average + 0.1 * variable)
        return gradients

    script.steps(follow)
    for average, variable in zip(averages, script.variables, strict=True):
        variable.assign(average)


# -- changes before the exchange -----------------------------------------------------------------------------


@way
def clipping_before_the_exchange(script: Script) -> None:
    def step(shares: Sequence[Any]) -> None:
        clipped = []
        for share in shares:
            with tf.GradientTape() as tape:
                loss = script.loss([share], [0])
            clipped.append(tf.clip_by_global_norm(tape.gradient(loss, script.variables[:2]), 0.1)[0])
        own = [tf.add_n(each) / len(clipped) for each in zip(*clipped, strict=True)]
        script.update([*script.reduced(own), *[None] * 4])

    run = script.run(step)
    for number in range(STEPS):
        run(script.shares(number))


@way
def a_scaled_loss(script: Script) -> None:
    script.steps(
        of_each(lambda gradient: gradient / 64.0),
        loss=lambda script, *batch: script.loss(*batch) * 64.0,
    )


@way
def a_gradient_of_the_loss_itself(script: Script) -> None:
    def step(shares: Sequence[Any]) -> None:
        with script.tape() as tape:
            loss = script.loss(shares, [0] * len(shares))
        script.update(tape.gradient(loss, script.variables, output_gradients=tf.constant(0.5, tf.float64)))

    run = script.run(step)
    for number in range(STEPS):
        run(script.shares(number))


@way
def a_gradient_of_the_users_own(script: Script) -> None:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reversed_half(value: Any) -> Any:
        return tf.identity(value), lambda upstream: -0.5 * upstream

    script.steps(loss=lambda script, *batch: reversed_half(script.loss(*batch)))


@way
def a_part_without_gradient(script: Script) -> None:
    def loss(script: Script, shares: Sequence[Any], heads: Sequence[int | None]) -> Any:
        hidden = [tf.stop_gradient(tf.tanh(share @ script.body)) for share in shares]
        return tf.add_n([tf.reduce_mean((each @ script.heads[0]) ** 2) for each in hidden]) / len(hidden)

    script.steps(loss=loss)


@way
def decay_of_what_is_used_in_the_loss(script: Script) -> None:
    script.steps(loss=lambda script, *batch: script.loss(*batch) + tf.nn.l2_loss(script.body))


@way
def zeros_for_what_is_unused(script: Script) -> None:
    script.steps(unconnected=tf.UnconnectedGradients.ZERO)


# -- several gradients for one update ------------------------------------------------------------------------


@way
def accumulation_of_several_tapes(script: Script) -> None:
    def step(shares: Sequence[Any], others: Sequence[Any]) -> None:
        sums: Gradients = [None] * len(script.variables)
        for batch, head in ((shares, 0), (others, 1)):
            with script.tape() as tape:
                loss = script.loss(batch, [head] * len(batch))
            for place, gradient in enumerate(tape.gradient(loss, script.variables)):
                if gradient is not None:
                    sums[place] = gradient if sums[place] is None else sums[place] + gradient
        script.update(sums)

    run = script.run(step)
    for number in range(STEPS):
        run(script.shares(2 * number), script.shares(2 * number + 1))


@way
def accumulators_that_are_variables(script: Script) -> None:
    sums = [tf.Variable(tf.zeros_like(each)) for each in script.variables[:2]]

    def add(shares: Sequence[Any]) -> None:
        with tf.GradientTape() as tape:
            loss = script.loss(shares, [0] * len(shares))
        for total, gradient in zip(sums, tape.gradient(loss, script.variables[:2]), strict=True):
            total.assign_add(gradient)

    def apply() -> None:
        script.update([*script.reduced(sums), *[None] * 4])
        for total in sums:
            total.assign(tf.zeros_like(total))

    adding, applying = script.run(add), script.run(apply)
    for number in range(STEPS):
        adding(script.shares(2 * number))
        adding(script.shares(2 * number + 1))
        applying()


@way
def surgery_on_two_gradients_of_one_tape(script: Script) -> None:
    def step(shares: Sequence[Any]) -> None:
        with script.tape(persistent=True) as tape:
            first, second = (script.loss(shares, [head] * len(shares)) for head in (0, 1))
        one, other = (tape.gradient(each, script.variables) for each in (first, second))
        along = tf.reduce_sum(one[0] * other[0])
        projected = one[0] - tf.minimum(along, 0.0) / tf.reduce_sum(other[0] ** 2) * other[0]
        script.update([projected + other[0], one[1], other[2], None, None, None])

    run = script.run(step)
    for number in range(STEPS):
        run(script.shares(number))


@way
def a_penalty_on_gradients_of_inputs(script: Script) -> None:
    def step(shares: Sequence[Any]) -> None:
        with script.tape() as tape:
            penalties = []
            for share in shares:
                with tf.GradientTape() as inner:
                    inner.watch(share)
                    outputs = tf.reduce_mean(script.outputs(share, 0) ** 2)
                penalties.append(tf.reduce_mean(inner.gradient(outputs, share) ** 2) + outputs)
            loss = tf.add_n(penalties) / len(penalties)
        script.update(tape.gradient(loss, script.variables))

    run = script.run(step)
    for number in range(STEPS):
        run(script.shares(number))


@way
def two_updates_of_two_parts(script: Script) -> None:
    """As the two halves of an adversarial network."""

    def step(shares: Sequence[Any]) -> None:
        for sources in ([0], [1, 2]):
            with script.tape() as tape:
                loss = script.loss(shares, [0] * len(shares))
            gradients: Gradients = [None] * len(script.variables)
            chosen = [script.variables[place] for place in sources]
            for place, gradient in zip(sources, tape.gradient(loss, chosen), strict=True):
                gradients[place] = gradient
            script.update(gradients)

    run = script.run(step)
    for number in range(STEPS):
        run(script.shares(number))


# -- parts of a model ----------------------------------------------------------------------------------------


@way
def frozen_layers(script: Script) -> None:
    def step(shares: Sequence[Any]) -> None:
        with script.tape() as tape:
            loss = script.loss(shares, [0] * len(shares))
        script.update([None, *tape.gradient(loss, script.variables[1:])])

    run = script.run(step)
    for number in range(STEPS):
        run(script.shares(number))


@way
def heads_in_turn(script: Script) -> None:
    script.steps(head=lambda rank, step: step % 2)


@way
def heads_in_turn_in_groups(script: Script) -> None:
    script.steps(head=lambda rank, step: step % 2, options={"groups": 2})


@way
def a_sparse_table(script: Script) -> None:
    script.steps(head=lambda rank, step: step % 2, loss=Script.rows_used)


@way
def a_sparse_table_made_dense(script: Script) -> None:
    script.steps(head=lambda rank, step: step % 2, loss=Script.rows_used, options={"sparse_as_dense": True})


# -- ranks that lack different gradients ---------------------------------------------------------------------


def turns(rank: int, step: int) -> int:
    return (rank + step) % 2


@eager
def heads_that_ranks_take_in_turn(script: Script) -> None:
    script.steps(head=turns)


@eager
def heads_of_ranks_that_are_clipped(script: Script) -> None:
    script.steps(lambda _, gradients: tf.clip_by_global_norm(gradients, 0.1)[0], head=turns)


@eager
def heads_of_ranks_in_groups(script: Script) -> None:
    for groups in (2, 6, [[script.body, script.heads[1]], [script.heads[0], script.unused]]):
        script.steps(head=turns, options={"groups": groups})


@eager
def tables_that_ranks_take_in_turn(script: Script) -> None:
    script.steps(head=turns, loss=Script.rows_used)


@eager
def tables_of_ranks_in_groups(script: Script) -> None:
    groups = [[script.body, script.tables[1]], [script.tables[0], script.unused, script.heads[0]]]
    script.steps(head=turns, loss=Script.rows_used, options={"groups": groups})


@eager
def tables_of_ranks_made_dense(script: Script) -> None:
    script.steps(head=turns, loss=Script.rows_used, options={"sparse_as_dense": True})


@eager
def ranks_without_any_gradient(script: Script) -> None:
    script.steps(head=lambda rank, step: None if (rank + step) % 2 else 0)


@eager
def accumulation_over_heads_of_ranks(script: Script) -> None:
    sums: Gradients = []
    for step in range(STEPS):
        with script.tape() as tape:
            loss = script.loss(script.shares(step), script.heads_of(step, turns))
        gradients = tape.gradient(loss, script.variables)
        sums = [
            after if before is None else before if after is None else before + after
            for before, after in zip(sums or [None] * len(gradients), gradients, strict=True)
        ]
    script.update(sums)


@eager
def sources_that_are_tensors(script: Script) -> None:
    with script.tape(persistent=True) as tape:
        parts = [tf.identity(each) for each in (script.body, *script.heads)]
        tape.watch(parts)
        losses = [
            tf.reduce_mean((share @ parts[0] @ parts[1 + head]) ** 2)
            for share, head in zip(script.shares(0), script.heads_of(0, turns), strict=True)
            if head is not None
        ]
        loss = tf.add_n(losses) / len(losses)
    script.update([*tape.gradient(loss, parts), None, None, None])


# -- the table -----------------------------------------------------------------------------------------------


def weights_after(way: Way, ranks: bool, graph: bool) -> list[Any]:
    script = Script(ranks, graph)
    way(script)
    return [each.numpy() for each in (*script.variables, *script.momenta)]


def check(way: Way, graph: bool) -> None:
    one = weights_after(way, False, False)
    all_ = weights_after(way, True, graph)
    for ours, theirs in zip(all_, one, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


for name, made in (WAYS | EAGER).items():
    for mode in ("eager", "graph") if name in WAYS else ("eager",):
        if name in EAGER or name in TELLING or os.environ.get("FARANDOLE_FULL_MATRIX"):
            CASES.add_as(f"{name}-{mode}", functools.partial(check, made, mode == "graph"))


@CASES.add
def ranks_that_lack_gradients_in_functions_are_told() -> None:
    if hvd.size() == 1:
        return
    with pytest.raises(tf.errors.OpError, match="gradients for different variables"):
        Script(True, True).steps(head=turns)


NONE = np.nan


def in_turn(expected: Sequence[float], own: int | None, register: Sequence[int] = (), **options: Any) -> None:
    """Check the gradients of a body and of three heads, of which this rank uses one."""
    body, *heads = [tf.Variable([1.0, 2.0]) for _ in range(4)]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(body) + (0.0 if own is None else tf.reduce_sum(heads[own] * 30.0))
    distributed = hvd.DistributedGradientTape(tape, **options)
    for place in register:
        distributed.register_local_source([body, *heads][place])
    gradients = distributed.gradient(loss, [body, *heads])
    values = [NONE if each is None else float(each[0]) for each in gradients]
    np.testing.assert_allclose(values, expected, rtol=1e-2 if "compression" in options else 1e-6)


@CASES.add
def parts_in_turn_with_compression_local_sources_and_other_reductions() -> None:
    mine, ranks = min(hvd.rank(), 1), hvd.size()
    if ranks == 1:
        return
    turns = [1.0, 30.0 / ranks, 30.0 - 30.0 / ranks, NONE]
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        in_turn(turns, mine, compression=compression)
    in_turn(turns, mine, gradient_predivide_factor=3.0)
    in_turn([ranks, 30.0, 30.0 * (ranks - 1), NONE], mine, op=hvd.Sum)
    own = [1.0 / ranks, NONE, NONE, NONE]
    own[1 + mine] = 30.0 / ranks
    in_turn(own, mine, register=(0, 1, 2))
    if ranks == 2:  # vectors that have nothing in common add up
        in_turn([1.0, 30.0, 30.0, NONE], mine, op=hvd.Adasum)


@CASES.add
def parts_in_turn_of_members_of_a_process_set() -> None:
    if hvd.size() < 3:
        return
    members = hvd.add_process_set([0, hvd.size() - 1])
    expected = [1.0, 15.0, 15.0, NONE] if members.included() else [1.0, NONE, 30.0, NONE]
    in_turn(expected, 0 if hvd.rank() == 0 else 1, process_set=members)
    hvd.remove_process_set(members)


@CASES.add
def parts_in_turn_after_a_rank_has_joined() -> None:
    if hvd.size() == 1:
        return
    if hvd.rank() < hvd.size() - 1:
        expected = [1.0 - 1.0 / hvd.size(), 30.0 / hvd.size(), NONE, NONE]
        in_turn(expected, 0 if hvd.rank() == 0 else None)
    hvd.join()
