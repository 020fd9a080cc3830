"""The functions for numbers, lists and arrays."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from tests.contract.keras.lazy import backend, hvd, keras
from tests.contract.keras.models import variable
from tests.contract.world import Cases

CASES = Cases()


def array(value: Any) -> Any:
    assert keras.ops.is_tensor(value)
    return np.asarray(value)


@CASES.add
def tensorflow_is_needed_on_tensorflow_alone() -> None:
    assert (sys.modules.get("tensorflow") is None) == (backend() != "tensorflow")


@CASES.add
def values_of_ranks_are_combined() -> None:
    size, rank = hvd.size(), hvd.rank()
    mean = (size - 1) / 2
    np.testing.assert_allclose(array(hvd.allreduce([float(rank), 2.0])), [mean, 2.0])
    np.testing.assert_allclose(array(hvd.allreduce(float(rank), op=hvd.Sum)), mean * size)
    np.testing.assert_allclose(array(hvd.allreduce(np.float32(rank), op=hvd.Max, name="max")), size - 1)
    np.testing.assert_allclose(
        array(hvd.allreduce([float(rank)], prescale_factor=2.0, postscale_factor=3.0)), [6 * mean]
    )
    np.testing.assert_allclose(array(hvd.allreduce([float(rank)], compression=hvd.Compression.fp16)), [mean])
    with pytest.warns(DeprecationWarning, match="average") as warned:
        np.testing.assert_allclose(array(hvd.allreduce([1.0], average=False)), [size])
    assert [each.filename for each in warned] == [__file__]
    np.testing.assert_array_equal(array(hvd.allgather([rank] * (rank + 1))), np.repeat([0, 1], [1, 2]))
    assert int(hvd.broadcast(10 + rank, size - 1, name="epoch")) == 10 + size - 1
    for root in range(size):
        kept = [float(rank), 2.0]
        np.testing.assert_allclose(array(hvd.reduce(kept, root)), [mean, 2.0] if rank == root else kept)
        scaled = hvd.reduce(kept, root, name="r", op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)
        want = [6.0 * size * mean, 12.0 * size] if rank == root else kept
        np.testing.assert_allclose(array(scaled), want)
        np.testing.assert_allclose(
            array(hvd.reduce(rank, root, op=hvd.Max)), size - 1 if rank == root else rank
        )
    np.testing.assert_allclose(array(hvd.reducescatter([1.0, 2.0])), [rank + 1.0])
    np.testing.assert_allclose(array(hvd.reducescatter([1.0, 2.0], op=hvd.Sum)), [2.0 * (rank + 1)])


@CASES.add
def objects_and_variables_are_broadcast() -> None:
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))
    variables = [
        variable(1.0 + hvd.rank(), 2.0),
        keras.Variable(hvd.rank(), dtype="int32", trainable=False),
        keras.Variable(np.zeros((2, 0), "float32")),
        keras.Variable(bool(hvd.rank()), dtype="bool", trainable=False),
    ]
    hvd.broadcast_variables(variables, root_rank=1)
    np.testing.assert_array_equal(variables[0].numpy(), [2.0, 2.0])
    assert int(variables[1].numpy()) == 1
    assert bool(variables[3].numpy())
    with pytest.raises(hvd.HorovodInternalError, match="rank 1 has"):
        hvd.broadcast_variables([variable(*([0.0] * (hvd.rank() + 1)))], root_rank=0)
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
