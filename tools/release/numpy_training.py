"""Handwritten digits, learnt with NumPy alone: trains where no framework can be had. One rank of a job.

    horovodrun -np 2 python numpy_training.py digits.csv.gz

The file is the one that scikit-learn brings: 64 pixels and the digit in each row. Fails if too little was
learnt, or if ranks learnt different things.
"""

from __future__ import annotations

import platform
import sys
import time
from typing import Any

import numpy as np

from horovod.collectives.numpy_frontend import collectives
from horovod.collectives.ops import Average, Sum
from horovod.common import basics

STEPS = 300
RATE = 1.0
REACH = 0.88


def main(file: str) -> int:
    started = time.perf_counter()
    hvd = basics.HorovodBasics()
    hvd.init()
    began = time.perf_counter()
    rows = np.loadtxt(file, delimiter=",")
    pixels, digits = rows[:, :64] / 16, rows[:, 64].astype(np.int64)
    held_out = len(rows) * 4 // 5
    mine = slice(hvd.rank(), held_out, hvd.size())
    weights = np.zeros((64, 10))
    for step in range(STEPS):
        weights -= RATE * _average(_gradient(weights, pixels[mine], digits[mine]), f"gradient.{step}")
    accuracy = float(np.mean(np.argmax(pixels[held_out:] @ weights, axis=1) == digits[held_out:]))
    ended = time.perf_counter()
    total = np.empty_like(weights)
    collectives.synchronize(collectives.allreduce(weights, total, "weights", Sum))
    same = bool(np.array_equal(total, weights * hvd.size()))
    if hvd.rank() == 0:
        print(
            f"{hvd.size()} ranks on {platform.machine()}, Python {platform.python_version()}: "
            f"accuracy {accuracy:.3f}, init {began - started:.1f} s, training {ended - began:.1f} s"
        )
    hvd.shutdown()
    return 0 if same and accuracy >= REACH else 1


def _average(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    collectives.synchronize(collectives.allreduce(array, array, name, Average))
    return array


def _gradient(
    weights: np.ndarray[Any, Any], pixels: np.ndarray[Any, Any], digits: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Of the cross-entropy of a softmax over 10 digits; shape ``(64, 10)``."""
    scores = pixels @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(digits)), digits] -= 1
    return np.asarray(pixels.T @ chances / len(digits))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
