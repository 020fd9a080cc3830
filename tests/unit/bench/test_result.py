"""From timings to figures, a line of the table, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from horovod.bench.operations import OPERATIONS
from horovod.bench.output import ResultTable
from horovod.bench.result import Result, Timing, algorithm_bandwidth, bus_factor


def timing(median_s: float) -> Timing:
    return Timing(median_s, 2 * median_s, median_s / 2, calls=10, others_cpus=0.0)


def result(
    operation: str = "allreduce",
    ranks: int = 2,
    timings: Mapping[str, Sequence[float]] | None = None,
    size_bytes: int = 4_000_000,
) -> Result:
    given = timings or {
        "farandole": [1e-3, 2e-3, 4e-3],
        "limit": [5e-4, 1e-3, 1e-3],
        "gloo": [1e-2, 8e-3, 4e-2],
    }
    return Result(
        operation=operation,
        dtype="float32",
        op="sum" if size_bytes else "",
        size_bytes=size_bytes,
        count=size_bytes // 4,
        ranks=ranks,
        asynchronous=0,
        path="shm.large" if size_bytes else "",
        timings={library: [timing(each) for each in rounds] for library, rounds in given.items()},
    )


@pytest.mark.parametrize(
    ("operation", "of_two", "of_four"),
    [
        ("allreduce", 1.0, 1.5),
        ("grouped_allreduce", 1.0, 1.5),
        ("allgather", 0.5, 0.75),
        ("alltoall", 0.5, 0.75),
        ("reducescatter", 0.5, 0.75),
        ("broadcast", 1.0, 1.0),
        ("barrier", 0.0, 0.0),
    ],
)
def test_bus_factors_are_the_field_s(operation: str, of_two: float, of_four: float) -> None:
    assert (bus_factor(operation, 2), bus_factor(operation, 4)) == (of_two, of_four)


def test_every_operation_has_a_bus_factor_and_others_are_refused() -> None:
    assert all(bus_factor(operation, 8) >= 0 for operation in OPERATIONS)
    with pytest.raises(ValueError, match="'alreduce' is no operation"):
        bus_factor("alreduce", 2)


def test_bandwidth_counts_in_powers_of_ten() -> None:
    assert algorithm_bandwidth(2_000_000_000, 0.5) == 4.0
    assert algorithm_bandwidth(4, 0.0) == 0.0


def test_figures_are_medians_over_rounds() -> None:
    it = result(ranks=4)
    assert it.median_s() == 2e-3
    assert it.p99_s() == 4e-3
    assert it.algbw_gb_s() == pytest.approx(2.0)
    assert it.busbw_gb_s() == pytest.approx(3.0)
    assert it.busbw_gb_s("gloo") == pytest.approx(0.6)


def test_libraries_are_compared_round_by_round() -> None:
    it = result()
    assert it.ratios("gloo") == pytest.approx([10.0, 4.0, 10.0])
    assert it.ratio("gloo") == pytest.approx(10.0)  # the ratio of the medians would be 5
    assert it.share_of_limit() == pytest.approx(0.5)


def test_without_bytes_there_is_no_share_of_the_limit() -> None:
    assert result("barrier", timings={"farandole": [1e-6]}, size_bytes=0).share_of_limit() is None


def test_times_of_several_in_flight_are_per_operation() -> None:
    assert timing(8e-3).per(4) == Timing(2e-3, 4e-3, 1e-3, calls=10, others_cpus=0.0)


def test_table_says_names_units_and_figures() -> None:
    table = ResultTable(["gloo"])
    names, units = table.head().splitlines()
    assert names.split() == [
        *("#", "size", "count", "type", "op", "time", "p99", "algbw", "busbw", "limit", "path"),
        *("gloo", "ratio"),
    ]
    assert units.split() == ["#", "B", "us", "us", "GB/s", "GB/s", "%", "us"]
    row = table.row(result())
    assert row.split() == [
        *("4000000", "1000000", "float32", "sum", "2000", "4000", "2.00", "2.00", "50", "shm.large"),
        *("10000", "10.00"),
    ]


def test_columns_of_the_table_stand_below_their_names() -> None:
    table = ResultTable(["gloo", "mpi"])
    timings = {"farandole": [1.5e-6], "limit": [1e-6], "gloo": [1.236e-4], "mpi": [2e-6]}
    names, row = table.head().splitlines()[0], table.row(result(timings=timings))
    assert len(names) == len(row)
    for name, cell in (("time", "1.50"), ("p99", "3.00"), ("path", "shm.large"), ("gloo", "123.6")):
        assert row[: names.index(f" {name} ") + len(name) + 1].endswith(f" {cell}"), (name, cell)


def test_barrier_has_no_bandwidth() -> None:
    row = ResultTable().row(result("barrier", timings={"farandole": [1e-6]}, size_bytes=0))
    assert row.split() == ["0", "0", "-", "-", "1.00", "2.00", "-", "-", "-", "-"]


def test_json_holds_every_round_of_every_library() -> None:
    told = json.loads(json.dumps(result().as_json()))
    libraries = told.pop("libraries")
    assert told == {
        "operation": "allreduce",
        "dtype": "float32",
        "op": "sum",
        "bytes": 4_000_000,
        "count": 1_000_000,
        "asynchronous": 0,
        "path": "shm.large",
        "share_of_limit": 0.5,
    }
    assert set(libraries) == {"farandole", "limit", "gloo"}
    for library in libraries.values():
        assert set(library) == {"median_s", "p99_s", "algbw_gb_s", "busbw_gb_s", "ratio", "rounds"}
        assert set(library["ratio"]) == {"median", "low", "high"}
        assert len(library["rounds"]) == 3
        assert set(library["rounds"][0]) == {"median_s", "p99_s", "min_s", "calls", "others_cpus"}
    assert libraries["gloo"]["ratio"] == pytest.approx({"median": 10.0, "low": 4.0, "high": 10.0})
    assert libraries["farandole"]["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
