"""The data service of TensorFlow across two jobs: the processes of a compute job run its workers, and a
training job sends its pipelines there.

These processes find each other through a registry that asks for a key (``horovod.data.compute_service``). The
dispatchers and workers are TensorFlow's own. They listen on every interface and ask for no key, so they
belong into a network whose hosts trust each other.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from horovod.data.compute_service import ComputeClient
from horovod.errors import HorovodInternalError, InvalidArgumentError
from horovod.tensorflow.data.compute_config import TfDataServiceConfig
from horovod.tensorflow.mpi_ops import rank as own_rank

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

_HEARTBEAT_MS = 1000


@contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """The data service for rank ``rank`` of the training job, ready to be used.

    If the dispatchers are on the training side, this starts the one of this rank (if there is one for all:
    on rank 0), and ends it when the block is left: leave it together, or ranks lose the dispatcher that they
    still read from.

    Yields:
        The address of the dispatcher, for ``tf.data.experimental.service.distribute``.

    Raises:
        IndexError: there are several dispatchers, but not one for this rank.
        StoreTimeout: dispatcher or workers did not come within ``compute_config.timeout`` seconds.
        HorovodInternalError: this host cannot reach the dispatcher.
        RendezvousError: the compute job is not there.
    """
    client = compute_config.client_of(f"rank {rank} of the training job")
    number = rank if compute_config.dispatchers > 1 else 0
    with ExitStack() as stack:
        if compute_config.dispatcher_side == "training" and rank == number:
            stack.enter_context(_dispatcher(client, number))
        address = client.wait_for_dispatcher_registration(number, compute_config.timeout)
        client.wait_for_dispatcher_worker_registration(number, compute_config.timeout)
        _check_reachable(address, f"Rank {rank} of the training job", compute_config.timeout)
        yield address


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """``dataset``, computed by the workers of a compute job whose dispatchers are on its own side. It is also
    a method of ``tf.data.Dataset``.

    Args:
        dataset: what the workers shall do; ``batch`` belongs in there, it is faster than element by element.
        compute_config: of the compute job.
        rank, size: of this process in the training job.
        processing_mode: ``distributed_epoch``: each element is computed by one of the workers;
            ``parallel_epochs``: each worker computes all.
        reuse_dataset: the ranks that have one dispatcher share the elements, so each gets a part; otherwise
            every rank gets all. Send shared pipelines in the same order on all ranks.
        round_robin: shared elements go to the ranks in turns, by the same worker at the same time; needs
            ``size``, and a dataset that does not end.

    Raises:
        RuntimeError: the dispatchers are on the training side: use ``tf_data_service``.
        ValueError: the number of dispatchers is neither 1 nor ``size``; ``round_robin`` without ``size``.
        Others as :func:`tf_data_service`.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service needs dispatchers that outlive the call, so on the compute side. With "
            "--dispatcher-side training use `with tf_data_service(config, rank) as address:` around the "
            "training, and tf.data.experimental.service.distribute(…, service=address)."
        )
    if size is not None and compute_config.dispatchers not in (1, size):
        raise InvalidArgumentError(
            f"The compute job has {compute_config.dispatchers} dispatchers and the training job {size} "
            "ranks: start the compute job with --dispatchers 1, or with one for each rank."
        )
    turns: dict[str, int] = {}
    if round_robin and not reuse_dataset:
        warnings.warn("round_robin=True means nothing without reuse_dataset=True.", stacklevel=2)
    elif round_robin:
        if size is None:
            raise InvalidArgumentError("round_robin=True needs the size of the training job.")
        turns = {"consumer_index": rank, "num_consumers": size}
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name=compute_config.next_shared_job() if reuse_dataset else None,
                **turns,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Run a worker, and if it is this rank's turn a dispatcher, until somebody ends the compute job.

    Every rank of the compute job calls it after ``hvd.init()``.

    Raises:
        StoreTimeout: the dispatcher did not come within ``compute_config.timeout`` seconds.
        HorovodInternalError: this host cannot reach the dispatcher.
        RendezvousError: rank 0, which serves the registry, went away.
    """
    rank = own_rank()
    number, position = divmod(rank, compute_config.workers_per_dispatcher)
    client = compute_config.client_of(f"rank {rank} of the compute job")
    with ExitStack() as stack:
        if compute_config.dispatcher_side == "compute" and position == 0:
            stack.enter_context(_dispatcher(client, number))
        address = client.wait_for_dispatcher_registration(number, compute_config.timeout)
        _check_reachable(address, f"Rank {rank} of the compute job", compute_config.timeout)
        stack.enter_context(_worker(client, address, compute_config.timeout))
        client.register_worker_for_dispatcher(number, rank)
        client.wait_for_shutdown()


@contextmanager
def _dispatcher(client: ComputeClient, number: int) -> Iterator[None]:
    service = tf.data.experimental.service
    server = service.DispatchServer(service.DispatcherConfig(port=0, protocol="grpc"))
    try:
        port = server.target.rpartition(":")[2]
        client.register_dispatcher(number, f"grpc://{client.place(port)}")
        yield
    finally:
        _end(server)


@contextmanager
def _worker(client: ComputeClient, dispatcher: str, timeout_s: float) -> Iterator[None]:
    service = tf.data.experimental.service
    server = service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=dispatcher.removeprefix("grpc://"),
            worker_address=client.place("%port%"),  # what readers are told
            heartbeat_interval_ms=_HEARTBEAT_MS,
            dispatcher_timeout_ms=int(timeout_s * 1000),
        )
    )
    try:
        yield
    finally:
        _end(server)


def _end(server: Any) -> None:
    server._stop()
    server.join()


def _check_reachable(address: str, who: str, timeout_s: float) -> None:
    """Connect once, as TensorFlow itself would try forever without a message.

    Raises:
        HorovodInternalError: nobody answers.
    """
    host, _, port = address.removeprefix("grpc://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError as error:
        raise HorovodInternalError(
            f"{who} on host {socket.gethostname()} cannot reach the dispatcher at {address}: {error}. Does "
            "its job still run, and does a firewall stand between the hosts?"
        ) from error
