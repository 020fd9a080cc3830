"""A process of a compute job: ``horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker FILE``."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.data.compute_service import ComputeService
from horovod.errors import InvalidArgumentError
from horovod.runtime import lifecycle
from horovod.tensorflow.data.compute_config import parser_of
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn

__all__ = ["main"]


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: float) -> None:
    """Serve until a training job ends this one, by ``TfDataServiceConfig.compute_client().shutdown()``.

    Args:
        dispatchers: how many; the processes of this job are shared evenly among them.
        dispatcher_side: which job runs them, ``compute`` or ``training``.
        configfile: rank 0 writes there what a training job has to know, and removes it at the end.
        timeout: seconds that either job waits for the other.

    Raises:
        ValueError: an argument makes no sense, or the number of processes is no multiple of ``dispatchers``.
        Others as :func:`compute_worker_fn`.
    """
    hvd.init()
    size = hvd.size()
    if dispatchers < 1 or size % dispatchers:
        raise InvalidArgumentError(
            f"The number of processes ({size}) is no multiple of --dispatchers ({dispatchers}): choose one "
            "that is, with horovodrun -np."
        )
    config: TfDataServiceConfig | None = None
    with ExitStack() as stack:
        if hvd.rank() == 0:
            path = Path(configfile)
            path.unlink(missing_ok=True)  # the file of an earlier run must not be read any more
            key = secrets.token_bytes(32)
            interfaces = lifecycle.current().config.network_interface
            nics = interfaces.split(",") if interfaces else None
            workers = size // dispatchers
            service = stack.enter_context(ComputeService(dispatchers, workers, key, nics))
            config = TfDataServiceConfig(
                dispatchers, workers, dispatcher_side, service.addresses(), key, timeout
            )
            config.write(path)
            stack.callback(path.unlink, missing_ok=True)
        config = hvd.broadcast_object(config, root_rank=0, name="TfDataServiceConfig")
        assert config is not None
        compute_worker_fn(config)
        # Rank 0 serves until all others know of the end.
        hvd.allgather_object(None, name="TfDataServiceConfig.end")


def _command_line() -> None:
    arguments = parser_of(
        "python -m horovod.tensorflow.data.compute_worker",
        "A process of a job that runs tf.data pipelines for a training job. Start as many as you like with "
        "horovodrun.",
    ).parse_args()
    # A GPU of this host belongs to the training; TensorFlow would take all of its memory.
    tf.config.set_visible_devices([], "GPU")
    main(arguments.dispatchers, arguments.dispatcher_side, arguments.configfile, arguments.timeout)


if __name__ == "__main__":
    _command_line()
