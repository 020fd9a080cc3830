"""What the driver hears of reports in the store, and what it does not."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

import pytest

from horovod.bootstrap.place.store_address import read_store, store_environment
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.membership import COUNT, SAID, Leaving, Report, Resumed, to_json
from horovod.bootstrap.store.server import StoreServer
from horovod.launch.elastic.conversation import Conversation

KEY = bytes(range(32))
ARRIVED = to_json(Report(ready=False))
pytestmark = pytest.mark.timeout(60)


class _Heard:
    """In place of a driver: keeps what it is told."""

    def __init__(self) -> None:
        self.said_: list[tuple[int, int]] = []

    def said(self, worker: int, number: int, report: Report, now: float) -> None:
        self.said_.append((worker, number))

    def leaving(self, worker: int, leaving: Leaving, now: float) -> None:
        raise AssertionError

    def resumed(self, worker: int, resumed: Resumed) -> None:
        raise AssertionError


class _Talk:
    """A store with the driver's side, and a client that may write anything there."""

    def __init__(self, server: StoreServer, client: StoreClient) -> None:
        self.driver = _Heard()
        self.told: list[str] = []
        self.conversation = Conversation(server, self.told.append)
        self.client = client
        self.now = 1000.0

    def set(self, key: str, value: Any) -> None:
        self.client.set(key, value)
        self.hear()

    def report(self, worker: int) -> None:
        """As a worker does."""
        number = self.client.add(f"{COUNT}{worker}") - 1
        self.set(f"{SAID}{worker}/{number}", ARRIVED)

    def hear(self) -> None:
        # The store answers a client when it has told those who observe.
        while select.select([self.conversation], [], [], 0)[0]:
            self.conversation.hear(self.driver, self.now)  # type: ignore[arg-type]


@pytest.fixture
def talk() -> Iterator[_Talk]:
    server = StoreServer(KEY, job="job")
    with server:
        addresses = read_store(store_environment(server.addresses))
        with StoreClient(addresses, KEY, 5.0, "a test", job="job") as client:
            talk = _Talk(server, client)
            yield talk
            talk.conversation.close()


def test_reports_are_heard_in_order(talk: _Talk) -> None:
    talk.report(3)
    talk.report(3)
    talk.report(4)
    assert talk.driver.said_ == [(3, 0), (3, 1), (4, 0)]
    assert talk.told == []


@pytest.mark.parametrize("number", [1, 2, 999999])
def test_a_forged_number_far_ahead_is_no_report(talk: _Talk, number: int) -> None:
    """Else all later reports of that worker would count as old ones."""
    talk.report(0)
    talk.set(f"{SAID}0/{number}", ARRIVED)
    assert talk.driver.said_ == [(0, 0)]
    assert len(talk.told) == 1
    assert f"elastic/said/0/{number}" in talk.told[0]
    talk.report(0)
    assert talk.driver.said_ == [(0, 0), (0, 1)]


def test_a_number_that_a_program_has_counted_and_never_said_is_no_gap(talk: _Talk) -> None:
    """It was killed in between; the next one in this slot goes on."""
    talk.client.add(f"{COUNT}0")
    talk.report(0)
    assert talk.driver.said_ == [(0, 1)]


def test_a_flood_of_nonsense_is_a_few_lines_and_a_count(talk: _Talk) -> None:
    for number in range(50):
        talk.set(f"{SAID}{number}/x", "rubbish")
    talk.set(f"{COUNT}0", "rubbish")
    assert len(talk.told) == 4
    assert all("makes no sense" in line for line in talk.told[:3])
    assert talk.told[3] == "1 further report that made no sense was ignored"
    talk.now += 61
    talk.set(f"{SAID}7/x", "rubbish")
    assert talk.told[4:] == ["48 further reports that made no sense were ignored"]
    talk.set(f"{SAID}7/x", "rubbish")
    talk.conversation.close()
    assert talk.told[5:] == ["1 further report that made no sense was ignored"]
    assert talk.driver.said_ == []


def test_a_long_forged_value_makes_no_long_line(talk: _Talk) -> None:
    talk.set(f"{SAID}0/{'9' * 200}", "x" * 9000)
    talk.set(f"{SAID}0/0", {"ready": True, "round": "x" * 9000})
    assert len(talk.told) == 2
    assert max(map(len, talk.told)) < 400
