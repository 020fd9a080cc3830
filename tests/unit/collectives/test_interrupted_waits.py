"""A wait that a signal interrupts leaves the operation where it was, whatever the handler raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from horovod.collectives.forms import Collectives
from horovod.collectives.numpy_frontend import NumpyFrontend
from horovod.errors import HorovodInternalError


class Engine:
    """Its waits are interrupted, or fail, as a test says; handles that are over are unknown."""

    def __init__(self, *handles: int) -> None:
        self.outstanding = set(handles)
        self.raises: BaseException | None = None
        self.over_before = 0  # how many operations of `wait_all` are over when it raises

    def poll(self, handle: int) -> bool:
        if handle not in self.outstanding:
            raise ValueError(f"Handle {handle} was not created or has been consumed.")
        return False

    def wait(self, handle: int, _: Any) -> None:
        if self.raises is not None:
            if isinstance(self.raises, HorovodInternalError):
                self.outstanding.discard(handle)
            raise self.raises
        self.outstanding.remove(handle)

    def wait_all(self, handles: list[int], _: Any) -> None:
        for number, handle in enumerate(handles):
            if self.raises is not None and number == self.over_before:
                raise self.raises
            self.outstanding.remove(handle)


INTERRUPTIONS = [KeyboardInterrupt(), TimeoutError("an alarm"), SystemExit(3)]


def waiting_for(engine: Engine) -> tuple[Collectives[Any], list[np.ndarray[Any, Any]]]:
    made = Collectives(NumpyFrontend())
    results = [np.full(1, handle) for handle in sorted(engine.outstanding)]
    for handle, result in zip(sorted(engine.outstanding), results, strict=True):
        made._pending[handle] = engine, result, result, None  # type: ignore[assignment]
    return made, results


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=lambda error: type(error).__name__)
def test_the_operation_can_be_waited_for_again(error: BaseException) -> None:
    engine = Engine(1)
    collectives, (result,) = waiting_for(engine)
    engine.raises = error
    for _ in range(2):
        with pytest.raises(type(error)):
            collectives.synchronize(1)
    engine.raises = None
    assert not collectives.poll(1)
    assert collectives.synchronize(1) is result
    assert collectives.synchronize(1) is None


def test_a_failure_consumes_the_handle() -> None:
    engine = Engine(1)
    collectives, _ = waiting_for(engine)
    engine.raises = HorovodInternalError("rank 1 is gone")
    with pytest.raises(HorovodInternalError):
        collectives.synchronize(1)
    assert collectives.synchronize(1) is None


@pytest.mark.parametrize("error", INTERRUPTIONS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("over", [0, 1, 2])
def test_of_several_those_that_are_not_over_can_be_waited_for_again(error: BaseException, over: int) -> None:
    engine = Engine(1, 2, 3)
    collectives, _ = waiting_for(engine)
    engine.raises, engine.over_before = error, over
    with pytest.raises(type(error)):
        collectives.synchronize_all([1, 2, 3])
    assert list(collectives._pending) == [1, 2, 3][over:]
    engine.raises = None
    collectives.synchronize_all([1, 2, 3][over:])
    assert not collectives._pending
    assert not engine.outstanding
