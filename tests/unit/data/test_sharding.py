"""Positions in arrays: every rank gets equally many, and all together get all of them."""

from __future__ import annotations

import numpy as np
import pytest

from horovod.data import IndexShard, shard_indices
from horovod.errors import InvalidArgumentError, NotInitializedError
from horovod.runtime.process_set import ProcessSet


def shards(count: int, size: int, remainder: str, seed: int | None = None) -> list[IndexShard]:
    return [
        shard_indices(count, remainder=remainder, seed=seed, rank=rank, size=size) for rank in range(size)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 12, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", [None, 3])
def test_repeat_gives_all_samples_and_ranks_equally_many(count: int, size: int, seed: int | None) -> None:
    dealt = shards(count, size, "repeat", seed)
    assert {len(shard) for shard in dealt} == {-(-count // size)}
    assert set(np.concatenate([shard.indices for shard in dealt]).tolist()) == set(range(count))


@pytest.mark.parametrize(("count", "size"), [(2, 2), (7, 3), (12, 5), (100, 7)])
def test_drop_gives_no_sample_twice_and_ranks_equally_many(count: int, size: int) -> None:
    dealt = shards(count, size, "drop", 5)
    assert {len(shard) for shard in dealt} == {count // size}
    everything = np.concatenate([shard.indices for shard in dealt])
    assert len(set(everything.tolist())) == len(everything)
    assert all(shard.real.all() for shard in dealt)


@pytest.mark.parametrize(("count", "size"), [(1, 4), (7, 3), (12, 4), (5, 4)])
def test_marks_of_pad_count_every_sample_once(count: int, size: int) -> None:
    dealt = shards(count, size, "pad")
    real = np.concatenate([shard.indices[shard.real] for shard in dealt])
    assert sorted(real.tolist()) == list(range(count))
    assert {len(shard) for shard in dealt} == {-(-count // size)}


def test_without_seed_the_order_is_kept_and_with_seed_it_changes_with_the_epoch() -> None:
    assert shard_indices(6, rank=1, size=2).indices.tolist() == [1, 3, 5]
    orders = [shard_indices(50, seed=1, epoch=epoch, rank=0, size=2).indices for epoch in (0, 0, 1)]
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])


def test_positions_index_arrays() -> None:
    images = np.arange(10).reshape(5, 2)
    shard = shard_indices(5, rank=1, size=2)
    assert shard.indices.dtype == np.int64
    assert images[shard.indices].tolist() == [[2, 3], [6, 7], [0, 1]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"count": 0, "rank": 0, "size": 2}, "no samples"),
        ({"count": -1, "rank": 0, "size": 2}, "count"),
        ({"count": 1.5, "rank": 0, "size": 2}, "count"),
        ({"count": 1, "rank": 0, "size": 2, "remainder": "drop"}, "rank 1 would have none"),
        ({"count": 4, "rank": 0, "size": 2, "remainder": "throw"}, "'repeat', 'drop', 'pad'"),
        ({"count": 4, "rank": 2, "size": 2}, "no rank 2 among 2"),
        ({"count": 4, "rank": -1, "size": 2}, "no rank -1"),
        ({"count": 4, "rank": 0, "size": 0}, "among 0"),
        ({"count": 4, "rank": "0", "size": 2}, "integers"),
        ({"count": 4, "rank": 0}, "both rank and size"),
        ({"count": 4, "size": 2}, "both rank and size"),
        ({"count": 4, "rank": 0, "size": 2, "process_set": ProcessSet([0])}, "not both"),
        ({"count": 4, "process_set": ProcessSet([0])}, "not registered"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        shard_indices(**arguments)  # type: ignore[arg-type]


def test_the_place_of_this_process_is_asked_of_the_world() -> None:
    with pytest.raises(NotInitializedError):
        shard_indices(4)
