"""Cost of the comparison of replicas in steady state: ``horovodrun -np 2 python -m benchmarks.replicas``.

Processor time of as many calls as 2048 steps make, two comparisons among them, beside that of a step of
training. Steps 1 to 1024, which compare more often, are not counted. ``--framework tensorflow`` instead
measures a ``tf.function`` of 161 small variables with and without the comparison, by turns, as what it adds
is part of the graph.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any


def in_pytorch(steps: int, width: int) -> None:
    import torch
    from torch import nn

    import horovod.torch as hvd
    from horovod.gradients.replicas import RARELY

    hvd.init()
    layers = [nn.Linear(width, width) for _ in range(8)]
    model = nn.Sequential(*layers)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9))
    data = torch.randn(32, width)

    def train(count: int) -> float:
        began = time.process_time()
        for _ in range(count):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
        return time.process_time() - began

    train(RARELY + 8)
    whole = train(steps)
    check = optimizer._replicas
    assert check is not None
    began = time.thread_time()
    for _ in range(2 * RARELY):
        check.look()
        check.begin()
        check.collect()
    spent = (time.thread_time() - began) / (2 * RARELY) * steps
    weights = sum(parameter.numel() for parameter in model.parameters())
    if hvd.rank() == 0:
        print(
            f"{weights / 1e6:.2f} M weights, {steps} steps of {whole / steps * 1e3:.2f} ms of a processor: "
            f"comparison {spent / steps * 1e6:.1f} us a step, {100 * spent / whole:.3f} %"
        )


def in_tensorflow(rounds: int) -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from horovod.runtime import lifecycle

    hvd.init()
    config = lifecycle.current().config

    def made(setting: str) -> Callable[[], Any]:
        variables = [tf.Variable(tf.zeros(64)) for _ in range(161)]

        @tf.function  # type: ignore[untyped-decorator]
        def step(batch: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(tf.square(variable - batch)) for variable in variables])
            wrapped = hvd.DistributedGradientTape(tape)
            for variable, gradient in zip(variables, wrapped.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * gradient)

        batch = tf.ones(64)
        object.__setattr__(config, "replica_check", setting)  # asked when the function is traced
        step(batch)
        return lambda: step(batch)

    ways = {setting: made(setting) for setting in ("off", "warn")}
    for run in ways.values():
        for _ in range(1030):
            run()
    times: dict[str, list[float]] = {setting: [] for setting in ways}
    for number in range(rounds):
        for setting in list(ways)[:: 1 if number % 2 == 0 else -1]:
            began = time.perf_counter()
            for _ in range(64):
                ways[setting]()
            times[setting].append((time.perf_counter() - began) / 64)
    if hvd.rank() == 0:
        more = statistics.median(b - a for a, b in zip(times["off"], times["warn"], strict=True))
        base = statistics.median(times["off"])
        print(
            f"161 variables: a step of {base * 1e6:.0f} us, comparison {more * 1e6:.0f} us more, "
            f"{more / 161 * 1e6:.2f} us a variable"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--framework", choices=("pytorch", "tensorflow"), default="pytorch")
    parser.add_argument("--steps", type=int, default=64, help="of training, for the time of one")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=32)
    arguments = parser.parse_args()
    if arguments.framework == "pytorch":
        in_pytorch(arguments.steps, arguments.width)
    else:
        in_tensorflow(arguments.rounds)


if __name__ == "__main__":
    main()
