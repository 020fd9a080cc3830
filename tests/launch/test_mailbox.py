"""News between threads: nobody waits to put something in, and who waits with poll is woken."""

from __future__ import annotations

import select
import threading
import time

from horovod.launch.mailbox import Mailbox

LIMIT_MS = 10_000


def readable(mailbox: Mailbox[int], timeout_ms: int) -> bool:
    poller = select.poll()
    poller.register(mailbox, select.POLLIN)
    return bool(poller.poll(timeout_ms))


def test_everything_arrives_once_and_in_the_order_of_each_thread() -> None:
    mailbox: Mailbox[tuple[int, int]] = Mailbox()

    def put(writer: int) -> None:
        for number in range(1000):
            mailbox.put((writer, number))

    writers = [threading.Thread(target=put, args=(writer,)) for writer in range(4)]
    for writer in writers:
        writer.start()
    found: list[tuple[int, int]] = []
    give_up_at = time.monotonic() + LIMIT_MS / 1000
    while len(found) < 4000 and time.monotonic() < give_up_at:
        mailbox.wait(100)
        found += mailbox.take()
    for writer in writers:
        writer.join()
    assert [[n for w, n in found if w == writer] for writer in range(4)] == [list(range(1000))] * 4
    assert mailbox.take() == []
    mailbox.close()


def test_the_descriptor_is_readable_while_there_is_something() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert not readable(mailbox, 0)
    mailbox.put(1)
    assert readable(mailbox, LIMIT_MS)
    assert mailbox.take() == [1]
    assert not readable(mailbox, 0)
    mailbox.close()


def test_what_is_put_in_after_the_end_goes_nowhere() -> None:
    mailbox: Mailbox[int] = Mailbox()
    closed = mailbox.fileno()
    mailbox.close()
    mailbox.close()
    other: Mailbox[int] = Mailbox()
    assert other.fileno() == closed, "the system gives the lowest number again"
    mailbox.put(1)
    assert not readable(other, 0)
    other.close()
