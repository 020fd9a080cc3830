"""Loading ahead in a thread looks like loading in the loop. Every wait is bounded."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.data.data_loader_base import AsyncDataLoaderMixin as SameMixin

pytestmark = pytest.mark.timeout(30)

LIMIT_S = 20.0


class Numbers(BaseDataLoader):
    """Batches 0 … count-1, with the number of the pass in front."""

    def __init__(self, count: int = 5, make: Callable[[int, int], Any] | None = None) -> None:
        self.count = count
        self.make = make or (lambda number, batch: (number, batch))
        self.passes = 0

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[Any]:
        self.passes += 1
        number = self.passes
        for batch in range(self.count):
            yield self.make(number, batch)


class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    pass


def batches(numbers: Any) -> list[int]:
    return [batch for _, batch in numbers]


def within_limit(work: Callable[[], Any]) -> Any:
    """Run ``work`` in a thread, as it may hang."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive(), "it hangs"
    return results[0]


def test_base_asks_subclasses_for_length_and_batches() -> None:
    with pytest.raises(NotImplementedError):
        len(BaseDataLoader())
    with pytest.raises(NotImplementedError):
        list(BaseDataLoader())
    assert SameMixin is AsyncDataLoaderMixin


def test_base_processes_every_batch() -> None:
    class Doubled(Numbers):
        def _process_batch(self, batch: Any) -> Any:
            return batch[1] * 2

    assert list(Doubled(3)) == [0, 2, 4]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 64])
def test_each_loop_is_one_pass_in_order(size: int) -> None:
    loader = AsyncNumbers(size, count=5)
    assert len(loader) == 5
    for _ in range(4):
        assert batches(loader) == [0, 1, 2, 3, 4]
    within_limit(loader.close_async_loader)


@pytest.mark.parametrize("size", [1, 64])
def test_an_empty_pass_is_empty(size: int) -> None:
    loader = AsyncNumbers(size, count=0)
    assert [list(loader), list(loader)] == [[], []]
    within_limit(loader.close_async_loader)


def test_size_0_loads_in_the_loop() -> None:
    threads = set()
    loader = AsyncNumbers(0, make=lambda *_: threads.add(threading.current_thread()))
    assert loader.passes == 0
    list(loader)
    assert threads == {threading.current_thread()}
    loader.close_async_loader()
    assert len(list(loader)) == 5


def test_batches_are_made_in_a_thread_and_processed_in_the_loop() -> None:
    made, processed = set(), set()

    class Loader(AsyncNumbers):
        def _process_batch(self, batch: Any) -> Any:
            processed.add(threading.current_thread())
            return batch

    loader = Loader(4, make=lambda *_: made.add(threading.current_thread()))
    list(loader)
    within_limit(loader.close_async_loader)
    assert processed == {threading.current_thread()}
    assert len(made) == 1
    assert made != processed


def test_none_is_a_batch_like_any_other() -> None:
    loader = AsyncNumbers(2, count=3, make=lambda *_: None)
    assert list(loader) == [None, None, None]
    within_limit(loader.close_async_loader)


def test_nothing_is_made_before_the_first_loop_and_no_more_than_fits() -> None:
    made = threading.Semaphore(0)
    count = itertools.count()

    def make(number: int, batch: int) -> int:
        made.release()
        return next(count)

    loader = AsyncNumbers(2, count=100, make=make)
    assert not made.acquire(blocking=False)
    it = iter(loader)
    assert next(it) == 0
    # One taken, two waiting, one in the hand of the thread.
    for _ in range(4):
        assert made.acquire(timeout=LIMIT_S)
    assert not made.acquire(timeout=0.1)
    within_limit(loader.close_async_loader)


def test_the_next_pass_is_prepared_during_the_present_one() -> None:
    second = threading.Event()
    loader = AsyncNumbers(64, count=3, make=lambda number, batch: second.set() if number == 2 else None)
    it = iter(loader)
    next(it)
    assert second.wait(LIMIT_S)
    within_limit(loader.close_async_loader)


@pytest.mark.parametrize("size", [1, 2, 64])
@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_a_loop_that_breaks_off_leaves_nothing_to_the_next(size: int, taken: int) -> None:
    loader = AsyncNumbers(size, count=5)
    for _ in range(3):
        assert batches(itertools.islice(loader, taken)) == list(range(taken))
        assert batches(loader) == [0, 1, 2, 3, 4]
    within_limit(loader.close_async_loader)


def test_breaking_off_an_endless_pass() -> None:
    class Endless(AsyncDataLoaderMixin, BaseDataLoader):
        def _iterate(self) -> Iterator[int]:
            return itertools.count()

    loader = Endless(3)
    for _ in range(3):
        assert list(itertools.islice(loader, 10)) == list(range(10))
    within_limit(loader.close_async_loader)


def test_the_generator_of_a_pass_that_is_given_up_is_closed() -> None:
    closed = threading.Event()

    class Loader(AsyncDataLoaderMixin, BaseDataLoader):
        def _iterate(self) -> Iterator[int]:
            try:
                yield from range(100)
            finally:
                closed.set()

    loader = Loader(1)
    for _ in loader:
        break
    assert closed.wait(LIMIT_S)
    within_limit(loader.close_async_loader)


@pytest.mark.parametrize("size", [0, 1, 2, 64])
def test_an_exception_comes_at_its_place_and_the_next_loop_starts_anew(size: int) -> None:
    def make(number: int, batch: int) -> int:
        if number != 3 and batch == 2:
            raise KeyError(number)
        return batch

    loader = AsyncNumbers(size, count=4, make=make)
    for number in (1, 2):
        got: list[int] = []
        with pytest.raises(KeyError, match=str(number)):
            got.extend(loader)
        assert got == [0, 1]
    assert list(loader) == [0, 1, 2, 3]
    within_limit(loader.close_async_loader)


def test_after_an_exception_nothing_is_made_unless_somebody_asks() -> None:
    def make(number: int, batch: int) -> int:
        raise KeyError(number)

    loader = AsyncNumbers(64, make=make)
    with pytest.raises(KeyError):
        list(loader)
    within_limit(loader.close_async_loader)
    assert loader.passes == 1


def test_an_exception_in_processing_ends_the_loop_only() -> None:
    class Loader(AsyncNumbers):
        def _process_batch(self, batch: Any) -> Any:
            return 1 // batch[1]

    loader = Loader(2)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            list(loader)
    within_limit(loader.close_async_loader)


def test_only_the_latest_loop_goes_on() -> None:
    loader = AsyncNumbers(3)
    first, second = iter(loader), iter(loader)
    next(first)
    assert next(second)[1] == 0
    with pytest.raises(RuntimeError, match="later one"):
        next(first)
    assert batches(second) == [1, 2, 3, 4]
    within_limit(loader.close_async_loader)


@pytest.mark.parametrize("size", [1, 2, 3, 64])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_closing_never_hangs_and_ends_the_thread(size: int, taken: int) -> None:
    loader = AsyncNumbers(size, count=100)
    it = iter(loader)
    for _ in range(taken):
        next(it)
    thread = loader._thread
    within_limit(loader.close_async_loader)
    assert thread is None or not thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        list(loader)
    within_limit(loader.close_async_loader)


def test_closing_wakes_a_loop_that_waits() -> None:
    waiting, release = threading.Event(), threading.Event()

    def make(number: int, batch: int) -> int:
        waiting.set()
        assert release.wait(LIMIT_S)
        return batch

    loader = AsyncNumbers(2, make=make)
    errors: list[BaseException] = []

    def loop() -> None:
        try:
            list(loader)
        except RuntimeError as error:
            errors.append(error)

    consumer = threading.Thread(target=loop, daemon=True)
    consumer.start()
    assert waiting.wait(LIMIT_S)
    closing = threading.Thread(target=loader.close_async_loader, daemon=True)
    closing.start()
    consumer.join(LIMIT_S)
    release.set()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    assert not consumer.is_alive()
    assert len(errors) == 1


def test_closing_says_if_the_thread_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("horovod.data.data_loader_base._CLOSE_LIMIT_S", 0.05)
    release = threading.Event()
    loader: Any = AsyncNumbers(2, make=lambda *_: release.wait(LIMIT_S) if loader.passes == 2 else None)
    list(loader)
    thread = loader._thread
    assert thread is not None
    with pytest.warns(RuntimeWarning, match="still making a batch"):
        loader.close_async_loader()
    release.set()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_progress_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for debug, lines in ((False, 3), (True, 3 + 5)):
        loader = AsyncNumbers(2, debug)
        list(loader)
        loader.close_async_loader()
        assert len(capsys.readouterr().out.splitlines()) == lines
