"""The registry by which a training job and the job that prepares its data find each other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from horovod.data.compute_service import ComputeClient, ComputeService
from horovod.errors import AuthenticationError, ConfigError, RendezvousError, StoreTimeout

KEY = bytes(range(32))
SOON_S = 0.05
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def service() -> Iterator[ComputeService]:
    with ComputeService(2, 3, KEY, ["lo"]) as running:
        yield running


@pytest.fixture
def client(service: ComputeService) -> ComputeClient:
    return ComputeClient(service.addresses(), KEY, timeout_s=5.0, identity="rank 7")


def test_a_dispatcher_is_found_by_who_waits_for_it(client: ComputeClient) -> None:
    with ThreadPoolExecutor() as threads:
        found = threads.submit(client.wait_for_dispatcher_registration, 1, 10)
        client.register_dispatcher(0, "grpc://a:1")
        client.register_dispatcher(1, "grpc://b:2")
        assert found.result(10) == "grpc://b:2"
    assert client.wait_for_dispatcher_registration(0, 10) == "grpc://a:1"


def test_a_dispatcher_may_register_again_but_not_elsewhere(client: ComputeClient) -> None:
    client.register_dispatcher(0, "grpc://a:1")
    client.register_dispatcher(0, "grpc://a:1")
    with pytest.raises(
        ValueError, match=r"rank 7 cannot register dispatcher 0 at grpc://b:1.* at grpc://a:1"
    ):
        client.register_dispatcher(0, "grpc://b:1")
    assert client.wait_for_dispatcher_registration(0, 10) == "grpc://a:1"


@pytest.mark.parametrize("number", [-1, 2])
def test_no_such_dispatcher(client: ComputeClient, number: int) -> None:
    for request in (
        lambda: client.register_dispatcher(number, "grpc://a:1"),
        lambda: client.register_worker_for_dispatcher(number, 0),
        lambda: client.wait_for_dispatcher_registration(number, SOON_S),
        lambda: client.wait_for_dispatcher_worker_registration(number, SOON_S),
    ):
        with pytest.raises(IndexError, match=f"no dispatcher {number}: the compute job has 2"):
            request()


def test_workers_of_each_dispatcher_are_counted_by_themselves(client: ComputeClient) -> None:
    with ThreadPoolExecutor() as threads:
        complete = threads.submit(client.wait_for_dispatcher_worker_registration, 0, 20)
        for worker in (3, 4, 5):  # those of the other dispatcher
            client.register_worker_for_dispatcher(1, worker)
        for worker in (0, 1, 1):  # one of them twice
            client.register_worker_for_dispatcher(0, worker)
        client.wait_for_dispatcher_worker_registration(1, 10)
        with pytest.raises(StoreTimeout, match=r"the 3 workers of dispatcher 0 .* came: 0, 1\."):
            client.wait_for_dispatcher_worker_registration(0, SOON_S)
        assert not complete.done()
        client.register_worker_for_dispatcher(0, 2)
        complete.result(10)


def test_waiting_in_vain_says_who_waited_for_what(client: ComputeClient) -> None:
    with pytest.raises(StoreTimeout, match=r"rank 7 waited 0\.05 s for dispatcher 0") as dispatcher:
        client.wait_for_dispatcher_registration(0, SOON_S)
    assert dispatcher.value.waited_s == SOON_S
    with pytest.raises(StoreTimeout, match=r"rank 7 waited 0\.05 s for the 3 workers .* came: none"):
        client.wait_for_dispatcher_worker_registration(0, SOON_S)


@pytest.mark.parametrize(("dispatchers", "workers"), [(1, 1), (1, 512), (32, 16)])
def test_many(dispatchers: int, workers: int) -> None:
    with ComputeService(dispatchers, workers, KEY, ["lo"]) as service:
        client = ComputeClient(service.addresses(), KEY, timeout_s=5.0)
        for number in range(dispatchers):
            client.register_dispatcher(number, f"grpc://host{number}:1")
        for worker in range(dispatchers * workers):
            client.register_worker_for_dispatcher(worker // workers, worker)
        for number in range(dispatchers):
            assert client.wait_for_dispatcher_registration(number, 10) == f"grpc://host{number}:1"
            client.wait_for_dispatcher_worker_registration(number, 10)


def test_the_end_is_heard_before_and_after_it_was_asked_for(client: ComputeClient) -> None:
    waiting = threading.Thread(target=client.wait_for_shutdown)
    waiting.start()
    client.shutdown()
    waiting.join(10)
    assert not waiting.is_alive()
    client.wait_for_shutdown()


def test_a_service_that_ends_is_noticed_by_who_waits(service: ComputeService, client: ComputeClient) -> None:
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.wait_for_shutdown)
        client.register_dispatcher(0, "grpc://a:1")
        service.shutdown()
        with pytest.raises(RendezvousError, match="rank 7"):
            waiting.result(10)


def test_another_key_opens_nothing(service: ComputeService) -> None:
    stranger = ComputeClient(service.addresses(), bytes(32), timeout_s=5.0, identity="rank 7")
    with pytest.raises(AuthenticationError, match=r"rank 7 does not find the service .* of this run"):
        stranger.shutdown()


def test_a_service_that_is_not_there_is_named() -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        places = {"lo": [("127.0.0.1", taken.getsockname()[1])]}
        client = ComputeClient(places, KEY, timeout_s=0.2, identity="rank 7")
        with pytest.raises(RendezvousError, match=r"rank 7 does not find the service .* 127\.0\.0\.1 port"):
            client.shutdown()


def test_addresses_are_those_of_the_chosen_interfaces(service: ComputeService) -> None:
    assert {host for host, _ in service.addresses()["lo"]} <= {"127.0.0.1", "::1"}
    assert list(service.addresses()) == ["lo"]
    with pytest.raises(ConfigError, match="no address of these interfaces"):
        ComputeService(1, 1, KEY, ["nothere0"])


@pytest.mark.parametrize("counts", [(0, 1), (1, 0), (-1, 1)])
def test_counts_are_positive(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="needs dispatchers and workers"):
        ComputeService(*counts, KEY)
