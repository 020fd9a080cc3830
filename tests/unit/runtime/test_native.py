"""Threads that could still submit operations."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from horovod.runtime import native


@pytest.fixture
def present() -> list[int]:
    """Threads that there are before the test starts one: all of them wait."""
    return list(sys._current_frames())


@contextmanager
def standing(name: str) -> Iterator[int]:
    """A thread that stands in Python."""
    up, over = threading.Event(), threading.Event()

    def stand() -> None:
        up.set()
        over.wait()

    thread = threading.Thread(target=stand, name=name)
    thread.start()
    try:
        assert up.wait(60)
        assert thread.ident is not None
        yield thread.ident
    finally:
        over.set()
        thread.join()


def test_thread_of_the_script_could_submit(present: list[int]) -> None:
    assert native.only_these(present)
    with standing("loader") as thread:
        assert not native.only_these(present)
        assert native.only_these([*present, thread]), "it waits, too"


def test_thread_of_this_package_does_not_submit(present: list[int]) -> None:
    with standing("horovod-notice"):
        assert native.only_these(present)


def test_feeder_of_a_queue_does_not_submit(present: list[int]) -> None:
    queue: multiprocessing.Queue[int] = multiprocessing.get_context("spawn").Queue()
    queue.put(1)  # loaders with workers have such queues
    try:
        assert any(t.name == "QueueFeederThread" for t in threading.enumerate())
        assert native.only_these(present)
    finally:
        assert queue.get(timeout=60) == 1
        queue.close()
        queue.join_thread()


def test_pool_submits_while_it_works(present: list[int]) -> None:
    over = threading.Event()
    up = threading.Event()

    def work(then: Callable[[], object]) -> None:
        up.set()
        then()

    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(work, over.wait)
        assert up.wait(60)
        assert not native.only_these(present)
        over.set()
        task.result(60)
        end = time.monotonic() + 60  # its thread is on its way back to where it waits for work
        while not native.only_these(present):
            assert time.monotonic() < end
