"""Two jobs, ``compute`` and ``training``, that meet over a file in a folder, once for each setting."""

from __future__ import annotations

import itertools
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

SETTINGS = list(itertools.product((1, 2), ("compute", "training")))
ELEMENTS = 1024
WAIT_S = 60.0


def path(folder: Path, dispatchers: int, side: str) -> Path:
    return folder / f"{dispatchers}-{side}"


def compute(folder: Path) -> None:
    for dispatchers, side in SETTINGS:
        file = str(path(folder, dispatchers, side))
        words = ["--dispatchers", str(dispatchers), "--dispatcher-side", side, "--timeout", str(WAIT_S)]
        sys.argv = ["compute_worker", *words, file]
        # As `python -m` does, without importing TensorFlow every time.
        runpy.run_module("horovod.tensorflow.data.compute_worker", run_name="__main__")


def training(folder: Path) -> None:
    hvd.init()
    for dispatchers, side in SETTINGS:
        file = path(folder, dispatchers, side)
        config = TfDataServiceConfig.read(file, wait_for_file_creation=True, timeout_s=WAIT_S)
        (everything_by_send if side == "compute" else everything_by_address)(config)
        hvd.allgather_object(None)  # nobody reads any more
        if hvd.rank() == 0:
            config.compute_client().shutdown()


def everything_by_send(config: TfDataServiceConfig) -> None:
    rank, size = hvd.rank(), hvd.size()
    own = sent(config, numbers())
    assert sorted(own) == list(range(ELEMENTS)), "distributed_epoch: every element once for every rank"
    again = sent(config, numbers(), processing_mode="parallel_epochs")
    assert sorted(again) == sorted(list(range(ELEMENTS)) * config.workers_per_dispatcher), (
        "parallel_epochs: from each worker"
    )

    part = sent(config, numbers(), reuse_dataset=True)
    every = hvd.allgather_object(part)
    together = [element for elements in every for element in elements]
    ranks_of_a_dispatcher = size // config.dispatchers
    assert len(part) == len(set(part))
    assert sorted(together) == sorted(list(range(ELEMENTS)) * config.dispatchers), "shared: each element once"
    assert ranks_of_a_dispatcher > 1 or len(part) == ELEMENTS

    if config.dispatchers == 1:
        endless = tf.data.Dataset.range(1000).repeat()
        turns = endless.send_to_data_service(
            config, rank, size, "parallel_epochs", reuse_dataset=True, round_robin=True
        )
        got = [int(element) for element in itertools.islice(turns, 20)]
        # Every worker deals its elements out in turns.
        assert {element % size for element in got} == {rank}
    other = sent(config, tf.data.Dataset.range(7).batch(1), reuse_dataset=True)
    together = [element for elements in hvd.allgather_object(other) for element in elements]
    assert sorted(together) == sorted(list(range(7)) * config.dispatchers), "another shared one"


def everything_by_address(config: TfDataServiceConfig) -> None:
    with tf_data_service(config, hvd.rank()) as address:
        dataset = numbers().apply(
            tf.data.experimental.service.distribute("distributed_epoch", service=address, job_name="shared")
        )
        part = list(flat(dataset))
        every = hvd.allgather_object(part)
        together = [element for elements in every for element in elements]
        assert sorted(together) == sorted(list(range(ELEMENTS)) * config.dispatchers)


def sent(config: TfDataServiceConfig, dataset: Any, **options: Any) -> list[int]:
    return list(flat(dataset.send_to_data_service(config, hvd.rank(), hvd.size(), **options)))


def numbers() -> Any:
    return tf.data.Dataset.range(ELEMENTS).shuffle(ELEMENTS).batch(128)


def flat(dataset: Any) -> Iterator[int]:
    for batch in dataset:
        assert 0 < len(batch) <= 128
        yield from batch.numpy().tolist()


if __name__ == "__main__":
    {"compute": compute, "training": training}[sys.argv[1]](Path(sys.argv[2]))
    print("ended well")
