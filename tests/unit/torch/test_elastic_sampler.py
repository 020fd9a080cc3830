"""Who gets which samples: the arithmetic for all ranks, and the sampler as rank 0."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from horovod.elastic.sampler import remaining_indices, share
from horovod.errors import NotInitializedError
from horovod.torch.elastic import ElasticSampler, TorchState

MakeWorld = Callable[[int], object]


@pytest.mark.parametrize("replicas", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [0, 1, 2, 7, 20])
def test_shares_are_equally_long_and_leave_nothing_out(length: int, replicas: int) -> None:
    indices = list(range(100, 100 + length))
    shares = [share(indices, replicas, rank) for rank in range(replicas)]
    assert {len(part) for part in shares} == {-(-length // replicas)}
    dealt = [index for row in zip(*shares, strict=True) for index in row]
    assert dealt[:length] == indices
    # Padding begins again at the head, as often as needed.
    assert dealt[length:] == [indices[i % length] for i in range(len(dealt) - length)]


def test_order_is_that_of_the_standard_library() -> None:
    expected = list(range(10))
    random.Random(5 + 2).shuffle(expected)
    assert remaining_indices(10, True, 5, 2, 0) == expected
    assert remaining_indices(10, True, 5, 2, 4) == expected[4:]
    assert remaining_indices(10, False, 5, 2, 4) == list(range(4, 10))
    assert remaining_indices(10, False, 5, 2, 40) == []


def test_sampler_needs_a_world(no_world: None) -> None:
    with pytest.raises(NotInitializedError):
        ElasticSampler([1, 2])


def test_sampler_as_rank_0(make_world: MakeWorld) -> None:
    make_world(3)
    sampler = ElasticSampler(list("abcdefgh"), shuffle=False)
    assert isinstance(sampler, torch.utils.data.Sampler)
    assert (sampler.rank, sampler.num_replicas, sampler.num_samples, sampler.total_size) == (0, 3, 3, 9)
    assert (sampler.epoch, sampler.processed_num, sampler.processed_indices) == (0, 0, set())
    assert list(sampler) == [0, 3, 6]
    sampler.record_batch(0, 2)
    sampler.record_batch(5, 1)
    assert sampler.processed_num == 9
    assert list(sampler) == [0, 3, 6]
    sampler.reset()
    assert (list(sampler), len(sampler)) == ([], 0)
    sampler.set_epoch(2)
    assert sampler.state_dict() == {"epoch": 2, "processed_num": 0}
    sampler.load_state_dict({"epoch": 1, "processed_num": 3})
    assert sampler.remaining_indices == [3, 4, 5, 6, 7]
    assert list(sampler) == [3, 6]


def test_sampler_follows_the_world(make_world: MakeWorld) -> None:
    make_world(2)
    sampler = ElasticSampler(range(12))
    first = list(sampler)
    sampler.record_batch(0, 2)
    make_world(4)
    assert list(sampler) == first
    sampler.load_state_dict(sampler.state_dict())
    assert (sampler.num_replicas, len(sampler)) == (4, 2)
    make_world(2)
    again = ElasticSampler(range(12))
    assert list(again) == first
    again.set_epoch(1)
    assert list(again) != first


def test_fewer_samples_than_ranks(make_world: MakeWorld) -> None:
    make_world(5)
    sampler = ElasticSampler([0, 1], shuffle=False)
    assert (list(sampler), len(sampler), sampler.total_size) == ([0], 1, 5)


def test_a_state_shares_the_rest_anew_when_the_world_has_changed(make_world: MakeWorld) -> None:
    """A removal of hosts skips the sync: nobody else would tell the sampler."""
    make_world(2)
    sampler = ElasticSampler(range(8), shuffle=False)
    state = TorchState(None, None, sampler=sampler)
    sampler.record_batch(0, 1)
    make_world(1)
    state.on_reset()
    assert list(sampler) == [2, 3, 4, 5, 6, 7]
