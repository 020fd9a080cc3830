"""Copies of state dicts: equal, of their own memory, in memory that is used again, whole or not there."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.torch.models import two_layers

from horovod.torch.elastic.copies import Copies, copied


def test_a_copy_is_equal_and_shares_no_memory() -> None:
    value = {"a": [torch.arange(3.0), (np.ones(2), "text")], "b": {1: torch.zeros(0), None: 2.5}}
    made = copied(value)
    value["a"][0].zero_()  # type: ignore[index]
    value["a"][1][0][:] = 9  # type: ignore[index]
    assert made["a"][0].tolist() == [0, 1, 2]
    assert made["a"][1][0].tolist() == [1, 1]
    assert made["a"][1][1] == "text"
    assert (made["b"][1].shape, made["b"][None]) == ((0,), 2.5)


def test_the_copy_before_the_last_gives_its_memory() -> None:
    weight, array = torch.zeros(4), np.zeros(4)
    copies = Copies()
    places = []
    for number in range(6):
        weight.fill_(number)
        array.fill(number)
        copies.prepare({"weight": weight, "array": array, "step": number})
        copies.adopt()
        kept = copies._whole.value
        assert (kept["weight"].tolist(), kept["array"].tolist()) == ([number] * 4, [number] * 4)
        assert kept["step"] == number
        places.append((kept["weight"].data_ptr(), kept["array"].ctypes.data))
    assert places[2:] == places[:2] * 2
    assert places[0] != places[1]


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(5),
        torch.ones(2, 2),
        torch.ones(4, dtype=torch.float64),
        torch.ones(1).expand(4),
        torch.ones(8)[::2],
        torch.ones(4, requires_grad=True),
        torch.ones(4).to_sparse(),
        np.ones(4),
        "another kind",
        None,
    ],
    ids=str,
)
def test_what_does_not_fit_gets_memory_of_its_own(other: Any) -> None:
    old = {"x": torch.zeros(4)}
    for value, into in (({"x": other}, old), (old, {"x": other})):
        made = copied(value, into=into)["x"]
        expected = value["x"]
        assert type(made) is type(expected)
        if isinstance(expected, torch.Tensor):
            assert torch.equal(made.to_dense(), expected.to_dense())
            assert (made.dtype, made.layout) == (expected.dtype, expected.layout)
        else:
            assert np.array_equal(made, expected)


def test_memory_layout_is_kept() -> None:
    value = torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last)
    first = copied(value)
    assert first.stride() == value.stride()
    assert copied(value + 1, into=first) is first
    assert torch.equal(first, value + 1)


def test_what_is_shared_is_copied_once() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    made = copied({"a": weight.detach(), "b": weight.detach()})
    assert made["a"] is made["b"]


def test_what_is_shared_no_more_is_told_apart() -> None:
    tied = torch.ones(3)
    old = copied({"a": tied, "b": tied})
    made = copied({"a": torch.full((3,), 5.0), "b": torch.full((3,), 6.0)}, into=old)
    assert (made["a"].tolist(), made["b"].tolist()) == ([5.0] * 3, [6.0] * 3)


def test_a_copy_that_fails_leaves_the_last_one_whole() -> None:
    class Refuses:
        def __deepcopy__(self, memo: object) -> object:
            raise RuntimeError("not now")

    weight = torch.zeros(3)
    copies = Copies()
    for number in (1, 2):
        weight.fill_(number)
        copies.prepare({"weight": weight, "other": 0})
        copies.adopt()
    weight.fill_(3)
    with pytest.raises(RuntimeError, match="not now"):
        copies.prepare({"weight": weight, "other": Refuses()})
    assert copies.fresh()["weight"].tolist() == [2] * 3
    weight.fill_(4)
    copies.prepare({"weight": weight, "other": 0})
    copies.adopt()
    assert copies.fresh()["weight"].tolist() == [4] * 3


def test_versions_of_a_modules_parts_are_kept() -> None:
    state: Any = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).state_dict()
    made: Any = copied(state, into=copied(state))
    assert type(made) is OrderedDict
    assert vars(made) == vars(state)
    assert vars(made)["_metadata"] is not vars(state)["_metadata"]


def test_a_fresh_copy_is_nobodys_memory() -> None:
    model = two_layers()
    copies = Copies()
    copies.prepare(model.state_dict())
    copies.adopt()
    taken = copies.fresh()
    for tensor in taken.values():
        tensor.fill_(7)
    for name, tensor in copies.fresh().items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_the_first_copy_after_a_sync_takes_no_new_memory() -> None:
    weight = torch.zeros(4)
    copies = Copies()
    copies.prepare({"weight": weight})
    copies.adopt()
    place = copies._whole.value["weight"].data_ptr()
    copies.renew({"weight": weight.fill_(1)})
    assert copies._whole.value["weight"].data_ptr() == place
    copies.prepare({"weight": weight.fill_(2)})
    assert copies.fresh()["weight"].tolist() == [1] * 4
    copies.adopt()
    copies.renew({"weight": weight.fill_(3)})
    assert copies.fresh()["weight"].tolist() == [3] * 4


def test_sparse_tensors_are_copied_though_nothing_has_changed() -> None:
    value = {"weight": torch.zeros(4), "table": torch.eye(3).to_sparse()}
    copies = Copies()
    copies.prepare(value)
    copies.adopt()
    copies.note_equal(value)
    copies.renew({**value, "table": 2 * value["table"]})
    assert torch.equal(copies.fresh()["table"].to_dense(), 2 * torch.eye(3))
