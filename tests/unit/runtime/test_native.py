"""Threads that could still submit operations."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from horovod.runtime import native


def beside(name: str, look: Callable[[], bool]) -> bool:
    """Run ``look`` while one more thread stands in Python."""
    up, over = threading.Event(), threading.Event()

    def stand() -> None:
        up.set()
        over.wait()

    thread = threading.Thread(target=stand, name=name)
    thread.start()
    try:
        assert up.wait(60)
        return look()
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(("name", "harmless"), [("loader", False), ("horovod-notice", True)])
def test_threads_of_scripts_may_submit_and_ours_do_not(name: str, harmless: bool) -> None:
    ours = sum(thread.name.startswith("horovod-") for thread in threading.enumerate())
    here = len(sys._current_frames()) - ours  # pytest may have started some
    assert native.only_these(here)
    assert not native.only_these(here - 1)
    assert beside(name, lambda: native.only_these(here)) == harmless
