"""Jobs that train with NumPy, and what must be true of each of them at its end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.elastic import sums
from tests.elastic.job import ROOT, ElasticJob

__all__ = ["EPOCHS", "FULL", "LONG", "RECORDS", "Train", "check_result", "part_of", "trainer"]

FULL = bool(os.environ.get("FARANDOLE_FULL_MATRIX"))
LONG = pytest.mark.skipif(not FULL, reason="FARANDOLE_FULL_MATRIX=1 runs it")
"""Not of the gate."""

EPOCHS, RECORDS, BATCH = 4, 48, 3

Train = Callable[..., ElasticJob]


def trainer(folder: Path) -> Train:
    """A function that starts such a job: its hosts, ``least`` ranks, options of ``horovodrun``. ``program``:
    what trains, in place of NumPy.
    """

    numbers = itertools.count()

    def train(
        hosts: Mapping[str, int],
        *options: str,
        processes: int | None = None,
        least: int = 1,
        epochs: int = EPOCHS,
        records: int = RECORDS,
        batch: int = BATCH,
        program: str = "numpy",
        **more: Any,
    ) -> ElasticJob:
        first = sum(hosts.values()) if processes is None else processes
        sizes = ("-np", str(first), "--min-np", str(least))
        words = [str(ROOT / f"tests/elastic/{program}_worker.py"), str(epochs)]
        if program == "numpy":
            words += [str(records), str(batch)]
        job = folder / str(next(numbers))
        return ElasticJob(job, words, hosts, *sizes, *options, **more)

    return train


def part_of(all_of_it: Iterable[Any], gate: Container[Any]) -> list[Any]:
    """Parameters of a test; the gate runs those that are in ``gate``."""
    return [
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=() if each in gate else LONG)
        for each in all_of_it
    ]


def check_result(job: ElasticJob, epochs: int | None = EPOCHS, records: int = RECORDS) -> None:
    """The job ended well: no sum was wrong, and each record was seen once per epoch. ``epochs``: how many
    there must have been; None: as many as there were.

    Raises:
        AssertionError: it did not, or something was.
    """
    status = job.finish()
    assert not job.been("wrong"), job.story()
    assert status == 0, job.story()
    last = job.been("done")
    assert len(last) == len(job.world), job.story()
    (done,) = {point["epoch"] for point in last}
    assert epochs is None or done == epochs
    assert {point["weights"] for point in last} == {sums.digest(sums.weights_after(done, records))}
