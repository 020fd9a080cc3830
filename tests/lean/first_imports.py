"""Imports what tests import, once after it was installed: ``python -m tests.lean.first_imports``.

Python compiles to bytecode what is imported for the first time. All processes that collect the tests would do
so at the same time: 13 s in each of four.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings

NAMES = (
    "hypothesis",
    "jax",
    "keras",
    "lightning",
    "pandas",
    "pyspark.ml",
    "ray.train",
    "ray.tune",
    "scipy.stats",
    "tensorflow",
    "torch",
)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in NAMES:
        with contextlib.suppress(ImportError):  # not each is to be had for each Python
            importlib.import_module(name)
