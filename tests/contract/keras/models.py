"""Small models, data and variables that the cases use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.contract.keras.lazy import hvd, keras

Array = Any
BATCH = 16  # of all ranks together


def data(seed: int = 0, rows: int = 64) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 8)).astype("float32"), rng.normal(size=(rows, 3)).astype("float32")


def own_share(rows: Array) -> Array:
    """Of each batch of all ranks together, the rows of this one."""
    batches = rows.reshape(-1, hvd.size(), BATCH // hvd.size(), *rows.shape[1:])
    return batches[:, hvd.rank()].reshape(-1, *rows.shape[1:])


def dense_model(seed: int = 1, of: Any = keras) -> Any:
    of.utils.set_random_seed(seed)
    return of.Sequential([of.layers.Input((8,)), of.layers.Dense(6, activation="relu"), of.layers.Dense(3)])


def variable(*values: float) -> Any:
    return keras.Variable(np.array(values, "float32"))


def tensor(*values: float) -> Any:
    return keras.ops.convert_to_tensor(np.array(values, "float32"))


def weights_of(model: Any) -> list[Array]:
    return [np.array(weight.numpy()) for weight in model.weights]


def assert_same_everywhere(arrays: Sequence[Array], name: str) -> None:
    everybody = hvd.allgather_object(list(arrays), name=name)
    for others in everybody[1:]:
        for first, other in zip(everybody[0], others, strict=True):
            np.testing.assert_array_equal(first, other)
