"""A compute job in Spark tasks: ``spark-submit`` this file, or ``python -m`` this module, with a FILE.

The driver serves the registry and writes the file that tells a training job where it is; the tasks run
dispatchers and workers of TensorFlow's data service, until the training job ends them.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from horovod.data.compute_service import ComputeService
from horovod.errors import HorovodError, InvalidArgumentError
from horovod.launch.contracts.errors import exit_status
from horovod.spark.calls import run
from horovod.spark.stage import active_context
from horovod.tensorflow.data.compute_config import TfDataServiceConfig, parser_of

__all__ = ["main"]


def main(
    dispatchers: int,
    dispatcher_side: str,
    configfile: str,
    timeout: float = 60.0,
    *,
    num_proc: int | None = None,
    **options: Any,
) -> None:
    """Serve until a training job ends this one, by ``TfDataServiceConfig.compute_client().shutdown()``.

    Args:
        dispatchers: how many; the tasks are shared evenly among them.
        dispatcher_side: which job runs them, ``compute`` or ``training``.
        configfile: is written here, on the driver, and removed at the end.
        timeout: seconds that either job waits for the other.
        num_proc: how many tasks; by default the parallelism of Spark.
        **options: of :func:`horovod.spark.run`.

    Raises:
        ValueError: an argument makes no sense, or the number of tasks is no multiple of ``dispatchers``.
        Others as :func:`horovod.spark.run`.
    """
    size = num_proc or int(active_context("A compute job in Spark").defaultParallelism)
    if dispatchers < 1 or size % dispatchers:
        raise InvalidArgumentError(
            f"The number of tasks ({size}) is no multiple of --dispatchers ({dispatchers}): choose one that "
            "is."
        )
    with ExitStack() as stack:
        path = Path(configfile)
        path.unlink(missing_ok=True)  # the file of an earlier run must not be read any more
        key = secrets.token_bytes(32)
        workers = size // dispatchers
        service = stack.enter_context(ComputeService(dispatchers, workers, key))
        config = TfDataServiceConfig(dispatchers, workers, dispatcher_side, service.addresses(), key, timeout)
        config.write(path)
        stack.callback(path.unlink, missing_ok=True)
        run(_work, (config.to_dict(),), num_proc=size, **options)


def _work(config: dict[str, Any]) -> None:
    import tensorflow as tf

    import horovod.tensorflow as hvd
    from horovod.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn

    tf.config.set_visible_devices([], "GPU")  # they belong to the training
    hvd.init()
    compute_worker_fn(TfDataServiceConfig.from_dict(config))


def command_line(words: Sequence[str]) -> int:
    """Run it; returns the exit status."""
    arguments = parser_of(
        "python -m horovod.spark.tensorflow.compute_worker",
        "A Spark job that runs tf.data pipelines for a training job; spark.default.parallelism says with how "
        "many tasks.",
    ).parse_args(words)
    from pyspark.sql import SparkSession

    session = SparkSession.builder.appName("compute job").getOrCreate()
    try:
        main(
            arguments.dispatchers,
            arguments.dispatcher_side,
            arguments.configfile,
            arguments.timeout,
            stderr=sys.stderr,
        )
    except HorovodError as error:
        print(f"compute_worker: {error}", file=sys.stderr)
        return exit_status(error)
    finally:
        session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(command_line(sys.argv[1:]))
