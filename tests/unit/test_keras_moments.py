"""Statistics of several parts, combined; without other ranks, so that the parts are given by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from horovod._keras import moments

PARTS = [np.random.default_rng(rank).normal(size=(size, 4)) + 1e3 for rank, size in enumerate((5, 1, 0, 7))]


def summary(part: Any) -> Any:
    mean = part.sum(0) / max(len(part), 1)
    return np.stack([np.full(4, float(len(part))), mean, np.square(part - mean).sum(0)])


class Everybody:
    """The collectives, where what the others give is known."""

    def __init__(self, given: list[Any]) -> None:
        self.given = given

    def run_allgather(self, own: Any, name: str) -> Any:
        assert any(np.array_equal(own[0], each) for each in self.given)
        return np.stack(self.given)

    def run_allreduce(self, own: Any, out: Any, *_: Any) -> Any:
        return np.sum(self.given, axis=0)


def test_the_whole_is_as_if_it_were_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [summary(part) for part in PARTS]
    monkeypatch.setattr(moments, "collectives", Everybody(given))
    count, mean, variance = moments.combined(given[1])
    everything = np.concatenate(PARTS)
    np.testing.assert_array_equal(count, len(everything))
    np.testing.assert_allclose(mean, everything.mean(0), rtol=1e-14)
    np.testing.assert_allclose(variance, everything.var(0), rtol=1e-9)


def test_nothing_at_all_has_no_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "collectives", Everybody([np.zeros((3, 4))] * 2))
    np.testing.assert_array_equal(moments.combined(np.zeros((3, 4))), np.zeros((3, 4)))


@pytest.mark.parametrize("rank", range(len(PARTS)))
def test_the_gradient_is_that_of_differences(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    random = np.random.default_rng(3)
    upstream = [random.normal(size=(2, 4)) for _ in PARTS]
    given = [summary(part) for part in PARTS]

    def loss(own: Any) -> Any:
        monkeypatch.setattr(moments, "collectives", Everybody([*given[:rank], own, *given[rank + 1 :]]))
        return (np.sum(upstream, axis=0) * moments.combined(own)[1:]).sum(0)

    whole_of = Everybody(given)
    monkeypatch.setattr(moments, "collectives", whole_of)
    whole = moments.combined(given[rank])
    whole_of.given = upstream
    gradient = moments.gradient(upstream[rank], given[rank], whole)
    np.testing.assert_array_equal(gradient[0], 0.0)
    step = 1e-3
    for row in (1, 2):
        moved = np.zeros((3, 4))
        moved[row] = step
        difference = (loss(given[rank] + moved) - loss(given[rank] - moved)) / (2 * step)
        # Central differences are exact for what is quadratic, but for rounding: 1e3 * 2 ** -52 / step.
        np.testing.assert_allclose(gradient[row], difference, rtol=1e-6, atol=1e-8)
