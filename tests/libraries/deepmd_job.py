"""``dp --tf train input.json`` of DeePMD-kit; each rank writes its weights into ``weights-RANK.npz`` then.

DeePMD-kit finds by itself that there are other ranks. Only rank 0 saves a model, so the weights of the others
are taken from its trainer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from deepmd.main import main
from deepmd.tf.train.trainer import DPTrainer

import horovod.tensorflow as hvd

train = DPTrainer.train


def train_and_write(self: Any, *arguments: Any, **options: Any) -> Any:
    result = train(self, *arguments, **options)
    with self.sess.graph.as_default():
        variables = tf.compat.v1.trainable_variables()
    weights = {each.name.replace("/", "."): self.sess.run(each) for each in variables}
    np.savez(f"weights-{hvd.rank()}.npz", **weights)
    return result


if __name__ == "__main__":
    DPTrainer.train = train_and_write
    main(["--tf", "train", "input.json"])
