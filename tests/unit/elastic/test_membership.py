"""Reports of workers and answers of the driver, through a real store; no process is started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from horovod.bootstrap.place.store_address import store_environment
from horovod.bootstrap.store.client import StoreClient
from horovod.bootstrap.store.membership import (
    NEWS,
    SAID,
    WAIT_VARIABLE,
    WORKER_VARIABLE,
    Answer,
    Assigned,
    Dismissed,
    Expected,
    HostUpdateResult,
    Membership,
    News,
    Report,
    Six,
    from_json,
    next_news,
    place_variables,
    to_json,
    told_key,
)
from horovod.bootstrap.store.rounds import process_identity
from horovod.bootstrap.store.server import StoreServer
from horovod.bootstrap.store.table import Cause
from horovod.bootstrap.trust import unix
from horovod.config import Config
from horovod.errors import ConfigError, RendezvousError, StoreTimeout
from horovod.runtime.part import Part, part_of

KEY = bytes(range(32))
PLACE: Six = (1, 4, 1, 2, 0, 2)
pytestmark = pytest.mark.timeout(60)


class _Driver:
    """Answers each report with the next of ``answers``."""

    def __init__(self, server: StoreServer) -> None:
        self.server = server
        self.said: list[tuple[str, Any]] = []
        self.answers: list[Any] = []
        server.observe(SAID, self._hear)

    def _hear(self, rest: str, value: Any) -> None:
        self.said.append((rest, value))
        worker, number = map(int, rest.split("/"))
        if self.answers:
            answer = self.answers.pop(0)
            told = to_json(answer) if isinstance(answer, Answer) else answer
            self.server.put(told_key(worker, number), told)


@pytest.fixture
def driver() -> Iterator[_Driver]:
    server = StoreServer(KEY, job="job")
    made = _Driver(server)
    with server:
        yield made


@pytest.fixture
def member(driver: _Driver) -> Membership:
    environ = {
        "HOROVOD_ELASTIC_WORKER": "7",
        "HOROVOD_HOSTNAME": "b",
        **store_environment(driver.server.addresses),
    }
    return Membership(environ, KEY, "job", 5.0)


@pytest.mark.parametrize(
    "report",
    [
        Report(ready=False),
        Report(True),
        Report(True, 3, True, True, "why not", 0),
        Report(True, 3, False, True),
    ],
)
def test_reports_survive_the_way(report: Report) -> None:
    assert from_json(Report, to_json(report)) == report


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        {},
        {"ready": "x"},
        {"ready": True, "why": 3},
        {"ready": True, "formed": 1},
        {**to_json(Report(True)), "round": -1},
        {**to_json(Report(True)), "round": True},
        {**to_json(Report(True)), "because": "one"},
        {**to_json(Report(True)), "because": 1 << 40},
    ],
)
def test_reports_that_are_none(value: Any) -> None:
    with pytest.raises((TypeError, ValueError, KeyError)):
        from_json(Report, value)


def test_a_long_reason_is_cut() -> None:
    assert len(to_json(Report(True, why="x" * 10**6))["why"]) == 4096


@pytest.mark.parametrize("answer", [Assigned(2, PLACE, 5, True), Expected(PLACE, 3), Dismissed("no more")])
def test_answers_survive_the_way(driver: _Driver, member: Membership, answer: Answer) -> None:
    driver.answers = [answer]
    assert member.report(Report(ready=False)) == answer
    assert driver.said == [("7/0", to_json(Report(ready=False)))]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"assigned": {"round": 1}},
        {"expected": {"place": [1, 2], "round": 0}},
        {"assigned": {"round": 1, "place": [0, 1, 0, 1, 0, "x"], "news": 0}},
        {"dismissed": 3},
        5,
    ],
)
def test_answers_that_are_none(driver: _Driver, member: Membership, answer: Any) -> None:
    driver.answers = [answer]
    with pytest.raises(RendezvousError, match="makes no sense"):
        member.report(Report(ready=False))


def test_a_driver_that_goes_is_an_error(driver: _Driver, member: Membership) -> None:
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(member.report, Report(ready=False))
        heard = threading.Event()
        while not driver.said:
            heard.wait(0.01)
        driver.server.stop()
        with pytest.raises(RendezvousError, match="worker 7 on host b lost the store"):
            answer.result(30)


def test_news_come_in_order(driver: _Driver, member: Membership) -> None:
    driver.server.put(f"{NEWS}0", {"at": 10, "kind": 1})
    with member.connected() as store, ThreadPoolExecutor() as pool:
        assert next_news(store, 0) == News(10, HostUpdateResult.removed)
        second = pool.submit(next_news, store, 1)
        driver.server.put(f"{NEWS}1", {"at": 11, "kind": 2})
        assert second.result(30) == News(11, HostUpdateResult.added)


def test_variables_of_a_place() -> None:
    assert place_variables(PLACE)["HOROVOD_CROSS_SIZE"] == "2"
    assert len(place_variables(PLACE)) == 6


def test_what_is_forgotten_is_not_there(driver: _Driver) -> None:
    server = driver.server
    server.put("epoch/1/x", 1)
    server.fail("epoch/1/", Cause("over"))
    with StoreClient(server.addresses, KEY, 5.0, "test", job="job") as store:
        with pytest.raises(RendezvousError, match="over"):
            store.get("epoch/1/x", 5.0)
        server.forget("epoch/1/")
        with pytest.raises(StoreTimeout):
            store.get("epoch/1/x", 0.0)
        store.set("epoch/1/x", 2)
        assert store.get("epoch/1/x", 0.0) == 2


def test_a_part_reports_what_has_become_of_its_world(
    driver: _Driver, member: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: dict[str, str] = {}
    monkeypatch.setattr("os.putenv", put.__setitem__)
    part = Part(member)
    driver.answers = [Expected(PLACE, 3), Assigned(4, PLACE, 2), Assigned(5, PLACE, 3), Assigned(6, PLACE, 3)]
    assert part.enter() == Expected(PLACE, 3)
    assert part.ready() == Assigned(4, PLACE, 2)
    assert (part.round, part.news) == (4, 2)
    assert put["HOROVOD_SIZE"] == "4"
    part.formed()
    assert part.enter() == Assigned(5, PLACE, 3)
    part.spoiled(RendezvousError("cut", missing=(2,)))
    assert part.enter() == Assigned(6, PLACE, 3)
    reports = [from_json(Report, value) for _, value in driver.said]
    assert reports == [
        Report(ready=False),
        Report(True),
        Report(True, 4, formed=True),
        Report(True, 5, formed=False, failed=True, why="cut", because=2),
    ]


def test_a_part_that_is_dismissed_ends_its_process(driver: _Driver, member: Membership) -> None:
    driver.answers = [Dismissed("the job has ended")]
    with pytest.raises(SystemExit) as caught:
        Part(member).enter()
    assert caught.value.code == 0


def _again(driver: _Driver) -> Membership:
    environ = {
        "HOROVOD_ELASTIC_WORKER": "7",
        "HOROVOD_HOSTNAME": "b",
        **store_environment(driver.server.addresses),
    }
    return Membership(environ, KEY, "job", 5.0)


def test_a_second_program_goes_on_counting(driver: _Driver, member: Membership) -> None:
    driver.answers = [Assigned(1, PLACE), Assigned(2, PLACE), Assigned(3, PLACE)]
    assert member.report(Report(ready=False)) == Assigned(1, PLACE)
    assert member.report(Report(True)) == Assigned(2, PLACE)
    # The same process, as exec leaves it: an answer to the first program is none to the second one.
    assert _again(driver).report(Report(ready=False)) == Assigned(3, PLACE)
    assert [rest for rest, _ in driver.said] == ["7/0", "7/1", "7/2"]


def test_only_one_process_is_a_worker(
    driver: _Driver, member: Membership, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.answers = [Assigned(1, PLACE), Assigned(2, PLACE)]
    member.report(Report(ready=False))
    identity = process_identity()
    child = {**identity, "pid": 1 << 22}
    monkeypatch.setattr("horovod.bootstrap.store.membership.process_identity", lambda: child)
    with pytest.raises(RendezvousError, match="Two processes say that they are worker 7") as caught:
        _again(driver).report(Report(ready=False))
    assert not caught.value.recoverable
    assert len(driver.said) == 1  # the driver has not heard of it
    with member.connected() as store:
        store.set("elastic/owner/7", {**identity, "pid": 1 << 22, "host": "b"})  # which has ended
    monkeypatch.undo()
    assert _again(driver).report(Report(ready=False)) == Assigned(2, PLACE)


def test_a_worker_without_a_driver_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing says where the driver of the elastic job is"):
        part_of(Config(elastic=True), {"HOROVOD_ELASTIC_WORKER": "0"})


def test_a_report_that_waits_is_made_again_to_the_next_driver(caplog: pytest.LogCaptureFixture) -> None:
    first = StoreServer(KEY, unix.fresh_name(), job="j")
    first.start()
    heard = threading.Event()
    first.observe(SAID, lambda rest, value: heard.set())
    environ = {**_worker_environment(first), WAIT_VARIABLE: "30"}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(Membership(environ, KEY, "j", 5.0).report, Report(True, round=3, synced=True))
        assert heard.wait(10.0)
        first.stop()
        second = StoreServer(KEY, first.address[0], job="j")
        driver = _Driver(second)
        driver.answers = [Assigned(4, PLACE)]
        with second:
            assert answer.result(20.0) == Assigned(4, PLACE)
        assert driver.said == [("2/0", to_json(Report(True, round=3, synced=True)))]
    assert "worker 2 on host b waits up to 30 s for another driver (horovodrun --resume)" in caplog.text
    with pytest.raises(ConfigError, match="no number of seconds"):
        Membership({**environ, WAIT_VARIABLE: "soon"}, KEY, "j", 5.0)


def _worker_environment(server: StoreServer) -> dict[str, str]:
    return {**store_environment(server.addresses), WORKER_VARIABLE: "2", "HOROVOD_HOSTNAME": "b"}
