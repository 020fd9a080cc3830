"""A rank that trains the way TensorFlow 1 scripts do: ``tensorflow1_job.py FOLDER MODE...``.

A MODE is a function of ``tf.compat.v1`` that leaves TensorFlow 2; each has a folder of its own in FOLDER.

Every rank begins with other variables and has other data; afterwards all must have what one process gets
from the mean of the gradients, computed here by NumPy. Rank 0 exports models into these folders.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from numpy.typing import NDArray

import horovod.tensorflow as hvd
from horovod.tensorflow.export import save_inference_model

Array = NDArray[np.float64]

RATE = 0.5
SAMPLES = np.array([[1.0, 2.0, -1.0], [0.5, -1.5, 2.0]])  # by rank
TARGETS = np.array([1.0, -2.0])
FIRST = 3.0  # every variable on rank 0


class Kept(tf.train.SessionRunHook):  # type: ignore[misc]
    """What the variables are at the end of a session."""

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {}

    def end(self, session: Any) -> None:
        self.variables = values(session)


class Program:
    """The graph of the script: a linear model and its training."""

    def __init__(self, training: bool = True) -> None:
        first = tf.constant_initializer(FIRST + hvd.rank())
        self.samples = tf.placeholder(tf.float32, [None, 3], name="samples")
        self.targets = tf.placeholder(tf.float32, [None], name="targets")
        weights = tf.get_variable("weights", [3, 1], initializer=first)
        bias = tf.get_variable("bias", [1], initializer=first)
        self.answers = tf.squeeze(tf.matmul(self.samples, weights) + bias, 1, name="answers")
        if training:
            loss = tf.reduce_mean(tf.square(self.answers - self.targets))
            opt = tf.train.AdagradOptimizer(RATE * hvd.size())
            opt = hvd.DistributedOptimizer(opt)
            self.train = opt.minimize(loss, global_step=tf.train.get_or_create_global_step())
        mine = slice(hvd.rank(), hvd.rank() + 1)
        self.feed = {self.samples: SAMPLES[mine], self.targets: TARGETS[mine]}


def expected(steps: int) -> dict[str, Array]:
    """The variables after Adagrad with the mean of all ranks' gradients, as one process gets them."""
    weights, bias = np.full(3, FIRST), np.full(1, FIRST)
    sums = {"weights": np.full(3, 0.1), "bias": np.full(1, 0.1)}
    for _ in range(steps):
        errors = 2 * (SAMPLES @ weights + bias - TARGETS)
        gradients = {"weights": (errors[:, None] * SAMPLES).mean(0), "bias": errors.mean(keepdims=True)}
        for name, variable in (("weights", weights), ("bias", bias)):
            sums[name] += gradients[name] ** 2
            variable -= RATE * hvd.size() * gradients[name] / np.sqrt(sums[name])
    slots = {f"{name}/Adagrad": value for name, value in sums.items()}
    return {"weights": weights, "bias": bias, "global_step": np.array(float(steps)), **slots}


def values(session: Any) -> dict[str, Any]:
    variables = tf.global_variables()
    read = session.run(variables)
    return {variable.name.partition(":")[0]: value for variable, value in zip(variables, read, strict=True)}


def check(variables: dict[str, Any], steps: int) -> None:
    wanted = expected(steps)
    assert sorted(variables) == sorted(wanted)  # names are those of the script without Horovod
    for name, value in wanted.items():
        np.testing.assert_allclose(np.ravel(variables[name]), np.ravel(value), rtol=1e-5, err_msg=name)


def config() -> Any:
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    return config


def train_monitored(folder: Path, last_step: int) -> None:
    """The classic loop; continues from the checkpoint in ``folder``, which only rank 0 sees."""
    with tf.Graph().as_default():
        program = Program()
        kept = Kept()
        hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=last_step), kept]
        with tf.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder) if hvd.rank() == 0 else None, config=config(), hooks=hooks
        ) as session:
            while not session.should_stop():
                session.run(program.train, program.feed)
        check(kept.variables, last_step)


def train_plainly(folder: Path, steps: int) -> None:
    """Without a monitored session; what it has trained is exported from the training graph."""
    with tf.Graph().as_default(), tf.Session(config=config()) as session:
        program = Program()
        broadcast = hvd.broadcast_global_variables(0)
        session.run(tf.global_variables_initializer())
        session.run(broadcast)
        check(values(session), 0)
        for _ in range(steps):
            session.run(program.train, program.feed)
        check(values(session), steps)
        ours = {node.op for node in session.graph.as_graph_def().node if node.op.startswith("Horovod")}
        assert "HorovodBroadcast" in ours, ours  # so there is something to leave out
        if hvd.rank() == 0:
            save_inference_model(
                session, str(folder / "stripped"), {"rows": program.samples}, {"scores": program.answers}
            )


def export_from_checkpoint(folder: Path, checkpoints: Path) -> None:
    """The other way to a model for serving: a graph without training, filled from the checkpoint."""
    with tf.Graph().as_default(), tf.Session() as session:
        program = Program(training=False)
        tf.train.Saver().restore(session, tf.train.latest_checkpoint(str(checkpoints)))
        tf.saved_model.simple_save(
            session, str(folder / "restored"), {"rows": program.samples}, {"scores": program.answers}
        )


def main() -> None:
    hvd.init()
    for mode in sys.argv[2:]:
        getattr(tf, mode)()
        folder = Path(sys.argv[1], mode)
        checkpoints = folder / "checkpoints"
        train_monitored(checkpoints, 4)
        train_monitored(checkpoints, 7)  # rank 0 restores, rank 1 begins anew: all have to be at step 4
        train_plainly(folder, 7)
        if hvd.rank() == 0:
            export_from_checkpoint(folder, checkpoints)
            wanted = expected(7)
            np.save(folder / "scores.npy", SAMPLES @ wanted["weights"] + wanted["bias"])
        print(f"did all after {mode}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
