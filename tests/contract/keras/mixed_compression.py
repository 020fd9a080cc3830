"""A compressor that sends large gradients in half precision and small ones as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.contract.keras.lazy import hvd, keras
from tests.contract.world import Cases

CASES = Cases()


class LargeAsHalf:
    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        large = tensor.shape[0] > 4
        return (keras.ops.cast(tensor, "float16") if large else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return keras.ops.cast(tensor, keras.backend.standardize_dtype(ctx))


@CASES.add
def optimizer_with_two_compressed_types() -> None:
    sizes = (2, 8, 3, 16)
    variables = [keras.Variable(np.zeros(size, "float32")) for size in sizes]
    # 2 ** -12 is what float16 loses beside 1, and float32 keeps.
    own = np.float32(hvd.rank() + 1 + 2**-12)
    gradients = [keras.ops.convert_to_tensor(np.full(size, own, "float32")) for size in sizes]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=LargeAsHalf)
    optimizer.apply(gradients, variables)
    mean = (hvd.size() + 1) / 2
    for size, variable in zip(sizes, variables, strict=True):
        lost = 0 if size > 4 else 2**-12
        np.testing.assert_array_equal(variable.numpy(), np.full(size, -mean - lost, "float32"))
