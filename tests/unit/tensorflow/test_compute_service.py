"""What a rank of the training job is told when the compute job is not as it should be."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.data.compute_service import ComputeService
from horovod.errors import HorovodInternalError, StoreTimeout
from horovod.tensorflow.data import compute_worker
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

KEY = bytes(range(32))
DATASET = tf.data.Dataset.range(3)


@pytest.fixture
def config() -> Iterator[TfDataServiceConfig]:
    with ComputeService(2, 1, KEY, ["lo"]) as service:
        yield TfDataServiceConfig(2, 1, "compute", service.addresses(), KEY, 0.2)


def test_dispatchers_on_the_training_side_need_a_block(config: TfDataServiceConfig) -> None:
    with pytest.raises(RuntimeError, match=r"with tf_data_service\(config, rank\) as address"):
        DATASET.send_to_data_service(dataclasses.replace(config, dispatcher_side="training"), 0)


def test_several_dispatchers_are_one_for_each_rank(config: TfDataServiceConfig) -> None:
    with pytest.raises(ValueError, match="2 dispatchers and the training job 3 ranks"):
        DATASET.send_to_data_service(config, 0, 3)
    with pytest.raises(IndexError, match="no dispatcher 2"):
        DATASET.send_to_data_service(config, 2)


def test_round_robin_needs_to_know_how_many_take_turns(config: TfDataServiceConfig) -> None:
    with pytest.raises(ValueError, match="needs the size"):
        DATASET.send_to_data_service(config, 0, reuse_dataset=True, round_robin=True)
    with pytest.warns(UserWarning, match="without reuse_dataset"), pytest.raises(StoreTimeout):
        DATASET.send_to_data_service(config, 0, round_robin=True)


def test_shared_pipelines_have_names_of_their_own(config: TfDataServiceConfig) -> None:
    assert [config.next_shared_job() for _ in range(3)] == ["job", "job.1", "job.2"]


def test_what_does_not_come_is_named(config: TfDataServiceConfig) -> None:
    with (
        pytest.raises(StoreTimeout, match=r"rank 1 of the training job waited 0\.2 s for dispatcher 1"),
        tf_data_service(config, 1),
    ):
        pass
    config.compute_client().register_dispatcher(1, "grpc://127.0.0.1:1")
    with (
        pytest.raises(StoreTimeout, match=r"rank 1 of the training job waited 0\.2 s for the 1 workers"),
        tf_data_service(config, 1),
    ):
        pass


def test_a_dispatcher_that_nobody_reaches_is_named(config: TfDataServiceConfig) -> None:
    client = config.compute_client()
    client.register_worker_for_dispatcher(0, 0)
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"grpc://127.0.0.1:{taken.getsockname()[1]}"
        client.register_dispatcher(0, address)
        with (
            pytest.raises(HorovodInternalError, match=f"Rank 0 .* cannot reach the dispatcher at {address}"),
            tf_data_service(config, 0),
        ):
            pass


def test_a_compute_job_shares_its_processes_evenly(tmp_path: object) -> None:
    with pytest.raises(ValueError, match=r"processes \(1\) is no multiple of --dispatchers \(2\)"):
        compute_worker.main(2, "compute", f"{tmp_path}/config", 1.0)
    hvd.shutdown()
