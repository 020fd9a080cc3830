"""Memory that is lent to other processes: found, told from another, not written to, and there for long."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from tests.held import held, left_since

from horovod.elastic.state_memory import Loan, StateMemory

SIZE = 10_000
_spawning = multiprocessing.get_context("spawn")
_forking = multiprocessing.get_context("fork")


def made(fill: int) -> StateMemory:
    memory = StateMemory.made(SIZE)
    assert memory is not None
    memory.content[:] = fill
    return memory


def lend(connection: Connection) -> None:
    """Lends memory, and writes to it when told to, if it may."""
    memory = made(5)
    connection.send(memory.lend())
    connection.recv()
    memory.settle()
    while True:
        connection.send(memory.writable())
        if connection.recv() == "end":
            return


def borrow(connection: Connection) -> None:
    memory = StateMemory.borrowed(connection.recv())
    assert memory is not None
    connection.send(memory.content.sum())
    connection.recv()


@contextlib.contextmanager
def process(work: Any, context: Any = _spawning) -> Iterator[tuple[Any, Connection]]:
    mine, theirs = context.Pipe()
    child = context.Process(target=work, args=(theirs,), daemon=True)
    child.start()
    theirs.close()
    try:
        yield child, mine
    finally:
        child.kill()
        child.join(20)


def received(connection: Connection) -> Any:
    assert connection.poll(60)
    return connection.recv()


def test_what_is_borrowed_outlives_a_lender_that_is_killed() -> None:
    with process(lend) as (child, connection):
        memory = StateMemory.borrowed(received(connection))
        assert memory is not None
        assert not memory.owned
        assert not memory.writable()
        connection.send("settle")
        assert received(connection) is False
        os.kill(child.pid, signal.SIGKILL)
        child.join(20)
    assert memory.content.size == SIZE
    assert np.all(memory.content == 5)
    again = StateMemory.borrowed(memory.lend())  # to those who come after the lender's end
    assert again is not None
    assert np.all(again.content == 5)


def test_memory_is_written_to_again_when_all_have_let_go() -> None:
    with process(lend, _forking) as (_, connection):
        memory = StateMemory.borrowed(received(connection))
        connection.send("settle")
        assert received(connection) is False
        del memory
        gc.collect()
        connection.send("look")
        assert received(connection) is True


def test_a_borrower_that_is_killed_has_let_go() -> None:
    memory = made(3)
    with process(borrow, _forking) as (child, connection):
        connection.send(memory.lend())
        assert received(connection) == 3 * SIZE
        memory.settle()
        assert not memory.writable()
        os.kill(child.pid, signal.SIGKILL)
        child.join(20)
        assert memory.writable()


def test_a_process_that_a_borrower_has_forked_off_does_not_keep_it() -> None:
    memory = made(3)
    borrowed = StateMemory.borrowed(memory.lend())
    memory.settle()
    with process(_wait, _forking) as (child, connection):
        assert received(connection) == "there"
        assert not memory.writable()
        del borrowed
        gc.collect()
        assert child.is_alive()
        assert memory.writable()


def test_a_process_that_is_forked_off_does_not_let_go_for_its_parent() -> None:
    memory = made(3)
    borrowed = [StateMemory.borrowed(memory.lend())]
    memory.settle()

    def let_go(connection: Connection) -> None:
        borrowed.clear()
        gc.collect()
        connection.send("gone")

    with process(let_go, _forking) as (_, connection):
        assert received(connection) == "gone"
        assert not memory.writable()


def _wait(connection: Connection) -> None:
    connection.send("there")
    connection.recv()


def test_what_is_not_settled_is_not_written_to() -> None:
    memory = made(1)
    assert memory.writable()
    memory.lend()
    assert not memory.writable()
    memory.settle()
    assert memory.writable()
    borrowed = StateMemory.borrowed(memory.lend())
    memory.settle()
    memory.lend()  # a second time, with the first borrower still there
    memory.settle()
    assert not memory.writable()
    del borrowed
    gc.collect()
    assert memory.writable()


def test_another_memory_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "horovod")
    loan, other = made(1).lend(), made(2)
    wrong = [
        other.lend()._replace(token=loan.token),
        other.lend()._replace(size=SIZE - 1),
        other.lend()._replace(descriptor=10**6),
        Loan(2**22 + 1, 0, SIZE, loan.token),
    ]
    for each in wrong:
        assert StateMemory.borrowed(each) is None
        assert "the saved state of rank 0 is copied" in caplog.text
        caplog.clear()
    other.settle()
    assert other.writable()  # nobody has kept a lock


def test_files_of_others_are_not_opened(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "file", "wb") as file:
        loan = Loan(os.getpid(), file.fileno(), SIZE, b"")

        def refuse(*_: object) -> int:
            raise AssertionError("opened")

        monkeypatch.setattr(os, "open", refuse)
        assert StateMemory.borrowed(loan) is None


def test_a_system_without_such_memory_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(38, "Function not implemented")

    caplog.set_level("DEBUG", "horovod")
    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", refuse)
        assert StateMemory.made(SIZE) is None
        assert "no memory to lend" in caplog.text
    before = held()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert StateMemory.made(SIZE) is None
    assert not left_since(before)


def test_descriptors_are_closed() -> None:
    gc.collect()
    before = held()
    memory = made(1)
    borrowed = StateMemory.borrowed(memory.lend())
    assert borrowed is not None
    del memory, borrowed
    gc.collect()
    assert not left_since(before)
