"""`horovod.runner.elastic.driver`: workers are threads here, and report by `record_ready` (R-ELA-1..11)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from horovod.errors import ConfigError, LaunchError
from horovod.launch.elastic import discovery as discovery_module
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.common.util.timeout import TimeoutException
from horovod.runner.elastic.discovery import FixedHosts, HostDiscovery, HostUpdateResult
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.worker import WorkerNotificationManager
from horovod.wordings import too_many_resets

LIMIT_S = 30.0
pytestmark = pytest.mark.timeout(120)

Slot = tuple[str, int]
TWO_HOSTS = {"host-1": 2, "host-2": 2}
SLOTS = [("host-1", 0), ("host-1", 1), ("host-2", 0), ("host-2", 1)]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are asked for often."""
    monkeypatch.setattr(discovery_module.Poller.__init__, "__defaults__", (0.02, None))


class Spy(ElasticDriver):
    """Tells rank 0 by a list."""

    told: list[tuple[SlotInfo | None, int, int]]

    def get_worker_client(self, slot_info: SlotInfo) -> Any:
        spy = self

        class Client:
            def notify_hosts_updated(self, timestamp: int, update_res: int) -> None:
                spy.told.append((slot_info, timestamp, update_res))

        return Client()


@pytest.fixture
def make() -> Iterator[Callable[..., Spy]]:
    made: list[Spy] = []

    def make(discovery: HostDiscovery, least: int = 2, most: int | None = 4, **more: Any) -> Spy:
        driver = Spy(more.pop("rendezvous", None), discovery, least, most, **{"timeout": LIMIT_S, **more})
        driver.told = []
        made.append(driver)
        return driver

    yield make
    for driver in made:
        driver.stop()
        if driver.world_size():
            driver.get_results()


class Stage:
    """Runs workers: each does what its slot's function says."""

    def __init__(self, driver: ElasticDriver) -> None:
        self.driver = driver
        self.places: dict[Slot, list[SlotInfo]] = {}
        self.started: list[Slot] = []
        self.lock = threading.Lock()

    def ready(self, slot: SlotInfo) -> SlotInfo:
        """Report as ``init()`` does, and return the place."""
        self.driver.record_ready(slot.hostname, slot.local_rank)
        place = self.driver.get_slot_info(slot.hostname, slot.local_rank)
        with self.lock:
            self.places.setdefault((slot.hostname, slot.local_rank), []).append(place)
        return place

    def runs(
        self, work: Callable[[SlotInfo, list[threading.Event]], int]
    ) -> Callable[..., tuple[int, float]]:
        def run(slot: SlotInfo, events: list[threading.Event]) -> tuple[int, float]:
            with self.lock:
                self.started.append((slot.hostname, slot.local_rank))
            return work(slot, events), time.time()

        return run


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.01)


def wait_for_one(events: list[threading.Event]) -> None:
    until(lambda: any(event.is_set() for event in events))


def codes(driver: ElasticDriver) -> dict[str, int]:
    return {name: code for name, (code, _) in driver.get_results().worker_results.items()}


def numbers(place: SlotInfo) -> tuple[int | None, ...]:
    return place.rank, place.size, place.local_rank, place.local_size, place.cross_rank, place.cross_size


def test_all_slots_get_a_worker_whose_place_stays(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts(TWO_HOSTS))
    stage = Stage(driver)
    given: dict[Slot, SlotInfo] = {}

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        given[slot.hostname, slot.local_rank] = slot
        assert stage.ready(slot) == slot
        return 0

    assert driver.wait_for_available_slots(2) == TWO_HOSTS
    began = time.time()
    driver.start(2, stage.runs(work))
    results = driver.get_results()
    assert set(results.worker_results) == {"host-1[0]", "host-1[1]", "host-2[0]", "host-2[1]"}
    assert all(code == 0 for code, _ in results.worker_results.values())
    assert all(began <= at <= time.time() for _, at in results.worker_results.values())
    assert results.error_message is None
    assert driver.finished()
    assert [numbers(given[slot]) for slot in SLOTS] == [
        (0, 4, 0, 2, 0, 2), (1, 4, 1, 2, 0, 2), (2, 4, 0, 2, 1, 2), (3, 4, 1, 2, 1, 2)
    ]  # fmt: skip
    assert given["host-2", 1].to_response_string() == "3,4,1,2,1,2"


def test_what_the_driver_knows_of_a_world(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts({"host-1": 1, "host-2": 2}))
    assert driver.get_coordinator_info() is None
    assert driver.world_size() == 0
    stage = Stage(driver)
    done = threading.Event()

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        stage.ready(slot)
        until(lambda: done.is_set())
        return 0

    driver.start(2, stage.runs(work))
    driver.resume()
    assert driver.world_size() == 3
    assert (driver.local_size("host-1"), driver.local_size("host-2"), driver.local_size("host-3")) == (
        1,
        2,
        0,
    )
    assert driver.has_rank_assignment("host-2", 1)
    assert not driver.has_rank_assignment("host-1", 1)
    assert driver.get_slot_info("host-1", 1).rank == -1
    coordinator = driver.get_coordinator_info()
    assert coordinator is not None
    assert (coordinator.hostname, coordinator.rank) == ("host-1", 0)
    assert numbers(driver.get_slot_info("host-2", 1)) == (2, 3, 1, 2, 0, 1)
    assert not driver.finished()
    done.set()
    assert list(codes(driver).values()) == [0, 0, 0]
    with pytest.raises(LaunchError, match="is over"):
        driver.resume()


def test_a_host_that_fails_before_all_are_ready_is_left_out(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts(TWO_HOSTS))
    stage = Stage(driver)

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        if slot.hostname == "host-2":
            return 1
        place = stage.ready(slot)
        assert numbers(place) == (slot.rank % 2, 2, slot.local_rank, 2, 0, 1)
        return 0

    driver.start(2, stage.runs(work))
    assert codes(driver) == {"host-1[0]": 0, "host-1[1]": 0}
    assert not driver.has_rank_assignment("host-2", 0)


def test_a_host_that_comes_while_workers_start_is_in_the_first_world(make: Callable[..., Spy]) -> None:
    discovery = FixedHosts({"host-1": 2})
    driver = make(discovery)
    stage = Stage(driver)
    seen = threading.Event()

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        if slot.hostname == "host-1":
            until(seen.is_set)
        place = stage.ready(slot)
        assert (place.size, place.cross_size) == (4, 2)
        assert place.rank == slot.rank
        return 0

    driver.start(2, stage.runs(work))
    discovery.set(TWO_HOSTS)
    assert driver.wait_for_available_slots(4) == TWO_HOSTS
    seen.set()
    assert codes(driver) == dict.fromkeys(("host-1[0]", "host-1[1]", "host-2[0]", "host-2[1]"), 0)
    assert len(stage.started) == 4


def test_workers_that_report_again_meet_those_of_a_new_host(make: Callable[..., Spy]) -> None:
    discovery = FixedHosts({"host-1": 2})
    driver = make(discovery)
    stage = Stage(driver)

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        place = stage.ready(slot)
        if slot.hostname == "host-1":
            assert (place.rank, place.size) == (slot.local_rank, 2)
            until(lambda: bool(driver.told))
            assert numbers(stage.ready(slot)) == (slot.local_rank, 4, slot.local_rank, 2, 0, 2)
        else:
            assert numbers(place) == (2 + slot.local_rank, 4, slot.local_rank, 2, 1, 2)
        return 0

    driver.start(2, stage.runs(work))
    driver.resume()
    discovery.set(TWO_HOSTS)
    assert len(codes(driver)) == 4
    assert sorted(stage.started) == SLOTS
    assert [kind for _, _, kind in driver.told] == [HostUpdateResult.added]


def test_waiting_ends_when_there_are_enough_slots(make: Callable[..., Spy]) -> None:
    discovery = FixedHosts({"host-1": 2})
    driver = make(discovery)
    driver.get_coordinator_info = lambda: SlotInfo("host-1", 0, 0, 0)  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(driver.wait_for_available_slots, 8)
        until(lambda: len(driver.told) == 1)
        for count, hosts in enumerate(({"host-1": 4}, {"host-1": 3}, {"host-1": 4, "host-2": 5}), start=2):
            assert not waits.done()
            discovery.set(hosts)
            until(lambda count=count: len(driver.told) == count)  # type: ignore[misc]
        assert waits.result(LIMIT_S) == {"host-1": 4, "host-2": 5}
    kinds = [kind for _, _, kind in driver.told]
    added, removed = HostUpdateResult.added, HostUpdateResult.removed
    assert kinds == [added, added, removed, added]
    times = [at for _, at, _ in driver.told]
    assert times == sorted(set(times)), "workers ignore what is not newer"


def test_waiting_ends_when_there_are_enough_hosts(make: Callable[..., Spy]) -> None:
    discovery = FixedHosts({"host-1": 8})
    driver = make(discovery)
    assert driver.wait_for_available_slots(4) == {"host-1": 8}
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(driver.wait_for_available_slots, 4, min_hosts=2)
        discovery.set({"host-1": 7})
        until(lambda: driver.wait_for_available_slots(4) == {"host-1": 7})
        assert not waits.done()
        discovery.set({"host-1": 7, "host-2": 1})
        assert waits.result(LIMIT_S) == {"host-1": 7, "host-2": 1}


def test_too_few_slots_for_too_long(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts({"host-1": 1}), timeout=0.2)
    what = "Timed out waiting for minimum number of slots .* 2 slots on 1 host needed, there: host-1:1"
    with pytest.raises(TimeoutException, match=what):
        driver.wait_for_available_slots(2)
    with pytest.raises(TimeoutException, match="Timed out"):
        driver.start(2, lambda *_: (0, 0.0))


def test_waiting_ends_when_the_driver_is_stopped(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts({}))
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(driver.wait_for_available_slots, 2)
        driver.stop("there is no money left")
        with pytest.raises(LaunchError, match="no money left"):
            waits.result(LIMIT_S)
    assert driver.get_results().error_message == "there is no money left"
    assert driver.get_results().worker_results == {}


def test_all_workers_fail(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts(TWO_HOSTS))
    stage = Stage(driver)

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        stage.ready(slot)
        return 1

    driver.start(2, stage.runs(work))
    assert list(codes(driver).values()) == [1, 1, 1, 1]
    assert driver.finished()
    assert driver.get_results().error_message is None


def test_a_job_may_be_over_before_its_start_returns(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts({"a": 1}), least=1)
    job = driver._job

    class Late(threading.Condition):
        """Wakes the program, which waits for the start, when all is over."""

        def wait(self, timeout: float | None = None) -> bool:
            if job._policy is None:
                return super().wait(timeout)
            return bool(self.wait_for(job.finished))

        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            while not predicate():
                super().wait(timeout)
            return True

    job._changed = Late()
    driver.start(1, lambda slot, events: (0, 1.0))
    assert driver.get_results().error_message is None


@pytest.mark.parametrize("first_reports", [False, True])
def test_a_success_stops_the_others(
    make: Callable[..., Spy], first_reports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horovod.runner.elastic.driver._SUCCESS_S", 0.1)
    driver = make(FixedHosts(TWO_HOSTS))
    stage = Stage(driver)

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        if slot.rank == 0:
            if first_reports:
                stage.ready(slot)
            return 0
        stage.ready(slot)
        wait_for_one(events[:1])
        return 1

    driver.start(2, stage.runs(work))
    assert codes(driver) == {"host-1[0]": 0, "host-1[1]": 1, "host-2[0]": 1, "host-2[1]": 1}
    assert driver.finished()


def test_a_failure_stops_the_other_workers_of_its_host(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts(TWO_HOSTS))
    stage = Stage(driver)
    stopped: list[Slot] = []

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        if slot.rank == 0:
            return 1
        place = stage.ready(slot)
        if slot.rank == 1:
            assert place.rank == -1
            assert not events[0].is_set(), "the job goes on"
            wait_for_one(events[1:])
            stopped.append((slot.hostname, slot.local_rank))
            return 1
        assert (place.rank, place.size, place.cross_size) == (slot.rank % 2, 2, 1)
        until(lambda: bool(stopped))
        return 0

    driver.start(2, stage.runs(work))
    assert codes(driver) == {"host-2[0]": 0, "host-2[1]": 0}
    assert stopped == [("host-1", 1)]


def test_a_function_that_raises_has_failed(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts({"host-1": 1}), least=1)

    def work(slot: SlotInfo, events: list[threading.Event]) -> tuple[int, float]:
        raise SystemExit("no such machine")

    driver.start(1, work)
    assert codes(driver) == {"host-1[0]": 1}


def test_rank_0_alone_is_told(make: Callable[..., Spy]) -> None:
    discovery = FixedHosts({"host-1": 2})
    driver = make(discovery)
    stage = Stage(driver)
    over = threading.Event()
    heard: dict[Slot, list[int]] = {}

    class Listener:
        def __init__(self, slot: Slot) -> None:
            self.heard = heard.setdefault(slot, [])

        def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
            self.heard.append(update_res)

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        manager = WorkerNotificationManager()
        manager.register_listener(Listener((slot.hostname, slot.local_rank)))
        driver.register_worker_server(slot.hostname, slot.local_rank, manager, None)
        stage.ready(slot)
        until(over.is_set)
        return 0

    driver.get_worker_client = lambda slot: ElasticDriver.get_worker_client(driver, slot)  # type: ignore
    driver.start(2, stage.runs(work))
    driver.resume()
    discovery.set(TWO_HOSTS)
    until(lambda: len(heard["host-1", 0]) == 1)
    discovery.set({"host-1": 2})
    until(lambda: len(heard["host-1", 0]) == 2)
    discovery.set({"host-2": 2})  # fewer slots of the world than are needed: that must be known, too
    until(lambda: len(heard["host-1", 0]) == 3)
    discovery.set({"host-2": 1})
    until(lambda: len(heard["host-1", 0]) == 4)
    over.set()
    driver.get_results()
    added, removed = HostUpdateResult.added, HostUpdateResult.removed
    assert heard == {("host-1", 0): [added, removed, added | removed, removed], ("host-1", 1): []}


def test_slots_beyond_the_most_are_no_news(make: Callable[..., Spy]) -> None:
    discovery = FixedHosts({"host-1": 2})
    driver = make(discovery, most=2)
    stage = Stage(driver)
    over = threading.Event()

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        stage.ready(slot)
        until(over.is_set)
        return 0

    driver.start(2, stage.runs(work))
    driver.resume()
    assert [kind for _, _, kind in driver.told] == []
    discovery.set({"host-1": 4, "host-2": 4})
    driver.wait_for_available_slots(8)
    discovery.set({"host-1": 1})
    until(lambda: bool(driver.told))
    assert [kind for _, _, kind in driver.told] == [HostUpdateResult.removed]
    over.set()


def test_a_worker_that_nothing_tells(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts({"host-1": 1}), least=1)
    slot = SlotInfo("host-1", 0, 0, 0)
    assert ElasticDriver.get_worker_client(driver, slot) is None
    driver.register_worker_server("host-1", 0, {"lo": [("127.0.0.1", 1)]}, b"key")
    client = ElasticDriver.get_worker_client(driver, slot)
    assert client is not None
    assert (client.addresses, client.secret_key) == ({"lo": [("127.0.0.1", 1)]}, b"key")
    assert "key" not in repr(client)
    with pytest.raises(LaunchError, match="cannot be told"):
        client.notify_hosts_updated(1, 1)


class Failing(HostDiscovery):
    def __init__(self, good: int) -> None:
        self.good = good
        self.asked = 0

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        self.asked += 1
        if self.asked > self.good:
            raise OSError("no list of hosts")
        return {"host-1": 1}


def test_a_discovery_that_fails_at_first_ends_the_driver(make: Callable[..., Spy]) -> None:
    driver = make(Failing(0))
    with pytest.raises(RuntimeError, match="no list of hosts"):
        driver.wait_for_available_slots(1)
    assert driver.finished()
    with pytest.raises(RuntimeError, match="no list of hosts"):
        driver.start(2, lambda *_: (0, 0.0))
    assert driver.get_results().error_message == "no list of hosts"


def test_a_discovery_that_fails_later_does_not(make: Callable[..., Spy]) -> None:
    discovery = Failing(1)
    driver = make(discovery, least=1)
    assert driver.wait_for_available_slots(1) == {"host-1": 1}
    until(lambda: discovery.asked > 2)
    assert not driver.finished()
    assert driver.wait_for_available_slots(1) == {"host-1": 1}


def test_the_reset_limit(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts(TWO_HOSTS), reset_limit=0)
    stage = Stage(driver)

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        stage.ready(slot)
        if slot.hostname == "host-2":
            return 1
        return 0 if stage.ready(slot).rank >= 0 else 2

    driver.start(2, stage.runs(work))
    error = driver.get_results().error_message
    assert error is not None
    assert too_many_resets(0) in error


def test_stop_ends_the_workers(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts(TWO_HOSTS))
    stage = Stage(driver)

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        if slot.rank:
            stage.ready(slot)  # rank 0 does not: nobody gets a place
        wait_for_one(events)
        return 143

    driver.start(2, stage.runs(work))
    driver.stop()
    assert list(codes(driver).values()) == [143] * 4
    driver.stop("too late to matter")
    assert driver.get_results().error_message is None


def test_reports_from_other_threads_do_not_block(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts(TWO_HOSTS))
    stage = Stage(driver)
    done = threading.Event()

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        until(done.is_set)
        return 0

    driver.start(2, stage.runs(work))
    for host, index in [*SLOTS[:3], *SLOTS]:  # the first three as somebody who asks again
        driver.record_ready(host, index)
    driver.record_ready("host-3", 0)
    assert [driver.get_slot_info(host, index).rank for host, index in SLOTS] == [0, 1, 2, 3]
    done.set()
    assert len(codes(driver)) == 4


def test_the_rendezvous_is_told_of_each_world(make: Callable[..., Spy]) -> None:
    class Rendezvous:
        def __init__(self) -> None:
            self.worlds: list[list[Slot]] = []

        def init(self, plan: list[SlotInfo]) -> None:
            assert [slot.rank for slot in plan] == list(range(len(plan)))
            self.worlds.append([(slot.hostname, slot.local_rank) for slot in plan])

    rendezvous = Rendezvous()
    driver = make(FixedHosts(TWO_HOSTS), rendezvous=rendezvous)
    stage = Stage(driver)

    def work(slot: SlotInfo, events: list[threading.Event]) -> int:
        stage.ready(slot)
        if slot.hostname == "host-1":
            return 1
        assert rendezvous.worlds[-1] == SLOTS
        stage.ready(slot)
        assert rendezvous.worlds[-1] == SLOTS[2:]
        return 0

    driver.start(2, stage.runs(work))
    assert len(codes(driver)) == 2
    assert rendezvous.worlds == [SLOTS, SLOTS, SLOTS[2:]]


def test_numbers_that_contradict_each_other(make: Callable[..., Spy]) -> None:
    driver = make(FixedHosts(TWO_HOSTS), least=3)
    with pytest.raises(ConfigError, match="more than"):
        driver.start(2, lambda *_: (0, 0.0))
    with pytest.raises(ValueError, match="cool-down"):
        make(FixedHosts({}), cooldown_range=(0, 5))
    with pytest.raises(LaunchError, match="not started"):
        driver.get_results()
