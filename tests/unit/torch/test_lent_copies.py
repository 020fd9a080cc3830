"""Copies that another rank of the host has without making one: equal, whole, and nobody writes to them."""

from __future__ import annotations

import os
from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch

from horovod.elastic.state_memory import StateMemory
from horovod.torch.elastic.copies import Copies, Lent

ELEMENTS = 1 << 19  # 2 MiB


def large(fill: float) -> torch.Tensor:
    return torch.full((ELEMENTS,), fill)


def committed(value: Any) -> Copies:
    copies = Copies()
    commit(copies, value)
    copies.note_equal(value)
    return copies


def commit(copies: Copies, value: Any) -> None:
    copies.prepare(value)
    copies.adopt()


def lent(copies: Copies, value: Any) -> Lent:
    loan = copies.lend(value)
    assert loan is not None
    return loan


def is_borrowed(copies: Copies) -> bool:
    memory = copies._whole.memory
    return memory is not None and not memory.owned


def place(copies: Copies, name: str = "weight") -> int:
    address: int = copies._whole.value[name].data_ptr()
    return address


def test_a_borrowed_copy_stays_what_it_was_while_the_lender_goes_on() -> None:
    mine = {"weight": large(1.0), "step": 7}
    theirs = {"weight": large(1.0), "step": 7}
    lender, borrower = committed(mine), committed({"weight": large(9.0), "step": 0})
    borrower.borrow(theirs, lent(lender, mine))
    assert borrower.fresh()["weight"][0] == 9.0  # until it is adopted
    lender.settle()
    lender.renew(mine)
    borrower.renew(theirs)
    assert is_borrowed(borrower)
    for number in (2.0, 3.0, 4.0):
        mine["weight"].fill_(number)  # type: ignore[attr-defined]
        commit(lender, mine)
        assert lender.fresh()["weight"][-1] == number
        fresh = borrower.fresh()
        assert (fresh["weight"].unique().tolist(), fresh["step"]) == ([1.0], 7)


def test_memory_goes_back_to_its_lender_when_the_borrower_commits() -> None:
    mine, theirs = {"weight": large(1.0)}, {"weight": large(1.0)}
    lender, borrower = committed(mine), committed(theirs)
    first, own = place(lender), place(borrower)
    borrower.borrow(theirs, lent(lender, mine))
    lender.settle()
    lender.renew(mine)
    borrower.renew(theirs)
    commit(lender, mine)
    theirs["weight"].fill_(5.0)
    commit(borrower, theirs)
    assert place(borrower) == own  # what it had before is used again
    assert not is_borrowed(borrower)
    commit(lender, mine)
    assert place(lender) == first
    assert borrower.fresh()["weight"].unique().tolist() == [5.0]


def test_a_borrower_can_lend() -> None:
    value = {"weight": large(1.0)}
    lender, second, third = committed(value), committed(value), committed(value)
    second.borrow(value, lent(lender, value))
    lender.settle()
    second.renew(value)
    del lender
    second.note_equal(value)
    third.borrow(value, lent(second, value))
    second.settle()
    third.renew(value)
    assert is_borrowed(third)
    second.renew(value)
    commit(second, {"weight": large(8.0)})
    assert third.fresh()["weight"].unique().tolist() == [1.0]


def test_only_what_is_known_to_be_equal_is_lent() -> None:
    value: Any = {"weight": large(1.0), "bias": torch.zeros(3)}
    copies = committed(value)
    assert copies.lend(value) is not None
    value["bias"].add_(1)
    assert copies.lend(value) is None
    commit(copies, value)
    assert copies.lend(value) is None  # nobody has said so
    copies.note_equal(value)
    assert copies.lend({**value, "other": torch.zeros(3)}) is None
    assert copies.lend({"weight": value["weight"]}) is None
    assert copies.lend(value) is not None
    copies.forget_equal()
    assert copies.lend(value) is None


def test_what_is_lent_is_not_written_to_by_the_next_sync() -> None:
    value, other = {"weight": large(1.0)}, {"weight": large(1.0)}
    lender, borrower = committed(value), committed(other)
    borrower.borrow(other, lent(lender, value))
    lender.settle()
    lender.renew(value)
    borrower.renew(other)
    lender.renew({"weight": large(2.0)})  # the first sync: there is no spare
    assert lender.fresh()["weight"][0] == 2.0
    assert borrower.fresh()["weight"].unique().tolist() == [1.0]


def test_small_states_are_not_lent() -> None:
    value = {"weight": torch.zeros(100)}
    assert committed(value).lend(value) is None


@pytest.mark.parametrize(
    "theirs",
    [
        {"weight": large(1.0).reshape(2, -1)},
        {"weight": large(1.0).double()},
        {"weight": large(1.0), "more": torch.ones(1)},
        {"other": large(1.0)},
        {"weight": large(1.0).reshape(1, 2, 512, -1).to(memory_format=torch.channels_last)},
    ],
    ids=["shape", "dtype", "more", "name", "order"],
)
def test_another_layout_is_copied(theirs: dict[str, torch.Tensor]) -> None:
    mine = {"weight": large(1.0)}
    lender, borrower = committed(mine), committed(theirs)
    borrower.borrow(theirs, lent(lender, mine))
    borrower.renew(theirs)
    assert not is_borrowed(borrower)
    for name, tensor in borrower.fresh().items():
        assert torch.equal(tensor, theirs[name])


def test_the_order_of_names_does_not_matter() -> None:
    mine = {"a": large(1.0), "b": large(2.0)}
    theirs = {"b": large(2.0), "a": large(1.0)}
    lender, borrower = committed(mine), committed(theirs)
    borrower.borrow(theirs, lent(lender, mine))
    borrower.renew(theirs)
    assert is_borrowed(borrower)
    assert {name: each[0].item() for name, each in borrower.fresh().items()} == {"a": 1.0, "b": 2.0}


def test_all_kinds_of_tensors_arrive() -> None:
    tied = large(3.0)

    def state() -> dict[str, Any]:
        nest = defaultdict(list, {"deep": [torch.tensor([7.0])]})
        return {
            "state": {
                0: {"step": torch.tensor(3.0), "moment": large(1.0).reshape(64, -1)},
                1: (torch.arange(5), [torch.ones(2, dtype=torch.bfloat16)]),
            },
            "images": torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last),
            "tied": (tied, tied.detach()),
            "nothing": torch.zeros(0),
            "gaps": torch.arange(8.0)[::2],
            "expanded": torch.ones(1).expand(4),
            "imaginary": torch.ones(3, dtype=torch.complex64).conj() * 1j,
            "sparse": torch.eye(3).to_sparse(),
            "other container": nest,
            "rate": 0.1,
        }

    mine, theirs = state(), state()
    lender, borrower = committed(mine), committed(theirs)
    borrower.borrow(theirs, lent(lender, mine))
    lender.settle()
    lender.renew(mine)
    borrower.renew(theirs)
    assert is_borrowed(borrower)
    for _ in range(3):
        commit(lender, mine)
    torch.testing.assert_close(_dense(borrower.fresh()), _dense(mine), rtol=0, atol=0)
    fresh = borrower.fresh()
    assert fresh["tied"][0] is fresh["tied"][1]
    assert fresh["images"].stride() == mine["images"].stride()


def _dense(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "sparse": value["sparse"].to_dense()}


def test_a_state_that_grows_gets_new_memory_once() -> None:
    value: dict[str, Any] = {"weight": large(1.0)}
    copies = committed(value)
    value["moment"] = large(2.0)
    places = []
    for number in range(6):
        value["moment"].fill_(number)
        commit(copies, value)
        assert copies.fresh()["moment"].unique().tolist() == [number]
        places.append((place(copies), place(copies, "moment")))
    assert places[2:] == places[:2] * 2
    copies.note_equal(value)
    assert copies.lend(value) is not None


def test_without_memory_for_others_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    value = {"weight": large(1.0)}
    copies = Copies()
    places = []
    for number in range(6):
        value["weight"].fill_(number)
        commit(copies, value)
        assert copies.fresh()["weight"].unique().tolist() == [number]
        places.append(place(copies))
    assert places[2:] == places[:2] * 2
    copies.note_equal(value)
    assert copies.lend(value) is None
    monkeypatch.undo()
    for _ in range(4):  # there is some now
        commit(copies, value)
    copies.note_equal(value)
    assert copies.lend(value) is not None
    assert len(copies._spares) == 1


def test_who_may_not_look_makes_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"weight": large(1.0)}
    lender, borrower = committed(value), committed(value)

    def refuse(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    loan = lent(lender, value)
    monkeypatch.setattr(os, "readlink", refuse)
    borrower.borrow(value, loan)
    borrower.renew(value)
    assert not is_borrowed(borrower)
    assert borrower.fresh()["weight"].unique().tolist() == [1.0]


def test_what_was_borrowed_in_a_sync_that_failed_is_forgotten() -> None:
    mine, theirs = {"weight": large(1.0)}, {"weight": large(1.0)}
    lender, borrower = committed(mine), committed({"weight": large(9.0)})
    borrower.borrow(theirs, lent(lender, mine))
    # The sync fails here, and the next one finds nothing to borrow.
    assert borrower.fresh()["weight"][0] == 9.0
    borrower.borrow({"weight": large(4.0)}, None)
    borrower.renew({"weight": large(4.0)})
    assert borrower.fresh()["weight"].unique().tolist() == [4.0]
    memory: StateMemory | None = lender._whole.memory
    assert memory is not None
    assert not memory.writable()  # nobody has said that all who want it have it
    for _ in range(4):
        commit(lender, mine)
        assert lender._whole.memory is not memory


def test_versions_of_a_modules_parts_are_borrowed() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(600, 600))
    state: Any = model.state_dict()
    lender, borrower = committed(state), committed(state)
    borrower.borrow(state, lent(lender, state))
    borrower.renew(state)
    assert is_borrowed(borrower)
    fresh = borrower.fresh()
    assert type(fresh) is OrderedDict
    assert vars(fresh) == vars(state)
