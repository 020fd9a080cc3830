"""When replicas are compared, and what is said of what was found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from horovod.gradients.replica_report import Finding, ReplicaRow, find, sentence
from horovod.gradients.replicas import comes_after


def test_comparisons_become_rare() -> None:
    assert [step for step in range(1, 5000) if comes_after(step, 0)] == [
        *(1 << exponent for exponent in range(11)),
        *(2048, 3072, 4096),
    ]
    epochs = [[step for step in range(1, 101) if comes_after(step, joins)] for joins in range(100)]
    assert epochs[1] == [1, 2, 4, 8, 16, 32, 64]
    assert epochs[2] == [4, 8, 16, 32, 64]
    assert sum(map(len, epochs)) < 40  # of 10,000 steps
    assert any(epochs[63:])  # never none for ever


def rows(*given: ReplicaRow | None) -> Any:
    length = max(row.length for row in given if row is not None)
    return np.stack([np.zeros(length, np.int64) if row is None else row.numbers() for row in given])


def row(*prints: int, telling: bool = True, **other: Any) -> ReplicaRow:
    options = {"steps": 4, "broadcast": True, "covered": True, "bypassed": False, **other}
    return ReplicaRow(fingerprints=prints, telling=[telling] * len(prints), **options)


NAMES = ["fc.weight", "fc.bias"]
TOP = 1 << 63


def found(*given: ReplicaRow | None, equal_after: int = 0, joined: bool = False) -> Finding | None:
    return find(rows(*given), range(10, 10 + len(given)), NAMES, equal_after=equal_after, joined=joined)


def test_equal_rows_are_no_finding() -> None:
    assert found(row(TOP, 6), row(TOP, 6), row(TOP, 6)) is None
    assert found(None, row(TOP, 6), None) is None  # the others have joined
    assert found(row(2, 6, telling=False), row(2, 4, telling=False)) is None


def test_who_differs_is_told_from_most_ranks_and_else_from_the_first() -> None:
    most = found(row(2, 4), row(8, TOP), row(8, TOP))
    assert most is not None
    assert (most.ranks, most.others, most.tensors, most.teller) == ([10], [11, 12], NAMES, 10)
    two = found(None, row(2, 4), row(2, 6))
    assert two is not None
    assert (two.ranks, two.others, two.tensors, two.teller) == ([12], [11], ["fc.bias"], 11)


CAUSES: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("no rank has called", {"broadcast": False}, {"broadcast": False}, 0),
    ("rank 11 never called", {}, {"broadcast": False}, 0),
    ("not with these tensors", {}, {"covered": False}, 0),
    ("another learning rate", {}, {}, 0),
    ("another learning rate", {}, {}, 2),
    ("nobody has exchanged anything", {"bypassed": True, "broadcast": False}, {"bypassed": True}, 0),
    ("equal after step 2", {"broadcast": False}, {"broadcast": False}, 2),
    ("rank 10 has made 4, rank 11 has made 5", {}, {"steps": 5}, 2),
    ("since they were broadcast", {}, {}, 0),
]


@pytest.mark.parametrize(("said", "first", "second", "equal_after"), CAUSES)
def test_the_cause(said: str, first: dict[str, Any], second: dict[str, Any], equal_after: int) -> None:
    finding = found(row(2, 4, **first), row(2, 6, **second), equal_after=equal_after)
    assert finding is not None
    text = sentence(finding, 4, "hvd.broadcast_parameters(...)", "nobody has exchanged anything.")
    assert said in text
    assert text.startswith(
        "Replicas differ: after step 4 rank 11 has other weights than rank 10, in 1 of 2 tensors: fc.bias."
    )


def test_a_rank_that_had_joined_is_the_cause() -> None:
    finding = found(row(2, 4), row(2, 6), equal_after=2, joined=True)
    assert finding is not None
    assert "called hvd.join()" in sentence(finding, 4, "hvd.broadcast_parameters(...)")
