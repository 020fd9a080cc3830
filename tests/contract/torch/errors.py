"""Misuse: which exception it raises, on which ranks, and that everything works afterwards."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.contract.torch.values import assert_same
from tests.contract.world import Cases

import horovod.torch as hvd
from horovod.errors import MismatchError

CASES = Cases()


def works(name: str | None = None) -> None:
    """The world is in order, and ``name`` is free again."""
    assert_same(hvd.allreduce(torch.ones(3), name=name, op=hvd.Sum), torch.full((3,), float(hvd.size())))


def disagree(call: Callable[[], Any], message: str) -> None:
    """``call`` differs between ranks: the same error on all of them."""
    if hvd.size() == 1:
        return
    with pytest.raises(hvd.HorovodInternalError, match=message) as info:
        call()
    assert isinstance(info.value, MismatchError)
    texts = hvd.allgather_object(str(info.value))
    assert len(set(texts)) == 1, texts


@CASES.add
def shapes_that_differ() -> None:
    value = torch.ones(17 + hvd.rank(), 3)
    disagree(lambda: hvd.allreduce(value, name="e.shape"), r"Mismatched ALLREDUCE tensor shapes: .*\[17, 3\]")
    works("e.shape")
    disagree(lambda: hvd.broadcast(value, 0, name="e.shape"), "Mismatched BROADCAST tensor shapes")
    disagree(lambda: hvd.grouped_allreduce([torch.ones(2), value], name="e.shape"), "Mismatched ALLREDUCE")
    works("e.shape")


@CASES.add
def dimensions_that_differ() -> None:
    value = torch.ones(4, 4) if hvd.rank() % 2 else torch.ones(16)
    disagree(lambda: hvd.allreduce(value, name="e.dims"), "Mismatched ALLREDUCE tensor shapes")
    disagree(lambda: hvd.allgather(value, name="e.dims"), "Mismatched ALLGATHER tensor shapes: .* of rank")
    works("e.dims")


@CASES.add
def sparse_and_dense() -> None:
    dense = torch.eye(3)

    def call() -> None:
        if hvd.rank() == 0:
            hvd.sparse_allreduce_async(dense.to_sparse(), "e.sparse", hvd.Average)()
        else:
            hvd.allreduce(dense, name="e.sparse")

    if hvd.size() > 1:
        with pytest.raises(hvd.HorovodInternalError, match=r"ALLGATHER.*sparse_as_dense"):
            call()
    works("e.sparse")


@CASES.add
def dtypes_that_differ() -> None:
    value = torch.ones(4, dtype=torch.float64 if hvd.rank() % 2 else torch.int32)
    pattern = "Mismatched data types: One rank had type (float64|int32), but another rank had type"
    disagree(lambda: hvd.allreduce(value, name="e.dtype"), pattern)
    disagree(lambda: hvd.allgather(value, name="e.dtype"), pattern)
    disagree(lambda: hvd.broadcast(value, 0, name="e.dtype"), pattern)
    works("e.dtype")


@CASES.add
def operators_that_differ() -> None:
    op = hvd.Max if hvd.rank() % 2 else hvd.Min
    disagree(lambda: hvd.allreduce(torch.ones(2), name="e.op", op=op), "Mismatched reduction operation")
    works("e.op")


@CASES.add
def factors_that_differ() -> None:
    factor = 1.0 + hvd.rank() % 2
    message = "Mismatched prescale and/or postscale factors"
    disagree(lambda: hvd.allreduce(torch.ones(2), name="e.f", prescale_factor=factor), message)
    disagree(lambda: hvd.allreduce(torch.ones(2), name="e.f", postscale_factor=factor), message)
    works("e.f")


@CASES.add
def roots_that_differ() -> None:
    disagree(
        lambda: hvd.broadcast(torch.ones(2), hvd.rank(), name="e.root"),
        "Mismatched BROADCAST root ranks: One rank specified root rank",
    )
    works("e.root")


@CASES.add
def rows_of_an_allgather_may_differ_but_not_the_rest() -> None:
    value = torch.ones(3, 4 + hvd.rank() % 2)
    disagree(lambda: hvd.allgather(value, name="e.tail"), "Mismatched ALLGATHER tensor shapes: .* dimension")
    disagree(lambda: hvd.grouped_allgather([value], name="e.tail"), "Mismatched ALLGATHER tensor shapes")
    works("e.tail")


@CASES.add
def a_known_name_with_another_shape() -> None:
    for step in range(4):
        shape = (3 + step,)
        assert_same(hvd.allreduce(torch.ones(shape), name="e.known"), torch.ones(shape), 1e-6)
    value = torch.ones(7 if hvd.rank() == 0 else 6)
    disagree(lambda: hvd.allreduce(value, name="e.known"), "Mismatched ALLREDUCE tensor shapes")
    works("e.known")


@CASES.add
def the_error_of_an_asynchronous_operation_comes_with_synchronize() -> None:
    if hvd.size() == 1:
        return
    good = hvd.allreduce_async(torch.ones(2), name="e.good", op=hvd.Sum)
    bad = hvd.allreduce_async(torch.ones(2 + hvd.rank()), name="e.bad")
    with pytest.raises(hvd.HorovodInternalError):
        hvd.synchronize(bad)
    assert hvd.synchronize(bad) is None
    with pytest.raises(ValueError):
        hvd.poll(bad)
    assert_same(hvd.synchronize(good), torch.full((2,), float(hvd.size())))


@CASES.add
def a_scalar_cannot_be_gathered() -> None:
    with pytest.raises(IndexError):
        hvd.allgather(torch.tensor(1.0))
    with pytest.raises(hvd.HorovodInternalError, match="rank-zero tensor"):
        hvd.synchronize(hvd.allgather_async(torch.tensor(1.0), name="e.scalar"))
    works("e.scalar")


@CASES.add
def what_is_no_tensor() -> None:
    none: tuple[Any, ...] = ([1.0], None, 3)
    for given in none:
        for call in (hvd.allreduce, hvd.allgather, hvd.reducescatter, hvd.alltoall):
            with pytest.raises(ValueError):
                call(given)
    works()


@CASES.add
def roots_that_do_not_exist() -> None:
    for root in (-1, hvd.size(), 1000):
        for call in (hvd.broadcast, hvd.broadcast_, hvd.broadcast_async, hvd.broadcast_async_):
            with pytest.raises(ValueError, match="invalid root rank"):
                call(torch.ones(1), root)
    works()


@CASES.add
def roots_that_no_world_has() -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda root: hvd.broadcast(torch.ones(1), root),
        lambda root: hvd.broadcast_(torch.ones(1), root),
        lambda root: hvd.broadcast_async(torch.ones(1), root),
        lambda root: hvd.reduce(torch.ones(1), root),
        lambda root: hvd.reduce_async_(torch.ones(1), root),
        lambda root: hvd.grouped_reduce([torch.ones(1)], root),
        lambda root: hvd.broadcast_parameters([torch.ones(1)], root),
        lambda root: hvd.broadcast_object(1, root),
    ]
    for root, message in (
        (2**40, "root_rank=1099511627776 is out of range"),
        (-(2**40), "out of range"),
        (2**31, "out of range"),
        ("0", "root_rank must be the number of a rank, such as 0, got '0'"),
        (None, "must be the number of a rank"),
        (0.0, "must be the number of a rank"),
    ):
        for call in calls:
            with pytest.raises(ValueError, match=message):
                call(root)
    works()


@CASES.add
def factors_that_are_no_numbers() -> None:
    wrong: Any = "2"
    with pytest.raises(ValueError, match="prescale_factor must be a number, got '2'"):
        hvd.allreduce(torch.ones(2), prescale_factor=wrong)
    with pytest.raises(ValueError, match="postscale_factor must be a number, got '2'"):
        hvd.reducescatter(torch.ones(2), postscale_factor=wrong)
    works()


def duplicate_case(submit: Callable[[str], int]) -> None:
    """The second submission of a name is refused while the first is pending; the first is not affected."""
    if hvd.size() == 1:
        return
    for first_to_submit in range(hvd.size()):
        if hvd.rank() == first_to_submit:  # pending for sure: the others submit after the barrier
            first = submit("e.twice")
            with pytest.raises(ValueError, match="same name as another tensor"):
                submit("e.twice")
        hvd.barrier()
        if hvd.rank() != first_to_submit:
            first = submit("e.twice")
        assert hvd.synchronize(first) is not None


CASES.add_as(
    "a_name_twice_allreduce", lambda: duplicate_case(lambda n: hvd.allreduce_async(torch.ones(2), name=n))
)
CASES.add_as(
    "a_name_twice_allgather", lambda: duplicate_case(lambda n: hvd.allgather_async(torch.ones(2), name=n))
)
CASES.add_as(
    "a_name_twice_broadcast", lambda: duplicate_case(lambda n: hvd.broadcast_async(torch.ones(2), 0, name=n))
)
CASES.add_as(
    "a_name_twice_group",
    lambda: duplicate_case(lambda n: hvd.grouped_allreduce_async([torch.ones(2), torch.ones(1)], name=n)),
)


@CASES.add
def local_errors_do_not_disturb_the_others() -> None:
    # In turns: a refused submission counts for the numbering of unnamed operations.
    for culprit in range(hvd.size()):
        if hvd.rank() == culprit:
            for wrong in (
                lambda: hvd.allreduce(torch.ones(3, 4).t(), name="e.local"),
                lambda: hvd.allreduce(torch.ones(3, dtype=torch.complex64), name="e.local"),
                lambda: hvd.grouped_allreduce([torch.ones(1), torch.ones(2, 2).t()], name="e.local"),
                lambda: hvd.broadcast(torch.ones(3), hvd.size(), name="e.local"),
            ):
                with pytest.raises(ValueError):
                    wrong()
        works("e.local")


@CASES.add
def unknown_operators_are_refused() -> None:
    for op in (-1, 6, 1000):
        with pytest.raises(ValueError, match=rf"op={op} is no reduction\. There are hvd\.Average, "):
            hvd.allreduce(torch.ones(2), name="e.unknown", op=op)
        with pytest.raises(ValueError, match="is no reduction"):
            hvd.reduce_async(torch.ones(2), 0, name="e.unknown", op=op)
    works("e.unknown")


@CASES.add
def names_may_be_any_text() -> None:
    for name in (" ", "ünïcødé", 'quote " and \\', "a" * 3000, "nul\0inside"):
        works(name)


@CASES.add
def a_forked_child_is_told_so() -> None:
    """The child gets an error instead of a hang, and the parent's world is not disturbed by it or its end."""
    handle = hvd.allreduce_async(torch.ones(2), name="e.fork", op=hvd.Sum)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                hvd.allreduce(torch.ones(1))
            except hvd.HorovodInternalError as error:
                code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    limit = time.monotonic() + 10
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the forked child hangs")
        time.sleep(0.01)  # between two looks at the child, bounded by the limit above
    assert os.waitstatus_to_exitcode(status) == 0
    assert_same(hvd.synchronize(handle), torch.full((2,), float(hvd.size())))
    works()


@CASES.add
def interrupting_a_wait() -> None:
    """Ctrl-C ends a wait; the operation stays usable."""
    if hvd.size() == 1:
        return
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(2), name="e.interrupt", op=hvd.Sum)
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))

        def wait() -> None:
            timer.start()
            hvd.synchronize(handle)

        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
        assert time.monotonic() - begin < 2.0
    # The others look from time to time: if they waited too, that would be a deadlock until the signal comes.
    over = hvd.allreduce_async(torch.ones(1), name="e.interrupted")
    while not hvd.poll(over):
        time.sleep(0.01)
    hvd.synchronize(over)
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(torch.ones(2), name="e.interrupt", op=hvd.Sum)
    assert_same(hvd.synchronize(handle), torch.full((2,), float(hvd.size())))


@CASES.add
def several_threads_at_once() -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(20):
                value = torch.full((100 * (number + 1),), float(step))
                result = hvd.allreduce(value, name=f"thread.{number}.{step}", op=hvd.Sum)
                assert_same(result, value * hvd.size())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(25)
        assert not thread.is_alive()
    assert not failures, failures
