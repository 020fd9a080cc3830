from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.gpu.intervals import hidden_share, merged, of_profile


def test_intervals_that_touch_are_one() -> None:
    assert merged([(5, 6), (1, 2), (2, 3), (2.5, 2.7), (9, 9)]) == [(1, 3), (5, 6)]


@pytest.mark.parametrize(
    ("communication", "compute", "share"),
    [
        ([(0, 10)], [(0, 10)], 1.0),
        ([(0, 10)], [(10, 20)], 0.0),
        ([(0, 10)], [(5, 7), (6, 8), (9, 30)], 0.4),
        ([(0, 4), (2, 6), (10, 14)], [(5, 12)], 0.3),
        ([(0, 1)], [], 0.0),
    ],
)
def test_the_share_that_is_hidden(
    communication: list[tuple[float, float]], compute: list[tuple[float, float]], share: float
) -> None:
    assert hidden_share(communication, compute) == pytest.approx(share)


def test_no_communication_is_an_error() -> None:
    with pytest.raises(ValueError, match="No communication"):
        hidden_share([], [(0, 1)])


def test_a_profile_tells_communication_from_kernels() -> None:
    def event(name: str, begin: int, device: str = "DeviceType.CUDA") -> SimpleNamespace:
        return SimpleNamespace(
            name=name, device_type=device, time_range=SimpleNamespace(start=begin, end=begin + 1)
        )

    moving, computing = of_profile(
        [
            event("aten::mm", 0, "DeviceType.CPU"),
            event("ampere_sgemm_128x64_tn", 1),
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 2),
            event("Memcpy DtoH (Device -> Pinned)", 3),
            event("Memcpy HtoD (Pinned -> Device)", 4),
            event("Memcpy DtoD (Device -> Device)", 5),
            event("Memset (Device)", 6),
        ]
    )
    assert moving == [(2, 3), (3, 4), (4, 5)]
    assert computing == [(1, 2)]
