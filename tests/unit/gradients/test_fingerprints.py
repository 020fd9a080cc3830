"""Fingerprints of tensors."""

import numpy as np
import pytest
import torch

from horovod.gradients.fingerprints import BLOCK, combined, fingerprint
from horovod.torch import replicas


def some(count: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(1).standard_normal(count).astype(dtype)


@pytest.mark.parametrize("count", [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_any_changed_bit_is_seen(count: int) -> None:
    values = some(count)
    before = fingerprint(values)
    for place in {0, count // 2, count - 1}:
        for bit in (0, 1, 22, 23, 30, 31):
            changed = values.copy()
            changed.view(np.uint32)[place] ^= np.uint32(1 << bit)
            assert fingerprint(changed) != before
    assert fingerprint(values.copy()) == before


def test_what_changes_places_or_as_a_whole_is_seen() -> None:
    values = some(2 * BLOCK)
    kinds = [values, values[::-1], -values, 4 * values, np.roll(values, BLOCK), np.zeros_like(values)]
    kinds += [np.full_like(values, value) for value in (-0.0, np.nan, np.inf, 1)]
    assert len({fingerprint(each) for each in kinds}) == len(kinds)


def test_nothing_is_a_value_as_well() -> None:
    assert fingerprint(np.zeros((0, 3), np.float32)) == fingerprint(np.zeros(0, np.float32))
    assert fingerprint(np.full(3, np.nan)) == fingerprint(np.full(3, np.nan))


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.bool, torch.complex128],
)
def test_sums_on_a_device_are_those_of_the_host(dtype: torch.dtype) -> None:
    tensor = torch.arange(2 * BLOCK + 3).to(dtype)
    bits = replicas._bits(tensor)
    on_device = combined(replicas._sums(bits).numpy())
    assert replicas.fingerprints([tensor, tensor[:0], tensor.reshape(-1, 1).t()]) == [
        on_device,
        fingerprint(np.zeros(0, np.int32)),
        on_device,
    ]


def test_strides_do_not_count() -> None:
    image = torch.randn(2, 3, 4, 4)
    assert replicas.fingerprints([image, image.to(memory_format=torch.channels_last)]) == 2 * [
        fingerprint(image.numpy())
    ]
