"""Messages of the comparison of replicas, for the cases of every framework."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from horovod.collectives import objects
from horovod.collectives.numpy_frontend import collectives
from horovod.gradients import replicas
from horovod.runtime import lifecycle

__all__ = ["everywhere", "is_named", "is_passed_over", "listening", "setting", "settle"]


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "Replicas" in record.getMessage():
            self.lines.append(record.getMessage())


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """Messages of this rank about replicas."""
    handler = _Said()
    logging.getLogger("horovod").addHandler(handler)
    try:
        yield handler.lines
    finally:
        logging.getLogger("horovod").removeHandler(handler)


@contextlib.contextmanager
def setting(value: str) -> Iterator[None]:
    """``HOROVOD_REPLICA_CHECK`` as ``value``."""
    config = lifecycle.current().config
    before = config.replica_check
    object.__setattr__(config, "replica_check", value)
    try:
        yield
    finally:
        object.__setattr__(config, "replica_check", before)


def everywhere(value: Any) -> list[Any]:
    """``value`` of every rank."""
    return objects.allgather_object(collectives, value)


def settle() -> None:
    """Wait for the comparisons of this process that are under way, on all ranks."""
    for check in _all():
        while check._pending:
            check.collect()


def _all() -> list[Any]:
    return list(replicas._net.checks)


def is_named(case: Callable[[], Any], *words: str) -> None:
    """The first rank alone says once what ``case`` has done, with ``words``."""
    settle()  # what cases before have left
    with listening() as lines:
        kept = case()
        settle()
    del kept
    said = everywhere(lines)
    assert [len(each) for each in said] == [1] + [0] * (len(said) - 1), said
    for word in words:
        assert word.format(last=len(said) - 1) in said[0][0], said[0][0]


def is_passed_over(case: Callable[[], Any], least: int = 1) -> None:
    """Nobody says anything, although at least so many sets of weights were compared in ``case``. It returns
    what has to live until that is known."""
    settle()
    for check in _all():
        check._equal_after = 0
    with listening() as lines:
        kept = case()
        settle()
    compared = [check for check in _all() if check._equal_after > 0]
    assert len(compared) >= least, f"{len(compared)} compared"
    del kept
    assert lines == [], lines
